#include "indexer/kv_events/sglang_block_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>

#include "absl/container/flat_hash_map.h"

namespace kvatlas {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr size_t kVisitCalls = 32;

// Signed, as they are on the wire.
std::vector<int64_t> NamesOf(std::vector<TokenId> tokens, size_t page, bool bigrams = false) {
  PageHasher hasher;
  std::vector<int64_t> names;
  std::optional<PageDigest> prior;
  const size_t window = page + (bigrams ? 1 : 0);
  for (size_t i = 0; i + window <= tokens.size(); i += page) {
    prior = hasher.Hash(prior.has_value() ? &*prior : nullptr, std::span(tokens).subspan(i, window),
                        bigrams);
    names.push_back(static_cast<int64_t>(PageNameOf(prior.value())));
  }
  return names;
}

std::unique_ptr<SglangBlockHashes> Make(uint64_t names_max = 1 << 16) {
  return SglangBlockHashes::Create({.names_max = names_max});
}

std::vector<uint64_t> Prefix(const SglangBlockHashes& names, std::vector<uint64_t> asked) {
  std::vector<SequenceHash> blocks;
  names.FindPrefix(asked, &blocks);
  std::vector<uint64_t> raw;
  for (SequenceHash block : blocks) raw.push_back(Raw(block));
  return raw;
}

void Visit(SglangBlockHashes* names, const std::function<bool(SequenceHash)>& may_hold) {
  for (size_t i = 0; i < kVisitCalls; ++i) names->Sweep(SIZE_MAX, may_hold);
}

// ---- What a page is called ----

TEST(PageHasherTest, NamesAreThoseOfSGLangsOwnTests) {
  EXPECT_THAT(NamesOf({10, 20, 30, 40, 50, 60, 70, 80}, 2),
              ElementsAre(978178666101069530, -895308556211281782, -8033692805846017938,
                          835415944263129316));
}

TEST(PageHasherTest, AFirstPageHasNoPriorDigest) {
  EXPECT_THAT(NamesOf({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, 16),
              ElementsAre(8635429971592222890));
}

TEST(PageHasherTest, BothTokensOfABigramAreHashed) {
  // (1,2), (2,3) are the tokens 1 2 2 3; the next page begins with the window's last token.
  EXPECT_EQ(NamesOf({1, 2, 3, 4, 5}, 2, /*bigrams=*/true), NamesOf({1, 2, 2, 3, 3, 4, 4, 5}, 4));
}

// ---- The table ----

TEST(PageNamesTest, APrefixEndsAtTheFirstNameThatIsNotKnown) {
  const std::unique_ptr<SglangBlockHashes> names = Make();
  names->Name(11, SequenceHash{1}, true);
  names->Name(12, SequenceHash{2}, true);
  names->Name(14, SequenceHash{4}, true);
  EXPECT_THAT(Prefix(*names, {11, 12, 13, 14}), ElementsAre(1, 2));
  EXPECT_THAT(Prefix(*names, {13, 11}), IsEmpty());
  EXPECT_THAT(Prefix(*names, {}), IsEmpty());
  EXPECT_EQ(names->Find(14), SequenceHash{4});
  EXPECT_EQ(names->Find(13), std::nullopt);
}

TEST(PageNamesTest, ZeroIsANameLikeAnyOther) {
  const std::unique_ptr<SglangBlockHashes> names = Make();
  EXPECT_EQ(names->Find(0), std::nullopt);
  names->Name(0, SequenceHash{7}, true);
  EXPECT_EQ(names->Find(0), SequenceHash{7});
}

TEST(PageNamesTest, OfTwoBlocksUnderOneNameThePlainOneIsMeant) {
  const std::unique_ptr<SglangBlockHashes> names = Make();
  names->Name(1, SequenceHash{10}, /*plain=*/false);
  names->Name(1, SequenceHash{11}, /*plain=*/false);
  EXPECT_EQ(names->Find(1), SequenceHash{10}) << "the first stays";
  names->Name(1, SequenceHash{12}, /*plain=*/true);
  EXPECT_EQ(names->Find(1), SequenceHash{12});
  names->Name(1, SequenceHash{10}, /*plain=*/false);
  EXPECT_EQ(names->Find(1), SequenceHash{12});
  EXPECT_EQ(names->Stats().conflicts, 3u);
}

TEST(PageNamesTest, ItsBoundIsKeptAndSaid) {
  const std::unique_ptr<SglangBlockHashes> names = Make(/*names_max=*/256 * 20);
  for (uint64_t i = 1; i <= 20000; ++i) {
    names->Name(i * 7919, SequenceHash{i}, true);
    names->PutDigest(SequenceHash{i}, {});
  }
  const PageNamesStats stats = names->Stats();
  EXPECT_EQ(stats.names, 256u * 20);
  EXPECT_EQ(stats.digests, 256u * 20);
  EXPECT_EQ(stats.refused, 2 * (20000u - 256 * 20));
}

TEST(PageNamesTest, ANameGoesWhenTwoVisitsFoundNothingThatHoldsItsBlock) {
  const std::unique_ptr<SglangBlockHashes> names = Make();
  for (uint64_t i = 1; i <= 1000; ++i) {
    names->Name(i, SequenceHash{i}, true);
    names->PutDigest(SequenceHash{i}, {});
  }
  const auto odd = [](SequenceHash block) { return Raw(block) % 2 != 0; };
  Visit(names.get(), odd);
  EXPECT_EQ(names->Stats().names, 1000u) << "its event may be on its way to the index";
  Visit(names.get(), odd);
  EXPECT_EQ(names->Stats().names, 500u);
  EXPECT_EQ(names->Stats().digests, 500u);
  EXPECT_EQ(names->Stats().swept, 500u);
  EXPECT_EQ(names->Find(2), std::nullopt);
  EXPECT_EQ(names->Find(3), SequenceHash{3});
}

TEST(PageNamesTest, ANameThatIsSaidAgainIsASuspectNoMore) {
  const std::unique_ptr<SglangBlockHashes> names = Make();
  names->Name(1, SequenceHash{1}, true);
  names->PutDigest(SequenceHash{1}, {});
  const auto none = [](SequenceHash) { return false; };
  for (int i = 0; i < 5; ++i) {
    Visit(names.get(), none);
    names->Name(1, SequenceHash{1}, true);
    EXPECT_TRUE(names->FindDigest(SequenceHash{1}).has_value());
  }
  EXPECT_EQ(names->Find(1), SequenceHash{1});
  Visit(names.get(), none);
  Visit(names.get(), [](SequenceHash) { return true; });
  Visit(names.get(), none);
  EXPECT_EQ(names->Find(1), SequenceHash{1}) << "two visits in a row";
  Visit(names.get(), none);
  EXPECT_EQ(names->Find(1), std::nullopt);
}

TEST(PageNamesTest, MemoryGoesWithTheNames) {
  const std::unique_ptr<SglangBlockHashes> names = Make(1 << 20);
  const uint64_t empty = names->Stats().bytes;
  for (uint64_t i = 1; i <= 200000; ++i) {
    names->Name(i, SequenceHash{i}, true);
    names->PutDigest(SequenceHash{i}, {});
  }
  const double name = static_cast<double>(names->Stats().bytes - empty) / 200000;
  EXPECT_GE(name, 21 + 47);
  EXPECT_LE(name, 43 + 94);
  const auto none = [](SequenceHash) { return false; };
  Visit(names.get(), none);
  Visit(names.get(), none);
  Visit(names.get(), none);
  EXPECT_EQ(names->Stats().names, 0u);
  EXPECT_LE(names->Stats().bytes, empty + 256 * (16 * 16 + 1024));
}

// The slow twin: a map.
TEST(PageNamesTest, EqualsAMapUnderRandomOperations) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    const std::unique_ptr<SglangBlockHashes> names = Make();
    absl::flat_hash_map<uint64_t, std::pair<uint64_t, bool>> twin;  // name: block, suspect
    std::string did;
    const uint64_t range = seed % 2 == 0 ? 300 : 30000;
    for (int op = 0; op < 3000; ++op) {
      const uint64_t name = random() % range * 0x100000001;
      const uint64_t choice = random() % 1000;
      if (choice < 980) {
        const uint64_t block = name % 5 + name + 1 + random() % 50 / 49;
        const bool plain = random() % 4 != 0;
        did += "names->Name(" + std::to_string(name) + ", SequenceHash{" + std::to_string(block) +
               "}, " + (plain ? "true" : "false") + ");\n";
        names->Name(name, SequenceHash{block}, plain);
        const auto [it, is_new] = twin.try_emplace(name, block, false);
        if (plain) it->second.first = block;
        it->second.second = false;
      } else {
        const uint64_t divisor = 2 + random() % 3;
        did += "Visit(names.get(), [](SequenceHash b) { return Raw(b) % " +
               std::to_string(divisor) + " != 0; });\n";
        Visit(names.get(), [&](SequenceHash block) { return Raw(block) % divisor != 0; });
        absl::erase_if(twin, [&](const auto& each) {
          return each.second.second && each.second.first % divisor == 0;
        });
        for (auto& [of, block] : twin) block.second = block.first % divisor == 0;
      }
      const auto found = twin.find(name);
      const std::optional<SequenceHash> expected =
          found == twin.end() ? std::nullopt : std::optional(SequenceHash{found->second.first});
      ASSERT_EQ(names->Find(name), expected) << "seed " << seed << "\n" << did;
    }
    ASSERT_EQ(names->Stats().names, twin.size()) << "seed " << seed;
    std::vector<uint64_t> all;
    std::vector<uint64_t> blocks;
    for (const auto& [name, block] : twin) {
      all.push_back(name);
      blocks.push_back(block.first);
    }
    ASSERT_EQ(Prefix(*names, all), blocks) << "seed " << seed;
  }
}

