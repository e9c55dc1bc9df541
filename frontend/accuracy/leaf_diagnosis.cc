// The leaf's statements about itself and the worker's events: another contract or block size, a
// stream that is silent, one of which nothing is held, or one that has stopped. These are facts
// that a process states, so few requests are enough.

#include <chrono>
#include <string>
#include <utility>

#include "frontend/accuracy/diagnosis.h"
#include "frontend/accuracy/diagnostician.h"
#include "frontend/accuracy/evidence_text.h"
#include "frontend/accuracy/patterns.h"

namespace kvatlas {
namespace {

// A worker's first events have come by then, however late they are.
constexpr Duration kEventsDue = std::chrono::seconds(20);
// So long after a request failed to reach it a worker is taken for gone, and so long after one was
// finished for alive.
constexpr Duration kUnreachableFor = std::chrono::seconds(30);
constexpr Duration kLivesFor = std::chrono::seconds(5);

}  // namespace

// Used here and by `Truth`, for engines that the process asks itself.
Finding FindingOf(const UnreachableWorker& engine, Time now, double confidence) {
  std::string text = "it has not answered for " + SecondsText(now - engine.since);
  if (!engine.why.empty()) text += ": " + engine.why;
  return {.cause = Cause::kEngineUnreachable,
          .confidence = confidence,
          .domain = engine.domain,
          .cell = engine.cell,
          .worker = engine.worker,
          .evidence = {std::move(text)},
          .decisions = {},
          .or_else = {},
          .workers = {}};
}

// Two statements that cannot both be right: the contract of leaf and frontend, or the block size of
// the leaf's index and that of the requests. A minority of other sizes is normal just after the
// size was learnt.
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

// True: the engine is not reached, and nothing else is looked for. One failed request is not
// enough, unless the leaf hides the worker too. Where the process asks engines itself, the finding
// has been made already.
bool Diagnostician::Unreachable() {
  if (!e_.unreachable.has_value()) return false;
  if (e_.asked_engine) return true;  // told of once, whatever requests were sent there
  const bool masked = leaf_.has_value() && leaf_->masked;
  const bool lately = e_.unreachable->last + kUnreachableFor > e_.now;
  if (!masked && (!lately || e_.unreachable->times < kConfirmedMin)) return false;
  findings_.push_back(FindingOf(*e_.unreachable, e_.now, masked ? 0.95 : 0.85));
  return true;
}

// Three kinds of silence of a worker that the leaf knows: it stopped (`Masked`), never spoke
// (`HeardNothing`), or speaks in vain (`HeardUseless`).
void Diagnostician::Silence() {
  if (!leaf_.has_value() || !leaf_->known) return;
  const bool heard = leaf_->batches > 0 || leaf_->blocks > 0;
  // An engine's own events that never came: it was started without them, or they are elsewhere.
  if (leaf_->masked && (heard || !leaf_->engine.has_value())) return Masked();
  if (HeardNothing()) return;
  HeardUseless();
}

// Its events came, and come no more: the leaf hides its blocks. Requests that finished since then
// show that the engine lives and only its publisher does not.
void Diagnostician::Masked() {
  Comparisons since;
  for (const Comparison& c : e_.comparisons)
    if (c.at >= leaf_->at - leaf_->age) since.push_back(&c);
  Evidence evidence = {"the leaf has not heard the worker for " + SecondsText(leaf_->age) +
                       " and shows none of its " + Number(leaf_->blocks) + " blocks"};
  if (leaf_->engine.has_value() && !leaf_->connected)
    evidence.push_back("its registered event endpoint does not answer");
  if (since.empty()) return Add(Cause::kPublisherDead, 0.85, std::move(evidence), {});
  // Requests that finished some time ago may be from before the engine ended: then it is not known
  // to live.
  const Duration ago = leaf_->at - since.back()->at;
  const bool lives = ago <= kLivesFor || e_.asked_engine;
  evidence.push_back("its engine finished " + Number(since.size()) + " requests since" +
                     (lives ? ": it lives"
                            : ", the last one " + SecondsText(ago) +
                                  " before: whether it still runs is not known"));
  Add(Cause::kPublisherDead, lives ? 0.97 : 0.7, std::move(evidence), DecisionsOf(since));
}

// A worker that the leaf knows and that never said anything. `waits_` until its first requests are
// `kEventsDue` old. Cached tokens in its reports prove that it caches and announces nothing;
// otherwise caching itself may be off. True: it is explained, or too early to say.
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
  if (leaf_->masked) {
    evidence.push_back("its engine finished " + Number(e_.comparisons.size()) +
                       " requests meanwhile");
    Add(Cause::kEventsOff, 0.8, std::move(evidence), sight_.Decisions());
    return true;
  }
  if (sight_.missed.size() < kConfirmedMin || silent < e_.comparisons.size()) return false;
  evidence.push_back(Number(sight_.missed.size()) +
                     " prompts that it finished are not in the index; it reports no cached_tokens");
  AddAlternatives({{Cause::kEventsOff, 0.6}, {Cause::kPrefixCachingOff, 0.4}}, evidence,
                  DecisionsOf(sight_.missed));
  return true;
}

// A worker whose batches come and of which nothing is held, by what the leaf counts: refusals for
// the block size, blocks that wait for parents, other refusals.
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

// The stream's count of batches has stood still while prompts were finished that should have been
// announced since. `check.at - check.after` is when a prompt was finished. Prompts that are at
// another worker count neither way.
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
