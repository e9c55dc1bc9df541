// /workers as text: an object per instance, with its listeners by rank. Dynamo's keys come first;
// state, reasons and, with ?detail=1, counters of streams and ranks are ours.

#include "indexer/compat/dynamo/http_workers.h"

#include <chrono>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "indexer/engine_directory/engine_state.h"
#include "indexer/kv_events/engine_registration.h"
#include "indexer/registry/explain_json.h"

namespace kvatlas {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Decodes a value of a URL's query as forms are: '+' is a blank, and a '%' without two hexadecimal
// digits stands for itself.
std::string FormDecode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 &&
        HexDigit(text[i + 2]) >= 0) {
      out.push_back(static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2])));
      i += 2;
    } else {
      out.push_back(text[i] == '+' ? ' ' : text[i]);
    }
  }
  return out;
}

void AppendStatus(ListenerStatus status, std::string* out) {
  AppendJsonText(ListenerStatusName(status), out);
}

// State and reason as `engine_state.h` derives them from status, connection and errors.
void AppendState(const EngineState& state, std::string* out) {
  *out += ",\"state\":";
  AppendJsonText(state.name, out);
  if (state.reason.empty()) return;
  *out += ",\"reason\":";
  AppendJsonText(state.reason, out);
}

// The replay endpoint, and how its connection is once it was asked.
void AppendReplay(const EngineListener& listener, std::string* out) {
  if (listener.replay_endpoint.empty()) return;
  *out += ",\"replay_endpoint\":";
  AppendJsonText(listener.replay_endpoint, out);
  if (!listener.stream.replay.has_value()) return;  // nothing was asked yet
  *out += ",\"replay_state\":";
  AppendJsonText(ConnectionStateName(listener.stream.replay->state), out);
  if (listener.stream.replay->reason.empty()) return;
  *out += ",\"replay_reason\":";
  AppendJsonText(listener.stream.replay->reason, out);
}

// Only with ?detail=1. `last_sequence` is null before the first batch.
void AppendStream(const ZmqStreamStats& stream, std::string* out) {
  const TrackerStats& tracker = stream.tracker;
  absl::StrAppend(out, ",\"connected\":", stream.connected ? "true" : "false", ",\"silent_ms\":",
                  std::chrono::duration_cast<std::chrono::milliseconds>(stream.silent).count(),
                  ",\"lag_ms\":", stream.lag_ms, ",\"bytes\":", stream.bytes);
  absl::StrAppend(
      out, ",\"bad_frames\":", stream.bad_frames, ",\"undecodable\":", stream.undecodable,
      ",\"last_sequence\":", tracker.last.has_value() ? std::to_string(*tracker.last) : "null",
      ",\"gaps\":", tracker.gaps, ",\"replayed\":", tracker.replayed,
      ",\"restarts\":", tracker.restarts);
}

// Twice by rank: "endpoints" is Dynamo's map, "listeners" has the same ranks with their state.
void AppendListeners(const EngineEntry& entry, bool detail, std::string* out) {
  *out += ",\"endpoints\":{";
  const char* comma = "";
  for (const EngineListener& listener : entry.listeners) {
    absl::StrAppend(out, comma, "\"", listener.rank, "\":");
    AppendJsonText(listener.endpoint, out);
    comma = ",";
  }
  *out += "},\"listeners\":{";
  comma = "";
  for (const EngineListener& listener : entry.listeners) {
    absl::StrAppend(out, comma, "\"", listener.rank, "\":{\"endpoint\":");
    AppendJsonText(listener.endpoint, out);
    *out += ",\"status\":";
    AppendStatus(listener.stream.status, out);
    AppendState(StateOf(entry, listener), out);
    AppendReplay(listener, out);
    if (!listener.stream.last_error.empty()) {
      *out += ",\"last_error\":";
      AppendJsonText(listener.stream.last_error, out);
    }
    if (detail) AppendStream(listener.stream, out);
    *out += '}';
    comma = ",";
  }
  *out += '}';
}

