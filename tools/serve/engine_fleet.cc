#include "tools/serve/engine_fleet.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/mutex.h"
#include "indexer/engines/engine_event.h"
#include "tools/serve/engine_words.h"
#include "tools/serve/stream_break.h"

namespace kvatlas {
namespace {

// After so many questions in a row without an answer an engine is taken for gone.
constexpr uint32_t kMissesToGo = 2;
constexpr Duration kAskAgainAfter = std::chrono::milliseconds(200);
constexpr Duration kLookAtStreamsEvery = std::chrono::milliseconds(500);

struct Engine {
  EngineSpec spec;
  // Of the probes.
  bool probing = false;
  Time next_probe{0};
  uint64_t probes = 0;
  uint32_t misses = 0;  // in a row
  absl::Status last;
  std::optional<EngineFacts> facts;  // of the last one that was answered
  std::string tokenizer;             // of its model, in words
  uint64_t revision = 0;             // grows when what `About` says does
  // Of `Tick`.
  std::string model;   // as registered; empty: it is not
  uint32_t ranks = 0;  // registered
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
  // What does not say its ranks, now, has those that it had.
  uint32_t WantedRanks() const {
    if (spec.ranks > 0) return spec.ranks;
    if (facts.has_value() && facts->ranks > 0) return facts->ranks;
    return std::max(1u, ranks);
  }
};

// What there is to say of an engine. It is said when `key` changes, and again while it is wrong; only then its text is made.
struct Condition {
  std::string key;
  std::function<std::string()> text;
  bool wrong = false;
};

// Whether both say the same of themselves, loads aside.
bool SaysTheSame(const EngineFacts& a, const EngineFacts& b) {
  return a.kind == b.kind && a.version == b.version && a.models == b.models && a.ranks == b.ranks;
}

bool HoldsBlocks(const EngineEntry& entry) {
  return std::any_of(entry.worker.ranks.begin(), entry.worker.ranks.end(),
                     [](const EngineRankStats& rank) {
                       return std::any_of(rank.blocks.begin(), rank.blocks.end(),
                                          [](uint64_t n) { return n > 0; });
                     });
}

std::string Plural(uint64_t count, const char* what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

}  // namespace

const EngineView::Engines* EngineView::EnginesOf(const std::string& model) const {
  const auto found = engines.find(model);
  return found == engines.end() ? nullptr : &found->second;
}

const std::string& EngineView::ModelOf(const std::string& model) const {
  const auto found = aliases.find(model);
  return found == aliases.end() ? model : found->second;
}

struct EngineFleet::State {
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

  std::shared_ptr<Engine> NextDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::shared_ptr<Engine> next;
    for (const auto& [url, engine] : engines) {
      if (engine->probing || engine->next_probe > Now()) continue;
      if (next == nullptr || engine->next_probe < next->next_probe) next = engine;
    }
    return next;
  }

  // Null: this ends.
  std::shared_ptr<Engine> WaitForDue() {
    MutexLock lock(&mutex);
    while (!stopping) {
      if (std::shared_ptr<Engine> engine = NextDue(); engine != nullptr) {
        engine->probing = true;
        return engine;
      }
      (void)due.WaitFor(&mutex, std::chrono::milliseconds(100));
    }
    return nullptr;
  }

  void Probe() {
    while (const std::shared_ptr<Engine> engine = WaitForDue()) {
      // Its spec never changes.
      absl::StatusOr<EngineFacts> facts = ProbeEngine(engine->spec.url, options.probe_timeout);
      // May read files for seconds, the first time that a model is seen.
      std::string tokenizer;
      if (facts.ok() && options.tokenizer) tokenizer = options.tokenizer(facts->models.front());
      MutexLock lock(&mutex);
      engine->probing = false;
      ++engine->probes;
      engine->last = facts.status();
      engine->misses = facts.ok() ? 0 : engine->misses + 1;
      // One miss is looked into at once.
      engine->next_probe = Now() + (engine->misses == 1 ? kAskAgainAfter : options.probe_every);
      if (facts.ok()) {
        const bool same = engine->facts.has_value() && SaysTheSame(*engine->facts, *facts) &&
                          engine->tokenizer == tokenizer;
        engine->revision += same ? 0 : 1;
        engine->facts = *std::move(facts);
        engine->tokenizer = std::move(tokenizer);
      }
      news = true;
    }
  }

  // ---- Registration ----

  void Unregister(Engine* engine) {
    if (engine->model.empty()) return;
    (void)directory->Unregister(engine->spec.name, engine->model, std::nullopt, std::nullopt);
    engine->model.clear();
    engine->ranks = 0;
    engine->namespace_at = Time(0);
  }

