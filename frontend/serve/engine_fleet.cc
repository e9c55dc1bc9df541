// Asking engines (`Probe`, in threads) and registering them (`Tick` → `Look` → `Register`). The two
// meet in `State::Engine` under `mutex`: probes write facts, `Tick` compares them with what is
// registered. The lines for people are in engine_fleet_lines.cc.

#include "frontend/serve/engine_fleet.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "frontend/engine_client/engine_call.h"
#include "frontend/engine_client/engine_reach.h"
#include "frontend/serve/engine_fleet_state.h"
#include "frontend/serve/engine_status_text.h"
#include "indexer/base/mutex.h"
#include "indexer/kv_events/kv_event_sources.h"

namespace kvatlas {
namespace {

constexpr Duration kAskAgainAfter = std::chrono::milliseconds(200);
constexpr Duration kLookAtStreamsEvery = std::chrono::milliseconds(500);

// Whether both answers describe the same engine, loads aside: only a difference makes a new line.
bool SaysTheSame(const EngineFacts& a, const EngineFacts& b) {
  return a.kind == b.kind && a.version == b.version && a.models == b.models && a.ranks == b.ranks;
}

// Whether a listener that a checkpoint brought back may be one of the list's. Where the list does
// not say the port, the engine does, on the same host.
bool IsAt(const std::string& listed, bool is_said, const std::string& endpoint) {
  if (is_said || listed == endpoint) return listed == endpoint;
  return endpoint.empty() ||
         (!PortOfEndpoint(endpoint).empty() &&
          endpoint.substr(0, endpoint.rfind(':')) == listed.substr(0, listed.rfind(':')));
}

// Whether the list would give the engine this rank.
bool HasRank(const EngineSpec& spec, const EngineEntry& entry, uint32_t rank) {
  const uint32_t first = spec.first_rank.value_or(entry.first_rank);
  if (first != entry.first_rank || rank < first) return false;
  return spec.ranks == 0 || rank - first < spec.ranks;
}

}  // namespace

const EngineView::Engines* EngineView::EnginesOf(const std::string& model) const {
  const auto found = engines.find(model);
  return found == engines.end() ? nullptr : &found->second;
}

// Adapters stay what they are: their blocks are under their own names, in the domain that the leaf
// has for them.
const std::string& EngineView::ModelOf(const std::string& model) const {
  const auto found = names.find(model);
  return found == names.end() || found->second.adapter ? model : found->second.model;
}

// Every option of the list that changes how events are read must agree; a stream that differs in
// one is not taken over from a checkpoint.
NamedByFlags NamedBy(std::vector<EngineSpec> specs) {
  return [specs = std::move(specs)](const EngineEntry& entry, const EngineListener& listener) {
    return std::any_of(specs.begin(), specs.end(), [&](const EngineSpec& spec) {
      return spec.name == entry.instance && HasRank(spec, entry, listener.rank) &&
             IsAt(spec.EventsOf(listener.rank), spec.has_events, listener.endpoint) &&
             IsAt(spec.ReplayOf(listener.rank), spec.has_replay || spec.has_events,
                  listener.replay_endpoint) &&
             (spec.topic.empty() || spec.topic == listener.topic) &&
             spec.server_key == listener.server_key && (!spec.hybrid || entry.hybrid) &&
             spec.window_tokens == entry.window_tokens && spec.chunk_tokens == entry.chunk_tokens &&
             spec.offload_chunk_tokens == entry.offload_chunk_tokens &&
             spec.silent_tiers == entry.silent_tiers && spec.silent_blocks == entry.silent_blocks &&
             spec.silent_seconds == entry.silent_seconds &&
             spec.counts_copies == entry.counts_copies && spec.store == entry.store &&
             spec.store_tiers == entry.store_tiers && spec.eagle_drop == entry.eagle_drop;
    });
  };
}

// ---- Probes ----

// The engine that is due longest, and not being asked.
std::shared_ptr<EngineFleet::State::Engine> EngineFleet::State::NextDue() {
  std::shared_ptr<Engine> next;
  for (const auto& [url, engine] : engines) {
    if (engine->probing || engine->next_probe > Now()) continue;
    if (next == nullptr || engine->next_probe < next->next_probe) next = engine;
  }
  return next;
}

// `probing` is set under the same lock, so no engine is asked by two threads. The wait is short
// because what is due changes with time alone.
std::shared_ptr<EngineFleet::State::Engine> EngineFleet::State::WaitForDue() {
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

// A probe thread: takes an engine that is due, asks it without the lock, and puts the answer in. An
// engine that was taken off the list meanwhile is kept by the pointer, and its answer is lost with
// it.
void EngineFleet::State::Probe() {
  while (const std::shared_ptr<Engine> engine = WaitForDue()) {
    // Its spec never changes.
    const std::string& url = engine->spec.url;
    std::optional<EngineFacts> before;
    {
      MutexLock lock(&mutex);
      before = engine->facts;
    }
    absl::StatusOr<EngineFacts> facts =
        ProbeEngine(url, options.probe_timeout,
                    options.authorization ? options.authorization(url) : std::string(),
                    before.has_value() ? &*before : nullptr);
    // May read files for seconds, the first time that a model is seen.
    std::string tokenizer;
    if (facts.ok() && options.tokenizer) tokenizer = options.tokenizer(facts->models.front());
    MutexLock lock(&mutex);
    engine->probing = false;
    ++engine->probes;
    engine->last = facts.status();
    engine->misses = facts.ok() ? 0 : engine->misses + 1;
    if (engine->misses == 1) engine->missed_at = Now();
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

// Where a rank publishes, by the first that says it:
//   1. An engine that dials in: the shared socket, once its topic was seen there.
//   2. The list, if it names the endpoint.
//   3. The engine itself, on the host of its url: the address it says may be a wildcard.
//   4. The default port of the list.
KvEventSource EngineFleet::State::Engine::SourceOf(uint32_t rank) const {
  if (spec.dials_in()) {
    const std::optional<std::string> topic =
        options->dialed ? options->dialed(spec.EventsOf(rank), spec.pods()) : std::nullopt;
    if (!topic.has_value()) return {};
    return {.endpoint = spec.EventsOf(rank), .replay_endpoint = "", .topic = *topic};
  }
  KvEventSource source = {
      .endpoint = spec.EventsOf(rank), .replay_endpoint = spec.ReplayOf(rank), .topic = spec.topic};
  if (spec.has_events || !facts.has_value() || !facts->kv_sources.has_value()) return source;
  const auto said = facts->kv_sources->find(rank);
  const absl::StatusOr<EngineUrl> url = EngineUrl::Parse(spec.url);
  if (said == facts->kv_sources->end() || !url.ok()) return source;
  const std::string endpoint = EndpointAt(url->host, said->second.endpoint);
  if (endpoint.empty()) return source;
  source.endpoint = endpoint;
  if (!spec.has_replay)
    source.replay_endpoint = EndpointAt(url->host, said->second.replay_endpoint);
  if (spec.topic.empty()) source.topic = said->second.topic;
  return source;
}

// The ranks that are to be heard, never none: as many as the list says, where it does; else those
// that the engine says; else those that it had.
KvEventSources EngineFleet::State::Engine::WantedRanks() const {
  std::set<uint32_t> wanted = facts.has_value() ? facts->ranks : std::set<uint32_t>();
  if (wanted.empty())
    for (const auto& [rank, source] : ranks) wanted.insert(rank);
  const uint32_t first = spec.first_rank.value_or(wanted.empty() ? 0 : *wanted.begin());
  if (spec.ranks > 0) wanted.clear();
  // Where the engine names others they begin elsewhere than the list says.
  if (wanted.empty() || *wanted.begin() < first) {
    wanted.clear();
    for (uint32_t i = 0; i < std::max(1u, spec.ranks); ++i) wanted.insert(first + i);
  }
  KvEventSources sources;
  for (const uint32_t rank : wanted) sources.emplace(rank, SourceOf(rank));
  return sources;
}

// REQUIRES: `facts`. Metrics that count from 0 are moved to the deployment's numbers.
std::map<uint32_t, Load> EngineFleet::State::Engine::Loads() const {
  const uint32_t first = FirstRank();
  if (facts->loads.empty() || facts->loads.begin()->first >= first) return facts->loads;
  std::map<uint32_t, Load> loads;
  for (const auto& [rank, load] : facts->loads) loads.emplace(first + rank, load);
  return loads;
}

// The directory forgets the engine's blocks with its registration.
void EngineFleet::State::Unregister(Engine* engine) {
  if (engine->model.empty()) return;
  (void)directory->Unregister(engine->spec.name, engine->model, std::nullopt, std::nullopt);
  engine->model.clear();
  engine->ranks.clear();
  engine->said_block_size = 0;
  engine->namespace_at = Time(0);
}

// An engine that a checkpoint brought back and that never answered is known to the directory alone.
void EngineFleet::State::UnregisterRestored(
    const std::string& name, const std::map<std::string, std::shared_ptr<Engine>>& now) {
  for (const auto& [url, engine] : now)
    if (engine->spec.name == name) return;  // `Restored` looks at it
  if (const std::optional<EngineEntry> entry = directory->Find(name); entry.has_value())
    (void)directory->Unregister(name, entry->domain.model, std::nullopt, std::nullopt);
}

// Whether what a checkpoint brought back can go on: the same model, ranks, endpoints and options.
// Then these ranks are not registered again, so that their blocks stay. Otherwise all of it is
// unregistered.
std::set<uint32_t> EngineFleet::State::Restored(const Engine& engine) {
  const std::optional<EngineEntry> entry = directory->Find(engine.spec.name);
  if (!entry.has_value()) return {};
  std::set<uint32_t> ranks;
  // The list may have changed since the checkpoint was restored.
  const NamedByFlags named = NamedBy({engine.spec});
  const KvEventSources wanted = engine.WantedRanks();
  bool is_wanted = entry->domain.model == engine.facts->models.front().id &&
                   entry->first_rank == engine.FirstRank();
  for (const EngineListener& listener : entry->listeners) {
    ranks.insert(listener.rank);
    const auto rank = wanted.find(listener.rank);
    is_wanted = is_wanted && named(*entry, listener) && rank != wanted.end() &&
                rank->second == KvEventSource{.endpoint = listener.endpoint,
                                              .replay_endpoint = listener.replay_endpoint,
                                              .topic = listener.topic};
  }
  if (is_wanted) return ranks;
  (void)directory->Unregister(entry->instance, entry->domain.model, std::nullopt, std::nullopt);
  return {};
}

// Two engines heard at one endpoint would each have what the other caches. Topics separate them,
// unless one topic is a prefix of the other, since subscriptions match prefixes.
std::string EngineFleet::State::ClashOf(const Engine& engine) const {
  const auto meet = [](const KvEventSource& a, const KvEventSource& b) {
    return !a.endpoint.empty() && a.endpoint == b.endpoint &&
           (a.topic.starts_with(b.topic) || b.topic.starts_with(a.topic));
  };
  const KvEventSources wanted = engine.WantedRanks();
  for (const auto& [url, other] : engines) {
    if (other.get() == &engine || other->model.empty() || !other->clash.empty()) continue;
    for (const auto& [rank, theirs] : other->ranks)
      for (const auto& [number, ours] : wanted)
        if (meet(ours, theirs)) return other->spec.name;
  }
  return "";
}

// Registers each rank that has an endpoint and was not restored. An engine with a clash counts as
// registered without events: `Look` tries again when the clash is over.
absl::Status EngineFleet::State::Register(Engine* engine) {
  const std::string& model = engine->facts->models.front().id;
  engine->clash = ClashOf(*engine);
  const std::set<uint32_t> restored =
      engine->clash.empty() ? Restored(*engine) : std::set<uint32_t>();
  engine->ranks = engine->WantedRanks();
  engine->model = model;
  if (!engine->clash.empty()) return absl::OkStatus();
  for (const auto& [rank, source] : engine->ranks) {
    EngineRegistration registration;
    registration.instance = engine->spec.name;
    registration.model = model;
    registration.rank = rank;
    registration.block_size = kBlockSizeAuto;
    registration.endpoint = source.endpoint;
    registration.replay_endpoint = source.replay_endpoint;
    registration.topic = source.topic;
    registration.server_key = engine->spec.server_key;
    registration.bind = engine->spec.dials_in();
    registration.from_flags = true;
    registration.url = engine->spec.url;
    registration.first_rank = engine->FirstRank();
    registration.engine_type = engine->facts->kind;
    registration.hybrid = engine->spec.hybrid || engine->facts->hybrid;
    registration.window_tokens = engine->spec.window_tokens;
    registration.chunk_tokens = engine->spec.chunk_tokens;
    registration.offload_chunk_tokens = engine->spec.offload_chunk_tokens;
    registration.silent_tiers = engine->spec.silent_tiers;
    registration.silent_blocks = engine->spec.silent_blocks;
    registration.silent_seconds = engine->spec.silent_seconds;
    registration.counts_copies = engine->spec.counts_copies;
    registration.store = engine->spec.store;
    registration.store_tiers = engine->spec.store_tiers;
    registration.eagle_drop = engine->spec.eagle_drop;
    if (registration.endpoint.empty() || restored.contains(rank)) continue;
    if (absl::Status bad = directory->Register(registration); !bad.ok()) return bad;
  }
  return absl::OkStatus();
}

void EngineFleet::State::TellLoads() {
  for (const auto& [url, engine] : engines) {
    if (!engine->answers()) continue;
    for (const auto& [rank, load] : engine->Loads())
      directory->SetLoad(engine->spec.name, rank, load);
  }
}

// One engine, from `Tick`: says that it came back, and registers it anew when its model, its ranks
// or their endpoints changed, or when a clash is over. An engine that does not answer stays
// registered: it may come back with its blocks.
void EngineFleet::State::Look(Engine* engine) {
  if (!engine->answers()) {
    engine->gone = engine->facts.has_value();
    return;
  }
  if (std::exchange(engine->gone, false)) {
    engine->events_at = Now();
    Say(engine, false, "answers again");
  }
  if (engine->said_block_size == 0) engine->said_block_size = engine->facts->block_size;
  const std::string& model = engine->facts->models.front().id;
  const KvEventSources wanted = engine->WantedRanks();
  const bool is_same = engine->model == model && engine->ranks == wanted;
  if (is_same && (engine->clash.empty() || !ClashOf(*engine).empty())) return;
  if (!engine->model.empty() && !is_same) {
    Say(engine, false,
        engine->model != model ? "serves " + model + " now, no longer " + engine->model
        : engine->ranks.size() != wanted.size()
            ? absl::StrCat("has ", Plural(wanted.size(), "rank"), " now, no longer ",
                           engine->ranks.size())
        : engine->ranks.begin()->second.endpoint.empty()
            ? absl::StrCat("has dialed in at ", wanted.begin()->second.endpoint)
            : absl::StrCat("publishes its events at ", wanted.begin()->second.endpoint,
                           " now, no longer at ", engine->ranks.begin()->second.endpoint));
  }
  Unregister(engine);
  engine->events_at = Now();
  engine->said_block_size = engine->facts->block_size;
  engine->condition.clear();
  const absl::Status bad = Register(engine);
  streams_due = true;
  if (!bad.ok()) Say(engine, true, absl::StrCat("its events cannot be read: ", bad.message()));
}

// Engines that answer, or all of them if none does: then a request's own failure tells more than
// this could. `names` has adapters and further names; a name counts for the engines of one model
// only, the first that has it.
std::shared_ptr<const EngineView> EngineFleet::State::MakeView() const {
  auto made = std::make_shared<EngineView>();
  const bool any = std::any_of(engines.begin(), engines.end(),
                               [](const auto& e) { return e.second->answers(); });
  for (const auto& [url, engine] : engines) {
    if (!engine->facts.has_value() || (any && !engine->answers())) continue;
    const std::string& own = engine->facts->models.front().id;
    for (const ServedModel& model : engine->facts->models) {
      const bool adapter = !model.parent.empty();
      if (adapter || model.id != own) {
        ServedName& name = made->names[model.id];
        if (name.model.empty()) name = {.model = own, .adapter = adapter};
        if (name.model == own) name.workers.push_back(engine->spec.name);
      }
      if (!adapter && model.id != own) continue;
      EngineView::Engines& of = made->engines[model.id];
      of.emplace(engine->spec.name,
                 EngineView::Engine{
                     .index = of.size(), .url = engine->spec.url, .loads = engine->Loads()});
    }
  }
  // The own model of one engine is no further name of another's.
  std::erase_if(made->names, [&](const auto& named) {
    return !named.second.adapter && made->engines.contains(named.first);
  });
  return made;
}

// Also engines that do not answer at the moment: what they are does not change with that.
void EngineFleet::State::TellConventions() const {
  if (options.conventions == nullptr) return;
  std::vector<EngineConventions::Engine> told;
  for (const auto& [url, engine] : engines) {
    const absl::StatusOr<EngineUrl> parsed = EngineUrl::Parse(url);
    if (!engine->facts.has_value() || !parsed.ok()) continue;
    told.push_back({.model = engine->facts->models.front().id,
                    .authority = parsed->authority(),
                    .convention = ConventionOf(*engine->facts),
                    .takes_token_ids = TakesTokenIds(*engine->facts)});
  }
  options.conventions->Set(told);
}

EngineFleet::EngineFleet(EngineFleetOptions options, EngineDirectory* directory)
    : state_(std::make_unique<State>(std::move(options), directory)) {
  for (uint32_t i = 0; i < state_->options.probe_threads; ++i)
    state_->threads.emplace_back([state = state_.get()] { state->Probe(); });
}

// Waits for the probes under way, at most their timeouts.
EngineFleet::~EngineFleet() {
  {
    MutexLock lock(&state_->mutex);
    state_->stopping = true;
    state_->due.SignalAll();
  }
  for (std::thread& thread : state_->threads) thread.join();
}

// An entry that is the same keeps its `Engine` and all that is known; one that changed begins anew,
// after its old registration has ended.
void EngineFleet::SetEngines(const std::vector<EngineSpec>& specs) {
  MutexLock lock(&state_->mutex);
  std::map<std::string, std::shared_ptr<State::Engine>> now;
  for (const EngineSpec& spec : specs) {
    const auto old = state_->engines.find(spec.url);
    if (old != state_->engines.end() && old->second->spec == spec) {
      now.emplace(spec.url, old->second);
      continue;
    }
    auto engine = std::make_shared<State::Engine>(&state_->options);
    engine->spec = spec;
    now.emplace(spec.url, std::move(engine));
  }
  for (const auto& [url, engine] : state_->engines) {
    const auto kept = now.find(url);
    if (kept != now.end() && kept->second == engine) continue;
    state_->Unregister(engine.get());
    state_->UnregisterRestored(engine->spec.name, now);
    if (kept == now.end()) state_->Say(engine.get(), false, "is no longer in the list");
  }
  state_->engines = std::move(now);
  state_->news = true;
  state_->due.SignalAll();
}

// Takes what the probes found since the last call:
//   1. Twice a second the directory's list is copied, before the lock: it is the costly part.
//   2. Each engine is looked at, and lines are said.
//   3. If probes brought something new: loads, conventions and a new view. Readers of the view
//      never wait for `mutex`.
void EngineFleet::Tick() {
  // The states of engines' streams are the costly part, and change seldom.
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
  state_->TellConventions();
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

bool EngineFleet::Has(const std::string& name) const {
  MutexLock lock(&state_->mutex);
  return std::any_of(state_->engines.begin(), state_->engines.end(),
                     [&](const auto& e) { return e.second->spec.name == name; });
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

// False only once every engine has missed often enough to be taken for gone.
std::optional<bool> EngineFleet::ready() const {
  MutexLock lock(&state_->mutex);
  bool none_answers = true;
  for (const auto& [url, engine] : state_->engines) {
    if (engine->answers()) return true;
    none_answers = none_answers && engine->misses >= State::kMissesToGo;
  }
  return none_answers ? std::optional(false) : std::nullopt;
}

std::vector<UnreachableEngine> EngineFleet::Unreachable() const {
  MutexLock lock(&state_->mutex);
  std::vector<UnreachableEngine> unreachable;
  for (const auto& [url, engine] : state_->engines) {
    if (engine->answers() || engine->misses < State::kMissesToGo) continue;
    unreachable.push_back({.name = engine->spec.name,
                           .model = engine->model,
                           .since = engine->missed_at,
                           .why = std::string(engine->last.message())});
  }
  return unreachable;
}

bool EngineFleet::all_asked() const {
  MutexLock lock(&state_->mutex);
  return std::all_of(state_->engines.begin(), state_->engines.end(),
                     [](const auto& e) { return e.second->probes > 0; });
}

}  // namespace kvatlas
