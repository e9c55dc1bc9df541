// Replies of a Redis, as hiredis reads them and we hold them: the same whether they come at once or
// in pieces, within their bounds.

#include <memory>

#include "indexer/net/redis_reply_builder.h"
#include "tests/fuzz/fuzz.h"

namespace kvatlas {
namespace {

constexpr size_t kBytesMax = 64 << 10;

size_t SizeOf(const RedisReply& reply) {
  size_t bytes = sizeof reply + reply.text.size();
  for (const RedisReply& element : reply.elements) bytes += SizeOf(element);
  return bytes;
}

struct Outcome {
  size_t replies = 0;
  size_t bytes = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// Check comes after the last piece too: what cannot end within its bounds is seen then at the
// latest.
Outcome Read(std::string_view input, size_t step) {
  Outcome outcome;
  RedisReplyBuilder builder(kBytesMax);
  const std::unique_ptr<redisReader, void (*)(redisReader*)> reader(redisReaderCreate(),
                                                                    redisReaderFree);
  builder.Attach(reader.get());
  while (true) {
    if (const absl::Status status = builder.Check(); !status.ok()) {
      outcome.code = status.code();
      return outcome;
    }
    if (input.empty()) return outcome;
    const std::string_view piece = input.substr(0, step);
    input.remove_prefix(piece.size());
    FuzzCheck(redisReaderFeed(reader.get(), piece.data(), piece.size()) == REDIS_OK, "not fed");
    void* made = nullptr;
    while (redisReaderGetReply(reader.get(), &made) == REDIS_OK && made != nullptr) {
      const size_t bytes = SizeOf(builder.Take());
      FuzzCheck(bytes <= kBytesMax, "a reply beyond its bound");
      ++outcome.replies;
      outcome.bytes += bytes;
    }
    if (reader->err != 0) {
      outcome.code = builder.Why().code();
      return outcome;
    }
  }
}

const AddFuzzSeeds kSeeds([] {
  return std::vector<std::string>{
      "\x02+OK\r\n:-7\r\n$5\r\nhello\r\n*2\r\n$-1\r\n*1\r\n-ERR no\r\n*-1\r\n*0\r\n$0\r\n\r\n",
      "\x03%1\r\n+a\r\n,1.5\r\n", "\x02>2\r\n$9\r\nsubscribe\r\n:1\r\n", "\x09$99999999\r\nx",
      "\x05*1\r\n*2\r\n$6\r\nstream\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nk\r\n$1\r\nv\r\n"};
}());

}  // namespace

}  // namespace kvatlas

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t step = 1 + kvatlas::FuzzChoice(&input, 32);
  kvatlas::FuzzCheck(kvatlas::Read(input, step) == kvatlas::Read(input, size + 1),
                     "in pieces it is another reply");
  return 0;
}
