// The cost of one candidate (`CostOf`, `DecodeElsewhereCost`), and ranking by any cost: `Score`
// gives a candidate its key and draw, `SortBest` orders. `choose.cc` calls these two itself;
// `RankCandidates` is the same for tools that replay.

#include "frontend/router/cost.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

// Gumbel noise from 64 random bits. Subtracting noise times T from every cost and taking the least
// draws a candidate with probability proportional to exp(-cost / T): a softmax sample without a sum
// over all. The upper 53 bits plus a half give a number strictly between 0 and 1, where both
// logarithms are finite.
double GumbelOf(uint64_t draw) {
  const double uniform = (static_cast<double>(draw >> 11) + 0.5) * 0x1.0p-53;
  return -std::log(-std::log(uniform));
}

// Scales the decode term by the answer's expected length, relative to a typical one; 1 when
// unknown.
double OutputFactor(uint32_t expected_output_tokens) {
  if (expected_output_tokens == 0) return 1;
  return std::clamp(expected_output_tokens / kTypicalOutputTokens, 1 / kOutputFactorMax,
                    kOutputFactorMax);
}

// Requests there, from all three sources: this frontend's in flight, other frontends', and the
// worker's own report.
double RequestsAt(const CostInput& input) {
  double requests =
      static_cast<double>(input.in_flight_requests) + static_cast<double>(input.others_requests);
  if (input.load.has_value())
    requests += static_cast<double>(input.load->running_requests) + input.load->waiting_requests;
  return requests;
}

// Blocks to prefill that no report shows.
uint64_t BlocksOnTheirWay(const CostInput& input) {
  return input.in_flight_blocks + input.others_blocks;
}

// Blocks of `wanted` that the pool has no room for, after those on their way. A worker that reports
// no pool has room.
double BlocksLacking(const CostInput& input, uint64_t wanted) {
  if (!input.load.has_value() || input.load->used_blocks + input.load->free_blocks == 0) return 0;
  const double free =
      static_cast<double>(input.load->free_blocks) - static_cast<double>(BlocksOnTheirWay(input));
  return std::max(0.0, static_cast<double>(wanted) - std::max(0.0, free));
}

}  // namespace

// The terms are independent, and `total` is their sum. The parts of the overlap that have to be
// fetched are clipped one after the other, so that together they never exceed the overlap, whatever
// the leaf says.
Cost CostOf(const CostInput& input, const CostWeights& weights) {
  const uint32_t overlap = std::min(input.overlap_blocks, input.prompt_blocks);
  const uint32_t host = std::min(input.fetched.host, overlap);
  const uint32_t disk = std::min(input.fetched.disk, overlap - host);
  const uint32_t remote = std::min(input.fetched.remote, overlap - host - disk);
  const uint32_t missing = input.prompt_blocks - overlap;
  double waiting = kInFlightWaiting * static_cast<double>(BlocksOnTheirWay(input));
  if (input.load.has_value()) waiting += static_cast<double>(input.load->waiting_prefill_blocks);
  return {.prefill = weights.prefill * missing,
          .fetch =
              weights.fetch_host * host + weights.fetch_disk * disk + weights.fetch_remote * remote,
          .queue = weights.queue * waiting,
          .decode = weights.decode * RequestsAt(input) * OutputFactor(input.expected_output_tokens),
          // Fetched blocks need room on the device as computed ones do.
          .memory = weights.memory * BlocksLacking(input, missing + host + disk + remote),
          .distance = weights.distance * input.distance,
          .session = input.leaves_session ? weights.session : 0,
          .siblings = weights.siblings * std::min(input.duplicated_blocks, missing),
          .transfer = input.transfer,
          .crowding = weights.crowding * missing * input.crowding};
}

// No prefill and no queue: the decoder computes no block of the prompt. Blocks that it holds need
// not be sent.
double DecodeElsewhereCost(const CostInput& input, bool far, const CostWeights& weights) {
  const uint32_t overlap = std::min(input.overlap_blocks, input.prompt_blocks);
  const uint32_t sent = input.prompt_blocks - overlap;
  return (far ? weights.transfer_far : weights.transfer) * sent +
         weights.decode * RequestsAt(input) * OutputFactor(input.expected_output_tokens) +
         weights.memory * BlocksLacking(input, sent) + weights.distance * input.distance;
}

// Hashes names, rank, seed and prompt; no address and no order of lists, so that all processes
// agree.
uint64_t TieBreak(const std::string& cell, const HolderId& worker, uint64_t seed,
                  uint64_t prompt_key) {
  return Xxh3(worker.name, Xxh3(cell, seed ^ prompt_key) + worker.rank);
}

// The draw decides between equal keys, and with a temperature is the noise too.
Scored Score(size_t candidate, const Cost& cost, uint64_t draw, const CostWeights& weights) {
  Scored scored{.candidate = candidate, .cost = cost, .key = cost.total(), .draw = draw};
  if (weights.temperature > 0) scored.key -= weights.temperature * GumbelOf(draw);
  return scored;
}

// O(n log best).
void SortBest(size_t best, std::vector<Scored>* scored,
              const std::function<bool(size_t, size_t)>& before) {
  const size_t kept = std::min(best, scored->size());
  std::partial_sort(scored->begin(), scored->begin() + static_cast<ptrdiff_t>(kept), scored->end(),
                    [&](const Scored& a, const Scored& b) {
                      if (a.key != b.key) return a.key < b.key;
                      if (a.draw != b.draw) return a.draw < b.draw;
                      return before(a.candidate, b.candidate);
                    });
  scored->resize(kept);
}

uint64_t PromptKey(std::span<const SequenceHash> sequence) {
  return sequence.empty() ? 0 : Raw(sequence.back());
}

std::vector<RankedCandidate> RankCandidates(std::span<const CostCandidate> candidates,
                                            const CostWeights& weights, uint64_t prompt_key,
                                            size_t best) {
  return RankCandidates(
      candidates, [&](const CostInput& input) { return CostOf(input, weights); }, weights,
      prompt_key, best);
}

std::vector<RankedCandidate> RankCandidates(std::span<const CostCandidate> candidates,
                                            const CostFunction& cost_of, const CostWeights& weights,
                                            uint64_t prompt_key, size_t best) {
  std::vector<Scored> scored;
  scored.reserve(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i) {
    const CostCandidate& candidate = candidates[i];
    scored.push_back(Score(i, cost_of(candidate.input),
                           TieBreak(candidate.cell, candidate.worker, weights.seed, prompt_key),
                           weights));
  }
  SortBest(best, &scored, [&](size_t a, size_t b) {
    return std::tie(candidates[a].cell, candidates[a].worker) <
           std::tie(candidates[b].cell, candidates[b].worker);
  });
  std::vector<RankedCandidate> ranked;
  ranked.reserve(scored.size());
  for (const Scored& s : scored) ranked.push_back({.candidate = s.candidate, .cost = s.cost});
  return ranked;
}

}  // namespace kvatlas
