// The account of inbound connections. `ConnectionAccount`, one per process, knows every connection
// that a `ConnectionListener` accepted, by descriptor number and inode: it decides which stay,
// closes silent connections for new ones, and measures what connections send. The listeners do the
// system calls around it. At the end: the probe of the process's own listeners.
//
// One mutex guards the whole account. No lock is taken and no callback runs under it; the system
// calls made under it do not wait.

#include "indexer/net/connection_account.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

constexpr size_t kDescriptorsMax = size_t{1} << 20;
// Descriptors that connections may not use: an eighth of the limit, and at least this many. They
// are for the process's own files and outgoing calls.
constexpr size_t kReserveMin = 16;

// The host and port of a peer. Hosts are compared as bytes; an IPv4 address mapped into IPv6 is the
// IPv4 address, so that one host does not count as two.
struct Peer {
  std::string host;  // 4 or 16 bytes
  uint16_t port = 0;
  friend bool operator==(const Peer&, const Peer&) = default;
};

Peer PeerOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return {std::string(reinterpret_cast<const char*>(&v4.sin_addr), 4), ntohs(v4.sin_port)};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  std::string host(reinterpret_cast<const char*>(&v6.sin6_addr), 16);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) host = host.substr(12);
  return {std::move(host), ntohs(v6.sin6_port)};
}

Address AddressOf(const Peer& peer) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(peer.host.size() == 4 ? AF_INET : AF_INET6, peer.host.data(), text, sizeof(text));
  return {text, peer.port};
}

// The inode of an open socket; 0: not one. Descriptor numbers are reused, inodes of living sockets
// are not, so the inode tells whether a number still is the same connection. The system call is
// made directly: ThreadSanitizer would report glibc's function as a race with the close by the
// descriptor's owner.
ino_t InodeOf(int fd) {
  struct stat found;
  return syscall(SYS_fstat, fd, &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

// The kernel's struct tcp_info up to `bytes_received`. glibc's declaration ends at 104 bytes; the
// kernel fills as much as the caller has room for.
struct TcpInfo {
  tcp_info start = {};
  uint64_t pacing_rate = 0;
  uint64_t pacing_rate_max = 0;
  uint64_t bytes_acked = 0;
  uint64_t bytes_received = 0;
};
static_assert(sizeof(tcp_info) == 104);

// Bytes that the owner has read so far: received, less what waits in the socket. Nothing: an old
// kernel, or not a TCP socket.
std::optional<uint64_t> BytesRead(int fd) {
  TcpInfo info;
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || size < sizeof(info))
    return std::nullopt;
  int unread = 0;
  if (ioctl(fd, SIOCINQ, &unread) != 0) return std::nullopt;
  return info.bytes_received - std::min<uint64_t>(info.bytes_received, unread);
}

// Counters by `EndedFor`.
std::array<std::atomic<uint64_t>, 3> ended_for;

absl::Status ErrorStatus(int error) { return absl::UnavailableError(strerror(error)); }

struct Resolved {
  sockaddr_storage address = {};
  socklen_t size = 0;
};

// The first address that the resolver finds. Blocks, unless the host is numeric.
absl::StatusOr<Resolved> Resolve(const Address& address, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  Resolved resolved;
  memcpy(&resolved.address, found->ai_addr, found->ai_addrlen);
  resolved.size = found->ai_addrlen;
  freeaddrinfo(found);
  return resolved;
}

uint16_t PortOf(int fd) {
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) != 0) return 0;
  return PeerOf(own).port;
}

}  // namespace

// Raises the soft limit to the hard limit once per process, but not above `kDescriptorsMax`.
size_t RaiseDescriptorLimit() {
  static const size_t limit = [] {
    rlimit now = {};
    if (getrlimit(RLIMIT_NOFILE, &now) != 0) return size_t{1024};
    rlimit wanted = now;
    wanted.rlim_cur =
        std::max<rlim_t>(now.rlim_cur, std::min<rlim_t>(now.rlim_max, kDescriptorsMax));
    if (wanted.rlim_cur != now.rlim_cur && setrlimit(RLIMIT_NOFILE, &wanted) == 0) now = wanted;
    return static_cast<size_t>(std::min<rlim_t>(now.rlim_cur, kDescriptorsMax));
  }();
  return limit;
}

