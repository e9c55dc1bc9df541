#include "indexer/service/resp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

using testing::HasSubstr;

// A reply as text: every kind, length and depth shows.
std::string Shown(const RedisReply& reply) {
  switch (reply.kind) {
    case RedisReply::Kind::kNil:
      return "nil";
    case RedisReply::Kind::kStatus:
      return "status:" + reply.text;
    case RedisReply::Kind::kError:
      return "error:" + reply.text;
    case RedisReply::Kind::kInteger:
      return std::to_string(reply.integer);
    case RedisReply::Kind::kString:
      return std::to_string(reply.text.size()) + ":" + reply.text;
    case RedisReply::Kind::kArray:
      break;
  }
  std::string all = "[";
  for (const RedisReply& element : reply.elements) all += Shown(element) + " ";
  return all + "]";
}

// How reading ended, and what was read before.
struct Outcome {
  std::vector<std::string> replies;
  absl::StatusCode code = absl::StatusCode::kOk;
  bool inside = false;  // a reply goes on

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

void PrintTo(const Outcome& outcome, std::ostream* out) {
  for (const std::string& reply : outcome.replies) *out << reply << "\n";
  *out << absl::StatusCodeToString(outcome.code) << (outcome.inside ? ", inside a reply" : "");
}

// ---- The slow twin: reads from the start of all bytes, by recursion ----

class SlowReader {
 public:
  SlowReader(std::string_view bytes, const RespLimits& limits) : bytes_(bytes), limits_(limits) {}

  Outcome ReadAll() {
    Outcome outcome;
    while (at_ < bytes_.size()) {
      charged_ = sizeof(RedisReply);
      const std::optional<RedisReply> reply = Value(0);
      if (!reply.has_value()) {
        outcome.code = code_;
        outcome.inside = code_ == absl::StatusCode::kOk;
        break;
      }
      outcome.replies.push_back(Shown(*reply));
    }
    return outcome;
  }

 private:
  std::nullopt_t Bad() {
    code_ = absl::StatusCode::kInvalidArgument;
    return std::nullopt;
  }

  bool Charge(uint64_t bytes) {
    charged_ += bytes;
    if (charged_ > limits_.bytes_max) code_ = absl::StatusCode::kOutOfRange;
    return charged_ <= limits_.bytes_max;
  }

  std::optional<RedisReply> Value(size_t depth) {
    const std::string_view left = bytes_.substr(at_);
    if (left.empty()) return std::nullopt;
    const char type = left[0];
    const bool is_text = type == '+' || type == '-';
    if (!is_text && type != ':' && type != '$' && type != '*') return Bad();
    const size_t feed = left.find('\n');
    const size_t size = feed == std::string_view::npos ? left.size() : feed + 1;
    if (size > (is_text ? 16384u : 32u)) return Bad();
    if (feed == std::string_view::npos) return std::nullopt;
    if (feed < 2 || left[feed - 1] != '\r') return Bad();
    const std::string rest(left.substr(1, feed - 2));
    at_ += feed + 1;
    RedisReply reply;
    if (is_text) {
      if (!Charge(rest.size())) return std::nullopt;
      reply.kind = type == '+' ? RedisReply::Kind::kStatus : RedisReply::Kind::kError;
      reply.text = rest;
      return reply;
    }
    int64_t number = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (error != std::errc() || end != rest.data() + rest.size()) return Bad();
    if (type == ':') {
      reply.kind = RedisReply::Kind::kInteger;
      reply.integer = number;
      return reply;
    }
    if (number == -1) return reply;
    if (number < 0) return Bad();
    if (type == '$') return Text(static_cast<uint64_t>(number));
    return Array(static_cast<uint64_t>(number), depth);
  }

  std::optional<RedisReply> Text(uint64_t length) {
    if (!Charge(length)) return std::nullopt;
    const std::string_view left = bytes_.substr(at_);
    if (left.size() > length && left[length] != '\r') return Bad();
    if (left.size() > length + 1 && left[length + 1] != '\n') return Bad();
    if (left.size() < length + 2) {
      at_ = bytes_.size();
      return std::nullopt;
    }
    at_ += length + 2;
    RedisReply reply;
    reply.kind = RedisReply::Kind::kString;
    reply.text = left.substr(0, length);
    return reply;
  }

