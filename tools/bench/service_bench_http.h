// How many answers a second does an HTTP service give? A load client that costs little itself,
// since it shares the machine with what it measures: one thread, epoll, requests made beforehand,
// answers framed and not read.
//
//   connection 0   ─ request ─▶ … ◀─ answer ─ request ─▶       one outstanding each (keep-alive)
//   connection C-1 ─ request ─▶ … ◀─ answer ─
//
// *Truth*: an answer counts when its status is expected; anything else is an error, quoted once. At
// a rate, latency counts from when a request was due. *Threads*: one.
// *Bounds*: HTTP/1.1 with content-length; an answer of at most `kAnswerBytesMax`.

#ifndef KVATLAS_TOOLS_BENCH_SERVICE_BENCH_HTTP_H_
#define KVATLAS_TOOLS_BENCH_SERVICE_BENCH_HTTP_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "tools/bench/timing.h"

namespace kvatlas {

inline constexpr size_t kAnswerBytesMax = 64 << 20;

// A request as it goes over the wire.
std::string HttpPost(const Address& to, std::string_view path, std::string_view body);

struct HttpAnswer {
  int status = 0;
  std::string body;
  std::string head = {};  // with its headers' lines

  // Value of a header, its name in small letters; empty: it is not there.
  std::string Header(std::string_view name) const;
};

// One connection for questions that are not measured. *Threads*: one at a time.
class HttpClient {
 public:
  explicit HttpClient(const Address& to) : to_(to) {}
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Connects when it is not connected. UNAVAILABLE: the connection failed or ended.
  absl::StatusOr<HttpAnswer> Post(std::string_view path, std::string_view body);
  absl::StatusOr<HttpAnswer> Get(std::string_view path);

 private:
  absl::StatusOr<HttpAnswer> Ask(std::string_view request);
  void Close();

  const Address to_;
  int fd_ = -1;
};

struct HttpLoadOptions {
  Address to;
  uint32_t connections = 16;
  double qps = 0;  // 0: as many as it answers
};

struct HttpLoadResult {
  uint64_t answers = 0;
  uint64_t errors = 0;
  std::string first_error;
  uint64_t answer_bytes = 0;
  double seconds = 0;
  double client_cpu_s = 0;
  Latencies latencies;
};

// Sends `requests` by turns, which outlive it.
class HttpLoad {
 public:
  HttpLoad(const HttpLoadOptions& options, std::span<const std::string> requests);
  ~HttpLoad();
  HttpLoad(const HttpLoad&) = delete;
  HttpLoad& operator=(const HttpLoad&) = delete;

  // UNAVAILABLE: no connection can be made.
  absl::Status Connect();
  // Drives the connections for so long. What was outstanding goes on in the next call.
  HttpLoadResult Run(double seconds);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_SERVICE_BENCH_HTTP_H_
