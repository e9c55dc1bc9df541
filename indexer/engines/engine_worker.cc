#include "indexer/engines/engine_worker.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <utility>

#include "indexer/base/mutex.h"
#include "indexer/engines/engine_rank.h"
#include "indexer/service/log.h"

namespace kvatlas {
namespace {

constexpr size_t kEventsAhead = 6;     // whose names are loaded
constexpr size_t kResolvesMax = 1024;  // a call

}  // namespace

struct EngineWorker::State {
  State(EngineWorkerOptions given, MakeRankSink make)
      : options(std::move(given)), make_sink(std::move(make)) {}

  struct RankState {
    std::unique_ptr<EngineRank> rank;  // null: no sink could be made
    uint32_t stream_rank = 0;
  };
  struct Unresolved {
    uint32_t rank;
    std::string name;
  };

  // Null: there is no sink for it.
  EngineRank* RankOf(uint32_t number, uint32_t stream_rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Those that this stream published.
  template <typename Visit>
  void OfStream(uint32_t stream_rank, Visit visit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (auto& [number, state] : ranks)
      if (state.stream_rank == stream_rank && state.rank != nullptr) visit(state.rank.get());
  }
  // The rank has its events of this batch; may be null.
  void Finish(EngineRank* rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (rank == nullptr) return;
    rank->Flush();
    if (rank->eagle()) eagle.store(true, std::memory_order_relaxed);
  }
  void NoteEagle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::vector<Unresolved> UnresolvedNames() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Asks others without the lock.
  void Resolve(const std::vector<Unresolved>& names) ABSL_LOCKS_EXCLUDED(mutex);

  const EngineWorkerOptions options;
  const MakeRankSink make_sink;
  std::atomic<bool> eagle{false};

  mutable Mutex mutex;
  std::map<uint32_t, RankState> ranks ABSL_GUARDED_BY(mutex);
  EngineWorkerStats counters ABSL_GUARDED_BY(mutex);
  EngineScratch scratch ABSL_GUARDED_BY(mutex);
};

EngineRank* EngineWorker::State::RankOf(uint32_t number, uint32_t stream_rank) {
  const auto found = ranks.find(number);
  if (found != ranks.end()) {
    found->second.stream_rank = stream_rank;
    return found->second.rank.get();
  }
  if (ranks.size() >= options.ranks_max) return nullptr;
  absl::StatusOr<std::unique_ptr<RankSink>> sink = make_sink(number);
  RankState& state = ranks[number];
  state.stream_rank = stream_rank;
  if (sink.ok()) {
    state.rank =
        std::make_unique<EngineRank>(options, number, *std::move(sink), &counters, &scratch);
  } else {
    counters.last_refusal = std::string(sink.status().message());
    Log(LogLevel::kWarning, "engine rank has no holder",
        {{"worker", options.name}, {"rank", number}, {"reason", sink.status()}});
  }
  return state.rank.get();
}

void EngineWorker::State::NoteEagle() {
  bool any = false;
  for (const auto& [number, state] : ranks) any = any || (state.rank && state.rank->eagle());
  eagle.store(any, std::memory_order_relaxed);
}

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

EngineWorker::EngineWorker(EngineWorkerOptions options, MakeRankSink make_sink)
    : state_(std::make_unique<State>(std::move(options), std::move(make_sink))) {}

EngineWorker::~EngineWorker() = default;

void EngineWorker::Apply(uint32_t stream_rank, const EngineBatch& batch, Time now) {
  std::vector<State::Unresolved> unresolved;
  {
    MutexLock lock(&state_->mutex);
    EngineWorkerStats& counters = state_->counters;
    ++counters.batches;
    counters.events += batch.events.size();
    for (Refusal refusal : batch.refused) ++counters.refused[static_cast<size_t>(refusal)];
    EngineRank* rank = nullptr;
    uint32_t number = 0;
    const uint64_t parked_before = counters.refused[static_cast<size_t>(Refusal::kNoContent)];
    for (size_t i = 0; i < batch.events.size(); ++i) {
      const EngineEvent& event = batch.events[i];
      const uint32_t of_event =
          static_cast<uint32_t>(event.rank.value_or(batch.rank.value_or(stream_rank)));
      if (i == 0 || of_event != number) {
        state_->Finish(rank);
        number = of_event;
        rank = state_->RankOf(number, stream_rank);
      }
      if (rank == nullptr) {
        ++counters.refused[static_cast<size_t>(Refusal::kShed)];
        continue;
      }
      if (i + kEventsAhead < batch.events.size()) rank->Prefetch(batch.events[i + kEventsAhead]);
      rank->Apply(event, now);
    }
    state_->Finish(rank);
    if (counters.refused[static_cast<size_t>(Refusal::kNoContent)] != parked_before)
      unresolved = state_->UnresolvedNames();
  }
  if (!unresolved.empty()) state_->Resolve(unresolved);
}

void EngineWorker::Restarted(uint32_t stream_rank, Time) {
  MutexLock lock(&state_->mutex);
  state_->OfStream(stream_rank, [](EngineRank* rank) { rank->Restart(); });
}

void EngineWorker::Lost(uint32_t stream_rank, Time now) {
  MutexLock lock(&state_->mutex);
  // What was lost may be all that there was of the rank.
  state_->RankOf(stream_rank, stream_rank);
  state_->OfStream(stream_rank, [now](EngineRank* rank) { rank->Lose(now); });
}

void EngineWorker::Repaired(uint32_t stream_rank) {
  MutexLock lock(&state_->mutex);
  state_->OfStream(stream_rank, [](EngineRank* rank) { rank->Repair(); });
}

void EngineWorker::RemoveRank(uint32_t rank) {
  MutexLock lock(&state_->mutex);
  state_->ranks.erase(rank);
  state_->NoteEagle();
}

void EngineWorker::Tick(Time now) {
  std::vector<State::Unresolved> unresolved;
  {
    MutexLock lock(&state_->mutex);
    for (auto it = state_->ranks.begin(); it != state_->ranks.end();) {
      if (it->second.rank != nullptr) {
        it->second.rank->Tick(now);
        ++it;
      } else {
        // Its next event tries again to make a sink.
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
    stats.ranks.back().stream_rank = state.stream_rank;
  }
  return stats;
}

bool EngineWorker::eagle() const { return state_->eagle.load(std::memory_order_relaxed); }

std::optional<KnownBlock> EngineWorker::Find(const EngineBlockHash& hash) const {
  MutexLock lock(&state_->mutex);
  for (const auto& [number, state] : state_->ranks) {
    if (state.rank == nullptr) continue;
    if (std::optional<KnownBlock> known = state.rank->Find(hash)) return known;
  }
  return std::nullopt;
}

void EngineWorker::ForEachAlias(const std::function<void(const EngineAlias&)>& visit) const {
  MutexLock lock(&state_->mutex);
  for (const auto& [number, state] : state_->ranks)
    if (state.rank != nullptr) state.rank->ForEachAlias(visit);
}

absl::Status EngineWorker::Restore(const EngineAlias& alias, bool more) {
  MutexLock lock(&state_->mutex);
  EngineRank* const rank = state_->RankOf(alias.rank, alias.stream_rank.value_or(alias.rank));
  if (rank == nullptr) return absl::ResourceExhaustedError("no holder for the rank");
  const absl::Status status = rank->Restore(alias, more);
  state_->NoteEagle();
  return status;
}

}  // namespace kvatlas
