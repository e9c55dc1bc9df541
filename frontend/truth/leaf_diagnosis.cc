// What the leaf says of itself and of the worker's events: another contract or block size, a stream that is silent, or one of which
// nothing is held.

#include <chrono>
#include <string>
#include <utility>

#include "frontend/truth/diagnosis.h"
#include "frontend/truth/diagnostician.h"
#include "frontend/truth/evidence_text.h"
#include "frontend/truth/patterns.h"

namespace kvatlas {
namespace {

// By then a worker's first events have come, however late they are.
constexpr Duration kEventsDue = std::chrono::seconds(20);

}  // namespace

void Diagnostician::SelfContradictions() {
  if (!leaf_.has_value() || e_.comparisons.empty()) return;
  if (!leaf_->contract.empty() && !e_.own_contract.empty() && leaf_->contract != e_.own_contract) {
    return Add(Cause::kHashContract, 0.98,
               {"the leaf hashes by " + leaf_->contract + ", this frontend by " + e_.own_contract},
               sight_.Decisions());
  }
  Comparisons other;
  for (const Comparison& c : e_.comparisons)
    if (leaf_->block_size != 0 && c.block_size != leaf_->block_size) other.push_back(&c);
  if (other.size() < kShownMin || other.size() * 2 < e_.comparisons.size()) return;
  Add(Cause::kWrongBlockSize, 0.9,
      {"the leaf's index has blocks of " + Number(leaf_->block_size) + " tokens, " +
       Share(other.size(), e_.comparisons.size(), "requests were hashed with blocks of ") +
       Number(other.back()->block_size)},
      DecisionsOf(other));
}

void Diagnostician::Silence() {
  if (!leaf_.has_value()) return;
  if (leaf_->known && leaf_->masked) {
    size_t since = 0;
    Decisions decisions;
    for (const Comparison& c : e_.comparisons) {
      if (c.at < leaf_->at - leaf_->age) continue;
      ++since;
      decisions.push_back(c.decision);
    }
    Evidence evidence = {"the leaf has not heard the worker for " + SecondsText(leaf_->age) +
                         " and shows none of its " + Number(leaf_->blocks) + " blocks"};
    if (since > 0)
      evidence.push_back("its engine finished " + Number(since) + " requests since: it lives");
    return Add(Cause::kPublisherDead, since > 0 ? 0.97 : 0.85, std::move(evidence),
               std::move(decisions));
  }
  if (leaf_->known && HeardNothing()) return;
  if (leaf_->known) HeardUseless();
}

// A worker that the leaf knows and that never said anything.
bool Diagnostician::HeardNothing() {
  if (leaf_->blocks > 0 || leaf_->batches > 0 || !sight_.found.empty()) return false;
  Comparisons served;
  size_t silent = 0;
  for (const Comparison& c : e_.comparisons) {
    if (c.served.has_value() && *c.served >= c.block_size) served.push_back(&c);
    silent += !c.served.has_value();
  }
  Evidence evidence = {"the leaf knows the worker and has never heard a batch from it"};
  if (leaf_->engine.has_value())
    evidence.push_back(leaf_->connected ? "its event socket is connected"
                                        : "its registered event endpoint does not answer");
  // Events may come late, and one that announces nothing may just not have been asked twice.
  waits_ = e_.comparisons.empty() || e_.now - e_.comparisons.front().at < kEventsDue;
  if (waits_) return true;
  if (served.size() >= kConfirmedMin) {
    evidence.push_back("its engine served cached tokens in " +
                       Share(served.size(), e_.comparisons.size(), "requests"));
    Add(Cause::kEventsOff, 0.92, std::move(evidence), DecisionsOf(served));
    return true;
  }
  if (sight_.missed.size() < kConfirmedMin || silent < e_.comparisons.size()) return false;
  evidence.push_back(Number(sight_.missed.size()) +
                     " prompts that it finished are not in the index; it reports no cached_tokens");
  AddAlternatives({{Cause::kEventsOff, 0.6}, {Cause::kPrefixCachingOff, 0.4}}, evidence,
                  DecisionsOf(sight_.missed));
  return true;
}

// One that says much, of which nothing is held.
bool Diagnostician::HeardUseless() {
  if (!leaf_->engine.has_value() || leaf_->blocks > 0 || leaf_->batches == 0) return false;
  if (sight_.missed.size() < kConfirmedMin && sight_.blind.size() < kConfirmedMin) return false;
  const LeafEngineView& engine = *leaf_->engine;
  const std::string heard =
      "the leaf heard " + Number(leaf_->batches) + " batches from it and holds no block";
  const auto size = engine.refused.find("block_size");
  if (size != engine.refused.end()) {
    Add(Cause::kWrongBlockSize, 0.95,
        {heard, "it refused " + Number(size->second) + " events for their block size, not " +
                    Number(engine.block_size) +
                    (engine.last_refusal.empty() ? "" : ": " + engine.last_refusal)},
        sight_.Decisions());
    return true;
  }
  if (engine.parked > 0) {
    Add(Cause::kBlocksOrphaned, 0.85,
        {heard, Number(engine.parked) + " blocks wait there for parents that never came"},
        sight_.Decisions());
    return true;
  }
  uint64_t refused = 0;
  for (const auto& [reason, count] : engine.refused) refused += count;
  if (refused == 0) return false;
  Add(Cause::kEventsRefused, 0.85,
      {heard, "it refused " + Number(refused) + " events or blocks: " + engine.last_refusal},
      sight_.Decisions());
  return true;
}

// The stream stands, but nothing has come of it since requests finished that should have said something.
void Diagnostician::SilenceInStream() {
  if (!leaf_.has_value() || !leaf_->known || leaf_->batches == 0) return;
  if (!e_.no_batch_since.has_value()) return;
  Checks missed;
  size_t found = 0;
  for (const Check& check : e_.checks) {
    if (!check.settled || check.at - check.after < *e_.no_batch_since) continue;
    if (check.whole()) {
      ++found;
    } else if (check.other_worker_held + 1 < check.asked) {
      missed.push_back(&check);
    }
  }
  if (missed.size() < kConfirmedMin || found * 4 > missed.size()) return;
  Add(Cause::kPublisherDead, 0.8,
      {"the leaf's count of batches from it stands at " + Number(leaf_->batches) + " for " +
           SecondsText(e_.now - *e_.no_batch_since),
       Number(missed.size()) + " prompts that it finished since are not in the index"},
      DecisionsOf(missed));
}

}  // namespace kvatlas