absl::Status CheckDescriptors(size_t needed, const std::string& of) {
  const size_t limit = RaiseDescriptorLimit();
  if (limit >= needed) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this process may open ", limit, " files; ", of, " it needs ", needed,
                   " at least: raise the limit (ulimit -n, LimitNOFILE=)"));
}

// One per process, never destroyed: listeners may close while static objects go.
//
// How a new connection is admitted (Admit):
// 1. Forget the entry of the same descriptor number: that connection is closed, or the number would
//    not have been given out again.
// 2. HasRoom: below the listener's share, the peer's share, and the process's ceiling.
// 3. Without room, Look finds the closed and the silent connections, at most every
//    `kAccountLooksEvery`.
// 4. MakeRoom closes one silent connection.
// 5. Failing that, the connection gets a place on reserve, which MakeReserve may free.
// 6. Failing that, it waits if some connection may soon count as silent (`young_`), else it is
//    refused.
class ConnectionAccount {
 public:
  static ConnectionAccount& Get() {
    static ConnectionAccount& account = *new ConnectionAccount;
    return account;
  }

  // Fixes the listener's limits. Its share is three quarters of the descriptors that were free when
  // it began to listen, so that several listeners and the process itself fit; a peer's share is
  // three quarters of that.
  void Add(ConnectionListener* listener) {
    MutexLock lock(&mutex_);
    Limits& limits = listeners_[listener];
    const size_t taken = static_cast<size_t>(listener->fd_);
    const size_t free = ceiling_ > taken ? ceiling_ - taken : 0;
    limits.connections_max =
        std::max<size_t>(2, std::min(listener->options_.connections_max, free * 3 / 4));
    limits.peer_max = limits.connections_max - limits.connections_max / 4;
  }

  // Drops the listener and its entries. Its connections live on without being counted.
  void Remove(ConnectionListener* listener) {
    MutexLock lock(&mutex_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      it = it->second.listener == listener ? entries_.erase(it) : std::next(it);
    }
    listeners_.erase(listener);
    silent_.clear();
  }

  // A listener whose owner sends something on a new connection: the address, what has to be sent
  // first, and how many bytes come back.
  struct Greeter {
    Address address;
    std::string hello;
    size_t greeting_bytes = 0;
  };
  std::vector<Greeter> Greeters() {
    MutexLock lock(&mutex_);
    std::vector<Greeter> found;
    for (const auto& [listener, limits] : listeners_) {
      const ConnectionListenerOptions& options = listener->options_;
      if (options.greeting_bytes > 0)
        found.push_back({listener->address_, options.hello, options.greeting_bytes});
    }
    return found;
  }

  // Connections from this local port are ours (Dial): they are always admitted and not counted.
  void Exempt(uint16_t port, bool exempt) {
    MutexLock lock(&mutex_);
    if (exempt) {
      exempt_.insert(port);
    } else {
      exempt_.erase(port);
    }
  }

  enum class Verdict : uint8_t { kStays, kWaits, kGoes };

  // The steps are above the class. `on_reserve` is set for kStays alone.
  Verdict Admit(ConnectionListener* listener, int fd, const Peer& peer, bool* on_reserve,
                const ConnectionListener::Busy& busy) {
    MutexLock lock(&mutex_);
    Forget(fd);
    if (exempt_.contains(peer.port)) return Verdict::kStays;
    *on_reserve = false;
    if (!HasRoom(listener, fd, peer)) {
      Look();
      if (!HasRoom(listener, fd, peer) && !MakeRoom(listener, fd, peer)) {
        *on_reserve = true;
        if (!HasReserve(listener) && !MakeReserve(listener))
          return young_.contains(listener) ? Verdict::kWaits : Verdict::kGoes;
      }
    }
    Entry entry{.inode = InodeOf(fd),
                .number = next_number_++,
                .listener = listener,
                .peer = peer,
                .busy = busy,
                .on_reserve = *on_reserve,
                .may_send = listener->options_.may_send,
                .progressed_at = Clock::Real().Now()};
    Count(entry, 1);
    young_.insert(listener);
    entries_.emplace(fd, std::move(entry));
    return Verdict::kStays;
  }

