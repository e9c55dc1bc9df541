// The gRPC service of a leaf. A question goes through FindOverlaps or a stream (`OpenStream`), both
// into `Answer` (trace, metrics) and `Find` (the question itself); the other methods are thin.
// The helpers turn a request into sequence hashes and an answer of the registry into the response.
// All of it runs on gRPC's threads and allocates on the request's arena (`messages_`).

#include "indexer/leaf/leaf_service.h"

#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/durations.h"
#include "indexer/base/memory_budget.h"
#include "indexer/leaf/leaf_explain.h"
#include "indexer/net/grpc_guard.h"
#include "indexer/net/grpc_status.h"
#include "indexer/registry/tier_blocks.h"
#include "indexer/security/visible_domain.h"
#include "indexer/telemetry/tracing/tracer.h"
#include "indexer/transport/holder_metrics.h"
#include "indexer/transport/holders_wire.h"
#include "indexer/transport/wire.h"

namespace kvatlas {
namespace {

// A prompt without a full block has nothing to compare: INVALID_ARGUMENT, unless the asker wants
// all workers for their loads. RESOURCE_EXHAUSTED above `kQueryBlocksMax`.
absl::Status CheckLength(size_t blocks, uint32_t block_size, bool all_workers) {
  if (blocks == 0 && !all_workers) {
    return absl::InvalidArgumentError(
        "the prompt has no full block of " + std::to_string(block_size) +
        " tokens; give a longer one, or ask for all_workers (kvatlas query --all)");
  }
  if (blocks <= kQueryBlocksMax) return absl::OkStatus();
  return absl::ResourceExhaustedError("the prompt has " + std::to_string(blocks) +
                                      " blocks, at most " + std::to_string(kQueryBlocksMax) +
                                      " are answered");
}

// Hashes of the prompt's full blocks, each by its own tokens alone, seeded by adapter and salt:
// blocks of different namespaces never have the same hash.
std::vector<LocalHash> LocalsOf(const v1::Tokens& tokens, uint32_t block_size,
                                const HashContract& contract) {
  const std::vector<TokenId> ids(tokens.ids().begin(), tokens.ids().end());
  const CacheNamespace cache_namespace{.lora_name = tokens.lora_name(),
                                       .cache_salt = tokens.cache_salt()};
  return LocalHashes(ids, {.block_size = block_size, .eagle = tokens.eagle()},
                     BlockSeed(cache_namespace, contract));
}

// The prompt's sequence hashes, in whichever of the three forms it came; sequence hashes cost
// least, tokens most. All three empty means a prompt without a full block (`CheckLength`). More
// than one form: INVALID_ARGUMENT, as they could contradict each other.
absl::StatusOr<std::vector<SequenceHash>> SequenceOf(const v1::FindOverlapsRequest& request,
                                                     uint32_t block_size,
                                                     const HashContract& contract) {
  const int forms = (request.sequence_hashes_size() > 0) + (request.local_hashes_size() > 0) +
                    request.has_tokens();
  if (forms > 1) {
    return absl::InvalidArgumentError(
        "only one of sequence_hashes, local_hashes and tokens may be given");
  }
  if (request.has_tokens()) {
    // Before hashing, so that a huge prompt costs nothing.
    const size_t blocks =
        FullBlocks(static_cast<size_t>(request.tokens().ids_size()), {.block_size = block_size});
    if (absl::Status status = CheckLength(blocks, block_size, request.all_workers());
        !status.ok()) {
      return status;
    }
    return SequenceHashes(LocalsOf(request.tokens(), block_size, contract), contract);
  }
  const auto& raw =
      request.local_hashes_size() > 0 ? request.local_hashes() : request.sequence_hashes();
  const auto blocks = static_cast<size_t>(raw.size());
  if (absl::Status status = CheckLength(blocks, block_size, request.all_workers()); !status.ok())
    return status;
  if (request.local_hashes_size() > 0) {
    std::vector<LocalHash> locals;
    locals.reserve(static_cast<size_t>(raw.size()));
    for (uint64_t local : raw) locals.push_back(LocalHash{local});
    return SequenceHashes(locals, contract);
  }
  std::vector<SequenceHash> sequence;
  sequence.reserve(static_cast<size_t>(raw.size()));
  for (uint64_t hash : raw) sequence.push_back(SequenceHash{hash});
  return sequence;
}

// The `best` holders that can load most blocks, ties by name so that answers are stable; 0: all, in
// the same order. Pointers are sorted: an overlap is expensive to move. A selection of k out of n
// costs n log k.
std::vector<const HolderOverlap*> Best(std::span<const HolderOverlap> overlaps, size_t best) {
  std::vector<const HolderOverlap*> order;
  order.reserve(overlaps.size());
  for (const HolderOverlap& overlap : overlaps) order.push_back(&overlap);
  const auto better = [](const HolderOverlap* a, const HolderOverlap* b) {
    if (a->loadable != b->loadable) return a->loadable > b->loadable;
    return a->holder->id < b->holder->id;
  };
  if (best == 0 || best >= order.size()) {
    std::sort(order.begin(), order.end(), better);
    return order;
  }
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(best), order.end(),
                    better);
  order.resize(best);
  return order;
}

// Loadable blocks are only said where they are more than the worker's own, and tiers only where the
// registry found some of `blocks` below the device: most answers stay short.
void FillWorker(const HolderOverlap& overlap, v1::WorkerOverlap* worker) {
  ToProto(overlap.holder->id, worker->mutable_worker());
  worker->set_blocks(overlap.blocks);
  worker->set_held_blocks(overlap.held);
  worker->set_trust(ToProto(overlap.trust));
  worker->set_age_ms(Milliseconds(overlap.age));
  if (overlap.load.has_value()) ToProto(*overlap.load, worker->mutable_load());
  if (overlap.loadable > overlap.blocks) {
    worker->set_loadable_blocks(overlap.loadable);
    worker->set_loadable_trust(ToProto(overlap.loadable_trust));
  }
  worker->set_pending_blocks(overlap.pending.depth);
  worker->set_pending_prefill_blocks(overlap.pending.blocks);
  worker->set_pending_requests(overlap.pending.requests);
  worker->set_session(overlap.pending.session);
  if (!overlap.reach.has_value()) return;
  const TierBlocks tiers = TierBlocksOf(*overlap.reach, overlap.blocks);
  worker->set_host_blocks(tiers.host);
  worker->set_disk_blocks(tiers.disk);
  worker->set_external_blocks(tiers.external);
}

// Labels change with hellos only, so a client that names the version it has (`known`) gets none
// again. The version of an answer is the sum of its workers' versions: any order of the workers
// gives the same, and another set almost surely another one.
void FillLabels(std::span<const HolderOverlap* const> workers, uint64_t known,
                v1::FindOverlapsResponse* response) {
  uint64_t version = 0;
  for (const HolderOverlap* overlap : workers) version += overlap->holder->labels_version;
  response->set_labels_version(version);
  if (version == known) return;
  for (size_t i = 0; i < workers.size(); ++i) {
    auto* labels = response->mutable_workers(static_cast<int>(i))->mutable_labels();
    for (const auto& [name, value] : workers[i]->holder->labels) (*labels)[name] = value;
  }
}

}  // namespace

