// `RedisClient::Loop` is the client: an io_context with one thread, the inbox that other threads
// fill, and the connections by id. RedisConnection does the work of one connection; this file
// decides which connection a command takes, follows redirections, and makes connections again.
//
// The path of a command: Send (any thread) ─▶ inbox ─▶ TakeInbox ─▶ Route ─▶ WriteTo ─▶
// RedisConnection::Write ─▶ OnReply ─▶ Answer, or Redirect ─▶ WriteTo.

#include "indexer/net/redis_client.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"
#include "indexer/net/redis_connection.h"
#include "indexer/security/security.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// Redirections of one command; the next MOVED or ASK becomes its error.
constexpr int kRedirectionsMax = 5;
constexpr Duration kLookEvery = std::chrono::milliseconds(50);  // at deadlines
constexpr size_t kIdleConnectionsMax = 16;  // kept for blocking commands, in all
constexpr size_t kNodesMax = 1024;          // of a cluster, beside the first

std::string Upper(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return upper;
}

// Commands that change the state of a connection which other callers share, or that have more or
// fewer answers than one.
bool Forbidden(const std::string& name) {
  static constexpr std::string_view kNames[] = {
      "AUTH",        "HELLO",      "SELECT",       "RESET",      "QUIT",         "MULTI",
      "EXEC",        "DISCARD",    "WATCH",        "UNWATCH",    "CLIENT",       "SUBSCRIBE",
      "UNSUBSCRIBE", "PSUBSCRIBE", "PUNSUBSCRIBE", "SSUBSCRIBE", "SUNSUBSCRIBE", "MONITOR",
      "SYNC",        "PSYNC",      "ASKING",       "READONLY",   "READWRITE"};
  const std::string upper = Upper(name);
  return std::find(std::begin(kNames), std::end(kNames), upper) != std::end(kNames);
}

// The target of "MOVED 3999 127.0.0.1:6381" or "ASK …". An empty host or "?" means the host that
// answered. Nothing: not in that form.
std::optional<Address> RedirectedTo(const std::string& error, const Address& from) {
  const size_t space = error.rfind(' ');
  const size_t colon = error.rfind(':');
  if (space == std::string::npos || colon == std::string::npos || colon < space) return {};
  Address to{.host = error.substr(space + 1, colon - space - 1), .port = 0};
  if (to.host.empty() || to.host == "?") to.host = from.host;
  const char* end = error.data() + error.size();
  const auto [stop, bad] = std::from_chars(error.data() + colon + 1, end, to.port);
  if (bad != std::errc() || stop != end || to.port == 0) return {};
  return to;
}

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// CRC16-XMODEM, the hash of Redis Cluster's slots.
uint16_t Crc16(std::string_view text) {
  uint16_t crc = 0;
  for (const char c : text) {
    crc = static_cast<uint16_t>(crc ^ (static_cast<unsigned char>(c) << 8));
    for (int bit = 0; bit < 8; ++bit) {
      crc = static_cast<uint16_t>((crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1);
    }
  }
  return crc;
}

}  // namespace

// The key is the first argument, except for the commands named here. An unknown command without a
// key would only be sent by the slot of its first argument, and a cluster answers it wherever it
// comes.
std::string_view RedisKeyOf(const RedisArgs& args) {
  if (args.size() < 2) return {};
  const std::string name = Upper(args[0]);
  if (name == "EVAL" || name == "EVALSHA") {
    return args.size() > 3 && args[2] != "0" ? std::string_view(args[3]) : std::string_view();
  }
  if (name == "XREAD" || name == "XREADGROUP") {
    for (size_t i = 1; i + 1 < args.size(); ++i) {
      if (Upper(args[i]) == "STREAMS") return args[i + 1];
    }
    return {};
  }
  if (name == "XGROUP" || name == "XINFO" || name == "OBJECT" || name == "MEMORY") {
    return args.size() > 2 ? std::string_view(args[2]) : std::string_view();
  }
  static constexpr std::string_view kKeyless[] = {
      "PING",    "INFO",     "CONFIG",   "ROLE",     "TIME",   "ECHO", "SCRIPT",
      "CLUSTER", "SENTINEL", "DEBUG",    "COMMAND",  "SCAN",   "KEYS", "FLUSHALL",
      "FLUSHDB", "PUBLISH",  "SHUTDOWN", "SAVE",     "BGSAVE", "ACL",  "LATENCY",
      "SLOWLOG", "WAIT",     "FAILOVER", "REPLICAOF"};
  if (std::find(std::begin(kKeyless), std::end(kKeyless), name) != std::end(kKeyless)) return {};
  return args[1];
}

