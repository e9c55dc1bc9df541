// The same steps as the leaf's service has, without messages: checks, the registry's query, the
// order of the answer, and conversion into the frontend's values.

#include "frontend/serve/lookup_clients/in_process_lookup_clients.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "frontend/router/frontend.h"
#include "indexer/base/durations.h"
#include "indexer/base/memory_budget.h"
#include "indexer/registry/tier_blocks.h"
#include "indexer/stream/validate.h"
#include "indexer/transport/holders_wire.h"

namespace kvatlas {
namespace {

// The result of `find`, unless the deadline has passed before or meanwhile.
template <typename Answer, typename Find>
absl::StatusOr<Answer> InTime(const Clock& clock, Duration deadline, const Find& find) {
  const auto late = [] { return absl::DeadlineExceededError("answered after the deadline"); };
  if (deadline <= Duration(0)) return late();
  const Time started = clock.Now();
  absl::StatusOr<Answer> answer = find();
  if (clock.Now() - started > deadline) return late();
  return answer;
}

// The error of a peer that cannot be reached.
absl::Status NoPeer(const std::string& address) {
  return absl::UnavailableError("'" + address + "' is not in this process");
}

// The checks of the leaf's service, so that the same code comes out: the domain's names, whether it
// is known, the blocks, memory.
absl::Status CheckQuestion(const OverlapQuestion& question, const HolderRegistry& registry) {
  if (absl::Status bad = ValidateDomain(*question.domain); !bad.ok()) return bad;
  if (absl::Status unknown = registry.BlockSizeOf(*question.domain).status(); !unknown.ok())
    return unknown;
  if (question.sequence.size() > kRouteBlocksMax) {
    return absl::ResourceExhaustedError(
        "the prompt has " + std::to_string(question.sequence.size()) + " blocks, at most " +
        std::to_string(kRouteBlocksMax) + " are answered");
  }
  return CheckMemoryForQuestion(registry.memory(), question.sequence.size());
}

// A load without workers counts as one worker's, as on the wire.
std::optional<Load> ToLoad(std::optional<Load> load) {
  if (load.has_value()) load->workers = std::max<uint32_t>(load->workers, 1);
  return load;
}

// As a message would say it, and the frontend read it.
WorkerFound ToWorker(const HolderOverlap& overlap) {
  WorkerFound found{.worker = overlap.holder->id,
                    .blocks = overlap.blocks,
                    .trust = overlap.trust,
                    .age_ms = Milliseconds(overlap.age),
                    .load = ToLoad(overlap.load),
                    .held = overlap.held,
                    .pending = overlap.pending};
  if (overlap.reach.has_value()) {
    const TierBlocks tiers = TierBlocksOf(*overlap.reach, overlap.blocks);
    found.fetched = {.host = tiers.host, .disk = tiers.disk, .remote = tiers.external};
  }
  found.AddLoadable(overlap.loadable, overlap.loadable_trust);
  return found;
}

// Deepest first, then by name. Sorted are pointers: an overlap is expensive to move.
std::vector<const HolderOverlap*> DeepestFirst(const OverlapAnswer& answer) {
  std::vector<const HolderOverlap*> order;
  order.reserve(answer.holders.size());
  for (const HolderOverlap& overlap : answer.holders) order.push_back(&overlap);
  std::sort(order.begin(), order.end(), [](const HolderOverlap* a, const HolderOverlap* b) {
    return a->loadable != b->loadable ? a->loadable > b->loadable : a->holder->id < b->holder->id;
  });
  return order;
}

}  // namespace

InProcessOverlapFinder::InProcessOverlapFinder(std::string own, HolderRegistry* registry,
                                               OverlapFinder* others, const Clock* clock,
                                               std::function<void()> asked)
    : own_(std::move(own)),
      registry_(registry),
      others_(others),
      clock_(clock),
      asked_(std::move(asked)) {}

// The own leaf is asked in the caller's thread; everything else goes to `others_`.
void InProcessOverlapFinder::FindOverlaps(const std::string& leaf_address,
                                          const OverlapQuestion& question, Duration deadline,
                                          Callback callback) {
  if (leaf_address == own_) {
    if (asked_ != nullptr) asked_();
    return callback(InTime<WorkersAnswer>(*clock_, deadline, [&] { return Find(question); }));
  }
  if (others_ == nullptr) return callback(NoPeer(leaf_address));
  others_->FindOverlaps(leaf_address, question, deadline, std::move(callback));
}

// A worker that is not known any more has nothing pending.
void InProcessOverlapFinder::Tell(const std::string& leaf_address, const Domain& domain,
                                  uint64_t frontend, const Routed& routed) {
  if (leaf_address == own_) {
    registry_->Tell(domain, frontend, routed).IgnoreError();
  } else if (others_ != nullptr) {
    others_->Tell(leaf_address, domain, frontend, routed);
  }
}

// An end of a choice that the registry has not heard of is ignored.
void InProcessOverlapFinder::End(const std::string& leaf_address, const Domain& domain,
                                 uint64_t frontend, const RouteOver& over) {
  if (leaf_address == own_) {
    registry_->End(domain, frontend, over);
  } else if (others_ != nullptr) {
    others_->End(leaf_address, domain, frontend, over);
  }
}

// All workers, with their tiers, as a frontend asks over gRPC. `AddPending` adds what frontends
// told of the workers; it needs to know which frontend asks, so that this one's requests do not
// count as load twice.
absl::StatusOr<WorkersAnswer> InProcessOverlapFinder::Find(const OverlapQuestion& question) {
  if (absl::Status bad = CheckQuestion(question, *registry_); !bad.ok()) return bad;
  absl::StatusOr<OverlapAnswer> found =
      registry_->FindOverlaps(*question.domain, {.blocks = question.sequence},
                              /*all_holders=*/true, /*by_tier=*/true);
  if (!found.ok()) return found.status();
  if (question.frontend != 0)
    registry_->AddPending(*question.domain, question.sequence, question.frontend, question.session,
                          &*found);
  WorkersAnswer answer{.workers = {}, .block_size = found->block_size};
  answer.workers.reserve(found->holders.size());
  for (const HolderOverlap* overlap : DeepestFirst(*found))
    answer.workers.push_back(ToWorker(*overlap));
  answer.labels = LabelsOf(*question.domain, *found);
  return answer;
}

// The sum of the holders' versions stands for the state of the labels, as on the wire; 0: no holder
// has any. Labels are copied only when it changes.
std::shared_ptr<const LabelsByWorker> InProcessOverlapFinder::LabelsOf(
    const Domain& domain, const OverlapAnswer& answer) {
  uint64_t version = 0;
  for (const HolderOverlap& overlap : answer.holders) version += overlap.holder->labels_version;
  if (version == 0) return nullptr;
  {
    MutexLock lock(&mutex_);
    const auto known = labels_.find(domain);
    if (known != labels_.end() && known->second.version == version) return known->second.labels;
  }
  auto labels = std::make_shared<LabelsByWorker>();
  for (const HolderOverlap& overlap : answer.holders) {
    if (overlap.holder->labels.empty()) continue;
    Labels& of = (*labels)[overlap.holder->id];
    for (const auto& [name, value] : overlap.holder->labels) of[name] = value;
  }
  MutexLock lock(&mutex_);
  if (labels_.size() >= kLabelDomainsMax && !labels_.contains(domain)) labels_.clear();
  // Two callers may make the same labels at once; the last one's are kept.
  labels_[domain] = {.version = version, .labels = labels};
  return labels;
}

}  // namespace kvatlas
