// Decides which inbound connections stay. One account of all inbound connections of a process: when
// descriptors run out, listeners still accept, and one listener cannot starve the others.
//
//   ConnectionListener::Accept ─▶ accept4 ─▶ room? ─┬▶ the socket
//                                                   ├▶ the one that has been silent for longest is closed for it
//                                                   ╰▶ refused: closed at once
//
// *Truth*: a listener has room while it has fewer than its share of connections, the peer's address
// fewer than three quarters of that, and the process has descriptors beyond a reserve for its own
// files and calls. Without room the connection that was silent for longest is closed to make some:
// of the same peer when that has its share, else of the peer with the most connections. One that is
// marked busy stays, as does for a moment one that was just heard (`kSilenceMin`) or has just come
// and said nothing yet (`kMuteMin`): for that long the new one, and those behind it, wait. When
// all are busy the new one is refused, unless the listener has a `reserve`: then up to so many are
// taken for a moment, and `on_reserve` says so. When the system has no descriptor at all (EMFILE),
// a spare one is given up to accept and close the connection. Otherwise the queue of connections
// would stay full, and the listener would accept nothing any more.
// *Threads*: any; a listener's `Accept` one at a time.
// *Cost*: accepting takes a short lock; without room up to one look (two system calls) at each
// connection, at most every `kAccountLooksEvery`.
// *Bounds*: `connections_max` per listener, and those derived from RLIMIT_NOFILE, which the first
// listener raises to what is allowed.
// *Lifetime*: sockets belong to the code that accepted them, which may close them at any time; the
// account knows a socket by number and inode and so notices. It closes a foreign socket by
// `shutdown` on a duplicate that it has verified.
//
// Example:
//   ConnectionListener listener;
//   absl::Status status = listener.Listen({"127.0.0.1", 0}, {.connections_max = 4096});
//   … listener.fd() is readable: ConnectionListener::Accepted accepted = listener.Accept();

#ifndef KVATLAS_INDEXER_NET_CONNECTION_ACCOUNT_H_
#define KVATLAS_INDEXER_NET_CONNECTION_ACCOUNT_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"

namespace kvatlas {

inline constexpr Duration kSilenceMin = std::chrono::milliseconds(100);
inline constexpr Duration kMuteMin = std::chrono::milliseconds(10);
inline constexpr Duration kAccountLooksEvery = std::chrono::milliseconds(10);
// After `Outcome::kFull` the listener tries again after this time.
inline constexpr Duration kFullPause = std::chrono::milliseconds(5);

struct ConnectionListenerOptions {
  size_t connections_max = size_t{1} << 20;  // the process's descriptors may allow fewer
  // Accepted beyond that, for as long as it takes to see what they want (`Accepted::on_reserve`).
  size_t reserve = 0;
  // Bytes that the owner of the listener sends first on a new connection (`CheckOwnListeners`); 0:
  // none.
  size_t greeting_bytes = 0;
  // Bytes that the peer has to send before it is greeted, as in TLS; empty: none.
  std::string hello = {};
  Duration user_timeout = Duration::zero();  // TCP_USER_TIMEOUT; 0: the system's
  uint64_t may_send = 0;                     // `Sender::may_send` at first
};

// Bytes that a connection may send in each second beside `may_send`, so that the pings of a
// connection that is open for long do not count against it.
inline constexpr uint64_t kBytesPerSecondFree = 64;

// Why one was ended, for `kvatlas_connections_ended_total`.
enum class EndedFor : uint8_t { kCalls, kBytes, kEngine };

// Raises RLIMIT_NOFILE to what is allowed, at most 2^20, once. Returns the limit.
size_t RaiseDescriptorLimit();

// FAILED_PRECONDITION: the limit is below `needed`, which `of` explains ("with 3 engines").
// Connections of others get what is left below a reserve; a process whose own files reach into that
// would refuse every request.
absl::Status CheckDescriptors(size_t needed, const std::string& of);

// A listening socket, and its part of the account.
class ConnectionListener {
 public:
  // While true the connection is not closed for others.
  using Busy = std::shared_ptr<std::atomic<bool>>;

