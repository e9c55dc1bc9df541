// Copies what the directory knows of engines into the holders of a response, found by domain and
// instance. Holders that no engine of this leaf feeds stay as they are.

#include "indexer/engine_directory/engine_stats.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "indexer/base/domain.h"
#include "indexer/base/durations.h"
#include "indexer/engine_directory/engine_state.h"
#include "indexer/kv_events/engine_event.h"
#include "indexer/net/connection_watch.h"
#include "indexer/transport/holders_wire.h"

namespace kvatlas {
namespace {

// The listener of the stream that publishes the rank: its own, or another one whose batches named
// it.
const EngineListener* ListenerOf(const EngineEntry& entry, uint32_t rank) {
  uint32_t stream = rank;
  for (const EngineRankStats& stats : entry.worker.ranks)
    if (stats.rank == rank) stream = stats.stream_rank;
  for (const EngineListener& listener : entry.listeners)
    if (listener.rank == stream) return &listener;
  return nullptr;
}

// Counters are the instance's: all ranks of a worker share them.
void FillEngine(const EngineEntry& entry, v1::HolderStats* holder) {
  v1::EngineStats* engine = holder->mutable_engine();
  const EngineWorkerStats& worker = entry.worker;
  engine->set_block_size(entry.block_size);
  engine->set_lora_name(entry.lora_name);
  engine->set_salted(!entry.additional_salt.empty());
  engine->set_events(worker.events);
  engine->set_blocks_stored(worker.blocks_stored);
  engine->set_blocks_removed(worker.blocks_removed);
  engine->set_clears(worker.clears);
  engine->set_last_refusal(worker.last_refusal);
  for (size_t reason = 0; reason < kRefusals; ++reason) {
    if (worker.refused[reason] == 0) continue;
    (*engine->mutable_refused())[std::string(RefusalName(static_cast<Refusal>(reason)))] =
        worker.refused[reason];
  }
  for (const EngineRankStats& rank : worker.ranks) {
    if (rank.rank != holder->holder().rank()) continue;
    engine->set_parked(rank.parked);
    engine->set_suspects(rank.suspects);
  }
  holder->set_batches(worker.batches);
  const EngineListener* listener = ListenerOf(entry, holder->holder().rank());
  if (listener == nullptr) return;
  const EngineState state = StateOf(entry, *listener);
  holder->set_state(std::string(state.name));
  holder->set_reason(state.reason);
  holder->set_endpoint(listener->endpoint);
  holder->set_connected(listener->stream.connected);
  engine->set_silent_ms(Milliseconds(listener->stream.silent));
  engine->set_replay("none");
  if (!listener->replay_endpoint.empty()) {
    const std::optional<ConnectionStatus>& replay = listener->stream.replay;
    engine->set_replay(replay.has_value() ? std::string(ConnectionStateName(replay->state)) : "");
    if (replay.has_value()) engine->set_replay_reason(replay->reason);
  }
  engine->set_lag_ms(listener->stream.lag_ms);
  engine->set_restarts(listener->stream.tracker.restarts);
  engine->set_messages_lost(listener->stream.tracker.messages_lost);
}

}  // namespace

void FillEngines(const EngineDirectory& directory, v1::StatsResponse* response) {
  for (v1::DomainStats& domain : *response->mutable_domains()) {
    std::map<std::string, const EngineEntry*> by_name;
    const Domain named{.model = domain.domain().model(), .tenant = domain.domain().tenant()};
    const std::vector<EngineEntry> entries = directory.List(named.model);
    for (const EngineEntry& entry : entries)
      if (entry.domain == named) by_name[entry.instance] = &entry;
    for (v1::HolderStats& holder : *domain.mutable_holder_stats()) {
      const auto found = by_name.find(holder.holder().name());
      if (found != by_name.end()) FillEngine(*found->second, &holder);
    }
  }
}

}  // namespace kvatlas
