// The sending state machine in four parts: events into batches (`Append` and below it), connection
// and answers (`On...`), what to send next (`Poll`), and the rest. Nothing here waits or allocates
// without bound: the window is limited, and beyond it a snapshot is owed.

#include "indexer/stream/sender.h"

#include <algorithm>
#include <deque>
#include <variant>

#include "indexer/base/assert.h"
#include "indexer/stream/validate.h"

namespace kvatlas {
namespace {

// Blocks [from, from + count) of an event as an event of its own. The parent of a run that begins
// in the middle is the block before it; side blocks have no order, hence neither position nor
// parent.
Event Slice(const Stored& stored, size_t from, size_t count) {
  const auto begin = stored.blocks.begin() + from;
  if (stored.side != 0)
    return Stored{.tier = stored.tier, .blocks = {begin, begin + count}, .side = stored.side};
  return Stored{.tier = stored.tier,
                .position = stored.position + static_cast<Position>(from),
                .parent = from == 0 ? stored.parent : stored.blocks[from - 1],
                .blocks = {begin, begin + count}};
}

Event Slice(const Removed& removed, size_t from, size_t count) {
  const auto begin = removed.blocks.begin() + from;
  return Removed{.tier = removed.tier, .blocks = {begin, begin + count}, .side = removed.side};
}

Event Slice(const Cleared& cleared, size_t, size_t) { return cleared; }

// Not inside `State`, where clang would not see it complete.
// A copy of the resident set at one moment, sent part by part. It lives until it is acknowledged,
// the connection ends, or a receiver asks for another; its runs go once the last part was sent.
struct Snapshot {
  Snapshot() {
  }  // not defaulted: clang cannot use initializers of a nested class before the outer one ends
  uint64_t id = 0;
  BatchNumber as_of = 0;
  std::vector<Stored> runs;
  size_t next_run = 0;
  size_t next_block = 0;  // within `runs[next_run]`
  uint32_t next_part = 0;
  bool sent = false;  // the last part too
  Time sent_at{0};
  Digest digest;
  bool degraded = false;
  CacheLayout layout;
};

}  // namespace

// Numbers:   … acknowledged …│ sent │ unsent …  last
//                            first_kept ≤ cursor ≤ last + 1
//
// `window` holds exactly the batches first_kept … last, acknowledged ones first; they stay for
// replay until their room is needed (`AddBatch`). Numbers below first_kept are acknowledged and
// forgotten, or burnt: only a snapshot carries a receiver across those. A number is used once: for
// a batch, a snapshot, or a burnt append. A batch that was sent never changes.
struct StreamSender::State {
  // kHelloSent: no answer yet, repeated after `hello_timeout`. kRefused: the next hello is due at
  // `hello_at`. Batches and snapshots flow in kWelcomed alone.
  enum class Phase { kDisconnected, kHelloDue, kHelloSent, kRefused, kWelcomed };

  State(const SenderOptions& options_in, SenderIdentity identity_in, const ResidentSet* resident_in)
      : options(options_in), identity(std::move(identity_in)), resident(resident_in) {
    options.window_batches = std::max<uint64_t>(1, options.window_batches);
  }

  bool finished() const { return stopped || !status.ok(); }
  Batch& InWindow(BatchNumber number) {
    KVATLAS_ASSERT(number >= first_kept && number - first_kept < window.size());
    Batch& batch = window[number - first_kept];
    KVATLAS_ASSERT(batch.number == number);
    return batch;
  }
  bool Connected() const { return phase != Phase::kDisconnected; }

  // Append
  void AppendEvent(const Event& event);
  Batch* Open(size_t blocks);
  bool AddBatch();
  void Burn();
  void OweSnapshot();
  void AddDigest(Time now);

  // OnMessage
  absl::Status On(const Welcome& welcome, Time now);
  absl::Status On(const Refuse& refuse, Time now);
  absl::Status On(const Ack& ack, Time now);
  absl::Status On(const Need& need, Time now);
  absl::Status Acknowledge(BatchNumber applied);
  void RaiseEpoch(Epoch above);
  void BringBackEpoch();
  void Replaced(const Refuse& refuse, Time now);
  Duration ReplacedWait() const;

