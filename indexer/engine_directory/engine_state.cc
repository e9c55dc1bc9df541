// A state in one word, from the stream's status, its connection and what its ranks refuse, in this
// order.

#include "indexer/engine_directory/engine_state.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "indexer/net/connection_watch.h"

namespace kvatlas {
namespace {

// The most urgent first.
constexpr std::array<std::string_view, 7> kUrgency = {
    "failed", "refused", "unreachable", "starting", "connecting", "paused", "connected"};

ptrdiff_t UrgencyOf(const EngineState& state) {
  return std::find(kUrgency.begin(), kUrgency.end(), state.name) - kUrgency.begin();
}

// Why ranks of this stream take nothing; empty: they do.
std::string RefusalOf(const EngineEntry& entry, const EngineListener& listener) {
  for (const EngineRankStats& rank : entry.worker.ranks)
    if (rank.stream_rank == listener.rank && !rank.refused.empty()) return rank.refused;
  return "";
}

}  // namespace

EngineState StateOf(const EngineEntry& entry, const EngineListener& listener) {
  const ZmqStreamStats& stream = listener.stream;
  if (stream.status == ListenerStatus::kFailed) return {"failed", stream.last_error};
  if (stream.status == ListenerStatus::kPaused) return {"paused", ""};
  const ConnectionStatus& connection = stream.connection;
  if (connection.state != ConnectionState::kConnected)
    return {ConnectionStateName(connection.state), connection.reason};
  if (std::string refusal = RefusalOf(entry, listener); !refusal.empty())
    return {"refused", std::move(refusal)};
  if (stream.status == ListenerStatus::kPending) return {"starting", ""};
  return {"connected", ""};
}

EngineState StateOf(const EngineEntry& entry) {
  EngineState worst{kUrgency.back(), ""};
  for (const EngineListener& listener : entry.listeners) {
    EngineState state = StateOf(entry, listener);
    if (UrgencyOf(state) < UrgencyOf(worst)) worst = std::move(state);
  }
  return worst;
}

}  // namespace kvatlas
