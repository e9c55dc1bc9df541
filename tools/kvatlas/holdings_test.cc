#include "tools/kvatlas/holdings.h"
#include "indexer/base/test_seed.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

HolderKey Key(const std::string& worker, uint32_t rank = 0) {
  return {Domain{"m", ""}, HolderId{worker, rank, ""}};
}

TEST(SourceTest, NamesAKindAndAPlace) {
  EXPECT_EQ(Source::Parse("leaf=127.0.0.1:7410")->kind, SourceKind::kLeaf);
  EXPECT_EQ(Source::Parse("relay=[::1]:8093")->where, "[::1]:8093");
  EXPECT_EQ(Source::Parse("file=/a=b")->where, "/a=b");
  EXPECT_EQ(Source::Parse("checkpoint=c")->ToString(), "checkpoint=c");
  for (const char* bad : {"", "leaf", "leaf=", "leaf=nonsense", "tape=x", "=x"})
    EXPECT_TRUE(absl::IsInvalidArgument(Source::Parse(bad).status())) << bad;
}

TEST(CompareTest, NamesWhatOnlyOneSideHas) {
  AllHoldings left, right;
  left[Key("w")].blocks[0] = {1, 2, 3};
  right[Key("w")].blocks[0] = {2, 3, 4, 5};
  right[Key("w")].blocks[1] = {2};
  const std::vector<Difference> differences = Compare(left, right, false, false);
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].tier, Tier::kDevice);
  EXPECT_EQ(differences[0].only_left, (std::set<uint64_t>{1}));
  EXPECT_EQ(differences[0].only_right, (std::set<uint64_t>{4, 5}));
  EXPECT_EQ(differences[1].tier, Tier::kHost);
  EXPECT_TRUE(Compare(left, left, false, false).empty());
}

TEST(CompareTest, SideBlocksAreASetOfTheirOwn) {
  AllHoldings left, right;
  left[Key("w")].blocks[0] = right[Key("w")].blocks[0] = {1, 2};
  left[Key("w")].sides["state"][0] = {7, 8};
  right[Key("w")].sides["state"][0] = {8, 9};
  const std::vector<Difference> differences = Compare(left, right, false, false);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_TRUE(differences[0].sides);
  EXPECT_EQ(differences[0].side, "state");
  EXPECT_EQ(differences[0].only_left, (std::set<uint64_t>{7}));
  EXPECT_EQ(differences[0].only_right, (std::set<uint64_t>{9}));
  // The same names as main blocks are another difference.
  AllHoldings main;
  main[Key("w")].blocks[0] = {1, 2, 7, 8};
  EXPECT_EQ(Compare(left, main, false, false).size(), 2u);
  EXPECT_TRUE(Persisting(Compare(left, {}, false, false), Compare(left, {}, false, false)).size() ==
              2u);
}

TEST(CompareTest, EachSideClassDiffersByItself) {
  AllHoldings left, right;
  left[Key("w")].sides["window:127"][0] = {1, 2, 3};
  left[Key("w")].sides["state"][0] = {11, 12};
  right[Key("w")].sides["window:127"][0] = {1, 3};
  right[Key("w")].sides["state"][0] = {11, 12, 13};
  const std::vector<Difference> differences = Compare(left, right, false, false);
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].side, "state");
  EXPECT_EQ(differences[0].only_right, (std::set<uint64_t>{13}));
  EXPECT_EQ(differences[1].side, "window:127");
  EXPECT_EQ(differences[1].only_left, (std::set<uint64_t>{2}));
  EXPECT_EQ(Persisting(differences, differences).size(), 2u);
  // A teller from before classes were told, on either side.
  AllHoldings old;
  old[Key("w")].sides[""][0] = {1, 3, 11, 12, 14};
  const std::vector<Difference> beside = Compare(left, old, false, false);
  ASSERT_EQ(beside.size(), 2u);
  EXPECT_EQ(beside[0].side, "");
  EXPECT_EQ(beside[0].only_right, (std::set<uint64_t>{14}));
  EXPECT_EQ(beside[1].side, "window:127");
  EXPECT_EQ(beside[1].only_left, (std::set<uint64_t>{2}));
  EXPECT_EQ(Compare(old, left, false, false).size(), 2u);
}

TEST(CompareTest, ARelayIsNotBlamedForWorkersThatAreNotItsOwn) {
  AllHoldings leaf, relay;
  leaf[Key("w")].blocks[0] = {1};
  leaf[Key("other")].blocks[0] = {9};
  relay[Key("w")].blocks[0] = {1};
  EXPECT_TRUE(Compare(leaf, relay, false, /*only_holders_of_right=*/true).empty());
  EXPECT_TRUE(Compare(relay, leaf, /*only_holders_of_left=*/true, false).empty());
  EXPECT_EQ(Compare(leaf, relay, false, false).size(), 1u);
  // But for what the leaf lacks of them.
  relay[Key("w", 1)].blocks[0] = {2};
  EXPECT_EQ(Compare(leaf, relay, false, /*only_holders_of_right=*/true).size(), 1u);
}