  bool CloseFrom(const Peer& peer) {
    MutexLock lock(&mutex_);
    for (auto& [fd, entry] : entries_) {
      if (entry.peer == peer && !entry.closed) return ShutDown(fd, entry);
    }
    return false;
  }

  // Connections that sent more than `at_least` since their last progress. Each second since then
  // makes `kBytesPerSecondFree` bytes free, so that pings of an idle connection never add up. The
  // inode is checked last: it is needed for few, and a stale number is skipped there.
  std::vector<ConnectionListener::Sender> Senders(const ConnectionListener* listener,
                                                  uint64_t at_least) {
    std::vector<ConnectionListener::Sender> found;
    MutexLock lock(&mutex_);
    const Time now = Clock::Real().Now();
    for (const auto& [fd, entry] : entries_) {
      if (entry.listener != listener || entry.closed) continue;
      const std::optional<uint64_t> bytes = BytesRead(fd);
      if (!bytes.has_value()) continue;
      const uint64_t free =
          static_cast<uint64_t>((now - entry.progressed_at) / std::chrono::seconds(1)) *
          kBytesPerSecondFree;
      const uint64_t counted = *bytes - std::min(*bytes, entry.bytes_at_progress + free);
      if (counted <= at_least || InodeOf(fd) != entry.inode) continue;
      found.push_back({.fd = fd,
                       .number = entry.number,
                       .peer = AddressOf(entry.peer),
                       .bytes = *bytes,
                       .since = counted,
                       .may_send = entry.may_send,
                       .progress = entry.progress,
                       .id = entry.owners_id});
    }
    return found;
  }

  // Resets the count of a connection. `number` detects that the descriptor belongs to another
  // connection by now.
  void Progressed(const ConnectionListener::Sender& sender, uint64_t may_send) {
    MutexLock lock(&mutex_);
    const auto found = entries_.find(sender.fd);
    if (found == entries_.end() || found->second.number != sender.number) return;
    Entry& entry = found->second;
    entry.bytes_at_progress = sender.bytes;
    entry.progressed_at = Clock::Real().Now();
    entry.may_send = may_send;
    entry.progress = sender.progress;
    entry.owners_id = sender.id;
  }