// Readers see each of the names that stay, whatever comes and goes beside them.
TEST(PageNamesTest, ReadersMissNothingWhileOthersWrite) {
  const std::unique_ptr<SglangBlockHashes> names = Make(1 << 18);
  std::vector<uint64_t> stay;
  for (uint64_t i = 1; i <= 2000; ++i) {
    stay.push_back(i);
    names->Name(i, SequenceHash{i}, true);
  }
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> missed{0}, read{0};
  std::thread reader([&] {
    std::vector<SequenceHash> blocks;
    while (!stop.load()) {
      names->FindPrefix(stay, &blocks);
      missed += stay.size() - blocks.size();
      for (size_t i = 0; i < blocks.size(); ++i) missed += Raw(blocks[i]) != stay[i];
      ++read;
    }
  });
  for (int round = 0; round < 3 || read.load() < 3; ++round) {
    for (uint64_t i = 10000; i < 60000; ++i) names->Name(i, SequenceHash{i}, true);
    for (int visit = 0; visit < 2; ++visit)
      Visit(names.get(), [](SequenceHash block) { return Raw(block) < 10000; });
  }
  stop = true;
  reader.join();
  EXPECT_EQ(missed.load(), 0u);
  EXPECT_EQ(names->Stats().names, 2000u);
}

