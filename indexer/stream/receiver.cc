// The receiving state machine, message by message: `On(Hello)`, `On(Batch)`, `On(SnapshotPart)`,
// `On(Heartbeat)`, then repair and time.
//
// Three things may be wrong, each with its own way back to `kExact`:
//   kReplay     batches are missing that the sender may still have: healed once `repaired_at` is
//               applied
//   kSnapshot   what is held is in doubt: healed by a whole snapshot, or by an equal digest
//   shed        a bound refused something: digests are not compared; a snapshot is tried again
//               every `shed_retry`

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
  bool shed = false;  // the sink refused a part of it
  // Held when it began, and not named by it yet: by side class (0: the main class), block and
  // tiers. Entries only go; the rest is removed after the last part. About 17 bytes a block.
  std::map<SideClass, absl::flat_hash_map<SequenceHash, TierMask>> unnamed;
};

// Takes what a part names off the list. A side block may have been held under another class number,
// since layouts change: it is looked for in all side classes, a main block among the main ones
// alone.
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
  // In order of severity; see the top of this file. `StartRepair` never goes down, `Healed` ends
  // it.
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
  // Messages other than a hello are taken only after a hello that was welcomed.
  bool connected = false;
  bool gone = false;
  Epoch epoch = 0;
  uint64_t instance_id = 0;
  BatchNumber applied = 0;
  // The highest number named on this connection, in whatever message. Links keep the order, so a
  // snapshot with a lower number that is not here did not arrive whole: `Need` tells the sender.
  BatchNumber highest_number_seen = 0;
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

  // Bounds on snapshots count over all attempts since one was whole: a sender that begins one after
  // the other without an end runs into them like one that never ends its first.
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

// 1. `Validate` refuses what no correct sender would say: nothing has changed then.
// 2. The message is handled by its `On`, which appends the answers to `out`.
// 3. `failure` is returned once: set where the message was handled and the connection must end all
//    the same (`WithinBounds`). The caller sends `out` in any case.
absl::Status StreamReceiver::OnMessage(const SenderMessage& message, Time now,
                                       std::vector<ReceiverMessage>* out) {
  if (absl::Status status = Validate(message); !status.ok()) return status;
  if (!state_->connected && !std::holds_alternative<Hello>(message)) {
    return absl::InvalidArgumentError("a message before the hello");
  }
  std::visit([&](const auto& typed) { state_->On(typed, now, out); }, message);
  return std::exchange(state_->failure, absl::OkStatus());
}

// The next hello decides: a sender that goes on sends what is behind `applied`; one that has not
// sent as much is another one (`On(Hello)`). Until then `restored` keeps the trust below exact.
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
//    epoch that is too far ahead of the clock (`CheckEpoch`) does not count, since no sender could
//    exceed it.
// 2. A new epoch is adopted: `Adopt`. The known one goes on where it was.
// 3. Batches up to the hello's `last_sent` are missing until they are applied (kReplay); those
//    below `first_kept` exist no more, so that only a snapshot helps (kSnapshot).
// 4. `Welcome` names the next batch, or wants a snapshot. It counts as the first `Need`, which is
//    due again after `retry_after`.
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
  // A checkpoint was written later than this sender's state: the sender has lost its history and
  // numbers anew under the old epoch. Its stream is treated as a new one.
  const bool lost_history = restored && hello.last_sent < applied;
  if (!known || hello.epoch > epoch || lost_history || (!counts && hello.epoch != epoch))
    Adopt(hello, now);
  restored = false;
  // The hello may tell of a later batch than `applied`. That does no harm: the batch that ends the
  // doubt comes later still and clears it.
  if (hello.degraded) sender_degraded = true;
  connected = true;
  gone = false;
  highest_number_seen = 0;
  last_heard = now;
  if (applied + 1 < hello.first_kept) StartRepair(Repair::kSnapshot, now);
  // The first batches are old. Holdings are exact only once the sender's latest batch is applied.
  if (applied < hello.last_sent) {
    StartRepair(Repair::kReplay, now);
    repaired_at = std::max(repaired_at, hello.last_sent);
  }
  const bool ask = repair == Repair::kSnapshot;
  if (ask) ++stats.snapshots_asked;
  if (repair != Repair::kNone) ask_at = now + options.retry_after;
  out->push_back(Welcome{.next = applied + 1, .snapshot = ask, .credit = options.credit_batches});
}

// Takes over another epoch; its numbers start again at 1. Holdings from before stay, degraded,
// until a snapshot says which of them are true: a restarted publisher in front of a running engine
// still holds most of them. Without any, the batches from the first on are as good as a snapshot,
// if the sender still has them all.
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

