#include "tools/testing/mock_engine/engine_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <variant>

#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;

std::vector<SequenceHash> Blocks(uint64_t first, size_t blocks) {
  std::vector<SequenceHash> run;
  for (size_t i = 0; i < blocks; ++i) run.push_back(SequenceHash{first + i});
  return run;
}

// Blocks of 10 tokens, chunks of 2 blocks.
EngineCacheOptions Window(uint64_t capacity, uint32_t tokens) {
  return {.capacity_blocks = capacity,
          .block_size = 10,
          .hybrid = {.kind = CacheKind::kWindow, .tokens = tokens},
          .chunk_tokens = 20};
}
EngineCacheOptions State(uint64_t capacity, uint32_t tokens) {
  return {.capacity_blocks = capacity,
          .block_size = 10,
          .hybrid = {.kind = CacheKind::kState, .tokens = tokens}};
}

// A whole request: taken with what can be reused of it, and ended.
uint32_t Serve(EngineCache& cache, const std::vector<SequenceHash>& prompt,
               std::vector<Event>* events = nullptr) {
  std::vector<Event> ignored;
  const uint32_t reused = cache.Reusable(prompt, uint32_t(prompt.size()) - 1);
  EXPECT_TRUE(cache.Fits(prompt));
  cache.Free(cache.Take(prompt, reused, events == nullptr ? &ignored : events));
  return reused;
}

TEST(EngineCacheTest, WithoutASideClassThePrefixIsReusedUpToTheLimit) {
  EngineCache cache({.capacity_blocks = 10, .block_size = 10});
  std::vector<Event> events;
  EXPECT_EQ(Serve(cache, Blocks(100, 4), &events), 0u);
  EXPECT_THAT(events, ElementsAre(Event(Stored{.blocks = Blocks(100, 4)})));
  EXPECT_EQ(cache.Reusable(Blocks(100, 4), 4), 4u);
  EXPECT_EQ(Serve(cache, Blocks(100, 4)), 3u);
}

TEST(EngineCacheTest, AWindowIsStoredChunkByChunkAndKeptWhereItEnds) {
  EngineCache cache(Window(100, 21));  // two blocks before a boundary
  std::vector<Event> events;
  const EngineCache::Holding holding = cache.Take(Blocks(100, 5), 0, &events);
  EXPECT_THAT(
      events,
      ElementsAre(
          Event(Stored{.blocks = Blocks(100, 2)}),
          Event(Stored{.blocks = Blocks(100, 2), .side = kMockSide}),
          Event(Stored{.position = 2, .parent = SequenceHash{101}, .blocks = Blocks(102, 2)}),
          Event(Stored{.blocks = Blocks(102, 2), .side = kMockSide}),
          Event(Stored{.position = 4, .parent = SequenceHash{103}, .blocks = Blocks(104, 1)}),
          Event(Stored{.blocks = Blocks(104, 1), .side = kMockSide})));
  EXPECT_THAT(holding.sides, ElementsAre(3, 4));
  EXPECT_EQ(cache.pool().in_use(), 7u);
  EXPECT_EQ(cache.pool().cached(), 10u);
}

TEST(EngineCacheTest, BlocksBehindTheWindowAreEvictedFirstAndTheHeadIsThenNotReusable) {
  EngineCache cache(Window(12, 21));
  Serve(cache, Blocks(100, 5));  // ten blocks; window blocks 1, 0, 2 freed first
  std::vector<Event> events;
  // Three of main and three of the window: two are empty, and the oldest ones go.
  Serve(cache, Blocks(200, 3), &events);
  std::vector<SequenceHash> lost;
  for (const Event& event : events) {
    const auto* removed = std::get_if<Removed>(&event);
    if (removed == nullptr) continue;
    EXPECT_EQ(removed->side, kMockSide);
    lost.insert(lost.end(), removed->blocks.begin(), removed->blocks.end());
  }
  EXPECT_THAT(lost, UnorderedElementsAre(SequenceHash{100}, SequenceHash{101}, SequenceHash{102},
                                         SequenceHash{104}));
  EXPECT_EQ(cache.Held(Blocks(100, 5)), 5u);
  EXPECT_EQ(cache.Reusable(Blocks(100, 5), 5), 0u);  // of the window only 3 is left
}

