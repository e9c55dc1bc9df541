// By what is a worker chosen? The policies that a frontend can go by, and that a replay can put
// side by side.
//
//   kvatlas      what the request will wait for (`cost.h`)
//   dynamo       the cost of NVIDIA Dynamo's router with its defaults
//   lmetric      prefill that waits there and that the prompt lacks, times the requests there (LMetric, arXiv 2603.15202)
//   prefix       the deepest overlap; equals by load
//   session      the worker of the request's session; the first request of one by load
//   least_load   the least prefill waiting; equals by requests there
//   round_robin  whose turn it is: the worker that was longest without a request
//
// *Place*: the frontend's last step, and every tool that replays a trace: the same code in both.
// *Truth*: a policy is a cost and nothing else: pure and deterministic, so that the cheapest
// candidate of `RankCandidates`, with tie-breaks by seed and prompt, is the same in every process.
// *Threads*: immutable; any.
//
// Example:
//   std::unique_ptr<const Policy> policy = *MakePolicy("kvatlas", {});
//   std::vector<RankedCandidate> best = Rank(*policy, candidates, PromptKey(sequence), 1);

#ifndef KVATLAS_FRONTEND_ROUTER_POLICY_POLICY_H_
#define KVATLAS_FRONTEND_ROUTER_POLICY_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/router/cost.h"

namespace kvatlas {

class Policy {
 public:
  virtual ~Policy() = default;

  virtual std::string_view Name() const = 0;

  // The cost of the request there; in blocks of prefill where the policy counts in these.
  virtual Cost CostOf(const CostInput& input) const = 0;

  // Whether coverage and load of a cell bound what its workers can cost, so that only the cells
  // that can win need be asked. The policies that are there for comparison ask every cell, as if
  // there were one index of all.
  virtual bool bounded_by_coverage() const = 0;

  // Temperature and seed of the candidates' order, and the weights of `DecodeElsewhereCost`.
  virtual const CostWeights& weights() const = 0;
};

// The cheapest `best`, as `RankCandidates`.
std::vector<RankedCandidate> Rank(const Policy& policy, std::span<const CostCandidate> candidates,
                                  uint64_t prompt_key, size_t best);

inline constexpr std::string_view kDefaultPolicy = "kvatlas";

std::vector<std::string> PolicyNames();

// Only `kvatlas` goes by all the weights; the others by temperature and seed. INVALID_ARGUMENT: no
// such policy; the message names those that there are.
absl::StatusOr<std::unique_ptr<const Policy>> MakePolicy(const std::string& name,
                                                         const CostWeights& weights);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_POLICY_POLICY_H_