  // Poll
  SenderMessage MakeHello(Time now);
  void Capture(Time now);
  SenderMessage NextPart(Time now);
  bool SnapshotOnItsWay(BatchNumber highest_number_seen, Time now) const;
  bool MaySend() const;
  SenderMessage NextBatch();
  bool DigestTime(Time now) const;
  bool DigestDue(Time now) const;

  SenderOptions options;
  SenderIdentity identity;
  const ResidentSet* const resident;
  absl::Status status;
  absl::Status refusal;
  bool stopped = false;
  bool goodbye_due = false;

  Phase phase = Phase::kDisconnected;
  bool ever_welcomed = false;
  Time hello_at{0};  // when the last hello was sent, or when a refused one is due again
  int refused_in_a_row = 0;
  int replaced_in_a_row = 0;  // not 0: `hello_at` stands across connections

  std::deque<Batch> window;
  size_t back_blocks = 0;  // of `window.back()`
  BatchNumber first_kept = 1;
  BatchNumber cursor = 1;  // the next one to send
  BatchNumber last = 0;
  BatchNumber high_sent = 0;  // the highest ever sent
  BatchNumber acknowledged = 0;
  uint64_t credit = 0;

  bool snapshot_owed = false;        // to be captured; until then every append only burns a number
  std::optional<Snapshot> snapshot;  // captured, and not acknowledged
  uint64_t snapshot_id = 0;
  bool snapshot_end_told = true;  // something behind its last part was sent
  int snapshots_unanswered = 0;   // sent in a row on this connection, and none acknowledged

