// A hierarchy node behind gRPC (proto/kvatlas/v1/hierarchy.proto), and behind HTTP for people.
//
//   GET /status   the node, its domains, and each cell's replicas
//
// *Threads*: any; `FindCells` runs in gRPC's threads without waiting, dumps and stats in threads of
// gRPC's pool.
// *Lifetime*: hierarchy, reporter and metrics outlive the service.

#ifndef KVATLAS_HIERARCHY_HIERARCHY_SERVICE_H_
#define KVATLAS_HIERARCHY_HIERARCHY_SERVICE_H_

#include <atomic>
#include <cstdint>

#include "hierarchy/hierarchy.h"
#include "indexer/coverage/coverage_reporter.h"
#include "indexer/net/answer_stream.h"
#include "indexer/net/arena_messages.h"
#include "indexer/process/admin_http.h"
#include "indexer/security/security.h"
#include "indexer/telemetry/metrics.h"
#include "indexer/transport/told_wire.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"

namespace kvatlas {

class HierarchyService
    : public v1::Hierarchy::WithCallbackMethod_FindCells<v1::Hierarchy::Service> {
 public:
  // `reporter` tells parents of this node; null: it has none.
  HierarchyService(Hierarchy* hierarchy, const CoverageReporter* reporter, Metrics* metrics);

  grpc::ServerUnaryReactor* FindCells(grpc::CallbackServerContext* context,
                                      const v1::FindCellsRequest* request,
                                      v1::FindCellsResponse* response) override;
  grpc::Status Dump(grpc::ServerContext* context, const v1::DumpRequest* request,
                    grpc::ServerWriter<v1::DumpResponse>* writer) override;
  grpc::Status Stats(grpc::ServerContext* context, const v1::StatsRequest* request,
                     v1::StatsResponse* response) override;

  // Adds the paths above. REQUIRES: `http` has not started.
  void AddHttp(AdminHttp* http);

  // The answer of `Stats`, and the questions answered since the start.
  v1::StatsResponse NodeStats() const;
  uint64_t queries() const { return queries_.load(std::memory_order_relaxed); }

  // Ends streams of questions, so that the server's stop need not wait for clients.
  void Stop() { streams_.Stop(); }

 private:
  using Streams = AnswerStreams<v1::FindCellsStreamRequest, v1::FindCellsStreamResponse>;

  Streams::Reactor* OpenStream(grpc::CallbackServerContext* context);
  absl::Status Answer(const Identity& asker, const v1::FindCellsRequest& request,
                      v1::FindCellsResponse* response);
  absl::Status Find(const Identity& asker, const v1::FindCellsRequest& request,
                    v1::FindCellsResponse* response);
  void FillNodeStats(v1::StatsResponse* response) const;

  ArenaMessages<v1::FindCellsRequest, v1::FindCellsResponse> messages_;
  Hierarchy* const hierarchy_;
  const CoverageReporter* const reporter_;
  const std::shared_ptr<Security> security_;
  std::atomic<uint64_t> queries_{0};
  Counter find_cells_;
  Counter find_cells_failed_;
  Histogram find_cells_seconds_;
  ToldStreams told_;  // of cells, as `LeafService` hears it of workers
  Streams streams_;
};

}  // namespace kvatlas

#endif  // KVATLAS_HIERARCHY_HIERARCHY_SERVICE_H_
