// The leaf's own ingest (`EngineDecoder`, `EngineWorker`) with a `Contents` in the place of the
// index: `ContentsWriter` is the bridge. All of it runs under the caller's lock, so `changes` can
// be a plain pointer that is valid during a call.

#include "publisher/engine_batches.h"

#include <cstddef>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/overlap.h"
#include "indexer/kv_events/engine_decoder.h"
#include "indexer/kv_events/engine_event.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// The only rank of the worker; ranks that a batch names are erased before it is applied.
constexpr uint32_t kRank = 0;

// Changes from the worker, with the worker's lock held, into the contents.
class ContentsWriter : public HoldingsWriter {
 public:
  // `changes` points to where changes go while the worker is called.
  ContentsWriter(Contents* contents, std::vector<Event>* const* changes, Trust* trust)
      : contents_(contents), changes_(changes), trust_(trust) {}

  Applied Apply(std::span<const Event> events) override {
    return ApplyInOrder(events, [this](const Event& event, uint64_t* changed) {
      *changed = contents_->Take(event, *changes_);
      return absl::OkStatus();
    });
  }
  void SetTrust(Trust trust) override { *trust_ = trust; }
  void SetLayout(const CacheLayout& layout) override { contents_->SetLayout(layout); }

 private:
  Contents* const contents_;
  std::vector<Event>* const* const changes_;
  Trust* const trust_;
};

}  // namespace

struct EngineBatches::State {
  State(const EngineBatchesOptions& options, Contents* contents)
      : name(options.name),
        worker({.name = options.name,
                .block_size = options.block_size,
                .contract = options.contract,
                .lora_name = options.lora_name,
                .additional_salt = options.cache_salt,
                .drops_last = options.drops_last,
                .chunk_tokens = options.chunk_tokens,
                .window_tokens = options.window_tokens,
                .hybrid = options.hybrid,
                .ranks_max = 1},
               [this, contents](uint32_t) -> absl::StatusOr<std::shared_ptr<HoldingsWriter>> {
                 return std::make_shared<ContentsWriter>(contents, &changes, &trust);
               }) {}

  const std::string name;
  EngineDecoder decoder;
  // Reused between calls for its memory.
  EngineBatch batch;
  std::vector<Event>* changes = nullptr;  // while the worker is called
  Trust trust = Trust::kExact;
  uint64_t unreadable = 0;
  bool look_ahead_told = false;
  EngineWorker worker;
};

EngineBatches::EngineBatches(const EngineBatchesOptions& options, Contents* contents)
    : state_(std::make_unique<State>(options, contents)) {}

EngineBatches::~EngineBatches() = default;

// A batch that cannot be read may have removed blocks: `Unreadable` puts all that is held into
// doubt.
absl::Status EngineBatches::Apply(std::string_view payload, Time now, std::vector<Event>* changes) {
  state_->changes = changes;
  const absl::Status decoded = state_->decoder.Decode(payload, &state_->batch);
  if (!decoded.ok()) {
    ++state_->unreadable;
    state_->worker.Unreadable(kRank, now);
    return decoded;
  }
  // A publisher is one rank, whatever number the engine gives it.
  state_->batch.rank.reset();
  for (EngineEvent& event : state_->batch.events) event.rank.reset();
  state_->worker.Apply(kRank, state_->batch, now);
  if (state_->worker.look_aheads() != 0 && !std::exchange(state_->look_ahead_told, true)) {
    Log(LogLevel::kWarning, "engine's hashes look ahead: leaves are to be asked for such",
        {{"worker", state_->name}});
  }
  return absl::OkStatus();
}

void EngineBatches::Clear(Time now, std::vector<Event>* changes) {
  state_->changes = changes;
  state_->worker.Restarted(kRank, now);
}

void EngineBatches::Tick(Time now, std::vector<Event>* changes) {
  state_->changes = changes;
  state_->worker.Tick(now);
}

bool EngineBatches::degraded() const { return state_->trust != Trust::kExact; }

EngineBatchesStats EngineBatches::Stats() const {
  const EngineWorkerStats worker = state_->worker.Stats();
  EngineBatchesStats stats{.batches = worker.batches,
                           .unreadable = state_->unreadable,
                           .blocks_stored = worker.blocks_stored,
                           .blocks_removed = worker.blocks_removed,
                           .clears = worker.clears,
                           .last_refusal = worker.last_refusal,
                           .look_ahead = state_->worker.look_aheads() != 0};
  for (size_t i = 0; i < kRefusals; ++i) {
    // Names of parts of blocks are no mistake, nor are their removals.
    const Refusal refusal = static_cast<Refusal>(i);
    const bool parts = worker.refused[static_cast<size_t>(Refusal::kPartBlock)] != 0;
    const bool usual = refusal == Refusal::kNotMainAttention || refusal == Refusal::kPartBlock ||
                       (parts && refusal == Refusal::kUnknownRemoved);
    if (!usual) stats.refused += worker.refused[i];
  }
  for (const EngineRankStats& rank : worker.ranks) stats.parked += rank.parked;
  return stats;
}

}  // namespace kvatlas
