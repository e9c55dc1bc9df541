// What would an LLM engine do with these requests? A model of one: a cache of blocks
// (`engine_cache.h`), a queue, prefill and decode in simulated time. Pure: no I/O, no threads, no
// clock.
//
//   Submit ─▶ waiting (FIFO, while blocks do not suffice) ─▶ admitted: prefix found, rest stored
//                                                             │ prefill, one request at a time
//                                                             ▼ first token
//                                                           decode ─▶ finished: blocks freed, still cached
//
// *Truth*: its events and contents always agree: applying the events in order gives `Contents`. Two
// models that are given the same calls do the same, in every process. Only prompts are modelled:
// the blocks of output tokens take no room and are never announced, since traces have no hashes of
// them.
// *Threads*: none; the owner serialises.
// *Cost*: about 0.2 µs a block of a request.
// *Bounds*: the pool; a prompt that needs more blocks than it has is refused (`too_long`). The
// queue has none.
//
// Example:
//   EngineModel engine({.capacity_blocks = 4096, .block_size = 64});
//   EngineStep step;
//   EngineArrival arrival = engine.Submit(0, {.id = 1, .blocks = prompt, .prompt_tokens = 900},
//   &step);
//   while (std::optional<double> next = engine.NextEventMs()) engine.AdvanceTo(*next, &step);

#ifndef KVATLAS_TOOLS_TESTING_MOCK_ENGINE_ENGINE_MODEL_H_
#define KVATLAS_TOOLS_TESTING_MOCK_ENGINE_ENGINE_MODEL_H_

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "indexer/base/cache_class.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "tools/testing/mock_engine/engine_cache.h"
#include "tools/testing/mock_engine/hybrid.h"

namespace kvatlas {

struct EngineOptions {
  uint64_t capacity_blocks = 4096;
  uint32_t block_size = 64;
  double prefill_tokens_per_s = 8000;
  double decode_ms_per_token = 20;
  // Prefill goes in steps of so many tokens; reported load falls step by step.
  uint32_t prefill_step_tokens = 8192;
  // A side class beside full attention; its chunks have `prefill_step_tokens`, or the number of its
  // own.
  HybridOptions hybrid = {};
};

struct EngineRequest {
  uint64_t id = 0;
  std::vector<SequenceHash> blocks;
  uint32_t prompt_tokens = 0;  // what the blocks hold, perhaps less than full
  uint32_t output_tokens = 0;
};

// What a request met when it arrived.
struct EngineArrival {
  bool too_long = false;       // refused for good
  uint32_t cached_blocks = 0;  // leading blocks that it can reuse: never the last token
  uint32_t held_blocks = 0;    // leading blocks that the main class held
};

// A request got its blocks, and with them its future.
struct EngineAdmission {
  uint64_t id = 0;
  double time_ms = 0;
  uint32_t cached_blocks = 0;  // leading blocks that it reuses
  double ttft_ms = 0;          // from arrival to first token
  double finish_ms = 0;

  friend bool operator==(const EngineAdmission&, const EngineAdmission&) = default;
};

// What happened, in order; calls append.
struct EngineStep {
  std::vector<Event> events;
  std::vector<EngineAdmission> admitted;
};

class EngineModel {
 public:
  // As a time: until nothing is left to happen.
  static constexpr double kForever = std::numeric_limits<double>::infinity();

  explicit EngineModel(const EngineOptions& options);

  // A request arrives. A time in the past means now.
  EngineArrival Submit(double time_ms, EngineRequest request, EngineStep* step);

  // Everything up to and with `time_ms` happens.
  void AdvanceTo(double time_ms, EngineStep* step);

  // When something changes next that others can see: a step of prefill ends, or a request finishes.
  std::optional<double> NextEventMs() const;

  double now_ms() const { return now_ms_; }
  const EngineOptions& options() const { return options_; }

  // As of `now_ms`.
  Load CurrentLoad() const;

  // The truth that promises are compared with: leading blocks that it would reuse of this prompt
  // (`ReuseLimit`).
  uint32_t Reusable(std::span<const SequenceHash> sequence, uint32_t prompt_tokens) const;
  // Leading blocks that it could reuse if more tokens followed.
  uint32_t CachedPrefix(std::span<const SequenceHash> sequence) const {
    return cache_.Reusable(sequence, static_cast<uint32_t>(sequence.size()));
  }
  std::vector<SequenceHash> Contents(SideClass side = 0) const { return cache_.Contents(side); }

 private:
  struct Waiting {
    double arrival_ms = 0;
    uint64_t to_prefill = 0;  // blocks that were not cached on arrival
    EngineRequest request;
  };
  struct Prefill {
    double start_ms = 0;
    double end_ms = 0;
    double step_ms = 0;
    uint32_t blocks = 0;
  };

  void AdmitWaiting(EngineStep* step);
  void Admit(const Waiting& waiting, EngineStep* step);
  void Finish();
  uint64_t BlocksLeft(const Prefill& prefill) const;

  const EngineOptions options_;
  EngineCache cache_;
  double now_ms_ = 0;
  std::deque<Waiting> waiting_;
  uint64_t waiting_prefill_blocks_ = 0;  // of `waiting_`, as of their arrivals
  std::deque<Prefill> prefills_;         // not ended by `now_ms_`, in order
  double prefill_free_ms_ = 0;           // when the last of them ends
  // Running requests by (finish, order of admission).
  std::map<std::pair<double, uint64_t>, EngineCache::Holding> running_;
  uint64_t admissions_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_MOCK_ENGINE_ENGINE_MODEL_H_
