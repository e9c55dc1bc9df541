// When checkpoints are written and how a leaf comes back from one. `StreamsRestorer` and
// `EnginesRestorer` read one checkpoint file into the registry and the engine directory;
// `Checkpointer::State` has the writing, its pace and the thread.
// Locks: `write_mutex` is held for a whole checkpoint (read or written) and is taken before
// `mutex`, which is held only for a look at flags and statistics.

#include "indexer/checkpoint/checkpointer.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/domain.h"
#include "indexer/base/durations.h"
#include "indexer/base/mutex.h"
#include "indexer/checkpoint/checkpoint_store.h"
#include "indexer/checkpoint/engine_restore.h"
#include "indexer/checkpoint/replica_snapshot.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// The nice value of the writing thread: questions and streams are scheduled before it.
constexpr int kNice = 5;
// A paced writer works for about `kWorkAtOnce`, then sleeps `kPausesPerWork` times as long as it
// worked: a quarter of one core (`Pause`).
constexpr Duration kWorkAtOnce = std::chrono::milliseconds(2);
constexpr int kPausesPerWork = 3;

// First pass over a checkpoint: puts the holders of streams back into a registry, run by run. A
// holder that the registry refuses is logged and its runs are skipped; the others go on. All
// holders stay invisible until `OnEnd`, so a file that breaks off midway leaves nothing behind:
// destroyed `RestoredHolder`s are forgotten.
class StreamsRestorer : public CheckpointVisitor {
 public:
  StreamsRestorer(HolderRegistry* registry, uint64_t wall_now_ns)
      : registry_(registry), wall_now_ns_(wall_now_ns) {}

  absl::Status OnHeader(const CheckpointHeader& header) override {
    age_ = Duration(wall_now_ns_ > header.wall_time_ns
                        ? static_cast<int64_t>(wall_now_ns_ - header.wall_time_ns)
                        : 0);
    return absl::OkStatus();
  }

  absl::Status OnDomain(const Domain& domain, uint32_t block_size) override {
    Finish();
    domain_ = domain;
    block_size_ = block_size;
    return absl::OkStatus();
  }

  absl::Status OnHolder(const HolderImage& image) override {
    Finish();
    // The holder was silent for as long as the leaf was down, too.
    HolderImage aged = image;
    aged.silent += age_;
    absl::StatusOr<std::unique_ptr<RestoredHolder>> holder =
        registry_->Restore(domain_, block_size_, std::move(aged));
    if (holder.ok()) {
      holder_ = *std::move(holder);
    } else {
      Log(LogLevel::kWarning, "a holder of the checkpoint cannot be restored",
          {{"holder", ToString(image.info.id)},
           {"domain", ToString(domain_)},
           {"reason", holder.status()}});
    }
    return absl::OkStatus();
  }

  absl::Status OnRun(Stored* run, TierMask tiers) override {
    if (holder_ == nullptr) return absl::OkStatus();
    for (int tier = 0; tier < kTiers; ++tier) {
      // The file has a block once with all its tiers; the registry takes an event per tier.
      run->tier = static_cast<Tier>(tier);
      if (!tiers.Has(run->tier)) continue;
      // Refused blocks (limits of memory or blocks) make the digest differ, which
      // `RestoredHolder::Finish` finds: the holder is then degraded until a snapshot.
      holder_->Apply(*run).IgnoreError();
    }
    return absl::OkStatus();
  }

  absl::Status OnEngines(const ReadChunk&) override { return absl::OkStatus(); }

  // The whole file was read: all holders appear now.
  absl::Status OnEnd() override {
    Finish();
    for (const std::unique_ptr<RestoredHolder>& holder : holders_)
      if (!holder->Finish()) ++shed_;
    holders_.clear();
    return absl::OkStatus();
  }

  Duration age() const { return age_; }
  // Holders that do not have all of what was kept.
  uint64_t shed() const { return shed_; }

 private:
  // The current holder, if any, is complete; keeps it for `OnEnd`.
  void Finish() {
    if (holder_ != nullptr) holders_.push_back(std::move(holder_));
    holder_ = nullptr;
  }

  HolderRegistry* const registry_;
  const uint64_t wall_now_ns_;
  Duration age_{0};
  Domain domain_;
  uint32_t block_size_ = 0;
  // Null before the first holder of a domain, and while a refused holder's runs are skipped.
  std::unique_ptr<RestoredHolder> holder_;
  std::vector<std::unique_ptr<RestoredHolder>> holders_;
  uint64_t shed_ = 0;
};