  // Called when the system gives no descriptor. Gives up the spare one to accept and close a single
  // connection, then takes the spare back. Otherwise the connection would wait in the kernel's
  // queue and keep the listener readable for ever.
  bool Shed(int listener) {
    MutexLock lock(&mutex_);
    if (spare_ >= 0) close(std::exchange(spare_, -1));
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) close(fd);
    spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return fd >= 0;
  }

 private:
  // A connection, by its descriptor in `entries_`. It goes when its number comes again (Forget),
  // when Look finds it closed, or with its listener; the account is not informed of a close, so a
  // closed one may be counted until then.
  struct Entry {
    ino_t inode = 0;
    uint64_t number = 0;  // in the order of coming
    ConnectionListener* listener = nullptr;
    Peer peer;
    ConnectionListener::Busy busy;
    bool on_reserve = false;
    bool closed = false;  // by us; its owner has yet to close it
    // As in `ConnectionListener::Sender`.
    uint64_t may_send = 0;
    uint64_t bytes_at_progress = 0;
    Time progressed_at{0};
    int64_t progress = 0;
    int64_t owners_id = 0;
  };
  // The bounds and counts of a listener. `peers` counts by host; hosts without a connection are not
  // in it. Connections on reserve are in `on_reserve` alone.
  struct Limits {
    size_t connections_max = 0;
    size_t peer_max = 0;
    size_t open = 0;
    size_t on_reserve = 0;
    std::map<std::string, size_t> peers;
  };
  // A candidate for closing: how long no data has come, in ms, and the number for equal times.
  struct Silent {
    int fd;
    uint32_t ms;
    uint64_t number;
  };

  ConnectionAccount()
      : limit_(RaiseDescriptorLimit()),
        ceiling_(limit_ - std::min(limit_, std::max(kReserveMin, limit_ / 8))),
        spare_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {}

  // Adds to the counts of the entry's listener, once with 1 and once with -1 for each entry.
  // `closed` entries have been counted out (ShutDown).
  void Count(const Entry& entry, int64_t by) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Limits& limits = listeners_[entry.listener];
    if (entry.on_reserve) {
      limits.on_reserve += static_cast<size_t>(by);
      return;
    }
    limits.open += static_cast<size_t>(by);
    const auto it = limits.peers.try_emplace(entry.peer.host, 0).first;
    it->second += static_cast<size_t>(by);
    if (it->second == 0) limits.peers.erase(it);
  }

  // A number that accept4 gave out again: its former connection is gone.
  void Forget(int fd) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto it = entries_.find(fd);
    if (it == entries_.end()) return;
    if (!it->second.closed) Count(it->second, -1);
    entries_.erase(it);
  }

  bool PeerIsFull(const Limits& limits, const Peer& peer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto it = limits.peers.find(peer.host);
    return it != limits.peers.end() && it->second >= limits.peer_max;
  }

  // The kernel gives out the lowest free descriptor, so a number of `ceiling_` or above means that
  // the whole process is full, files and outgoing connections included.
  bool HasRoom(ConnectionListener* listener, int fd, const Peer& peer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Limits& limits = listeners_[listener];
    return static_cast<size_t>(fd) < ceiling_ && limits.open < limits.connections_max &&
           !PeerIsFull(limits, peer);
  }

  // Drops entries whose connection is closed, and fills `silent_` with those that may go and
  // `young_` with the listeners of those that may go soon. Busy connections are in neither. A
  // connection that never sent a byte counts as silent after `kMuteMin`, others after
  // `kSilenceMin`. Two system calls for each connection; the next look is at least
  // `kAccountLooksEvery` and four times its own duration away, so that looks take a fifth of a
  // processor at most.
  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Time now = Clock::Real().Now();
    if (now < look_at_) return;
    silent_.clear();
    young_.clear();
    for (auto it = entries_.begin(); it != entries_.end();) {
      const int fd = it->first;
      const Entry& entry = it->second;
      if (InodeOf(fd) != entry.inode) {
        if (!entry.closed) Count(entry, -1);
        it = entries_.erase(it);
        continue;
      }
      ++it;
      if (entry.closed || (entry.busy != nullptr && entry.busy->load(std::memory_order_relaxed)))
        continue;
      TcpInfo info;
      socklen_t size = sizeof(info);
      if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
      const bool mute = size >= sizeof(info) && info.bytes_received == 0;
      if (std::chrono::milliseconds(info.start.tcpi_last_data_recv) <
          (mute ? kMuteMin : kSilenceMin)) {
        young_.insert(entry.listener);
        continue;
      }
      silent_.push_back({fd, info.start.tcpi_last_data_recv, entry.number});
    }
    std::sort(silent_.begin(), silent_.end(), [](const Silent& a, const Silent& b) {
      return a.ms != b.ms ? a.ms > b.ms : a.number < b.number;
    });
    // A look at many takes its time: others get four times as much.
    const Time done = Clock::Real().Now();
    look_at_ = done + std::max(kAccountLooksEvery, 4 * (done - now));
  }

  // Closes the longest silent connection among those that `may_go` accepts. False: there is none.
  // The list is of the last look: a connection may have become busy or closed since, which is
  // checked again.
  template <typename MayGo>
  bool CloseOne(const MayGo& may_go) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto it = silent_.begin(); it != silent_.end(); ++it) {
      const auto found = entries_.find(it->fd);
      if (found == entries_.end() || found->second.closed || !may_go(found->second)) continue;
      Entry& entry = found->second;
      if (entry.busy != nullptr && entry.busy->load(std::memory_order_relaxed)) continue;
      silent_.erase(it);
      if (!ShutDown(found->first, entry)) return CloseOne(may_go);
      entry.listener->made_room_.fetch_add(1, std::memory_order_relaxed);
      return true;
    }
    return false;
  }

  // Chooses whose connection goes:
  // 1. A peer at its share pays itself.
  // 2. If the process is full, the listener with the most connections pays, else this one.
  // 3. Within the listener, the peer with the most connections pays.
  // So a peer with few connections is not pushed out by one with many.
  bool MakeRoom(ConnectionListener* listener, int fd, const Peer& peer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Limits& limits = listeners_[listener];
    if (PeerIsFull(limits, peer)) {
      return CloseOne([&](const Entry& entry) {
        return entry.listener == listener && !entry.on_reserve && entry.peer.host == peer.host;
      });
    }
    // Any listener may pay if the whole process is full.
    ConnectionListener* of = listener;
    if (static_cast<size_t>(fd) >= ceiling_) {
      for (const auto& [other, its] : listeners_) {
        if (its.open > listeners_[of].open) of = other;
      }
    }
    const auto& peers = listeners_[of].peers;
    const auto most = std::max_element(peers.begin(), peers.end(),
                                       [](auto& a, auto& b) { return a.second < b.second; });
    if (most == peers.end()) return false;
    const std::string host = most->first;
    return CloseOne([&](const Entry& entry) {
      return entry.listener == of && !entry.on_reserve && entry.peer.host == host;
    });
  }

  // The reserve comes on top of `connections_max`, for connections that are looked at and mostly
  // refused.
  bool HasReserve(ConnectionListener* listener) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return listeners_[listener].on_reserve < listener->options_.reserve;
  }
  bool MakeReserve(ConnectionListener* listener) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return CloseOne(
        [&](const Entry& entry) { return entry.listener == listener && entry.on_reserve; });
  }

  // Ends a connection that belongs to another part of the process: its owner reads the end of the
  // stream and closes the descriptor. The owner may close it at any moment and the number may be
  // reused, so the check and the shutdown work on a duplicate, which nothing else can close.
  // Without a free descriptor the spare one is lent for the duplicate. False: the number belongs to
  // another socket.
  bool ShutDown(int fd, Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0 && errno == EMFILE && spare_ >= 0) {
      close(std::exchange(spare_, -1));
      copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    }
    const bool same = copy >= 0 && InodeOf(copy) == entry.inode;
    if (same) {
      shutdown(copy, SHUT_RDWR);
      // Drops the unread input, which may be megabytes: the owner shall not process it any more.
      while (recv(copy, nullptr, size_t{1} << 30, MSG_TRUNC | MSG_DONTWAIT) > 0) {
      }
      Count(entry, -1);
      entry.closed = true;
    }
    if (copy >= 0) close(copy);
    if (spare_ < 0) spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return same;
  }

  const size_t limit_;
  const size_t ceiling_;  // a descriptor of this number says that the process is full
  Mutex mutex_;
  int spare_ ABSL_GUARDED_BY(mutex_);
  // By descriptor; bounded by the limit of descriptors.
  std::unordered_map<int, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::map<ConnectionListener*, Limits> listeners_ ABSL_GUARDED_BY(mutex_);
  // Local ports of probes that are under way (Dial).
  std::set<uint16_t> exempt_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Silent> silent_ ABSL_GUARDED_BY(mutex_);           // of the last look, longest first
  std::set<ConnectionListener*> young_ ABSL_GUARDED_BY(mutex_);  // with one that may soon be silent
  Time look_at_ ABSL_GUARDED_BY(mutex_){0};
};

