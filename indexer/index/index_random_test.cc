// Random calls: every structure answers as the reference does. A failure prints the shortest calls
// that still show it as code; paste that into a named test below.
//
// KVATLAS_SEEDS=N runs N seeds of each kind instead of a few (`index_random_long_test`), from
// KVATLAS_FIRST_SEED on.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/index/compare_ops.h"
#include "indexer/index/index_test_util.h"
#include "indexer/index/random_ops.h"
#include "indexer/index/random_trie.h"

namespace kvatlas {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t usual) {
  const char* const text = std::getenv(name);
  return text == nullptr ? usual : std::strtoull(text, nullptr, 10);
}

std::vector<IndexKind> ExactKinds() {
  std::vector<IndexKind> kinds = KindsThatClaim(kHoles | kOrphans | kPlaces);
  std::erase_if(kinds, [](const IndexKind& kind) { return kind.name == "reference"; });
  return kinds;
}

class IndexRandomTest : public ::testing::TestWithParam<IndexKind> {
 protected:
  static std::unique_ptr<Index> Make(const IndexOptions& options) {
    return *MakeIndex(GetParam().name, options);
  }

  // The usual number of seeds is for a test of a second or two.
  static void Compare(RandomOptions options, uint64_t usual_seeds) {
    const IndexKind& kind = GetParam();
    options.whole = kind.name != "host_bitmap_exact";  // tells of each tier by itself
    if (kind.holders_max != 0) options.holders = std::min(options.holders, kind.holders_max);
    // The default is compared at full length, the others as far as a second or two goes.
    const bool is_default = kind.name == IndexKinds().front().name || kind.name == "atlas";
    const bool is_long = std::getenv("KVATLAS_SEEDS") != nullptr;
    if (!is_default && !is_long) {
      options.ops = std::min<size_t>(options.ops, 300);
      usual_seeds = (usual_seeds + 3) / 4;
    }
    const uint64_t first = FromEnvironment("KVATLAS_FIRST_SEED", 1);
    const uint64_t seeds = FromEnvironment("KVATLAS_SEEDS", usual_seeds);
    for (uint64_t seed = first; seed < first + seeds; ++seed) {
      options.trie.seed = seed;
      const std::string difference =
          FirstDifferenceToPaste(Make, RandomOps(seed, options), options);
      ASSERT_TRUE(difference.empty()) << "seed " << seed << ", " << difference;
    }
  }

  static bool KeepsLocalHashes() {
    const std::unique_ptr<Index> index = Make({.keep_local_hashes = true});
    const Stored stored = {.blocks = {SequenceHash{5}}, .local_hashes = {LocalHash{5}}};
    if (!index->Apply(*index->AddHolder(), stored, nullptr).ok()) return false;
    const std::vector<Holding> holdings = index->HoldingsOf(HolderIndex{0});
    return holdings.size() == 1 && holdings[0].local == LocalHash{5};
  }
};

INSTANTIATE_TEST_SUITE_P(Structures, IndexRandomTest, ::testing::ValuesIn(ExactKinds()), KindName);

// ---- Small: every call meets others ----

TEST_P(IndexRandomTest, FewHoldersAndBlocks) {
  Compare({.trie = {.blocks = 12}, .ops = 200, .holders = 3, .run_max = 6}, 200);
}

TEST_P(IndexRandomTest, OneSequence) {
  Compare({.trie = {.blocks = 20, .shape = Shape::kChain}, .holders = 4, .run_max = 20}, 150);
}

TEST_P(IndexRandomTest, OneLongSequence) {
  Compare({.trie = {.blocks = 300, .shape = Shape::kChain}, .holders = 6, .run_max = 300}, 40);
}

TEST_P(IndexRandomTest, ForksEverywhere) { Compare({.trie = {.blocks = 60}}, 100); }

TEST_P(IndexRandomTest, ManyChildren) {
  Compare({.trie = {.blocks = 100, .shape = Shape::kBushy}, .ops = 600}, 40);
}

TEST_P(IndexRandomTest, ManyFirstBlocks) {
  Compare({.trie = {.blocks = 100, .shape = Shape::kRoots}, .ops = 600}, 40);
}

// ---- Extreme hashes ----

TEST_P(IndexRandomTest, SmallHashes) {
  Compare({.trie = {.blocks = 60, .spread = Spread::kSmall}}, 40);
}