// ---- One rank ----

class PageNamerTest : public testing::Test {
 protected:
  // Blocks of two tokens under these names; blocks are numbered from `first` on.
  void Place(PageNamer* namer, const std::vector<int64_t>& called,
             const std::vector<TokenId>& tokens, uint64_t first, bool plain = true) {
    for (size_t i = 0; i < called.size(); ++i)
      namer->Placed({.name = {.value = static_cast<uint64_t>(called[i]), .bytes = {}},
                     .block = SequenceHash{first + i},
                     .parent = i == 0 ? kNoParent : SequenceHash{first + i - 1},
                     .tokens = std::span(tokens).subspan(i * 2, 2),
                     .plain = plain});
  }
  std::vector<uint64_t> Ask(const std::vector<int64_t>& called) {
    return Prefix(*names_, std::vector<uint64_t>(called.begin(), called.end()));
  }

  const std::vector<TokenId> tokens_ = {10, 20, 30, 40, 50, 60};
  const std::vector<int64_t> pages_ = NamesOf(tokens_, 2);
  const std::unique_ptr<SglangBlockHashes> names_ = Make();
};

TEST_F(PageNamerTest, NamesOfOtherEnginesAreComputed) {
  PageNamer namer(names_.get(), false);
  Place(&namer, {1, 2, 3}, tokens_, 100);
  EXPECT_THAT(Ask(pages_), ElementsAre(100, 101, 102));
  EXPECT_THAT(Ask({1}), IsEmpty()) << "its own names mean nothing to a router";
  EXPECT_EQ(names_->Stats().digests, 3u);
}