ConnectionListener::ConnectionListener() = default;
ConnectionListener::~ConnectionListener() { Close(); }

// SO_REUSEADDR allows a restart while old connections are in TIME_WAIT; SO_REUSEPORT is not set, so
// a port is never shared. IPV6_V6ONLY leaves the IPv4 port of the same number to others.
// TCP_NODELAY and TCP_USER_TIMEOUT are inherited by accepted sockets.
absl::Status ConnectionListener::Listen(const Address& listen,
                                        const ConnectionListenerOptions& options) {
  options_ = options;
  const absl::StatusOr<Resolved> at = Resolve(listen, AI_PASSIVE);
  if (!at.ok()) return at.status();
  RaiseDescriptorLimit();
  fd_ = socket(at->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) return ErrorStatus(errno);
  const int on = 1;
  setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (at->address.ss_family == AF_INET6) {
    const int off = 0;
    setsockopt(fd_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (options.user_timeout > Duration::zero()) {
    const unsigned ms = static_cast<unsigned>(
        std::chrono::duration_cast<std::chrono::milliseconds>(options.user_timeout).count());
    setsockopt(fd_, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
  }
  if (bind(fd_, reinterpret_cast<const sockaddr*>(&at->address), at->size) != 0 ||
      ::listen(fd_, SOMAXCONN) != 0) {
    const int error = errno;
    close(std::exchange(fd_, -1));
    return ErrorStatus(error);
  }
  address_ = {listen.host, PortOf(fd_)};
  ConnectionAccount::Get().Add(this);
  return absl::OkStatus();
}

void ConnectionListener::Close() {
  if (fd_ < 0) return;
  ConnectionAccount::Get().Remove(this);
  if (waits_ >= 0) close(std::exchange(waits_, -1));
  close(std::exchange(fd_, -1));
}

// One connection waits at most (`waits_`): it is tried again first, so connections are admitted in
// their order. Errors of accept4 are of three kinds: nothing waits; no descriptor or memory, which
// Shed handles; else an error of that one connection, which counts as shed, or of the listener
// itself.
ConnectionListener::Accepted ConnectionListener::Accept(bool with_busy) {
  if (waits_ >= 0) return Admit(std::exchange(waits_, -1), with_busy);
  const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) return Admit(fd, with_busy);
  if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
  if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) {
    return {.outcome = errno == EBADF || errno == EINVAL ? Outcome::kFailed : Outcome::kShed};
  }
  const bool shed = ConnectionAccount::Get().Shed(fd_);
  if (shed) refused_.fetch_add(1, std::memory_order_relaxed);
  return {.outcome = shed ? Outcome::kShed : Outcome::kFailed};
}

// Asks the account. A peer that is gone already (getpeername fails) is closed like a refused one.
ConnectionListener::Accepted ConnectionListener::Admit(int fd, bool with_busy) {
  using Verdict = ConnectionAccount::Verdict;
  sockaddr_storage from = {};
  socklen_t size = sizeof(from);
  Accepted accepted{.outcome = Outcome::kAccepted, .fd = fd};
  if (with_busy) accepted.busy = std::make_shared<std::atomic<bool>>(false);
  Verdict verdict = Verdict::kGoes;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&from), &size) == 0) {
    verdict =
        ConnectionAccount::Get().Admit(this, fd, PeerOf(from), &accepted.on_reserve, accepted.busy);
  }
  if (verdict == Verdict::kWaits) {
    waits_ = fd;
    return {.outcome = Outcome::kFull};
  }
  if (verdict == Verdict::kGoes) {
    close(fd);
    refused_.fetch_add(1, std::memory_order_relaxed);
    return {.outcome = Outcome::kShed};
  }
  accepted_.fetch_add(1, std::memory_order_relaxed);
  return accepted;
}

