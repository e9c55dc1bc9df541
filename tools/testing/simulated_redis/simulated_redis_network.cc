#include "tools/testing/simulated_redis/simulated_redis_network.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"

namespace kvatlas {
namespace {

constexpr Duration kRetryMin = std::chrono::milliseconds(50);
constexpr uint64_t kRetrySpreadMs = 1000;

}  // namespace

// A connection has a number, 0 while there is none; what belongs to an earlier one is lost.
class SimulatedRedisNetwork::Client : public RedisCommands {
 public:
  Client(SimulatedRedisNetwork* network, std::string program, RedisStateFn state)
      : network_(network),
        id_(network->next_client_++),
        program_(std::move(program)),
        state_(std::move(state)) {
    network_->clients_[id_] = this;
    TryLater(Duration(0));
  }
  ~Client() override {
    Stop();
    network_->clients_.erase(id_);
  }

  absl::Status Send(RedisArgs args, RedisCallback callback) override {
    return Say(std::move(args), Duration(0), &sent_, std::move(callback));
  }
  absl::Status SendBlocking(RedisArgs args, Duration block_for, RedisCallback callback) override {
    Time no_order{0};
    return Say(std::move(args), block_for, &no_order, std::move(callback));
  }
  void RunAfter(Duration delay, std::function<void()> run) override {
    network_->At(network_->clock_->Now() + delay,
                 [network = network_, id = id_, run = std::move(run)] {
                   Client* client = network->Of(id);
                   if (client != nullptr && !client->stopped_ && !client->killed_) run();
                 });
  }
  void Stop() override {
    if (std::exchange(stopped_, true)) return;
    FailAll(absl::CancelledError("stopped"));
  }
  size_t outstanding() const override { return callbacks_.size(); }

  // ---- By the network ----

  const std::string& program() const { return program_; }
  bool Has(uint64_t connection) const { return connection != 0 && connection == connection_; }
  void Kill() { killed_ = true; }

  // What is told first, the loss or the commands that it cost, is anybody's guess.
  void Cut() {
    if (connection_ == 0 || stopped_) return;
    connection_ = 0;
    if (network_->Below(2) == 0) {
      TellState(Lost());
      FailAll(Lost());
    } else {
      FailAll(Lost());
      TellState(Lost());
    }
    Retry();
  }
  void Finish(uint64_t command, absl::StatusOr<RedisReply> reply) {
    const auto it = callbacks_.find(command);
    if (it == callbacks_.end()) return;
    const RedisCallback callback = std::move(it->second);
    callbacks_.erase(it);
    if (!killed_) callback(std::move(reply));
  }
  // Answers of one connection come in order.
  Time Answered(Time at) { return answered_ = std::max(answered_, at); }

 private:
  static absl::Status Lost() { return absl::UnavailableError("connection lost"); }

  absl::Status Say(RedisArgs args, Duration block_for, Time* order, RedisCallback callback) {
    if (killed_ || stopped_) return absl::CancelledError("stopped");
    const uint64_t command = next_command_++;
    callbacks_[command] = std::move(callback);
    const Time now = network_->clock_->Now();
    if (connection_ == 0) {
      network_->At(now, [network = network_, id = id_, command] {
        if (Client* client = network->Of(id)) client->Finish(command, Lost());
      });
      return absl::OkStatus();
    }
    *order = std::max(*order, now + network_->Latency());
    network_->At(*order, [network = network_, id = id_, connection = connection_, command,
                          args = std::move(args), block_for]() mutable {
      network->Arrive(id, connection, command, std::move(args), block_for);
    });
    return absl::OkStatus();
  }

  void Retry() { TryLater(kRetryMin + std::chrono::milliseconds(network_->Below(kRetrySpreadMs))); }
  void TryLater(Duration delay) {
    RunAfter(delay + network_->Latency(), [this] {
      if (connection_ != 0) return;
      if (!network_->server_up_) {
        TellState(Lost());
        return Retry();
      }
      connection_ = ++connections_;
      sent_ = answered_ = Time(0);
      TellState(absl::OkStatus());
    });
  }
  void TellState(const absl::Status& state) {
    if (!killed_ && !stopped_) state_(state);
  }
  void FailAll(const absl::Status& why) {
    auto callbacks = std::exchange(callbacks_, {});
    for (auto& [command, callback] : callbacks) {
      if (!killed_) callback(why);
    }
  }