uint32_t RedisSlotOf(std::string_view key) {
  if (const size_t open = key.find('{'); open != std::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  return Crc16(key) % 16384;
}

// Members without a guard belong to the loop's thread. `mutex_` is held for a few lines and never
// while a callback runs; `stop_mutex_` is held over the join and taken alone.
//
// Connections are referred to by id, never by pointer, across callbacks: a callback may lead to
// their removal. Ids are not reused.
class RedisClient::Loop : public RedisConnection::Owner {
 public:
  Loop(RedisOptions options, StateFn on_state)
      : options_(std::move(options)),
        on_state_(std::move(on_state)),
        backoff_(options_.backoff_initial) {
    asio::post(io_, [this] {
      StartPrimary();
      LookAtTime();
    });
    thread_ = std::thread([this] { io_.run(); });
  }

  ~Loop() override { Stop(); }

  absl::Status Send(RedisArgs args, bool blocking, Duration block_for, RedisCallback callback);
  void RunAfter(Duration delay, std::function<void()> run);
  void Stop();
  RedisClientStats Stats() const;
  bool connected() const { return connected_.load(std::memory_order_relaxed); }
  const RedisOptions& options() const { return options_; }

 private:
  void TakeInbox();
  void LookAtTime();
  void End();

  // The first node.
  void StartPrimary();
  void OnPrimaryClosed(const absl::Status& why);
  void FailAwaiting(const absl::Status& why);
  void Tell(const absl::Status& state);
  void TakeMaster(const absl::StatusOr<RedisReply>& reply, Time now);

  void Route(std::unique_ptr<RedisCommand> command, Time now);
  void WriteTo(const std::optional<Address>& node, std::unique_ptr<RedisCommand> command,
               bool asking, Time now);
  RedisConnection* NodeAt(const Address& address, Time now);
  RedisConnection* ForBlocking(const Address& address, Time now);
  RedisConnection* Connect(const Address& address, RedisConnection::Role role, Time now);
  RedisConnection* Find(uint64_t id);
  void Answer(std::unique_ptr<RedisCommand> command, absl::StatusOr<RedisReply> reply);
  bool Redirect(RedisConnection* from, std::unique_ptr<RedisCommand>* command,
                const std::string& error);

  void OnReady(RedisConnection* connection) override;
  void OnReply(RedisConnection* connection, std::unique_ptr<RedisCommand> command,
               absl::StatusOr<RedisReply> reply, const std::string& error) override;
  void OnClosed(RedisConnection* connection) override;
  void Remove(uint64_t id);

  const RedisOptions options_;
  const StateFn on_state_;
  asio::io_context io_{1};
  const asio::executor_work_guard<asio::io_context::executor_type> work_ =
      asio::make_work_guard(io_);
  asio::steady_timer look_{io_};
  asio::steady_timer retry_{io_};

  // All connections by id, from Connect until Remove. Bounded: first node or sentinel, `kNodesMax`
  // others, `blocking_max` busy and `kIdleConnectionsMax` idle ones.
  std::unordered_map<uint64_t, std::shared_ptr<RedisConnection>> connections_;
  uint64_t next_id_ = 1;
  uint64_t primary_ = 0;   // 0: none, until `retry_`
  uint64_t sentinel_ = 0;  // being asked for the master
  // Commands that came while a sentinel is asked; they are routed, or fail, with its answer.
  std::vector<std::unique_ptr<RedisCommand>> awaiting_master_;
  // Why there is no first node: the error of commands that come meanwhile.
  absl::Status primary_why_ = absl::UnavailableError("not connected yet");
  Duration backoff_;
  size_t next_host_ = 0;
  std::map<std::string, uint64_t> nodes_;        // others, by address: pipelined
  std::map<uint32_t, Address> slots_;            // that moved from the first node
  std::vector<uint64_t> idle_;                   // for blocking commands
  std::unordered_map<uint64_t, bool> blocking_;  // connections of blocking commands: busy?

  std::atomic<bool> connected_{false};
  std::atomic<uint64_t> failed_{0};
  std::atomic<uint64_t> connects_{0};
  std::atomic<uint64_t> redirections_{0};

  mutable Mutex mutex_;
  // Accepted and not yet routed; bounded by `outstanding_max`.
  std::vector<std::unique_ptr<RedisCommand>> inbox_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Accepted and not yet answered, in commands, bytes of their arguments, and blocking commands.
  size_t outstanding_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t outstanding_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t outstanding_blocking_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t commands_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t bytes_sent_ ABSL_GUARDED_BY(mutex_) = 0;

  Mutex stop_mutex_;
  bool joined_ ABSL_GUARDED_BY(stop_mutex_) = false;
  std::thread thread_;
};

// ---- Any thread ----

// Counts the command and puts it into the inbox. Only the first command of a batch posts to the
// loop: TakeInbox takes all that came meanwhile. One command larger than `outstanding_bytes_max` is
// accepted when nothing else is outstanding; it could never be sent otherwise.
absl::Status RedisClient::Loop::Send(RedisArgs args, bool blocking, Duration block_for,
                                     RedisCallback callback) {
  if (args.empty()) return absl::InvalidArgumentError("a command without arguments");
  if (Forbidden(args[0])) return absl::InvalidArgumentError(args[0] + " cannot be sent");
  auto command = std::make_unique<RedisCommand>();
  for (const std::string& arg : args) command->bytes += arg.size();
  command->args = std::move(args);
  command->callback = std::move(callback);
  if (!command->callback) command->callback = [](const absl::StatusOr<RedisReply>&) {};
  command->blocking = blocking;
  command->block_for = block_for;
  bool wake = false;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return absl::CancelledError("the client is stopped");
    if (outstanding_ >= options_.outstanding_max ||
        (outstanding_ > 0 &&
         outstanding_bytes_ + command->bytes > options_.outstanding_bytes_max)) {
      return absl::ResourceExhaustedError("too much is outstanding at Redis");
    }
    if (blocking && outstanding_blocking_ >= options_.blocking_max) {
      return absl::ResourceExhaustedError("too many blocking commands at Redis");
    }
    ++outstanding_;
    ++commands_;
    outstanding_bytes_ += command->bytes;
    bytes_sent_ += command->bytes;
    if (blocking) ++outstanding_blocking_;
    wake = inbox_.empty();
    inbox_.push_back(std::move(command));
  }
  if (wake) asio::post(io_, [this] { TakeInbox(); });
  return absl::OkStatus();
}

