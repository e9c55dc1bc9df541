#include "indexer/transport/redis/redis_entry.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/security/record_keys.h"
#include "indexer/security/secret_file.h"
#include "indexer/stream/messages.h"
#include "indexer/transport/redis/redis_keys.h"

namespace kvatlas {
namespace {

Batch SomeBatch(size_t blocks) {
  Stored stored{.tier = Tier::kHost, .position = 3, .parent = SequenceHash{9}, .blocks = {}};
  for (size_t i = 0; i < blocks; ++i) {
    stored.blocks.push_back(SequenceHash{0x9e3779b97f4a7c15 * (i + 1)});
  }
  return {.number = 7, .events = {stored}, .load = {}, .digest = {}};
}

TEST(RedisEntryTest, AMessageComesBackAsItWas) {
  const RedisEntryId id = RedisEntryId::Of(5, 7);
  const SenderMessage message = SomeBatch(100);
  const auto back = DecodeRedisEntry(EncodeRedisEntry(message, id), id);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, message);
}

TEST(RedisEntryTest, ABlockTakesLittleMoreThanItsHash) {
  const std::string bytes = EncodeRedisEntry(SomeBatch(64), RedisEntryId::Of(5, 7));
  EXPECT_LE(bytes.size(), 64 * 8 + 64);
}

TEST(RedisEntryTest, EveryDamagedByteIsNoticed) {
  const RedisEntryId id = RedisEntryId::Of(5, 7);
  const std::string bytes = EncodeRedisEntry(SomeBatch(4), id);
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int bit : {0, 3, 7}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_EQ(DecodeRedisEntry(damaged, id).status().code(), absl::StatusCode::kDataLoss);
    }
    EXPECT_FALSE(DecodeRedisEntry(bytes.substr(0, i), id).ok());
  }
}

TEST(RedisEntryTest, AnEntryUnderAnotherIdIsNotTaken) {
  const std::string bytes = EncodeRedisEntry(SomeBatch(4), RedisEntryId::Of(5, 7));
  for (const RedisEntryId& id : {RedisEntryId::Of(5, 8), RedisEntryId::Of(6, 7),
                                 RedisEntryId::Of(5, 7, 1), RedisEntryId::Of(7, 5)}) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeRedisEntry(bytes, id).status())) << id.ToString();
  }
}

class RedisSealTest : public testing::Test {
 protected:
  RedisSealTest() {
    const std::string path = testing::TempDir() + "/redis_seal.key";
    EXPECT_TRUE(WriteFileByRename(path, "a key of thirty-two bytes or more", 0600).ok());
    keys_ = *RecordKeys::Read(path);
    EXPECT_TRUE(WriteFileByRename(path + "2", "another key of as many bytes......", 0600).ok());
    others_ = *RecordKeys::Read(path + "2");
  }

  std::shared_ptr<RecordKeys> keys_;
  std::shared_ptr<RecordKeys> others_;
};

TEST_F(RedisSealTest, ASignedEntryIsTakenInItsPlaceAlone) {
  const RedisEntryId id = RedisEntryId::Of(5, 7);
  const RedisSeal seal{.keys = keys_.get(), .cell = "a", .stream = "w|m"};
  const SenderMessage message = SomeBatch(4);
  const std::string bytes = EncodeRedisEntry(message, id, seal);
  const auto back = DecodeRedisEntry(bytes, id, seal);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, message);
  EXPECT_LE(EncodeRedisEntry(SomeBatch(64), id, seal).size(), 64 * 8 + 96);
  const auto refused = [&](const RedisEntryId& as, const RedisSeal& by) {
    return absl::IsUnauthenticated(DecodeRedisEntry(bytes, as, by).status());
  };
  EXPECT_TRUE(refused(RedisEntryId::Of(5, 8), seal)) << "moved in its log";
  EXPECT_TRUE(refused(RedisEntryId::Of(6, 7), seal)) << "of another epoch";
  RedisSeal other = seal;
  other.stream = "v|m";
  EXPECT_TRUE(refused(id, other)) << "of another stream";
  other = seal;
  other.cell = "b";
  EXPECT_TRUE(refused(id, other)) << "of another cell";
  other = seal;
  other.snapshot = true;
  EXPECT_TRUE(refused(id, other)) << "of a log in a snapshot";
  other = seal;
  other.keys = others_.get();
  EXPECT_TRUE(refused(id, other)) << "of another key";
  EXPECT_TRUE(absl::IsDataLoss(DecodeRedisEntry(bytes, id).status())) << "without a key";
  EXPECT_TRUE(
      absl::IsUnauthenticated(DecodeRedisEntry(EncodeRedisEntry(message, id), id, seal).status()))
      << "not signed";
}

TEST_F(RedisSealTest, EveryForgedByteIsNoticed) {
  const RedisEntryId id = RedisEntryId::Of(5, 7);
  const RedisSeal seal{.keys = keys_.get(), .cell = "a", .stream = "w|m"};
  const std::string bytes = EncodeRedisEntry(SomeBatch(4), id, seal);
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string forged = bytes;
    forged[i] = static_cast<char>(forged[i] ^ 4);
    EXPECT_FALSE(DecodeRedisEntry(forged, id, seal).ok()) << i;
    EXPECT_FALSE(DecodeRedisEntry(bytes.substr(0, i), id, seal).ok()) << i;
  }
}

TEST(RedisEntryTest, BytesOfAnyKindAreRefusedWithoutHarm) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(random() % 64, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (!bytes.empty()) bytes[0] = 1;
    EXPECT_FALSE(DecodeRedisEntry(bytes, RedisEntryId::Of(1, 1)).ok());
  }
}

TEST(RedisKeysTest, IdsAreReadBack) {
  const RedisEntryId id = RedisEntryId::Of(1763765404000000000, 123456, 77);
  EXPECT_EQ(RedisEntryId::Parse(id.ToString()), id);
  EXPECT_EQ(id.number(), 123456u);
  EXPECT_EQ(id.part(), 77u);
  EXPECT_LT(RedisEntryId::Before(9, 5), RedisEntryId::Of(9, 5));
  EXPECT_GT(RedisEntryId::Before(9, 5), RedisEntryId::Of(9, 4, kRedisPartsMax - 2));
  for (const char* text :
       {"", "1", "-", "1-", "-1", "a-1", "1-b", "1-2-3", "99999999999999999999-1"}) {
    EXPECT_FALSE(RedisEntryId::Parse(text).has_value()) << text;
  }
}

TEST(RedisKeysTest, EveryStreamHasANameOfItsOwnInsideTheTagOfItsShard) {
  std::set<std::string> names;
  for (const char* name : {"a", "a/1", "a|b", "{a}", "a%2F1", "a@r"}) {
    for (const char* model : {"m", "m|t", "|m"}) {
      for (const char* tenant : {"", "t", "|"}) {
        EXPECT_TRUE(names.insert(RedisStreamName({name, 1, ""}, {model, tenant})).second);
        EXPECT_TRUE(names.insert(RedisStreamName({name, 1, "r"}, {model, tenant})).second);
      }
    }
  }
  EXPECT_EQ(RedisTag("a}b{", 3), "{kvatlas:a%7Db%7B:3}");
  EXPECT_EQ(RedisPadded(12), "00000000000000000012");
  EXPECT_EQ(ParseUint64(RedisHex(0xabcdef), 16), 0xabcdefu);
}

}  // namespace
}  // namespace kvatlas