ConnectionListener::Counts ConnectionListener::counts() const {
  return {.accepted = accepted_.load(std::memory_order_relaxed),
          .refused = refused_.load(std::memory_order_relaxed),
          .made_room = made_room_.load(std::memory_order_relaxed)};
}

std::vector<ConnectionListener::Sender> ConnectionListener::Senders(uint64_t at_least) {
  return ConnectionAccount::Get().Senders(this, at_least);
}

void ConnectionListener::Progressed(const Sender& sender, uint64_t may_send) {
  ConnectionAccount::Get().Progressed(sender, may_send);
}

// AI_NUMERICHOST: the peer is an address, so nothing is resolved over the network.
bool CloseConnectionFrom(const Address& peer, EndedFor reason) {
  const absl::StatusOr<Resolved> found = Resolve(peer, AI_NUMERICHOST);
  if (!found.ok() || !ConnectionAccount::Get().CloseFrom(PeerOf(found->address))) return false;
  CountConnectionEnded(reason);
  return true;
}

void CountConnectionEnded(EndedFor reason) {
  ended_for[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
}

WatchedSocket WatchSocket(int fd) { return {.fd = fd, .inode = InodeOf(fd)}; }

std::optional<uint64_t> BytesRead(const WatchedSocket& socket) {
  if (socket.inode == 0 || InodeOf(socket.fd) != socket.inode) return std::nullopt;
  return BytesRead(socket.fd);
}

// As ConnectionAccount::ShutDown: verifies a duplicate, then shuts it down.
void CutSocket(const WatchedSocket& socket) {
  const int copy = fcntl(socket.fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return;
  if (InodeOf(copy) == socket.inode) shutdown(copy, SHUT_RDWR);
  close(copy);
}

uint64_t ConnectionsEnded(EndedFor reason) {
  return ended_for[static_cast<size_t>(reason)].load(std::memory_order_relaxed);
}

namespace {

// At most 1,000 s at a time, which is what the conversion to poll's int needs.
absl::Status WaitReady(int fd, short events, Time until) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(until - Clock::Real().Now()).count();
  pollfd waiting = {fd, events, 0};
  const int ready = poll(&waiting, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000)));
  return ready > 0 ? absl::OkStatus() : absl::DeadlineExceededError("no answer in time");
}

