// The life of a handle. Its options are read and checked, its threads start with the program's
// signals blocked, and it ends after its routes. All text of options is copied before `_create`
// returns.

#include "frontend/gateway/c/frontend_handle.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/gateway/c/arguments.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/base/shard_map.h"
#include "indexer/process/c_api.h"

namespace kvatlas {
namespace {

constexpr uint32_t kPromptThreadsMax = 256;

// CELL=HOST:PORT; an entry that is NULL is empty, and refused.
absl::Status LeavesOf(const kvatlas_frontend_options& given, std::vector<ConfiguredLeaf>* leaves) {
  if (given.leaves_count > kTextsMax) return absl::InvalidArgumentError("leaves_count: too many");
  if (!Fits(given.leaves, given.leaves_count)) return absl::InvalidArgumentError("leaves: NULL");
  for (size_t i = 0; i < given.leaves_count; ++i) {
    const std::string entry = StringOf(given.leaves[i]);
    const size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == entry.size())
      return absl::InvalidArgumentError("leaves: '" + entry + "' is no CELL=HOST:PORT");
    if (const auto address = Address::Parse(entry.substr(equals + 1)); !address.ok())
      return absl::InvalidArgumentError("leaves: " + std::string(address.status().message()));
    leaves->push_back({.cell = entry.substr(0, equals), .address = entry.substr(equals + 1)});
  }
  return absl::OkStatus();
}

// Bounds that the C++ options do not check themselves; NaN fails every comparison, and so is
// refused.
absl::Status CheckNumbers(const kvatlas_frontend_options& given) {
  const auto bad = [](const char* what) { return absl::InvalidArgumentError(what); };
  if (given.ask == 0 || given.ask > 64) return bad("ask: 1 to 64");
  if (given.block_size == 0 || given.block_size > 65536) return bad("block_size: 1 to 65536");
  if (given.deadline_us == 0) return bad("deadline_us: at least 1");
  if (given.routes_max == 0) return bad("routes_max: at least 1");
  if (given.prompt_threads == 0 || given.prompt_threads > kPromptThreadsMax)
    return bad("prompt_threads: 1 to 256");
  if (given.prompts_max == 0) return bad("prompts_max: at least 1");
  for (double weight : {given.zone_distance, given.prefill_weight, given.queue_weight,
                        given.decode_weight, given.temperature}) {
    if (!(weight >= 0 && weight <= std::numeric_limits<double>::max()))
      return bad("zone_distance, weights, temperature: at least 0");
  }
  return absl::OkStatus();
}

absl::StatusOr<FrontendOptions> OptionsOf(const kvatlas_frontend_options& given) {
  if (absl::Status bad = CheckNumbers(given); !bad.ok()) return bad;
  FrontendOptions options;
  if (absl::Status bad = LeavesOf(given, &options.leaves); !bad.ok()) return bad;
  if (const std::string hierarchy = StringOf(given.hierarchy); !hierarchy.empty()) {
    absl::StatusOr<ShardMap> map = ShardMap::Parse(hierarchy);
    if (!map.ok())
      return absl::InvalidArgumentError("hierarchy: " + std::string(map.status().message()));
    for (const std::string& text : map->Addresses())
      if (const auto address = Address::Parse(text); !address.ok())
        return absl::InvalidArgumentError("hierarchy: " + std::string(address.status().message()));
    options.hierarchies = *std::move(map);
  }
  if (options.leaves.empty() && options.hierarchies.empty())
    return absl::InvalidArgumentError("neither a hierarchy nor leaves");
  options.ask_cells = given.ask;
  options.block_size = given.block_size;
  options.contract.seed = given.hash_seed;
  options.deadline = Us(given.deadline_us);
  options.memory.in_flight_ttl = Us(std::min(given.in_flight_ttl_ms, kUsMax / 1000) * 1000);
  options.zone = StringOf(given.zone);
  options.zone_distance = given.zone_distance;
  options.weights.prefill = given.prefill_weight;
  options.weights.queue = given.queue_weight;
  options.weights.decode = given.decode_weight;
  options.weights.temperature = given.temperature;
  options.weights.seed = given.seed;
  return options;
}

absl::StatusOr<WaypointSchedule> ScheduleOf(const kvatlas_frontend_options& given) {
  if (given.schedule == nullptr) return WaypointSchedule::Standard();
  absl::StatusOr<WaypointSchedule> schedule = WaypointSchedule::Parse(given.schedule);
  if (schedule.ok()) return schedule;
  return absl::InvalidArgumentError("schedule: " + std::string(schedule.status().message()));
}

// Null: no models are given, and only token ids are routed.
absl::StatusOr<std::unique_ptr<ModelRegistry>> ModelsOf(const kvatlas_frontend_options& given) {
  auto registry = ModelRegistry::FromFlag(StringOf(given.models));
  if (registry.ok()) return registry;
  return absl::InvalidArgumentError("models: " + std::string(registry.status().message()));
}

// Makes gRPC start its callback threads now. gRPC starts them at its first callback, on the thread
// that causes it; here that thread has all signals blocked, which the new threads inherit.
void StartThreads(kvatlas_frontend* frontend) {
  struct Started {
    Mutex mutex;
    CondVar changed;
    bool done ABSL_GUARDED_BY(mutex) = false;
  };
  auto started = std::make_shared<Started>();
  frontend->timer.After(Duration(0), [started] {
    MutexLock lock(&started->mutex);
    started->done = true;
    started->changed.Signal();
  });
  MutexLock lock(&started->mutex);
  while (!started->done) started->changed.Wait(&started->mutex);
}

// 1. The process is marked, so that a forked child is recognized.
// 2. Options are checked before anything is made.
// 3. Signals are blocked for every thread that is started from here on.
// 4. Members are filled in from the bottom up; `options->schedule` points into the handle, which
//    does not move.
absl::StatusOr<std::unique_ptr<kvatlas_frontend>> Create(const kvatlas_frontend_options& given) {
  const absl::StatusOr<const ForkDetector*> mark = MarkOfThisProcess("frontend");
  if (!mark.ok()) return mark.status();
  absl::StatusOr<FrontendOptions> options = OptionsOf(given);
  if (!options.ok()) return options.status();
  absl::StatusOr<WaypointSchedule> schedule = ScheduleOf(given);
  if (!schedule.ok()) return schedule.status();
  const SignalsBlocked blocked;
  absl::StatusOr<std::unique_ptr<ModelRegistry>> models = ModelsOf(given);
  if (!models.ok()) return models.status();
  auto made = std::make_unique<kvatlas_frontend>();
  made->mark = *mark;
  made->routes_max = given.routes_max;
  made->schedule = *std::move(schedule);
  options->schedule = &made->schedule;
  StartThreads(made.get());
  for (const std::string& address : options->hierarchies.Addresses())
    made->cell_finder.Connect(address);
  for (const ConfiguredLeaf& leaf : options->leaves) made->overlap_finder.Connect(leaf.address);
  made->frontend = std::make_unique<Frontend>(*std::move(options), &made->cell_finder,
                                              &made->overlap_finder, &Clock::Real(), &made->timer);
  made->models = *std::move(models);
  if (made->models != nullptr)
    made->tokenizer = std::make_unique<LocalTokenizer>(made->models.get(), LocalTokenizerOptions());
  made->router = std::make_unique<PromptRouter>(
      PromptRouterOptions{.threads = given.prompt_threads, .queue_max = given.prompts_max},
      made->frontend.get(), made->tokenizer.get());
  return made;
}

}  // namespace
}  // namespace kvatlas

