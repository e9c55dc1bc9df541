// The state of an `EngineFleet`, for its own sources: `engine_fleet.cc` asks and registers engines,
// `engine_fleet_lines.cc` says what changed.

#ifndef KVATLAS_FRONTEND_SERVE_ENGINE_FLEET_STATE_H_
#define KVATLAS_FRONTEND_SERVE_ENGINE_FLEET_STATE_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "frontend/serve/engine_fleet.h"
#include "frontend/serve/stream_break.h"
#include "indexer/base/mutex.h"
#include "indexer/kv_events/kv_event_sources.h"

namespace kvatlas {

struct EngineFleet::State {
  // After so many questions in a row without an answer an engine is taken for gone.
  static constexpr uint32_t kMissesToGo = 2;

  struct Engine {
    explicit Engine(const EngineFleetOptions* of) : options(of) {}

    const EngineFleetOptions* const options;
    EngineSpec spec;
    // Written by the probe threads.
    bool probing = false;
    Time next_probe{0};
    uint64_t probes = 0;
    uint32_t misses = 0;  // in a row
    Time missed_at{0};    // the first of these
    absl::Status last;
    std::optional<EngineFacts> facts;  // of the last one that was answered
    std::string tokenizer;             // of its model, in words
    uint64_t revision = 0;             // grows when what `About` says does
    // Written by `Tick`.
    std::string model;     // as registered; empty: it is not
    KvEventSources ranks;  // registered, each with where it was listened to
    // As its metrics had it first since then; 0: they do not say. Not the leaf's, which of some
    // hybrid models is another one.
    uint32_t said_block_size = 0;
    std::string
        clash;  // the engine whose events are where this one's were to be, which is not registered; empty: none
    bool gone = false;
    Time events_at{0};  // when it was found, or its events were last connected
    uint64_t restarts = 0;
    uint64_t refused = 0;  // blocks of another size, when last looked
    StreamBreak breaks;    // of its events
    // When prompts of another cache salt or adapter were last told of; 0: not since it restarted.
    Time namespace_at{0};
    std::string condition;  // its key, as said last
    Time said_at{0};

    bool answers() const { return facts.has_value() && misses < kMissesToGo; }
    // An engine that does not say its ranks now has those that it had.
    KvEventSources WantedRanks() const;
    // As requests to it number its ranks: from 0.
    uint32_t FirstRank() const { return spec.first_rank.value_or(WantedRanks().begin()->first); }
    // As it says, by the deployment's ranks: it may count its own from 0.
    std::map<uint32_t, Load> Loads() const;
    // Where a rank's events are, as the list has it, else as the engine says. The endpoint is empty
    // where there are none.
    KvEventSource SourceOf(uint32_t rank) const;
  };

  // The condition of an engine. It is said when `key` changes, and again while it is wrong; only
  // then its text is made.
  struct Condition {
    std::string key;
    std::function<std::string()> text;
    bool wrong = false;
  };

  State(EngineFleetOptions given, EngineDirectory* of) : options(std::move(given)), directory(of) {}

  const EngineFleetOptions options;
  EngineDirectory* const directory;
  mutable Mutex mutex;
  CondVar due;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool news ABSL_GUARDED_BY(mutex) = false;                                       // for the view
  std::map<std::string, std::shared_ptr<Engine>> engines ABSL_GUARDED_BY(mutex);  // by url
  mutable Mutex view_mutex;  // inside of `mutex`
  std::shared_ptr<const EngineView> view ABSL_GUARDED_BY(view_mutex) =
      std::make_shared<EngineView>();
  std::vector<std::thread> threads;
  std::atomic<bool> streams_due{true};  // something was registered since
  Time streams_at{0};                   // of the thread of `Tick`

  Time Now() const { return options.clock->Now(); }

  // ---- Probes ----

  std::shared_ptr<Engine> NextDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Null: this ends.
  std::shared_ptr<Engine> WaitForDue();
  void Probe();

  // ---- Registration ----

  void Unregister(Engine* engine);
  absl::Status Register(Engine* engine) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // The name of another engine that is registered with events that this one would take for its own;
  // empty: none.
  std::string ClashOf(const Engine& engine) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // The ranks that a checkpoint brought back; another model, or a rank that the engine no longer
  // has, ends them all.
  std::set<uint32_t> Restored(const Engine& engine);
  void UnregisterRestored(const std::string& name,
                          const std::map<std::string, std::shared_ptr<Engine>>& now);
  // To the leaf, for its own answers and those of its cell.
  void TellLoads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Look(Engine* engine) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::shared_ptr<const EngineView> MakeView() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void TellConventions() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // ---- What is said ----

  std::string Head(const Engine& engine) const;
  std::string About(const Engine& engine) const;
  std::string Blocks(const Engine& engine, const EngineEntry& entry) const;
  Condition Unreachable(const Engine& engine) const;
  Condition ConditionOf(Engine& engine, const EngineEntry* entry) const;
  void Say(Engine* engine, bool wrong, const std::string& text) const;
  void SayCondition(Engine* engine, const EngineEntry* entry) const;
  // Says what happened to an engine's stream since it was last looked at.
  void SayEvents(Engine* engine, const EngineEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Says which engines announce none of the blocks that they cache under the adapter and salt of
  // the prompts they finished.
  void SayNamespaces(const std::map<std::string, EngineEntry>& entries)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool AloneWithModel(const Engine& engine) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_SERVE_ENGINE_FLEET_STATE_H_
