// The gRPC service of one leaf (which workers of this cell hold how much of a prompt), and its HTTP
// status.
//
//   GET /status   what Stats answers, as JSON
//
// *Truth*: as `HolderRegistry`. Prompts of up to `kQueryBlocksMax` blocks; beyond is
// RESOURCE_EXHAUSTED.
// *Threads*: any. FindOverlaps is answered on gRPC's own threads: it takes no lock for long and
// never waits.
// *Lifetime*: registry, reporter and metrics outlive it.

#ifndef KVATLAS_INDEXER_LEAF_LEAF_SERVICE_H_
#define KVATLAS_INDEXER_LEAF_LEAF_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "indexer/base/hash.h"
#include "indexer/net/answer_stream.h"
#include "indexer/net/arena_messages.h"
#include "indexer/process/admin_http.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/security/security.h"
#include "indexer/telemetry/metrics.h"
#include "indexer/transport/told_wire.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"

namespace kvatlas {

inline constexpr uint32_t kQueryBlocksMax = 65536;

struct LeafIdentity {
  std::string cell;
  std::string replica;
  HashContract contract;
};

class LeafService : public v1::Leaf::WithCallbackMethod_FindOverlaps<v1::Leaf::Service> {
 public:
  // `fill_rest` adds what is known of the streams upward and of the engines behind holders; may be
  // empty.
  LeafService(LeafIdentity identity, HolderRegistry* registry,
              std::function<void(v1::StatsResponse*)> fill_rest, Metrics* metrics);

  grpc::ServerUnaryReactor* FindOverlaps(grpc::CallbackServerContext* context,
                                         const v1::FindOverlapsRequest* request,
                                         v1::FindOverlapsResponse* response) override;
  grpc::Status Dump(grpc::ServerContext* context, const v1::DumpRequest* request,
                    grpc::ServerWriter<v1::DumpResponse>* writer) override;
  grpc::Status Explain(grpc::ServerContext* context, const v1::ExplainRequest* request,
                       v1::ExplainResponse* response) override;
  grpc::Status Stats(grpc::ServerContext* context, const v1::StatsRequest* request,
                     v1::StatsResponse* response) override;

  // Adds the paths above. REQUIRES: `http` has not started.
  void AddHttp(AdminHttp* http);

  // `Stats` of all domains, and the questions answered over gRPC since the start.
  v1::StatsResponse AllStats() const;
  // `Leaf.Explain` for askers over other transports than gRPC.
  absl::Status ExplainTo(const Identity& asker, const v1::ExplainRequest& request,
                         v1::ExplainResponse* response) const;
  const std::string& cell() const { return identity_.cell; }
  // Counts one more question, asked in this process of the registry itself.
  void CountQuery() { queries_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t queries() const { return queries_.load(std::memory_order_relaxed); }

  // Ends streams of questions, so that the server's stop need not wait for clients.
  void Stop() { streams_.Stop(); }

 private:
  using Streams = AnswerStreams<v1::FindOverlapsStreamRequest, v1::FindOverlapsStreamResponse>;

  Streams::Reactor* OpenStream(grpc::CallbackServerContext* context);
  absl::Status Answer(const Identity& asker, const v1::FindOverlapsRequest& request,
                      v1::FindOverlapsResponse* response);
  absl::Status Find(const Identity& asker, const v1::FindOverlapsRequest& request,
                    v1::FindOverlapsResponse* response) const;
  void FillIdentity(v1::StatsResponse* response) const;
  void FillAll(v1::StatsResponse* response) const;

  ArenaMessages<v1::FindOverlapsRequest, v1::FindOverlapsResponse> messages_;
  const LeafIdentity identity_;
  HolderRegistry* const registry_;
  const std::shared_ptr<Security> security_;
  const std::function<void(v1::StatsResponse*)> fill_rest_;
  std::atomic<uint64_t> queries_{0};
  Counter refused_;
  Counter told_unknown_;
  ToldStreams told_;
  Histogram seconds_;
  Streams streams_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_LEAF_LEAF_SERVICE_H_
