#include "indexer/stream/receiver.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/assert.h"
#include "indexer/stream/validate.h"

namespace kvatlas {
namespace {

constexpr Tier kAllTiers[kTiers] = {Tier::kDevice, Tier::kHost, Tier::kDisk, Tier::kExternal};

// Not inside `State`, where clang would not see it complete.
struct Snapshot {
  uint64_t id = 0;
  BatchNumber as_of = 0;
  uint32_t next_part = 0;
  bool shed = false;
  // What was held before it and it has not named yet.
  std::map<SideClass, absl::flat_hash_map<SequenceHash, TierMask>> unnamed;
};

void Name(const Stored& stored, Snapshot* snapshot) {
  for (auto& [side, blocks] : snapshot->unnamed) {
    if ((side != 0) != (stored.side != 0)) continue;
    for (const SequenceHash block : stored.blocks) {
      const auto found = blocks.find(block);
      if (found == blocks.end()) continue;
      found->second = found->second & ~TierMask(stored.tier);
      if (found->second.empty()) blocks.erase(found);
    }
  }
}

}  // namespace

struct StreamReceiver::State {
  using Out = std::vector<ReceiverMessage>;
  // What is missing: nothing, batches that the sender may still have, or certainty about
  // everything.
  enum class Repair { kNone, kReplay, kSnapshot };

  State(const ReceiverOptions& options_in, HoldingsSink* sink_in)
      : options(options_in), sink(sink_in) {}

  void On(const Hello& hello, Time now, Out* out);
  void On(const Batch& batch, Time now, Out* out);
  void On(const SnapshotPart& part, Time now, Out* out);
  void On(const Heartbeat& heartbeat, Time now, Out* out);
  void On(const Goodbye& goodbye, Time now, Out* out);

  void Adopt(const Hello& hello, Time now);
  void Compare(const Digest& digest, Time now, Out* out);
  bool TakePart(const SnapshotPart& part, Time now, Out* out);
  void BeginSnapshot(const SnapshotPart& part, Time now);
  bool WithinBounds(const SnapshotPart& part, Time now);
  void ForgetSnapshots() {
    snapshots_began.reset();
    snapshots_blocks = 0;
  }
  void FinishSnapshot(const SnapshotPart& part, Time now);
  void RemoveUnnamed();
  void Remove(Tier tier, SideClass side, const std::vector<SequenceHash>& blocks);

  void StartRepair(Repair kind, Time now);
  void Progress(Time now);
  void Healed();
  void AskIfDue(Time now, Out* out);
  void GiveUp();
  void Shed(Time now);
  void SendAck(Out* out) const {
    out->push_back(Ack{.applied = applied, .credit = options.credit_batches});
  }

  const ReceiverOptions options;
  HoldingsSink* const sink;

  bool known = false;  // `epoch`, `instance_id` and `applied` mean something
  bool connected = false;
  bool gone = false;
  Epoch epoch = 0;
  uint64_t instance_id = 0;
  BatchNumber applied = 0;
  BatchNumber highest_number_seen = 0;  // the highest on this connection; links keep the order
  Time last_heard{0};

  Repair repair = Repair::kNone;
  BatchNumber repaired_at = 0;  // a replay is complete once this is applied
  Time confirmed_at{0};         // of the repair: its start, or its latest progress by snapshot
  Time ask_at{0};               // when `Need` is (again) due
  bool given_up = false;
  bool dropped = false;  // a snapshot beyond its bounds: parts of others are no progress

  bool shed = false;
  Time shed_retry_at{0};
  bool sender_degraded = false;  // as it said with the last batch applied

  bool restored = false;  // and its sender has not been heard yet
  Time lease_from{0};

