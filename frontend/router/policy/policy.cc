// One function per policy, a table of them (`kKinds`), and one class that calls through the table.
// A cost is spread over the terms of `Cost` only so that a receipt shows its parts; the sum
// decides.

#include "frontend/router/policy/policy.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"

namespace kvatlas {
namespace {

// More than any load: the first of two criteria decides before the second is looked at.
constexpr double kFirst = 1e9;

// Blocks that a request would have to prefill there.
uint32_t MissingBlocks(const CostInput& input) {
  return input.prompt_blocks - std::min(input.overlap_blocks, input.prompt_blocks);
}

// The policies for comparison count the worker's report and this frontend's own requests;
// `others_*` is for `kvatlas` alone.
double WaitingBlocks(const CostInput& input) {
  return static_cast<double>(input.in_flight_blocks) +
         (input.load.has_value() ? static_cast<double>(input.load->waiting_prefill_blocks) : 0);
}

double Requests(const CostInput& input) {
  return input.in_flight_requests +
         (input.load.has_value()
              ? static_cast<double>(input.load->running_requests) + input.load->waiting_requests
              : 0);
}

Cost KvatlasCost(const CostInput& input, const CostWeights& weights) {
  return CostOf(input, weights);
}

// Dynamo's defaults: a block in the device tier is worth one to prefill, in host memory 0.75, on
// disk 0.25 (a block on another machine is counted as on disk), no weight for requests. Blocks of
// running requests count in full.
constexpr double kDynamoHostCredit = 0.75;
constexpr double kDynamoDiskCredit = 0.25;

Cost DynamoCost(const CostInput& input, const CostWeights&) {
  const double prompt = input.prompt_blocks;
  const uint32_t overlap = std::min(input.overlap_blocks, input.prompt_blocks);
  const uint32_t host = std::min(input.fetched.host, overlap);
  const uint32_t disk = std::min(input.fetched.disk + input.fetched.remote, overlap - host);
  const double credit =
      (overlap - host - disk) + kDynamoHostCredit * host + kDynamoDiskCredit * disk;
  const double used = input.load.has_value() ? static_cast<double>(input.load->used_blocks) : 0;
  return {.prefill = std::max(0.0, WaitingBlocks(input) + prompt - credit),
          .decode = used + static_cast<double>(input.in_flight_blocks) + prompt};
}

Cost PrefixCost(const CostInput& input, const CostWeights&) {
  return {.prefill = kFirst * MissingBlocks(input),
          .queue = WaitingBlocks(input),
          .decode = Requests(input)};
}

// The prefill that the request waits for there, its own included, times the requests of the batch
// with it: arXiv 2603.15202. A prompt that is all there counts as one block, so that the batch
// decides among workers that have it all.
Cost LmetricCost(const CostInput& input, const CostWeights&) {
  const double prefill = std::max(1.0, WaitingBlocks(input) + MissingBlocks(input));
  return {.queue = prefill * (Requests(input) + 1)};
}

// A session stays where it is. The first request of a session goes where least waits.
Cost SessionCost(const CostInput& input, const CostWeights&) {
  return {.queue = WaitingBlocks(input),
          .decode = Requests(input),
          .session = input.leaves_session ? kFirst : 0};
}

Cost LeastLoadCost(const CostInput& input, const CostWeights&) {
  return {.queue = kFirst * WaitingBlocks(input), .decode = Requests(input)};
}

// A worker that was never sent a request has turn 0 and comes first.
Cost RoundRobinCost(const CostInput& input, const CostWeights&) {
  return {.queue = static_cast<double>(input.turn)};
}

// A policy by its name.
struct Kind {
  std::string_view name;
  Cost (*cost_of)(const CostInput& input, const CostWeights& weights);
  bool bounded_by_coverage;
};

constexpr Kind kKinds[] = {
    {kDefaultPolicy, KvatlasCost, true},    {"dynamo", DynamoCost, false},
    {"lmetric", LmetricCost, false},        {"prefix", PrefixCost, false},
    {"session", SessionCost, false},        {"least_load", LeastLoadCost, false},
    {"round_robin", RoundRobinCost, false},
};

class PolicyOfKind : public Policy {
 public:
  PolicyOfKind(const Kind& kind, const CostWeights& weights) : kind_(kind), weights_(weights) {}

  std::string_view Name() const override { return kind_.name; }
  Cost CostOf(const CostInput& input) const override { return kind_.cost_of(input, weights_); }
  bool bounded_by_coverage() const override { return kind_.bounded_by_coverage; }
  const CostWeights& weights() const override { return weights_; }

 private:
  const Kind& kind_;
  const CostWeights weights_;
};

}  // namespace

std::vector<RankedCandidate> Rank(const Policy& policy, std::span<const CostCandidate> candidates,
                                  uint64_t prompt_key, size_t best) {
  return RankCandidates(
      candidates, [&](const CostInput& input) { return policy.CostOf(input); }, policy.weights(),
      prompt_key, best);
}

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

absl::StatusOr<std::unique_ptr<const Policy>> MakePolicy(const std::string& name,
                                                         const CostWeights& weights) {
  const auto* const kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                        [&](const Kind& k) { return k.name == name; });
  if (kind != std::end(kKinds)) return std::make_unique<const PolicyOfKind>(*kind, weights);
  std::string known;
  for (const Kind& k : kKinds) known += (known.empty() ? "" : ", ") + std::string(k.name);
  return absl::InvalidArgumentError("no policy \"" + name + "\": there are " + known);
}

}  // namespace kvatlas
