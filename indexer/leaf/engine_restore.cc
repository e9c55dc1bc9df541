#include "indexer/leaf/engine_restore.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/service/log.h"

namespace kvatlas {
namespace {

// What an entry says of the instance itself, and of one of its streams.
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
  registration.url = entry.url;
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
  return registration;
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

EngineRestorer::EngineRestorer(EngineDirectory* directory, Source source, uint32_t instances_max)
    : directory_(directory), source_(source), instances_max_(instances_max) {}

absl::Status EngineRestorer::Admit(const EngineEntry& entry) {
  if (workers_.size() < instances_max_ || workers_.contains(entry.instance))
    return absl::OkStatus();
  return absl::ResourceExhaustedError("more than " + std::to_string(instances_max_) +
                                      " workers to restore (--peer_workers_max)");
}

absl::Status EngineRestorer::OnInstance(const EngineEntry& entry) {
  if (absl::Status bad = Admit(entry); !bad.ok()) return bad;
  // What flags name now says where it is.
  const bool known = directory_->WorkerOf(entry.instance) != nullptr;
  if (source_ == Source::kCheckpoint && !known) RegisterEngines(directory_, entry);
  return absl::OkStatus();
}

absl::Status EngineRestorer::OnPosition(const EngineEntry& entry, uint32_t rank,
                                        const std::optional<StreamPosition>& position) {
  stream_rank_ = rank;
  if (!position.has_value()) return absl::OkStatus();
  const absl::Status status = directory_->ResumeFrom(entry.instance, rank, *position,
                                                     /*earlier=*/source_ == Source::kCheckpoint);
  if (!status.ok() && lost_positions_++ == 0)
    Log(LogLevel::kWarning, "a stream does not go on where it was",
        {{"instance", entry.instance}, {"rank", rank}, {"reason", status}});
  return absl::OkStatus();
}

absl::Status EngineRestorer::OnRank(const EngineEntry& entry, const EngineRankMark& mark) {
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
  EngineAlias of_stream = alias;
  of_stream.stream_rank = stream_rank_;
  return Restore(entry, of_stream);
}

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