  std::optional<RedisReply> Array(uint64_t length, size_t depth) {
    if (depth == limits_.depth_max) return Bad();
    // Without an overflow: the sum would have 2^64 and more.
    if (length > limits_.bytes_max || !Charge(length * sizeof(RedisReply))) {
      code_ = absl::StatusCode::kOutOfRange;
      return std::nullopt;
    }
    RedisReply reply;
    reply.kind = RedisReply::Kind::kArray;
    for (uint64_t i = 0; i < length; ++i) {
      std::optional<RedisReply> element = Value(depth + 1);
      if (!element.has_value()) return std::nullopt;
      reply.elements.push_back(*std::move(element));
    }
    return reply;
  }

  const std::string_view bytes_;
  const RespLimits limits_;
  size_t at_ = 0;
  uint64_t charged_ = 0;
  absl::StatusCode code_ = absl::StatusCode::kOk;  // OK: the bytes ended
};

// ---- Random replies ----

class Random {
 public:
  explicit Random(uint64_t seed) : random_(seed) {}

  uint64_t Below(uint64_t bound) { return random_() % bound; }

  RedisReply Reply(size_t depth) {
    RedisReply reply;
    switch (Below(depth < 5 ? 7 : 5)) {
      case 0:
        break;
      case 1:
        reply.kind = RedisReply::Kind::kStatus;
        reply.text = Word();
        break;
      case 2:
        reply.kind = RedisReply::Kind::kError;
        reply.text = "ERR " + Word();
        break;
      case 3:
        reply.kind = RedisReply::Kind::kInteger;
        reply.integer = static_cast<int64_t>(random_()) >> Below(64);
        break;
      case 4:
        reply.kind = RedisReply::Kind::kString;
        reply.text.resize(Below(Below(8) == 0 ? 3000 : 20));
        for (char& c : reply.text) c = Below(4) == 0 ? "\r\n$*"[Below(4)] : Byte();
        break;
      default:
        reply.kind = RedisReply::Kind::kArray;
        for (uint64_t left = Below(6); left > 0; --left) reply.elements.push_back(Reply(depth + 1));
    }
    return reply;
  }

  char Byte() { return static_cast<char>(Below(256)); }

  // What a line may end with is not in it.
  std::string Word() {
    std::string word(Below(12), ' ');
    for (char& c : word) c = static_cast<char>(' ' + Below(90));
    return word;
  }

  // Small damage: bytes that are changed, missing, put in or doubled.
  void Damage(std::string* bytes) {
    for (uint64_t left = 1 + Below(3); left > 0 && !bytes->empty(); --left) {
      const size_t at = Below(bytes->size());
      switch (Below(4)) {
        case 0:
          (*bytes)[at] = Below(2) == 0 ? Byte() : "+-:$*\r\n0179"[Below(11)];
          break;
        case 1:
          bytes->erase(at, 1 + Below(4));
          break;
        case 2:
          bytes->insert(at, 1, "+-:$*\r\n0179_"[Below(12)]);
          break;
        default:
          bytes->insert(at, bytes->substr(at, Below(30)));
      }
    }
  }

