// A worker's ranks and the lock over them. `EngineRank` knows the meaning of an event; here events
// find their rank, losses of a stream find all ranks that it publishes, and names that no rank
// knows are asked of other workers.
//
// *Lock order*: this worker's mutex, then a writer's and the index's. `options.resolve` locks other
// workers: it runs without this mutex, else two workers that ask each other would deadlock.

#include "indexer/kv_events/engine_worker.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "indexer/base/mutex.h"
#include "indexer/kv_events/engine_rank.h"
#include "indexer/kv_events/engine_tier.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

constexpr size_t kEventsAhead = 16;    // whose names are loaded together
constexpr size_t kResolvesMax = 1024;  // a call

// The block size that a store on the device tells; 0: none. A single name may stand for a part of a
// block: the tail of a prompt, whose parent is a part, too, or no block at all (vLLM 0.33's
// prefix_match_unit, of models with recurrent states). Connectors tell the size of their own chunks
// (LMCache), or nothing.
uint32_t SizeToldBy(const EngineEvent& event, bool has_states) {
  const bool whole = event.kind == EngineEvent::Kind::kStored && event.block_size != 0 &&
                     !event.hashes.empty() &&
                     event.tokens.size() / event.block_size >= event.hashes.size();
  if (!whole || OwnershipRefusal(event.ownership) || LocalityRefusal(event.locality) ||
      TierOfMedium(event.medium) != Tier::kDevice)
    return 0;
  const bool at_root = !event.parent.has_value() || *event.parent == EngineBlockHash();
  return event.hashes.size() > 1 || (at_root && !has_states) ? event.block_size : 0;
}

}  // namespace

struct EngineWorker::State {
  State(EngineWorkerOptions given, MakeHoldingsWriter make)
      : options(std::move(given)), make_writer(std::move(make)) {}

  struct RankState {
    std::unique_ptr<EngineRank> rank;  // null: no writer could be made
    // Streams that published it, in the order in which they came, at most `ranks_max`. Empty:
    // restored, of unknown origin.
    std::vector<uint32_t> streams;
  };
  struct Unresolved {
    uint32_t rank;
    std::string name;
  };

