// Puts the engines of a snapshot, a checkpoint or a dump back into a directory. `EngineRestorer` is
// told an instance, then for each stream its position, its ranks and its names, in this order. A
// checkpoint's streams come back one by one (`Comes`); all that is told of one that does not is
// passed over.

#include "indexer/checkpoint/engine_restore.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// The registration of an instance, with one of its streams unless `listener` is null. Every field
// of a registration must be copied here: one that is left out is lost at each restart.
EngineRegistration RegistrationOf(const EngineEntry& entry, const EngineListener* listener) {
  EngineRegistration registration;
  registration.instance = entry.instance;
  registration.model = entry.domain.model;
  registration.group = GroupOf(entry.domain);
  registration.block_size = entry.block_size;
  registration.lora_name = entry.lora_name;
  registration.additional_salt = entry.additional_salt;
  registration.image_token = entry.image_token;
  registration.counts_copies = entry.counts_copies;
  registration.eagle_drop = entry.eagle_drop;
  registration.chunk_tokens = entry.chunk_tokens;
  registration.window_tokens = entry.window_tokens;
  registration.hybrid = entry.hybrid;
  registration.offload_chunk_tokens = entry.offload_chunk_tokens;
  registration.silent_tiers = entry.silent_tiers;
  registration.url = entry.url;
  registration.first_rank = entry.first_rank;
  registration.silent_blocks = entry.silent_blocks;
  registration.silent_seconds = entry.silent_seconds;
  registration.store = entry.store;
  registration.store_tiers = entry.store_tiers;
  registration.engine_type = entry.engine_type;
  registration.source = entry.source;
  if (listener == nullptr) return registration;
  registration.rank = listener->rank;
  registration.endpoint = listener->endpoint;
  registration.replay_endpoint = listener->replay_endpoint;
  registration.topic = listener->topic;
  registration.server_key = listener->server_key;
  registration.bind = listener->bind;
  registration.from_flags = listener->from_flags;
  if (!listener->url.empty()) registration.url = listener->url;
  return registration;
}

// Whether names of blocks mean the same now as when they were written: all that goes into hashes,
// into what a block is and how copies count. Not yet learned (block size 0) is taken for the same.
// Urls and ranks do not matter.
bool IsSameEngine(const EngineEntry& now, const EngineEntry& then) {
  return now.domain == then.domain && (now.block_size == 0 || now.block_size == then.block_size) &&
         now.engine_type == then.engine_type && now.lora_name == then.lora_name &&
         now.additional_salt == then.additional_salt && now.image_token == then.image_token &&
         now.counts_copies == then.counts_copies && now.eagle_drop == then.eagle_drop &&
         now.chunk_tokens == then.chunk_tokens && now.window_tokens == then.window_tokens &&
         now.hybrid == then.hybrid && now.offload_chunk_tokens == then.offload_chunk_tokens &&
         now.silent_tiers == then.silent_tiers && now.store == then.store &&
         now.store_tiers == then.store_tiers;
}

// Numbers and positions are those of one publisher: another endpoint or topic may be another
// engine.
bool IsSameStream(const EngineListener& now, const EngineListener& then) {
  return now.endpoint == then.endpoint && now.topic == then.topic && now.bind == then.bind;
}

}  // namespace

void RegisterEngines(EngineDirectory* directory, const EngineEntry& entry) {
  for (const EngineListener& listener : entry.listeners) {
    const absl::Status status = directory->Register(RegistrationOf(entry, &listener));
    if (!status.ok() && !absl::IsAlreadyExists(status))
      Log(LogLevel::kWarning, "an engine cannot be registered again",
          {{"instance", entry.instance}, {"reason", status}});
  }
}

EngineRestorer::EngineRestorer(EngineDirectory* directory, Source source, uint32_t instances_max,
                               NamedByFlags named)
    : directory_(directory),
      source_(source),
      instances_max_(instances_max),
      named_(std::move(named)) {}

// Counts instances, known and new ones, against `instances_max_`.
absl::Status EngineRestorer::Admit(const EngineEntry& entry) {
  if (workers_.size() < instances_max_ || workers_.contains(entry.instance))
    return absl::OkStatus();
  return absl::ResourceExhaustedError("more than " + std::to_string(instances_max_) +
                                      " workers to restore (--peer_workers_max)");
}

absl::Status EngineRestorer::OnInstance(const EngineEntry& entry) {
  if (absl::Status bad = Admit(entry); !bad.ok()) return bad;
  come_.clear();
  if (source_ != Source::kCheckpoint) return absl::OkStatus();
  const std::optional<EngineEntry> registered = directory_->Find(entry.instance);
  for (const EngineListener& listener : entry.listeners)
    if (Comes(entry, listener, registered)) come_.insert(listener.rank);
  return absl::OkStatus();
}