 private:
  std::mt19937_64 random_;
};

void AppendReply(const RedisReply& reply, bool nil_array, std::string* out) {
  const std::string size = std::to_string(reply.text.size());
  switch (reply.kind) {
    case RedisReply::Kind::kNil:
      *out += nil_array ? "*-1\r\n" : "$-1\r\n";
      return;
    case RedisReply::Kind::kStatus:
      *out += "+" + reply.text + "\r\n";
      return;
    case RedisReply::Kind::kError:
      *out += "-" + reply.text + "\r\n";
      return;
    case RedisReply::Kind::kInteger:
      *out += ":" + std::to_string(reply.integer) + "\r\n";
      return;
    case RedisReply::Kind::kString:
      *out += "$" + size + "\r\n" + reply.text + "\r\n";
      return;
    case RedisReply::Kind::kArray:
      break;
  }
  *out += "*" + std::to_string(reply.elements.size()) + "\r\n";
  for (const RedisReply& element : reply.elements) AppendReply(element, nil_array, out);
}

// In pieces that `size` makes; of no size: all at once.
template <typename Size>
Outcome InPieces(std::string_view bytes, const RespLimits& limits, Size size) {
  RespReader reader(limits);
  Outcome outcome;
  while (!bytes.empty()) {
    // A copy: a read beyond the piece is seen by a sanitizer.
    const std::string piece(bytes.substr(0, std::max<size_t>(size(), 1)));
    bytes.remove_prefix(piece.size());
    std::string_view left = piece;
    while (!left.empty()) {
      absl::StatusOr<std::optional<RedisReply>> reply = reader.Read(&left);
      if (!reply.ok()) {
        outcome.code = reply.status().code();
        return outcome;
      }
      if (reply->has_value()) outcome.replies.push_back(Shown(**reply));
    }
  }
  outcome.inside = reader.inside();
  return outcome;
}

Outcome AtOnce(std::string_view bytes, const RespLimits& limits = {}) {
  return InPieces(bytes, limits, [&] { return bytes.size(); });
}

absl::Status ErrorOf(std::string_view bytes, const RespLimits& limits = {}) {
  RespReader reader(limits);
  while (!bytes.empty()) {
    const auto reply = reader.Read(&bytes);
    if (!reply.ok()) return reply.status();
  }
  return absl::OkStatus();
}

// ---- Tests ----

TEST(RespReaderTest, ReadsWhatTheSpecificationShows) {
  const Outcome read = AtOnce(
      "+OK\r\n-ERR unknown\r\n:-42\r\n$5\r\nhello\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n"
      "*3\r\n:1\r\n*2\r\n$1\r\na\r\n$-1\r\n+S\r\n+\r\n");
  EXPECT_EQ(read.code, absl::StatusCode::kOk);
  EXPECT_FALSE(read.inside);
  EXPECT_THAT(read.replies,
              testing::ElementsAre("status:OK", "error:ERR unknown", "-42", "5:hello", "0:", "nil",
                                   "nil", "[]", "[1 [1:a nil ] status:S ]", "status:"));
}

TEST(RespReaderTest, RandomRepliesInRandomPiecesAreThoseThatWereWritten) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    std::string bytes;
    Outcome written;
    for (uint64_t left = 1 + random.Below(5); left > 0; --left) {
      const RedisReply reply = random.Reply(0);
      AppendReply(reply, random.Below(2) == 0, &bytes);
      written.replies.push_back(Shown(reply));
    }
    const uint64_t size_max = 1 + random.Below(random.Below(2) == 0 ? 8 : 2000);
    ASSERT_EQ(InPieces(bytes, {}, [&] { return 1 + random.Below(size_max); }), written);
    ASSERT_EQ(SlowReader(bytes, {}).ReadAll(), written);
  }
}

TEST(RespReaderTest, DamagedRepliesAreReadAsTheSlowTwinReadsThem) {
  int bad = 0;
  int too_large = 0;
  int unfinished = 0;
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    std::string bytes;
    for (uint64_t left = 1 + random.Below(4); left > 0; --left) {
      AppendReply(random.Reply(0), random.Below(2) == 0, &bytes);
    }
    random.Damage(&bytes);
    const RespLimits limits = {.bytes_max = 100 + random.Below(10000),
                               .depth_max = random.Below(6)};
    const Outcome slow = SlowReader(bytes, limits).ReadAll();
    const uint64_t size_max = 1 + random.Below(300);
    ASSERT_EQ(InPieces(bytes, limits, [&] { return 1 + random.Below(size_max); }), slow) << bytes;
    ASSERT_EQ(AtOnce(bytes, limits), slow) << bytes;
    bad += slow.code == absl::StatusCode::kInvalidArgument;
    too_large += slow.code == absl::StatusCode::kOutOfRange;
    unfinished += slow.inside;
  }
  // Each way to end was seen.
  EXPECT_GT(bad, 100);
  EXPECT_GT(too_large, 100);
  EXPECT_GT(unfinished, 100);
}

TEST(RespReaderTest, NoiseIsReadAsTheSlowTwinReadsIt) {
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    std::string bytes(random.Below(200), ' ');
    for (char& c : bytes)
      c = random.Below(3) == 0 ? random.Byte() : "+-:$*\r\n012"[random.Below(10)];
    const Outcome slow = SlowReader(bytes, {}).ReadAll();
    ASSERT_EQ(InPieces(bytes, {}, [&] { return 1 + random.Below(5); }), slow) << bytes;
  }
}

