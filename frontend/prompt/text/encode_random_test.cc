// Our own encoder, cuts and the store of prefixes must give the tokens that the library gives for
// the whole text: random texts that grow turn by turn, for every form of tokenizer. KVATLAS_CASES:
// texts per form; KVATLAS_SEED repeats a run.

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "frontend/prompt/text/text_test_util.h"
#include "frontend/prompt/text/token_cache.h"
#include "frontend/prompt/text/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/test_seed.h"

namespace kvatlas {
namespace {

uint64_t Setting(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

uint64_t Seed() {
  static const uint64_t seed = TestSeed();
  return seed;
}

std::string Shown(std::string_view text) {
  return absl::Utf8SafeCEscape(absl::string_view(text.data(), text.size()));
}

// Mostly some hundred bytes, now and then some thousand.
size_t TurnBytes(Random& random) { return 1 + random() % (random() % 8 == 0 ? 4000 : 300); }

class EncodeRandomTest : public ::testing::TestWithParam<std::string> {};

// 1. Every cut at once, and one of them as the start of a second call.
// 2. Through stores of prefixes, one ample and one so small that it forgets.
TEST_P(EncodeRandomTest, TokensAreThoseOfTheWholeText) {
  const auto tokenizer = LoadTokenizerForm(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  TokenCache ample(size_t{64} << 20), small(20'000);
  Random random(Seed());
  std::vector<std::string> chats(4);
  const uint64_t cases = Setting("KVATLAS_CASES", 150);
  for (uint64_t i = 0; i < cases; ++i) {
    std::string& text = chats[random() % chats.size()];
    if (random() % 5 == 0) text = chats[random() % chats.size()];
    if (random() % 5 == 0) text = CutAnywhere(text, random);
    if (text.size() > 8000) text.clear();
    text += RandomText(random, TurnBytes(random));
    const std::vector<TokenId> whole = WholeTokens(*tokenizer, text);

    std::vector<TokenId> tokens;
    std::vector<TokenCut> cuts;
    ASSERT_TRUE(tokenizer->Encode(text, 0, 1, tokens, &cuts).ok());
    ASSERT_EQ(tokens, whole) << "in all pieces, seed " << Seed() << ": \"" << Shown(text) << "\"";
    if (!cuts.empty()) {
      const TokenCut& cut = cuts[random() % cuts.size()];
      tokens.resize(cut.tokens);
      ASSERT_TRUE(tokenizer->Encode(text, cut.bytes, kOnePiece - 1, tokens, nullptr).ok());
      ASSERT_EQ(tokens, whole) << "cut at " << cut.bytes << ", seed " << Seed() << ": \""
                               << Shown(text) << "\"";
    }
    for (TokenCache* cache : {&ample, &small}) {
      const auto reused = cache->Encode(*tokenizer, text, tokens);
      ASSERT_TRUE(reused.ok());
      ASSERT_EQ(tokens, whole) << *reused << " from the store, seed " << Seed() << ": \""
                               << Shown(text) << "\"";
    }
  }
}

// Ordinary text has cuts for every tokenizer, except where no cut can be proved.
TEST_P(EncodeRandomTest, ANextTurnCostsItsNewPartAlone) {
  const auto tokenizer = LoadTokenizerForm(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  std::string text;
  for (int i = 0; i < 400; ++i) text += "Some words of a long answer, and then more of them. ";
  TokenCache cache(size_t{64} << 20);
  std::vector<TokenId> tokens;
  ASSERT_TRUE(cache.Encode(*tokenizer, text, tokens).ok());
  const size_t before = tokens.size();
  const auto reused = cache.Encode(*tokenizer, text + "One more question?", tokens);
  ASSERT_TRUE(reused.ok());
  const std::vector<std::string> without = {"bytes_strange", "unigram_whole", "sentences"};
  if (std::find(without.begin(), without.end(), GetParam()) != without.end()) {
    EXPECT_EQ(*reused, 0u);
  } else {
    EXPECT_GT(*reused, before * 19 / 20);
  }
}

void AppendUtf8(uint32_t c, std::string& text) {
  if (c < 0x80) {
    text += static_cast<char>(c);
    return;
  }
  const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  constexpr uint32_t kFirst[] = {0, 0xc0, 0xe0, 0xf0};
  text += static_cast<char>(kFirst[more] | c >> (6 * more));
  for (int i = more; i-- > 0;) text += static_cast<char>(0x80 | (c >> (6 * i) & 0x3f));
}

// Each character beside each kind of neighbour, and in front of a letter as in contractions.
TEST_P(EncodeRandomTest, EveryCharacterIsWhatTheLibraryTakesItFor) {
  const auto tokenizer = LoadTokenizerForm(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const uint32_t step = static_cast<uint32_t>(Setting("KVATLAS_CHARACTER_STEP", 499));
  uint32_t c = 1 + Seed() % step;
  while (c < 0x110000) {
    std::string text;
    for (; c < 0x110000 && text.size() < 4000; c += step) {
      if (c >= 0xd800 && c < 0xe000) continue;
      for (const char* before : {"a", "'", "", " ", "\n", "1", "'l", "!", "A", " '"}) {
        text += before;
        AppendUtf8(c, text);
      }
    }
    std::vector<TokenId> tokens;
    ASSERT_TRUE(tokenizer->Encode(text, 0, 1, tokens, nullptr).ok());
    ASSERT_EQ(tokens, WholeTokens(*tokenizer, text))
        << "up to U+" << std::hex << c << ", seed " << std::dec << Seed();
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, EncodeRandomTest, ::testing::ValuesIn(TokenizerForms()),
                         [](const auto& form) { return form.param; });

}  // namespace
}  // namespace kvatlas
