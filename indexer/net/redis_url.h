// The options of a Redis client: what a `redis://` URL says, and the client's bounds.
//
//   redis://[[USER]:PASSWORD@]HOST:PORT[,HOST:PORT…][/DATABASE]
//       Hosts are tried in turn until one answers; nodes of a Redis Cluster are recognised as such.
//   redis-sentinel://[[USER]:PASSWORD@]SENTINEL:PORT[,…][/DATABASE]?master=NAME
//       The sentinels are asked for the master, again after each loss. User and password are the
//       master's.
//
//   @FILE, or redis://@/FILE where a list of other things is taken
//       All of the above is in that file, so that no password is on the command line or in an
//       environment. A file that others than its owner and its group's readers could open (a mode
//       above 0640) is refused.
//
// Without a port 6379 (26379 for sentinels); IPv6 hosts in brackets; `%40` and the like in user,
// password and name.
//
//   rediss://…?ca=FILE[&cert=FILE&key=FILE]       likewise rediss-sentinel://
//       The same by TLS, to the sentinels too. The server's certificate is of a CA of that file and
//       has the host's name, or address;
//       with `cert` and `key` this client shows its own. The files are read again when they
//       changed, for the connections that follow.
//   …?log_key=FILE, of any of these
//       Every record of a log is signed and checked with the keys in that file
//       (`security/record_keys.h`).
// Options are joined by `&`.
//
// *Threads*: plain values.

#ifndef KVATLAS_INDEXER_NET_REDIS_URL_H_
#define KVATLAS_INDEXER_NET_REDIS_URL_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/security/record_keys.h"
#include "indexer/security/tls_files.h"

namespace kvatlas {

inline constexpr size_t kRedisReplyBytesMax = 16 << 20;

struct RedisOptions {
  std::vector<Address> hosts;
  std::string user;  // empty: the default user
  std::string password;
  int database = 0;
  std::string sentinel_master;                        // not empty: `hosts` are sentinels
  std::shared_ptr<TlsFiles> tls = nullptr;            // null: in clear
  std::shared_ptr<RecordKeys> record_keys = nullptr;  // null: records of logs are not signed

  Duration connect_timeout = std::chrono::seconds(2);
  Duration command_timeout = std::chrono::seconds(5);  // for blocking ones beyond what they block
  Duration backoff_initial = std::chrono::milliseconds(50);  // doubled from time to time
  Duration backoff_max = std::chrono::seconds(1);
  // Accepted by `Send` and not yet answered.
  size_t outstanding_max = 1 << 14;
  size_t outstanding_bytes_max = 64 << 20;
  // Bytes of one reply as it is held here (`RedisReplyBuilder`), on each connection; a larger one
  // ends it.
  size_t reply_bytes_max = kRedisReplyBytesMax;
  size_t blocking_max = 64;  // blocking commands at a time, each on a connection of its own
};

// Its hosts, without secrets: "redis://10.0.0.1:6379,10.0.0.2:6379".
std::string RedisHosts(const RedisOptions& options);

// The content of the file if `url` names one, else `url`. INVALID_ARGUMENT: the file cannot be
// read, has another mode, is empty or longer than 4,096 bytes, or names a file in turn.
absl::StatusOr<std::string> ReadRedisUrl(std::string_view url);

// INVALID_ARGUMENT says what is wrong with the URL, or its file, without its password.
absl::StatusOr<RedisOptions> ParseRedisUrl(std::string_view url);

// The URL for people: without the password.
std::string RedisUrlWithoutPassword(std::string_view url);

// Whether there is a URL with a password somewhere in the text, a command line's argument or an
// error about one.
bool HasRedisPassword(std::string_view text);
// Any text for people: what stands between the ':' of a login and the '@' is left out of each URL
// of whatever scheme. Rather too much is left out than too little.
std::string WithoutPasswords(std::string_view text);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_REDIS_URL_H_
