// The reader's thread, finding and opening streams, and what sessions reply. Reading logs is in
// `redis_reader_follow.cc`; both are parts of one class (`redis_reader_impl.h`).
//
// Everything happens on one thread, as tasks in `tasks_`: answers of Redis are posted by the
// client's thread, replies of sessions are collected under `mutex_`. A stream's `life` names one
// session of it; answers that were asked for in an earlier life are dropped (`AskOf`).

#include "indexer/transport/redis/redis_reader.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <variant>

#include "indexer/net/redis_client.h"
#include "indexer/net/redis_url.h"
#include "indexer/stream/validate.h"
#include "indexer/transport/peer_policy.h"
#include "indexer/transport/redis/redis_reader_impl.h"
#include "indexer/transport/redis/redis_scripts.h"
#include "indexer/transport/redis/redis_shards.h"

namespace kvatlas {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(20);
constexpr Duration kFlushFor = std::chrono::milliseconds(200);
// Logs whose ends are asked for at a time: a cell of thousands of streams must not flood Redis at a
// start.
constexpr size_t kOpeningMax = 64;
constexpr char kWakeTtlMs[] = "3600000";

// True if both hellos are of one stream as readers see it; the other fields change with every
// connection of the sender.
bool SameStream(const Hello& a, const Hello& b) {
  return a.epoch == b.epoch && a.instance_id == b.instance_id && a.block_size == b.block_size &&
         a.contract_id == b.contract_id && a.schedule == b.schedule && a.address == b.address &&
         a.labels == b.labels;
}

}  // namespace

RedisReader::Impl::Impl(const RedisLogOptions& options, const std::string& name,
                        StreamAcceptor* acceptor, const Clock* clock, const RedisConnectFn& connect,
                        bool threaded)
    : options_(options),
      reader_(name + "-" + RedisHex(RandomInstanceId())),
      acceptor_(acceptor),
      clock_(clock),
      watch_("redis", RedisHosts(options.redis), {{"cell", options.cell}}, clock),
      shards_(options.shards) {
  for (uint32_t i = 0; i < options_.shards; ++i) {
    Shard& shard = shards_[i];
    shard.tag = RedisTag(options_.cell, i);
    shard.news_key = shard.tag + ":news";
    shard.streams_key = shard.tag + ":streams";
    shard.wake_key = shard.tag + ":wake:" + reader_;
  }
  stats_.status = absl::UnavailableError("not connected yet");
  // Tasks wait until the thread is there, and the thread until this is done.
  client_ = connect(options_.redis,
                    [this](const absl::Status& state) { Post([this, state] { OnRedis(state); }); });
  if (threaded) thread_ = std::thread([this] { Run(); });
}

// The goodbye is said by the thread that owns the streams: the reader's own, or the caller's where
// there is none.
void RedisReader::Impl::Stop() {
  {
    MutexLock lock(&mutex_);
    if (std::exchange(stopping_, true)) return;
    work_.Signal();
  }
  if (thread_.joinable()) {
    thread_.join();
  } else {
    SayGoodbye();
  }
  client_->Stop();
}

