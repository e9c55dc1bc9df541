#include "tools/testing/cluster/serve_replay.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "tools/bench/service_bench_http.h"
#include "tools/testing/cluster/at_rest.h"
#include "tools/testing/cluster/client.h"
#include "tools/testing/cluster/fleet.h"
#include "tools/testing/mock_engine/engine_model.h"
#include "tools/testing/mock_engine/mock_tokens.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kOutputTokens = 1;
constexpr Duration kLookEvery = std::chrono::milliseconds(1);

struct PromptOf {
  std::vector<TokenId> tokens;
  std::vector<SequenceHash> blocks;  // as the leaf and the engines have them
};

PromptOf MakePrompt(const TraceRequest& request, uint32_t split, uint32_t block_size) {
  PromptOf prompt;
  prompt.tokens = MockTokens(PromptBlocks(request, split), block_size);
  prompt.blocks =
      SequenceHashes(LocalHashes(prompt.tokens, {.block_size = block_size}, BlockSeed({})));
  return prompt;
}

FleetOptions FleetOptionsOf(const ClusterOptions& cluster, const ReplayOptions& options,
                            const std::string& policy) {
  FleetOptions fleet;
  fleet.policy = policy;
  fleet.cells = cluster.cells;
  fleet.workers = cluster.workers;
  fleet.engine.capacity_blocks = cluster.capacity;
  fleet.engine.block_size = cluster.block_size;
  fleet.weights.seed = options.seed;
  return fleet;
}

// As a mock engine serves a client's request: to its end, before the next one.
EngineArrival ServeInModel(uint64_t id, const PromptOf& prompt, EngineModel* engine) {
  EngineStep step;
  const EngineArrival arrival =
      engine->Submit(engine->now_ms(),
                     {.id = id,
                      .blocks = prompt.blocks,
                      .prompt_tokens = static_cast<uint32_t>(prompt.tokens.size()),
                      .output_tokens = kOutputTokens},
                     &step);
  engine->AdvanceTo(EngineModel::kForever, &step);
  return arrival;
}

void Pause() {
  Mutex mutex;
  CondVar never;
  MutexLock lock(&mutex);
  never.WaitFor(&mutex, kLookEvery);
}

class ServeDriver {
 public:
  ServeDriver(const Cluster& cluster, const std::vector<TraceRequest>& trace,
              const ReplayOptions& options, const Address& listen)
      : cluster_(cluster),
        trace_(trace),
        options_(options),
        client_(cluster),
        http_(listen),
        mirrors_(FleetOptionsOf(cluster.options(), options, options.policy)) {
    for (uint32_t worker = 0; worker < cluster.workers(); ++worker)
      worker_numbers_[cluster.WorkerName(worker)] = worker;
    report_.policy = options.policy;
    report_.serve = true;
    report_.cells = cluster.options().cells;
    report_.workers = cluster.options().workers;
    report_.block_size = cluster.options().block_size;
    report_.cached_blocks.chosen = report_.cached_blocks.best_same_state = 0;
    report_.predicted_blocks = report_.promised_over = report_.promised_under = 0;
    report_.promised_over_blocks = report_.promised_under_blocks = 0;
  }

  absl::StatusOr<ReplayReport> Run() {
    const Time start = Clock::Real().Now();
    for (size_t i = 0; i < trace_.size() && !options_.stop() && !options_.enough(); ++i) {
      if (options_.before) options_.before(i);
      ServeOne(i);
    }
    if (options_.stop()) return absl::CancelledError("stopped");
    report_.seconds = SecondsSince(start);
    if (absl::Status bad = Finish(); !bad.ok()) return bad;
    return report_;
  }

 private:
  static double SecondsSince(Time start) {
    return std::chrono::duration<double>(Clock::Real().Now() - start).count();
  }

  PromptOf PromptAt(size_t i) const {
    return MakePrompt(trace_[i], options_.split, cluster_.options().block_size);
  }

  void Error(size_t i, const std::string& what) {
    ++report_.errors;
    report_.Note(absl::StrCat("request ", i, " ", what));
  }

  void ServeOne(size_t i) {
    const PromptOf prompt = PromptAt(i);
    ++report_.requests;
    const auto tokens = static_cast<uint32_t>(prompt.tokens.size());
    const uint32_t best = mirrors_.Best(prompt.blocks, tokens).overlap_blocks;
    const std::string body =
        absl::StrCat("{\"model\":\"", cluster_.options().model, "\",\"max_tokens\":", kOutputTokens,
                     ",\"prompt\":[", absl::StrJoin(prompt.tokens, ","), "]}");
    const Time start = Clock::Real().Now();
    const absl::StatusOr<HttpAnswer> answer = http_.Post("/v1/completions", body);
    const double us = SecondsSince(start) * 1e6;
    if (!answer.ok())
      return Error(i, absl::StrCat("was not answered: ", answer.status().message()));
    const auto worker = worker_numbers_.find(answer->Header("x-kvatlas-worker"));
    if (worker == worker_numbers_.end()) {
      return Error(i, absl::StrCat("was answered by no known worker: ", answer->status, " ",
                                   answer->body.substr(0, 200)));
    }
    mirrors_.Sent(
        worker->second,
        prompt.blocks.size() - mirrors_.engine(worker->second).Reusable(prompt.blocks, tokens));
    const EngineArrival arrival = ServeInModel(i, prompt, &mirrors_.engine(worker->second));
    if (answer->status == 400 && arrival.too_long) {
      ++report_.too_long;
      return;
    }
    if (answer->status != 200) {
      return Error(
          i, absl::StrCat("was answered ", answer->status, ": ", answer->body.substr(0, 200)));
    }
    report_.request_us.push_back(us);
    TakeAnswer(i, *answer, prompt, best, arrival);
    if (!IsKnown(worker->first, prompt)) ++report_.unacknowledged;
  }

