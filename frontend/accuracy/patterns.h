// Patterns in a worker's evidence, by which causes are recognized: what many requests have in
// common.
//
// *Threads*: pure; nothing outlives the evidence it points into.

#ifndef KVATLAS_FRONTEND_ACCURACY_PATTERNS_H_
#define KVATLAS_FRONTEND_ACCURACY_PATTERNS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "frontend/accuracy/evidence.h"

namespace kvatlas {

using Comparisons = std::vector<const Comparison*>;
using Checks = std::vector<const Check*>;

template <typename Values>  // Comparisons or Checks
std::vector<uint64_t> DecisionsOf(const Values& values) {
  std::vector<uint64_t> decisions;
  for (const auto* value : values) decisions.push_back(value->decision);
  return decisions;
}

// The part of a prediction that an engine can serve: it always computes a prompt's last token anew.
uint32_t Promised(const Comparison& comparison);
// A block or more below, or above, what was predicted.
bool ServedLess(const Comparison& comparison);
bool ServedMore(const Comparison& comparison);

// The prompts among which a pattern is looked for: all, or those with a salt, say.
struct Among {
  std::function<bool(const Comparison&)> comparison = [](const Comparison&) { return true; };
  std::function<bool(const Check&)> check = [](const Check&) { return true; };
};

Among OfForm(PromptForm form);

// Does the index see this worker's holdings under our names at all?
struct Sight {
  Comparisons blind;  // at least a block was served, nothing predicted
  Comparisons seen;   // something was predicted, and served
  Checks missed;      // at last the index still knew nothing of the prompt there
  Checks found;       // it did, of a part at least
  Checks partly;      // of these, not of all

  bool IsBlind() const;
  bool SeesSomething() const { return !seen.empty() || !found.empty(); }
  std::vector<uint64_t> Decisions() const;  // that show blindness
};
Sight SightOf(const WorkerEvidence& evidence, const Among& among = {});

// How the engine's count of a prompt differs from ours.
struct Lengths {
  size_t compared = 0;
  size_t differing = 0;
  int64_t least = 0;  // difference, engine's minus ours
  int64_t most = 0;
  double mean = 0;
  double per_token = 0;  // of the prompt's length, explains how much of the difference
  double varies = 0;     // standard deviation of the difference
  double varies_by_length =
      0;  // what is left of it when it is taken to be in proportion to the length
  std::vector<uint64_t> decisions;  // that differ

  bool differ() const { return compared >= 3 && differing * 10 >= compared * 8; }
  bool agree() const { return compared >= 3 && differing * 10 <= compared; }
  bool constant() const { return differ() && most - least <= 1; }
  // Longer prompts differ by more, in proportion.
  bool proportional() const;
};
Lengths LengthsOf(const WorkerEvidence& evidence, const Among& among = {});

// Common divisor of the cached tokens that the engine reported; 0: it reported none.
struct Granularity {
  uint32_t divisor = 0;
  size_t values = 0;  // different ones
};
Granularity GranularityOf(const WorkerEvidence& evidence);

// The moment since which promises made before it are not kept.
struct Break {
  bool found = false;
  Time at{0};
  size_t kept_before = 0, promises_before = 0;
  size_t broken_after = 0;  // of promises about what was sent before that moment
  size_t kept_again = 0;    // of what was sent again since
  // Among the broken are some no older than what was kept before: the cache did not just turn over.
  bool sharp = false;
  std::vector<uint64_t> decisions;
};
Break BreakOf(const WorkerEvidence& evidence);

// Suppositions under which the index has prompts that it does not know as they are.
struct Hit {
  Supposition what;
  size_t hits = 0;
  size_t asked = 0;  // prompts
  uint32_t blocks = 0;
  std::vector<uint64_t> decisions;
};
// The most hits first; only what hits often enough to be no accident.
std::vector<Hit> HitsOf(const WorkerEvidence& evidence, const Among& among = {});

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_PATTERNS_H_
