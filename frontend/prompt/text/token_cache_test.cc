#include "frontend/prompt/text/token_cache.h"

#include <malloc.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

// A token per byte, and a cut everywhere.
class ByteTokenizer : public Tokenizer {
 public:
  absl::Status Encode(std::string_view text, size_t from, size_t piece_bytes_min,
                      std::vector<TokenId>& tokens, std::vector<TokenCut>* cuts) const override {
    for (size_t at = from; at < text.size(); ++at) {
      if (at > from && (at - from) % piece_bytes_min == 0 && cuts != nullptr) {
        cuts->push_back({at - from, at - from});
      }
      tokens.push_back(static_cast<unsigned char>(text[at]));
      ++encoded_bytes;
    }
    return absl::OkStatus();
  }
  const TokenizerFacts& facts() const override { return facts_; }

  mutable size_t encoded_bytes = 0;

 private:
  TokenizerFacts facts_;
};

std::string Text(int number, size_t size) {
  std::string text = absl::StrCat(number, " ");
  while (text.size() < size) text += absl::StrCat(text.size(), ",");
  text.resize(size);
  return text;
}

TEST(TokenCacheTest, OnlyTheTailIsEncodedAgain) {
  ByteTokenizer tokenizer;
  TokenCache cache(size_t{1} << 20);
  std::vector<TokenId> tokens;
  const std::string text = Text(1, 100'000);
  ASSERT_TRUE(cache.Encode(tokenizer, text, tokens).ok());
  EXPECT_EQ(tokenizer.encoded_bytes, text.size());
  const std::string next = text + "more";
  ASSERT_TRUE(cache.Encode(tokenizer, next, tokens).ok());
  EXPECT_LT(tokenizer.encoded_bytes, text.size() + TokenCache::kChunkBytes + 256);
  EXPECT_EQ(tokens, std::vector<TokenId>(next.begin(), next.end()));
  const TokenCache::Stats stats = cache.stats();
  EXPECT_EQ(stats.asked_bytes, 2 * text.size() + 4);
  EXPECT_GT(stats.known_bytes, text.size() - TokenCache::kChunkBytes - 256);
}

TEST(TokenCacheTest, WhatWasUsedLongestAgoIsForgottenFirst) {
  ByteTokenizer tokenizer;
  // About three of these texts.
  TokenCache cache(3 * (10'000 * 5 + 20 * 400));
  std::vector<TokenId> tokens;
  for (const int number : {1, 2, 3, 1, 4}) {
    ASSERT_TRUE(cache.Encode(tokenizer, Text(number, 10'000), tokens).ok());
  }
  EXPECT_GT(cache.Encode(tokenizer, Text(1, 10'000), tokens).value(), 9000u);
  EXPECT_LT(cache.Encode(tokenizer, Text(2, 10'000), tokens).value(), 9000u);
}

// Compares the count of bytes with what the allocator gave out.
TEST(TokenCacheTest, CountsAllMemoryThatItHolds) {
  ByteTokenizer tokenizer;
  for (const int texts : {30, 70, 200}) {
    std::vector<TokenId> tokens;
    tokens.reserve(40'000);
    const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    TokenCache cache(size_t{64} << 20);
    for (int i = 0; i < texts; ++i) {
      ASSERT_TRUE(cache.Encode(tokenizer, Text(i, 20'000), tokens).ok());
    }
    const size_t held = mallinfo2().uordblks + mallinfo2().hblkhd - before;
    EXPECT_LT(held, cache.stats().bytes) << texts << " texts";
    EXPECT_GT(held, cache.stats().bytes * 3 / 4) << texts << " texts";
  }
}

TEST(TokenCacheTest, StaysBelowItsBound) {
  ByteTokenizer tokenizer;
  TokenCache cache(300'000);
  std::vector<TokenId> tokens;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(cache.Encode(tokenizer, Text(i, 1 + i * 300), tokens).ok());
    EXPECT_LE(cache.stats().bytes, 300'000u);
  }
  EXPECT_GT(cache.stats().evicted_chunks, 0u);
}

}  // namespace
}  // namespace kvatlas
