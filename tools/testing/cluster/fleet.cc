#include "tools/testing/cluster/fleet.h"

namespace kvatlas {

std::string CellNameOf(uint32_t cell) { return "cell-" + std::to_string(cell); }

std::string WorkerNameOf(uint32_t cell, uint32_t number) {
  return "worker-" + std::to_string(cell) + "-" + std::to_string(number);
}

Fleet::Fleet(const FleetOptions& options)
    : policy_(*MakePolicy(options.policy, options.weights)),
      turns_(size_t{options.cells} * options.workers),
      stored_(size_t{options.cells} * options.workers) {
  engines_.reserve(size_t{options.cells} * options.workers);
  for (uint32_t cell = 0; cell < options.cells; ++cell) {
    for (uint32_t number = 0; number < options.workers; ++number) {
      engines_.emplace_back(options.engine);
      names_.push_back({.cell = CellNameOf(cell),
                        .worker = {.name = WorkerNameOf(cell, number), .rank = 0, .replica = ""},
                        .input = {}});
    }
  }
}

Fleet::Choice Fleet::Best(std::span<const SequenceHash> sequence, uint32_t prompt_tokens,
                          std::optional<uint32_t> session_worker) const {
  std::vector<CostCandidate> candidates = names_;
  const auto crowding_of = recently_stored_.CrowdingAmong(engines_.size());
  for (size_t worker = 0; worker < engines_.size(); ++worker) {
    candidates[worker].input = {
        .prompt_blocks = static_cast<uint32_t>(sequence.size()),
        .overlap_blocks = engines_[worker].Reusable(sequence, prompt_tokens),
        .load = engines_[worker].CurrentLoad(),
        .leaves_session = session_worker.has_value() && worker != *session_worker,
        .crowding = crowding_of(stored_[worker]),
        .turn = turns_[worker]};
  }
  const size_t best = Rank(*policy_, candidates, PromptKey(sequence), 1).front().candidate;
  return {.worker = static_cast<uint32_t>(best),
          .overlap_blocks = candidates[best].input.overlap_blocks};
}

void Fleet::AdvanceTo(double time_ms, EngineStep* step) {
  for (EngineModel& engine : engines_) engine.AdvanceTo(time_ms, step);
}

}  // namespace kvatlas
