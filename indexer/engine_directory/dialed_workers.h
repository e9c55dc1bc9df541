// Engines that dial in: their topics have messages at a socket of this leaf, such as llm-d's
// central one, which all pods dial.
//
//   kv@=tcp://0.0.0.0:5557[;ranks=N][;model=NAME][;http=PORT][;OPTION=VALUE…]
//
//   topic                instance        url
//   kv@10.0.0.7:8000@m   10.0.0.7:8000   http://10.0.0.7:8000
//   kv@10.0.0.7@m        10.0.0.7        http://10.0.0.7:8000, by `http`
//   kv@vllm-0@m          vllm-0          none
//
// `ranks`: so many sockets, at ports one after the other, since engines count ports by their ranks.
// `model` is said where topics have none, or another name than requests. Other options are those of
// `--workers`.
//
// *Truth*: a topic is an engine from its first message on, and what it had said before is not lost
// (`zmq_shared.h`). Its rank is in no answer once its connection has been gone for a lease, and it
// is forgotten after `kForgetAfter`. Any process that reaches the socket can say what any pod
// holds: it is for a network that is trusted, as `bind` is.
// *Threads*: one of its own. *Lifetime*: `DialedTopics` outlives the leaf; `DialedWorkers` goes
// before it.

#ifndef KVATLAS_INDEXER_ENGINE_DIRECTORY_DIALED_WORKERS_H_
#define KVATLAS_INDEXER_ENGINE_DIRECTORY_DIALED_WORKERS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/kv_events/engine_registration.h"
#include "indexer/kv_events/zmq_source.h"

namespace kvatlas {

inline constexpr std::string_view kPodTopics = "kv@";

// The parts of "kv@POD@MODEL"; a topic without a model is a pod alone.
struct PodTopic {
  std::string pod;
  std::string model;
  // Nothing: another topic.
  static std::optional<PodTopic> Parse(std::string_view topic);
};

// Topics that sockets have had messages of, as a copy that many threads may look at.
class DialedTopics {
 public:
  // Beyond, all are dropped; topics without a stream come again with a message.
  static constexpr size_t kTopicsMax = 65536;

  // "tcp://HOST:PORT" and rank 2: two ports later. INVALID_ARGUMENT: another endpoint, or no such
  // port.
  static absl::StatusOr<std::string> EndpointOf(const std::string& endpoint, uint32_t rank);

  // It goes to `ZmqIngestOptions::shared`.
  ZmqSharedSocket Socket(const std::string& endpoint);

  // The topic of the first of these pods that has one there.
  std::optional<std::string> Find(const std::string& endpoint,
                                  const std::vector<std::string>& pods) const;
  // Waits up to `timeout` for topics that came since the last call: endpoints and topics.
  std::vector<std::pair<std::string, std::string>> Wait(Duration timeout);
  // `Wait` waits no more.
  void Stop();
  bool stopped() const {
    MutexLock lock(&mutex_);
    return stopped_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::map<std::string, std::string>> topics_
      ABSL_GUARDED_BY(mutex_);  // by endpoint and pod
  std::vector<std::pair<std::string, std::string>> news_ ABSL_GUARDED_BY(mutex_);
};

struct DialedEntry {
  std::vector<std::string> endpoints;  // by rank
  std::string place;                   // of registrations: `EngineRegistration::source`
  bool says_model = false;
  uint16_t http = 8000;
  EngineRegistration of_all;

  static bool IsEntry(std::string_view entry) { return entry.starts_with("kv@="); }
  // `of_all` has what each worker has unless the entry says otherwise. INVALID_ARGUMENT, naming the
  // text.
  static absl::StatusOr<DialedEntry> Parse(std::string_view entry,
                                           const EngineRegistration& of_all);

  // INVALID_ARGUMENT: the topic names no pod, or no model where the entry says none.
  absl::StatusOr<EngineRegistration> Of(uint32_t rank, const std::string& topic) const;
  // A listener of a checkpoint is one of its topics.
  bool Names(const EngineListener& listener) const;
};

class DialedWorkers {
 public:
  static constexpr Duration kForgetAfter = std::chrono::minutes(1);
  static constexpr Duration kLookEvery = std::chrono::seconds(5);

  // `topics` has the sockets of `entries`. Everything outlives it.
  DialedWorkers(std::vector<DialedEntry> entries, DialedTopics* topics, EngineDirectory* registry,
                const Clock* clock = &Clock::Real());
  ~DialedWorkers();

 private:
  void Run();
  void Register(const std::string& endpoint, const std::string& topic);
  void ForgetGone();

  const std::vector<DialedEntry> entries_;
  DialedTopics* const topics_;
  EngineDirectory* const registry_;
  const Clock* const clock_;
  std::map<std::pair<std::string, uint32_t>, Time> gone_since_;  // by instance and rank
  std::thread thread_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINE_DIRECTORY_DIALED_WORKERS_H_
