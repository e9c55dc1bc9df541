// The things that the calls of one I/O thread share: idle connections, buffers, and the timer of
// their deadlines.
//
// *Truth*: an idle connection that the engine has closed meanwhile is not taken, if that is known
// yet.
// *Threads*: everything on the thread of the calls' `io`.
// *Bounds*: `EngineCallOptions`; timeouts are kept to an eighth of the shortest: a pool has one
// timer for all of its calls.
// *Lifetime*: outlives the calls.

#ifndef KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINE_CONNECTIONS_H_
#define KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINE_CONNECTIONS_H_

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "frontend/engine_client/engine_reach.h"
#include "indexer/base/clock.h"

namespace kvatlas {

struct EngineCallOptions {
  EngineReach reach = {};
  Duration connect_timeout = std::chrono::seconds(1);
  // From the request to the head of its answer, and from there to the first piece of its body.
  Duration head_timeout = std::chrono::minutes(10);
  Duration idle_timeout =
      std::chrono::minutes(2);  // between two pieces of an answer, from the first on
  size_t idle_per_engine = 32;  // connections kept
  Duration keep_idle = std::chrono::seconds(4);  // engines' servers close theirs after 5
};

class EngineCall;

class EngineConnections {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  static constexpr size_t kBufferBytes = 64 << 10;

  explicit EngineConnections(const EngineCallOptions& options);

  const EngineCallOptions& options() const { return options_; }
  // An idle connection that still seems open.
  std::optional<Socket> Take(const std::string& authority, Time now);
  void Put(const std::string& authority, Socket socket, Time now);

 private:
  friend class EngineCall;
  static constexpr size_t kBuffersMax = 64;
  std::unique_ptr<char[]> TakeBuffer();
  void PutBuffer(std::unique_ptr<char[]> buffer);
  void Watch(EngineCall* call, const boost::asio::any_io_executor& executor);
  void Unwatch(EngineCall* call) { watched_.erase(call); }
  void SweepLater();
  void Sweep();

  struct Idle {
    Socket socket;
    Time since{0};
  };
  const EngineCallOptions options_;
  const Duration sweep_every_;
  std::map<std::string, std::deque<Idle>> idle_;  // the latest last
  std::vector<std::unique_ptr<char[]>> buffers_;
  std::unordered_set<EngineCall*> watched_;
  std::optional<boost::asio::steady_timer> sweep_;  // while there is something to watch
  bool sweeping_ = false;
  // Expires with the pool: a sweep that is due already looks at it.
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINE_CONNECTIONS_H_