  absl::Status Register(Engine* engine) {
    const std::string& model = engine->facts->models.front().id;
    const uint32_t ranks = engine->WantedRanks();
    engine->model = model;
    engine->ranks = ranks;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      EngineRegistration registration;
      registration.instance = engine->spec.name;
      registration.model = model;
      registration.rank = rank;
      registration.block_size = kBlockSizeAuto;
      registration.endpoint = engine->spec.EventsOf(rank);
      registration.replay_endpoint = engine->spec.ReplayOf(rank);
      registration.topic = engine->spec.topic;
      registration.server_key = engine->spec.server_key;
      registration.from_flags = true;
      registration.url = engine->spec.url;
      registration.engine_type = engine->facts->kind;
      registration.hybrid = engine->spec.hybrid || engine->facts->hybrid;
      registration.window_tokens = engine->spec.window_tokens;
      registration.chunk_tokens = engine->spec.chunk_tokens;
      registration.eagle_drop = engine->spec.eagle_drop;
      if (registration.endpoint.empty()) continue;
      if (absl::Status bad = directory->Register(registration); !bad.ok()) return bad;
    }
    return absl::OkStatus();
  }

  // To the leaf, for its own answers and those of its cell.
  void TellLoads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (const auto& [url, engine] : engines) {
      if (!engine->answers()) continue;
      for (const auto& [rank, load] : engine->facts->loads)
        directory->SetLoad(engine->spec.name, rank, load);
    }
  }

  // ---- What is said ----

  std::string Head(const Engine& engine) const {
    std::string name = engine.spec.name;
    name.resize(std::max<size_t>(name.size(), 20), ' ');
    return "engine " + name + "  ";
  }

  std::string About(const Engine& engine) const {
    const EngineFacts& facts = *engine.facts;
    std::string text = absl::StrCat(facts.Title(), ", model ", facts.models.front().id);
    if (facts.models.size() > 1) absl::StrAppend(&text, " and ", facts.models.size() - 1, " more");
    absl::StrAppend(&text, ", ", Plural(engine.ranks, "rank"));
    if (!engine.tokenizer.empty()) absl::StrAppend(&text, ", tokens by ", engine.tokenizer);
    return text;
  }

  Condition Unreachable(const Engine& engine) const {
    const bool was = engine.facts.has_value();
    return {.key = "unreachable " + std::string(engine.last.message()),
            .text =
                [was, &engine] {
                  return absl::StrCat(
                      was ? "gone" : "unreachable", ": ", engine.last.message(),
                      "; requests go to other engines, and it is asked every second");
                },
            .wrong = true};
  }

  Condition ConditionOf(Engine& engine, const EngineEntry* entry) const {
    if (!engine.answers()) return Unreachable(engine);
    const std::string about = absl::StrCat(engine.revision, " ", engine.ranks);
    if (engine.spec.EventsOf(0).empty()) {
      return {.key = "none " + about, .text = [this, &engine] {
                return About(engine) + "; no events, as told: requests go there by load alone";
              }};
    }
    uint32_t connected = 0;
    const EngineListener* lost = nullptr;
    if (entry != nullptr) {
      for (const EngineListener& listener : entry->listeners) {
        if (listener.stream.connected) {
          ++connected;
        } else {
          lost = &listener;
        }
      }
    }
    if (connected == engine.ranks) {
      engine.events_at = Now();
      const bool known = entry->block_size != 0 && entry->block_size != kBlockSizeAuto;
      return {
          .key = absl::StrCat("events ", known, " ", about), .text = [this, &engine, entry, known] {
            return absl::StrCat(About(engine), ", events from ", engine.spec.EventsOf(0),
                                known ? absl::StrCat(", blocks of ", entry->block_size, " tokens")
                                      : ", no block announced yet");
          }};
    }
    if (Now() - engine.events_at < options.events_within) return {};
    const std::string endpoint = lost == nullptr ? engine.spec.EventsOf(0) : lost->endpoint;
    return {.key = absl::StrCat("no events ", endpoint, " ", about),
            .text =
                [this, &engine, lost, endpoint] {
                  const std::string why = lost == nullptr || lost->stream.last_error.empty()
                                              ? ""
                                              : " (" + lost->stream.last_error + ")";
                  return absl::StrCat(About(engine), ", NO EVENTS at ", endpoint, why,
                                      ": requests go there by load alone; ",
                                      EventsRemedy(engine.facts->kind, engine.spec));
                },
            .wrong = true};
  }

  void Say(Engine* engine, bool wrong, const std::string& text) const {
    engine->said_at = Now();
    options.say(wrong, Head(*engine) + text);
  }

  void SayCondition(Engine* engine, const EngineEntry* entry) const {
    const Condition now = ConditionOf(*engine, entry);
    if (now.key.empty()) return;
    const bool again = now.wrong && Now() - engine->said_at >= options.repeat_every;
    if (now.key == engine->condition && !again) return;
    engine->condition = now.key;
    Say(engine, now.wrong, now.text());
  }

  // What happened to an engine's stream since it was last looked at.
  void SayEvents(Engine* engine, const EngineEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    uint64_t restarts = 0;
    for (const EngineListener& listener : entry.listeners) {
      restarts += listener.stream.tracker.restarts;
      engine->breaks.Look(listener.rank, listener.stream.connection, Now());
    }
    if (restarts > engine->restarts) {
      Say(engine, false, "restarted: what it had cached before is gone, and is in no answer");
      engine->namespace_at = Time(0);
    }
    engine->restarts = restarts;
    const uint64_t refused = entry.worker.refused[static_cast<size_t>(Refusal::kBlockSize)];
    if (refused == engine->refused) return;
    const bool more = refused > engine->refused;
    engine->refused = refused;
    if (!more) return;
    if (AloneWithModel(*engine)) {
      Say(engine, false,
          absl::StrCat("has another block size than before (", entry.worker.last_refusal,
                       "): its index begins anew"));
      Unregister(engine);
      engine->refused = 0;
      engine->restarts = 0;
      return;
    }
    if (engine->condition.rfind("block size", 0) == 0) return;
    engine->condition = "block size";
    Say(engine, true,
        absl::StrCat("block size differs from that of the model's other engines, ",
                     entry.block_size, " (", entry.worker.last_refusal,
                     "): its cache is not used, requests go there by load alone; start it with "
                     "--block-size ",
                     entry.block_size));
  }

  // What an engine caches of a prompt it announces under the prompt's adapter and salt.
  void SayNamespaces(const std::map<std::string, EngineEntry>& entries)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (!options.served) return;
    for (const ServedNamespace& served : options.served(Now() - options.blocks_within)) {
      const auto entry = entries.find(served.worker);
      if (entry == entries.end() || !HoldsBlocks(entry->second)) continue;
      if (served.prompt_tokens < entry->second.block_size) continue;  // no whole block
      const auto engine = std::find_if(engines.begin(), engines.end(), [&](const auto& of) {
        return of.second->spec.name == served.worker;
      });
      if (engine == engines.end() || served.at < engine->second->breaks.last()) continue;
      Time& said = engine->second->namespace_at;
      if (said != Time(0) && Now() - said < options.repeat_every) continue;
      const std::shared_ptr<const EngineWorker> worker = directory->WorkerOf(served.worker);
      if (worker == nullptr || worker->HoldsNamespace(served.lora_name, served.cache_salt))
        continue;
      said = Now();
      Say(engine->second.get(), true, NamespaceWords(served));
    }
  }

  bool AloneWithModel(const Engine& engine) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (const auto& [url, other] : engines)
      if (other.get() != &engine && other->model == engine.model) return false;
    return true;
  }

  void Look(Engine* engine) {
    if (!engine->answers()) {
      engine->gone = engine->facts.has_value();
      return;
    }
    if (std::exchange(engine->gone, false)) {
      engine->events_at = Now();
      Say(engine, false, "answers again");
    }
    const std::string& model = engine->facts->models.front().id;
    if (engine->model == model && engine->ranks == engine->WantedRanks()) return;
    if (!engine->model.empty()) {
      Say(engine, false,
          engine->model != model ? "serves " + model + " now, no longer " + engine->model
                                 : absl::StrCat("has ", Plural(engine->WantedRanks(), "rank"),
                                                " now, no longer ", engine->ranks));
      Unregister(engine);
    }
    engine->events_at = Now();
    engine->condition.clear();
    const absl::Status bad = Register(engine);
    streams_due = true;
    if (!bad.ok()) Say(engine, true, absl::StrCat("its events cannot be read: ", bad.message()));
  }

  std::shared_ptr<const EngineView> MakeView() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    auto made = std::make_shared<EngineView>();
    const bool any = std::any_of(engines.begin(), engines.end(),
                                 [](const auto& e) { return e.second->answers(); });
    for (const auto& [url, engine] : engines) {
      if (!engine->facts.has_value() || (any && !engine->answers())) continue;
      const std::string& own = engine->facts->models.front().id;
      for (const ServedModel& model : engine->facts->models) {
        if (model.parent.empty() && model.id != own) {
          made->aliases.emplace(model.id, own);
          continue;
        }
        if (!model.parent.empty()) {
          EngineView::Adapter& adapter = made->adapters[model.id];
          adapter.base = own;
          adapter.engines.push_back(engine->spec.name);
        }
        EngineView::Engines& of = made->engines[model.id];
        of.emplace(engine->spec.name,
                   EngineView::Engine{
                       .index = of.size(), .url = engine->spec.url, .loads = engine->facts->loads});
      }
    }
    return made;
  }
};

EngineFleet::EngineFleet(EngineFleetOptions options, EngineDirectory* directory)
    : state_(std::make_unique<State>(std::move(options), directory)) {
  for (uint32_t i = 0; i < state_->options.probe_threads; ++i)
    state_->threads.emplace_back([state = state_.get()] { state->Probe(); });
}

EngineFleet::~EngineFleet() {
  {
    MutexLock lock(&state_->mutex);
    state_->stopping = true;
    state_->due.SignalAll();
  }
  for (std::thread& thread : state_->threads) thread.join();
}

void EngineFleet::SetEngines(const std::vector<EngineSpec>& specs) {
  MutexLock lock(&state_->mutex);
  std::map<std::string, std::shared_ptr<Engine>> now;
  for (const EngineSpec& spec : specs) {
    const auto old = state_->engines.find(spec.url);
    if (old != state_->engines.end() && old->second->spec == spec) {
      now.emplace(spec.url, old->second);
      continue;
    }
    auto engine = std::make_shared<Engine>();
    engine->spec = spec;
    now.emplace(spec.url, std::move(engine));
  }
  for (const auto& [url, engine] : state_->engines) {
    const auto kept = now.find(url);
    if (kept != now.end() && kept->second == engine) continue;
    state_->Unregister(engine.get());
    if (kept == now.end()) state_->Say(engine.get(), false, "is no longer in the list");
  }
  state_->engines = std::move(now);
  state_->news = true;
  state_->due.SignalAll();
}