// The timer lives in its own handler. When the loop ends it is destroyed with the io_context, and
// `run` is not called.
void RedisClient::Loop::RunAfter(Duration delay, std::function<void()> run) {
  const auto timer = std::make_shared<asio::steady_timer>(io_, delay);
  timer->async_wait([timer, run = std::move(run)](const error_code& error) {
    if (!error) run();
  });
}

// 1. Send refuses from now on. 2. End answers all commands on the loop's thread. 3. The thread is
//    joined. Later callers wait for the first one and find it joined.
void RedisClient::Loop::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  MutexLock lock(&stop_mutex_);
  if (std::exchange(joined_, true)) return;
  asio::post(io_, [this] { End(); });
  thread_.join();
}

RedisClientStats RedisClient::Loop::Stats() const {
  RedisClientStats stats;
  stats.failed = failed_.load(std::memory_order_relaxed);
  stats.connects = connects_.load(std::memory_order_relaxed);
  stats.redirections = redirections_.load(std::memory_order_relaxed);
  stats.connected = connected();
  MutexLock lock(&mutex_);
  stats.commands = commands_;
  stats.bytes_sent = bytes_sent_;
  stats.outstanding = outstanding_;
  return stats;
}

// ---- The loop ----

// Answers everything with CANCELLED: what is in flight (Close), in the inbox, and waiting for a
// master. A callback's Send fails, since `stopping_` is set. Then the loop ends, whatever is still
// posted.
void RedisClient::Loop::End() {
  const absl::Status stopped = absl::CancelledError("the client is stopped");
  for (const auto& [id, connection] : connections_) connection->Close(stopped);
  std::vector<std::unique_ptr<RedisCommand>> left;
  {
    MutexLock lock(&mutex_);
    left.swap(inbox_);
  }
  FailAwaiting(stopped);
  for (auto& command : left) Answer(std::move(command), stopped);
  connections_.clear();
  io_.stop();
}