TEST_P(IndexRandomTest, HashesThatDifferInHighBits) {
  Compare({.trie = {.blocks = 60, .spread = Spread::kHighBits}}, 40);
}

TEST_P(IndexRandomTest, HashesWithEqualLowBits) {
  Compare({.trie = {.blocks = 60, .spread = Spread::kSameLowBits}}, 40);
}

TEST_P(IndexRandomTest, HashesWithEqualHighBits) {
  Compare({.trie = {.blocks = 60, .spread = Spread::kSameHighBits}}, 40);
}

TEST_P(IndexRandomTest, HashesThatFibonacciHashingDoesNotSpread) {
  Compare({.trie = {.blocks = 60, .spread = Spread::kFibonacci}}, 40);
}

TEST_P(IndexRandomTest, RealChains) {
  Compare({.trie = {.blocks = 60, .spread = Spread::kChained}}, 40);
}

TEST_P(IndexRandomTest, LocalHashesAreKept) {
  if (!KeepsLocalHashes()) GTEST_SKIP() << "does not keep local hashes";
  Compare({.trie = {.blocks = 60, .spread = Spread::kChained}, .keep_local_hashes = true}, 40);
}

// ---- Bounds ----

TEST_P(IndexRandomTest, AtTheLimitOfBlocks) {
  Compare({.trie = {.blocks = 40}, .blocks_max = 15}, 60);
  Compare({.trie = {.blocks = 200, .shape = Shape::kLongRuns}, .run_max = 150, .blocks_max = 120},
          20);
}

// ---- Large ----