LeafService::LeafService(LeafIdentity identity, HolderRegistry* registry,
                         std::function<void(v1::StatsResponse*)> fill_rest, Metrics* metrics)
    : identity_(std::move(identity)),
      registry_(registry),
      security_(Security::OfProcess()),
      fill_rest_(std::move(fill_rest)),
      refused_(metrics->AddCounter("kvatlas_leaf_find_overlaps_refused_total",
                                   "Questions that were refused.")),
      told_unknown_(metrics->AddCounter(
          "kvatlas_leaf_told_unknown_total",
          "Routed prompts that frontends told of, of workers or domains that are not known here.")),
      told_(security_.get(), registry),
      seconds_(metrics->AddHistogram("kvatlas_leaf_find_overlaps_seconds",
                                     "Time to answer which workers hold how much.")),
      streams_([this](const v1::FindOverlapsRequest& request, v1::FindOverlapsResponse* response) {
        return Answer({}, request, response);
      }) {
  SetMessageAllocatorFor_FindOverlaps(&messages_);
  // The generated base class covers the unary method only: a bidirectional method with a bounded
  // request type is marked by its index in the proto file.
  constexpr int kFindOverlapsStream = 1;  // of the service's methods
  MarkMethodCallback(kFindOverlapsStream,
                     Streams::MethodHandler([this](grpc::CallbackServerContext* context) {
                       return OpenStream(context);
                     }));
  AddHolderMetrics(registry, "kvatlas_leaf", metrics);
}

// Answered at once on the calling thread: `Finish` is called before this returns.
grpc::ServerUnaryReactor* LeafService::FindOverlaps(grpc::CallbackServerContext* context,
                                                    const v1::FindOverlapsRequest* request,
                                                    v1::FindOverlapsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const std::shared_ptr<const Identity> asker = IdentityOf(security_.get(), *context);
  reactor->Finish(ToGrpcStatus(Answer(*asker, *request, response)));
  return reactor;
}

// Frontends ask on such a stream, and tell on it which prompts they have sent where
// (`told_wire.h`). Prompts that were told of for an unknown worker or domain are counted only.
LeafService::Streams::Reactor* LeafService::OpenStream(grpc::CallbackServerContext* context) {
  return told_.Open(
      &streams_, context,
      [this](const Identity& asker, const v1::FindOverlapsRequest& request,
             v1::FindOverlapsResponse* response) { return Answer(asker, request, response); },
      [this](int unknown) { told_unknown_.Increment(unknown); });
}

// One question, traced and counted whether or not it was answered. `queries_` counts refused
// questions too.
absl::Status LeafService::Answer(const Identity& asker, const v1::FindOverlapsRequest& request,
                                 v1::FindOverlapsResponse* response) {
  const Time started = Clock::Real().Now();
  Span span = Tracer::OfProcess()->BeginChild("FindOverlaps", SpanKind::kServer,
                                              Tracer::ParentOf(request.traceparent()));
  absl::Status status = Find(asker, request, response);
  span.Set("cell", identity_.cell);
  span.Set("blocks", int64_t{response->blocks()});
  span.Set("workers", int64_t{response->workers_size()});
  span.End(status);
  queries_.fetch_add(1, std::memory_order_relaxed);
  if (!status.ok()) refused_.Increment();
  seconds_.Observe(std::chrono::duration<double>(Clock::Real().Now() - started).count());
  return status;
}