TEST_F(PageNamerTest, TheNamesOfOneThatIsSGLangAreTaken) {
  PageNamer namer(names_.get(), true);
  Place(&namer, {-1, 2, 3}, tokens_, 100);
  EXPECT_THAT(Ask({-1, 2, 3}), ElementsAre(100, 101, 102));
  EXPECT_EQ(names_->Stats().digests, 0u);
  namer.Restored({.value = 9, .bytes = {}}, SequenceHash{109}, true);
  EXPECT_THAT(Ask({9}), ElementsAre(109));
}

TEST_F(PageNamerTest, OneWhoseNamesAreTheComputedOnesIsTakenForSGLang) {
  PageNamer namer(names_.get(), false);
  Place(&namer, {5, 6}, tokens_, 200, /*plain=*/false);
  EXPECT_THAT(Ask({5}), IsEmpty()) << "not known yet";
  Place(&namer, pages_, tokens_, 100);
  EXPECT_THAT(Ask(pages_), ElementsAre(100, 101, 102));
  EXPECT_EQ(names_->Stats().digests, 1u) << "none after the first";
  Place(&namer, {5, 6}, tokens_, 200, /*plain=*/false);
  EXPECT_THAT(Ask({5, 6}), ElementsAre(200, 201)) << "salted ones by what their events say";
  // Another engine at the same address.
  Place(&namer, {7}, {1, 2}, 300);
  Place(&namer, {8}, {1, 2}, 400, /*plain=*/false);
  EXPECT_THAT(Ask({7}), IsEmpty());
  EXPECT_THAT(Ask({8}), IsEmpty());
  EXPECT_THAT(Ask(NamesOf({1, 2}, 2)), ElementsAre(300));
}

TEST_F(PageNamerTest, ARestartForgetsWhatWasFoundOut) {
  PageNamer namer(names_.get(), false);
  Place(&namer, pages_, tokens_, 100);
  namer.Restarted();
  Place(&namer, {5}, tokens_, 200, /*plain=*/false);
  EXPECT_THAT(Ask({5}), IsEmpty());
}

TEST_F(PageNamerTest, BehindABlockThatCannotBeNamedNothingIs) {
  PageNamer namer(names_.get(), false);
  Place(&namer, {1}, tokens_, 100, /*plain=*/false);
  namer.Placed({.name = {.value = 2, .bytes = {}},
                .block = SequenceHash{101},
                .parent = SequenceHash{100},
                .tokens = std::span(tokens_).subspan(2, 2),
                .plain = true});
  EXPECT_EQ(names_->Stats().names, 0u);
}

TEST_F(PageNamerTest, RanksShareDigests) {
  PageNamer a(names_.get(), false), b(names_.get(), false);
  Place(&a, {1, 2}, {10, 20, 30, 40}, 100);
  // It goes on behind what the other one told.
  b.Placed({.name = {.value = 3, .bytes = {}},
            .block = SequenceHash{102},
            .parent = SequenceHash{101},
            .tokens = std::span(tokens_).subspan(4, 2),
            .plain = true});
  EXPECT_THAT(Ask(pages_), ElementsAre(100, 101, 102));
}

TEST_F(PageNamerTest, WithoutATableItDoesNothing) {
  PageNamer namer(nullptr, false);
  EXPECT_FALSE(namer.on());
  Place(&namer, pages_, tokens_, 100);
}

}  // namespace
}  // namespace kvatlas
