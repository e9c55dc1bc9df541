// How does a service hear many engines at once? PUB sockets of this process, one an engine, that
// lose nothing: a socket whose subscriber does not keep up is asked again later.
//
// *Threads*: one at a time. *Lifetime*: payloads given to `TrySend` outlive the feeder.

#ifndef KVATLAS_TOOLS_BENCH_SERVICE_BENCH_ZMQ_H_
#define KVATLAS_TOOLS_BENCH_SERVICE_BENCH_ZMQ_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "tools/bench/service_bench_http.h"
#include "tools/bench/service_bench_query.h"

namespace kvatlas {

class ZmqFeeder {
 public:
  // UNAVAILABLE: no socket.
  static absl::StatusOr<std::unique_ptr<ZmqFeeder>> Create(uint32_t engines);
  ~ZmqFeeder();
  ZmqFeeder(const ZmqFeeder&) = delete;
  ZmqFeeder& operator=(const ZmqFeeder&) = delete;

  // Registers engine i as instance i + 1 (POST /register), and waits until the service has
  // subscribed to all.
  absl::Status Register(HttpClient* http, uint32_t block_size, Duration timeout);

  // False: would have to wait.
  bool TrySend(uint32_t engine, const std::string& payload);
  uint32_t engines() const { return static_cast<uint32_t>(sockets_.size()); }
  uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  ZmqFeeder() = default;

  struct Socket {
    void* socket = nullptr;
    std::string endpoint;
    uint64_t next = 0;
  };

  void* context_ = nullptr;
  std::vector<Socket> sockets_;
  uint64_t bytes_sent_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_SERVICE_BENCH_ZMQ_H_