  // Null: there is no writer for it.
  EngineRank* RankOf(uint32_t number, std::optional<uint32_t> stream_rank)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  static bool IsOf(const RankState& state, uint32_t stream_rank) {
    return state.streams.empty() || std::find(state.streams.begin(), state.streams.end(),
                                              stream_rank) != state.streams.end();
  }
  // Visits the ranks that this stream published, or may have.
  template <typename Visit>
  void OfStream(uint32_t stream_rank, Visit visit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (auto& [number, state] : ranks)
      if (state.rank != nullptr && IsOf(state, stream_rank)) visit(state);
  }
  void Lose(uint32_t stream_rank, EngineRank::LossKind kind, Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    OfStream(stream_rank, [&](RankState& state) { state.rank->Lose(kind, now); });
  }
  // Puts ranks of the stream in doubt if an event of `batch` just before event `before` could not
  // be read.
  void Doubt(uint32_t stream_rank, const EngineBatch& batch, size_t before, Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // The rank has got all its events of this batch, or of a run of it. May be null.
  void Finish(EngineRank* rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (rank == nullptr) return;
    rank->EndBatch();
    if (const uint32_t more = rank->look_aheads() & ~look_aheads.load(std::memory_order_relaxed))
      look_aheads.fetch_or(more, std::memory_order_relaxed);
  }
  void NoteLookAheads() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::vector<Unresolved> UnresolvedNames() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Asks other workers without the lock.
  void Resolve(const std::vector<Unresolved>& names) ABSL_LOCKS_EXCLUDED(mutex);

  // The block size is still unknown. Until then there is no rank, so that no writer has another
  // one.
  bool Learns() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return options.block_size == 0 && options.learn_block_size != nullptr;
  }
  // False: it is, and `batch` does not say it.
  bool KnowsBlockSize(const EngineBatch& batch, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  EngineWorkerOptions
      options;  // the block size is written once, under `mutex`, before the first rank
  const MakeHoldingsWriter make_writer;
  std::atomic<uint32_t> look_aheads{0};

  mutable Mutex mutex;
  std::map<uint32_t, RankState> ranks ABSL_GUARDED_BY(mutex);
  // Losses of a stream while the block size was unknown, by stream: its rank gets them as soon as
  // it exists.
  struct EarlyLoss {
    uint64_t gaps = 0;
    bool unreadable = false;
  };
  std::map<uint32_t, EarlyLoss> early_losses ABSL_GUARDED_BY(mutex);
  EngineWorkerStats counters ABSL_GUARDED_BY(mutex);
  EngineScratch scratch ABSL_GUARDED_BY(mutex);
};

// Looks in a batch for the block size while it is unknown.
//
// 1. The first whole block of the main class tells it. Only a batch without any event of the main
//    class lets the finest size of the others count: an engine with windows alone.
// 2. `learn_block_size` decides, since the domain may have another one already. It is called once.
// 3. Losses that came before go to their ranks, which can exist only now.
bool EngineWorker::State::KnowsBlockSize(const EngineBatch& batch, Time now) {
  if (!Learns()) return true;
  const bool has_states =
      std::any_of(batch.events.begin(), batch.events.end(),
                  [](const EngineEvent& event) { return event.spec_kind == "mamba"; });
  uint32_t main = 0, finest = 0;
  bool has_main = false;
  for (const EngineEvent& event : batch.events) {
    if (event.kind != EngineEvent::Kind::kStored) continue;
    const bool of_main = event.spec_kind.empty() || IsMainAttention(event.spec_kind);
    has_main = has_main || of_main;
    const uint32_t told = SizeToldBy(event, has_states);
    if (of_main && main == 0) main = told;
    if (told != 0 && (finest == 0 || told < finest)) finest = told;
  }
  if (main == 0 && (has_main || finest == 0)) return false;
  options.block_size = options.learn_block_size(main != 0 ? main : finest);
  for (const auto& [stream_rank, early] : std::exchange(early_losses, {})) {
    EngineRank* const rank = RankOf(stream_rank, stream_rank);
    for (uint64_t i = 0; rank != nullptr && i < early.gaps; ++i)
      rank->Lose(EngineRank::LossKind::kGap, now);
    if (rank != nullptr && early.unreadable) rank->Lose(EngineRank::LossKind::kUnreadable, now);
  }
  return true;
}

// The rank `number`, made with its writer at the first event, loss or restored entry that names it.
// Notes that the stream publishes it. Null: beyond `ranks_max`, or no writer could be made; the
// entry is kept without a rank until the next `Tick`, so that a writer that fails is not asked for
// with every event.
EngineRank* EngineWorker::State::RankOf(uint32_t number, std::optional<uint32_t> stream_rank) {
  const auto note_stream = [&](RankState& state) {
    if (!stream_rank.has_value() || (!state.streams.empty() && IsOf(state, *stream_rank))) return;
    if (state.streams.size() < options.ranks_max) state.streams.push_back(*stream_rank);
  };
  const auto found = ranks.find(number);
  if (found != ranks.end()) {
    note_stream(found->second);
    return found->second.rank.get();
  }
  if (ranks.size() >= options.ranks_max) return nullptr;
  absl::StatusOr<std::shared_ptr<HoldingsWriter>> writer = make_writer(number);
  RankState& state = ranks[number];
  note_stream(state);
  if (writer.ok()) {
    state.rank =
        std::make_unique<EngineRank>(options, number, *std::move(writer), &counters, &scratch);
  } else {
    counters.last_refusal = std::string(writer.status().message());
    Log(LogLevel::kWarning, "engine rank has no holder",
        {{"worker", options.name}, {"rank", number}, {"reason", writer.status()}});
  }
  return state.rank.get();
}

void EngineWorker::State::Doubt(uint32_t stream_rank, const EngineBatch& batch, size_t before,
                                Time now) {
  if (batch.unknown_before == before) Lose(stream_rank, EngineRank::LossKind::kUnknown, now);
  if (batch.lost_before == before) Lose(stream_rank, EngineRank::LossKind::kUnreadable, now);
}

// Computes the mask anew, after a rank went. While batches apply it only grows (`Finish`).
void EngineWorker::State::NoteLookAheads() {
  uint32_t all = 0;
  for (const auto& [number, state] : ranks) all |= state.rank ? state.rank->look_aheads() : 0;
  look_aheads.store(all, std::memory_order_relaxed);
}

// Names to ask other workers for, collected under the lock. At most `kResolvesMax` a call;
// `Orphans::WithoutTokens` lets each have its turn.
std::vector<EngineWorker::State::Unresolved> EngineWorker::State::UnresolvedNames() {
  std::vector<Unresolved> names;
  if (options.resolve == nullptr) return names;
  for (auto& [number, state] : ranks) {
    if (state.rank == nullptr || names.size() >= kResolvesMax) continue;
    for (std::string& name : state.rank->Unresolved(kResolvesMax - names.size()))
      names.push_back({number, std::move(name)});
  }
  return names;
}

// Asks without the lock, then takes it to place what is known. The rank or the name may be gone by
// then: both are looked up again.
void EngineWorker::State::Resolve(const std::vector<Unresolved>& names) {
  std::vector<std::pair<const Unresolved*, KnownBlock>> known;
  for (const Unresolved& name : names)
    if (std::optional<KnownBlock> block = options.resolve(NameOfKey(name.name)))
      known.emplace_back(&name, *std::move(block));
  if (known.empty()) return;
  MutexLock lock(&mutex);
  for (const auto& [name, block] : known) {
    const auto found = ranks.find(name->rank);
    if (found != ranks.end() && found->second.rank != nullptr)
      found->second.rank->Resolve(name->name, block);
  }
}

EngineWorker::EngineWorker(EngineWorkerOptions options, MakeHoldingsWriter make_writer)
    : state_(std::make_unique<State>(std::move(options), std::move(make_writer))) {}

EngineWorker::~EngineWorker() = default;

void EngineWorker::SetBlockSize(uint32_t block_size) {
  MutexLock lock(&state_->mutex);
  if (state_->Learns()) state_->options.block_size = block_size;
}

bool EngineWorker::Learn(const EngineBatch& batch, Time now) {
  MutexLock lock(&state_->mutex);
  return state_->KnowsBlockSize(batch, now);
}

// A batch, under one lock:
//
// 1. Each event finds its rank: its own `rank`, else the batch's, else that of the stream. Where
//    the rank changes, the rank before hands over what is pending (`Finish`): a batch whose events
//    alternate between ranks costs a hand-over each time.
// 2. A rank without a main group learns of one from the events to come, before the first applies.
// 3. Where events were refused by the decoder, what was held before that place is put in doubt
//    (`Doubt`) between the same two events, so that stores behind it stay certain.
// 4. `EngineRank::Apply` for each event; at the end everything pending goes to the writers.
// 5. If blocks without content were parked, other workers are asked, without the lock.
void EngineWorker::Apply(uint32_t stream_rank, const EngineBatch& batch, Time now) {
  std::vector<State::Unresolved> unresolved;
  {
    MutexLock lock(&state_->mutex);
    EngineWorkerStats& counters = state_->counters;
    ++counters.batches;
    counters.events += batch.events.size();
    for (Refusal refusal : batch.refused) ++counters.refused[static_cast<size_t>(refusal)];
    if (!state_->KnowsBlockSize(batch, now)) return;
    EngineRank* rank = nullptr;
    uint32_t number = 0;
    const uint64_t parked_before = counters.refused[static_cast<size_t>(Refusal::kNoContent)];
    const bool doubtful = !batch.refused.empty();
    for (size_t i = 0; i < batch.events.size(); ++i) {
      const EngineEvent& event = batch.events[i];
      if (doubtful) state_->Doubt(stream_rank, batch, i, now);
      const int64_t given = event.rank.value_or(batch.rank.value_or(stream_rank));
      const uint32_t of_event = static_cast<uint32_t>(given);
      // Ranks are 32 bits; a negative one that fits is taken as its bit pattern.
      if (given != static_cast<int64_t>(of_event) && given != static_cast<int32_t>(of_event)) {
        ++counters
              .refused[static_cast<size_t>(Refusal::kMalformed)];  // no number that ranks can have
        continue;
      }
      if (rank == nullptr || of_event != number) {
        state_->Finish(rank);
        number = of_event;
        rank = state_->RankOf(number, stream_rank);
        if (rank != nullptr && rank->NeedsMain())
          for (size_t later = i; later < batch.events.size(); ++later)
            rank->LearnMain(batch.events[later]);
      }
      if (rank == nullptr) {
        ++counters.refused[static_cast<size_t>(Refusal::kShed)];
        continue;
      }
      if (i % kEventsAhead == 0)
        rank->Prefetch(
            std::span(batch.events).subspan(i, std::min(kEventsAhead, batch.events.size() - i)));
      rank->Apply(event, now);
    }
    state_->Finish(rank);
    if (doubtful) state_->Doubt(stream_rank, batch, batch.events.size(), now);
    if (counters.refused[static_cast<size_t>(Refusal::kNoContent)] != parked_before)
      unresolved = state_->UnresolvedNames();
  }
  if (!unresolved.empty()) state_->Resolve(unresolved);
}

// Ranks that this stream alone publishes are empty now. A rank with several streams does not know
// which blocks came over which: it is in doubt.
void EngineWorker::Restarted(uint32_t stream_rank, Time now) {
  MutexLock lock(&state_->mutex);
  state_->early_losses.erase(stream_rank);
  for (auto& [number, state] : state_->ranks) {
    if (state.rank == nullptr || !State::IsOf(state, stream_rank)) continue;
    // A rank that was restored with unknown origin counts as published by its own stream.
    const bool is_alone =
        state.streams.size() == 1 || (state.streams.empty() && number == stream_rank);
    if (is_alone) {
      state.rank->Restart();
    } else {
      state.rank->Lose(EngineRank::LossKind::kUnreadable, now);
    }
  }
}

void EngineWorker::Lost(uint32_t stream_rank, Time now) {
  MutexLock lock(&state_->mutex);
  if (state_->Learns()) {
    ++state_->early_losses[stream_rank].gaps;
    return;
  }
  // The lost batches may be all that named the rank.
  state_->RankOf(stream_rank, stream_rank);
  state_->Lose(stream_rank, EngineRank::LossKind::kGap, now);
}

void EngineWorker::Unreadable(uint32_t stream_rank, Time now) {
  MutexLock lock(&state_->mutex);
  if (state_->Learns()) {
    state_->early_losses[stream_rank].unreadable = true;
    return;
  }
  state_->RankOf(stream_rank, stream_rank);
  state_->Lose(stream_rank, EngineRank::LossKind::kUnreadable, now);
}

void EngineWorker::Doubt(uint32_t rank, Time now) {
  MutexLock lock(&state_->mutex);
  const auto found = state_->ranks.find(rank);
  if (found != state_->ranks.end() && found->second.rank != nullptr)
    found->second.rank->Lose(EngineRank::LossKind::kUnreadable, now);
}

// Undoes one gap of each rank of the stream, and of its early ones.
void EngineWorker::Repaired(uint32_t stream_rank) {
  MutexLock lock(&state_->mutex);
  const auto early = state_->early_losses.find(stream_rank);
  if (early != state_->early_losses.end() && early->second.gaps > 0) --early->second.gaps;
  state_->OfStream(stream_rank, [](State::RankState& state) { state.rank->Repair(); });
}

void EngineWorker::RemoveRank(uint32_t rank) {
  MutexLock lock(&state_->mutex);
  state_->ranks.erase(rank);
  state_->NoteLookAheads();
}

// The ranks returned stay in `ranks`, empty: the caller calls `RemoveRank` for those that shall go.
std::vector<uint32_t> EngineWorker::RemoveStream(uint32_t stream_rank, Time now) {
  std::vector<uint32_t> gone;
  MutexLock lock(&state_->mutex);
  state_->early_losses.erase(stream_rank);
  if (!state_->ranks.contains(stream_rank)) gone.push_back(stream_rank);
  for (auto& [number, state] : state_->ranks) {
    if (!State::IsOf(state, stream_rank)) continue;
    std::erase(state.streams, stream_rank);
    const bool is_last = state.streams.empty();
    if (is_last) gone.push_back(number);
    if (state.rank == nullptr) continue;
    if (is_last) {
      state.rank->Restart();
    } else {
      state.rank->Lose(EngineRank::LossKind::kUnreadable, now);
    }
  }
  state_->NoteLookAheads();
  return gone;
}

// A rank without a writer is erased here: its next event makes another attempt.
void EngineWorker::Tick(Time now) {
  std::vector<State::Unresolved> unresolved;
  {
    MutexLock lock(&state_->mutex);
    for (auto it = state_->ranks.begin(); it != state_->ranks.end();) {
      if (it->second.rank != nullptr) {
        it->second.rank->Tick(now);
        ++it;
      } else {
        // Its next event tries again to make a writer.
        it = state_->ranks.erase(it);
      }
    }
    unresolved = state_->UnresolvedNames();
  }
  if (!unresolved.empty()) state_->Resolve(unresolved);
}

EngineWorkerStats EngineWorker::Stats() const {
  MutexLock lock(&state_->mutex);
  EngineWorkerStats stats = state_->counters;
  for (const auto& [number, state] : state_->ranks) {
    if (state.rank == nullptr) continue;
    stats.ranks.push_back(state.rank->Stats());
    EngineRankStats& of = stats.ranks.back();
    of.streams = static_cast<uint32_t>(state.streams.size());
    const bool is_own = state.streams.empty() || State::IsOf(state, number);
    of.stream_rank = is_own ? number : state.streams.front();
  }
  return stats;
}

uint32_t EngineWorker::look_aheads() const {
  return state_->look_aheads.load(std::memory_order_relaxed);
}

std::optional<KnownBlock> EngineWorker::Find(const EngineBlockHash& hash) const {
  MutexLock lock(&state_->mutex);
  for (const auto& [number, state] : state_->ranks) {
    if (state.rank == nullptr) continue;
    if (std::optional<KnownBlock> known = state.rank->Find(hash)) return known;
  }
  return std::nullopt;
}

bool EngineWorker::HoldsNamespace(std::string_view lora_name, std::string_view cache_salt) const {
  MutexLock lock(&state_->mutex);
  return std::any_of(state_->ranks.begin(), state_->ranks.end(), [&](const auto& entry) {
    const auto& rank = entry.second.rank;
    return rank != nullptr && rank->spaces().Holds(lora_name, cache_salt);
  });
}

void EngineWorker::ForEachAlias(const std::function<void(const EngineAlias&)>& visit) const {
  MutexLock lock(&state_->mutex);
  for (const auto& [number, state] : state_->ranks)
    if (state.rank != nullptr) state.rank->ForEachAlias(visit);
}

absl::Status EngineWorker::Restore(const EngineAlias& alias, bool more) {
  MutexLock lock(&state_->mutex);
  EngineRank* const rank = state_->RankOf(alias.rank, alias.stream_rank);
  if (rank == nullptr) return absl::ResourceExhaustedError("no holder for the rank");
  const absl::Status status = rank->Restore(alias, more);
  state_->NoteLookAheads();
  return status;
}

void EngineWorker::ForEachRank(const std::function<void(const EngineRankMark&)>& visit) const {
  MutexLock lock(&state_->mutex);
  for (const auto& [number, state] : state_->ranks) {
    if (state.rank == nullptr) continue;
    state.rank->Mark([&, number = number](EngineRankMark mark) {
      mark.rank = number;
      visit(mark);
    });
  }
}

absl::Status EngineWorker::RestoreRank(const EngineRankMark& mark) {
  MutexLock lock(&state_->mutex);
  EngineRank* const rank = state_->RankOf(mark.rank, mark.stream_rank);
  if (rank == nullptr) return absl::ResourceExhaustedError("no holder for the rank");
  return rank->RestoreMark(mark);
}

}  // namespace kvatlas