// Routes outside the lock: Route may call callbacks.
void RedisClient::Loop::TakeInbox() {
  std::vector<std::unique_ptr<RedisCommand>> taken;
  {
    MutexLock lock(&mutex_);
    taken.swap(inbox_);
  }
  const Time now = Clock::Real().Now();
  for (auto& command : taken) Route(std::move(command), now);
}

// Checks deadlines every `kLookEvery`; a command may be late by that much. Collects ids first,
// since closing a connection runs callbacks, which may add and remove connections.
void RedisClient::Loop::LookAtTime() {
  const Time now = Clock::Real().Now();
  std::vector<uint64_t> ids;
  for (const auto& [id, connection] : connections_) ids.push_back(id);
  for (const uint64_t id : ids) {
    if (RedisConnection* connection = Find(id)) connection->OnTime(now);
  }
  look_.expires_after(kLookEvery);
  look_.async_wait([this](const error_code& error) {
    if (!error) LookAtTime();
  });
}

// Posted: the connection is within one of its own calls and must outlive it.
void RedisClient::Loop::OnClosed(RedisConnection* connection) {
  asio::post(io_, [this, id = connection->id()] { Remove(id); });
}

// Forgets a closed connection.
// 1. The first node, or a sentinel that closed before there was a first node: OnPrimaryClosed
//    retries. A sentinel that has named the master is closed by us and only forgotten.
// 2. Another node: its slots are forgotten too. The next command for them goes to the first node,
//    which answers MOVED with the present owner.
// 3. A connection of a blocking command: only forgotten.
void RedisClient::Loop::Remove(uint64_t id) {
  const std::shared_ptr<RedisConnection> connection = std::move(connections_.at(id));
  connections_.erase(id);
  blocking_.erase(id);
  std::erase(idle_, id);
  if (id == primary_ || id == sentinel_) {
    (id == primary_ ? primary_ : sentinel_) = 0;
    // A sentinel that has answered is done with.
    if (primary_ == 0) OnPrimaryClosed(connection->why());
    return;
  }
  const std::string address = connection->address().ToString();
  if (const auto node = nodes_.find(address); node != nodes_.end() && node->second == id) {
    nodes_.erase(node);
    // The first node knows which node has these slots now.
    std::erase_if(slots_, [&](const auto& slot) { return slot.second.ToString() == address; });
  }
}

// ---- The first node ----