TEST(EngineCacheTest, ARunFromTheHeadNeedsNoWholeWindow) {
  EngineCache cache(Window(100, 51));  // five blocks
  Serve(cache, Blocks(100, 3));
  EXPECT_EQ(cache.Reusable(Blocks(100, 8), 8), 3u);
  EXPECT_EQ(cache.Reusable(Blocks(100, 8), 2), 2u);
}

TEST(EngineCacheTest, StatesAreAtTheEndsOfChunksAndAtThePromptsEnd) {
  EngineCache cache(State(100, 30));
  std::vector<Event> events;
  const EngineCache::Holding holding = cache.Take(Blocks(100, 7), 0, &events);
  EXPECT_THAT(holding.sides, ElementsAre(6));
  EXPECT_THAT(cache.Contents(kMockSide),
              UnorderedElementsAre(SequenceHash{102}, SequenceHash{105}, SequenceHash{106}));
  EXPECT_EQ(cache.Reusable(Blocks(100, 7), 7), 7u);
  EXPECT_EQ(cache.Reusable(Blocks(100, 7), 6), 6u);
  EXPECT_EQ(cache.Reusable(Blocks(100, 7), 5), 3u);
  EXPECT_EQ(cache.Reusable(Blocks(100, 7), 2), 0u);
  cache.Free(holding);
  // Chunks are counted from what is reused.
  std::vector<SequenceHash> longer = Blocks(100, 6);
  longer.push_back(SequenceHash{300});
  for (uint64_t i = 0; i < 4; ++i) longer.push_back(SequenceHash{301 + i});
  EXPECT_EQ(Serve(cache, longer), 6u);
  EXPECT_EQ(cache.Reusable(longer, 10), 9u);
}

TEST(EngineCacheTest, APromptThatNeedsMoreThanThePoolDoesNotFit) {
  EngineCache cache(Window(9, 21));
  EXPECT_EQ(cache.Needs(5), 9u);  // two blocks of a window, and a chunk of two
  EXPECT_TRUE(cache.Fits(Blocks(100, 5)));
  EXPECT_FALSE(cache.Fits(Blocks(100, 6)));
  std::vector<Event> events;
  const EngineCache::Holding holding = cache.Take(Blocks(100, 5), 0, &events);
  EXPECT_FALSE(cache.Fits(Blocks(200, 2)));
  EXPECT_THAT(cache.Contents(), UnorderedElementsAreArray(Blocks(100, 5)));
  cache.Free(holding);
  EXPECT_TRUE(cache.Fits(Blocks(200, 2)));
}

// The slow twin: every block with its state in a list, every rule written out in tokens.
class SlowCache {
 public:
  explicit SlowCache(const EngineCacheOptions& options) : options_(options) {}

  uint32_t Held(const std::vector<SequenceHash>& prompt) const {
    uint32_t held = 0;
    while (held < prompt.size() && Find(prompt[held], 0) != nullptr) ++held;
    return held;
  }

  uint32_t Reusable(const std::vector<SequenceHash>& prompt, uint32_t limit) const {
    uint32_t reusable = 0;
    for (uint32_t length = 1; length <= std::min(limit, Held(prompt)); ++length) {
      if (SideAccepts(prompt, length)) reusable = length;
    }
    return reusable;
  }

  struct Holding {
    std::vector<SequenceHash> blocks;
    std::set<uint32_t> sides;
  };

  Holding Take(const std::vector<SequenceHash>& prompt, uint32_t reused) {
    Holding holding{.blocks = prompt, .sides = {}};
    for (uint32_t i = 0; i < Held(prompt); ++i) ++Find(prompt[i], 0)->refs;
    for (uint32_t i = 0; i < reused && !plain(); ++i) {
      if (!Behind(i, reused, reused)) UseSide(&holding, i);
    }
    uint32_t begin = reused;
    while (begin < prompt.size()) {
      const auto end = uint32_t(std::min<size_t>(prompt.size(), begin + Chunk(prompt.size())));
      FreeBehind(&holding, begin);
      const uint32_t first = options_.hybrid.kind == CacheKind::kState ? end - 1 : begin;
      for (uint32_t i = first; i < end && !plain(); ++i) {
        if (Find(prompt[i], kMockSide) != nullptr) UseSide(&holding, i);
      }
      for (uint32_t i = begin; i < end; ++i) {
        if (Find(prompt[i], 0) == nullptr) Add(prompt[i], 0);
      }
      for (uint32_t i = first; i < end && !plain(); ++i) {
        if (holding.sides.contains(i)) continue;
        Add(prompt[i], kMockSide);
        holding.sides.insert(i);
      }
      begin = end;
    }
    FreeBehind(&holding, uint32_t(prompt.size()));
    return holding;
  }

