// The frontend's questions over gRPC: one asynchronous call per question, a channel per address.
//
// *Threads*: any. Callbacks run in gRPC's threads; no thread waits for an answer.
// *Truth*: nothing is retried. A peer known to be down fails at once with UNAVAILABLE, an unknown one within its deadline.
// *Bounds*: `kFinderChannelsMax` channels; beyond, the one used longest ago is closed. Labels of as many leaves and domains;
// beyond, all are asked for again.
// *Lifetime*: the destructor waits for the calls under way, which end by answer or deadline.

#ifndef KVATLAS_FRONTEND_GRPC_FINDERS_H_
#define KVATLAS_FRONTEND_GRPC_FINDERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "frontend/finders.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/mutex.h"
#include "proto/kvatlas/v1/leaf.pb.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace kvatlas {

inline constexpr size_t kFinderChannelsMax = 4096;

// Channels by address, and the calls that use them.
class ChannelCache {
 public:
  // Waits for the calls under way, at most until their deadlines: gRPC 1.51 joins its callback threads where the last
  // channel of a process ends, so that must not be one of them.
  ~ChannelCache();

  std::shared_ptr<grpc::Channel> Get(const std::string& address);

  // `Stub`, the same type in all calls of a cache, on that channel: making one registers all its methods.
  template <typename Service>
  std::shared_ptr<typename Service::Stub> StubTo(const std::string& address) {
    std::shared_ptr<grpc::Channel> channel = Get(address);
    MutexLock lock(&mutex_);
    const auto entry = channels_.find(address);
    if (entry == channels_.end() || entry->second.channel != channel)  // closed meanwhile
      return Service::NewStub(channel);
    if (entry->second.stub == nullptr)
      entry->second.stub = std::shared_ptr<typename Service::Stub>(Service::NewStub(channel));
    return std::static_pointer_cast<typename Service::Stub>(entry->second.stub);
  }

  // Around everything that holds a channel.
  void Begin();
  void End();

 private:
  struct Entry {
    std::shared_ptr<grpc::Channel> channel;
    std::shared_ptr<void> stub;  // of the one service that is asked there
    uint64_t used = 0;
  };
  Mutex mutex_;
  absl::flat_hash_map<std::string, Entry> channels_ ABSL_GUARDED_BY(mutex_);
  uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
  CondVar idle_;
  uint64_t under_way_ ABSL_GUARDED_BY(mutex_) = 0;
};

class GrpcCellFinder : public CellFinder {
 public:
  // Starts connecting, so that the first question need not wait for it.
  void Connect(const std::string& hierarchy_address);
  void FindCells(const std::string& hierarchy_address, const CellQuestion& question,
                 Duration deadline, Callback callback) override;

 private:
  ChannelCache channels_;
};

class GrpcOverlapFinder : public OverlapFinder {
 public:
  // Starts connecting, so that the first question need not wait for it.
  void Connect(const std::string& leaf_address);
  void FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question,
                    Duration deadline, Callback callback) override;

 private:
  // What a leaf last said of its workers' labels in a domain.
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
  ChannelCache channels_;  // the first to be destroyed: calls under way use what is above
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

#endif  // KVATLAS_FRONTEND_GRPC_FINDERS_H_
