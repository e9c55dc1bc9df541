// How does a leaf stand in for SGLang's KV indexer on its gRPC port? `kv_indexer.v1.KVIndexer`
// (`kv_indexer.h`).
//
// | call | statuses |
// |---|---|
// | MatchExternalKvPrefix | OK; INVALID_ARGUMENT without hashes; |
// |                       | RESOURCE_EXHAUSTED: more than 8 MiB, or too many at once; |
// |                       | DEADLINE_EXCEEDED: no time was left on arrival; |
// |                       | UNAVAILABLE: starting, or no --kv_indexer_model |
// | MatchExternalKv, GetExternalKvHitCounts | OK; RESOURCE_EXHAUSTED beyond 16,384 hashes; |
// |                       | UNAVAILABLE |
// | ApplyExternalKvBatch | UNIMPLEMENTED: the engine's events are to be read by the leaf itself |
//
// Answers about workers whose trust is not exact say so in the trailing metadata `kvatlas-trust`.
//
// *Threads*: gRPC's own; a call waits for nothing. *Lifetime*: registry, names and metrics outlive
// it, and it the server.

#ifndef KVATLAS_INDEXER_COMPAT_SGLANG_KV_INDEXER_SERVICE_H_
#define KVATLAS_INDEXER_COMPAT_SGLANG_KV_INDEXER_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "indexer/compat/sglang/kv_indexer.h"
#include "indexer/net/arena_messages.h"
#include "indexer/security/security.h"
#include "indexer/telemetry/metrics.h"
#include "proto/kv_indexer/v1/kv_indexer.grpc.pb.h"

namespace kvatlas {

inline constexpr char kKvIndexerTrustMetadata[] = "kvatlas-trust";

class KvIndexerService : public kv_indexer::v1::KVIndexer::CallbackService {
 public:
  // `serving`: this leaf may be asked; called with every query. `names` may be null without a
  //   domain.
  KvIndexerService(const KvIndexerOptions& options, const HolderRegistry* registry,
                   const SglangBlockHashes* names, std::function<bool()> serving, Metrics* metrics);

  grpc::ServerUnaryReactor* MatchExternalKvPrefix(
      grpc::CallbackServerContext* context,
      const kv_indexer::v1::MatchExternalKvPrefixRequest* request,
      kv_indexer::v1::MatchExternalKvPrefixResponse* response) override;
  grpc::ServerUnaryReactor* MatchExternalKv(
      grpc::CallbackServerContext* context, const kv_indexer::v1::MatchExternalKvRequest* request,
      kv_indexer::v1::MatchExternalKvResponse* response) override;
  grpc::ServerUnaryReactor* GetExternalKvHitCounts(
      grpc::CallbackServerContext* context,
      const kv_indexer::v1::GetExternalKvHitCountsRequest* request,
      kv_indexer::v1::GetExternalKvHitCountsResponse* response) override;
  grpc::ServerUnaryReactor* ApplyExternalKvBatch(
      grpc::CallbackServerContext* context,
      const kv_indexer::v1::ApplyExternalKvBatchRequest* request,
      kv_indexer::v1::ApplyExternalKvBatchResponse* response) override;

 private:
  absl::Status Answer(grpc::CallbackServerContext* context,
                      const kv_indexer::v1::MatchExternalKvPrefixRequest& request,
                      kv_indexer::v1::MatchExternalKvPrefixResponse* response);
  absl::Status Serving() const;
  bool Hidden(const grpc::CallbackServerContext& context) const;

  ArenaMessages<kv_indexer::v1::MatchExternalKvPrefixRequest,
                kv_indexer::v1::MatchExternalKvPrefixResponse>
      messages_;
  KvIndexer indexer_;
  const std::optional<Domain> domain_;
  const std::shared_ptr<Security> security_;
  const uint32_t in_flight_max_;
  const std::function<bool()> serving_;
  std::atomic<uint32_t> in_flight_{0};
  std::atomic<uint64_t> applies_{0};
  Counter refused_;
  Histogram seconds_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COMPAT_SGLANG_KV_INDEXER_SERVICE_H_