  void Free(const Holding& holding) {
    for (auto i = holding.sides.rbegin(); i != holding.sides.rend(); ++i)
      Release(holding.blocks[*i], kMockSide);
    for (size_t i = holding.blocks.size(); i-- > 0;) Release(holding.blocks[i], 0);
  }

  std::vector<SequenceHash> Contents(SideClass side) const {
    std::vector<SequenceHash> contents;
    for (const Block& block : blocks_) {
      if (block.side == side) contents.push_back(block.hash);
    }
    return contents;
  }
  uint64_t in_use() const {
    return std::count_if(blocks_.begin(), blocks_.end(), [](const Block& b) { return b.refs > 0; });
  }

 private:
  struct Block {
    SequenceHash hash;
    SideClass side;
    uint32_t refs;
    uint64_t freed;  // when last
  };

  bool plain() const { return options_.hybrid.plain(); }
  size_t Chunk(size_t prompt) const {
    if (plain()) return prompt;
    const uint32_t tokens =
        options_.hybrid.kind == CacheKind::kState ? options_.hybrid.tokens : options_.chunk_tokens;
    return std::max(1u, tokens / options_.block_size);
  }

  // Whether token `token` is one of the W-1 before the boundary at `length` blocks.
  bool InWindow(int64_t token, uint32_t length) const {
    const int64_t boundary = int64_t{length} * options_.block_size;
    return token < boundary && token >= boundary - int64_t{options_.hybrid.tokens - 1};
  }
  bool SideAccepts(const std::vector<SequenceHash>& prompt, uint32_t length) const {
    if (plain()) return true;
    if (options_.hybrid.kind == CacheKind::kState)
      return Find(prompt[length - 1], kMockSide) != nullptr;
    for (int64_t token = 0; token < int64_t{length} * options_.block_size; ++token) {
      if (!InWindow(token, length)) continue;
      if (Find(prompt[size_t(token / options_.block_size)], kMockSide) == nullptr) return false;
    }
    return true;
  }

  // Whether a request that has come to `length` blocks needs its side block `i` no more; its last
  // one is `last` - 1.
  bool Behind(uint32_t i, uint32_t length, uint32_t last) const {
    if (options_.hybrid.kind == CacheKind::kState) return i + 1 != last;
    return !InWindow(int64_t{i + 1} * options_.block_size - 1, length);
  }
  void FreeBehind(Holding* holding, uint32_t length) {
    const uint32_t last = holding->sides.empty() ? 0 : *holding->sides.rbegin() + 1;
    const std::set<uint32_t> sides = holding->sides;
    for (auto i = sides.rbegin(); i != sides.rend(); ++i) {
      if (!Behind(*i, length, last)) continue;
      Release(holding->blocks[*i], kMockSide);
      holding->sides.erase(*i);
    }
  }

  void UseSide(Holding* holding, uint32_t i) {
    ++Find(holding->blocks[i], kMockSide)->refs;
    holding->sides.insert(i);
  }
  void Add(SequenceHash hash, SideClass side) {
    if (blocks_.size() == options_.capacity_blocks) {
      auto victim = blocks_.end();
      for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
        if (block->refs == 0 && (victim == blocks_.end() || block->freed < victim->freed))
          victim = block;
      }
      blocks_.erase(victim);
    }
    blocks_.push_back({hash, side, 1, 0});
  }
  void Release(SequenceHash hash, SideClass side) {
    Block* block = Find(hash, side);
    if (--block->refs == 0) block->freed = ++frees_;
  }

  const Block* Find(SequenceHash hash, SideClass side) const {
    for (const Block& block : blocks_) {
      if (block.hash == hash && block.side == side) return &block;
    }
    return nullptr;
  }
  Block* Find(SequenceHash hash, SideClass side) {
    return const_cast<Block*>(std::as_const(*this).Find(hash, side));
  }

  const EngineCacheOptions options_;
  std::vector<Block> blocks_;
  uint64_t frees_ = 0;
};