TEST(CompareTest, OnlyWhatDiffersEveryTimePersists) {
  AllHoldings empty, first, second;
  first[Key("w")].blocks[0] = {1, 2};
  first[Key("v")].blocks[0] = {7};
  second[Key("w")].blocks[0] = {2, 3};
  const std::vector<Difference> both =
      Persisting(Compare(first, empty, false, false), Compare(second, empty, false, false));
  ASSERT_EQ(both.size(), 1u);
  EXPECT_EQ(both[0].only_left, (std::set<uint64_t>{2}));
  EXPECT_TRUE(Persisting(both, {}).empty());
}

// Against a slow twin: every (holder, tier, block), one by one.
TEST(CompareTest, AgreesWithComparingOneByOne) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(SeedText(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    AllHoldings sides[2];
    for (AllHoldings& side : sides)
      for (int i = 0; i < 30; ++i)
        side[Key("w" + std::to_string(random() % 3), random() % 2)]
            .blocks[random() % kTiers]
            .insert(random() % 10);
    size_t only_left = 0, only_right = 0;
    for (int w = 0; w < 3; ++w) {
      for (uint32_t rank = 0; rank < 2; ++rank) {
        for (size_t tier = 0; tier < kTiers; ++tier) {
          for (uint64_t block = 0; block < 10; ++block) {
            const HolderKey key = Key("w" + std::to_string(w), rank);
            const bool left = sides[0].contains(key) && sides[0][key].blocks[tier].contains(block);
            const bool right = sides[1].contains(key) && sides[1][key].blocks[tier].contains(block);
            only_left += left && !right;
            only_right += right && !left;
          }
        }
      }
    }
    for (const Difference& difference : Compare(sides[0], sides[1], false, false)) {
      only_left -= difference.only_left.size();
      only_right -= difference.only_right.size();
    }
    EXPECT_EQ(only_left, 0u);
    EXPECT_EQ(only_right, 0u);
  }
}

TEST(LoadTest, PutsTheLinesOfAFileTogether) {
  const std::string path = ::testing::TempDir() + "/lines";
  std::ofstream(path)
      << R"({"domain":{"model":"m"},"worker":{"name":"w"},"trust":"TRUST_DEGRADED","stored":[{"blocks":["1","2"]}]})"
      << "\n"
      << R"({"domain":{"model":"m"},"worker":{"name":"w"},"trust":"TRUST_DEGRADED","stored":[{"tier":"TIER_HOST","position":1,"parent":"1","blocks":["2"]}]})"
      << "\n"
      << R"({"domain":{"model":"m"},"worker":{"name":"w"},"last_of_worker":true,"of_a_later_version":1})"
      << "\n";
  const auto all = LoadSource(*Source::Parse("file=" + path), {}, std::chrono::seconds(1));
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 1u);
  EXPECT_EQ(all->at(Key("w")).blocks[0], (std::set<uint64_t>{1, 2}));
  EXPECT_EQ(all->at(Key("w")).blocks[1], (std::set<uint64_t>{2}));
  const auto none = LoadSource(*Source::Parse("file=" + path),
                               {.model = "n", .tenant = "", .worker = ""}, std::chrono::seconds(1));
  EXPECT_TRUE(absl::IsNotFound(none.status()));
}

TEST(LoadTest, SideBlocksOfADumpAreKeptApart) {
  const std::string path = ::testing::TempDir() + "/sides";
  std::ofstream(path)
      << R"({"domain":{"model":"m"},"worker":{"name":"w"},"layout":{"main":{"block_size":64},"sides":[{"kind":"CACHE_KIND_WINDOW","block_size":16,"window_tokens":127},{"kind":"CACHE_KIND_STATE","block_size":64}]},"stored":[{"blocks":["1","2"]},{"side":1,"blocks":["3"]},{"tier":"TIER_HOST","side":2,"blocks":["4"]},{"side":255,"blocks":["5"]}]})"
      << "\n"
      << R"({"domain":{"model":"m"},"worker":{"name":"w"},"stored":[{"side":1,"blocks":["6"]}]})"
      << "\n";
  const auto all = LoadSource(*Source::Parse("file=" + path), {}, std::chrono::seconds(1));
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->at(Key("w")).blocks[0], (std::set<uint64_t>{1, 2}));
  const auto& sides = all->at(Key("w")).sides;
  ASSERT_EQ(sides.size(), 3u);
  EXPECT_EQ(sides.at("window:127/16")[0], (std::set<uint64_t>{3}));
  EXPECT_EQ(sides.at("state")[1], (std::set<uint64_t>{4}));
  EXPECT_EQ(sides.at("")[0], (std::set<uint64_t>{5, 6}))
      << "of classes that the teller does not know";
}

TEST(TextTest, HoldersAndDomainsAreNamedShortly) {
  EXPECT_EQ(HolderText(HolderId{"w", 0, ""}), "w");
  EXPECT_EQ(HolderText(HolderId{"w", 3, ""}), "w/3");
  EXPECT_EQ(HolderText(HolderId{"cell", 0, "b"}), "cell@b");
  EXPECT_EQ(DomainName(Domain{"m", "t"}), "m/t");
}

}  // namespace
}  // namespace kvatlas
