// What can be asked of a running cluster? Stubs to all its processes on channels that last.
//
// *Truth*: calls wait for a process that is being restarted, up to their deadline.
// *Threads*: any.

#ifndef KVATLAS_TOOLS_TESTING_CLUSTER_CLIENT_H_
#define KVATLAS_TOOLS_TESTING_CLUSTER_CLIENT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "tools/testing/cluster/cluster.h"
#include "tools/testing/mock_engine/engine.grpc.pb.h"

namespace kvatlas {

class ClusterClient {
 public:
  // The cluster outlives the client.
  explicit ClusterClient(const Cluster& cluster);

  absl::StatusOr<v1::RouteResponse> Route(std::span<const SequenceHash> blocks,
                                          uint32_t prompt_tokens,
                                          uint32_t expected_output_tokens = 0);
  // By the body of a chat, which names its model.
  absl::StatusOr<v1::RouteResponse> RouteChat(std::string body);
  absl::Status Report(const v1::ReportRequest& report);

  absl::StatusOr<engine::v1::StepResponse> Submit(uint32_t worker,
                                                  const engine::v1::SubmitRequest& request);
  // All of these workers at once; answers in their order.
  std::vector<absl::StatusOr<engine::v1::StepResponse>> Advance(
      const std::vector<uint32_t>& workers, double time_ms, uint32_t wait_ack_ms);
  // UNAVAILABLE: not acknowledged in time.
  absl::Status WaitAcknowledged(uint32_t worker, Duration timeout);
  absl::StatusOr<engine::v1::ContentsResponse> Contents(uint32_t worker);

  // With all workers of the cell.
  absl::StatusOr<v1::FindOverlapsResponse> FindOverlaps(uint32_t cell,
                                                        std::span<const SequenceHash> blocks);
  absl::StatusOr<v1::StatsResponse> LeafStats(uint32_t cell);

 private:
  const std::string model_;
  std::unique_ptr<v1::Frontend::Stub> frontend_;
  std::vector<std::unique_ptr<v1::Leaf::Stub>> leaves_;
  std::vector<std::unique_ptr<engine::v1::Engine::Stub>> engines_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_CLUSTER_CLIENT_H_