// 1. A number that was applied is a duplicate: acknowledged again, since the acknowledgement may
//    have been lost.
// 2. During a snapshot batches are dropped.
// 3. A gap: everything up to this number is missing, and the sender is asked to replay
//    (`AskIfDue`).
// 4. The next number is applied: layout before the events that need it, then load, `degraded`, and
//    last the digest, which is of the state after the batch.
// 5. A replay is healed by its last batch; while it makes progress `Need` is put off.
void StreamReceiver::State::On(const Batch& batch, Time now, Out* out) {
  last_heard = now;
  highest_number_seen = std::max(highest_number_seen, batch.number);
  if (batch.number <= applied) {
    ++stats.batches_duplicate;
    return SendAck(out);
  }
  // The snapshot on its way includes this batch, or the batch is behind it and is replayed after
  // it.
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
    // The rest of the batch goes on: the stream stays in step, and only trust suffers.
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

// Equal digests after the same batch mean equal contents: they heal a doubt (kSnapshot), and
// shedding, which then took nothing away for good. They do not end a replay, since later batches
// are missing. While something is shed a difference is expected and is no reason to ask.
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

// The only message that shows a lost tail: no later batch would. Parts of a snapshot need time,
// during which the sender's numbers are ahead: that is no gap.
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

// The caller forgets the holder; until it has done so the trust is degraded.
void StreamReceiver::State::On(const Goodbye&, Time now, Out*) {
  last_heard = now;
  gone = true;
  connected = false;
}

// --- Snapshots -----------------------------------------------------------------------------------

// 1. A part of a snapshot from before `applied`, or of the one that was just finished, is
//    acknowledged, so that the sender stops. A part older than the snapshot on its way is ignored.
// 2. Parts come in order (`TakePart`) and within bounds (`WithinBounds`).
// 3. Blocks that a part names are stored at once and taken off the list `unnamed`: memory holds the
//    blocks once, and queries see them before the last part.
// 4. After the last part what was not named is removed (`RemoveUnnamed`), and the digests are
//    compared (`FinishSnapshot`).
// Meanwhile the trust is degraded (`BeginSnapshot` starts a repair), since both old and new are
// held.
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

// True if `part` is the next one of the snapshot on its way, or the first of a newer one, which
// then replaces it. A part that is here already is passed over. A missing part spoils the snapshot:
// it is dropped and asked for again.
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
  // An empty holder needs no list: the usual case after a restart of this process.
  if (sink->CurrentDigest() != Digest{}) {
    sink->ForEachHeld([&](SequenceHash block, TierMask tiers, SideClass side) {
      snapshot->unnamed[side][block] = tiers;
    });
  }
  StartRepair(Repair::kSnapshot, now);
}

// True if this snapshot is within its bounds, together with the unfinished ones before it. Else it
// is dropped, and the status ends the connection. `dropped` stays until the repair ends: parts of
// further attempts do not put off `repair_timeout` then.
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

// A snapshot that was partly refused heals (asking again at once would bring the same) and leaves
// `shed`, which keeps the trust degraded until `shed_retry`. A different digest leaves the repair
// open: `Progress` has just put off the next `Need` by `retry_after`.
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

// One removal a tier and class, in batches of the usual size (`Remove`): the sink takes no longer
// steps for a snapshot than for events.
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

// Begins a repair, or raises a replay to a snapshot; never lowers it. The clock of `repair_timeout`
// starts with the first and is not put back by the raise. The first `Need` is due at once.
void StreamReceiver::State::StartRepair(Repair kind, Time now) {
  if (repair == Repair::kNone) {
    confirmed_at = now;
    given_up = dropped = false;
  }
  if (repair == kind || repair == Repair::kSnapshot) return;
  repair = kind;
  ask_at = now;
}

// A part of a snapshot confirms what is held, so that a long snapshot is not given up half way;
// unless an attempt was dropped for its size or time.
void StreamReceiver::State::Progress(Time now) {
  if (!dropped) confirmed_at = now;
  ask_at = now + options.retry_after;
}

// A snapshot that is still coming keeps its counts: it ends by its last part.
void StreamReceiver::State::Healed() {
  repair = Repair::kNone;
  repaired_at = 0;
  given_up = dropped = false;
  if (!snapshot.has_value()) ForgetSnapshots();
}

// At most one `Need` in `retry_after`, and none without a connection: the next welcome asks then. A
// request for a snapshot names the highest number seen, by which the sender tells a lost snapshot
// from one that has not arrived yet.
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

// Nothing has confirmed what is held for `repair_timeout`: it is cleared, since answers should not
// promise it any longer. From then on only a snapshot brings it back, not a replay.
void StreamReceiver::State::GiveUp() {
  given_up = true;
  ++stats.repairs_timed_out;
  snapshot.reset();
  ForgetSnapshots();
  repair = Repair::kSnapshot;
  sink->Apply(Cleared{}).IgnoreError();
}

// Counts and sets the clock once, when shedding begins; it ends with a whole snapshot or an equal
// digest.
void StreamReceiver::State::Shed(Time now) {
  if (shed) return;
  shed = true;
  ++stats.sheds;
  shed_retry_at = now + options.shed_retry;
}

// --- Time and the rest ---------------------------------------------------------------------------

void StreamReceiver::OnDisconnected(Time) { state_->connected = false; }

// 1. While something is shed, a snapshot is asked for every `shed_retry`: the bound may have room
//    by now.
// 2. A repair without progress for `repair_timeout` is given up, once.
// 3. A due `Need` is repeated.
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

// Stale comes first. A restored holder may have a running lease (`lease_from`) and yet not have
// been heard for long: then it is stale although it is not expired.
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

// An entry of the hash map: key, padded value, control byte.
uint64_t StreamReceiver::snapshot_bytes() const {
  if (!state_->snapshot.has_value()) return 0;
  uint64_t bytes = 0;
  for (const auto& [side, blocks] : state_->snapshot->unnamed)
    bytes += blocks.capacity() * (sizeof(SequenceHash) + sizeof(uint64_t) + 1);
  return bytes;
}

}  // namespace kvatlas