// Works off tasks and replies, and wakes up every `kTick` for what is due by time. At the end it
// gives the goodbyes a moment to leave; the blocking reads, one a shard, stay outstanding.
void RedisReader::Impl::Run() {
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (tasks_.empty() && acks_.empty() && replies_.empty() && !stopping_) {
        work_.WaitFor(&mutex_, kTick);
      }
      if (stopping_) break;
    }
    Step();
  }
  SayGoodbye();
  const Time until = Clock::Real().Now() + kFlushFor;
  while (up_ && client_->outstanding() > shards_.size() && Clock::Real().Now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Replies are drained after each task: a session that was refused must not be fed by the next one.
// Acknowledgements go out once for all tasks, and new streams are opened last.
void RedisReader::Impl::Step() {
  std::deque<std::function<void()>> tasks;
  {
    MutexLock lock(&mutex_);
    tasks.swap(tasks_);
  }
  for (const std::function<void()>& task : tasks) {
    task();
    DrainReplies();
  }
  DrainReplies();
  SendAcks();
  if (up_) OpenSome();
  if (const Time now = clock_->Now(); now >= tick_at_) {
    tick_at_ = now + kTick;
    Tick(now);
  }
}

// Tells the sender of each stream not to wait for this reader (`SenderLink::Confirmed`), and
// removes the keys by which this reader wakes itself.
void RedisReader::Impl::SayGoodbye() {
  for (auto& [name, stream] : streams_) {
    if (stream->session == nullptr) continue;
    Tell({"XADD", stream->keys.back, "MAXLEN", "~", kRedisBackMax, "*", "k", "g", "r", reader_, "e",
          std::to_string(stream->hello.epoch)});
    EndSession(stream.get());
  }
  for (const Shard& shard : shards_) Tell({"UNLINK", shard.wake_key});
}

void RedisReader::Impl::Post(std::function<void()> task) {
  MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
  work_.Signal();
}

// The answer comes as a task, also where the command could not be sent: `then` always runs, once,
// and never inside of `Ask`.
void RedisReader::Impl::Ask(RedisArgs args, std::function<void(const Reply&)> then) {
  auto shared = std::make_shared<std::function<void(const Reply&)>>(std::move(then));
  const absl::Status sent = client_->Send(std::move(args), [this, shared](Reply reply) {
    Post([shared, reply = std::move(reply)] { (*shared)(reply); });
  });
  if (!sent.ok()) Post([shared, sent] { (*shared)(sent); });
}

// The same for a stream in its present life; if that has ended meanwhile, `then` does not run.
void RedisReader::Impl::AskOf(const Stream& stream, RedisArgs args,
                              std::function<void(Stream*, const Reply&)> then) {
  Ask(std::move(args), [this, life = stream.life, then = std::move(then)](const Reply& reply) {
    if (Stream* same = OfLife(life)) then(same, reply);
  });
}

// A command whose answer matters to nothing but the statistics.
void RedisReader::Impl::Tell(RedisArgs args) {
  // XADD alone counts: `OnRedis` hears of a lost connection, and a full Redis still takes commands
  // that need no memory.
  const auto note = [this, adds = args.front() == "XADD"](const Reply& reply) {
    if (!adds || absl::IsUnavailable(reply.status())) return;
    Count([&](RedisReaderStats& stats) { stats.writes = reply.status(); });
  };
  client_->Send(std::move(args), note).IgnoreError();
}

RedisReaderStats RedisReader::Impl::Stats() const {
  MutexLock lock(&stats_mutex_);
  return stats_;
}

// ---- Time ----

// Checks all streams against a policy that was read again: it may forbid what an earlier one
// allowed. A comparison of pointers while the policy stays.
void RedisReader::Impl::LookAtPolicy() {
  std::shared_ptr<const AccessPolicy> policy = security_->policy();
  if (policy == policy_) return;
  policy_ = std::move(policy);
  for (auto& [name, stream] : streams_) {
    if (stream->session == nullptr) continue;
    if (const absl::Status bad = Allowed(stream->hello); !bad.ok())
      Refused(stream.get(), std::string(bad.message()));
  }
}

// 1. The number of shards is asked for again after a disagreement; registrations every
//    `find_every`.
// 2. Shards that are not being read are read again, after `kRedisReadRetry` if there was an error.
// 3. Refused streams are opened again when their time has come.
// 4. A lease after Redis was back, sessions are told that the transport is there: from then on
//    silence is the sender's.
// 5. Streams without a registration are forgotten after a lease of silence, unless Redis itself was
//    away.
void RedisReader::Impl::Tick(Time now) {
  watch_.Tick();
  if (!up_) return;
  LookAtPolicy();
  if (shards_at_ != Time(0) && now >= shards_at_) {
    shards_at_ = Time(0);
    return AskForShards();
  }
  if (find_at_ != Time(0) && now >= find_at_) {
    find_at_ = now + options_.find_every;
    for (uint32_t i = 0; i < shards_.size(); ++i) Find(i);
  }
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    if (!shards_[i].reading && shards_[i].found && now >= shards_[i].read_at) Read(i);
  }
  const bool lease_over = back_since_.has_value() && now - *back_since_ >= options_.lease_ttl;
  if (lease_over) back_since_.reset();
  uint64_t following = 0;
  std::vector<std::string> missing;
  for (auto& [name, stream] : streams_) {
    if (stream->mode == Mode::kFollowing) ++following;
    if (stream->mode == Mode::kRefused && now >= stream->retry_at) {
      stream->mode = Mode::kOpening;
      to_open_.push_back(name);
    }
    if (lease_over && std::exchange(stream->transport_lost, false) && stream->session) {
      stream->session->OnTransportLost(false);
    }
    if (stream->missing_since.has_value() && !silent_ && !back_since_.has_value() &&
        now - std::max(*stream->missing_since, stream->heard) >= options_.lease_ttl) {
      missing.push_back(name);
    }
  }
  for (const std::string& name : missing) Forget(name);
  Count([&](RedisReaderStats& stats) {
    stats.streams = streams_.size();
    stats.streams_following = following;
  });
}

