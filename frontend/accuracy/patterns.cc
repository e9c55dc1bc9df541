// Counting, without any judgement of causes. Sections: promises, sight, lengths, granularity,
// break, suppositions.

#include "frontend/accuracy/patterns.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace kvatlas {
namespace {

constexpr size_t kBlindMin = 4;  // requests; fewer checks, since each asks about a whole prompt
constexpr size_t kMissedMin = 2;
constexpr size_t kOften = 4;  // times as many as the opposite

// The engine said how much was cached; "0" is said, absence is not.
bool Speaks(const Comparison& comparison) { return comparison.served.has_value(); }

// A promise worth looking at: two blocks, so that a block more or less at its end does not matter.
bool IsPromise(const Comparison& c) { return Speaks(c) && Promised(c) >= 2 * c.block_size; }

// At least half of what was asked about: the first block alone may be another prompt's.
bool IsHit(const Supposed& supposed) {
  return supposed.held > 0 && supposed.held * 2 >= supposed.asked;
}

// Promises around a supposed moment: before it, after it about what was sent before it (`old`), and
// after it about what was sent since (`again`).
struct Counted {
  std::vector<Duration> kept_ages;  // of what was kept before
  size_t young_broken = 0;
  size_t kept_before = 0, before = 0;
  size_t broken_old = 0, old = 0;
  size_t kept_new = 0, again = 0;
};

// How long ago what was promised had been sent there.
Duration AgeOf(const Comparison& c) { return c.chosen - c.promised_sent_at; }

// O(promises). `young_broken`: broken promises about something no older than nine in ten of the
// kept ones were; a cache that only turns over breaks old promises first.
Counted CountAround(const Comparisons& promises, Time at) {
  Counted counted;
  for (const Comparison* c : promises) {
    if (c->chosen >= at) continue;
    ++counted.before;
    if (ServedLess(*c)) continue;
    ++counted.kept_before;
    counted.kept_ages.push_back(AgeOf(*c));
  }
  std::sort(counted.kept_ages.begin(), counted.kept_ages.end());
  for (const Comparison* c : promises) {
    const bool kept = !ServedLess(*c);
    if (c->chosen < at) continue;
    if (c->promised_sent_at >= at) {
      ++counted.again;
      counted.kept_new += kept;
    } else {
      ++counted.old;
      counted.broken_old += !kept;
      counted.young_broken += !kept && !counted.kept_ages.empty() &&
                              AgeOf(*c) <= counted.kept_ages[counted.kept_ages.size() * 9 / 10];
    }
  }
  return counted;
}

// Kept before, broken since, kept again where it was sent anew. All three are needed: broken alone
// is a cache too small.
bool IsBreak(const Counted& counted) {
  return counted.before >= 3 && counted.kept_before * 10 >= counted.before * 8 &&
         counted.broken_old >= 4 && counted.broken_old * 10 >= counted.old * 9 &&
         counted.kept_new * 10 >= counted.again * 8;
}

}  // namespace

// With hashes alone the prompt is taken to have a token behind its last block. Rounded down to
// whole blocks.
uint32_t Promised(const Comparison& c) {
  const uint32_t tokens = c.prompt_tokens > 0 ? c.prompt_tokens : c.blocks * c.block_size + 1;
  const uint32_t most = c.block_size == 0 ? 0 : (tokens - 1) / c.block_size * c.block_size;
  return std::min(c.predicted, most);
}

// A difference of less than a block is none: engines count the blocks they were just filling
// differently.
bool ServedLess(const Comparison& c) {
  return Speaks(c) && *c.served + c.block_size <= Promised(c);
}

bool ServedMore(const Comparison& c) {
  return Speaks(c) && *c.served >= c.predicted + c.block_size;
}

Among OfForm(PromptForm form) {
  const auto is = [form](const auto& one) { return one.form == form; };
  return {.comparison = is, .check = is};
}

// ---- Sight ----

// By checks: most finished prompts stay missing, whatever was predicted. Or by requests alone, if
// no check found anything.
bool Sight::IsBlind() const {
  if (missed.size() >= kMissedMin && missed.size() >= kOften * found.size() &&
      missed.size() + blind.size() >= kOften * seen.size()) {
    return true;
  }
  return blind.size() >= kBlindMin && found.empty() && blind.size() >= kOften * seen.size();
}

std::vector<uint64_t> Sight::Decisions() const {
  std::vector<uint64_t> decisions;
  for (const Check* check : missed) decisions.push_back(check->decision);
  for (const Comparison* comparison : blind) decisions.push_back(comparison->decision);
  return decisions;
}

// Requests that were served less than a block say nothing of the index. A check counts as missed
// only once it is settled.
Sight SightOf(const WorkerEvidence& evidence, const Among& among) {
  Sight sight;
  for (const Comparison& c : evidence.comparisons) {
    if (!Speaks(c) || !among.comparison(c) || *c.served < c.block_size) continue;
    if (c.predicted > 0) {
      sight.seen.push_back(&c);
    } else {
      sight.blind.push_back(&c);
    }
  }
  for (const Check& check : evidence.checks) {
    if (!among.check(check) || check.asked == 0) continue;
    if (check.held == 0) {
      if (check.settled) sight.missed.push_back(&check);
      continue;
    }
    sight.found.push_back(&check);
    if (!check.whole()) sight.partly.push_back(&check);
  }
  return sight;
}

