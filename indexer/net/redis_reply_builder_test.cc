#include "indexer/net/redis_reply_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvatlas {
namespace {

using testing::HasSubstr;

constexpr size_t kBytesMax = 64 << 10;

struct Read {
  std::vector<RedisReply> replies;
  absl::Status status;
  size_t fed = 0;  // bytes, when it ended
};

// Feeds the bytes in pieces of `step`, as a connection does.
Read ReadAll(std::string_view bytes, size_t step, size_t bytes_max = kBytesMax,
             std::function<bool()> is_asked = {}) {
  Read read;
  RedisReplyBuilder builder(bytes_max, std::move(is_asked));
  const std::unique_ptr<redisReader, void (*)(redisReader*)> reader(redisReaderCreate(),
                                                                    redisReaderFree);
  builder.Attach(reader.get());
  while (read.fed < bytes.size()) {
    if (read.status = builder.Check(); !read.status.ok()) return read;
    const std::string_view piece = bytes.substr(read.fed, step);
    EXPECT_EQ(redisReaderFeed(reader.get(), piece.data(), piece.size()), REDIS_OK);
    read.fed += piece.size();
    void* made = nullptr;
    while (redisReaderGetReply(reader.get(), &made) == REDIS_OK && made != nullptr) {
      read.replies.push_back(builder.Take());
    }
    if (reader->err != 0) {
      read.status = builder.Why();
      return read;
    }
  }
  return read;
}

TEST(RedisReplyBuilderTest, MakesValuesOfEveryTypeHoweverTheyCome) {
  const std::string bytes =
      "+OK\r\n-ERR no\r\n:-7\r\n$5\r\nab\r\nc\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n"
      "*3\r\n*2\r\n:1\r\n*1\r\n$1\r\na\r\n-ERR inside\r\n$-1\r\n";
  for (size_t step = 1; step <= bytes.size(); ++step) {
    SCOPED_TRACE(step);
    const Read read = ReadAll(bytes, step);
    ASSERT_TRUE(read.status.ok()) << read.status;
    ASSERT_EQ(read.replies.size(), 9u);
    EXPECT_EQ(read.replies[0].kind, RedisReply::Kind::kStatus);
    EXPECT_EQ(read.replies[0].text, "OK");
    EXPECT_EQ(read.replies[1].kind, RedisReply::Kind::kError);
    EXPECT_EQ(read.replies[1].text, "ERR no");
    EXPECT_EQ(read.replies[2].kind, RedisReply::Kind::kInteger);
    EXPECT_EQ(read.replies[2].integer, -7);
    EXPECT_TRUE(read.replies[3].is_string());
    EXPECT_EQ(read.replies[3].text, "ab\r\nc");
    EXPECT_TRUE(read.replies[4].is_string());
    EXPECT_EQ(read.replies[4].text, "");
    EXPECT_TRUE(read.replies[5].is_nil());
    EXPECT_TRUE(read.replies[6].is_nil());
    EXPECT_TRUE(read.replies[7].is_array());
    const RedisReply& nested = read.replies[8];
    ASSERT_EQ(nested.elements.size(), 3u);
    ASSERT_EQ(nested.elements[0].elements.size(), 2u);
    EXPECT_EQ(nested.elements[0].elements[0].integer, 1);
    EXPECT_EQ(nested.elements[0].elements[1].elements[0].text, "a");
    EXPECT_EQ(nested.elements[1].kind, RedisReply::Kind::kError);
    EXPECT_TRUE(nested.elements[2].is_nil());
  }
}

TEST(RedisReplyBuilderTest, WhatIsNotResp2IsRefusedWithItsReason) {
  const std::pair<const char*, const char*> kBad[] = {
      {"HTTP/1.1 400 Bad Request\r\n\r\n", "got \"H\" as reply type byte"},
      {"$-7\r\n", "length out of range"},
      {"*-2\r\n", "length out of range"},
      {"$x\r\n", "Bad bulk string length"},
      {":1x\r\n", "Bad integer value"},
      {":9223372036854775808\r\n", "Bad integer value"},
      {"%1\r\n+a\r\n+b\r\n", "RESP3"},
      {"~1\r\n+a\r\n", "RESP3"},
      {">2\r\n+a\r\n+b\r\n", "RESP3"},
      {">0\r\n", "RESP3"},
      {"_\r\n", "RESP3"},
      {"#t\r\n", "RESP3"},
      {",1.5\r\n", "RESP3"},
      {"(12\r\n", "RESP3"},
      {"=5\r\ntxt:a\r\n", "RESP3"},
      {"*1\r\n,1.5\r\n", "RESP3"},
  };
  for (const auto& [bytes, why] : kBad) {
    SCOPED_TRACE(bytes);
    for (const size_t step : {1, 100}) {
      const Read read = ReadAll(bytes, step);
      EXPECT_EQ(read.status.code(), absl::StatusCode::kInvalidArgument) << read.status;
      EXPECT_THAT(std::string(read.status.message()), HasSubstr("not RESP2"));
      EXPECT_THAT(std::string(read.status.message()), HasSubstr(why));
      EXPECT_TRUE(read.replies.empty());
    }
  }
}

TEST(RedisReplyBuilderTest, AReplyThatWasNotAskedForIsNone) {
  int asked = 2;
  const Read read =
      ReadAll("+a\r\n*1\r\n+b\r\n+c\r\n", 100, kBytesMax, [&] { return asked-- > 0; });
  EXPECT_EQ(read.replies.size(), 2u);
  EXPECT_THAT(std::string(read.status.message()), HasSubstr("nothing had asked for"));
}

TEST(RedisReplyBuilderTest, ArraysAreNestedSoDeepAndNoDeeper) {
  std::string nested;
  for (int i = 0; i < kRedisReplyDepthMax; ++i) nested += "*1\r\n";
  EXPECT_TRUE(ReadAll(nested + ":1\r\n", 7).status.ok());
  EXPECT_EQ(ReadAll(nested + "*1\r\n:1\r\n", 7).status.code(), absl::StatusCode::kInvalidArgument);
}

// Refused before the announced bytes have come, and before memory is taken for them.
TEST(RedisReplyBuilderTest, WhatIsAnnouncedBeyondTheBoundIsRefusedAtOnce) {
  const std::string filler(1 << 20, 'x');
  for (const std::string& head :
       {std::string("$536870912\r\n"), std::string("$9223372036854775807\r\n"),
        std::string("*2147483648\r\n"), std::string("*2\r\n$5\r\nhello\r\n$65536\r\n"),
        "$" + std::to_string(kBytesMax - sizeof(RedisReply) + 1) + "\r\n",
        "*" + std::to_string(kBytesMax / sizeof(RedisReply)) + "\r\n"}) {
    SCOPED_TRACE(head);
    const Read read = ReadAll(head + filler, 64);
    EXPECT_EQ(read.status.code(), absl::StatusCode::kOutOfRange) << read.status;
    EXPECT_LE(read.fed, head.size() + 64);
    EXPECT_TRUE(read.replies.empty());
  }
}

TEST(RedisReplyBuilderTest, WhatIsJustAllowedIsRead) {
  const size_t text = kBytesMax - sizeof(RedisReply);
  const std::string whole = "$" + std::to_string(text) + "\r\n" + std::string(text, 'x') + "\r\n";
  const Read read = ReadAll(whole + whole, 1000);
  EXPECT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.replies.size(), 2u) << "what one reply took counts for no other";
}

TEST(RedisReplyBuilderTest, TextsCountTogether) {
  std::string bytes = "*10\r\n";
  for (int i = 0; i < 10; ++i) bytes += "$10000\r\n" + std::string(10000, 'x') + "\r\n";
  const Read read = ReadAll(bytes, 1000);
  EXPECT_EQ(read.status.code(), absl::StatusCode::kOutOfRange) << read.status;
  EXPECT_LT(read.fed, bytes.size() - 20000);
}

TEST(RedisReplyBuilderTest, ALineWithoutAnEndIsRefused) {
  for (const char type : {'+', '-', ':', '$', '*'}) {
    const Read read = ReadAll(std::string(1, type) + std::string(1 << 20, '1'), 1000);
    EXPECT_EQ(read.status.code(), absl::StatusCode::kInvalidArgument) << type << read.status;
    EXPECT_LE(read.fed, 20000u) << type;
  }
}

}  // namespace
}  // namespace kvatlas
