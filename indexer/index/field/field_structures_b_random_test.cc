// Do concurrent_radix, positional, host_bitmap and their exact twins answer as the reference does? Random calls
// over a random trie of blocks, so that a hash has one parent and one position, with the habits of engines that
// each of them is right for.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/index/index.h"
#include "indexer/index/random_trie.h"

namespace kvatlas {
namespace {

struct Habits {
  // What a holder stores follows something that it holds, and it loses tails first.
  bool keeps_prefixes = false;
  // What a holder stores follows something that it holds.
  bool stores_after_held = false;
  bool one_tier = false;
  bool with_locals = true;
};

// Makes the same calls to a structure and to the reference.
class Twins {
 public:
  Twins(std::string_view name, uint64_t seed, const Habits& habits)
      : habits_(habits),
        random_(seed),
        trie_({.seed = seed,
               .blocks = 20 + static_cast<uint32_t>(seed % 200),
               .shape = seed % 3 == 0 ? Shape::kMixed : Shape::kLongRuns,
               .spread = Spread::kChained}),
        tested_(*MakeIndex(name, {})),
        reference_(*MakeIndex("reference", {})) {
    for (uint32_t i = 0; i < kHolders; ++i) {
      EXPECT_EQ(*tested_->AddHolder(), *reference_->AddHolder());
    }
  }

  // One random write, then a question.
  void Step() {
    const HolderIndex holder{Draw(kHolders)};
    switch (Draw(20)) {
      case 0:
        Both(holder, Cleared{habits_.one_tier ? TierMask::All() : DrawMask()});
        break;
      case 1: {
        const bool masked = Draw(3) == 0;
        tested_->SetMasked(holder, masked);
        reference_->SetMasked(holder, masked);
        break;
      }
      case 2:
        tested_->RemoveHolder(holder);
        reference_->RemoveHolder(holder);
        EXPECT_EQ(*tested_->AddHolder(), *reference_->AddHolder());
        break;
      default:
        if (Draw(3) == 0) {
          Remove(holder);
        } else {
          Store(holder);
        }
    }
  }

  // (holder, overlap) of both for a random prompt.
  std::pair<std::vector<Overlap>, std::vector<Overlap>> Ask() {
    std::vector<uint32_t> path = trie_.PathTo(Draw(trie_.size()));
    trie_.Descend(&path, Draw(100));
    if (Draw(4) == 0) path.push_back(trie_.size() + 1);  // Nobody stores it.
    const std::vector<SequenceHash> blocks = trie_.hashes(path);
    const std::vector<LocalHash> locals = trie_.locals(path);
    const uint64_t only[] = {random_() % 8};
    OverlapQuery query{.blocks = blocks, .local_hashes = locals};
    if (!habits_.one_tier && Draw(2) == 0) query.tiers = DrawMask();
    const bool asks_some = Draw(4) == 0;
    std::pair<std::vector<Overlap>, std::vector<Overlap>> found;
    if (asks_some) query.only = only;
    tested_->FindOverlaps(query, &found.first);
    reference_->FindOverlaps(query, &found.second);
    // Of the reference's, because it need not know `only`.
    std::erase_if(found.second, [&](const Overlap& each) {
      return asks_some && (only[0] >> Raw(each.holder) & 1) == 0;
    });
    for (auto* each : {&found.first, &found.second}) {
      std::sort(each->begin(), each->end(),
                [](const Overlap& a, const Overlap& b) { return a.holder < b.holder; });
    }
    return found;
  }

  void ExpectSameContents() {
    ASSERT_TRUE(tested_->Check().ok()) << tested_->Check();
    const IndexStats tested = tested_->Stats(), expected = reference_->Stats();
    EXPECT_EQ(tested.blocks, expected.blocks);
    EXPECT_EQ(tested.holdings, expected.holdings);
    EXPECT_EQ(tested.holders, expected.holders);
    for (uint32_t i = 0; i < kHolders; ++i) {
      const HolderIndex holder{i};
      ASSERT_EQ(tested_->DigestOf(holder), reference_->DigestOf(holder));
      std::vector<Holding> held = tested_->HoldingsOf(holder),
                           other = reference_->HoldingsOf(holder);
      for (auto* each : {&held, &other}) {
        std::sort(each->begin(), each->end(),
                  [](const Holding& a, const Holding& b) { return a.block < b.block; });
      }
      ASSERT_EQ(held, other);
    }
  }

  const Index& tested() const { return *tested_; }

 private:
  static constexpr uint32_t kHolders = 4;

  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  TierMask DrawMask() { return TierMask(static_cast<uint8_t>(Draw(16))); }
  Tier DrawTier() { return habits_.one_tier ? Tier::kDevice : static_cast<Tier>(Draw(kTiers)); }

