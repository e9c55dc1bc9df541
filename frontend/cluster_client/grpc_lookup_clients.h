// The frontend's questions over gRPC: over a stream per peer that stays open, or a call each
// (grpc_questions.h).
//
// *Threads*: any. Callbacks run in gRPC's threads; no thread waits for an answer.
// *Truth*: nothing is retried. A peer known to be down fails at once with UNAVAILABLE, an unknown
// one within its deadline.
// *Bounds*: `kPeersMax` peers; beyond, the one asked longest ago is given up. Labels of as many
// leaves and domains;
// beyond, all are asked for again.
// *Lifetime*: the destructor waits for what is under way, calls at most until their deadlines.

#ifndef KVATLAS_FRONTEND_CLUSTER_CLIENT_GRPC_LOOKUP_CLIENTS_H_
#define KVATLAS_FRONTEND_CLUSTER_CLIENT_GRPC_LOOKUP_CLIENTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "frontend/cluster_client/peer_watch.h"
#include "frontend/router/lookup_clients.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/mutex.h"
#include "proto/kvatlas/v1/leaf.pb.h"

namespace kvatlas {

struct CellQuestions;  // what GrpcQuestions asks
struct OverlapQuestions;
template <typename Asked>
class GrpcQuestions;

class GrpcCellFinder : public CellFinder {
 public:
  // Without streams every question is a call: for balancers of calls in between.
  explicit GrpcCellFinder(bool streams = true);
  ~GrpcCellFinder() override;

  // Starts connecting, so that the first question need not wait for it.
  void Connect(const std::string& hierarchy_address);
  // Whether they are reached, by address.
  std::vector<PeerState> States() const;
  // Whether one of those connected to, or asked, is there.
  bool Reached();
  // Connects to those that are away, so that they are known to be back before they are asked.
  void LookForTheLost();
  void FindCells(const std::string& hierarchy_address, const CellQuestion& question,
                 Duration deadline, Callback callback) override;
  // Over a stream that is open: not where questions are calls.
  void TellCell(const std::string& hierarchy_address, const Domain& domain, uint64_t frontend,
                const Routed& routed) override;
  void EndCell(const std::string& hierarchy_address, const Domain& domain, uint64_t frontend,
               const RouteOver& over) override;

 private:
  const std::unique_ptr<GrpcQuestions<CellQuestions>> questions_;
};

class GrpcOverlapFinder : public OverlapFinder {
 public:
  explicit GrpcOverlapFinder(bool streams = true);
  ~GrpcOverlapFinder() override;

  // Starts connecting, so that the first question need not wait for it.
  void Connect(const std::string& leaf_address);
  // Whether they are reached, by address.
  std::vector<PeerState> States() const;
  // Whether one of those connected to, or asked, is there.
  bool Reached();
  // Connects to those that are away, so that they are known to be back before they are asked.
  void LookForTheLost();
  void FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question,
                    Duration deadline, Callback callback) override;
  // Over a stream that is open: not where questions are calls.
  void Tell(const std::string& leaf_address, const Domain& domain, uint64_t frontend,
            const Routed& routed) override;
  void End(const std::string& leaf_address, const Domain& domain, uint64_t frontend,
           const RouteOver& over) override;

 private:
  // The labels of its workers that a leaf last sent for a domain.
  struct KnownLabels {
    uint64_t version = 0;
    std::shared_ptr<const LabelsByWorker> labels;
  };
  using LabelsKey = std::pair<std::string, Domain>;

  KnownLabels LabelsOf(const LabelsKey& key);
  // The labels that belong to an answer to a question that said it knew `known`.
  std::shared_ptr<const LabelsByWorker> TakeLabels(const LabelsKey& key, const KnownLabels& known,
                                                   const v1::FindOverlapsResponse& response);

  Mutex labels_mutex_;
  absl::flat_hash_map<LabelsKey, KnownLabels> labels_ ABSL_GUARDED_BY(labels_mutex_);
  // The first to be destroyed: what is under way uses what is above.
  const std::unique_ptr<GrpcQuestions<OverlapQuestions>> questions_;
};

// Alarms of gRPC's own.
class GrpcTimer : public Timer {
 public:
  // Waits for those that are set.
  ~GrpcTimer() override;
  void After(Duration delay, std::function<void()> callback) override;

 private:
  Mutex mutex_;
  CondVar idle_;
  uint64_t set_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_CLUSTER_CLIENT_GRPC_LOOKUP_CLIENTS_H_