  std::optional<Snapshot> snapshot;  // being received
  std::optional<Time>
      snapshots_began;            // the first since one was whole, or what is held was given up
  uint64_t snapshots_blocks = 0;  // that those named
  std::optional<uint64_t> snapshot_done;  // the id of the last one applied in this epoch
  absl::Status failure;                   // for `OnMessage` to return
  ReceiverStats stats;
};

StreamReceiver::StreamReceiver(const ReceiverOptions& options, HoldingsSink* sink)
    : state_(std::make_unique<State>(options, sink)) {}

StreamReceiver::~StreamReceiver() = default;

absl::Status StreamReceiver::OnMessage(const SenderMessage& message, Time now,
                                       std::vector<ReceiverMessage>* out) {
  if (absl::Status status = Validate(message); !status.ok()) return status;
  if (!state_->connected && !std::holds_alternative<Hello>(message)) {
    return absl::InvalidArgumentError("a message before the hello");
  }
  std::visit([&](const auto& typed) { state_->On(typed, now, out); }, message);
  return std::exchange(state_->failure, absl::OkStatus());
}

void StreamReceiver::Restore(const ReceiverPosition& position, Time heard, Time lease_from) {
  State& s = *state_;
  s.known = s.restored = true;
  s.epoch = position.epoch;
  s.instance_id = position.instance_id;
  s.applied = position.applied;
  s.sender_degraded = position.sender_degraded;
  s.last_heard = heard;
  s.lease_from = lease_from;
  if (!position.whole) s.StartRepair(State::Repair::kSnapshot, lease_from);
}

// --- Hello ---------------------------------------------------------------------------------------

// 1. An older epoch is refused, and so is the same epoch of another instance. Exception: a known
// epoch that is too far ahead of the clock (`CheckEpoch`) does not count, since no sender could
// exceed it.  2. Any other epoch is adopted: `Adopt`.  3. The sender is told the next batch, or
// that nothing but a snapshot helps; until its latest batch is here, it is missing.
void StreamReceiver::State::On(const Hello& hello, Time now, Out* out) {
  const bool counts = known && CheckEpoch(epoch, options.clock->WallNs()).ok();
  const bool older = counts && hello.epoch < epoch;
  const bool other = counts && hello.epoch == epoch && hello.instance_id != instance_id;
  if (older || other) {
    ++stats.hellos_refused;
    out->push_back(
        Refuse{.code = absl::StatusCode::kFailedPrecondition,
               .reason = "another sender has this name: expected epoch " + std::to_string(epoch) +
                         " of instance " + std::to_string(instance_id) + ", found " +
                         (older ? "the older epoch " : "epoch ") + std::to_string(hello.epoch) +
                         " of instance " + std::to_string(hello.instance_id),
               .epoch = epoch,
               .instance_id = instance_id,
               .lapsed = now - std::max(last_heard, lease_from) >= options.lease_ttl});
    return;
  }
  // A sender that never sent what was kept of it is another one, whatever it calls itself.
  const bool lost_history = restored && hello.last_sent < applied;
  if (!known || hello.epoch > epoch || lost_history || (!counts && hello.epoch != epoch))
    Adopt(hello, now);
  restored = false;
  // Of a later batch, perhaps: one that ends it comes later still.
  if (hello.degraded) sender_degraded = true;
  connected = true;
  gone = false;
  highest_number_seen = 0;
  last_heard = now;
  if (applied + 1 < hello.first_kept) StartRepair(Repair::kSnapshot, now);
  // What comes first is old: nothing is current before the last of it.
  if (applied < hello.last_sent) {
    StartRepair(Repair::kReplay, now);
    repaired_at = std::max(repaired_at, hello.last_sent);
  }
  const bool ask = repair == Repair::kSnapshot;
  if (ask) ++stats.snapshots_asked;
  if (repair != Repair::kNone) ask_at = now + options.retry_after;
  out->push_back(Welcome{.next = applied + 1, .snapshot = ask, .credit = options.credit_batches});
}

// Numbers start again. Holdings of before, from another epoch or a checkpoint, stay until a
// snapshot says which of them are true; without any, the batches from the first on are as good.
void StreamReceiver::State::Adopt(const Hello& hello, Time now) {
  known = true;
  epoch = hello.epoch;
  instance_id = hello.instance_id;
  applied = 0;
  restored = false;
  snapshot.reset();
  snapshot_done.reset();
  repaired_at = 0;
  sender_degraded = false;
  const bool empty = sink->CurrentDigest() == Digest{};
  if (empty) {
    sink->SetLayout({});
    ForgetSnapshots();
  }
  if (!empty) {
    StartRepair(Repair::kSnapshot, now);
  } else if (hello.first_kept == 1) {
    Healed();
  }
}

// --- Batches -------------------------------------------------------------------------------------

void StreamReceiver::State::On(const Batch& batch, Time now, Out* out) {
  last_heard = now;
  highest_number_seen = std::max(highest_number_seen, batch.number);
  if (batch.number <= applied) {
    ++stats.batches_duplicate;
    return SendAck(out);
  }
  // Before, in or after a snapshot that is on its way: in it, or replayed after it.
  if (snapshot.has_value()) return;
  if (batch.number > applied + 1) {
    if (repair == Repair::kNone) ++stats.gaps;
    StartRepair(Repair::kReplay, now);
    repaired_at = std::max(repaired_at, batch.number);
    return AskIfDue(now, out);
  }
  KVATLAS_ASSERT(batch.number == applied + 1);
  if (batch.layout.has_value()) sink->SetLayout(*batch.layout);
  for (const Event& event : batch.events) {
    if (!sink->Apply(event).ok()) Shed(now);
  }
  if (batch.load.has_value()) sink->SetLoad(*batch.load);
  sender_degraded = batch.degraded;
  applied = batch.number;
  ++stats.batches_applied;
  stats.blocks_applied += BlockCount(batch);
  if (repair == Repair::kReplay) {
    ask_at = now + options.retry_after;
    if (applied >= repaired_at) Healed();
  }
  if (batch.digest.has_value()) Compare(*batch.digest, now, out);
  SendAck(out);
}

// Equal digests after the same batch heal whatever was wrong.
void StreamReceiver::State::Compare(const Digest& digest, Time now, Out* out) {
  if (sink->CurrentDigest() == digest) {
    ++stats.digests_equal;
    shed = false;
    if (repair == Repair::kSnapshot) Healed();
    return;
  }
  if (shed) return;
  ++stats.digests_different;
  StartRepair(Repair::kSnapshot, now);
  AskIfDue(now, out);
}

void StreamReceiver::State::On(const Heartbeat& heartbeat, Time now, Out* out) {
  last_heard = now;
  highest_number_seen = std::max(highest_number_seen, heartbeat.last_sent);
  if (heartbeat.last_sent > applied && !snapshot.has_value()) {
    if (repair == Repair::kNone) ++stats.gaps;
    StartRepair(Repair::kReplay, now);
    repaired_at = std::max(repaired_at, heartbeat.last_sent);
    AskIfDue(now, out);
  }
  SendAck(out);
}

void StreamReceiver::State::On(const Goodbye&, Time now, Out*) {
  last_heard = now;
  gone = true;
  connected = false;
}

// --- Snapshots -----------------------------------------------------------------------------------

// 1. Parts come in order (`TakePart`); what they name is stored at once and remembered.  2. After
// the last one what they did not name is removed (`RemoveUnnamed`), and the digests are compared
// (`FinishSnapshot`).
void StreamReceiver::State::On(const SnapshotPart& part, Time now, Out* out) {
  last_heard = now;
  if (part.as_of < applied || part.snapshot_id == snapshot_done) return SendAck(out);
  if (snapshot.has_value() && part.as_of < snapshot->as_of) return;
  if (!TakePart(part, now, out) || !WithinBounds(part, now)) return;
  if (part.part == 0) sink->SetLayout(part.layout.value_or(CacheLayout{}));
  for (const Stored& stored : part.stored) {
    if (!sink->Apply(stored).ok()) snapshot->shed = true;
    Name(stored, &*snapshot);
    stats.blocks_applied += stored.blocks.size();
  }
  ++snapshot->next_part;
  Progress(now);
  if (!part.last) return;
  FinishSnapshot(part, now);
  SendAck(out);
}

// Whether `part` is the next one of the snapshot on its way, which it starts when it is a first
// part.
bool StreamReceiver::State::TakePart(const SnapshotPart& part, Time now, Out* out) {
  const bool same = snapshot.has_value() && snapshot->id == part.snapshot_id;
  if (same && part.part < snapshot->next_part) return false;
  if (same && part.part == snapshot->next_part) return true;
  if (!same && part.part == 0) {
    BeginSnapshot(part, now);
    return true;
  }
  snapshot.reset();
  highest_number_seen = std::max(highest_number_seen, part.as_of);  // the rest of it is of no use
  StartRepair(Repair::kSnapshot, now);
  AskIfDue(now, out);
  return false;
}

void StreamReceiver::State::BeginSnapshot(const SnapshotPart& part, Time now) {
  snapshot.emplace();
  snapshot->id = part.snapshot_id;
  snapshot->as_of = part.as_of;
  if (!snapshots_began.has_value()) snapshots_began = now;
  if (sink->CurrentDigest() != Digest{}) {
    sink->ForEachHeld([&](SequenceHash block, TierMask tiers, SideClass side) {
      snapshot->unnamed[side][block] = tiers;
    });
  }
  StartRepair(Repair::kSnapshot, now);
}

// Whether the snapshot with this part is, together with those before it that came to no end; else
// it is dropped.
bool StreamReceiver::State::WithinBounds(const SnapshotPart& part, Time now) {
  for (const Stored& stored : part.stored) snapshots_blocks += stored.blocks.size();
  KVATLAS_ASSERT(snapshot.has_value() && snapshots_began.has_value());
  const uint64_t blocks_max = SnapshotBlocksMax(options);
  const bool too_long = now - *snapshots_began >= options.snapshot_time_max;
  if (snapshots_blocks <= blocks_max && !too_long) return true;
  failure = absl::ResourceExhaustedError(
      too_long ? "a snapshot that takes longer than " +
                     std::to_string(options.snapshot_time_max / std::chrono::seconds(1)) +
                     " s is not taken"
               : "a snapshot of more than " + std::to_string(blocks_max) + " blocks is not taken");
  ++stats.snapshots_dropped;
  if (given_up) sink->Apply(Cleared{}).IgnoreError();  // nothing but what such snapshots named
  snapshot.reset();
  ForgetSnapshots();
  dropped = true;
  return false;
}

void StreamReceiver::State::FinishSnapshot(const SnapshotPart& part, Time now) {
  KVATLAS_ASSERT(snapshot.has_value() && snapshot->id == part.snapshot_id);
  KVATLAS_ASSERT(part.digest.has_value());  // `Validate` took it
  RemoveUnnamed();
  const bool was_shed = snapshot->shed;
  snapshot.reset();
  ForgetSnapshots();
  snapshot_done = part.snapshot_id;
  applied = part.as_of;
  ++stats.snapshots_applied;
  if (part.load.has_value()) sink->SetLoad(*part.load);
  sender_degraded = part.degraded;
  shed = false;
  if (was_shed) {
    Healed();
    Shed(now);
  } else if (sink->CurrentDigest() == *part.digest) {
    ++stats.digests_equal;
    Healed();
  } else {
    ++stats.digests_different;  // asked for again, but not at once
  }
}

void StreamReceiver::State::RemoveUnnamed() {
  for (const auto& [side, blocks] : snapshot->unnamed) {
    std::array<std::vector<SequenceHash>, kTiers> by_tier;
    for (const auto& [block, tiers] : blocks) {
      for (const Tier tier : kAllTiers) {
        if (tiers.Has(tier)) by_tier[static_cast<size_t>(tier)].push_back(block);
      }
    }
    for (const Tier tier : kAllTiers) Remove(tier, side, by_tier[static_cast<size_t>(tier)]);
  }
}

void StreamReceiver::State::Remove(Tier tier, SideClass side,
                                   const std::vector<SequenceHash>& blocks) {
  for (size_t from = 0; from < blocks.size(); from += kBatchBlocksMax) {
    const size_t to = std::min(blocks.size(), from + kBatchBlocksMax);
    const Removed removed{
        .tier = tier, .blocks = {blocks.begin() + from, blocks.begin() + to}, .side = side};
    if (!sink->Apply(removed).ok()) snapshot->shed = true;
  }
}

// --- Repair --------------------------------------------------------------------------------------

// A need for a snapshot is never lowered to one for a replay.
void StreamReceiver::State::StartRepair(Repair kind, Time now) {
  if (repair == Repair::kNone) {
    confirmed_at = now;
    given_up = dropped = false;
  }
  if (repair == kind || repair == Repair::kSnapshot) return;
  repair = kind;
  ask_at = now;
}

void StreamReceiver::State::Progress(Time now) {
  if (!dropped) confirmed_at = now;
  ask_at = now + options.retry_after;
}

void StreamReceiver::State::Healed() {
  repair = Repair::kNone;
  repaired_at = 0;
  given_up = dropped = false;
  if (!snapshot.has_value()) ForgetSnapshots();
}

void StreamReceiver::State::AskIfDue(Time now, Out* out) {
  if (repair == Repair::kNone || !connected || now < ask_at) return;
  ask_at = now + options.retry_after;
  if (repair == Repair::kSnapshot) {
    ++stats.snapshots_asked;
    out->emplace_back(
        std::in_place_type<Need>,
        Need{.next = std::min(highest_number_seen + 1, kBatchNumberMax), .snapshot = true});
  } else {
    ++stats.replays_asked;
    out->emplace_back(std::in_place_type<Need>, Need{.next = applied + 1, .snapshot = false});
  }
}

// What is held is not confirmed, so that it goes; a replay would not bring it back.
void StreamReceiver::State::GiveUp() {
  given_up = true;
  ++stats.repairs_timed_out;
  snapshot.reset();
  ForgetSnapshots();
  repair = Repair::kSnapshot;
  sink->Apply(Cleared{}).IgnoreError();
}

void StreamReceiver::State::Shed(Time now) {
  if (shed) return;
  shed = true;
  ++stats.sheds;
  shed_retry_at = now + options.shed_retry;
}

// --- Time and the rest ---------------------------------------------------------------------------

void StreamReceiver::OnDisconnected(Time) { state_->connected = false; }

void StreamReceiver::Tick(Time now, std::vector<ReceiverMessage>* out) {
  State& s = *state_;
  if (s.shed && s.connected && now >= s.shed_retry_at) {
    s.shed_retry_at = now + s.options.shed_retry;
    s.StartRepair(State::Repair::kSnapshot, now);
  }
  if (s.repair == State::Repair::kNone) return;
  if (!s.given_up && now - s.confirmed_at >= s.options.repair_timeout) s.GiveUp();
  s.AskIfDue(now, out);
}

bool StreamReceiver::Expired(Time now) const {
  return !state_->known || now - lease_began() >= state_->options.lease_ttl;
}

Trust StreamReceiver::trust(Time now) const {
  if (Expired(now)) return Trust::kStale;
  if (now - state_->last_heard >= state_->options.lease_ttl) return Trust::kStale;
  const bool whole = state_->repair == State::Repair::kNone && !state_->shed && !state_->gone &&
                     !state_->sender_degraded && !state_->restored;
  return whole ? Trust::kExact : Trust::kDegraded;
}

// A replay that is awaited does not make what is held doubtful: it is what was held after
// `applied`.
ReceiverPosition StreamReceiver::position() const {
  const State& s = *state_;
  return {.epoch = s.epoch,
          .instance_id = s.instance_id,
          .applied = s.applied,
          .whole = s.repair != State::Repair::kSnapshot && !s.shed && !s.snapshot.has_value(),
          .sender_degraded = s.sender_degraded};
}

Time StreamReceiver::last_heard() const { return state_->last_heard; }
Time StreamReceiver::lease_began() const {
  return std::max(state_->last_heard, state_->lease_from);
}
bool StreamReceiver::gone() const { return state_->gone; }
Epoch StreamReceiver::epoch() const { return state_->epoch; }
uint64_t StreamReceiver::instance_id() const { return state_->instance_id; }
BatchNumber StreamReceiver::applied() const { return state_->applied; }
const ReceiverStats& StreamReceiver::stats() const { return state_->stats; }
BatchNumber StreamReceiver::behind() const {
  const BatchNumber sent = std::max(state_->highest_number_seen, state_->repaired_at);
  return sent > state_->applied ? sent - state_->applied : 0;
}

uint64_t StreamReceiver::snapshot_bytes() const {
  if (!state_->snapshot.has_value()) return 0;
  uint64_t bytes = 0;
  for (const auto& [side, blocks] : state_->snapshot->unnamed)
    bytes += blocks.capacity() * (sizeof(SequenceHash) + sizeof(uint64_t) + 1);
  return bytes;
}

}  // namespace kvatlas
