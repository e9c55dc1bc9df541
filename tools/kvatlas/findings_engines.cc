// Engines: whether their events arrive, and whether they were started so that there are any. Events
// are judged by what the leaf says of the stream, starts by what the engine says over HTTP.

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/kvatlas/findings.h"
#include "tools/kvatlas/holdings.h"

namespace kvatlas {
namespace {

// The flag by which the engine was named.
std::string ListOf(bool in_serve) { return in_serve ? "--engine" : "--workers"; }

// The remedy for an engine whose blocks have another size than its domain's. `serve` learns the
// size itself, and has no flag for it.
std::string BlockSizeRemedy(bool in_serve) {
  const std::string restart =
      "start the engine with the domain's (vLLM --block-size, SGLang --page-size)";
  if (in_serve) return restart;
  return "register it with the block size that it has (--block_size=auto learns it), or " + restart;
}

// Reports blocks of another size than the domain's. True: the events said so, which explains their
// other troubles.
bool CheckBlockSize(const std::string& where, const v1::DomainStats& domain,
                    const v1::HolderStats& holder, bool in_serve, FindingList* findings) {
  const v1::EngineStats& engine = holder.engine();
  if (absl::StrContains(holder.reason(), "tokens, and the domain's") ||
      absl::StrContains(holder.reason(), "block size")) {
    findings->Error("block_size_mismatch", where, holder.reason(), BlockSizeRemedy(in_serve));
    return true;
  }
  if (const auto odd = engine.refused().find("block_size"); odd != engine.refused().end()) {
    const bool told = absl::StrContains(engine.last_refusal(), "block size");
    findings->Error(
        "block_size_mismatch", where,
        absl::StrCat(odd->second, " of its events have blocks of another size than ",
                     "the domain, and are left out", told ? ": " + engine.last_refusal() : ""),
        BlockSizeRemedy(in_serve));
    return true;
  }
  if (engine.block_size() != 0 && domain.block_size() != 0 &&
      engine.block_size() != domain.block_size()) {
    findings->Error("block_size_mismatch", where,
                    absl::StrCat("it is registered with ", engine.block_size(),
                                 " tokens a block, and its domain has ", domain.block_size()),
                    "register it with the domain's, or under a model's name of its own");
  }
  return false;  // of a registration alone too: its events may be missing as well
}

// Compares prompts that frontends sent to a worker with the events that followed. A prompt that was
// in cache whole confirms itself. Fewer than `kFew` prove nothing; half contradicted is too much.
void CheckConfirmed(const SurveyedNode& leaf, const v1::HolderStats& holder,
                    FindingList* findings) {
  constexpr uint64_t kFew = 50;
  const v1::PendingStats& pending = holder.pending();
  const uint64_t ended = pending.confirmed() + pending.contradicted();
  if (ended < kFew || pending.contradicted() * 2 < ended) return;
  findings->Warning(
      "prompts_unconfirmed",
      absl::StrCat("worker ", HolderText(holder.holder()), " of ", leaf.Name()),
      absl::StrCat("of ", ended, " prompts that frontends sent there and that ended well, ",
                   pending.contradicted(),
                   " were not followed by events with their blocks: its events come late, or the "
                   "engine computed other tokens or another salt than was hashed"),
      "kvatlas diagnose compares tokens and says where they part; kvatlas workers shows how old "
      "its last events are");
}

// An engine's own events, as its leaf hears them.
void CheckEvents(const SurveyedNode& leaf, const v1::DomainStats& domain,
                 const v1::HolderStats& holder, FindingList* findings) {
  const std::string where =
      absl::StrCat("worker ", HolderText(holder.holder()), " of ", leaf.Name());
  const std::string& state = holder.state();
  if (!CheckBlockSize(where, domain, holder, leaf.in_serve(), findings) &&
      (state == "unreachable" || state == "refused" || state == "failed")) {
    findings->Error("engine_stream", where,
                    absl::StrCat("its events are ", state, ": ", holder.reason()),
                    "start the engine with KV events on (vLLM, SGLang: --kv-events-config), or "
                    "mend its endpoint in " +
                        ListOf(leaf.in_serve()));
  }
  // A total, also where everything was repaired since.
  if (const uint64_t lost = holder.engine().messages_lost(); lost > 0) {
    findings->Warning("messages_lost", where,
                      absl::StrCat(lost, lost == 1 ? " message" : " messages",
                                   " of its engine never came, not even by replay; what they "
                                   "removed is no longer believed, what they stored not known"),
                      "give it a replay endpoint that reaches back far enough (buffer_steps and "
                      "hwm of the engine's --kv-events-config), and look for a network or a leaf "
                      "that is overloaded");
  }
  // "": the leaf does not say, or the engine was not asked for a replay yet.
  const std::string& replay = holder.engine().replay();
  if (replay == "none") {
    findings->Warning("engine_no_replay", where,
                      "it has no replay endpoint: after a lost message its blocks are dropped",
                      "set replay_endpoint in the engine's --kv-events-config, and "
                      "\";replay=tcp://HOST:PORT\" in " +
                          ListOf(leaf.in_serve()));
  } else if (replay == "unreachable" || replay == "refused") {
    findings->Warning(
        "engine_no_replay", where,
        absl::StrCat("its replay endpoint is ", replay, ": ", holder.engine().replay_reason()),
        "mend replay_endpoint of the engine, or \";replay=\" in " + ListOf(leaf.in_serve()));
  }
}

// How the engine was started, as far as it says: prefix caching, block size, KV events, the model's
// name. An SGLang that says 1 is not compared.
void CheckFlags(const SurveyedEngine& engine, const std::string& where, FindingList* findings) {
  const EngineFacts& facts = *engine.facts;
  const bool sglang = facts.kind == kSglang;
  if (facts.prefix_caching == false) {
    findings->Error("engine_no_cache", where, "prefix caching is off: nothing is ever reused",
                    sglang ? "start it without --disable-radix-cache"
                           : "start it with --enable-prefix-caching");
  }
  // Both sides have to know their size.
  if (facts.block_size != 0 && engine.block_size != 0 && facts.block_size != engine.block_size &&
      !(sglang && facts.block_size == 1)) {
    findings->Error(
        "block_size_mismatch", where,
        absl::StrCat("it has blocks of ", facts.block_size, " tokens, and the domain of ",
                     engine.block_size),
        sglang ? absl::StrCat("start it with --page-size ", engine.block_size)
               : absl::StrCat("start it with --block-size ", engine.block_size,
                              engine.in_serve ? "" : ", or register it with block_size=auto"));
  }
  // A worker may publish by another way, as by kvatlas' library: then the engine's own events are
  // not missed.
  if (facts.kv_events == false && engine.batches.value_or(0) == 0) {
    findings->Error("engine_no_events", where, "it publishes no KV events",
                    "start it with --kv-events-config '{\"publisher\": \"zmq\", \"endpoint\": "
                    "\"tcp://*:5557\", \"replay_endpoint\": \"tcp://*:5657\"}'");
  } else if (facts.kv_replay == false) {
    findings->Warning("engine_no_replay", where, "its KV events have no replay endpoint",
                      "add \"replay_endpoint\" to its --kv-events-config");
  }
  // vLLM does not say: prompts were computed, and nothing came of them. Before its first event its
  // own metrics tell its size.
  const uint32_t block_size = engine.block_size != 0 ? engine.block_size : facts.block_size;
  if (!facts.kv_events.has_value() && engine.batches == uint64_t{0} && block_size != 0 &&
      facts.prompt_tokens >= uint64_t{2} * block_size) {
    findings->Error("engine_no_events", where,
                    absl::StrCat("it has computed ", facts.prompt_tokens,
                                 " tokens of prompts, and no event of it came"),
                    "start it with --kv-events-config '{\"enable_kv_cache_events\": true, "
                    "\"publisher\": \"zmq\"}' and with prefix caching, and look at its endpoint "
                    "in " +
                        ListOf(engine.in_serve));
  }
  // An engine may serve several names; one of them has to be the registered one.
  const bool serves = std::any_of(facts.models.begin(), facts.models.end(),
                                  [&](const ServedModel& of) { return of.id == engine.model; });
  if (!engine.model.empty() && !facts.models.empty() && !serves) {
    findings->Warning("engine_model", where,
                      absl::StrCat("it serves ", facts.models.front().id,
                                   ", and is registered for ", engine.model),
                      absl::StrCat("register it with --model_name=", facts.models.front().id,
                                   ", or start it with --served-model-name ", engine.model));
  }
}

}  // namespace

void CheckEngines(const Survey& survey, FindingList* findings) {
  for (const SurveyedNode& node : survey.nodes)
    for (const v1::DomainStats& domain : node.stats.domains())
      for (const v1::HolderStats& holder : domain.holder_stats())
        if (holder.has_engine()) CheckEvents(node, domain, holder, findings);
  for (const SurveyedNode& node : survey.nodes) {
    if (node.role != ServiceRole::kLeaf) continue;
    for (const v1::DomainStats& domain : node.stats.domains())
      for (const v1::HolderStats& holder : domain.holder_stats())
        CheckConfirmed(node, holder, findings);
  }
  for (const SurveyedEngine& engine : survey.engines) {
    const std::string where =
        absl::StrCat("engine ", engine.url, " (", engine.of.empty() ? "" : engine.of.front(), ")");
    if (engine.facts.ok()) {
      CheckFlags(engine, where, findings);
    } else if (absl::IsPermissionDenied(engine.facts.status())) {
      findings->Warning("engine_asks_for_key", where,
                        "it was started with an API key (--api-key), which this command has not: "
                        "how it was started was not looked at",
                        "look at its command line for prefix caching and KV events, or give "
                        "--ignore=engine_asks_for_key");
    } else {
      findings->Error("engine_unreachable", where, std::string(engine.facts.status().message()),
                      engine.in_serve ? "start the engine, or mend its url in --engine"
                                      : "start the engine, or mend the url of its worker "
                                        "(\";url=\" in --workers, the label url of a publisher, "
                                        "--engines of the frontend)");
    }
  }
}

}  // namespace kvatlas
