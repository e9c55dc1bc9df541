// How is Redis' protocol (RESP2) written and read? Commands are appended to a buffer; replies are read from pieces of any size,
// from a server that is not trusted.
//
// *Truth*: `RespReader` accepts what the protocol's specification has and nothing else: lines end with CR LF, numbers are
// decimal and fit 64 bits, a length is -1 (nil) or more. RESP3 types are refused: no HELLO asks for them.
// *Threads*: one at a time.
// *Cost*: a text is copied once. Memory is taken when a length is announced, for exactly what was announced, so that
// nothing is moved later; pages are touched as bytes arrive.
// *Bounds*: `RespLimits`. What an array or a text announces counts before anything of it is read, so that no reply takes
// more memory than `bytes_max`, however it is sent. The line of a status or an error has at most 16 KiB, other lines 32 bytes.
//
// Example:
//   std::string_view bytes = …;                        // as they arrive
//   while (!bytes.empty()) {
//     absl::StatusOr<std::optional<RedisReply>> reply = reader.Read(&bytes);
//     if (!reply.ok()) …                               // the connection is of no use any more
//     if (reply->has_value()) Take(**std::move(reply));
//   }

#ifndef KVATLAS_INDEXER_SERVICE_RESP_H_
#define KVATLAS_INDEXER_SERVICE_RESP_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/service/redis_reply.h"

namespace kvatlas {

struct RespLimits {
  // Of one reply as it is held here: sizeof(RedisReply) for each value of it, and the length of each text.
  size_t bytes_max = 16 << 20;
  size_t depth_max = 16;  // arrays in arrays
};

class RespReader {
 public:
  explicit RespReader(const RespLimits& limits) : limits_(limits) {}
  RespReader(const RespReader&) = delete;
  RespReader& operator=(const RespReader&) = delete;

  // Reads on, at most up to the end of one reply, and takes what it read from the front of `bytes`. Returns the reply, or nothing when
  // all bytes were read and the reply goes on. An error reply is a value, of kind `kError`, at the top too.
  // INVALID_ARGUMENT: not RESP2. OUT_OF_RANGE: more than `bytes_max`. REQUIRES: no error was returned before.
  absl::StatusOr<std::optional<RedisReply>> Read(std::string_view* bytes);

  // True when a reply has begun and not ended.
  bool inside() const { return text_ != nullptr || !line_.empty() || !open_.empty(); }

 private:
  struct OpenArray {
    RedisReply* array;
    size_t missing;  // elements that have not ended
  };

  // All return whether the value that is being read has ended.
  absl::StatusOr<bool> TakeLine(std::string_view* bytes);
  absl::StatusOr<bool> TakeValue(char type, std::string_view rest);
  absl::StatusOr<bool> TakeText(std::string_view* bytes);
  absl::StatusOr<bool> BeginText(int64_t length);
  absl::StatusOr<bool> BeginArray(int64_t length);
  // Goes on to the next value; false: the reply has ended.
  bool NextValue();
  absl::Status Charge(size_t count, size_t bytes_each);

  const RespLimits limits_;
  RedisReply root_;
  RedisReply* value_ = &root_;   // being read; in an array that has room for all its elements
  std::vector<OpenArray> open_;  // outermost first
  size_t charged_ = sizeof(RedisReply);
  std::string line_;             // the beginning of one that goes on
  std::string* text_ = nullptr;  // being read, of `value_`
  size_t text_missing_ = 0;      // bytes of it, with the two of its end
};

// The command as an array of texts. REQUIRES: not empty.
void AppendRespCommand(const std::vector<std::string>& args, std::string* out);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_RESP_H_
