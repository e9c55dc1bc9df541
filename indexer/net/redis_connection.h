// One connection to Redis: hiredis' asynchronous context on an Asio loop, and what hiredis leaves
// to us. A part of `RedisClient`.
//
//   connecting ─▶ [TLS] ─▶ introducing (AUTH, SELECT, then PING, or ROLE where the node must be a master) ─▶ ready ─▶ closed
//
// hiredis resolves and connects, encodes, decodes, and matches replies with commands. Ours are:
//   - a deadline for each command: hiredis' own time-out begins again with every byte, so that a
//     reply that drips has none;
//   - the bounds of a reply (`RedisReplyBuilder`);
//   - the socket's reads and writes, below hiredis: TLS, no SIGPIPE, and no moving of what waits to
//     be written.
// *Truth*: the server is not trusted. What is not RESP2, a reply that is too large, one that
// nothing had asked for and an introduction answered as no Redis does end the connection, with a
// reason that says so.
// *Bounds*: a reply, `RedisOptions::reply_bytes_max`; what waits to be written, the client's bound
// of what is outstanding.
// *Threads*: the loop's alone.
// *Lifetime*: closed once and for good; the owner makes another. It is not destroyed from its own
// calls to `Owner`.

#ifndef KVATLAS_INDEXER_NET_REDIS_CONNECTION_H_
#define KVATLAS_INDEXER_NET_REDIS_CONNECTION_H_

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/net/redis_client.h"
#include "indexer/net/redis_reply.h"
#include "indexer/net/redis_reply_builder.h"
#include "indexer/net/redis_url.h"
#include "indexer/net/tls_session.h"

struct redisAsyncContext;

namespace kvatlas {

struct RedisCommand {
  RedisArgs args;
  RedisCallback callback;
  Duration block_for{0};
  bool blocking = false;
  int redirections = 0;
  size_t bytes = 0;  // of the arguments
  Time deadline{0};  // set when it is written
};

class RedisConnection : public std::enable_shared_from_this<RedisConnection> {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void OnReady(RedisConnection* connection) = 0;
    // `error` is the text of an error reply, with `reply` empty.
    virtual void OnReply(RedisConnection* connection, std::unique_ptr<RedisCommand> command,
                         absl::StatusOr<RedisReply> reply, const std::string& error) = 0;
    // All its commands were answered.
    virtual void OnClosed(RedisConnection* connection) = 0;
  };
  enum class Role { kAny, kMaster, kSentinel };

  // All outlive the connection.
  RedisConnection(boost::asio::io_context* io, uint64_t id, const Address& address,
                  const RedisOptions* options, Role role, Owner* owner);
  ~RedisConnection();

  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  void Start(Time now);
  // The command waits until the connection is ready. With `asking`, ASKING is sent before it, so
  // that the node takes a key that is just being moved to it.
  void Write(std::unique_ptr<RedisCommand> command, bool asking, Time now);
  // Closes the connection when an answer is overdue; sends PING when nothing else is in flight.
  void OnTime(Time now);
  // Fails every command that waits or is in flight with `why`. Called within a callback of this
  // connection, it takes effect when that returns.
  void Close(const absl::Status& why);

  uint64_t id() const { return id_; }
  const Address& address() const { return address_; }
  bool closed() const { return closed_; }
  const absl::Status& why() const { return why_; }

 private:
  struct Waiting {
    std::unique_ptr<RedisCommand> command;
    bool asking;
  };

  // ---- hiredis' hooks ----
  void Attach();
  void OnConnected(bool connected);
  void OnAnswer(std::unique_ptr<RedisCommand> command);
  void OnLost(std::unique_ptr<RedisCommand> command);
  void OnError();
  void OnFreed();
  void WaitToRead();
  void WaitToWrite();
  void ReadSome();
  void WriteSome();

  // False: the connection is lost, with `why_`.
  bool Lose(const absl::Status& why);
  bool Feed(const char* bytes, ssize_t size);
  bool Flush();
  bool Send(std::string_view bytes, size_t* sent);
  void StartTls();
  void Introduce(Time now);
  void OnIntroduced(const RedisCommand& said, const absl::StatusOr<RedisReply>& reply);
  void WriteNow(std::unique_ptr<RedisCommand> command, Time now);
  const RedisCommand* First() const;  // in flight
  absl::Status Unavailable(std::string_view why) const;

  boost::asio::io_context* const io_;
  const uint64_t id_;
  const Address address_;
  const RedisOptions* const options_;
  const Role role_;
  Owner* const owner_;

  RedisReplyBuilder builder_;
  redisAsyncContext* context_ = nullptr;              // frees itself when the connection ends
  boost::asio::posix::stream_descriptor descriptor_;  // hiredis' socket; not closed by this
  bool connected_ = false;
  bool ready_ = false;
  bool closed_ = false;
  bool is_too_large_ = false;  // the first answer
  absl::Status why_;
  Time connect_deadline_{0};
  Time last_write_{0};
  int introductions_left_ = 0;

  bool reading_ = false;  // a wait of the loop is under way
  bool writing_ = false;
  bool is_full_ = false;             // the socket, for now
  std::unique_ptr<TlsSession> tls_;  // null: in clear
  std::string out_;                  // to be sent, from `out_sent_` on
  size_t out_sent_ = 0;
  std::vector<const char*> texts_;  // of the command that is being written
  std::vector<size_t> sizes_;
  std::deque<Waiting> waiting_;
};

// The status of an error reply, by the table in `redis_client.h`.
absl::Status RedisErrorToStatus(const std::string& error);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_REDIS_CONNECTION_H_