// Whether a checkpoint's stream comes back:
// 1. The instance is registered already (by flags) as another engine: no. As the same, and this
//    rank listens: only at the same endpoint.
// 2. The stream came from flags, and no flag names it now: no. It was removed on purpose.
// 3. Otherwise it is registered here; a failure is logged and means no.
bool EngineRestorer::Comes(const EngineEntry& entry, const EngineListener& listener,
                           const std::optional<EngineEntry>& registered) {
  if (registered.has_value()) {
    if (!IsSameEngine(*registered, entry)) return false;
    const auto now =
        std::find_if(registered->listeners.begin(), registered->listeners.end(),
                     [&](const EngineListener& one) { return one.rank == listener.rank; });
    if (now != registered->listeners.end()) return IsSameStream(*now, listener);
  }
  EngineRegistration registration = RegistrationOf(entry, &listener);
  registration.from_flags = named_ != nullptr && named_(entry, listener);
  // Checkpoints of older versions do not say which streams came from flags. If flags name the
  // instance, or may name all engines (`named_`), the stream is taken for one of flags.
  const bool of_flags =
      listener.told_from_flags.value_or(named_ != nullptr || registered.has_value());
  if (of_flags && !registration.from_flags) {
    Log(LogLevel::kInfo, "an engine of the checkpoint is left out: no flag names it now",
        {{"instance", entry.instance}, {"rank", listener.rank}, {"endpoint", listener.endpoint}});
    return false;
  }
  const absl::Status status = directory_->Register(registration);
  if (!status.ok())
    Log(LogLevel::kWarning, "an engine cannot be registered again",
        {{"instance", entry.instance}, {"rank", listener.rank}, {"reason", status}});
  return status.ok();
}

// Sets `passes_` for all that follows of this stream. Without a position nothing was received on it
// yet: it then starts as a new one.
absl::Status EngineRestorer::OnPosition(const EngineEntry& entry, uint32_t rank,
                                        const std::optional<StreamPosition>& position) {
  stream_rank_ = rank;
  passes_ = source_ == Source::kCheckpoint && !come_.contains(rank);
  if (passes_ || !position.has_value()) return absl::OkStatus();
  const absl::Status status = directory_->ResumeFrom(entry.instance, rank, *position,
                                                     /*earlier=*/source_ == Source::kCheckpoint);
  if (!status.ok() && lost_positions_++ == 0)
    Log(LogLevel::kWarning, "a stream does not go on where it was",
        {{"instance", entry.instance}, {"rank", rank}, {"reason", status}});
  return absl::OkStatus();
}

absl::Status EngineRestorer::OnRank(const EngineEntry& entry, const EngineRankMark& mark) {
  if (passes_) return absl::OkStatus();
  if (absl::Status bad = Admit(entry); !bad.ok()) return bad;
  EngineWorker* const worker = WorkerOf(entry);
  if (worker == nullptr) return absl::OkStatus();
  const absl::Status status = worker->RestoreRank(mark);
  if (!status.ok() && lost_ranks_++ == 0)
    Log(LogLevel::kWarning, "what was known of a rank cannot be restored",
        {{"instance", entry.instance}, {"rank", mark.rank}, {"reason", status}});
  return absl::OkStatus();
}

absl::Status EngineRestorer::OnName(const EngineEntry& entry, const EngineAlias& alias) {
  if (passes_) return absl::OkStatus();
  EngineAlias of_stream = alias;
  of_stream.stream_rank = stream_rank_;
  return Restore(entry, of_stream);
}

// Adopts the instance's worker at its first rank or name; remembered also when that fails (null),
// so that it is tried and logged once. Dumps know no positions: their names are unconfirmed.
EngineWorker* EngineRestorer::WorkerOf(const EngineEntry& entry) {
  const auto [it, is_new] = workers_.try_emplace(entry.instance);
  if (!is_new) return it->second.get();
  absl::StatusOr<std::shared_ptr<EngineWorker>> worker =
      directory_->Adopt(RegistrationOf(entry, nullptr), source_ == Source::kDump);
  if (worker.ok()) {
    it->second = *std::move(worker);
  } else {
    Log(LogLevel::kWarning, "an engine cannot be restored",
        {{"instance", entry.instance}, {"reason", worker.status()}});
  }
  return it->second.get();
}

// A name that the worker refuses contradicts others; it is counted and the rest goes on. `more`:
// the index is told in batches, at the latest by `Finish`.
absl::Status EngineRestorer::Restore(const EngineEntry& entry, const EngineAlias& alias) {
  if (absl::Status bad = Admit(entry); !bad.ok()) return bad;
  EngineWorker* const worker = WorkerOf(entry);
  if (worker == nullptr) return absl::OkStatus();
  const absl::Status status = worker->Restore(alias, /*more=*/true);
  restored_ += status.ok();
  if (!status.ok() && refused_++ == 0)
    Log(LogLevel::kWarning, "a block's name cannot be restored",
        {{"instance", entry.instance}, {"reason", status}});
  return absl::OkStatus();
}

void EngineRestorer::Finish() const {
  for (const auto& [instance, worker] : workers_)
    if (worker != nullptr) worker->Tick(Clock::Real().Now());
}

}  // namespace kvatlas
