#include "publisher/record_buffer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvatlas {
namespace {

TEST(RecordBufferTest, GivesBackWhatWasAppendedInOrder) {
  RecordBuffer buffer;
  for (int round = 0; round < 3; ++round) {
    size_t blocks = 0;
    for (size_t n = 0; n < 50; ++n) {
      const std::vector<uint64_t> hashes(n, n);
      const std::vector<TokenId> tokens(3 * n, static_cast<TokenId>(n));
      const std::string lora(n, 'l'), salt(n / 2, 's');
      Record record{.kind = Record::kStored, .tier = Tier::kHost};
      record.has_parent = n % 2 == 0;
      record.parent = n + 1;
      record.hashes = hashes;
      record.tokens = tokens;
      record.lora_name = lora;
      record.cache_salt = salt;
      const size_t before = buffer.bytes();
      buffer.Append(record);
      EXPECT_EQ(buffer.bytes() - before, RecordBuffer::BytesOf(record));
      Record load{.kind = Record::kLoad};
      load.load.used_blocks = n;
      buffer.Append(load);
      const std::string payload(1 + 100 * n, 'p');
      Record batch{.kind = Record::kEngineBatch};
      batch.payload = payload;
      blocks += n + RecordBuffer::BlocksOf(batch);
      buffer.Append(batch);
    }
    EXPECT_EQ(buffer.blocks(), blocks);
    Record record;
    for (size_t n = 0; n < 50; ++n) {
      ASSERT_TRUE(buffer.Next(&record));
      EXPECT_EQ(record.kind, Record::kStored);
      EXPECT_EQ(record.tier, Tier::kHost);
      EXPECT_EQ(record.has_parent, n % 2 == 0);
      EXPECT_EQ(record.parent, n + 1);
      EXPECT_EQ(std::vector<uint64_t>(record.hashes.begin(), record.hashes.end()),
                std::vector<uint64_t>(n, n));
      EXPECT_EQ(record.tokens.size(), 3 * n);
      EXPECT_EQ(record.lora_name, std::string(n, 'l'));
      EXPECT_EQ(record.cache_salt, std::string(n / 2, 's'));
      ASSERT_TRUE(buffer.Next(&record));
      EXPECT_EQ(record.load.used_blocks, n);
      ASSERT_TRUE(buffer.Next(&record));
      EXPECT_EQ(record.kind, Record::kEngineBatch);
      EXPECT_EQ(record.payload, std::string(1 + 100 * n, 'p'));
    }
    EXPECT_FALSE(buffer.Next(&record));
    EXPECT_EQ(buffer.bytes(), 0);
    EXPECT_EQ(buffer.blocks(), 0);
    EXPECT_TRUE(buffer.empty());
    buffer.Clear();
  }
}

}  // namespace
}  // namespace kvatlas