// Connects, says `hello`, and waits for `expect` bytes of greeting: the proof that the owner of the
// listener handles connections, not only that the kernel queues them.
absl::Status DialFrom(int fd, const Resolved& to, std::string_view hello, size_t expect,
                      Time until) {
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to.address), to.size) != 0 &&
      errno != EINPROGRESS) {
    return ErrorStatus(errno);
  }
  if (absl::Status late = WaitReady(fd, POLLOUT, until); !late.ok()) return late;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return ErrorStatus(error);
  // It fits the buffer of a new connection.
  if (!hello.empty() && send(fd, hello.data(), hello.size(), MSG_NOSIGNAL) < 0) {
    return ErrorStatus(errno);
  }
  while (expect > 0) {
    if (absl::Status late = WaitReady(fd, POLLIN, until); !late.ok()) return late;
    char bytes[256];
    const ssize_t got = read(fd, bytes, std::min(expect, sizeof(bytes)));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return absl::UnavailableError("closed the connection");
    expect -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

// Probes one listener from a port of its own, which is exempt from the account: a probe has to pass
// when all connections are taken.
absl::Status Dial(const Address& address, std::string_view hello, size_t expect, Duration timeout) {
  const Time until = Clock::Real().Now() + timeout;
  const absl::StatusOr<Resolved> to = Resolve(address, 0);
  if (!to.ok()) return to.status();
  const int fd = socket(to->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return ErrorStatus(errno);
  Resolved any{.address = {}, .size = to->size};
  any.address.ss_family = to->address.ss_family;
  absl::Status status;
  if (bind(fd, reinterpret_cast<const sockaddr*>(&any.address), any.size) != 0) {
    status = ErrorStatus(errno);
  } else {
    const uint16_t port = PortOf(fd);
    ConnectionAccount::Get().Exempt(port, true);
    status = DialFrom(fd, *to, hello, expect, until);
    ConnectionAccount::Get().Exempt(port, false);
  }
  close(fd);
  return status;
}

}  // namespace

absl::Status CheckOwnListeners(Duration timeout) {
  for (const ConnectionAccount::Greeter& one : ConnectionAccount::Get().Greeters()) {
    const absl::Status status = Dial(one.address, one.hello, one.greeting_bytes, timeout);
    if (!status.ok()) {
      return absl::UnavailableError(
          absl::StrCat(one.address.ToString(), " takes no connections: ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvatlas
