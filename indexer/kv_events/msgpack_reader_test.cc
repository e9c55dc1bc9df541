#include "indexer/kv_events/msgpack_reader.h"

#include <gtest/gtest.h>

#include <msgpack.hpp>
#include <random>
#include <string>
#include <string_view>

#include "indexer/kv_events/decoder_test_util.h"

namespace kvatlas {
namespace {

TEST(MsgpackReaderTest, IntegersOfEveryWidth) {
  const struct {
    std::string_view hex;
    int64_t value;
  } kIntegers[] = {{"7f", 127},
                   {"cc80", 128},
                   {"cd0100", 256},
                   {"ce00010000", 65536},
                   {"cf0000000100000000", int64_t{1} << 32},
                   {"ff", -1},
                   {"e0", -32},
                   {"d0df", -33},
                   {"d1ff7f", -129},
                   {"d2ffff7fff", -32769},
                   {"d3ffffffff7fffffff", -2147483649},
                   {"d07f", 127}};
  for (const auto& [hex, value] : kIntegers) {
    SCOPED_TRACE(hex);
    const std::string bytes = FromHex(hex);
    MsgpackReader reader(bytes);
    MsgpackInteger integer;
    ASSERT_TRUE(reader.ReadInteger(&integer));
    EXPECT_EQ(static_cast<int64_t>(integer.bits), value);
    EXPECT_EQ(integer.negative, value < 0);
    EXPECT_EQ(reader.remaining(), 0u);
    // One byte short of it there is none.
    MsgpackReader cut(std::string_view(bytes).substr(0, bytes.size() - 1));
    EXPECT_FALSE(cut.ReadInteger(&integer));
  }
}

TEST(MsgpackReaderTest, TextsBytesAndFloats) {
  const std::string bytes = MsgpackWriter()
                                .Text("short")
                                .Text(std::string(100, 'd'))
                                .Text(std::string(1000, 'e'))
                                .Bytes("b")
                                .Bytes(std::string(300, 'b'))
                                .Float(0.25)
                                .Raw(FromHex("ca3e800000"))
                                .bytes();
  MsgpackReader reader(bytes);
  std::string_view text;
  ASSERT_TRUE(reader.ReadText(&text));
  EXPECT_EQ(text, "short");
  ASSERT_TRUE(reader.ReadText(&text));
  EXPECT_EQ(text.size(), 100u);
  ASSERT_TRUE(reader.ReadText(&text));
  EXPECT_EQ(text.size(), 1000u);
  ASSERT_TRUE(reader.ReadBytes(&text));
  EXPECT_EQ(text, "b");
  ASSERT_TRUE(reader.ReadBytes(&text));
  EXPECT_EQ(text.size(), 300u);
  double number = 0;
  ASSERT_TRUE(reader.ReadFloat(&number));
  EXPECT_EQ(number, 0.25);
  ASSERT_TRUE(reader.ReadFloat(&number));
  EXPECT_EQ(number, 0.25);
  EXPECT_EQ(reader.Peek(), MsgpackType::kEnd);
}

TEST(MsgpackReaderTest, AnotherTypeIsNotRead) {
  const std::string bytes = FromHex("c3");
  const auto reader = [&] { return MsgpackReader(bytes); };
  std::string_view text;
  uint32_t count;
  MsgpackInteger integer;
  double number;
  EXPECT_EQ(reader().Peek(), MsgpackType::kBool);
  EXPECT_FALSE(reader().ReadNil());
  EXPECT_FALSE(reader().ReadText(&text));
  EXPECT_FALSE(reader().ReadBytes(&text));
  EXPECT_FALSE(reader().ReadArray(&count));
  EXPECT_FALSE(reader().ReadMap(&count));
  EXPECT_FALSE(reader().ReadInteger(&integer));
  EXPECT_FALSE(reader().ReadFloat(&number));
}

TEST(MsgpackReaderTest, CountThatTheBytesCannotHoldIsNoArrayAndNoMap) {
  uint32_t count;
  for (const std::string_view hex : {"92c0", "dc0002c0", "dd00000002c0", "ddffffffffc0"}) {
    const std::string bytes = FromHex(hex);
    EXPECT_FALSE(MsgpackReader(bytes).ReadArray(&count)) << hex;
  }
  for (const std::string_view hex : {"81c0", "de0001c0", "df00000001c0", "dfffffffffc0"}) {
    const std::string bytes = FromHex(hex);
    EXPECT_FALSE(MsgpackReader(bytes).ReadMap(&count)) << hex;
  }
  const std::string map = FromHex("df00000001c0c0");
  EXPECT_TRUE(MsgpackReader(map).ReadMap(&count));
  EXPECT_EQ(count, 1u);
}

// Where msgpack-cxx finds the end of the first value, or nothing.
size_t EndOf(std::string_view bytes) {
  size_t end = 0;
  try {
    const size_t size = bytes.size();
    msgpack::unpack(bytes.data(), size, end, nullptr, nullptr,
                    msgpack::unpack_limit(size, size, size, size, size));
    return end;
  } catch (const msgpack::unpack_error&) {
    return 0;
  }
}

TEST(MsgpackReaderTest, SkipsWhatMsgpackCxxUnpacks) {
  std::mt19937_64 random(1);
  size_t whole = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::string bytes;
    const size_t size = 1 + random() % 24;
    // Half of the bytes begin something longer.
    while (bytes.size() < size) {
      bytes.push_back(static_cast<char>(random() % 2 == 0 ? random() % 256 : 0x80 + random() % 96));
      if (random() % 4 == 0) bytes.append(random() % 6, '\0');
    }
    const size_t expected = EndOf(bytes);
    MsgpackReader reader(bytes);
    const bool skipped = reader.Skip();
    ASSERT_EQ(skipped, expected > 0) << round;
    if (!skipped) continue;
    ++whole;
    ASSERT_EQ(bytes.size() - reader.remaining(), expected) << round;
  }
  EXPECT_GT(whole, 10'000u);
}

TEST(MsgpackReaderTest, SkipsEveryFirstByteAsMsgpackCxxDoes) {
  for (int first = 0; first < 256; ++first) {
    for (size_t size = 0; size < 300; ++size) {
      const std::string bytes = static_cast<char>(first) + std::string(size, '\x01');
      MsgpackReader reader(bytes);
      const size_t expected = EndOf(bytes);
      ASSERT_EQ(reader.Skip(), expected > 0) << first << " " << size;
      if (expected > 0) {
        ASSERT_EQ(bytes.size() - reader.remaining(), expected) << first;
      }
    }
  }
}

}  // namespace
}  // namespace kvatlas