// ---- Lengths ----

// A line through the origin leaves clearly less variation than the mean does.
bool Lengths::proportional() const {
  return differ() && most - least > 1 && varies_by_length < varies * 0.7;
}

// Two models of the difference: a constant (the mean) and a share of our length (least squares
// through the origin).
Lengths LengthsOf(const WorkerEvidence& evidence, const Among& among) {
  Lengths lengths;
  std::vector<std::pair<double, double>> points;  // our length, difference
  for (const Comparison& c : evidence.comparisons) {
    if (!among.comparison(c) || !c.engine_tokens.has_value() || c.prompt_tokens == 0) continue;
    const int64_t difference =
        static_cast<int64_t>(*c.engine_tokens) - static_cast<int64_t>(c.prompt_tokens);
    if (lengths.compared++ == 0) lengths.least = lengths.most = difference;
    lengths.least = std::min(lengths.least, difference);
    lengths.most = std::max(lengths.most, difference);
    points.emplace_back(c.prompt_tokens, static_cast<double>(difference));
    if (difference == 0) continue;
    ++lengths.differing;
    lengths.decisions.push_back(c.decision);
  }
  if (points.empty()) return lengths;
  double sum = 0, squares = 0, products = 0;
  for (const auto& [length, difference] : points) {
    sum += difference;
    squares += length * length;
    products += length * difference;
  }
  const auto n = static_cast<double>(points.size());
  lengths.mean = sum / n;
  lengths.per_token = squares > 0 ? products / squares : 0;
  double around_mean = 0, around_line = 0;
  for (const auto& [length, difference] : points) {
    around_mean += (difference - lengths.mean) * (difference - lengths.mean);
    const double left = difference - lengths.per_token * length;
    around_line += left * left;
  }
  lengths.varies = std::sqrt(around_mean / n);
  lengths.varies_by_length = std::sqrt(around_line / n);
  return lengths;
}

// ---- Granularity ----

// Engines report whole blocks, so the common divisor of many values is a multiple of the block
// size.
Granularity GranularityOf(const WorkerEvidence& evidence) {
  Granularity granularity;
  std::set<uint32_t> values;
  for (const Comparison& c : evidence.comparisons) {
    if (!Speaks(c) || *c.served == 0) continue;
    granularity.divisor = std::gcd(granularity.divisor, *c.served);
    values.insert(*c.served);
  }
  granularity.values = values.size();
  return granularity;
}

// ---- Break ----

// Tries every broken promise as the first after the moment, and keeps the one that explains most.
// O(promises²), with at most `comparisons_max` of them.
Break BreakOf(const WorkerEvidence& evidence) {
  Comparisons promises;
  for (const Comparison& c : evidence.comparisons)
    if (IsPromise(c)) promises.push_back(&c);
  Break best;
  for (const Comparison* first : promises) {
    if (!ServedLess(*first)) continue;
    const Counted counted = CountAround(promises, first->chosen);
    if (!IsBreak(counted) || counted.broken_old <= best.broken_after) continue;
    best = {.found = true,
            .at = first->chosen,
            .kept_before = counted.kept_before,
            .promises_before = counted.before,
            .broken_after = counted.broken_old,
            .kept_again = counted.kept_new,
            .sharp = counted.young_broken >= 2 && counted.young_broken * 5 >= counted.broken_old,
            .decisions = {}};
  }
  for (const Comparison* c : promises)
    if (best.found && c->chosen >= best.at && ServedLess(*c)) best.decisions.push_back(c->decision);
  return best;
}

// ---- Suppositions ----

// Only prompts of which nothing is known count: a prompt that is there in part needs no other name.
std::vector<Hit> HitsOf(const WorkerEvidence& evidence, const Among& among) {
  std::vector<Hit> hits;
  for (const Check& check : evidence.checks) {
    if (!among.check(check) || check.asked == 0 || check.held > 0) continue;
    for (const Supposed& supposed : check.supposed) {
      auto hit = std::find_if(hits.begin(), hits.end(),
                              [&](const Hit& h) { return h.what == supposed.what; });
      if (hit == hits.end()) {
        hits.push_back({.what = supposed.what, .decisions = {}});
        hit = hits.end() - 1;
      }
      ++hit->asked;
      if (!IsHit(supposed)) continue;
      ++hit->hits;
      hit->blocks += supposed.held;
      hit->decisions.push_back(check.decision);
    }
  }
  std::erase_if(
      hits, [&](const Hit& hit) { return hit.hits < kMissedMin || hit.hits * 10 < hit.asked * 6; });
  std::stable_sort(hits.begin(), hits.end(),
                   [](const Hit& a, const Hit& b) { return a.hits > b.hits; });
  return hits;
}

}  // namespace kvatlas