  void TakeAnswer(size_t i, const HttpAnswer& answer, const PromptOf& prompt, uint32_t best,
                  const EngineArrival& arrival) {
    const Json json = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
    const Json cached =
        json.is_object()
            ? json.value("/usage/prompt_tokens_details/cached_tokens"_json_pointer, Json())
            : Json();
    uint32_t promised = 0;
    if (!cached.is_number_unsigned() ||
        !absl::SimpleAtoi(answer.Header("x-kvatlas-overlap-blocks"), &promised))
      return Error(i, "was answered without usage or without a promise");
    const std::string fallback = answer.Header("x-kvatlas-fallback");
    if (fallback != "none") {
      ++report_.fallbacks;
      report_.Note(absl::StrCat("request ", i, " fell back: ", fallback));
    }
    const auto truth =
        static_cast<uint32_t>(cached.get<uint64_t>() / cluster_.options().block_size);
    if (arrival.too_long || truth != arrival.cached_blocks) {
      ++report_.mirror_differences;
      report_.Note(absl::StrCat("request ", i, ": the engine had ", truth,
                                " blocks where its mirror had ", arrival.cached_blocks));
    }
    report_.prompt_blocks += prompt.blocks.size();
    *report_.cached_blocks.chosen += truth;
    *report_.cached_blocks.best_same_state += best;
    *report_.predicted_blocks += promised;
    *report_.promised_over += promised > truth;
    *report_.promised_under += promised < truth;
    *report_.promised_over_blocks += promised - std::min(promised, truth);
    *report_.promised_under_blocks += truth - std::min(promised, truth);
  }

  // Whether the leaf hears in time that the worker has the prompt. ZeroMQ has no acknowledgement.
  bool IsKnown(const std::string& worker, const PromptOf& prompt) {
    const Time until = Clock::Real().Now() + std::chrono::milliseconds(options_.ack_timeout_ms);
    for (;;) {
      const absl::StatusOr<v1::FindOverlapsResponse> answer =
          client_.FindOverlaps(0, prompt.blocks);
      if (answer.ok()) {
        for (const v1::WorkerOverlap& overlap : answer->workers())
          if (overlap.worker().name() == worker && overlap.blocks() >= prompt.blocks.size())
            return true;
      }
      if (Clock::Real().Now() > until) return false;
      Pause();
    }
  }

  absl::Status Finish() {
    const absl::StatusOr<v1::StatsResponse> stats = client_.LeafStats(0);
    if (!stats.ok()) return stats.status();
    uint64_t stored = 0, removed = 0, batches = 0;
    for (const v1::DomainStats& domain : stats->domains()) {
      for (const v1::HolderStats& holder : domain.holder_stats()) {
        stored += holder.engine().blocks_stored();
        removed += holder.engine().blocks_removed();
        batches += holder.batches();
      }
    }
    report_.events_stored = stored;
    report_.events_removed = removed;
    report_.events_batches = batches;
    absl::StatusOr<AtRest> at_rest = CheckAtRest(
        cluster_, client_, trace_.size(), [this](size_t i) { return PromptAt(i).blocks; },
        options_.at_rest_pairs);
    if (!at_rest.ok()) return at_rest.status();
    report_.at_rest = *at_rest;
    return absl::OkStatus();
  }

  const Cluster& cluster_;
  const std::vector<TraceRequest>& trace_;
  const ReplayOptions& options_;
  ClusterClient client_;
  HttpClient http_;
  Fleet mirrors_;
  std::map<std::string, uint32_t> worker_numbers_;
  ReplayReport report_;
};

// The same requests through models alone: blocks that were cached on arrival.
uint64_t CachedInProcess(const Cluster& cluster, const std::vector<TraceRequest>& trace,
                         const ReplayOptions& options, const std::string& policy) {
  Fleet fleet(FleetOptionsOf(cluster.options(), options, policy));
  uint64_t cached = 0;
  for (size_t i = 0; i < trace.size() && !options.stop(); ++i) {
    const PromptOf prompt = MakePrompt(trace[i], options.split, cluster.options().block_size);
    const Fleet::Choice choice =
        fleet.Best(prompt.blocks, static_cast<uint32_t>(prompt.tokens.size()));
    fleet.Sent(choice.worker, prompt.blocks.size() - choice.overlap_blocks);
    const EngineArrival arrival = ServeInModel(i, prompt, &fleet.engine(choice.worker));
    if (!arrival.too_long) cached += arrival.cached_blocks;
  }
  return cached;
}

}  // namespace

absl::StatusOr<ReplayReport> ReplayThroughServe(const Cluster& cluster,
                                                const std::vector<TraceRequest>& trace,
                                                const ReplayOptions& options) {
  const absl::StatusOr<Address> listen = Address::Parse(cluster.address("serve", "listen"));
  if (!listen.ok()) return listen.status();
  absl::StatusOr<ReplayReport> report = ServeDriver(cluster, trace, options, *listen).Run();
  if (!report.ok()) return report;
  CachedBlocks& cached = report->cached_blocks;
  if (options.policy == kDefaultPolicy) cached.kvatlas = cached.chosen;
  if (!options.compare) return report;
  cached.exact_global = CachedInProcess(cluster, trace, options, options.policy);
  cached.round_robin = options.policy == "round_robin"
                           ? cached.chosen
                           : CachedInProcess(cluster, trace, options, "round_robin");
  return report;
}

}  // namespace kvatlas