// Connects to the next of the hosts in turn; called at the start and by `retry_`. With sentinels:
// the host is a sentinel, which is asked for the master's address (TakeMaster).
void RedisClient::Loop::StartPrimary() {
  const Time now = Clock::Real().Now();
  const Address& host = options_.hosts[next_host_++ % options_.hosts.size()];
  if (options_.sentinel_master.empty()) {
    primary_ = Connect(host, RedisConnection::Role::kAny, now)->id();
    return;
  }
  RedisConnection* sentinel = Connect(host, RedisConnection::Role::kSentinel, now);
  sentinel_ = sentinel->id();
  auto ask = std::make_unique<RedisCommand>();
  ask->args = {"SENTINEL", "get-master-addr-by-name", options_.sentinel_master};
  ask->callback = [this](const absl::StatusOr<RedisReply>& reply) {
    TakeMaster(reply, Clock::Real().Now());
  };
  ask->redirections = kRedirectionsMax;
  {
    MutexLock lock(&mutex_);
    ++outstanding_;  // as every command that is answered
  }
  sentinel->Write(std::move(ask), false, now);
}

// The sentinel's answer: host and port. Known: connect there, as a node that must say in its ROLE
// that it is the master, and route the commands that waited. Unknown: the sentinel is closed with
// that reason, and Remove leads to the next one.
void RedisClient::Loop::TakeMaster(const absl::StatusOr<RedisReply>& reply, Time now) {
  RedisConnection* sentinel = Find(sentinel_);
  if (sentinel == nullptr || !reply.ok()) return;  // it is closed, or going to be
  Address master;
  const bool known =
      reply->elements.size() == 2 &&
      (master = {.host = reply->elements[0].text, .port = 0}, true) &&
      std::from_chars(reply->elements[1].text.data(),
                      reply->elements[1].text.data() + reply->elements[1].text.size(), master.port)
              .ec == std::errc() &&
      master.port != 0;
  if (known) {
    primary_ = Connect(master, RedisConnection::Role::kMaster, now)->id();
    for (auto& command : std::exchange(awaiting_master_, {})) Route(std::move(command), now);
  }
  sentinel->Close(known ? absl::OkStatus()
                        : absl::UnavailableError(sentinel->address().ToString() +
                                                 ": knows no master " + options_.sentinel_master));
}

// Schedules the next attempt with doubled backoff, and forgets the slots: the next first node may
// be another one with another view. Waiting commands fail now rather than wait for an unknown time.
void RedisClient::Loop::OnPrimaryClosed(const absl::Status& why) {
  connected_.store(false, std::memory_order_relaxed);
  primary_why_ = why.ok() ? absl::UnavailableError("not connected") : why;
  retry_.expires_after(backoff_);
  retry_.async_wait([this](const error_code& error) {
    if (!error) StartPrimary();
  });
  backoff_ = std::min(2 * backoff_, options_.backoff_max);
  slots_.clear();
  FailAwaiting(primary_why_);
  Tell(primary_why_);
}

void RedisClient::Loop::FailAwaiting(const absl::Status& why) {
  std::vector<std::unique_ptr<RedisCommand>> failed = std::exchange(awaiting_master_, {});
  for (auto& command : failed) Answer(std::move(command), why);
}

void RedisClient::Loop::Tell(const absl::Status& state) {
  if (on_state_) on_state_(state);
}

// Only the first node decides about the client's state and ends the backoff.
void RedisClient::Loop::OnReady(RedisConnection* connection) {
  connects_.fetch_add(1, std::memory_order_relaxed);
  if (connection->id() != primary_) return;
  backoff_ = options_.backoff_initial;
  connected_.store(true, std::memory_order_relaxed);
  Tell(absl::OkStatus());
}

// ---- Commands ----

// Chooses the node by the slots that moved; without any, which is always so outside a cluster, no
// key is looked for.
void RedisClient::Loop::Route(std::unique_ptr<RedisCommand> command, Time now) {
  std::optional<Address> node;
  if (!slots_.empty()) {
    const std::string_view key = RedisKeyOf(command->args);
    const auto slot = key.empty() ? slots_.end() : slots_.find(RedisSlotOf(key));
    if (slot != slots_.end()) node = slot->second;
  }
  WriteTo(node, std::move(command), false, now);
}