// ---- 1. Find ----

// After a loss everything is found anew: registrations may have changed unheard. `redis_life_`
// outdates answers of `Find` from before.
void RedisReader::Impl::OnRedis(const absl::Status& state) {
  Count([&](RedisReaderStats& stats) {
    stats.connected = state.ok();
    stats.status = state;
  });
  watch_.Set(state.ok() ? state : absl::UnavailableError(state.ToString()));
  if (state.ok()) {
    up_ = true;
    find_at_ = Time(0);
    return AskForShards();
  }
  if (!std::exchange(up_, false)) return;
  ++redis_life_;
  for (Shard& shard : shards_) shard.found = false;
  Silence();
  Count([](RedisReaderStats& stats) { ++stats.losses; });
}

// No sender can be heard, since Redis is away or its answers are not readable: sessions are told
// that silence says nothing (`OnTransportLost`).
void RedisReader::Impl::Silence() {
  back_since_.reset();
  silent_ = true;
  for (auto& [name, stream] : streams_) {
    if (stream->session && !std::exchange(stream->transport_lost, true)) {
      stream->session->OnTransportLost(true);
    }
  }
}

void RedisReader::Impl::AskForShards() {
  RedisShardsQuestion question = AskForRedisShards(options_.cell, options_.shards);
  Tell(std::move(question.write_if_absent));
  Ask(std::move(question.read), [this](const Reply& reply) { OnShards(reply); });
}

void RedisReader::Impl::OnShards(const Reply& reply) {
  if (!up_) return;
  const Time now = clock_->Now();
  if (const absl::Status why = CheckRedisShards(reply, options_.shards); !why.ok()) {
    shards_at_ = now + options_.hello_retry;
    LogEvery(RedisReaderLog(), "shards", LogLevel::kError, "cannot read from redis",
             {{"reason", why}});
    return Count([&](RedisReaderStats& stats) { stats.status = why; });
  }
  find_at_ = now;
}

// Reads all registrations of a shard. The place in the news is asked for first, so that a
// registration made meanwhile is found in the news. The ids of news come from Redis' clock: where
// it lost them and its clock went back, they start below what was read, and reading goes back.
void RedisReader::Impl::Find(uint32_t shard) {
  const uint64_t life = redis_life_;
  // Something is written each time, so that a Redis that takes no writes is known to be one
  // (`RedisReaderStats::writes`).
  Tell({"XADD", shards_[shard].wake_key, "MAXLEN", "1", "*", "w", "1"});
  Tell({"PEXPIRE", shards_[shard].wake_key, kWakeTtlMs});
  shards_[shard].wake_from = "0-0";
  Ask({"XREVRANGE", shards_[shard].news_key, "+", "-", "COUNT", "1"},
      [this, shard, life](const Reply& reply) {
        if (life != redis_life_ || !reply.ok()) return;
        const RedisEntryId last =
            (reply->elements.empty() ? std::nullopt : RedisIdOf(reply->elements[0]))
                .value_or(RedisEntryId{});
        const auto from = RedisEntryId::Parse(shards_[shard].news_from);
        if (!shards_[shard].found || (from.has_value() && last < *from)) {
          shards_[shard].news_from = last.ToString();
        }
      });
  Ask({"HGETALL", shards_[shard].streams_key}, [this, shard, life](const Reply& reply) {
    if (life == redis_life_) OnFound(shard, reply);
  });
}

// A stream whose registration is missing is not forgotten at once: its sender may be about to
// register again (`Tick`).
void RedisReader::Impl::OnFound(uint32_t shard, const Reply& reply) {
  if (!reply.ok()) {
    find_at_ = clock_->Now() + kRedisReadRetry;
    return;
  }
  std::unordered_set<std::string> names;
  for (size_t i = 0; i + 1 < reply->elements.size(); i += 2) {
    names.insert(reply->elements[i].text);
    Register(shard, reply->elements[i].text, reply->elements[i + 1].text);
  }
  for (auto& [name, stream] : streams_) {
    if (stream->shard != shard || names.contains(name) || stream->missing_since.has_value()) {
      continue;
    }
    stream->missing_since = clock_->Now();
  }
  shards_[shard].found = true;
}

// 1. A registration is owner (padded epoch and instance) and the hello as an entry; its epoch, name
//    and signature must fit, or it is skipped and counted.
// 2. A new stream gets a place, within `streams_max`.
// 3. A known one with the same hello goes on; if its log was missing, it is opened again at once.
// 4. Any other hello ends the session: the stream is opened anew.
void RedisReader::Impl::Register(uint32_t shard, const std::string& name,
                                 const std::string& registration) {
  const auto epoch = ParseUint64(std::string_view(registration).substr(0, 20));
  if (registration.size() < kRedisOwnerBytes || !epoch.has_value()) return;
  absl::StatusOr<SenderMessage> message = Decode(
      std::string_view(registration).substr(kRedisOwnerBytes), RedisEntryId::Of(*epoch, 0), name);
  const Hello* hello = message.ok() ? std::get_if<Hello>(&*message) : nullptr;
  if (hello == nullptr || hello->epoch != *epoch ||
      RedisStreamName(hello->holder, hello->domain) != name) {
    LogEvery(RedisReaderLog(), name, LogLevel::kWarning, "a registration in redis cannot be read",
             {{"stream", name}, {"reason", message.status()}});
    return Count([](RedisReaderStats& stats) { ++stats.entries_damaged; });
  }
  auto& stream = streams_[name];
  if (stream == nullptr && streams_.size() > options_.streams_max) {
    streams_.erase(name);
    LogEvery(RedisReaderLog(), LogLevel::kError, "too many streams in redis", {{"stream", name}});
    return;
  }
  if (stream == nullptr) {
    stream = std::make_unique<Stream>(name, shard, shards_[shard].tag);
    by_log_[stream->keys.log] = stream.get();
  } else if (SameStream(stream->hello, *hello)) {
    stream->hello = *hello;
    stream->missing_since.reset();
    if (std::exchange(stream->no_log, false)) stream->retry_at = Time(0);
    return;
  }
  EndSession(stream.get());
  stream->missing_since.reset();
  stream->hello = *hello;
  stream->mode = Mode::kOpening;
  stream->snapshot_used = 0;
  stream->heartbeat.reset();
  to_open_.push_back(name);
}

// ---- 2. Open ----

// `life` is 0 until the stream is being opened: a name that is queued twice is opened once.
void RedisReader::Impl::OpenSome() {
  while (opening_ < kOpeningMax && !to_open_.empty()) {
    const auto it = streams_.find(to_open_.front());
    to_open_.pop_front();
    if (it != streams_.end() && it->second->mode == Mode::kOpening && it->second->life == 0) {
      Open(it->second.get());
    }
  }
}

void RedisReader::Impl::Open(Stream* stream) {
  stream->life = next_life_++;
  lives_[stream->life] = stream;
  ++opening_;
  Ask({"EVAL", kRedisOpenScript, "2", stream->keys.log, stream->keys.streams, stream->name},
      [this, life = stream->life](const Reply& reply) {
        --opening_;
        if (Stream* same = OfLife(life)) OnOpen(same, reply);
      });
}

// Makes the hello that the session gets, from the registration and the ends of the log.
// 1. Without a log of this epoch the stream waits for its sender (`no_log`), without a refusal.
// 2. `first_kept` and `last_sent` become what the log has. A log whose first entry is number 0, the
//    hello, has all batches.
// 3. Policy, session, allowance, hello. The session's welcome comes as a reply (`On`) and begins to
//    follow, or looks for a snapshot.
void RedisReader::Impl::OnOpen(Stream* stream, const Reply& reply) {
  if (!reply.ok() || reply->elements.size() != 2) {
    // No log: its sender is long gone, or says hello again when it notices.
    stream->no_log = true;
    return Refused(stream, "");
  }
  const auto first = RedisEntryId::Parse(reply->elements[0].text);
  const auto last = RedisEntryId::Parse(reply->elements[1].text);
  if (!last.has_value() || last->epoch != stream->hello.epoch) {
    stream->no_log = true;
    return Refused(stream, "");
  }
  Hello hello = stream->hello;
  const auto in_log = std::min<BatchNumber>(last->number(), kBatchNumberMax - 1);
  // Batches that the sender had at its hello may not be in the log yet: holdings are not current
  // without them.
  hello.last_sent = std::max(hello.last_sent, in_log);
  hello.first_kept = in_log + 1;
  if (first.has_value() && first->epoch == hello.epoch) {
    // The first entry of an epoch is its hello.
    hello.first_kept = std::clamp<BatchNumber>(first->number(), 1, in_log + 1);
  }
  stream->position = RedisEntryId::Before(hello.epoch, hello.last_sent + 1);
  const uint64_t life = stream->life;
  if (const absl::Status bad = Allowed(hello); !bad.ok())
    return Refused(stream, std::string(bad.message()));
  stream->session = acceptor_->Accept([this, life](ReceiverMessage message) {
    MutexLock lock(&mutex_);
    if (const Ack* ack = std::get_if<Ack>(&message)) {
      acks_[life] = ack->applied;
    } else {
      replies_.emplace_back(life, std::move(message));
    }
    work_.Signal();
  });
  if (stream->session == nullptr) return Refused(stream, "not accepted");
  if (security_->enforces()) {
    stream->session->OnAllowance(AllowanceOf(
        security_, {.identity = IdentityOf(hello), .cell = options_.cell, .peer = "redis"}));
  }
  const absl::Status status = stream->session->OnMessage(hello);
  DrainReplies();  // the welcome
  if (OfLife(life) == nullptr || stream->mode == Mode::kRefused) return;
  if (!status.ok()) Refused(stream, std::string(status.message()));
}

// The cell's key shows that a sender is of this cell, not which worker it is: the name is the
// hello's own claim, unless workers have keys of their own (version 3 of an entry).
std::shared_ptr<const Identity> RedisReader::Impl::IdentityOf(const Hello& hello) const {
  Identity identity;
  identity.role = IdentityRole::kWorker;
  identity.cell = options_.cell;
  identity.name = hello.holder.name;
  return std::make_shared<const Identity>(std::move(identity));
}

absl::Status RedisReader::Impl::Allowed(const Hello& hello) {
  const std::shared_ptr<const AccessPolicy> policy = security_->policy();
  if (policy == nullptr) return absl::OkStatus();
  const std::shared_ptr<const Identity> identity = IdentityOf(hello);
  if (policy->Revoked(*identity)) {
    const absl::Status revoked = CredentialRefused("the worker is revoked", identity.get());
    security_->AuditUnknown(Verb::kPublish, "redis", revoked);
    return revoked;
  }
  return security_->Check(*identity, Verb::kPublish, TargetOf(hello, Verb::kPublish, options_.cell),
                          "redis", "hello",
                          /*audit_allowed=*/true);
}

