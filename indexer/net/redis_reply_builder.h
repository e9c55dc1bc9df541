// Makes values of the replies that hiredis reads, within a bound. hiredis decodes and finds the
// parts of a reply; this makes the `RedisReply` of them, in place of hiredis' own objects, and
// reports a reply that is too large.
//
// *Truth*: the server is not trusted. What hiredis refuses, types of RESP3 (no HELLO asks for
// them), arrays nested deeper than `kRedisReplyDepthMax`, a line without an end and a reply that
// nothing had asked for are errors of the reader.
// *Cost*: a text is copied twice, into hiredis' buffer and into the value.
// *Bounds*: `bytes_max`, of one reply as it is held here: sizeof(RedisReply) for each value of it
// and the length of each text. What an array or a text announces counts before anything of it is
// read. hiredis itself bounds neither: its buffer holds a text until that has come whole, hence
// `Check`. A reply of one text takes twice its bytes while it is made.
// *Threads*: one. *Lifetime*: outlives the reader.
//
// Example:
//   RedisReplyBuilder builder(16 << 20);
//   builder.Attach(reader);
//   // For each piece that was received:
//   if (builder.Check().ok() && redisReaderFeed(reader, piece.data(), piece.size()) == REDIS_OK) …
//   void* made = nullptr;
//   while (redisReaderGetReply(reader, &made) == REDIS_OK && made != nullptr) Use(builder.Take());
//   if (reader->err != 0) … builder.Why()

#ifndef KVATLAS_INDEXER_NET_REDIS_REPLY_BUILDER_H_
#define KVATLAS_INDEXER_NET_REDIS_REPLY_BUILDER_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "hiredis/hiredis.h"
#include "indexer/net/redis_reply.h"

namespace kvatlas {

inline constexpr int kRedisReplyDepthMax = 16;  // arrays in arrays

class RedisReplyBuilder {
 public:
  // `is_asked` tells whether a reply may begin; null: always.
  explicit RedisReplyBuilder(size_t bytes_max, std::function<bool()> is_asked = {});
  RedisReplyBuilder(const RedisReplyBuilder&) = delete;
  RedisReplyBuilder& operator=(const RedisReplyBuilder&) = delete;

  // The reader's replies are made here from now on.
  void Attach(redisReader* reader);

  // Before more is read: INVALID_ARGUMENT or OUT_OF_RANGE when the reply that has begun cannot end
  // within its bounds. REQUIRES: the reader has no error.
  absl::Status Check() const;

  // The reply that the reader gave out last. An error reply is a value, of kind `kError`, at the
  // top too.
  RedisReply Take();

  // The reason of the reader's error. INVALID_ARGUMENT: not RESP2, or not asked for. OUT_OF_RANGE:
  // more than `bytes_max`.
  absl::Status Why() const;

 private:
  // hiredis looks at the type of what it got.
  struct Root : redisReply {
    RedisReply value;
  };

  // As `redisReplyObjectFunctions` has them: what was made, or null, which ends the reading with an
  // error.
  static void* MakeText(const redisReadTask* task, char* text, size_t size);
  static void* MakeArray(const redisReadTask* task, size_t count);
  static void* MakeInteger(const redisReadTask* task, long long number);
  static void* MakeNil(const redisReadTask* task);
  static void* MakeDouble(const redisReadTask* task, double number, char* text, size_t size);
  static void* MakeBool(const redisReadTask* task, int is_true);
  static void Free(void* made);

  static RedisReplyBuilder* Of(const redisReadTask* task);
  // Where the value goes; null: it is refused.
  RedisReply* Place(const redisReadTask* task);
  void* Made(const redisReadTask* task, RedisReply* value);
  bool Charge(size_t count, size_t bytes_each);
  absl::Status TooLarge() const;

  const size_t bytes_max_;
  const std::function<bool()> is_asked_;
  redisReader* reader_ = nullptr;
  Root root_ = {};
  size_t charged_ = 0;  // of the reply that is being read
  absl::Status why_;    // not OK: refused here
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_REDIS_REPLY_BUILDER_H_
