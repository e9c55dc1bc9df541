#include "tools/testing/cluster/policy_replay.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "tools/testing/cluster/report.h"
#include "tools/testing/mock_engine/engine_model.h"

namespace kvatlas {

PolicyRun ReplayPolicy(const std::vector<TraceRequest>& trace, const PolicyReplayOptions& options) {
  Fleet fleet(options.fleet);
  const double stretch =
      options.load > 0 ? StretchForLoad(trace, fleet.workers(),
                                        options.fleet.engine.prefill_tokens_per_s, options.load)
                       : options.stretch;
  PolicyRun run{.policy = options.fleet.policy};
  std::vector<double> ttft_ms;
  EngineStep step;
  const auto take_step = [&] {
    for (const EngineAdmission& admission : step.admitted) ttft_ms.push_back(admission.ttft_ms);
    step = EngineStep();
  };
  double now_ms = 0;
  absl::flat_hash_map<std::string, uint32_t> homes;  // by session: the worker of its last request
  for (size_t i = 0; i < trace.size() && !options.stop(); ++i) {
    now_ms = std::max(now_ms, trace[i].timestamp_ms * stretch);
    fleet.AdvanceTo(now_ms, &step);
    std::vector<SequenceHash> blocks =
        options.blocks_of != nullptr ? options.blocks_of(i) : PromptBlocks(trace[i], options.split);
    const std::string& session = trace[i].session_id;
    const auto home = session.empty() ? homes.end() : homes.find(session);
    const Fleet::Choice choice =
        fleet.Best(blocks, trace[i].input_tokens,
                   home == homes.end() ? std::nullopt : std::optional(home->second));
    const uint32_t worker = choice.worker;
    if (!session.empty()) homes[session] = worker;
    fleet.Sent(worker, blocks.size() - choice.overlap_blocks);
    const size_t prompt_blocks = blocks.size();
    const EngineArrival arrival =
        fleet.engine(worker).Submit(now_ms,
                                    {.id = i,
                                     .blocks = std::move(blocks),
                                     .prompt_tokens = trace[i].input_tokens,
                                     .output_tokens = trace[i].output_tokens},
                                    &step);
    take_step();
    ++run.requests;
    if (arrival.too_long) {
      ++run.too_long;
      continue;
    }
    run.prompt_blocks += prompt_blocks;
    run.cached_blocks += arrival.cached_blocks;
  }
  fleet.AdvanceTo(EngineModel::kForever, &step);
  take_step();
  if (ttft_ms.empty()) return run;
  run.ttft_mean_ms =
      std::accumulate(ttft_ms.begin(), ttft_ms.end(), 0.0) / static_cast<double>(ttft_ms.size());
  run.ttft_p50_ms = *Percentile(ttft_ms, 50);
  run.ttft_p90_ms = *Percentile(ttft_ms, 90);
  run.ttft_p99_ms = *Percentile(ttft_ms, 99);
  return run;
}

double StretchForLoad(const std::vector<TraceRequest>& trace, uint64_t engines,
                      double prefill_tokens_per_s, double load) {
  double tokens = 0;
  double last_ms = 0;
  for (const TraceRequest& request : trace) {
    tokens += request.input_tokens;
    last_ms = std::max(last_ms, request.timestamp_ms);
  }
  if (last_ms <= 0 || load <= 0 || engines == 0) return 1;
  const double busy_ms = tokens * 1000 / prefill_tokens_per_s / static_cast<double>(engines);
  return busy_ms / load / last_ms;
}

}  // namespace kvatlas
