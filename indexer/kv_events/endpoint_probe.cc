// Plain system calls: a connection is opened without blocking, waited for and closed. Nothing is
// sent, so that a ZeroMQ peer sees a connection that ends before its greeting.

#include "indexer/kv_events/endpoint_probe.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "indexer/base/address.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/kv_events/zmq_source.h"

namespace kvatlas {
namespace {

absl::Status Failure(int error) { return absl::UnavailableError(strerror(error)); }

// Closes a descriptor at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

// Waits at most `timeout`. The result of a connection that was under way is in SO_ERROR.
absl::Status Connect(const sockaddr* address, socklen_t size, Duration timeout) {
  const Descriptor fd(socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return Failure(errno);
  if (connect(fd.get(), address, size) == 0) return absl::OkStatus();
  if (errno != EINPROGRESS) return Failure(errno);
  pollfd waited = {.fd = fd.get(), .events = POLLOUT, .revents = 0};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  if (poll(&waited, 1, static_cast<int>(ms)) <= 0) {
    return absl::UnavailableError(
        absl::StrCat("no answer within ", absl::FormatDuration(absl::FromChrono(timeout))));
  }
  int error = 0;
  socklen_t error_size = sizeof(error);
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &error_size);
  return error == 0 ? absl::OkStatus() : Failure(error);
}

// `host` is numeric: this resolves nothing.
absl::Status ConnectTcp(const std::string& host, uint16_t port, Duration timeout) {
  sockaddr_in four = {};
  four.sin_family = AF_INET;
  four.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &four.sin_addr) == 1)
    return Connect(reinterpret_cast<const sockaddr*>(&four), sizeof(four), timeout);
  sockaddr_in6 six = {};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(port);
  if (inet_pton(AF_INET6, host.c_str(), &six.sin6_addr) == 1)
    return Connect(reinterpret_cast<const sockaddr*>(&six), sizeof(six), timeout);
  return absl::UnavailableError(absl::StrCat(host, " is no address"));
}

// A path that starts with @ is an abstract name, with a NUL in place of the @.
absl::Status ConnectIpc(std::string_view path, Duration timeout) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path))
    return absl::UnavailableError("no path that a socket can have");
  std::memcpy(address.sun_path, path.data(), path.size());
  auto size = static_cast<socklen_t>(sizeof(address));
  if (path[0] == '@') {  // abstract, as libzmq writes it
    address.sun_path[0] = '\0';
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  }
  return Connect(reinterpret_cast<const sockaddr*>(&address), size, timeout);
}

}  // namespace

// Tries each address of a name in turn, at most `timeout` each. The last failure is reported.
absl::Status ProbeEndpoint(const std::string& endpoint, const HostResolver& resolve,
                           Duration timeout) {
  constexpr std::string_view kIpc = "ipc://";
  if (endpoint.starts_with(kIpc))
    return ConnectIpc(std::string_view(endpoint).substr(kIpc.size()), timeout);
  const absl::StatusOr<Address> address = TcpAddressOf(endpoint);
  if (!address.ok()) return absl::UnimplementedError("not to be tried");
  if (IsNumericHost(address->host)) return ConnectTcp(address->host, address->port, timeout);
  const absl::StatusOr<std::vector<std::string>> found = resolve(address->host);
  if (!found.ok()) return found.status();
  absl::Status reached = absl::UnavailableError("no address");
  for (const std::string& host : *found) {
    reached = ConnectTcp(host, address->port, timeout);
    if (reached.ok()) break;
  }
  return reached;
}

}  // namespace kvatlas
