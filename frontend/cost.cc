#include "frontend/cost.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

struct Scored {
  RankedCandidate ranked;
  double key = 0;
  uint64_t draw = 0;
};

// The same for a worker and a prompt in every process that has the seed.
uint64_t DrawOf(const CostCandidate& candidate, uint64_t seed, uint64_t prompt_key) {
  const uint64_t cell = Xxh3(candidate.cell, seed ^ prompt_key);
  return Xxh3(candidate.worker.name, cell + candidate.worker.rank);
}

// Gumbel noise from 64 random bits: the cheapest after it is drawn is a softmax sample.
double GumbelOf(uint64_t draw) {
  const double uniform = (static_cast<double>(draw >> 11) + 0.5) * 0x1.0p-53;
  return -std::log(-std::log(uniform));
}

}  // namespace

Cost CostOf(const CostInput& input, const CostWeights& weights) {
  const uint32_t overlap = std::min(input.overlap_blocks, input.prompt_blocks);
  double waiting = static_cast<double>(input.in_flight_blocks);
  double requests = input.in_flight_requests;
  if (input.load.has_value()) {
    waiting += static_cast<double>(input.load->waiting_prefill_blocks);
    requests += static_cast<double>(input.load->running_requests) + input.load->waiting_requests;
  }
  return {.prefill = weights.prefill * (input.prompt_blocks - overlap),
          .queue = weights.queue * waiting,
          .decode = weights.decode * requests,
          .distance = weights.distance * input.distance};
}

uint64_t PromptKey(std::span<const SequenceHash> sequence) {
  return sequence.empty() ? 0 : Raw(sequence.back());
}

std::vector<RankedCandidate> RankCandidates(std::span<const CostCandidate> candidates,
                                            const CostWeights& weights, uint64_t prompt_key,
                                            size_t best) {
  std::vector<Scored> scored;
  scored.reserve(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    Scored s{.ranked = {.candidate = i, .cost = CostOf(candidates[i].input, weights)}};
    s.draw = DrawOf(candidates[i], weights.seed, prompt_key);
    s.key = s.ranked.cost.total();
    if (weights.temperature > 0) s.key -= weights.temperature * GumbelOf(s.draw);
    scored.push_back(s);
  }
  const auto before = [&](const Scored& a, const Scored& b) {
    if (a.key != b.key) return a.key < b.key;
    if (a.draw != b.draw) return a.draw < b.draw;
    const CostCandidate& x = candidates[a.ranked.candidate];
    const CostCandidate& y = candidates[b.ranked.candidate];
    return std::tie(x.cell, x.worker) < std::tie(y.cell, y.worker);
  };
  const size_t kept = std::min(best, scored.size());
  std::partial_sort(scored.begin(), scored.begin() + static_cast<ptrdiff_t>(kept), scored.end(),
                    before);
  std::vector<RankedCandidate> ranked;
  ranked.reserve(kept);
  for (size_t i = 0; i < kept; ++i) ranked.push_back(scored[i].ranked);
  return ranked;
}

}  // namespace kvatlas