// Second pass over the same checkpoint, after it is known that no replica tells better: reads only
// the embedded snapshot of engines. Nothing but that is looked at; the file was checked as a whole.
class EnginesRestorer : public CheckpointVisitor {
 public:
  EnginesRestorer(const HashContract& contract, EngineDirectory* directory, NamedByFlags named)
      : contract_(contract), directory_(directory), named_(std::move(named)) {}

  absl::Status OnHeader(const CheckpointHeader&) override { return absl::OkStatus(); }
  absl::Status OnDomain(const Domain&, uint32_t) override { return absl::OkStatus(); }
  absl::Status OnHolder(const HolderImage&) override { return absl::OkStatus(); }
  absl::Status OnRun(Stored*, TierMask) override { return absl::OkStatus(); }
  absl::Status OnEnd() override { return absl::OkStatus(); }

  absl::Status OnEngines(const ReadChunk& read) override {
    EngineRestorer restorer(directory_, EngineRestorer::Source::kCheckpoint, UINT32_MAX, named_);
    absl::StatusOr<SnapshotStats> stats = ReadReplicaSnapshot(contract_, read, &restorer);
    if (!stats.ok()) return stats.status();
    restorer.Finish();
    Log(LogLevel::kInfo, "engines restored from a checkpoint",
        {{"instances", stats->instances},
         {"names", restorer.restored()},
         {"refused", restorer.refused()}});
    return absl::OkStatus();
  }

 private:
  const HashContract& contract_;
  EngineDirectory* const directory_;
  const NamedByFlags named_;
};

}  // namespace

struct Checkpointer::State {
  State(CheckpointOptions given, HolderRegistry* registry, EngineDirectory* directory,
        Metrics* metrics)
      : options(std::move(given)),
        registry(registry),
        directory(directory),
        store(options.files, options.directory, options.keep),
        age_seconds(metrics->AddGauge("kvatlas_leaf_checkpoint_age_seconds",
                                      "Since the last checkpoint was begun; -1: none yet.")),
        last_seconds(metrics->AddGauge("kvatlas_leaf_checkpoint_seconds",
                                       "What writing the last checkpoint took.")),
        last_bytes(metrics->AddGauge("kvatlas_leaf_checkpoint_bytes", "Size of the last one.")),
        last_blocks(metrics->AddGauge("kvatlas_leaf_checkpoint_blocks",
                                      "Blocks of streams' holders in the last one.")),
        free_bytes(metrics->AddGauge("kvatlas_leaf_checkpoint_free_bytes",
                                     "Free where checkpoints are written; -1: not known.")),
        interval_seconds(
            metrics->AddGauge("kvatlas_leaf_checkpoint_interval_seconds", "--checkpoint_every.")),
        restore_seconds(metrics->AddGauge("kvatlas_leaf_checkpoint_restore_seconds",
                                          "What reading one took at the start.")),
        writes(metrics->AddCounter("kvatlas_leaf_checkpoint_writes_total", "Checkpoints written.")),
        failures(metrics->AddCounter("kvatlas_leaf_checkpoint_failures_total",
                                     "Checkpoints that could not be written.")),
        refusals(metrics->AddCounter("kvatlas_leaf_checkpoint_refused_total",
                                     "Checkpoints that could not be read at the start.")) {
    interval_seconds.Set(Seconds(options.every));
    metrics->OnScrape([this] {
      const absl::StatusOr<uint64_t> room = options.files->FreeBytes(options.directory);
      free_bytes.Set(room.ok() ? static_cast<double>(*room) : -1);
      MutexLock lock(&mutex);
      age_seconds.Set(begun_at.has_value() ? Seconds(Clock::Real().Now() - *begun_at) : -1);
    });
  }

  CheckpointExpectation Expectation() const {
    return {.contract_id = options.contract.Id(), .cell = options.cell};
  }

