// What can happen between programs and Redis? Connections in simulated time to a `SimulatedRedis`:
// commands and answers take their time, connections end in the middle of things, the server is
// slow, away, and back with an older image of itself.
//
// *Place*: simulations. Programs get a `RedisCommands` from `Connect`; the test lets time pass with
// `RunUntil`.
// *Truth*: as TCP and `RedisClient` have it: the commands of a connection are executed in order, a
// prefix of them when it ends; a blocking command has a connection of its own; each callback is
// called once, on the thread of `RunUntil` or `Stop`.
// *Threads*: none. *Lifetime*: clients end before the network.

#ifndef KVATLAS_TOOLS_TESTING_SIMULATED_REDIS_SIMULATED_REDIS_NETWORK_H_
#define KVATLAS_TOOLS_TESTING_SIMULATED_REDIS_SIMULATED_REDIS_NETWORK_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/net/redis_commands.h"
#include "tools/testing/simulated_redis/simulated_redis.h"

namespace kvatlas {

class SimulatedRedisNetwork {
 public:
  // `server` and `clock` outlive it.
  SimulatedRedisNetwork(SimulatedRedis* server, ManualClock* clock, uint64_t seed);
  ~SimulatedRedisNetwork();

  // Clients of one program, which `Cut` and `Kill` go by.
  RedisConnectFn Connect(const std::string& program);

  // Time passes, and what happens in it happens in order; `after` is called after each event.
  void RunUntil(Time until, const std::function<void()>& after);

  // ---- Faults ----

  // Each way takes up to so long.
  void SetLatencyMax(Duration latency) { latency_max_ = latency; }
  // The program's connections end; they come back alone.
  void Cut(const std::string& program);
  // The program dies: what it has sent arrives, and nothing more.
  void Kill(const std::string& program);
  // Nothing is executed before.
  void StallUntil(Time time) { stalled_until_ = time; }
  void StopServer();
  void StartServer() { server_up_ = true; }
  bool server_up() const { return server_up_; }

 private:
  class Client;
  struct Waiting {  // a blocking command at the server
    uint64_t client, connection, command;
    RedisArgs args;
    Time until;
  };

  void At(Time time, std::function<void()> run) { events_.emplace(time, std::move(run)); }
  Duration Latency();
  uint64_t Below(uint64_t limit) { return random_() % limit; }
  Client* Of(uint64_t id) {
    const auto it = clients_.find(id);
    return it == clients_.end() ? nullptr : it->second;
  }
  void Arrive(uint64_t client, uint64_t connection, uint64_t command, RedisArgs args,
              Duration block_for);
  void Answer(uint64_t client, uint64_t connection, uint64_t command,
              absl::StatusOr<RedisReply> reply, bool blocking);
  void ServeWaiting();

  SimulatedRedis* const server_;
  ManualClock* const clock_;
  std::mt19937_64 random_;
  Duration latency_max_ = std::chrono::milliseconds(1);
  bool server_up_ = true;
  Time stalled_until_{0};
  std::multimap<Time, std::function<void()>> events_;
  uint64_t next_client_ = 1;
  std::map<uint64_t, Client*> clients_;
  std::vector<Waiting> waiting_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_SIMULATED_REDIS_SIMULATED_REDIS_NETWORK_H_