// `node`: where to; nothing: the first node. While a sentinel is asked, commands for the first node
// wait; while there is none they fail with the reason. `asking`: after ASK.
void RedisClient::Loop::WriteTo(const std::optional<Address>& node,
                                std::unique_ptr<RedisCommand> command, bool asking, Time now) {
  RedisConnection* first = Find(primary_);
  if (!node.has_value() && first == nullptr && sentinel_ != 0) {
    return awaiting_master_.push_back(std::move(command));
  }
  if (!node.has_value() && (first == nullptr || first->closed())) {
    return Answer(std::move(command), first == nullptr ? primary_why_ : first->why());
  }
  RedisConnection* to = first;
  if (command->blocking) {
    to = ForBlocking(node.has_value() ? *node : first->address(), now);
  } else if (node.has_value()) {
    to = NodeAt(*node, now);
  }
  to->Write(std::move(command), asking, now);
}

// The pipelined connection to a node; made on first use, and again after a loss. The first node's
// connection serves its own address.
RedisConnection* RedisClient::Loop::NodeAt(const Address& address, Time now) {
  RedisConnection* first = Find(primary_);
  if (first != nullptr && !first->closed() && first->address() == address) return first;
  uint64_t& id = nodes_[address.ToString()];
  RedisConnection* node = Find(id);
  if (node == nullptr || node->closed()) {
    node = Connect(address, RedisConnection::Role::kAny, now);
    id = node->id();
  }
  return node;
}

// A connection for one blocking command: an idle one to that address, else a new one. A blocking
// command would hold up everything behind it on a shared connection.
RedisConnection* RedisClient::Loop::ForBlocking(const Address& address, Time now) {
  for (size_t i = 0; i < idle_.size(); ++i) {
    RedisConnection* connection = Find(idle_[i]);
    if (connection == nullptr || connection->closed() || !(connection->address() == address)) {
      continue;
    }
    idle_.erase(idle_.begin() + static_cast<int64_t>(i));
    return connection;
  }
  RedisConnection* connection = Connect(address, RedisConnection::Role::kAny, now);
  blocking_[connection->id()] = true;
  return connection;
}

// The entry is in `connections_` before Start, which may fail and call OnClosed within the call.
RedisConnection* RedisClient::Loop::Connect(const Address& address, RedisConnection::Role role,
                                            Time now) {
  const uint64_t id = next_id_++;
  auto& connection = connections_[id];
  connection = std::make_shared<RedisConnection>(&io_, id, address, &options_, role, this);
  connection->Start(now);
  return connection.get();
}

RedisConnection* RedisClient::Loop::Find(uint64_t id) {
  const auto it = connections_.find(id);
  return it == connections_.end() ? nullptr : it->second.get();
}

// Every accepted command ends here exactly once. It is uncounted before its callback, so that the
// callback may send another at the bound.
void RedisClient::Loop::Answer(std::unique_ptr<RedisCommand> command,
                               absl::StatusOr<RedisReply> reply) {
  if (!reply.ok()) failed_.fetch_add(1, std::memory_order_relaxed);
  {
    MutexLock lock(&mutex_);
    --outstanding_;
    outstanding_bytes_ -= command->bytes;
    if (command->blocking) --outstanding_blocking_;
  }
  command->callback(std::move(reply));
}

