// The heap gives memory back and fails politely; the table is a map.

#include "indexer/index/atlas/block_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
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