  void Both(HolderIndex holder, const Event& event) {
    const absl::Status status = tested_->Apply(holder, event, nullptr);
    EXPECT_EQ(status, reference_->Apply(holder, event, nullptr));
  }

  std::set<SequenceHash> HeldBy(HolderIndex holder) const {
    std::set<SequenceHash> held;
    for (const Holding& each : reference_->HoldingsOf(holder)) held.insert(each.block);
    return held;
  }

  void Store(HolderIndex holder) {
    std::vector<uint32_t> path = trie_.PathTo(Draw(trie_.size()));
    trie_.Descend(&path, Draw(60));
    size_t from = Draw(2) == 0 ? 0 : Draw(static_cast<uint32_t>(path.size()));
    if (habits_.keeps_prefixes || habits_.stores_after_held) {
      const std::set<SequenceHash> held = HeldBy(holder);
      while (from > 0 && held.count(trie_.hash(path[from - 1])) == 0) --from;
    }
    const std::vector<uint32_t> run(path.begin() + from, path.end());
    Both(holder, Stored{.tier = DrawTier(),
                        .position = static_cast<Position>(from),
                        .parent = trie_.parent_hash(run[0]),
                        .blocks = trie_.hashes(run),
                        .local_hashes =
                            habits_.with_locals ? trie_.locals(run) : std::vector<LocalHash>()});
  }

  void Remove(HolderIndex holder) {
    Removed removed{.tier = DrawTier(), .blocks = {}};
    if (habits_.keeps_prefixes) {
      const uint32_t first = Draw(trie_.size());
      for (uint32_t block = trie_.size(); block-- > 0;) {
        const std::vector<uint32_t> path = trie_.PathTo(block);
        if (std::find(path.begin(), path.end(), first) == path.end()) continue;
        removed.blocks.push_back(trie_.hash(block));
      }
    } else {
      for (uint32_t left = Draw(30); left > 0; --left) {
        removed.blocks.push_back(trie_.hash(Draw(trie_.size())));
      }
    }
    Both(holder, removed);
  }

  const Habits habits_;
  std::mt19937_64 random_;
  const RandomTrie trie_;
  const std::unique_ptr<Index> tested_;
  const std::unique_ptr<Index> reference_;
};

constexpr uint64_t kSeeds = 60;
constexpr int kSteps = 150;

void ExpectTwins(std::string_view name, Habits habits) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    habits.with_locals = seed % 4 != 0;
    Twins twins(name, seed, habits);
    for (int step = 0; step < kSteps; ++step) {
      twins.Step();
      const auto [tested, expected] = twins.Ask();
      ASSERT_EQ(tested, expected) << "step " << step;
      if (step % 30 != 29) continue;
      ASSERT_NO_FATAL_FAILURE(twins.ExpectSameContents());
    }
  }
}

std::string Named(const ::testing::TestParamInfo<std::string_view>& info) {
  return std::string(info.param);
}

class WithoutHolesTest : public ::testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Structures, WithoutHolesTest,
                         ::testing::Values("concurrent_radix", "positional", "positional_binary",
                                           "positional_verified", "host_bitmap",
                                           "host_bitmap_exact"),
                         Named);

class WithHolesTest : public ::testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Structures, WithHolesTest,
                         ::testing::Values("concurrent_radix", "positional_verified",
                                           "host_bitmap_exact"),
                         Named);

TEST_P(WithoutHolesTest, EqualsTheReference) {
  ExpectTwins(GetParam(), {.keeps_prefixes = true, .one_tier = true});
}

TEST_P(WithHolesTest, EqualsTheReferenceInAllTiers) {
  ExpectTwins(GetParam(), {.stores_after_held = true});
}

TEST(ExactTwinsTest, EqualTheReferenceWhateverIsStored) {
  for (std::string_view name : {"positional_verified", "host_bitmap_exact"}) {
    EXPECT_TRUE(FindIndexKind(name)->exact);
    ExpectTwins(name, {});
  }
}

TEST(ConcurrentRadixTest, NeverOverCountsWhateverIsStored) {
  uint64_t under = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Twins twins("concurrent_radix", seed, {});
    for (int step = 0; step < kSteps; ++step) {
      twins.Step();
      const auto [tested, expected] = twins.Ask();
      for (const Overlap& each : tested) {
        const auto twin = std::find_if(expected.begin(), expected.end(), [&](const Overlap& other) {
          return other.holder == each.holder;
        });
        ASSERT_NE(twin, expected.end());
        ASSERT_LE(each.blocks, twin->blocks) << "step " << step;
        under += each.blocks < twin->blocks;
      }
    }
    ASSERT_TRUE(twins.tested().Check().ok()) << twins.tested().Check();
  }
  EXPECT_GT(under, 0u) << "stores after a hole are dropped; did none come?";
}

}  // namespace
}  // namespace kvatlas
