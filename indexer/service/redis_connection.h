// One connection to Redis on an epoll loop: connects, introduces itself, pipelines commands, and notices when no server
// answers. A part of `RedisClient`.
//
//   connecting ─▶ [TLS] ─▶ introducing (AUTH, SELECT, then PING, or ROLE for who must be a master) ─▶ ready ─▶ closed
//
// *Truth*: the server is not trusted. What is not RESP2, a reply that is too large, one that nothing had asked for and an
// introduction answered as no Redis does end the connection, with a reason that says so.
// *Bounds*: a reply, `RedisOptions::reply_bytes_max`; what waits to be written, the client's bound of what is outstanding.
// *Threads*: the loop's alone.
// *Lifetime*: closed once and for good; the owner makes another. It is not destroyed from its own calls to `Owner`.

#ifndef KVATLAS_INDEXER_SERVICE_REDIS_CONNECTION_H_
#define KVATLAS_INDEXER_SERVICE_REDIS_CONNECTION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/service/address.h"
#include "indexer/service/redis_client.h"
#include "indexer/service/redis_reply.h"
#include "indexer/service/redis_url.h"
#include "indexer/service/resp.h"
#include "indexer/service/tls_session.h"

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

class RedisConnection {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void OnReady(RedisConnection* connection) = 0;
    // `error` is the text of an error reply, with `reply` empty.
    virtual void OnReply(RedisConnection* connection, std::unique_ptr<RedisCommand> command,
                         absl::StatusOr<RedisReply> reply, const std::string& error) = 0;
  };
  enum class Role { kAny, kMaster, kSentinel };

  // All outlive the connection. `id` is what epoll reports for it.
  RedisConnection(int epoll_fd, uint64_t id, const Address& address, const RedisOptions* options,
                  Role role, Owner* owner);
  ~RedisConnection();

  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  void Start(Time now);
  // Waits until the connection is ready, if it is not yet. With `asking` the node is told to take a key that is just
  // being moved to it.
  void Write(std::unique_ptr<RedisCommand> command, bool asking, Time now);
  void OnEvents(uint32_t events);
  // Closes when an answer is overdue; says PING when nothing else is said.
  void OnTime(Time now);
  // Every command that waits or is under way fails with `why`.
  void Close(const absl::Status& why);

  uint64_t id() const { return id_; }
  const Address& address() const { return address_; }
  bool ready() const { return ready_; }
  bool closed() const { return closed_; }
  const absl::Status& why() const { return why_; }
  size_t outstanding() const { return in_flight_.size() + waiting_.size(); }

 private:
  void SetEvents(uint32_t events);
  void OnConnected();
  void StartTls();
  // Of bytes that were received. False: the connection fails.
  bool TakeSome(std::string_view bytes);
  void Introduce(Time now);
  void WriteNow(std::unique_ptr<RedisCommand> command, Time now);
  void SendSome();
  void ReadSome();
  void OnAnswer(RedisReply reply);
  void OnUnreadable(const absl::Status& status);
  void OnIntroduced(const RedisCommand& said, const absl::StatusOr<RedisReply>& reply);
  // Closes once `OnEvents` returns.
  void Fail(absl::StatusCode code, const std::string& why);
  void FailAll();

  const int epoll_fd_;
  const uint64_t id_;
  const Address address_;
  const RedisOptions* const options_;
  const Role role_;
  Owner* const owner_;

  int fd_ = -1;
  uint32_t events_ = 0;
  bool connected_ = false;
  bool ready_ = false;
  bool closed_ = false;
  bool close_due_ = false;  // once `OnEvents` returns
  bool inside_ = false;     // `OnEvents` runs
  absl::Status why_;
  Time connect_deadline_{0};
  Time last_write_{0};
  int introductions_left_ = 0;
  std::unique_ptr<TlsSession> tls_;  // null: in clear
  std::string plain_;                // to be encrypted; with `tls_` alone
  std::string out_;                  // to be sent, from `out_sent_` on
  size_t out_sent_ = 0;
  RespReader reader_;
  std::deque<std::unique_ptr<RedisCommand>> in_flight_;  // in the order of their answers
  struct Waiting {
    std::unique_ptr<RedisCommand> command;
    bool asking;
  };
  std::deque<Waiting> waiting_;
};

// What an error reply means, as `redis_client.h` has it.
absl::Status RedisErrorToStatus(const std::string& error);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_REDIS_CONNECTION_H_
