// The lines that a fleet of engines says: one per change, and again what is still wrong. Each
// engine has one condition at a time (`ConditionOf`), identified by a key; a line is written when
// the key changes, or every `repeat_every` while it is wrong. Events in between (a restart,
// refusals) have lines of their own.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "frontend/serve/engine_fleet_state.h"
#include "frontend/serve/engine_status_text.h"
#include "indexer/kv_events/engine_event.h"

namespace kvatlas {
namespace {

// Any block, in any tier.
bool HoldsBlocks(const EngineEntry& entry) {
  return std::any_of(entry.worker.ranks.begin(), entry.worker.ranks.end(),
                     [](const EngineRankStats& rank) {
                       return std::any_of(rank.blocks.begin(), rank.blocks.end(),
                                          [](uint64_t n) { return n > 0; });
                     });
}

// Why a stream is not connected, without its endpoint; empty: not known.
std::string WhyNot(const EngineListener& listener) {
  const std::string& reason = listener.stream.connection.reason;
  const std::string before = listener.endpoint + ": ";
  if (reason.starts_with(before)) return reason.substr(before.size());
  return reason.empty() ? listener.stream.last_error : reason;
}

}  // namespace

// Padded, so that the lines of several engines align.
std::string EngineFleet::State::Head(const Engine& engine) const {
  std::string name = engine.spec.name;
  name.resize(std::max<size_t>(name.size(), 20), ' ');
  return "engine " + name + "  ";
}

// REQUIRES: `facts`.
std::string EngineFleet::State::About(const Engine& engine) const {
  const EngineFacts& facts = *engine.facts;
  std::string text = absl::StrCat(facts.Title(), ", model ", facts.models.front().id);
  if (facts.models.size() > 1) absl::StrAppend(&text, " and ", facts.models.size() - 1, " more");
  absl::StrAppend(&text, ", ", Plural(engine.ranks.size(), "rank"));
  if (!engine.tokenizer.empty()) absl::StrAppend(&text, ", tokens by ", engine.tokenizer);
  return text;
}

// The size that is said is the engine's own after it was started again with another one: the leaf
// has the old size until the first block of the new one is announced.
std::string EngineFleet::State::Blocks(const Engine& engine, const EngineEntry& entry) const {
  if (entry.block_size == 0 || entry.block_size == kBlockSizeAuto) return "no block announced yet";
  const uint32_t now = engine.facts->block_size, before = engine.said_block_size;
  const bool changed = now != 0 && before != 0 && now != before;
  return absl::StrCat("blocks of ", changed ? now : entry.block_size, " tokens");
}

EngineFleet::State::Condition EngineFleet::State::Unreachable(const Engine& engine) const {
  const bool was = engine.facts.has_value();
  return {.key = "unreachable " + std::string(engine.last.message()),
          .text =
              [was, &engine] {
                return absl::StrCat(was ? "gone" : "unreachable", ": ", engine.last.message(),
                                    "; requests go to other engines, and it is asked every second");
              },
          .wrong = true};
}

// In this order: not answering; without events as told; a clash of endpoints; all streams
// connected; not connected yet (no line within `events_within`); no events, with what the engine
// needs. Texts are functions: they are made only when the line is written. They refer to `engine`,
// and are called before the lock is let go.
EngineFleet::State::Condition EngineFleet::State::ConditionOf(Engine& engine,
                                                              const EngineEntry* entry) const {
  if (!engine.answers()) return Unreachable(engine);
  const std::string about = absl::StrCat(engine.revision, " ", engine.ranks.size());
  if (engine.spec.EventsOf(0).empty()) {
    return {.key = "none " + about, .text = [this, &engine] {
              return About(engine) +
                     "; no events, as told: requests go there by what was sent there before, and "
                     "by load";
            }};
  }
  if (!engine.clash.empty()) {
    return {
        .key = absl::StrCat("clash ", engine.clash, " ", about),
        .text =
            [this, &engine] {
              return absl::StrCat(
                  About(engine), ", its events would be at ", engine.ranks.begin()->second.endpoint,
                  ", where those of ", engine.clash,
                  " are: what one of them caches would count for both, so requests go there by "
                  "what was sent there before, and by load; give it ;events=ENDPOINT of its own");
            },
        .wrong = true};
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
  if (connected == engine.ranks.size()) {
    engine.events_at = Now();
    const std::string blocks = Blocks(engine, *entry);
    return {.key = absl::StrCat("events ", blocks, " ", about), .text = [this, &engine, blocks] {
              return absl::StrCat(About(engine), ", events from ",
                                  engine.ranks.begin()->second.endpoint, ", ", blocks);
            }};
  }
  if (Now() - engine.events_at < options.events_within) return {};
  const std::string endpoint = lost != nullptr ? lost->endpoint
                               : engine.spec.dials_in()
                                   ? engine.spec.EventsOf(engine.FirstRank())
                                   : engine.WantedRanks().begin()->second.endpoint;
  return {.key = absl::StrCat("no events ", endpoint, " ", about),
          .text =
              [this, &engine, lost, endpoint] {
                std::string why = lost == nullptr ? "" : WhyNot(*lost);
                if (!why.empty()) why = " (" + why + ")";
                return absl::StrCat(
                    About(engine), ", NO EVENTS at ", endpoint, why,
                    ": requests go there by what was sent there before, and by load; ",
                    EventsRemedy(engine.facts->kind, engine.spec));
              },
          .wrong = true};
}

// Any line counts as the last time something was said, so a repeated one comes no sooner after it.
void EngineFleet::State::Say(Engine* engine, bool wrong, const std::string& text) const {
  engine->said_at = Now();
  options.say(wrong, Head(*engine) + text);
}

void EngineFleet::State::SayCondition(Engine* engine, const EngineEntry* entry) const {
  const Condition now = ConditionOf(*engine, entry);
  if (now.key.empty()) return;
  const bool again = now.wrong && Now() - engine->said_at >= options.repeat_every;
  if (now.key == engine->condition && !again) return;
  engine->condition = now.key;
  Say(engine, now.wrong, now.text());
}

// Counters of the streams, compared with those of the last look. Refusals for the block size have
// two meanings: an engine that is alone with its model was restarted with another size, and begins
// anew; one beside others cannot be used with them and is routed to by load.
void EngineFleet::State::SayEvents(Engine* engine, const EngineEntry& entry) {
  uint64_t restarts = 0;
  for (const EngineListener& listener : entry.listeners) {
    restarts += listener.stream.tracker.restarts;
    engine->breaks.Look(listener.rank, listener.stream.connection, Now());
  }
  if (restarts > engine->restarts) {
    Say(engine, false, "restarted: what it had cached before is gone, and is in no answer");
    engine->namespace_at = Time(0);
    if (options.restarted) options.restarted(engine->spec.url);
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
      absl::StrCat("block size differs from that of the model's other engines, ", entry.block_size,
                   " (", entry.worker.last_refusal,
                   "): its cache is not used, requests go there by load alone; start it with "
                   "--block-size ",
                   entry.block_size));
}

// Prompts that were finished long enough ago for their blocks to be announced. Said only where the
// engine holds blocks, none of them under the prompt's namespace, and its stream has stood since;
// at most once in `repeat_every`.
void EngineFleet::State::SayNamespaces(const std::map<std::string, EngineEntry>& entries) {
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
    if (worker == nullptr || worker->HoldsNamespace(served.lora_name, served.cache_salt)) continue;
    said = Now();
    Say(engine->second.get(), true, NamespaceWords(served));
  }
}

bool EngineFleet::State::AloneWithModel(const Engine& engine) const {
  for (const auto& [url, other] : engines)
    if (other.get() != &engine && other->model == engine.model) return false;
  return true;
}

}  // namespace kvatlas