TEST(RespReaderTest, RefusesWhatIsNotRedis) {
  for (const char* bytes :
       {"$-2\r\n", "*-7\r\n", "$-9223372036854775808\r\n", "$99999999999999999999\r\n", "$\r\n",
        "*\r\n", ":\r\n", ":1x\r\n", ":+1\r\n", ": 1\r\n", "$1\r\nab\r\n", "$1\r\na\n\n", "+OK\n",
        "\r\n", "\n", "HTTP/1.1 400 Bad Request\r\n", "x", "\xff", "*1\r\n*1\r\nx"}) {
    EXPECT_EQ(ErrorOf(bytes).code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
  EXPECT_EQ(ErrorOf(std::string(1, '\0')).code(), absl::StatusCode::kInvalidArgument);
  for (const char* bytes :
       {"_\r\n", "#t\r\n", ",1.5\r\n", "(1\r\n", "!1\r\na\r\n", "=5\r\ntxt:a\r\n", "%1\r\n",
        "~1\r\n", ">1\r\n", "|1\r\n", "*1\r\n_\r\n"}) {
    EXPECT_THAT(std::string(ErrorOf(bytes).message()), HasSubstr("RESP3")) << bytes;
  }
}

TEST(RespReaderTest, WhatIsAnnouncedCountsBeforeItComes) {
  const RespLimits limits = {.bytes_max = 1 << 20};
  const absl::StatusCode too_large = absl::StatusCode::kOutOfRange;
  EXPECT_EQ(ErrorOf("$1048576\r\n", limits).code(), too_large);
  EXPECT_EQ(ErrorOf("$536870912\r\n", limits).code(), too_large);
  EXPECT_EQ(ErrorOf("$9223372036854775807\r\n", limits).code(), too_large);
  EXPECT_EQ(ErrorOf("*2147483648\r\n", limits).code(), too_large);
  EXPECT_EQ(ErrorOf("*9223372036854775807\r\n", limits).code(), too_large);
  // 2^64 / sizeof(RedisReply), where a product would wrap.
  EXPECT_EQ(ErrorOf("*256204778801521551\r\n", limits).code(), too_large);
  const size_t fits = limits.bytes_max / sizeof(RedisReply) - 1;
  EXPECT_TRUE(ErrorOf("*" + std::to_string(fits) + "\r\n", limits).ok());
  EXPECT_EQ(ErrorOf("*" + std::to_string(fits + 1) + "\r\n", limits).code(), too_large);
  // Together, too; the next reply begins anew.
  std::string half = "$524288\r\n" + std::string(524288, 'x') + "\r\n";
  EXPECT_EQ(ErrorOf("*2\r\n" + half + half, limits).code(), too_large);
  EXPECT_TRUE(ErrorOf(half + half + half, limits).ok());
}

TEST(RespReaderTest, EndlessLinesAndNestingEnd) {
  EXPECT_TRUE(ErrorOf("-" + std::string((16 << 10) - 3, 'x') + "\r\n").ok());
  EXPECT_EQ(ErrorOf("-" + std::string(16 << 10, 'x')).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorOf("$" + std::string(40, '0')).code(), absl::StatusCode::kInvalidArgument);
  std::string nested;
  for (int i = 0; i < 16; ++i) nested += "*1\r\n";
  EXPECT_TRUE(ErrorOf(nested + ":1\r\n").ok());
  for (int i = 0; i < 100000; ++i) nested += "*1\r\n";
  const absl::Status deep = ErrorOf(nested);
  EXPECT_EQ(deep.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(deep.message()), HasSubstr("nested"));
}

TEST(RespCommandTest, IsAnArrayOfTexts) {
  std::string bytes = "x";
  AppendRespCommand({"SET", std::string("a\0\r\n", 4), ""}, &bytes);
  EXPECT_EQ(bytes, std::string("x*3\r\n$3\r\nSET\r\n$4\r\na\0\r\n\r\n$0\r\n\r\n", 30));
}

}  // namespace
}  // namespace kvatlas