  // Reads checkpoint `number` into `visitor`, after checking all of the file (`ReadCheckpoint`).
  absl::StatusOr<CheckpointCounts> Read(uint64_t number, CheckpointVisitor* visitor) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex) {
    const absl::StatusOr<std::unique_ptr<ReadableFile>> file =
        options.files->Open(store.PathOf(number));
    if (!file.ok()) return file.status();
    return ReadCheckpoint(**file, Expectation(), visitor);
  }

  absl::StatusOr<CheckpointReport> Restore() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex);
  absl::StatusOr<CheckpointReport> Write(bool paced) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex);
  absl::Status WriteAll(CheckpointWriter* writer, const CheckpointHeader& header);
  absl::Status WriteDomain(const Domain& domain, CheckpointWriter* writer);
  absl::Status WriteEngines(CheckpointWriter* writer);
  absl::Status Pause(Time begun, Time* worked_from);
  // Whether a checkpoint may be written. Before `Start`, engines may still have to come back, and a
  // checkpoint without them would hide the older one that has them, since the youngest is restored.
  bool MayWrite() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return directory == nullptr || started;
  }
  void Run();

  const CheckpointOptions options;
  HolderRegistry* const registry;
  EngineDirectory* const directory;

  Mutex write_mutex;  // taken before `mutex`; held for a whole checkpoint
  CheckpointStore store ABSL_GUARDED_BY(write_mutex);
  // The checkpoint that `Restore` took, which `RestoreEngines` reads again. It is still there then:
  // nothing is written, so nothing removed, before `Start`.
  std::optional<uint64_t> restored ABSL_GUARDED_BY(write_mutex);

  mutable Mutex mutex;
  CondVar wake;
  bool started ABSL_GUARDED_BY(mutex) = false;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  std::optional<Time> begun_at ABSL_GUARDED_BY(mutex);  // the last one that is there
  CheckpointStats stats ABSL_GUARDED_BY(mutex);
  std::thread thread;

  Gauge age_seconds;
  Gauge last_seconds;
  Gauge last_bytes;
  Gauge last_blocks;
  Gauge free_bytes;
  Gauge interval_seconds;
  Gauge restore_seconds;
  Counter writes;
  Counter failures;
  Counter refusals;
};

// ---- Start ----

absl::StatusOr<CheckpointReport> Checkpointer::State::Restore() {
  // Tries the checkpoints from the youngest to the oldest until one can be read whole. A directory
  // that cannot be written may still be read, so other errors of `Open` than a foreign lock do not
  // end it here.
  // OK: `restored` is set. NOT_FOUND: there is none. DATA_LOSS: there are some, and none can be
  // read; the reason is the youngest one's.
  const absl::Status opened = store.Open();
  const absl::StatusOr<std::vector<uint64_t>> numbers = store.Numbers();
  if (absl::IsFailedPrecondition(opened) || !numbers.ok())
    return opened.ok() ? numbers.status() : opened;
  absl::Status youngest;
  for (const uint64_t number : *numbers) {
    const Time begun = Clock::Real().Now();
    StreamsRestorer restorer(registry, options.wall_time_ns());
    const absl::StatusOr<CheckpointCounts> counts = Read(number, &restorer);
    if (!counts.ok()) {
      Log(LogLevel::kWarning, "a checkpoint cannot be restored",
          {{"path", store.PathOf(number)}, {"reason", counts.status()}});
      // Kept on disk: an operator may want to look at it, and it goes with its age.
      refusals.Increment();
      if (youngest.ok())
        youngest = absl::DataLossError(
            absl::StrCat("none of the checkpoints in ", options.directory, " can be read; ",
                         store.PathOf(number), ": ", counts.status().message()));
      MutexLock lock(&mutex);
      ++stats.refused;
      continue;
    }
    restored = number;
    const CheckpointReport report = {.number = number,
                                     .path = store.PathOf(number),
                                     .counts = *counts,
                                     .took = Clock::Real().Now() - begun,
                                     .age = restorer.age()};
    restore_seconds.Set(Seconds(report.took));
    Log(LogLevel::kInfo, "restored from a checkpoint",
        {{"path", report.path},
         {"age_seconds", Seconds(report.age)},
         {"holders", counts->holders},
         {"blocks", counts->blocks},
         {"incomplete", restorer.shed()},
         {"seconds", Seconds(report.took)}});
    return report;
  }
  if (!youngest.ok()) {
    MutexLock lock(&mutex);
    return stats.restore_error = youngest;
  }
  if (!opened.ok()) return opened;
  return absl::NotFoundError("no checkpoint to restore in " + options.directory);
}

// The errors that end the start of a leaf, worded for its operator.
absl::Status Checkpointer::Open() {
  MutexLock lock(&state_->write_mutex);
  const absl::Status bad = state_->store.Open();
  if (bad.ok()) return bad;
  if (!absl::IsFailedPrecondition(bad)) return absl::InvalidArgumentError(bad.message());
  return absl::FailedPreconditionError(
      state_->options.directory +
      " is used by another process, most likely another leaf: each needs a directory of its own (" +
      std::string(bad.message()) + ")");
}