void kvatlas_frontend_options_init(kvatlas_frontend_options* options, size_t struct_size) {
  const kvatlas::FrontendOptions defaults;
  const auto us = [](kvatlas::Duration duration) {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
  };
  kvatlas_frontend_options whole = {};
  whole.struct_size = struct_size;
  whole.ask = defaults.ask_cells;
  whole.block_size = defaults.block_size;
  whole.hash_seed = defaults.contract.seed;
  whole.deadline_us = us(defaults.deadline);
  whole.in_flight_ttl_ms = us(defaults.memory.in_flight_ttl) / 1000;
  whole.zone_distance = defaults.zone_distance;
  whole.prefill_weight = defaults.weights.prefill;
  whole.queue_weight = defaults.weights.queue;
  whole.decode_weight = defaults.weights.decode;
  whole.temperature = defaults.weights.temperature;
  whole.seed = defaults.weights.seed;
  whole.routes_max = 16384;
  const kvatlas::PromptRouterOptions prompts;
  whole.prompt_threads = prompts.threads;
  whole.prompts_max = static_cast<uint32_t>(prompts.queue_max);
  kvatlas::InitStruct(whole, options, struct_size);
}

// An exception other than bad_alloc is INTERNAL (`Guarded`); `error` stays empty then.
int32_t kvatlas_frontend_create(const kvatlas_frontend_options* options,
                                kvatlas_frontend** frontend, char* error, size_t error_size) {
  kvatlas::PutText("", error, error_size);
  if (frontend == nullptr) return KVATLAS_INVALID_ARGUMENT;
  *frontend = nullptr;
  const int32_t code = kvatlas::Guarded([&] {
    if (!kvatlas::IsInitialized(options)) {
      return kvatlas::PutStatus(
          absl::InvalidArgumentError("options: not from kvatlas_frontend_options_init"), error,
          error_size);
    }
    absl::StatusOr<std::unique_ptr<kvatlas_frontend>> made =
        kvatlas::Create(kvatlas::Whole(*options, &kvatlas_frontend_options_init));
    if (!made.ok()) return kvatlas::PutStatus(made.status(), error, error_size);
    *frontend = made->release();
    return int32_t{KVATLAS_OK};
  });
  if (code == KVATLAS_RESOURCE_EXHAUSTED) kvatlas::PutText("no memory", error, error_size);
  return code;
}

// Waits for the routes under way; new ones during that time are the caller's mistake (header,
// Threads). In a forked child nothing is freed: the parent's threads hold locks in that memory.
void kvatlas_frontend_destroy(kvatlas_frontend* frontend) {
  if (frontend == nullptr || !kvatlas::Usable(*frontend)) return;
  {
    kvatlas::MutexLock lock(&frontend->mutex);
    while (frontend->under_way > 0) frontend->idle.Wait(&frontend->mutex);
  }
  delete frontend;
}
