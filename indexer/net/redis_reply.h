// A reply of Redis as a value.

#ifndef KVATLAS_INDEXER_NET_REDIS_REPLY_H_
#define KVATLAS_INDEXER_NET_REDIS_REPLY_H_

#include <cstdint>
#include <string>
#include <vector>

namespace kvatlas {

struct RedisReply {
  // Errors occur only inside arrays: a reply that is one becomes a status.
  enum class Kind { kNil, kStatus, kError, kInteger, kString, kArray };

  Kind kind = Kind::kNil;
  int64_t integer = 0;
  std::string text;  // of a status, an error, a string
  std::vector<RedisReply> elements;

  bool is_nil() const { return kind == Kind::kNil; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_array() const { return kind == Kind::kArray; }
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_REDIS_REPLY_H_