absl::StatusOr<CheckpointReport> Checkpointer::Restore() {
  MutexLock lock(&state_->write_mutex);
  return state_->Restore();
}

// OK without a restored checkpoint: there is nothing to do then.
absl::Status Checkpointer::RestoreEngines(const NamedByFlags& named) {
  MutexLock lock(&state_->write_mutex);
  if (!state_->restored.has_value() || state_->directory == nullptr) return absl::OkStatus();
  EnginesRestorer restorer(state_->options.contract, state_->directory, named);
  return state_->Read(*state_->restored, &restorer).status();
}

// ---- Writing ----

// Writes one checkpoint under the next number.
// 1. `store.Open` again: an error of the disk at the start may be over by now.
// 2. `store.Write` makes the file durable under its name, with `WriteAll` as its content.
// 3. The outcome is counted, with the free room of the disk either way.
// Interrupted by `Stop` (CANCELLED) it counts neither as written nor as failed. On any error the
// older checkpoints are still there.
absl::StatusOr<CheckpointReport> Checkpointer::State::Write(bool paced) {
  // Linux has a priority per thread; it stays lowered, which is right for the own thread and is
  // documented for callers of `WriteNow`. A refusal is ignored: pacing remains.
  if (paced) setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice);
  const Time begun = Clock::Real().Now();
  CheckpointReport report;
  Time worked_from = begun;
  absl::Status status = store.Open();
  const absl::StatusOr<uint64_t> number = store.NextNumber();
  if (status.ok()) status = number.status();
  if (status.ok()) {
    report.number = *number;
    report.path = store.PathOf(*number);
    const CheckpointHeader header = {.contract_id = options.contract.Id(),
                                     .cell = options.cell,
                                     .replica = options.replica,
                                     .wall_time_ns = options.wall_time_ns(),
                                     .number = *number};
    status = store.Write(*number, [&](WritableFile* file) {
      std::function<absl::Status()> pause;
      if (paced) pause = [&] { return Pause(begun, &worked_from); };
      CheckpointWriter writer(file, pause);
      const absl::Status written = WriteAll(&writer, header);
      report.counts = writer.counts();
      return written;
    });
  }
  report.took = Clock::Real().Now() - begun;
  if (absl::IsCancelled(status)) return status;  // we are stopping
  MutexLock lock(&mutex);
  const absl::StatusOr<uint64_t> room = options.files->FreeBytes(options.directory);
  stats.free_bytes = room.ok() ? std::optional(*room) : std::nullopt;
  stats.last_error = status;
  if (!status.ok()) {
    ++stats.failed;
    failures.Increment();
    Log(LogLevel::kError, "no checkpoint could be written",
        {{"directory", options.directory}, {"reason", status}});
    return status;
  }
  ++stats.written;
  stats.last = report;
  begun_at = begun;
  writes.Increment();
  last_seconds.Set(Seconds(report.took));
  last_bytes.Set(static_cast<double>(report.counts.bytes));
  last_blocks.Set(static_cast<double>(report.counts.blocks));
  return report;
}

// The order of the format: header, domains with their holders, engines, end.
absl::Status Checkpointer::State::WriteAll(CheckpointWriter* writer,
                                           const CheckpointHeader& header) {
  if (absl::Status status = writer->Begin(header); !status.ok()) return status;
  for (const Domain& domain : registry->Domains())
    if (absl::Status status = WriteDomain(domain, writer); !status.ok()) return status;
  if (absl::Status status = WriteEngines(writer); !status.ok()) return status;
  return writer->End();
}

