// An HTTP client for GET: reads the body of another service's answer piece by piece, for answers
// that do not fit in memory.
//
// *Truth*: HTTP/1.1 in clear, or by TLS, with the process's files or those given, where the URL
// says https; no redirects. A body that ends before its length or its last chunk is an error, never
// an end.
// *Threads*: one at a time, but for `Cancel`. *Bounds*: `HttpFetchOptions`.
//
// Example:
//   HttpFetch fetch;
//   absl::StatusOr<int> status = fetch.Get("http://10.0.0.2:8090", "/dump");
//   if (status.ok() && *status == 200) ReadDump(options, fetch.Body(), &visitor);

#ifndef KVATLAS_INDEXER_NET_HTTP_FETCH_H_
#define KVATLAS_INDEXER_NET_HTTP_FETCH_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"

struct ssl_ctx_st;  // SSL_CTX

namespace kvatlas {

struct HttpFetchOptions {
  Duration connect_timeout = std::chrono::seconds(2);
  Duration read_timeout = std::chrono::seconds(10);  // of the header, and of each piece
  uint64_t body_bytes_max = uint64_t{1} << 40;
  // From `Get` to the body's end, what the reader does between its pieces included.
  Duration total_timeout = std::chrono::hours(24);
  // Waiting for a body may take `slow_for` altogether, and longer by what its bytes take at this
  // rate.
  uint64_t bytes_per_s_min = 64 << 10;
  Duration slow_for = std::chrono::seconds(30);
  // Sent as the header "Authorization"; empty: none.
  std::string authorization = {};
  // For https: the CAs of another plane than this process's own, as `TlsFiles::client` has them;
  // null: the process's files.
  std::shared_ptr<ssl_ctx_st> tls_client = nullptr;
};

// A URL such as "http://host:port/base"; the scheme may be left out. Without a port: 80, or 443 for
// https.
struct HttpUrl {
  Address address;
  std::string base;  // "" or "/base"
  bool tls = false;  // https
  // INVALID_ARGUMENT: another scheme, or no address.
  static absl::StatusOr<HttpUrl> Parse(std::string_view url);
};

class HttpFetch {
 public:
  explicit HttpFetch(const HttpFetchOptions& options = {});
  ~HttpFetch();

  // Asks, and returns the answer's status, 200 or another. Ends what was fetched before.
  // UNAVAILABLE: no connection, or not in time. CANCELLED.
  absl::StatusOr<int> Get(std::string_view url, std::string_view path_and_query);

  // The next bytes of the body, at most `size`; 0: it is complete. UNAVAILABLE: it broke off, or is
  // slower than the options say. CANCELLED.
  absl::StatusOr<size_t> Read(char* to, size_t size);
  // The same as a function, valid as long as this.
  std::function<absl::StatusOr<size_t>(char* to, size_t size)> Body();
  // The rest of the body at once. RESOURCE_EXHAUSTED: longer than that.
  absl::StatusOr<std::string> ReadAll(size_t bytes_max);

  // From any thread: what is being done and whatever follows ends with CANCELLED.
  void Cancel();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_HTTP_FETCH_H_