// Ranks with trust and blocks by tier, then refusals (only reasons that occurred) and totals of the
// worker.
void AppendRanks(const EngineWorkerStats& worker, std::string* out) {
  *out += ",\"ranks\":{";
  const char* comma = "";
  for (const EngineRankStats& rank : worker.ranks) {
    absl::StrAppend(out, comma, "\"", rank.rank, "\":{\"trust\":");
    AppendJsonText(TrustName(rank.trust), out);
    for (size_t tier = 0; tier < kTiers; ++tier) {
      const std::string_view name = TierName(static_cast<Tier>(tier));
      absl::StrAppend(out, ",\"", absl::string_view(name.data(), name.size()),
                      "_blocks\":", rank.blocks[tier]);
    }
    absl::StrAppend(out, ",\"parked\":", rank.parked, ",\"suspects\":", rank.suspects,
                    ",\"look_ahead\":", rank.eagle ? "true" : "false", "}");
    comma = ",";
  }
  *out += "},\"refused\":{";
  comma = "";
  for (size_t reason = 0; reason < kRefusals; ++reason) {
    if (worker.refused[reason] == 0) continue;
    *out += comma;
    AppendJsonText(RefusalName(static_cast<Refusal>(reason)), out);
    absl::StrAppend(out, ":", worker.refused[reason]);
    comma = ",";
  }
  absl::StrAppend(out, "},\"batches\":", worker.batches, ",\"events\":", worker.events,
                  ",\"blocks_stored\":", worker.blocks_stored,
                  ",\"blocks_removed\":", worker.blocks_removed);
}

}  // namespace

// A repeated parameter is refused in serde's words. `tenant_id` is known, so that it may not be
// repeated either, and has no effect.
std::string WorkersFilter::Read(std::string_view query) {
  std::optional<std::string> tenant;
  while (!query.empty()) {
    const size_t end = query.find('&');
    const std::string_view pair = query.substr(0, end);
    query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
    const size_t equals = pair.find('=');
    const std::string name = FormDecode(pair.substr(0, equals));
    std::optional<std::string>* field = name == "model_name"      ? &model
                                        : name == "routing_group" ? &group
                                        : name == "tenant_id"     ? &tenant
                                                                  : nullptr;
    if (field == nullptr) continue;
    if (field->has_value()) {
      return "Failed to deserialize query string: duplicate field `" + name + "`";
    }
    *field = equals == std::string_view::npos ? "" : FormDecode(pair.substr(equals + 1));
  }
  return "";
}

void AppendInstance(std::string_view instance, std::string* out) {
  if (IsInstanceNumber(instance)) {
    *out += instance;
  } else {
    AppendJsonText(instance, out);
  }
}

void AppendWorkers(const std::vector<EngineEntry>& entries, bool detail, std::string* out) {
  *out += '[';
  for (const EngineEntry& entry : entries) {
    if (out->back() != '[') *out += ',';
    *out += "{\"instance_id\":";
    AppendInstance(entry.instance, out);
    *out += ",\"source\":";
    AppendJsonText(entry.source, out);
    *out += ",\"status\":";
    AppendStatus(entry.status, out);
    AppendState(StateOf(entry), out);
    *out += ",\"model_name\":";
    AppendJsonText(entry.domain.model, out);
    *out += ",\"routing_group\":";
    AppendJsonText(GroupOf(entry.domain), out);
    absl::StrAppend(out, ",\"block_size\":", entry.block_size);
    AppendListeners(entry, detail, out);
    if (!entry.worker.last_refusal.empty()) {
      *out += ",\"last_refusal\":";
      AppendJsonText(entry.worker.last_refusal, out);
    }
    if (detail) AppendRanks(entry.worker, out);
    *out += '}';
  }
  *out += ']';
}

}  // namespace kvatlas