// What a listener makes of the events: nothing is stored twice, removed twice, or stored behind a
// block that is not there.
void ApplyTo(const std::vector<Event>& events, std::set<SequenceHash> (&contents)[2]) {
  for (const Event& event : events) {
    if (const auto* stored = std::get_if<Stored>(&event)) {
      for (SequenceHash hash : stored->blocks) {
        EXPECT_TRUE(contents[stored->side].insert(hash).second);
        EXPECT_TRUE(stored->side == 0 || contents[0].contains(hash));
      }
      EXPECT_TRUE(stored->side != 0 || (stored->position == 0) == (stored->parent == kNoParent));
      EXPECT_TRUE(stored->position == 0 || contents[0].contains(stored->parent));
    } else if (const auto* removed = std::get_if<Removed>(&event)) {
      for (SequenceHash hash : removed->blocks) EXPECT_EQ(contents[removed->side].erase(hash), 1u);
    }
  }
}

std::set<SequenceHash> AsSet(const std::vector<SequenceHash>& blocks) {
  std::set<SequenceHash> set(blocks.begin(), blocks.end());
  EXPECT_EQ(set.size(), blocks.size());
  return set;
}

// A prompt from a small tree of prefixes.
std::vector<SequenceHash> RandomPrompt(std::mt19937_64& random, size_t blocks_max) {
  std::vector<LocalHash> locals(1 + random() % blocks_max);
  for (LocalHash& local : locals) local = LocalHash{1 + (random() % 5 == 0 ? random() % 3 : 0)};
  return SequenceHashes(locals);
}

EngineCacheOptions RandomOptions(std::mt19937_64& random) {
  EngineCacheOptions options{.capacity_blocks = 12 + random() % 50,
                             .block_size = 4,
                             .chunk_tokens = uint32_t(1 + random() % 24)};
  options.hybrid.kind =
      std::vector{CacheKind::kFull, CacheKind::kWindow, CacheKind::kState}[random() % 3];
  options.hybrid.tokens = uint32_t(2 + random() % 24);
  return options;
}

void RunTwins(uint64_t seed, uint64_t* reusable_sum, uint64_t* held_sum) {
  std::mt19937_64 random(seed);
  const EngineCacheOptions options = RandomOptions(random);
  EngineCache cache(options);
  SlowCache slow(options);
  std::set<SequenceHash> contents[2];
  std::vector<std::pair<EngineCache::Holding, SlowCache::Holding>> running;
  for (int i = 0; i < 200 && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", operation " + std::to_string(i));
    const std::vector<SequenceHash> prompt = RandomPrompt(random, 24);
    const auto limit = uint32_t(prompt.size() - random() % 2);
    const uint32_t reusable = slow.Reusable(prompt, limit);
    EXPECT_EQ(cache.Reusable(prompt, limit), reusable);
    EXPECT_EQ(cache.Held(prompt), slow.Held(prompt));
    *reusable_sum += reusable;
    *held_sum += std::min(limit, slow.Held(prompt));
    if (!running.empty() && (random() % 3 == 0 || !cache.Fits(prompt))) {
      const size_t ended = random() % running.size();
      cache.Free(running[ended].first);
      slow.Free(running[ended].second);
      running.erase(running.begin() + long(ended));
    } else if (cache.Fits(prompt)) {
      std::vector<Event> events;
      EngineCache::Holding holding = cache.Take(prompt, reusable, &events);
      SlowCache::Holding slow_holding = slow.Take(prompt, reusable);
      EXPECT_THAT(holding.sides, UnorderedElementsAreArray(slow_holding.sides));
      running.emplace_back(std::move(holding), std::move(slow_holding));
      ApplyTo(events, contents);
    } else {
      EXPECT_GT(cache.Needs(prompt.size()), options.capacity_blocks);
    }
    for (const SideClass side : {SideClass{0}, kMockSide}) {
      EXPECT_EQ(AsSet(cache.Contents(side)), AsSet(slow.Contents(side)));
      EXPECT_EQ(contents[side], AsSet(slow.Contents(side)));
    }
    EXPECT_EQ(cache.pool().in_use(), slow.in_use());
    EXPECT_LE(cache.pool().cached(), options.capacity_blocks);
  }
}

TEST(EngineCacheTest, DoesWhatASlowTwinDoesOnRandomPromptsInTightPools) {
  uint64_t reusable = 0, held = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) RunTwins(seed, &reusable, &held);
  // Side classes did limit what was reused, and something was.
  EXPECT_GT(reusable, held / 4);
  EXPECT_LT(reusable, held - held / 20);
}

}  // namespace
}  // namespace kvatlas