  std::optional<Load> load;
  bool degraded = false;
  Time last_digest{0};
  uint64_t blocks_since_digest = 0;
  Time last_write{0};
  SenderStats stats;
};

StreamSender::StreamSender(const SenderOptions& options, SenderIdentity identity,
                           const ResidentSet* resident)
    : state_(std::make_unique<State>(options, std::move(identity), resident)) {
  // Holdings and classes from before this sender have no batch: they take number 1, which a
  // receiver can only get over by a snapshot.
  if (resident->size() > 0 || !resident->layout().plain()) {
    state_->last = 1;
    state_->OweSnapshot();
  }
}

StreamSender::~StreamSender() = default;

// --- Append --------------------------------------------------------------------------------------

// 1. Each event is cut into batches (`AppendEvent`); the load goes into the last one.
// 2. If a snapshot is owed, now or since an overflow on the way, all of that is dropped again: the
//    snapshot will contain it. A number is burnt, so that the next hello or heartbeat shows the
//    change.
// 3. A digest that is due rides on the last batch, which reflects the resident set at this moment.
void StreamSender::Append(const std::vector<Event>& events, const std::optional<Load>& load,
                          Time now) {
  State& s = *state_;
  if (s.finished()) return;
  if (load.has_value()) s.load = load;
  if (events.empty() && !load.has_value()) return;
  for (const Event& event : events) s.AppendEvent(event);
  if (load.has_value() && !s.snapshot_owed) {
    if (Batch* batch = s.Open(0)) batch->load = load;
  }
  // The coming snapshot has it all; the number says that something changed.
  if (s.snapshot_owed) return s.Burn();
  if (s.DigestTime(now)) s.AddDigest(now);
}

// Takes effect in stream order: in the open batch, or in an empty one of its own. A batch whose
// trust changed on the way says how it ends.
void StreamSender::SetDegraded(bool degraded) {
  State& s = *state_;
  if (s.finished() || degraded == s.degraded) return;
  s.degraded = degraded;
  if (!s.snapshot_owed) {
    if (Batch* batch = s.Open(0)) batch->degraded = degraded;
  }
  if (s.snapshot_owed) s.Burn();
}

// The layout travels ahead of the events that need it: the caller appends these afterwards, to the
// same batch or a later one. A snapshot that is owed has the layout anyway.
void StreamSender::NoteLayout() {
  State& s = *state_;
  if (s.finished()) return;
  if (!s.snapshot_owed) {
    if (Batch* batch = s.Open(0)) batch->layout = s.resident->layout();
  }
  if (s.snapshot_owed) s.Burn();
}

// Cuts an event at the bounds of a batch. A clear, which names no blocks, goes through the loop
// once. An overflow ends it: the rest is in the snapshot that is owed then.
void StreamSender::State::AppendEvent(const Event& event) {
  const size_t count = BlockCount(event);
  size_t from = 0;
  do {
    if (snapshot_owed) return;
    Batch* batch = Open(std::min<size_t>(1, count));
    if (batch == nullptr) return;
    KVATLAS_ASSERT(back_blocks <= kBatchBlocksMax && from <= count);
    const size_t take = std::min(count - from, kBatchBlocksMax - back_blocks);
    KVATLAS_ASSERT(take > 0 || count == 0);
    batch->events.push_back(
        std::visit([&](const auto& whole) { return Slice(whole, from, take); }, event));
    from += take;
    back_blocks += take;
    blocks_since_digest += take;
  } while (from < count);
}

// The batch that takes one more event of at least `blocks` blocks: the last one while it is unsent
// and has room, else a new one. Null: the window overflowed, and a snapshot is owed.
Batch* StreamSender::State::Open(size_t blocks) {
  if (!window.empty() && last >= cursor && last > high_sent) {
    Batch& back = window.back();
    if (!back.digest.has_value() && back.events.size() < kBatchEventsMax &&
        back_blocks + blocks <= kBatchBlocksMax) {
      return &back;
    }
  }
  return AddBatch() ? &window.back() : nullptr;
}

// A new batch at the end. A full window gives up its oldest batch if that is acknowledged. Else the
// receiver is behind by a whole window: waiting would block the reader of the engine's events and
// growing would have no bound, so the window is dropped and a snapshot is owed.
bool StreamSender::State::AddBatch() {
  while (window.size() >= options.window_batches) {
    if (first_kept > acknowledged) {
      stats.batches_dropped += last - std::max(acknowledged, first_kept - 1);
      OweSnapshot();
      return false;
    }
    window.pop_front();
    ++first_kept;
  }
  KVATLAS_ASSERT(first_kept + window.size() == last + 1);
  back_blocks = 0;
  window.push_back(Batch{.number = ++last,
                         .events = {},
                         .load = {},
                         .digest = {},
                         .degraded = degraded,
                         .layout = {}});
  return true;
}

// REQUIRES: a snapshot is owed, so that the window is empty. The number is in no batch.
void StreamSender::State::Burn() {
  ++last;
  ++stats.batches_dropped;
  first_kept = cursor = last + 1;
}

// From here on only a snapshot helps, so that the window is of no use. It is captured by the next
// `Poll` of a welcomed connection (`Capture`), with the holdings of then: however long a receiver
// is away, only the set is kept for it.
void StreamSender::State::OweSnapshot() {
  snapshot_owed = true;
  window.clear();
  first_kept = cursor = last + 1;
}

// REQUIRES: the last batch is unsent and reflects the resident set. The digest closes the batch:
// `Open` adds nothing to it any more.
void StreamSender::State::AddDigest(Time now) {
  KVATLAS_ASSERT(!window.empty() && window.back().number == last && last > high_sent);
  window.back().digest = resident->digest();
  last_digest = now;
  blocks_since_digest = 0;
}

// --- Connection and messages ---------------------------------------------------------------------

// A sender that was replaced keeps its waiting time across connections, else a link that reconnects
// every second would make the two senders of one name fight.
void StreamSender::OnConnected(Time) {
  const bool waits = state_->replaced_in_a_row > 0;
  state_->phase = waits ? State::Phase::kRefused : State::Phase::kHelloDue;
}

// A snapshot that was on its way is dropped. If it arrived whole, the next welcome names a batch
// behind it; if not, the welcome falls below `first_kept`, and another one is owed.
void StreamSender::OnDisconnected(Time) {
  state_->phase = State::Phase::kDisconnected;
  state_->snapshot.reset();
  state_->snapshot_end_told = true;
  state_->snapshots_unanswered = 0;
}

absl::Status StreamSender::OnMessage(const ReceiverMessage& message, Time now) {
  if (absl::Status status = Validate(message); !status.ok()) return status;
  if (state_->finished() || !state_->Connected()) return absl::OkStatus();
  return std::visit([&](const auto& typed) { return state_->On(typed, now); }, message);
}

// The welcome acknowledges everything before `next`. `Poll` then finds from the state what to send:
// the batches from `next` on, or an owed snapshot where the window no longer reaches back that far.
absl::Status StreamSender::State::On(const Welcome& welcome, Time) {
  if (!welcome.snapshot && welcome.next > high_sent + 1) {
    return absl::InvalidArgumentError("next: batch " + std::to_string(welcome.next) +
                                      " was never sent");
  }
  // A second answer to a hello that was repeated.
  if (phase == Phase::kWelcomed) return absl::OkStatus();
  phase = Phase::kWelcomed;
  ever_welcomed = true;
  refusal = absl::OkStatus();
  refused_in_a_row = replaced_in_a_row = 0;
  credit = welcome.credit;
  acknowledged = welcome.next == 0 ? 0 : std::min(welcome.next - 1, high_sent);
  if (snapshot_owed) return absl::OkStatus();
  if (welcome.snapshot || welcome.next < first_kept) {
    OweSnapshot();
  } else {
    cursor = welcome.next;
  }
  return absl::OkStatus();
}

// 1. INVALID_ARGUMENT: never right; the sender is finished (`status`).
// 2. FAILED_PRECONDITION with an epoch: another incarnation has the stream. A refusal of an older
//    hello of ours is ignored. A sender that was never welcomed, that meets its own earlier epoch,
//    or that hears that the other one lapsed, raises its epoch (`RaiseEpoch`); any other waits
//    (`Replaced`).
// 3. Anything else is tried again after 2, 4, … 32 s with the default `hello_timeout`. Without an
//    epoch FAILED_PRECONDITION may mean a clock that is wrong: `BringBackEpoch`.
absl::Status StreamSender::State::On(const Refuse& refuse, Time now) {
  ++stats.refused;
  if (refuse.code == absl::StatusCode::kInvalidArgument) {
    status = absl::InvalidArgumentError("refused: " + refuse.reason);
    return absl::OkStatus();
  }
  if (refuse.code == absl::StatusCode::kFailedPrecondition && refuse.epoch != 0) {
    // The answer to an older hello, sent before this epoch was raised.
    if (refuse.epoch < identity.epoch) return absl::OkStatus();
    if (refuse.epoch == identity.epoch && refuse.instance_id == identity.instance_id) {
      return absl::OkStatus();
    }
    const bool is_ours =
        refuse.instance_id == identity.instance_id;  // from before it was brought back
    const bool may_take_over =
        !ever_welcomed || is_ours || (replaced_in_a_row > 0 && refuse.lapsed);
    if (may_take_over && refuse.epoch < kEpochMax) {
      RaiseEpoch(refuse.epoch);
    } else {
      Replaced(refuse, now);
    }
    return absl::OkStatus();
  }
  if (phase == Phase::kWelcomed) return absl::OkStatus();
  if (refuse.code == absl::StatusCode::kFailedPrecondition) BringBackEpoch();
  phase = Phase::kRefused;
  refusal = absl::Status(refuse.code, refuse.reason);
  hello_at = now + options.hello_timeout * (1 << std::min(refused_in_a_row++, 4));
  return absl::OkStatus();
}

// The receiver that has the stream counts from the start in a new epoch, so the numbers stay.
void StreamSender::State::RaiseEpoch(Epoch above) {
  identity.epoch = above + 1;
  phase = Phase::kHelloDue;
}

// The epoch may be refused because it is too far ahead of the receiver's clock: it was raised above
// an epoch made under a wrong clock, or our own clock was wrong.
void StreamSender::State::BringBackEpoch() {
  identity.epoch = std::min(identity.epoch, Epoch{options.clock->WallNs()});
}

// Called while `replaced_in_a_row` still counts the refusals before this one: the first wait is
// `replaced_retry`. The reason names both incarnations, for the log of the process that lost.
void StreamSender::State::Replaced(const Refuse& refuse, Time now) {
  ++stats.replaced;
  phase = Phase::kRefused;
  hello_at = now + ReplacedWait();
  ++replaced_in_a_row;
  const auto incarnation = [](Epoch epoch, uint64_t instance) {
    return "epoch " + std::to_string(epoch) + " of instance " + std::to_string(instance);
  };
  refusal = absl::FailedPreconditionError(
      "another process has the name " + ToString(identity.holder) + " in " +
      ToString(identity.domain) + " and has replaced this one: expected " +
      incarnation(identity.epoch, identity.instance_id) + ", found the younger " +
      incarnation(refuse.epoch, refuse.instance_id) +
      "; give each process a name of its own, or end one of them");
}

// `replaced_retry` doubled for each refusal in a row, up to `replaced_retry_max`, times 3/4 to 5/4
// by a hash of the instance id: two senders of one name do not ask in step. 2^64 over the golden
// ratio spreads ids whose bits differ little.
Duration StreamSender::State::ReplacedWait() const {
  const int doublings = std::min(replaced_in_a_row, 20);
  const Duration wait =
      std::min(options.replaced_retry * (int64_t{1} << doublings), options.replaced_retry_max);
  const uint64_t mixed = (identity.instance_id + static_cast<uint64_t>(replaced_in_a_row)) *
                         uint64_t{0x9E3779B97F4A7C15};
  return wait * 3 / 4 + wait / 2 * static_cast<int64_t>(mixed >> 54) / 1024;
}

// Credit is absolute: each acknowledgement says how many batches may be unacknowledged, not how
// many more.
absl::Status StreamSender::State::On(const Ack& ack, Time) {
  if (phase != Phase::kWelcomed) return absl::OkStatus();
  credit = ack.credit;
  return Acknowledge(ack.applied);
}

// A higher number than was sent is an error of the receiver. A lower one than before is late and
// changes nothing: `acknowledged` and `cursor` never go back here.
absl::Status StreamSender::State::Acknowledge(BatchNumber applied) {
  if (applied > high_sent) {
    return absl::InvalidArgumentError("applied: batch " + std::to_string(applied) +
                                      " was never sent");
  }
  acknowledged = std::max(acknowledged, applied);
  cursor = std::max(cursor, acknowledged + 1);
  if (snapshot.has_value() && snapshot->sent && acknowledged >= snapshot->as_of) {
    snapshot.reset();
    snapshots_unanswered = 0;
    snapshot_end_told = true;
  }
  return absl::OkStatus();
}

// True if a snapshot that was captured answers a request, so that it need not be sent again. Links
// keep the order: a receiver that has all of it acknowledges it before it asks for another one. A
// receiver that asks, and has seen a number at or behind it, did not get it whole; `Poll` makes
// sure that such a number follows each snapshot. A receiver that does not say what it has seen (0)
// gets another one `snapshot_again_after` later; that time doubles with each in a row, to 64 times
// at most.
bool StreamSender::State::SnapshotOnItsWay(BatchNumber highest_number_seen, Time now) const {
  if (!snapshot.has_value() || highest_number_seen >= snapshot->as_of) return false;
  const int doublings = std::clamp(snapshots_unanswered - 1, 0, 6);
  return !snapshot->sent ||
         now - snapshot->sent_at < options.snapshot_again_after * (1 << doublings);
}

// A request for a snapshot owes one, unless one is on its way. A request for batches acknowledges
// everything before `next` and moves the cursor back to it; where the window no longer has that
// batch, a snapshot answers.
absl::Status StreamSender::State::On(const Need& need, Time now) {
  if (phase != Phase::kWelcomed) return absl::OkStatus();
  const bool says = need.snapshot && need.next > 0;
  const bool underway = SnapshotOnItsWay(says ? need.next - 1 : 0, now);
  if (need.snapshot) {
    if (underway) return absl::OkStatus();
    snapshot.reset();
    OweSnapshot();
    return absl::OkStatus();
  }
  if (need.next > last + 1) {
    return absl::InvalidArgumentError("next: batch " + std::to_string(need.next) +
                                      " does not exist");
  }
  if (need.next <= acknowledged) return absl::OkStatus();  // overtaken by an acknowledgement
  if (need.next - 1 <= high_sent) {
    if (absl::Status status = Acknowledge(need.next - 1); !status.ok()) return status;
  }
  if (need.next >= first_kept) {
    cursor = std::min(cursor, need.next);
  } else if (!underway) {
    snapshot.reset();
    OweSnapshot();
  }
  return absl::OkStatus();
}

// --- Poll ----------------------------------------------------------------------------------------

// 1. `MakeHello`, again without an answer.
// 2. After the welcome an owed snapshot: `Capture`, then `NextPart` until the last. Batches behind
//    it wait, so that the receiver sees numbers in order.
// 3. `NextBatch` while there is credit.
// 4. When all is sent and acknowledged, an empty batch with a digest when it is due.
// 5. A heartbeat when nothing was sent for long, or nothing behind a snapshot: it names a number at
//    or above the snapshot's, which `SnapshotOnItsWay` relies on.
// A message counts as sent once it is yielded; `SenderPump` keeps it until the link takes it.
std::optional<SenderMessage> StreamSender::Poll(Time now) {
  State& s = *state_;
  using Phase = State::Phase;
  if (s.goodbye_due) {
    s.goodbye_due = false;
    return Goodbye{};
  }
  if (s.finished() || s.phase == Phase::kDisconnected) return std::nullopt;
  if (s.phase != Phase::kWelcomed) {
    const bool again = s.phase == Phase::kHelloSent ? now - s.hello_at >= s.options.hello_timeout
                                                    : now >= s.hello_at;
    if (s.phase == Phase::kHelloDue || again) return s.MakeHello(now);
    return std::nullopt;
  }
  if (s.snapshot_owed && !s.snapshot.has_value()) s.Capture(now);
  std::optional<SenderMessage> message;
  if (s.snapshot.has_value() && !s.snapshot->sent) {
    message = s.NextPart(now);
  } else if (s.cursor <= s.last) {
    if (s.MaySend()) message = s.NextBatch();
  } else if (s.DigestDue(now) && s.AddBatch()) {
    s.AddDigest(now);
    message = s.NextBatch();
  }
  const bool silent = now - s.last_write >= s.options.heartbeat_every;
  if (!message.has_value() && (silent || !s.snapshot_end_told)) {
    message = Heartbeat{.last_sent = s.cursor - 1};
    s.snapshot_end_told = true;
  }
  if (message.has_value()) s.last_write = now;
  return message;
}

SenderMessage StreamSender::State::MakeHello(Time now) {
  phase = Phase::kHelloSent;
  hello_at = last_write = now;
  ++stats.hellos_sent;
  return Hello{.holder = identity.holder,
               .domain = identity.domain,
               .block_size = identity.block_size,
               .contract_id = identity.contract_id,
               .schedule = identity.schedule,
               .epoch = identity.epoch,
               .instance_id = identity.instance_id,
               .first_kept = first_kept,
               .last_sent = last,
               .starting = !ever_welcomed,
               .address = identity.address,
               .labels = identity.labels,
               .degraded = degraded};
}

// The snapshot gets a number of its own, so that an acknowledgement of it cannot be one of an
// earlier batch. Everything is copied now: events appended while it is sent go into batches behind
// it. *Cost*: O(blocks held), in time and until the last part in memory.
void StreamSender::State::Capture(Time now) {
  ++last;
  OweSnapshot();
  snapshot_owed = false;
  snapshot.emplace();
  snapshot->id = ++snapshot_id;
  snapshot->as_of = last;
  snapshot->runs = resident->AsRuns();
  snapshot->digest = resident->digest();
  snapshot->degraded = degraded;
  snapshot->layout = resident->layout();
  last_digest = now;
  blocks_since_digest = 0;
  ++stats.snapshots_sent;
}

// Up to `kBatchBlocksMax` blocks and `kBatchEventsMax` runs; a run that does not fit is cut and
// goes on in the next part. Parts do not use credit: they are bounded by the snapshot, and the
// link's buffer holds them back.
SenderMessage StreamSender::State::NextPart(Time now) {
  SnapshotPart part{.snapshot_id = snapshot->id,
                    .as_of = snapshot->as_of,
                    .part = snapshot->next_part++,
                    .last = false,
                    .stored = {},
                    .load = {},
                    .digest = {},
                    .degraded = false,
                    .layout = {}};
  if (part.part == 0 && !snapshot->layout.plain()) part.layout = snapshot->layout;
  size_t room = kBatchBlocksMax;
  while (room > 0 && snapshot->next_run < snapshot->runs.size() &&
         part.stored.size() < kBatchEventsMax) {
    const Stored& run = snapshot->runs[snapshot->next_run];
    const size_t take = std::min(room, run.blocks.size() - snapshot->next_block);
    part.stored.push_back(std::get<Stored>(Slice(run, snapshot->next_block, take)));
    room -= take;
    snapshot->next_block += take;
    stats.blocks_sent += take;
    if (snapshot->next_block < run.blocks.size()) break;
    snapshot->next_block = 0;
    ++snapshot->next_run;
  }
  if (snapshot->next_run == snapshot->runs.size()) {
    part.last = true;
    part.load = load;
    part.digest = snapshot->digest;
    part.degraded = snapshot->degraded;
    snapshot->sent = true;
    snapshot->sent_at = now;
    snapshot_end_told = false;
    ++snapshots_unanswered;
    snapshot->runs = {};
    high_sent = std::max(high_sent, snapshot->as_of);
  }
  return part;
}

// Batches sent and not acknowledged, burnt and acknowledged numbers not counted, are below the
// credit. Never negative: the cursor is above both.
bool StreamSender::State::MaySend() const {
  return cursor - std::max(acknowledged + 1, first_kept) < credit;
}

// A copy: the batch stays in the window for replay. From the first sending on it is closed
// (`Open`).
SenderMessage StreamSender::State::NextBatch() {
  const Batch& batch = InWindow(cursor);
  if (cursor <= high_sent) {
    ++stats.batches_replayed;
  } else {
    ++stats.batches_sent;
  }
  stats.blocks_sent += BlockCount(batch);
  snapshot_end_told = snapshot_end_told || !snapshot.has_value() || cursor > snapshot->as_of;
  high_sent = std::max(high_sent, cursor);
  ++cursor;
  return batch;
}

// A stream with little news sends digests less often: they cost the receiver a comparison, and each
// makes an otherwise silent stream send a batch.
bool StreamSender::State::DigestTime(Time now) const {
  const bool few = blocks_since_digest < options.digest_blocks;
  const Duration quiet = std::max(options.digest_every, options.digest_quiet_every);
  return now - last_digest >= (few ? quiet : options.digest_every);
}

// Only for a stream that is idle, so that a silent receiver does not make it grow.
bool StreamSender::State::DigestDue(Time now) const {
  return DigestTime(now) && acknowledged == last && !snapshot.has_value() && !snapshot_owed;
}

// --- The rest ------------------------------------------------------------------------------------

void StreamSender::Stop() {
  if (state_->stopped) return;
  state_->stopped = true;
  state_->goodbye_due = state_->status.ok() && welcomed();
}

const absl::Status& StreamSender::status() const { return state_->status; }
const absl::Status& StreamSender::refusal() const { return state_->refusal; }
bool StreamSender::welcomed() const { return state_->phase == State::Phase::kWelcomed; }
BatchNumber StreamSender::last_number() const { return state_->last; }
BatchNumber StreamSender::acknowledged() const { return state_->acknowledged; }
bool StreamSender::snapshot_owed() const {
  return state_->snapshot_owed || state_->snapshot.has_value();
}
Epoch StreamSender::epoch() const { return state_->identity.epoch; }
const SenderStats& StreamSender::stats() const { return state_->stats; }

}  // namespace kvatlas
