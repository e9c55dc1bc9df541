// The heap gives memory back and fails politely; the table is a map.

#include "indexer/index/atlas/block_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
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

// Random inserts, moves and erases of names, beside a map; names that differ in few bits among them.
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

// Some blocks are there all the time, and only change places, where others follow them; others come and go, so that
// segments grow, split and shrink and entries live beside their homes. Nobody ever misses the first.
TEST(BlockTableTest, WhatStaysIsFoundWhileItMovesAndOthersComeAndGo) {
  constexpr int kWriters = 2;
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
