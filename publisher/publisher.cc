// The threads and the replicas of a publisher. The way of one call of the engine:
//
// 1. `Enqueue` copies it into `waiting`, on the engine's thread.
// 2. `Run` (or the engine's thread, when the queue is full) calls `WorkOffSlice`, which takes the
//    oldest records, tells ZeroMQ the call as it is (`TellZmq`) and applies it to `contents`
//    (`WorkOff`).
// 3. `Tell` appends the changes of the slice to the pump of every replica.
// 4. `FlushPumps` writes batches, without a lock of the publisher.
//
// `contents_mutex` serializes 2 and 3, so every replica gets the same changes in the same order,
// and a snapshot taken under it fits the stream.

#include "publisher/publisher.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/address.h"
#include "indexer/base/mutex.h"
#include "indexer/discovery/directory.h"
#include "indexer/discovery/found_leaves.h"
#include "indexer/net/connection_watch.h"
#include "indexer/net/redis_url.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender_pump.h"
#include "indexer/stream/validate.h"
#include "indexer/telemetry/log.h"
#include "indexer/transport/grpc_link.h"
#include "indexer/transport/redis/redis_link.h"
#include "indexer/transport/redis/redis_log_options.h"
#include "publisher/publisher_impl.h"

namespace kvatlas {
namespace {

// The publisher's thread gives up the lock after so many blocks.
constexpr size_t kSliceBlocks = 1024;
// Heartbeats, digests and the look for leaves are due at this pace.
constexpr Duration kTickEvery = std::chrono::milliseconds(100);
// While the engine is active the publisher's thread polls the queue, this often or every
// `batch_age`, so that no call has to wake it. It falls asleep when nothing came for
// `kAttentiveFor`.
constexpr Duration kLookEvery = std::chrono::milliseconds(2);
constexpr Duration kAttentiveFor = std::chrono::milliseconds(100);
// The pace of `EngineBatches::Tick`, whose timeouts are seconds.
constexpr Duration kEngineTickEvery = std::chrono::seconds(1);
// A replica that neither connects nor acknowledges is looked at again after this.
constexpr Duration kWaitSlice = std::chrono::milliseconds(20);

absl::Status Check(const PublisherOptions& options) {
  const auto bad = [](const char* what) { return absl::InvalidArgumentError(what); };
  // The checks that the leaf will make.
  absl::Status names = ValidateHolder({options.worker, options.dp_rank, ""}, options.labels);
  names.Update(ValidateDomain(options.domain));
  if (!names.ok()) return names;
  if (options.block_size == 0 || options.block_size > kBlockSizeMax) {
    return bad("block_size: 1 to 65536 tokens");
  }
  if (absl::Status leaves = FoundLeaves::Check(options.leaves, options.cell); !leaves.ok()) {
    return absl::InvalidArgumentError("leaves: " + std::string(leaves.message()));
  }
  for (const std::string& leaf : options.leaves) {
    // gRPC would take 443 for the port.
    if (options.make_link || IsPlaceToLook(leaf)) continue;
    if (!Address::Parse(leaf).ok())
      return absl::InvalidArgumentError(
          "leaves: '" + leaf +
          "': expected HOST:PORT, the gRPC address of a leaf (default port 7410)");
  }
  if (!options.redis.url.empty()) {
    if (absl::Status url = ParseRedisUrl(options.redis.url).status(); !url.ok()) return url;
    if (options.redis.cell.empty()) return bad("redis.cell: empty");
    if (options.redis.shards == 0 || options.redis.shards > kRedisShardsMax) {
      return bad("redis.shards: 1 to 1024");
    }
  }
  if (options.lora_name.size() > kNamespaceBytesMax ||
      options.cache_salt.size() > kNamespaceBytesMax) {
    return bad("lora_name, cache_salt: up to 4096 bytes");
  }
  if (options.find_every < std::chrono::milliseconds(1) ||
      options.find_every > std::chrono::hours(1)) {
    return bad("find_every: 1 ms to 1 h");
  }
  if (options.batch_blocks == 0) return bad("batch_blocks: at least 1");
  if (options.batch_age < Duration(0)) return bad("batch_age: negative");
  return absl::OkStatus();
}

// The leaf's fields of the identity (schedule, address) do not apply to an engine.
SenderIdentity IdentityOf(const PublisherOptions& options, Epoch epoch, uint64_t instance_id) {
  return {.holder = {options.worker, options.dp_rank, ""},
          .domain = options.domain,
          .block_size = options.block_size,
          .contract_id = options.contract.Id(),
          .schedule = "",
          .address = "",
          .labels = options.labels,
          .epoch = epoch,
          .instance_id = instance_id};
}

}  // namespace

Publisher::Impl::Impl(PublisherOptions options_in, std::shared_ptr<Security> security_in,
                      std::unique_ptr<FoundLeaves> leaves_in)
    : options(std::move(options_in)),
      security(std::move(security_in)),
      looks_for_leaves(leaves_in->finds()),
      contents(options.block_size, options.contract),
      epoch(WallTimeNs()),
      engine_batches({.name = options.worker,
                      .block_size = options.block_size,
                      .contract = options.contract,
                      .lora_name = options.lora_name,
                      .cache_salt = options.cache_salt,
                      .drops_last = options.drops_last,
                      .chunk_tokens = options.chunk_tokens,
                      .window_tokens = options.window_tokens,
                      .hybrid = options.hybrid},
                     &contents),
      leaves(std::move(leaves_in)) {
  MutexLock lock(&contents_mutex);
  for (const std::string& address : leaves->addresses()) replicas.push_back(MakeLeaf(address));
  if (!options.redis.url.empty()) replicas.push_back(MakeRedis());
}

Publisher::Impl::ReplicaPtr Publisher::Impl::MakeLeaf(const std::string& address) {
  auto replica = std::make_shared<Replica>();
  replica->address = address;
  std::unique_ptr<SenderLink> link;
  if (options.make_link) {
    link = options.make_link(address);
  } else {
    auto grpc_link = std::make_unique<GrpcLink>(address, GrpcLinkOptions{.security = security});
    // For its count of bytes only; the pump owns the link.
    replica->grpc_link = grpc_link.get();
    link = std::move(grpc_link);
  }
  replica->pump = MakePump(std::move(link));
  replica->watch = MakeWatch("leaf", address);
  return replica;
}

std::unique_ptr<ConnectionWatch> Publisher::Impl::MakeWatch(std::string_view what,
                                                            const std::string& address) const {
  return std::make_unique<ConnectionWatch>(
      what, address, std::vector<LogField>{{"worker", options.worker}, {"rank", options.dp_rank}},
      options.clock);
}

// Through Redis the log always accepts: the refusals of its readers are the ones that matter.
std::optional<absl::Status> Publisher::Impl::Replica::Progress() const {
  std::optional<absl::Status> progress = pump->Progress();
  if (redis_link == nullptr || !progress.has_value() || !progress->ok()) return progress;
  const std::string refusal = redis_link->Stats().last_refusal;
  if (refusal.empty()) return progress;
  return absl::FailedPreconditionError("a leaf that reads it refuses: " + refusal);
}

Publisher::Impl::ReplicaPtr Publisher::Impl::MakeRedis() {
  RedisLogOptions log;
  log.redis = *ParseRedisUrl(options.redis.url);
  log.cell = options.redis.cell;
  log.shards = options.redis.shards;
  auto replica = std::make_shared<Replica>();
  replica->address = RedisUrlWithoutPassword(options.redis.url);
  auto link = std::make_unique<RedisLink>(log);
  replica->redis_link = link.get();
  replica->pump = MakePump(std::move(link));
  replica->watch = MakeWatch("redis log", replica->address);
  return replica;
}

// Makes a stream that is owed a snapshot of `contents`. The pump reads the resident set under
// `contents_mutex`, which is its `resident_mutex`. The latest load goes along.
std::unique_ptr<SenderPump> Publisher::Impl::MakePump(std::unique_ptr<SenderLink> link) {
  auto pump = std::make_unique<SenderPump>(options.sender, IdentityOf(options, epoch, instance_id),
                                           &contents.resident(), &contents_mutex, std::move(link),
                                           options.clock);
  pump->SetDegraded(engine_batches.degraded());
  if (last_load.has_value()) pump->Append({}, last_load);
  return pump;
}

// A copy, so that pumps are flushed and stopped without the lock; a replica that is dropped
// meanwhile lives until its last reader is done.
std::vector<Publisher::Impl::ReplicaPtr> Publisher::Impl::Replicas() {
  MutexLock lock(&contents_mutex);
  return replicas;
}

// Compares the leaves that are found now with the replicas: known ones stay with their streams, new
// ones start, others are dropped without a goodbye, so that they keep what they know for a lease. A
// leaf that comes may remember a stream of ours, from before it was dropped or under another
// address, whose numbers are not those of the new one: a younger epoch tells them apart.
void Publisher::Impl::LookForLeaves() {
  const std::optional<std::vector<std::string>> found = leaves->Changed();
  if (!found.has_value()) return;
  std::vector<ReplicaPtr> made, dropped;
  {
    MutexLock lock(&contents_mutex);
    epoch = std::max<Epoch>(epoch + 1, WallTimeNs());
    std::vector<ReplicaPtr> now;
    for (const std::string& address : *found) {
      const auto known =
          std::find_if(replicas.begin(), replicas.end(), [&](const ReplicaPtr& replica) {
            return replica != nullptr && replica->redis_link == nullptr &&
                   replica->address == address;
          });
      if (known != replicas.end()) {
        now.push_back(std::exchange(*known, nullptr));
      } else {
        made.push_back(now.emplace_back(MakeLeaf(address)));
      }
    }
    for (ReplicaPtr& rest : replicas) {
      if (rest == nullptr) continue;
      (rest->redis_link != nullptr ? now : dropped).push_back(std::move(rest));
    }
    replicas = std::move(now);
  }
  for (const ReplicaPtr& replica : made) replica->pump->Start();
  for (const ReplicaPtr& replica : dropped) replica->pump->Stop(/*goodbye=*/false, Duration(0));
}

// Any thread of the engine. Usually a lock and a copy. At `queue_bytes_max` the caller works off as
// many bytes as it adds, then appends: the queue may exceed its bound by the calls of concurrent
// threads, but not grow. Records are never dropped; after `Stop` they go nowhere.
void Publisher::Impl::Enqueue(const Record& record) {
  const size_t bytes = RecordBuffer::BytesOf(record);
  bool full = false, wake = false;
  {
    MutexLock lock(&queue_mutex);
    if (stopping) return;
    full = waiting.bytes() + working_bytes + bytes > options.queue_bytes_max;
    if (!full) {
      if (waiting.empty()) first_at = Clock::Real().Now();
      waiting.Append(record);
      ++records_queued;
      wake = std::exchange(asleep, false);
    }
  }
  if (wake) work.Signal();
  if (!full) return;
  // Full: make room first. Calls from other threads may come in between.
  inline_records.fetch_add(1, std::memory_order_relaxed);
  WorkOffAtLeast(bytes);
  MutexLock lock(&queue_mutex);
  if (waiting.empty()) first_at = Clock::Real().Now();
  waiting.Append(record);
  ++records_queued;
  work.Signal();
}

// The lock is held for all slices: `bytes` is one call, and the publisher's thread works on other
// slices before and after.
void Publisher::Impl::WorkOffAtLeast(size_t bytes) {
  MutexLock lock(&contents_mutex);
  for (size_t done = 0; done < bytes;) {
    const size_t slice = WorkOffSlice();
    if (slice == 0) return;
    done += slice;
  }
}

// One slice:
// 1. Takes the engine's buffer when its own is used up: a swap, so the engine's thread never waits
//    for the work itself.
// 2. Applies records until `kSliceBlocks` blocks are done; a record is never split, so a slice may
//    be larger by one call.
// 3. Tells the replicas, then reports progress to `WaitAcknowledged`.
size_t Publisher::Impl::WorkOffSlice() {
  if (working.empty()) {
    working.Clear();  // may free and allocate memory: before the queue is locked
    MutexLock lock(&queue_mutex);
    if (waiting.empty()) return 0;
    std::swap(working, waiting);
    working_bytes = working.bytes();
  }
  const size_t bytes_before = working.bytes();
  changes.clear();
  load.reset();
  uint64_t records = 0;
  Record record;
  for (size_t blocks = 0; blocks < kSliceBlocks && working.Next(&record); ++records) {
    blocks += RecordBuffer::BlocksOf(record);
    if (zmq != nullptr) TellZmq(record);
    WorkOff(record);
  }
  if (zmq != nullptr) zmq->Flush();
  Tell();
  MutexLock lock(&queue_mutex);
  working_bytes = working.bytes();
  records_done += records;
  progress.SignalAll();
  return bytes_before - working_bytes;
}

// OK: nothing was dropped. Only one reason is reported; the counts have all of them.
absl::Status Publisher::Impl::DroppedSince(const ContentsStats& before, const ContentsStats& now) {
  if (const uint64_t blocks = now.unknown_removed - before.unknown_removed; blocks > 0) {
    return absl::NotFoundError(absl::StrCat("removed: ", blocks, blocks == 1 ? " block" : " blocks",
                                            " that are not held"));
  }
  if (const uint64_t names = now.renamed - before.renamed; names > 0) {
    return absl::AlreadyExistsError(absl::StrCat("stored: ", names, names == 1 ? " name" : " names",
                                                 " of blocks that are held were given to other "
                                                 "tokens; what they meant before is forgotten"));
  }
  return absl::OkStatus();
}

// One record into `contents` and `changes`. A clear of all tiers resets the engine's own batches
// too, whichever way the engine speaks.
void Publisher::Impl::WorkOff(const Record& record) {
  absl::Status status;
  if (record.kind == Record::kLoad) {
    load = record.load;
  } else if (record.kind == Record::kLayout) {
    contents.SetLayout(UnpackLayout(record.payload));
  } else if (record.kind == Record::kEngineBatch) {
    status = engine_batches.Apply(record.payload, Clock::Real().Now(), &changes);
  } else {
    if (record.kind == Record::kCleared) engine_batches.Clear(Clock::Real().Now(), &changes);
    const ContentsStats before = contents.stats();
    status = contents.Apply(record, &changes);
    if (status.ok()) status = DroppedSince(before, contents.stats());
  }
  if (!status.ok()) Refused(status);
}

// Order matters: doubt goes ahead of the changes that it is about, certainty behind them. A layout
// goes ahead too: the classes that it adds have no blocks yet.
void Publisher::Impl::Tell() {
  const bool degraded = engine_batches.degraded();
  const bool layout_changed = contents.TakeLayoutChange();
  if (load.has_value()) last_load = load;
  for (const ReplicaPtr& replica : replicas) {
    if (degraded) replica->pump->SetDegraded(true);
    if (layout_changed) replica->pump->NoteLayout();
    if (!changes.empty() || load) replica->pump->Append(changes, load);
    if (!degraded) replica->pump->SetDegraded(false);
  }
}

// vLLM's events have no clear of one tier: it is told as removals of all names in it, before
// `contents` forgets them.
void Publisher::Impl::TellZmq(const Record& record) {
  if (record.kind != Record::kCleared || record.tiers == TierMask::All()) {
    return zmq->Add(record);
  }
  for (int tier = 0; tier < kTiers; ++tier) {
    if (record.tiers.Has(static_cast<Tier>(tier))) {
      zmq->Remove(static_cast<Tier>(tier), contents.NamesIn(static_cast<Tier>(tier)));
    }
  }
}

// At most a line in ten seconds: an engine with such a bug does it with every event.
void Publisher::Impl::Refused(const absl::Status& why) {
  static LogLimiter limiter{std::chrono::seconds(10)};
  LogEvery(limiter, options.worker, LogLevel::kWarning, "engine event dropped",
           {{"worker", options.worker}, {"why", why}});
  SetError(why);
}

// The publisher's thread. Each round: wait, work off everything that waits, flush after each slice,
// then the ticks that are due. The last round after `stopping` empties the queue.
void Publisher::Impl::Run() {
  for (bool going_on = true; going_on;) {
    going_on = WaitForWork();
    bool more = true;
    while (more) {
      {
        MutexLock lock(&contents_mutex);
        more = WorkOffSlice() > 0;
      }
      if (more) FlushPumps();
    }
    FlushPumps();
    TickEngine();
    if (const Time now = options.clock->Now(); now >= next_tick) {
      LookForLeaves();
      for (const ReplicaPtr& replica : Replicas()) {
        replica->pump->Tick();
        // A connection that was lost and is back between two ticks is reported too.
        if (const std::optional<absl::Status> lost = replica->pump->TakeLost(); lost.has_value())
          replica->watch->Set(absl::UnavailableError(std::string(lost->message())));
        const std::optional<absl::Status> progress = replica->Progress();
        replica->watch->Set(progress);
        NoteTrouble(replica.get(), progress.value_or(absl::OkStatus()).code());
      }
      WatchLeaves(now);
      next_tick = now + kTickEvery;
    }
  }
}

// Numbers each new trouble, so that `Stats` can tell which of all errors is the latest.
void Publisher::Impl::NoteTrouble(Replica* replica, absl::StatusCode now) {
  MutexLock lock(&contents_mutex);
  if (replica->trouble == now) return;
  replica->trouble = now;
  if (now != absl::StatusCode::kOk) replica->trouble_number = ++errors;
}

// A reminder once a minute while no leaf gets the events.
void Publisher::Impl::WatchLeaves(Time now) {
  if (!no_leaves.Due(Replicas().empty() && zmq == nullptr, now)) return;
  Log(LogLevel::kWarning, "no leaf is told",
      {{"worker", options.worker},
       {"hint", looks_for_leaves ? "none was found yet where leaves are looked for"
                                 : "set leaves to HOST:PORT of the cell's leaf"}});
}

// Only for engines that speak by batches: orphans and unconfirmed blocks have timeouts.
void Publisher::Impl::TickEngine() {
  const Time now = Clock::Real().Now();
  if (now < next_engine_tick || way.load(std::memory_order_relaxed) != kBatches) return;
  next_engine_tick = now + kEngineTickEvery;
  MutexLock lock(&contents_mutex);
  changes.clear();
  load.reset();
  engine_batches.Tick(now, &changes);
  Tell();
}

// Wakes up for, whichever comes first: the next tick; the age of the oldest record; a look, while
// the engine was active lately; a full batch; `Flush` or `Stop`. `asleep` is set only while the
// queue is empty and no look is due: then the first call of the engine pays for one wake-up.
bool Publisher::Impl::WaitForWork() {
  MutexLock lock(&queue_mutex);
  const Time tick_at = Clock::Real().Now() + kTickEvery;
  while (!stopping && !flush_now && waiting.blocks() < options.batch_blocks) {
    const Time now = Clock::Real().Now();
    // Without an age to wait for, every first call wakes.
    const bool attentive = now < attentive_until && options.batch_age > Duration(0);
    const Time look_at = attentive ? now + std::min(options.batch_age, kLookEvery) : tick_at;
    const Time until =
        std::min({tick_at, look_at, waiting.empty() ? tick_at : first_at + options.batch_age});
    if (now >= until) break;
    asleep = waiting.empty() && !attentive;
    work.WaitFor(&queue_mutex, until - now);
  }
  if (!waiting.empty()) attentive_until = Clock::Real().Now() + kAttentiveFor;
  asleep = false;
  flush_now = false;
  return !stopping;
}

void Publisher::Impl::FlushPumps() {
  for (const ReplicaPtr& replica : Replicas()) replica->pump->Flush();
}

// Whether every connected replica, and at least one, has acknowledged everything; waits up to
// `look_for` for one that has not. A replica that is connected is waited for rather than one that
// is not, since it will answer. Without replicas: true, unless leaves are looked for.
bool Publisher::Impl::AllAcknowledged(Duration look_for) {
  const Replica* awaited = nullptr;
  size_t at_rest = 0;
  const std::vector<ReplicaPtr> all = Replicas();
  for (const ReplicaPtr& replica : all) {
    if (replica->pump->AtRest()) {
      ++at_rest;
    } else if (replica->pump->connected() || awaited == nullptr) {
      awaited = replica.get();
    }
  }
  if (all.empty() && looks_for_leaves) {
    MutexLock lock(&queue_mutex);
    progress.WaitFor(&queue_mutex, look_for);
    return false;
  }
  if (awaited == nullptr || (at_rest > 0 && !awaited->pump->connected())) return true;
  awaited->pump->WaitAtRest(look_for);
  return false;
}

Publisher::Publisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

// Checks, then builds: nothing is started before all options are known to be good. ZeroMQ's
// endpoints are bound here, so that a port in use is an error of `Create`.
absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Create(PublisherOptions options) {
  if (options.redis.cell.empty()) options.redis.cell = options.cell;
  absl::StatusOr<std::string> redis_url = ReadRedisUrl(options.redis.url);
  if (!redis_url.ok()) return redis_url.status();
  options.redis.url = *std::move(redis_url);
  if (absl::Status status = Check(options); !status.ok()) return status;
  // No waiting for the first answer: leaves are found while the engine runs.
  DirectoryOptions directory;
  directory.first_answer = Duration(0);
  directory.poll_every = options.find_every;
  directory.refresh = 5 * options.find_every;
  auto leaves = FoundLeaves::Open(options.leaves, options.cell, std::move(directory));
  if (!leaves.ok()) return leaves.status();
  std::shared_ptr<Security> security;  // null: that of the process
  if (const PublisherTls& tls = options.tls;
      !tls.ca.empty() || !tls.certificate.empty() || !tls.key.empty()) {
    SecurityOptions files;
    files.process = "publisher";
    files.tls = {.certificate = tls.certificate, .key = tls.key, .ca = tls.ca};
    auto started = Security::Start(std::move(files));
    if (!started.ok()) return started.status();
    security = *std::move(started);
  }
  auto impl = std::make_unique<Impl>(std::move(options), std::move(security), *std::move(leaves));
  if (!impl->options.zmq.endpoint.empty()) {
    auto zmq =
        ZmqPublisher::Create(impl->options.zmq, impl->options.block_size, impl->options.dp_rank);
    if (!zmq.ok()) return zmq.status();
    impl->zmq = *std::move(zmq);
  }
  for (const Impl::ReplicaPtr& replica : impl->Replicas()) replica->pump->Start();
  impl->thread = std::thread([impl = impl.get()] { impl->Run(); });
  return std::unique_ptr<Publisher>(new Publisher(std::move(impl)));
}

Publisher::~Publisher() { Stop(/*goodbye=*/false, Duration(0)); }

// A second call before the thread has seen the first costs no wake-up.
void Publisher::Flush() {
  {
    MutexLock lock(&impl_->queue_mutex);
    if (impl_->flush_now) return;
    impl_->flush_now = true;
  }
  impl_->work.Signal();
}

// 1. Everything that is queued now is worked off (`records_done` reaches `records_queued`).
// 2. The pumps write it.
// 3. The replicas are looked at in slices of `kWaitSlice`, since one that connects or goes away
//    changes which of them count.
bool Publisher::WaitAcknowledged(Duration timeout) {
  const Time until = Clock::Real().Now() + timeout;
  Flush();
  {
    MutexLock lock(&impl_->queue_mutex);
    const uint64_t target = impl_->records_queued;
    while (impl_->records_done < target) {
      const Duration left = until - Clock::Real().Now();
      if (left <= Duration(0)) return false;
      impl_->progress.WaitFor(&impl_->queue_mutex, left);
    }
  }
  impl_->FlushPumps();
  for (;;) {
    const Duration left = until - Clock::Real().Now();
    if (impl_->AllAcknowledged(std::max(Duration(0), std::min(left, kWaitSlice)))) return true;
    MutexLock lock(&impl_->queue_mutex);
    if (left <= Duration(0) || impl_->stopping) return false;
  }
}

// Locks one after the other, never both: figures of the queue and of the contents may differ by a
// slice. `last_error` is the latest of the calls' errors and the replicas' troubles that still
// last; else what was refused of engine's batches; else that no leaf was found.
PublisherStats Publisher::Stats() const {
  PublisherStats stats;
  uint64_t last_error_number = 0;
  std::string engine_refusal;
  std::vector<std::pair<Impl::ReplicaPtr, uint64_t>> replicas;  // with their troubles' numbers
  {
    MutexLock lock(&impl_->contents_mutex);
    const ContentsStats& contents = impl_->contents.stats();
    stats.blocks_stored = contents.blocks_stored;
    stats.blocks_removed = contents.blocks_removed;
    stats.clears = contents.clears;
    stats.blocks_stored_passed = contents.blocks_stored_passed;
    stats.blocks_removed_passed = contents.blocks_removed_passed;
    stats.unknown_parents = contents.unknown_parents;
    stats.unknown_removed = contents.unknown_removed;
    stats.renamed = contents.renamed;
    const EngineBatchesStats engine = impl_->engine_batches.Stats();
    stats.blocks_stored += engine.blocks_stored;
    stats.blocks_removed += engine.blocks_removed;
    stats.clears += engine.clears;
    stats.engine_batches = engine.batches;
    stats.engine_unreadable = engine.unreadable;
    stats.engine_refused = engine.refused;
    stats.engine_parked = engine.parked;
    engine_refusal = engine.refused > 0 ? engine.last_refusal : "";
    stats.blocks_held = impl_->contents.resident().size();
    stats.last_error = impl_->last_error;
    last_error_number = impl_->last_error_number;
    for (const Impl::ReplicaPtr& replica : impl_->replicas)
      replicas.emplace_back(replica, replica->trouble_number);
  }
  {
    MutexLock lock(&impl_->queue_mutex);
    stats.queue_bytes = impl_->waiting.bytes() + impl_->working_bytes;
  }
  stats.invalid_calls = impl_->invalid_calls.load(std::memory_order_relaxed);
  stats.inline_records = impl_->inline_records.load(std::memory_order_relaxed);
  if (impl_->zmq != nullptr) stats.zmq = impl_->zmq->Stats();
  for (const auto& [replica, trouble_number] : replicas) {
    const SenderPump& pump = *replica->pump;
    stats.replicas.push_back(
        {.address = replica->address,
         .connected = pump.connected(),
         .welcomed = pump.welcomed(),
         .at_rest = pump.AtRest(),
         .last_number = pump.last_number(),
         .acknowledged = pump.acknowledged(),
         .bytes_sent = replica->grpc_link != nullptr    ? replica->grpc_link->bytes_written()
                       : replica->redis_link != nullptr ? replica->redis_link->Stats().bytes_written
                                                        : 0,
         .sender = pump.stats(),
         .status = replica->Progress().value_or(absl::OkStatus())});
    const ReplicaStats& told = stats.replicas.back();
    stats.batches = std::max(stats.batches, told.sender.batches_sent);
    const bool later = stats.last_error.ok() || trouble_number > last_error_number;
    if (told.status.ok() || !later) continue;
    last_error_number = trouble_number;
    stats.last_error = absl::Status(
        told.status.code(), absl::StrCat("leaf ", told.address, ": ", told.status.message()));
  }
  if (stats.last_error.ok() && !engine_refusal.empty())
    stats.last_error = absl::InvalidArgumentError("engine's events: " + engine_refusal);
  if (stats.last_error.ok() && stats.replicas.empty() && impl_->looks_for_leaves)
    stats.last_error = absl::UnavailableError("no leaf was found where leaves are looked for");
  return stats;
}

// 1. `stopping`: new calls are ignored, and the thread empties the queue and ends.
// 2. ZeroMQ sends what waits.
// 3. Each pump sends what is due within the rest of `flush_for`, with or without a goodbye.
void Publisher::Stop(bool goodbye, Duration flush_for) {
  {
    MutexLock lock(&impl_->queue_mutex);
    if (std::exchange(impl_->stopping, true)) return;
  }
  impl_->work.Signal();
  impl_->thread.join();
  const Time until = Clock::Real().Now() + flush_for;
  if (impl_->zmq != nullptr) impl_->zmq->Stop(flush_for);
  impl_->leaves.reset();
  for (const Impl::ReplicaPtr& replica : impl_->Replicas()) {
    replica->pump->Stop(goodbye, std::max(Duration(0), until - Clock::Real().Now()));
  }
}

}  // namespace kvatlas
