// `KvIndexer` as a gRPC service: readiness, deadlines, the bound of queries at once, visibility
// under a policy and metrics. Every call is answered on the thread that it came on.

#include "indexer/compat/sglang/kv_indexer_service.h"

#include <grpcpp/support/server_callback.h>

#include <bit>
#include <chrono>
#include <string>
#include <utility>

#include "indexer/base/clock.h"
#include "indexer/net/grpc_deadline.h"
#include "indexer/net/grpc_guard.h"
#include "indexer/net/grpc_status.h"
#include "indexer/security/visible_domain.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

namespace v1 = ::kv_indexer::v1;

// Ends a call at once.
grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

// Counts one query while it lives. `before`: how many there were without it.
class InFlight {
 public:
  explicit InFlight(std::atomic<uint32_t>* count)
      : count_(*count), before_(count_.fetch_add(1, std::memory_order_relaxed)) {}
  ~InFlight() { count_.fetch_sub(1, std::memory_order_relaxed); }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  uint32_t before() const { return before_; }

 private:
  std::atomic<uint32_t>& count_;
  const uint32_t before_;
};

// Called at each scrape.
void SetNameGauges(const PageNamesStats& stats, Metrics* metrics) {
  const auto set = [&](const std::string& name, const char* help, uint64_t value) {
    metrics->AddGauge("kvatlas_leaf_kv_indexer_" + name, help).Set(static_cast<double>(value));
  };
  set("names", "Pages that SGLang's router may ask for.", stats.names);
  set("digests", "Of these, those whose digest is kept to name the next page.", stats.digests);
  set("name_bytes", "Memory of both.", stats.bytes);
  const auto total = [&](const std::string& name, const char* help, uint64_t value) {
    metrics->RaiseRenamed("kvatlas_leaf_kv_indexer_" + name + "_total", help,
                          static_cast<double>(value));
  };
  total("names_refused", "Names and digests beyond the bound.", stats.refused);
  total("name_conflicts", "Names that came for another block.", stats.conflicts);
  total("names_swept", "Names of blocks that nothing held any more.", stats.swept);
}

}  // namespace

KvIndexerService::KvIndexerService(const KvIndexerOptions& options, const HolderRegistry* registry,
                                   const SglangBlockHashes* names, std::function<bool()> serving,
                                   Metrics* metrics)
    : indexer_(options, registry, names),
      domain_(options.domain),
      security_(Security::OfProcess()),
      in_flight_max_(options.in_flight_max),
      serving_(std::move(serving)),
      refused_(metrics->AddCounter("kvatlas_leaf_kv_indexer_refused_total",
                                   "Prefix queries of SGLang's router that were refused.")),
      seconds_(metrics->AddHistogram("kvatlas_leaf_kv_indexer_seconds",
                                     "Time to answer a prefix query of SGLang's router.")) {
  SetMessageAllocatorFor_MatchExternalKvPrefix(&messages_);
  if (names != nullptr)
    metrics->OnScrape([names, metrics] { SetNameGauges(names->Stats(), metrics); });
}

// Whether the policy hides the one domain from this caller: it then gets the same empty answers as
// for an unknown domain.
bool KvIndexerService::Hidden(const grpc::CallbackServerContext& context) const {
  if (!security_->enforces() || !domain_.has_value()) return false;
  return DomainVisibleTo(*security_, *IdentityOf(security_.get(), context), *domain_).hidden;
}

// UNAVAILABLE makes the router choose the least loaded worker itself.
absl::Status KvIndexerService::Serving() const {
  return serving_() ? absl::OkStatus() : absl::UnavailableError("not ready yet: see GET /ready");
}

// Timed and counted whether answered or refused.
grpc::ServerUnaryReactor* KvIndexerService::MatchExternalKvPrefix(
    grpc::CallbackServerContext* context, const v1::MatchExternalKvPrefixRequest* request,
    v1::MatchExternalKvPrefixResponse* response) {
  const Time started = Clock::Real().Now();
  const absl::Status status = Answer(context, *request, response);
  if (!status.ok()) refused_.Increment();
  seconds_.Observe(std::chrono::duration<double>(Clock::Real().Now() - started).count());
  return Finish(context, status);
}

// In the order of cost: the bound, the deadline, readiness and visibility are looked at before the
// index is asked.
absl::Status KvIndexerService::Answer(grpc::CallbackServerContext* context,
                                      const v1::MatchExternalKvPrefixRequest& request,
                                      v1::MatchExternalKvPrefixResponse* response) {
  const InFlight now(&in_flight_);
  if (now.before() >= in_flight_max_)
    return absl::ResourceExhaustedError("more than " + std::to_string(in_flight_max_) +
                                        " prefix queries at once");
  if (HasPassed(context->raw_deadline()))
    return absl::DeadlineExceededError("no time was left on arrival");
  if (absl::Status status = Serving(); !status.ok()) return status;
  if (Hidden(*context)) return absl::OkStatus();
  std::string trust;
  const absl::Status status = indexer_.MatchPrefix(request, response, &trust);
  if (!trust.empty()) context->AddTrailingMetadata(kKvIndexerTrustMetadata, trust);
  return status;
}

grpc::ServerUnaryReactor* KvIndexerService::MatchExternalKv(
    grpc::CallbackServerContext* context, const v1::MatchExternalKvRequest* request,
    v1::MatchExternalKvResponse* response) {
  absl::Status status = Serving();
  if (status.ok() && !Hidden(*context)) status = indexer_.Match(*request, response);
  return Finish(context, status);
}

grpc::ServerUnaryReactor* KvIndexerService::GetExternalKvHitCounts(
    grpc::CallbackServerContext* context, const v1::GetExternalKvHitCountsRequest* request,
    v1::GetExternalKvHitCountsResponse* response) {
  absl::Status status = Serving();
  if (status.ok() && !Hidden(*context)) status = indexer_.HitCounts(*request, response);
  return Finish(context, status);
}

// Refused: a batch has hashes without tokens, parents and positions, so nothing but this interface
// could use it, and it would be lost with every restart. Logged at batches 1, 2, 4, 8 and so on: a
// bridge sends for ever.
grpc::ServerUnaryReactor* KvIndexerService::ApplyExternalKvBatch(
    grpc::CallbackServerContext* context, const v1::ApplyExternalKvBatchRequest* request,
    v1::ApplyExternalKvBatchResponse*) {
  const uint64_t before = applies_.fetch_add(1, std::memory_order_relaxed);
  if (std::bit_width(before) != std::bit_width(before + 1))
    Log(LogLevel::kWarning,
        "an event bridge reports to this leaf, which reads engines' events itself",
        {{"worker", request->worker_id()}, {"batches", before + 1}});
  return Finish(
      context, absl::UnimplementedError("this leaf reads engines' events itself: register the "
                                        "engine with --workers or /register, and stop the bridge"));
}

}  // namespace kvatlas