// 1. `DomainVisibleTo`: which domain this asker may see under that name; a hidden one is answered
//    exactly as one that does not exist (`NoSuchDomain`).
// 2. The domain's block size, which tokens and lengths need.
// 3. `SequenceOf`; then the memory level: under pressure long questions are refused, short ones
//    never.
// 4. `FindOverlaps`, then `AddPending`: prompts that frontends said they have sent and that no
//    event confirms yet.
// 5. `Best`, then the response. Holders in `answer` are valid as long as `answer` is.
absl::Status LeafService::Find(const Identity& asker, const v1::FindOverlapsRequest& request,
                               v1::FindOverlapsResponse* response) const {
  Domain asked;
  if (absl::Status bad = FromProto(request.domain(), &asked); !bad.ok()) return bad;
  TierMask tiers;
  if (absl::Status bad = TiersFromProto(request.tiers(), &tiers); !bad.ok()) return bad;
  const VisibleDomain visible = DomainVisibleTo(*security_, asker, asked);
  const Domain& domain = visible.domain;
  const absl::StatusOr<uint32_t> block_size = registry_->BlockSizeOf(domain);
  if (!block_size.ok()) return visible.hidden ? NoSuchDomain(asked) : block_size.status();
  const absl::StatusOr<std::vector<SequenceHash>> sequence =
      SequenceOf(request, *block_size, identity_.contract);
  if (!sequence.ok()) return sequence.status();
  if (absl::Status full = CheckMemoryForQuestion(registry_->memory(), sequence->size()); !full.ok())
    return full;
  absl::StatusOr<OverlapAnswer> answer =
      registry_->FindOverlaps(domain, {.blocks = *sequence, .tiers = tiers}, request.all_workers(),
                              request.by_tier(), request.held());
  if (!answer.ok()) return answer.status();
  if (request.pending())
    registry_->AddPending(domain, *sequence, request.frontend(), request.session(), &*answer);
  const std::vector<const HolderOverlap*> workers = Best(answer->holders, request.best());
  response->set_blocks(static_cast<uint32_t>(sequence->size()));
  response->set_block_size(answer->block_size);
  response->mutable_workers()->Reserve(static_cast<int>(workers.size()));
  for (const HolderOverlap* overlap : workers) FillWorker(*overlap, response->add_workers());
  if (request.labels()) FillLabels(workers, request.labels_version(), response);
  return absl::OkStatus();
}

grpc::Status LeafService::Dump(grpc::ServerContext* context, const v1::DumpRequest* request,
                               grpc::ServerWriter<v1::DumpResponse>* writer) {
  return ToGrpcStatus(ServeDump(*registry_, context, *request, writer));
}

grpc::Status LeafService::Explain(grpc::ServerContext* context, const v1::ExplainRequest* request,
                                  v1::ExplainResponse* response) {
  return ToGrpcStatus(ExplainTo(*IdentityOf(security_.get(), *context), *request, response));
}

absl::Status LeafService::ExplainTo(const Identity& asker, const v1::ExplainRequest& request,
                                    v1::ExplainResponse* response) const {
  return ExplainPrompt(*registry_, identity_.contract, *security_, asker, request, response);
}

// For one domain the numbers of the process are left out. An unknown domain is no error: it is left
// out.
grpc::Status LeafService::Stats(grpc::ServerContext*, const v1::StatsRequest* request,
                                v1::StatsResponse* response) {
  if (!request->has_domain()) {
    FillAll(response);
    return grpc::Status::OK;
  }
  Domain domain;
  if (absl::Status bad = FromProto(request->domain(), &domain); !bad.ok()) return ToGrpcStatus(bad);
  FillIdentity(response);
  FillStats(*registry_, domain, response);
  if (fill_rest_) fill_rest_(response);
  return grpc::Status::OK;
}

void LeafService::FillIdentity(v1::StatsResponse* response) const {
  response->set_cell(identity_.cell);
  response->set_replica(identity_.replica);
  response->set_queries(queries_.load(std::memory_order_relaxed));
  response->set_contract(identity_.contract.Id());
}

// Over gRPC, /status and the page: identity, process, every domain, then what the leaf knows of its
// streams upward, engines, checkpoints and Redis (`fill_rest_`).
void LeafService::FillAll(v1::StatsResponse* response) const {
  FillIdentity(response);
  FillProcess(response);
  FillStats(*registry_, response);
  if (fill_rest_) fill_rest_(response);
}

v1::StatsResponse LeafService::AllStats() const {
  v1::StatsResponse stats;
  FillAll(&stats);
  return stats;
}

void LeafService::AddHttp(AdminHttp* http) {
  http->Handle("GET", "/status", [this](const HttpRequest&) { return StatusPage(AllStats()); });
}

}  // namespace kvatlas
