// The index knows what the engine does not serve: never anything, until a restart, too little now
// and then, or for no reason that is known. The last steps of a diagnosis.

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "frontend/accuracy/diagnosis.h"
#include "frontend/accuracy/diagnostician.h"
#include "frontend/accuracy/evidence_text.h"
#include "frontend/accuracy/patterns.h"

namespace kvatlas {
namespace {

// A prompt that is asked about at all has been asked about for the first time by then
// (`TruthOptions::check_after`).
constexpr Duration kAskedBy = std::chrono::seconds(5);

}  // namespace

// Since the last request that was served anything, all that should have been served was not.
// "Should" is known by the index, or, where the leaf holds nothing, by what this frontend itself
// had sent there. The one points to a cache that is off or a figure that is not reported; the other
// to a cache that is off, as nothing is announced either.
void Diagnostician::NothingServed() {
  const bool holds_nothing = leaf_.has_value() && leaf_->known && leaf_->blocks == 0;
  Comparisons expected;
  size_t promised = 0, sent = 0;
  Time last_served{0};
  for (const Comparison& c : e_.comparisons)
    if (c.served.value_or(0) > 0) last_served = c.chosen;
  for (const Comparison& c : e_.comparisons) {
    if (!c.served.has_value() || c.chosen <= last_served) continue;
    const bool was_sent = c.sent_before >= 2 * c.block_size &&
                          (last_served == Time(0) || c.sent_before_at > last_served);
    const bool was_promised = Promised(c) >= 2 * c.block_size;
    if (!was_promised && !(was_sent && holds_nothing)) continue;
    expected.push_back(&c);
    promised += was_promised;
    sent += was_sent;
  }
  if (expected.size() < kShownMin + 1 || (sent < kConfirmedMin && expected.size() < 3 * kShownMin))
    return;
  Evidence evidence = {
      "the last " + Number(expected.size()) +
      " requests that should have found something in the cache were served 0 cached tokens"};
  evidence.push_back(Number(sent) + " of them repeat what was sent there before");
  if (promised > 0) {
    evidence.push_back("the index promised something in " + Number(promised) + " of them");
    return AddAlternatives({{Cause::kPrefixCachingOff, 0.65}, {Cause::kUsageNotReported, 0.35}},
                           evidence, DecisionsOf(expected));
  }
  evidence.push_back("the leaf holds no block of the worker, so it announces none either");
  Add(Cause::kPrefixCachingOff, 0.9, std::move(evidence), DecisionsOf(expected));
}

// A sharp break, or a stream that began anew, names the restart. A break that only hits older
// blocks fits a cache that turned over just as well.
bool Diagnostician::Restarted() {
  const Break broke = BreakOf(e_);
  if (!broke.found) return false;
  Evidence evidence = {
      Share(broke.kept_before, broke.promises_before, "promises were kept until ") +
          SecondsText(e_.now - broke.at) + " ago",
      Number(broke.broken_after) +
          " about older prompts were broken since; of prompts sent again since, " +
          Number(broke.kept_again) + " were kept"};
  const bool anew =
      leaf_.has_value() && e_.leaf_before.has_value() && leaf_->epoch != e_.leaf_before->epoch;
  if (anew) evidence.push_back("the leaf saw the worker's stream begin anew");
  if (anew || broke.sharp) {
    Add(Cause::kEngineRestarted, anew ? 0.95 : 0.85, std::move(evidence), broke.decisions);
  } else {
    evidence.push_back("what was broken is older than what was kept, as when a cache turns over");
    AddAlternatives({{Cause::kEngineRestarted, 0.5}, {Cause::kStaleIndex, 0.5}}, evidence,
                    broke.decisions);
  }
  return true;
}

// Whether the prompt is in the index now. An engine announces anew, under our names, what it lost
// and computed anew; where that is missing, the names differ and the index is not to blame.
bool Diagnostician::IsThereAgain(const Comparison& comparison) const {
  for (const Check& check : e_.checks)
    if (check.decision == comparison.decision) return check.whole();
  return e_.now - comparison.at > kAskedBy;  // it will not be asked about
}

// A stale index shows in two ways, either of which is enough: promises broken now and then although
// the prompt is there again, and prompts that come into the index late. Both only where the index
// works on the whole (`whole`).
void Diagnostician::TooLittleServed() {
  if (BrokenByTrait() || Restarted()) return;
  Comparisons promises, broken;
  for (const Comparison& c : e_.comparisons) {
    if (!c.served.has_value() || Promised(c) < 2 * c.block_size) continue;
    promises.push_back(&c);
    if (ServedLess(c) && IsThereAgain(c)) broken.push_back(&c);
  }
  Checks late, perhaps;
  size_t settled = 0, prompt = 0, elsewhere = 0;
  for (const Check& check : e_.checks) {
    elsewhere += check.turned_up.has_value();
    if (check.late()) (check.sent_again ? perhaps : late).push_back(&check);
    settled += check.settled;
    prompt += check.prompt();
  }
  const size_t whole = prompt + late.size() + perhaps.size();
  // `perhaps` were late or belong to a later prompt with the same beginning. In a late stream next
  // to nothing is there at once, so they count as late only if few prompts were in time.
  if (prompt * 2 <= perhaps.size()) late.insert(late.end(), perhaps.begin(), perhaps.end());
  // The index hears of this worker, under the names that are asked for.
  if (whole < kShownMin || whole * 2 < settled || elsewhere * 4 >= whole) return;
  Evidence evidence;
  Decisions decisions;
  if (broken.size() >= kShownMin && broken.size() * 4 >= promises.size()) {
    evidence.push_back("the engine served less than predicted in " +
                       Share(broken.size(), promises.size(), "requests"));
    decisions = DecisionsOf(broken);
  }
  if (late.size() >= kConfirmedMin && late.size() * 3 >= e_.checks.size()) {
    evidence.push_back(
        Share(late.size(), e_.checks.size(), "prompts came into the index late, up to ") +
        SecondsText(
            (*std::max_element(late.begin(), late.end(),
                               [](const Check* a, const Check* b) { return a->after < b->after; }))
                ->after) +
        " after they were finished");
    for (const Check* check : late) decisions.push_back(check->decision);
  }
  // Nothing served at all, ever, is no matter of time.
  const bool any = std::any_of(e_.comparisons.begin(), e_.comparisons.end(),
                               [](const Comparison& c) { return c.served.value_or(0) > 0; });
  if (evidence.empty() || !any) return;
  double confidence = 0.7;
  if (leaf_.has_value() && leaf_->engine.has_value() && leaf_->engine->lag_ms >= 1000) {
    evidence.push_back("the leaf applies its events " + Number(leaf_->engine->lag_ms / 1000) +
                       " s after the engine wrote them");
    confidence = 0.9;
  }
  if (leaf_.has_value() && leaf_->trust != Trust::kExact) {
    evidence.push_back("the leaf itself doubts what it holds of the worker");
    confidence = 0.85;
  }
  Add(Cause::kStaleIndex, confidence, std::move(evidence), std::move(decisions));
}

// Half of the requests part from their predictions, and enough prompts were asked about to exclude
// the causes above. Low confidence: it says only where to look.
void Diagnostician::Unexplained() {
  Comparisons looked_at, parted;
  size_t whole = 0, settled = 0, elsewhere = 0;
  for (const Check& check : e_.checks) {
    whole += check.whole();
    settled += check.settled;
    elsewhere += check.turned_up.has_value();
  }
  if (settled < kConfirmedMin || elsewhere * 4 >= settled) return;
  // Siblings that come before the first one's events are served more than was predicted; the index
  // is right then.
  const bool index_is_right = whole >= kConfirmedMin && whole * 10 >= settled * 8;
  for (const Comparison& c : e_.comparisons) {
    if (!c.served.has_value() || (*c.served < c.block_size && c.predicted == 0)) continue;
    looked_at.push_back(&c);
    if (ServedLess(c) || (ServedMore(c) && !index_is_right)) parted.push_back(&c);
  }
  if (parted.size() < 3 * kShownMin || parted.size() * 2 < looked_at.size()) return;
  Add(Cause::kUnexplained, 0.3,
      {Share(parted.size(), looked_at.size(),
             "requests were served something else than predicted")},
      DecisionsOf(parted));
}

}  // namespace kvatlas
