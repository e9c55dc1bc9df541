// How do tests get an engine that they can break? Real PUB and ROUTER sockets that publish numbered
// payloads, keep a ring of them, answer replays in each of the layouts that exist, restart, lose
// messages and misbehave.
//
// *Threads*: one calls; an engine that answers replays has a thread of its own for its ROUTER.
//
// Example:
//   ZmqTestEngine engine({.replay = true});
//   Add({.endpoint = engine.endpoint(), .replay_endpoint = engine.replay_endpoint()}, …);
//   engine.WaitForSubscriber();
//   engine.Publish("payload");   // number 0
//   engine.Drop("lost");         // number 1: only a replay has it

#ifndef KVATLAS_TOOLS_TESTING_SERVERS_ZMQ_TEST_ENGINE_H_
#define KVATLAS_TOOLS_TESTING_SERVERS_ZMQ_TEST_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

struct ZmqTestEngineOptions {
  // As engines do: a wildcard or ipc:// is bound, `dial` connects.
  std::string endpoint = "tcp://127.0.0.1:*";
  bool dial = false;
  std::string topic = {};
  bool replay = false;
  std::string replay_endpoint = "tcp://127.0.0.1:*";
  size_t ring = 10000;        // batches kept for replays
  uint64_t first_number = 0;  // Mooncake and llm-d begin with 1

  enum class Layout : uint8_t {
    kPlain,        // ["", number, payload], end ["", ff*8, ""]
    kTopic,        // ["", topic, number, payload], end ["", "", ff*8, ""]
    kNoDelimiter,  // [topic, number, payload], end ["", ff*8, ""]
  };
  Layout layout = Layout::kTopic;

  enum class Manner : uint8_t {
    kAnswer,
    kSilent,    // takes requests and never answers
    kGarbage,   // frames that are no reply, until the next request
    kFlood,     // numbers that were not asked for, without end
    kEarlyEnd,  // leaves out the newest half
    kNoEnd,     // everything, and then silence
  };
  Manner manner = Manner::kAnswer;
  void* zmq_context = nullptr;    // for inproc://; not owned
  std::string curve_secret = {};  // its key: both sockets speak CURVE; empty: in clear
};

class ZmqTestEngine {
 public:
  explicit ZmqTestEngine(ZmqTestEngineOptions options);
  ~ZmqTestEngine();

  ZmqTestEngine(const ZmqTestEngine&) = delete;
  ZmqTestEngine& operator=(const ZmqTestEngine&) = delete;

  // Real ones, with the ports that were taken; kept over `Restart`.
  const std::string& endpoint() const { return endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }

  // Returns when `count` subscriptions have come since the last start.
  void WaitForSubscribers(size_t count = 1);

  uint64_t Publish(std::string_view payload);
  // Takes a number and a place in the ring, but is not delivered.
  uint64_t Drop(std::string_view payload);
  // Frames as they are, live.
  void SendRaw(const std::vector<std::string>& frames);
  uint64_t next_number() const;

  // Everything that it ever published goes, and all connections; the same addresses are taken
  // again. `unheard` is published before anybody could connect.
  void Restart(const std::vector<std::string>& unheard = {});
  // The sockets go and come back; ring and numbers stay.
  void Stop();
  void Start();

  void SetManner(ZmqTestEngineOptions::Manner manner);
  // Starts of the replays asked for, in order.
  std::vector<uint64_t> asked() const;

 private:
  using Manner = ZmqTestEngineOptions::Manner;

  void Encrypt(void* socket) const;
  void RunReplay();
  // True: something was asked.
  bool TakeRequest(void* router);
  void Answer(void* router, const std::string& identity, uint64_t from);
  void Misbehave(void* router);
  void Reply(void* router, const std::string& identity, uint64_t number,
             std::string_view payload) const;

  const ZmqTestEngineOptions options_;
  void* context_ = nullptr;
  std::string endpoint_;
  std::string replay_endpoint_;
  void* publisher_ = nullptr;
  void* router_ = nullptr;
  std::thread thread_;

  mutable Mutex mutex_;
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::pair<uint64_t, std::string>> ring_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> asked_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> askers_ ABSL_GUARDED_BY(mutex_);  // identities
  Manner manner_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_SERVERS_ZMQ_TEST_ENGINE_H_