void EngineFleet::Tick() {
  // What engines' streams say is the costly part, and changes seldom.
  std::map<std::string, EngineEntry> entries;
  const bool look = state_->streams_due.exchange(false) || state_->Now() >= state_->streams_at;
  if (look) {
    state_->streams_at = state_->Now() + kLookAtStreamsEvery;
    for (EngineEntry& entry : state_->directory->List()) {
      const std::string name = entry.instance;
      entries.emplace(name, std::move(entry));
    }
  }
  MutexLock lock(&state_->mutex);
  for (const auto& [url, engine] : state_->engines) {
    state_->Look(engine.get());
    if (engine->probes == 0 || !look) continue;
    const auto entry = entries.find(engine->spec.name);
    const bool listed = entry != entries.end() && entry->second.domain.model == engine->model;
    if (listed) state_->SayEvents(engine.get(), entry->second);
    state_->SayCondition(engine.get(), listed ? &entry->second : nullptr);
  }
  if (look) state_->SayNamespaces(entries);
  if (!state_->news) return;
  state_->news = false;
  state_->TellLoads();
  std::shared_ptr<const EngineView> view = state_->MakeView();
  MutexLock view_lock(&state_->view_mutex);
  state_->view = std::move(view);
}

std::shared_ptr<const EngineView> EngineFleet::View() const {
  MutexLock lock(&state_->view_mutex);
  return state_->view;
}

std::map<std::string, std::string> EngineFleet::Urls() const {
  MutexLock lock(&state_->mutex);
  std::map<std::string, std::string> all, answering;
  for (const auto& [url, engine] : state_->engines) {
    all.emplace(engine->spec.name, url);
    if (engine->answers()) answering.emplace(engine->spec.name, url);
  }
  return answering.empty() ? all : answering;
}

size_t EngineFleet::answering() const {
  MutexLock lock(&state_->mutex);
  return static_cast<size_t>(std::count_if(state_->engines.begin(), state_->engines.end(),
                                           [](const auto& e) { return e.second->answers(); }));
}

size_t EngineFleet::size() const {
  MutexLock lock(&state_->mutex);
  return state_->engines.size();
}

bool EngineFleet::all_asked() const {
  MutexLock lock(&state_->mutex);
  return std::all_of(state_->engines.begin(), state_->engines.end(),
                     [](const auto& e) { return e.second->probes > 0; });
}

}  // namespace kvatlas