  SimulatedRedisNetwork* const network_;
  const uint64_t id_;
  const std::string program_;
  const RedisStateFn state_;
  bool killed_ = false;
  bool stopped_ = false;
  uint64_t connection_ = 0;
  uint64_t connections_ = 0;
  uint64_t next_command_ = 1;
  Time sent_{0}, answered_{0};  // the latest
  std::map<uint64_t, RedisCallback> callbacks_;
};

SimulatedRedisNetwork::SimulatedRedisNetwork(SimulatedRedis* server, ManualClock* clock,
                                             uint64_t seed)
    : server_(server), clock_(clock), random_(seed) {}

SimulatedRedisNetwork::~SimulatedRedisNetwork() = default;

RedisConnectFn SimulatedRedisNetwork::Connect(const std::string& program) {
  return [this, program](const RedisOptions&, RedisStateFn state) {
    return std::make_unique<Client>(this, program, std::move(state));
  };
}

Duration SimulatedRedisNetwork::Latency() {
  return Duration(1 + Below(static_cast<uint64_t>(latency_max_.count())));
}

void SimulatedRedisNetwork::RunUntil(Time until, const std::function<void()>& after) {
  while (!events_.empty() && events_.begin()->first <= until) {
    const auto first = events_.begin();
    if (first->first > clock_->Now()) clock_->Advance(first->first - clock_->Now());
    const std::function<void()> run = std::move(first->second);
    events_.erase(first);
    run();
    after();
  }
  if (until > clock_->Now()) clock_->Advance(until - clock_->Now());
}

// A command is executed when its connection is there as it arrives, whether its client still is or
// not.
void SimulatedRedisNetwork::Arrive(uint64_t client, uint64_t connection, uint64_t command,
                                   RedisArgs args, Duration block_for) {
  if (Client* sender = Of(client); sender != nullptr && !sender->Has(connection)) return;
  if (!server_up_) return;
  if (clock_->Now() < stalled_until_) {
    return At(stalled_until_,
              [this, client, connection, command, args = std::move(args), block_for]() mutable {
                Arrive(client, connection, command, std::move(args), block_for);
              });
  }
  absl::StatusOr<RedisReply> reply = server_->Execute(args);
  if (block_for > Duration(0) && reply.ok() && reply->is_nil()) {
    waiting_.push_back({client, connection, command, std::move(args), clock_->Now() + block_for});
    return At(waiting_.back().until, [this] { ServeWaiting(); });
  }
  Answer(client, connection, command, std::move(reply), block_for > Duration(0));
  ServeWaiting();
}

void SimulatedRedisNetwork::Answer(uint64_t client, uint64_t connection, uint64_t command,
                                   absl::StatusOr<RedisReply> reply, bool blocking) {
  Client* asker = Of(client);
  if (asker == nullptr || !asker->Has(connection)) return;
  Time at = clock_->Now() + Latency();
  if (!blocking) at = asker->Answered(at);
  At(at, [this, client, connection, command, reply = std::move(reply)]() mutable {
    Client* asker = Of(client);
    if (asker != nullptr && asker->Has(connection)) asker->Finish(command, std::move(reply));
  });
}

void SimulatedRedisNetwork::ServeWaiting() {
  std::erase_if(waiting_, [this](const Waiting& waiting) {
    const Client* asker = Of(waiting.client);
    if (asker == nullptr || !asker->Has(waiting.connection)) return true;
    absl::StatusOr<RedisReply> reply = server_->Execute(waiting.args);
    if (reply.ok() && reply->is_nil() && clock_->Now() < waiting.until) return false;
    Answer(waiting.client, waiting.connection, waiting.command, std::move(reply), true);
    return true;
  });
}

void SimulatedRedisNetwork::Cut(const std::string& program) {
  std::vector<uint64_t> ids;
  for (const auto& [id, client] : clients_) {
    if (client->program() == program) ids.push_back(id);
  }
  for (const uint64_t id : ids) {
    if (Client* client = Of(id)) client->Cut();
  }
}

void SimulatedRedisNetwork::Kill(const std::string& program) {
  for (const auto& [id, client] : clients_) {
    if (client->program() == program) client->Kill();
  }
}

void SimulatedRedisNetwork::StopServer() {
  server_up_ = false;
  waiting_.clear();
  std::vector<uint64_t> ids;
  for (const auto& [id, client] : clients_) ids.push_back(id);
  for (const uint64_t id : ids) {
    if (Client* client = Of(id)) client->Cut();
  }
}

}  // namespace kvatlas