// One holder after the other, so that only one holder's blocks are copied at a time; cuts of
// different holders are of different moments. Skipped are holders fed in this process (they come
// back with the engines that feed them) and holders that left since they were listed.
// A domain that was forgotten and made anew in between may have another block size: its record is
// then written again before the holder.
absl::Status Checkpointer::State::WriteDomain(const Domain& domain, CheckpointWriter* writer) {
  uint32_t block_size = 0;  // of the domain as written
  for (const HolderId& id : registry->HoldersOf(domain)) {
    const absl::StatusOr<HolderCut> cut = registry->Cut(domain, id);
    if (!cut.ok()) continue;
    if (cut->block_size != block_size) {
      block_size = cut->block_size;
      if (absl::Status status = writer->AddDomain(domain, block_size); !status.ok()) return status;
    }
    if (absl::Status status = writer->AddHolder(*cut); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// A replica's snapshot as a part of the file, piece by piece as it is made. Without engines there
// is none, which readers take for an empty one.
absl::Status Checkpointer::State::WriteEngines(CheckpointWriter* writer) {
  if (directory == nullptr || directory->instances() == 0) return absl::OkStatus();
  SnapshotStats written;
  const TextSource source =
      ReplicaSnapshotSource(options.contract, directory, /*names=*/true, &written);
  std::string piece;
  for (bool more = true; more;) {
    piece.clear();
    more = source(&piece);
    if (absl::Status status = writer->AddEngines(piece); !status.ok()) return status;
  }
  writer->CountEngineNames(written.names);
  return absl::OkStatus();
}

// Called by the writer after each record. Sleeps in proportion to the work since the last sleep,
// until half of `every` is over: a checkpoint that takes longer is written at full speed from then
// on, so that it is done before the next one is due. CANCELLED: `Stop` was called.
absl::Status Checkpointer::State::Pause(Time begun, Time* worked_from) {
  const Time now = Clock::Real().Now();
  const Duration worked = now - *worked_from;
  MutexLock lock(&mutex);
  if (worked >= kWorkAtOnce && now - begun < options.every / 2) {
    const Time until = now + kPausesPerWork * worked;
    while (!stopping) {
      const Duration left = until - Clock::Real().Now();
      if (left <= Duration::zero()) break;
      wake.WaitFor(&mutex, left);
    }
    *worked_from = Clock::Real().Now();
  }
  return stopping ? absl::CancelledError("stopping") : absl::OkStatus();
}

// The thread from `Start` to `Stop`. Waits a whole `every` after each checkpoint, so a slow disk
// makes them rarer and never piles them up.
void Checkpointer::State::Run() {
  for (;;) {
    {
      MutexLock lock(&mutex);
      const Time until = Clock::Real().Now() + options.every;
      while (!stopping) {
        const Duration left = until - Clock::Real().Now();
        if (left <= Duration::zero()) break;
        wake.WaitFor(&mutex, left);
      }
      if (stopping) return;
    }
    MutexLock lock(&write_mutex);
    Write(/*paced=*/true).status().IgnoreError();  // told and counted
  }
}

Checkpointer::Checkpointer(CheckpointOptions options, HolderRegistry* registry,
                           EngineDirectory* directory, Metrics* metrics)
    : state_(std::make_unique<State>(std::move(options), registry, directory, metrics)) {}

Checkpointer::~Checkpointer() { Stop(/*write_last=*/false); }

void Checkpointer::Start() {
  {
    MutexLock lock(&state_->mutex);
    state_->started = true;
  }
  state_->thread = std::thread([state = state_.get()] { state->Run(); });
}

// Waits for the checkpoint under way, if there is one, before it looks whether it may write.
absl::StatusOr<CheckpointReport> Checkpointer::WriteNow(bool paced) {
  MutexLock writing(&state_->write_mutex);
  {
    MutexLock lock(&state_->mutex);
    if (state_->stopping) return absl::UnavailableError("stopping");
    if (!state_->MayWrite()) return absl::UnavailableError("engines are being recovered");
  }
  return state_->Write(paced);
}

// 1. `stopping` ends the sleeps of `Run` and `Pause`; the paced checkpoint under way is given up,
//    an unpaced one of `WriteNow` is finished.
// 2. The thread is joined without any lock held.
// 3. The last checkpoint is written at full speed, unless engines never came back (`MayWrite`).
void Checkpointer::Stop(bool write_last) {
  {
    MutexLock lock(&state_->mutex);
    if (state_->stopping) return;
    state_->stopping = true;
    state_->wake.SignalAll();
  }
  if (state_->thread.joinable()) state_->thread.join();
  {
    MutexLock lock(&state_->mutex);
    write_last = write_last && state_->MayWrite();
  }
  MutexLock writing(&state_->write_mutex);
  if (write_last) state_->Write(/*paced=*/false).status().IgnoreError();
}

CheckpointStats Checkpointer::Stats() const {
  MutexLock lock(&state_->mutex);
  CheckpointStats stats = state_->stats;
  if (state_->begun_at.has_value()) stats.age = Clock::Real().Now() - *state_->begun_at;
  return stats;
}

}  // namespace kvatlas
