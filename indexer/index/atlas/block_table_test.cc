// The heap gives memory back and fails politely; the table is a map.

#include "indexer/index/atlas/block_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "indexer/index/atlas/epoch.h"
#include "indexer/index/atlas/heap.h"

namespace kvatlas::atlas {
namespace {

TEST(HeapTest, WhatIsFreedGoesBack) {
  const std::unique_ptr<Heap> heap = Heap::Create(/*retained_bytes=*/0);
  ASSERT_NE(heap, nullptr);
  std::vector<std::pair<Ref, size_t>> objects;
  for (size_t bytes : {16, 48, 64, 200, 2048, 6400, 20'000, 100'000}) {
    for (int i = 0; i < 100; ++i) objects.emplace_back(heap->Allocate(bytes), bytes);
  }
  EXPECT_GE(heap->bytes(), 100u * (16 + 48 + 64 + 200 + 2048 + 6400 + 20'000 + 100'000));
  for (const auto& [ref, bytes] : objects) {
    ASSERT_NE(ref, 0u);
    heap->Free(ref, bytes);
  }
  EXPECT_EQ(heap->bytes(), 0u);
}

TEST(HeapTest, NoPageIsZeroAndTheNextOneIsNot) {
  const std::unique_ptr<Heap> heap = Heap::Create(0);
  heap->FailPages(2);
  EXPECT_EQ(heap->Allocate(64), 0u);
  EXPECT_EQ(heap->Allocate(100'000), 0u);
  EXPECT_NE(heap->Allocate(64), 0u);
}

TEST(HeapTest, WhatAGuardMaySeeIsNotReused) {
  const std::unique_ptr<Heap> heap = Heap::Create(0);
  const Ref ref = heap->Allocate(64);
  {
    EpochGuard guard;
    heap->Retire(ref, 64);
    heap->Reclaim();
    EXPECT_GT(heap->bytes(), 0u);
  }
  heap->Reclaim();
  EXPECT_EQ(heap->bytes(), 0u);
}

// Random inserts, moves and erases of names, beside a map; names that differ in few bits among
// them.
TEST(BlockTableTest, IsAMap) {
  for (int shift : {0, 32, 56}) {
    const std::unique_ptr<Heap> heap = Heap::Create(0);
    const std::unique_ptr<BlockTable> table = BlockTable::Create(heap.get(), 99);
    std::unordered_map<uint64_t, Ref> twin;
    std::vector<Ref> words;
    for (int i = 0; i < 40'000 / 8; ++i) {
      const Ref line = heap->Allocate(kLineBytes);
      for (Ref word = line; word < line + kLineWords; ++word) words.push_back(word);
    }
    std::mt19937_64 random(7);
    const uint64_t names = shift == 56 ? 200 : 30'000;
    for (int i = 0; i < 200'000; ++i) {
      EpochGuard guard;
      const uint64_t name = (random() % names) << shift;
      const auto known = twin.find(name);
      ASSERT_EQ(table->Find(SequenceHash{name}), known == twin.end() ? 0 : known->second);
      // Grows for a while, then shrinks to nothing.
      const bool grow = i < 120'000 ? random() % 4 != 0 : false;
      if (grow && !words.empty()) {
        const Ref word = words.back();
        heap->word(word).store(name, std::memory_order_relaxed);
        const BlockTable::Inserted inserted = table->Insert(SequenceHash{name}, word);
        ASSERT_EQ(inserted.what, known == twin.end() ? BlockTable::Inserted::kInserted
                                                     : BlockTable::Inserted::kExists);
        if (known == twin.end()) {
          twin[name] = word;
          words.pop_back();
        } else {
          ASSERT_EQ(inserted.existing, known->second);
        }
      } else if (known != twin.end()) {
        table->Erase(SequenceHash{name}, known->second);
        words.push_back(known->second);
        twin.erase(known);
      }
    }
    EXPECT_EQ(table->CountShape().entries, twin.size());
    for (const auto& [name, word] : twin) {
      EpochGuard guard;
      table->Erase(SequenceHash{name}, word);
    }
    EXPECT_EQ(table->CountShape().entries, 0u);
  }
}

// Some blocks are there all the time, and only change places, where others follow them; others come
// and go, so that segments grow, split and shrink and entries live beside their homes. No reader
// ever misses the first.
TEST(BlockTableTest, WhatStaysIsFoundWhileItMovesAndOthersComeAndGo) {
  constexpr int kWriters = 1;
  constexpr int kReaders = 2;
  constexpr uint64_t kSteady = 200;   // a writer
  constexpr uint64_t kPassing = 600;  // a writer
  constexpr int kRounds = 60;
  const std::unique_ptr<Heap> heap = Heap::Create(0);
  const std::unique_ptr<BlockTable> table = BlockTable::Create(heap.get(), 99);
  // Names that differ in few bits share buckets.
  const auto name_of = [](int writer, uint64_t number) {
    return SequenceHash{(number << 40) + static_cast<uint64_t>(writer) + 1};
  };
  const auto words_for = [&](uint64_t count) {
    std::vector<Ref> words;
    while (words.size() < count) {
      const Ref line = heap->Allocate(kLineBytes);
      for (Ref word = line; word < line + kLineWords; ++word) words.push_back(word);
    }
    return words;
  };
  std::vector<std::vector<Ref>> steady;
  std::vector<std::vector<Ref>> passing;
  for (int writer = 0; writer < kWriters; ++writer) {
    // One word more than blocks: the last one is where the next block moves to.
    steady.push_back(words_for(kSteady + 1));
    passing.push_back(words_for(kPassing));
    EpochGuard guard;
    for (uint64_t i = 0; i < kSteady; ++i)
      ASSERT_EQ(table->Insert(name_of(writer, i), steady.back()[i]).what,
                BlockTable::Inserted::kInserted);
  }
  std::atomic<int> running{kWriters};
  std::atomic<uint64_t> missed{0};
  std::vector<std::thread> threads;
  for (int writer = 0; writer < kWriters; ++writer) {
    threads.emplace_back([&, writer] {
      std::vector<Ref>& words = steady[static_cast<size_t>(writer)];
      Ref spare = words[kSteady];
      for (int round = 0; round < kRounds; ++round) {
        for (uint64_t i = 0; i < kPassing; ++i) {
          EpochGuard guard;
          const SequenceHash block = name_of(writer, kSteady + i);
          const Ref word = passing[static_cast<size_t>(writer)][i];
          if (round % 2 == 0) {
            table->Insert(block, word);
          } else {
            table->Erase(block, word);
          }
          const uint64_t moves = i % kSteady;
          heap->word(spare).store(Raw(name_of(writer, moves)), std::memory_order_release);
          table->Move(name_of(writer, moves), words[moves], spare);
          std::swap(words[moves], spare);
        }
        heap->Reclaim();
      }
      running.fetch_sub(1);
    });
  }
  for (int reader = 0; reader < kReaders; ++reader) {
    threads.emplace_back([&, reader] {
      std::mt19937_64 random(static_cast<uint64_t>(reader));
      while (running.load() != 0) {
        EpochGuard guard;
        const int writer = static_cast<int>(random() % kWriters);
        if (table->Find(name_of(writer, random() % kSteady)) == 0) missed.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(missed.load(), 0u);
  EXPECT_EQ(table->CountShape().entries, kWriters * kSteady);
}

// Full segments divide, with entries beside their homes in both halves; emptied ones become one
// again.
TEST(BlockTableTest, ManyAreFoundAndErasedAndTheDirectoryShrinks) {
  constexpr uint64_t kNames = 100'000;
  const std::unique_ptr<Heap> heap = Heap::Create(0);
  const std::unique_ptr<BlockTable> table = BlockTable::Create(heap.get(), 99);
  std::mt19937_64 random(5);
  std::vector<SequenceHash> names(kNames);
  for (SequenceHash& name : names) name = SequenceHash{random()};
  for (int round = 0; round < 2; ++round) {
    std::vector<Ref> words;
    EpochGuard guard;
    for (uint64_t i = 0; i < kNames; i += 100) {
      const std::span<const SequenceHash> some(&names[i], 100);
      const Ref first = heap->Allocate(100 * sizeof(uint64_t));
      for (Ref word = 0; word < 100; ++word) {
        heap->word(first + word).store(Raw(some[word]), std::memory_order_relaxed);
        words.push_back(first + word);
      }
      BlockTable::Inserted stopped;
      ASSERT_EQ(table->InsertMany(some, first, &stopped), 100u);
    }
    const BlockTable::Shape full = table->CountShape();
    EXPECT_EQ(full.entries, kNames);
    EXPECT_GT(full.segments, 100u);
    EXPECT_GT(full.displaced, 100u);
    EXPECT_GT(full.entries * 5 / 2, full.slots);
    for (uint64_t i = 0; i < kNames; ++i) ASSERT_EQ(table->Find(names[i]), words[i]) << i;
    table->EraseMany(std::span(names).first(kNames / 2), std::span(words).first(kNames / 2));
    for (uint64_t i = 0; i < kNames; ++i)
      ASSERT_EQ(table->Find(names[i]), i < kNames / 2 ? 0 : words[i]) << i;
    table->EraseMany(std::span(names).subspan(kNames / 2), std::span(words).subspan(kNames / 2));
    // The table shrinks in upkeep alone.
    EXPECT_EQ(table->CountShape().slots, full.slots);
    uint32_t cursor = 0;
    std::vector<Ref> left;
    while (table->CountShape().segments > 1) table->Maintain(&cursor, 1000, &left);
    EXPECT_TRUE(left.empty());
    const BlockTable::Shape empty = table->CountShape();
    EXPECT_EQ(empty.entries, 0u);
    EXPECT_EQ(empty.slots, 0u);
    EXPECT_EQ(empty.segments, 1u);
  }
}

// A step of growth is bounded, however large the table is; so is a step of upkeep.
TEST(BlockTableTest, NoStepMovesMoreThanASegment) {
  constexpr uint64_t kNames = 400'000;
  const std::unique_ptr<Heap> heap = Heap::Create(0);
  const std::unique_ptr<BlockTable> table = BlockTable::Create(heap.get(), 99);
  std::mt19937_64 random(6);
  std::vector<std::pair<SequenceHash, Ref>> names;
  for (uint64_t i = 0; i < kNames; i += kLineWords) {
    const Ref line = heap->Allocate(kLineBytes);
    for (Ref word = line; word < line + kLineWords; ++word) {
      names.emplace_back(SequenceHash{random()}, word);
      ASSERT_EQ(table->Insert(names.back().first, word).what, BlockTable::Inserted::kInserted);
    }
  }
  EXPECT_GT(table->longest_step(), 256u);
  EXPECT_LE(table->longest_step(), 512u);
  // Upkeep fills what erasing left: to 64 % of the slots, but for the last round's cursor.
  for (size_t i = 0; i < names.size(); ++i) {
    if (i % 8 != 0) table->Erase(names[i].first, names[i].second);
  }
  uint32_t cursor = 0;
  std::vector<Ref> left;
  for (int round = 0; round < 4; ++round) table->Maintain(&cursor, SIZE_MAX, &left);
  EXPECT_LE(table->longest_step(), 512u);
  const BlockTable::Shape shape = table->CountShape();
  EXPECT_EQ(shape.entries, kNames / 8);
  EXPECT_GT(shape.entries * 100, shape.slots * 60);
  for (size_t i = 0; i < names.size(); ++i)
    ASSERT_EQ(table->Find(names[i].first), i % 8 == 0 ? names[i].second : 0);
}

// The same while others look for what is there: some all the time, others once they are inserted.
TEST(BlockTableTest, WhatStaysIsFoundWhileSegmentsDivideAndMerge) {
  constexpr int kWriters = 1;
  constexpr int kReaders = 2;
  constexpr uint64_t kSteady = 300;
  constexpr uint64_t kPassing = 12'000;  // a writer
  constexpr uint64_t kRound = 1 << 20;
  constexpr int kRounds = 6;
  const std::unique_ptr<Heap> heap = Heap::Create(0);
  const std::unique_ptr<BlockTable> table = BlockTable::Create(heap.get(), 99);
  std::mt19937_64 random(11);
  const auto make = [&](uint64_t count, std::vector<SequenceHash>* names, std::vector<Ref>* words) {
    while (words->size() < count) {
      const Ref line = heap->Allocate(kLineBytes);
      for (Ref word = line; word < line + kLineWords; ++word) {
        names->push_back(SequenceHash{random()});
        words->push_back(word);
        heap->word(word).store(Raw(names->back()), std::memory_order_relaxed);
      }
    }
  };
  std::vector<SequenceHash> steady;
  std::vector<Ref> steady_words;
  make(kSteady, &steady, &steady_words);
  std::vector<SequenceHash> passing[kWriters];
  std::vector<Ref> passing_words[kWriters];
  for (int i = 0; i < kWriters; ++i) make(kPassing, &passing[i], &passing_words[i]);
  {
    EpochGuard guard;
    for (uint64_t i = 0; i < steady.size(); ++i) table->Insert(steady[i], steady_words[i]);
  }
  std::atomic<int> running{kWriters};
  std::atomic<uint64_t> inserted[kWriters] = {};  // this round, which is counted in kRound
  std::atomic<uint64_t> missed{0};
  std::vector<std::thread> threads;
  for (int writer = 0; writer < kWriters; ++writer) {
    threads.emplace_back([&, writer] {
      for (int round = 0; round < kRounds; ++round) {
        for (uint64_t i = 0; i < kPassing; ++i) {
          EpochGuard guard;
          if (round % 2 == 0) {
            table->Insert(passing[writer][i], passing_words[writer][i]);
            inserted[writer].store(static_cast<uint64_t>(round) * kRound + i + 1);
          } else {
            inserted[writer].store(static_cast<uint64_t>(round) * kRound);
            table->Erase(passing[writer][i], passing_words[writer][i]);
          }
        }
        heap->Reclaim();
      }
      running.fetch_sub(1);
    });
  }
  for (int reader = 0; reader < kReaders; ++reader) {
    threads.emplace_back([&, reader] {
      std::mt19937_64 choice(static_cast<uint64_t>(reader));
      while (running.load() != 0) {
        EpochGuard guard;
        const uint64_t i = choice() % steady.size();
        if (table->Find(steady[i]) != steady_words[i]) missed.fetch_add(1);
        const uint64_t writer = choice() % kWriters;
        const uint64_t before = inserted[writer].load();
        if (before % kRound == 0) continue;
        const uint64_t k = choice() % (before % kRound);
        if (table->Find(passing[writer][k]) != passing_words[writer][k] &&
            inserted[writer].load() / kRound == before / kRound)
          missed.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(missed.load(), 0u);
  EXPECT_EQ(table->CountShape().entries, steady.size());
}

TEST(BlockTableTest, WithoutMemoryAnInsertIsRefusedAndNothingIsLost) {
  const std::unique_ptr<Heap> heap = Heap::Create(0);
  const std::unique_ptr<BlockTable> table = BlockTable::Create(heap.get(), 1);
  const Ref word = heap->Allocate(128);
  heap->word(word).store(5, std::memory_order_relaxed);
  heap->FailPages(1);
  EpochGuard guard;
  EXPECT_EQ(table->Insert(SequenceHash{5}, word).what, BlockTable::Inserted::kNoMemory);
  EXPECT_EQ(table->Find(SequenceHash{5}), 0u);
  EXPECT_EQ(table->Insert(SequenceHash{5}, word).what, BlockTable::Inserted::kInserted);
  EXPECT_EQ(table->Find(SequenceHash{5}), word);
}

}  // namespace
}  // namespace kvatlas::atlas