TEST_P(IndexRandomTest, ManyHolders) {
  Compare({.trie = {.blocks = 60}, .ops = 3'000, .holders = 150, .state_every = 500}, 4);
}

TEST_P(IndexRandomTest, ManyHoldersOfOneSequence) {
  Compare({.trie = {.blocks = 100, .shape = Shape::kChain},
           .ops = 3'000,
           .holders = 200,
           .run_max = 100,
           .state_every = 500},
          2);
}

// Sets of holders take other forms where numbers are large.
TEST_P(IndexRandomTest, ThousandsOfHolders) {
  Compare({.trie = {.blocks = 60}, .ops = 3'000, .holders = 2'500, .state_every = 300}, 2);
}

TEST_P(IndexRandomTest, ThousandsOfHoldersOfOneSequence) {
  Compare({.trie = {.blocks = 700, .shape = Shape::kChain},
           .ops = 2'500,
           .holders = 1'300,
           .run_max = 700,
           .state_every = 300},
          1);
}

TEST_P(IndexRandomTest, LongRunsOfManyHolders) {
  Compare({.trie = {.blocks = 5'000, .shape = Shape::kLongRuns},
           .ops = 2'000,
           .holders = 300,
           .run_max = 600,
           .state_every = 500},
          1);
}

TEST_P(IndexRandomTest, LongRunsOfFewHolders) {
  Compare({.trie = {.blocks = 5'000, .shape = Shape::kLongRuns, .spread = Spread::kChained},
           .ops = 1'500,
           .holders = 8,
           .run_max = 600,
           .state_every = 200},
          2);
}

TEST_P(IndexRandomTest, AWideTrie) {
  Compare({.trie = {.blocks = 5'000, .shape = Shape::kBushy},
           .ops = 4'000,
           .holders = 20,
           .state_every = 500},
          2);
}

// ---- Those that are not exact ----

struct Habits {
  // Stores follow blocks that the holder has, and it loses tails first.
  bool keeps_prefixes = false;
  // Stores follow blocks that the holder has.
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
    if (Draw(4) == 0) path.push_back(trie_.size() + 1);  // Never stored.
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
    // Filtered here, since the reference need not know `only`.
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

  absl::Status Check() const { return tested_->Check(); }

 private:
  static constexpr uint32_t kHolders = 4;

  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }
  TierMask DrawMask() { return TierMask(static_cast<uint8_t>(Draw(16))); }
  Tier DrawTier() { return habits_.one_tier ? Tier::kDevice : static_cast<Tier>(Draw(kTiers)); }

  void Both(HolderIndex holder, const Event& event) {
    tested_->Apply(holder, event, nullptr).IgnoreError();
    EXPECT_TRUE(reference_->Apply(holder, event, nullptr).ok());
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

// How a structure errs among senders with these habits: never, or too much or too little at least
// once and never the other.
enum class Error { kNever, kOver, kUnder };

struct Inexact {
  std::string_view name;
  Habits habits;
  Error error = Error::kNever;
};

void PrintTo(const Inexact& inexact, std::ostream* out) { *out << inexact.name; }

constexpr Habits kWithoutHoles = {.keeps_prefixes = true, .one_tier = true};
constexpr Habits kAfterHeld = {.stores_after_held = true};

class InexactRandomTest : public ::testing::TestWithParam<Inexact> {};

INSTANTIATE_TEST_SUITE_P(
    Structures, InexactRandomTest,
    ::testing::Values(
        Inexact{"concurrent_radix", kWithoutHoles}, Inexact{"concurrent_radix", kAfterHeld},
        Inexact{"concurrent_radix", {}, Error::kUnder}, Inexact{"positional", kWithoutHoles},
        Inexact{"positional", {}, Error::kOver}, Inexact{"positional_binary", kWithoutHoles},
        Inexact{"positional_binary", {}, Error::kOver}, Inexact{"host_bitmap", kWithoutHoles},
        Inexact{"host_bitmap", {}, Error::kOver}, Inexact{"host_bitmap_exact", {}},
        Inexact{"radix", {}, Error::kUnder}, Inexact{"actor", {}, Error::kUnder},
        Inexact{"nested_map", {}, Error::kOver}, Inexact{"inverted", {}, Error::kOver}),
    [](const auto& info) {
      return std::string(info.param.name) + "_" + std::to_string(info.index);
    });

TEST_P(InexactRandomTest, ErrsToOneSideAndNotAtAllWithoutHoles) {
  uint64_t over = 0, under = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Habits habits = GetParam().habits;
    habits.with_locals = seed % 4 != 0 || GetParam().error != Error::kNever;
    Twins twins(GetParam().name, seed, habits);
    for (int step = 0; step < 150; ++step) {
      twins.Step();
      const auto [tested, expected] = twins.Ask();
      std::map<uint32_t, int64_t> excess;
      for (const Overlap& each : tested) excess[Raw(each.holder)] += each.blocks;
      for (const Overlap& each : expected) excess[Raw(each.holder)] -= each.blocks;
      for (const auto& [holder, blocks] : excess) {
        over += blocks > 0;
        under += blocks < 0;
      }
      if (GetParam().error != Error::kOver) {
        ASSERT_EQ(over, 0u) << "step " << step;
      }
      if (GetParam().error != Error::kUnder) {
        ASSERT_EQ(under, 0u) << "step " << step;
      }
      if (step % 30 != 29) continue;
      ASSERT_TRUE(twins.Check().ok()) << twins.Check();
      if (GetParam().error == Error::kNever) {
        ASSERT_NO_FATAL_FAILURE(twins.ExpectSameContents());
      }
    }
  }
  EXPECT_EQ(GetParam().error == Error::kNever, over + under == 0) << "no hole came?";
}

// ---- The test's own tools ----

// A structure that is wrong as soon as it has four blocks.
TEST(ShrinkTest, KeepsOnlyWhatDiffers) {
  const MakeTested wrong = [](const IndexOptions&) {
    return *MakeIndex("reference", {.blocks_max = 3});
  };
  const RandomOptions options = {.state_every = 1};
  const std::vector<Op> ops = RandomOps(1, options);
  ASSERT_NE(FirstDifference(wrong, ops, options), "");
  const std::vector<Op> few = Shrink(wrong, ops, options);
  EXPECT_NE(FirstDifference(wrong, few, options), "");
  size_t blocks = 0;
  for (const Op& op : few) blocks += op.blocks.size();
  EXPECT_EQ(blocks, 4u) << ToCode(few);
  EXPECT_LE(few.size(), 5u) << ToCode(few);
}

TEST(ShrinkTest, PrintsCodeToPaste) {
  EXPECT_EQ(ToCode({{Op::kAddHolder, 0, 0, 0, {}}, {Op::kStore, 0, 2, 5, {1, 2}}}),
            "{\n      {Op::kAddHolder, 0, 0, 0, {}},\n      {Op::kStore, 0, 2, 5, {1, 2}},\n  }");
}

}  // namespace
}  // namespace kvatlas