  enum class Outcome : uint8_t {
    kAccepted,  // `fd` is the caller's: non-blocking, closed on exec, without delay
    kShed,      // one was refused: try again
    kFull,      // one waits for room, and so do those behind it: try again after `kFullPause`
    kNone,      // none waits
    kFailed,    // try again later
  };
  struct Accepted {
    Outcome outcome = Outcome::kNone;
    int fd = -1;
    Busy busy = nullptr;
    bool on_reserve = false;
  };
  struct Counts {
    uint64_t accepted = 0;
    uint64_t refused = 0;    // closed at once
    uint64_t made_room = 0;  // closed for others
  };

  ConnectionListener();
  ~ConnectionListener();
  ConnectionListener(const ConnectionListener&) = delete;
  ConnectionListener& operator=(const ConnectionListener&) = delete;

  // UNAVAILABLE with the system's words if the address cannot be had. A host with several addresses
  // listens on the first;
  // the port is never shared. Once.
  absl::Status Listen(const Address& listen, const ConnectionListenerOptions& options);
  void Close();

  int fd() const { return fd_; }
  // REQUIRES: `Listen` was OK.
  const Address& address() const { return address_; }

  // The next one that waits. `with_busy`: it gets a mark.
  Accepted Accept(bool with_busy);

  Counts counts() const;

  // A connection that has sent something since its last progress, of which its owner knows.
  struct Sender {
    int fd = -1;
    uint64_t number = 0;  // of the connection
    Address peer;
    uint64_t bytes = 0;     // that its owner has read, ever
    uint64_t since = 0;     // of these, since its last progress
    uint64_t may_send = 0;  // before its owner looks whether it has progressed
    // The owner's own figures, as of its last progress; 0 before.
    int64_t progress = 0;
    int64_t id = 0;
  };
  // The connections that have sent more than `at_least` since. Two system calls for each.
  std::vector<Sender> Senders(uint64_t at_least);
  // All that it has sent was used for something: it may send this much more.
  void Progressed(const Sender& sender, uint64_t may_send);

 private:
  friend class ConnectionAccount;
  Accepted Admit(int fd, bool with_busy);

  int fd_ = -1;
  int waits_ = -1;  // accepted, and without room
  Address address_;
  ConnectionListenerOptions options_;
  std::atomic<uint64_t> accepted_{0};
  std::atomic<uint64_t> refused_{0};
  std::atomic<uint64_t> made_room_{0};
};

// Closes the connection from this IP address and port, at any listener, and drops what it has sent
// and was not read yet; false: there is none, or it was closed before.
bool CloseConnectionFrom(const Address& peer, EndedFor reason);
// Connections that were ended in this process, those of other parts (`CountConnectionEnded`)
// included.
uint64_t ConnectionsEnded(EndedFor reason);
void CountConnectionEnded(EndedFor reason);

// A TCP connection of another part of this process. The descriptor's number may be reused later;
// the inode tells.
struct WatchedSocket {
  int fd = -1;
  uint64_t inode = 0;
};
WatchedSocket WatchSocket(int fd);
// Bytes that its owner has read, ever; nothing: not known, or it is gone.
std::optional<uint64_t> BytesRead(const WatchedSocket& socket);
// Shuts it down; its owner reads the end of the stream.
void CutSocket(const WatchedSocket& socket);

// Checks that the listeners of this process that greet, such as gRPC's, take connections: connects
// to each over TCP, beyond the bounds of the account, and waits for its greeting. OK, or which one
// does not, and why. Uses two descriptors for a moment.
absl::Status CheckOwnListeners(Duration timeout);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_CONNECTION_ACCOUNT_H_