// 1. A connection of a blocking command is free again: kept idle, or closed beyond
//    `kIdleConnectionsMax`.
// 2. MOVED and ASK are followed (Redirect).
// 3. READONLY: the node was the master when we connected and is a replica now. Its connection is
//    closed, so that the master is looked for again.
// 4. Answer.
void RedisClient::Loop::OnReply(RedisConnection* connection, std::unique_ptr<RedisCommand> command,
                                absl::StatusOr<RedisReply> reply, const std::string& error) {
  if (blocking_.contains(connection->id()) && !connection->closed()) {
    if (idle_.size() < kIdleConnectionsMax) {
      idle_.push_back(connection->id());
    } else {
      connection->Close(absl::UnavailableError("not needed"));
    }
  }
  if (!error.empty() && Redirect(connection, &command, error)) return;
  // Closing makes OnPrimaryClosed look for the master again.
  if (StartsWith(error, "READONLY ")) {
    connection->Close(absl::UnavailableError(connection->address().ToString() + ": " + error));
  }
  Answer(std::move(command), std::move(reply));
}

// True: the command is on its way to another node. MOVED is remembered for the slot; ASK is for
// this command alone, while the slot is being moved. False: the error is the answer, with
// UNAVAILABLE.
bool RedisClient::Loop::Redirect(RedisConnection* from, std::unique_ptr<RedisCommand>* command,
                                 const std::string& error) {
  const bool moved = StartsWith(error, "MOVED ");
  if (!moved && !StartsWith(error, "ASK ")) return false;
  const std::optional<Address> to = RedirectedTo(error, from->address());
  if (!to.has_value() || (*command)->redirections >= kRedirectionsMax) return false;
  if (nodes_.size() >= kNodesMax && !nodes_.contains(to->ToString())) return false;
  ++(*command)->redirections;
  redirections_.fetch_add(1, std::memory_order_relaxed);
  if (moved) slots_[RedisSlotOf(RedisKeyOf((*command)->args))] = *to;
  WriteTo(*to, std::move(*command), !moved, Clock::Real().Now());
  return true;
}

// ---- The client ----

RedisClient::RedisClient(RedisOptions options, StateFn on_state)
    : loop_(std::make_unique<Loop>(std::move(options), std::move(on_state))) {}

RedisClient::~RedisClient() = default;

absl::Status RedisClient::MayGoInClear(const RedisOptions& options) {
  if (options.tls != nullptr) return absl::OkStatus();
  for (const Address& host : options.hosts) {
    absl::Status may = Security::OfProcess()->MayGoInClear("redis", host.host, /*trusted=*/false);
    if (!may.ok()) return may;
  }
  return absl::OkStatus();
}

absl::Status RedisClient::Send(RedisArgs args, RedisCallback callback) {
  return loop_->Send(std::move(args), false, Duration(0), std::move(callback));
}

absl::Status RedisClient::SendBlocking(RedisArgs args, Duration block_for, RedisCallback callback) {
  return loop_->Send(std::move(args), true, block_for, std::move(callback));
}

// Waits for the callback; it always comes (see Answer), within the command's time-out.
absl::StatusOr<RedisReply> RedisClient::Call(RedisArgs args) {
  Mutex mutex;
  CondVar done;
  std::optional<absl::StatusOr<RedisReply>> result;
  absl::Status sent = Send(std::move(args), [&](absl::StatusOr<RedisReply> reply) {
    MutexLock lock(&mutex);
    result = std::move(reply);
    done.Signal();
  });
  if (!sent.ok()) return sent;
  MutexLock lock(&mutex);
  while (!result.has_value()) done.Wait(&mutex);
  return *std::move(result);
}

void RedisClient::RunAfter(Duration delay, std::function<void()> run) {
  loop_->RunAfter(delay, std::move(run));
}

void RedisClient::Stop() { loop_->Stop(); }
bool RedisClient::connected() const { return loop_->connected(); }
RedisClientStats RedisClient::Stats() const { return loop_->Stats(); }
const RedisOptions& RedisClient::options() const { return loop_->options(); }

std::unique_ptr<RedisCommands> ConnectRedis(const RedisOptions& options, RedisStateFn state) {
  return std::make_unique<RedisClient>(options, std::move(state));
}

}  // namespace kvatlas