// Ends the session and tries again after `hello_retry`. `why` goes to the sender, unless it is
// empty.
void RedisReader::Impl::Refused(Stream* stream, const std::string& why) {
  if (!why.empty()) {
    Count([](RedisReaderStats& stats) { ++stats.streams_refused; });
    Tell({"XADD", stream->keys.back, "MAXLEN", "~", kRedisBackMax, "*", "k", "r", "r", reader_, "e",
          std::to_string(stream->hello.epoch), "n", "0", "w", why});
  }
  EndSession(stream);
  stream->mode = Mode::kRefused;
  stream->retry_at = clock_->Now() + options_.hello_retry;
}

// `lives_` first: from here on no answer and no reply finds the session that is destroyed below.
void RedisReader::Impl::EndSession(Stream* stream) {
  lives_.erase(stream->life);
  stream->life = 0;
  stream->session.reset();
  stream->transport_lost = false;
  stream->ack_due = false;
  acks_due_.erase(stream->name);
  shards_[stream->shard].heartbeats.erase(stream->name);
}

void RedisReader::Impl::Forget(const std::string& name) {
  const auto it = streams_.find(name);
  if (it == streams_.end()) return;
  EndSession(it->second.get());
  by_log_.erase(it->second->keys.log);
  streams_.erase(it);
}

// ---- What sessions reply ----

// Only the newest acknowledgement of each life was kept. Other replies go to their streams in
// order; those of lives that have ended are dropped.
void RedisReader::Impl::DrainReplies() {
  std::unordered_map<uint64_t, BatchNumber> acks;
  std::vector<std::pair<uint64_t, ReceiverMessage>> replies;
  {
    MutexLock lock(&mutex_);
    acks.swap(acks_);
    replies.swap(replies_);
  }
  for (const auto& [life, applied] : acks) {
    Stream* stream = OfLife(life);
    if (stream == nullptr) continue;
    stream->ack = applied;
    stream->ack_due = true;
    acks_due_.insert(stream->name);
  }
  for (const auto& [life, message] : replies) {
    if (Stream* stream = OfLife(life)) On(stream, message);
  }
}

// A welcome says what the receiver has: `fed` counts from there, and the sender hears of it as of
// an acknowledgement.
void RedisReader::Impl::On(Stream* stream, const ReceiverMessage& message) {
  if (const Welcome* welcome = std::get_if<Welcome>(&message)) {
    stream->fed = std::max<BatchNumber>(welcome->next, 1) - 1;
    stream->ack = stream->fed;
    stream->ack_due = true;
    acks_due_.insert(stream->name);
    if (welcome->snapshot) return LookForSnapshot(stream);
    return Follow(stream, RedisEntryId::Before(stream->hello.epoch, stream->fed + 1));
  }
  if (const Need* need = std::get_if<Need>(&message)) return OnNeed(stream, *need);
  if (const Refuse* refuse = std::get_if<Refuse>(&message)) Refused(stream, refuse->reason);
}

void RedisReader::Impl::SendAcks() {
  for (const std::string& name : std::exchange(acks_due_, {})) {
    const auto it = streams_.find(name);
    if (it == streams_.end() || !std::exchange(it->second->ack_due, false)) continue;
    const Stream& stream = *it->second;
    Tell({"XADD", stream.keys.back, "MAXLEN", "~", kRedisBackMax, "*", "k", "a", "r", reader_, "e",
          std::to_string(stream.hello.epoch), "n", std::to_string(stream.ack)});
  }
}

// ---- The reader ----

RedisReader::RedisReader(const RedisLogOptions& options, const std::string& name,
                         StreamAcceptor* acceptor, const Clock* clock)
    : impl_(std::make_unique<Impl>(options, name, acceptor, clock, ConnectRedis,
                                   /*threaded=*/true)) {}

RedisReader::RedisReader(const RedisLogOptions& options, const std::string& name,
                         StreamAcceptor* acceptor, const Clock* clock,
                         const RedisConnectFn& connect)
    : impl_(std::make_unique<Impl>(options, name, acceptor, clock, connect, /*threaded=*/false)) {}

RedisReader::~RedisReader() = default;

void RedisReader::Stop() { impl_->Stop(); }
void RedisReader::Step() { impl_->Step(); }
RedisReaderStats RedisReader::Stats() const { return impl_->Stats(); }

}  // namespace kvatlas
