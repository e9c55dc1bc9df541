#include "indexer/kv_events/decoder_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvatlas {
namespace {

TEST(DecoderArenaTest, WhatWasHandedOutStaysWhereItIs) {
  DecoderArena arena(64 << 20);
  std::vector<uint64_t*> rooms;
  for (uint64_t i = 0; i < 3000; ++i) {
    uint64_t* const room = arena.Allocate<uint64_t>(i);
    ASSERT_NE(room, nullptr);
    std::fill_n(room, i, i);
    rooms.push_back(room);
  }
  for (uint64_t i = 0; i < rooms.size(); ++i) {
    EXPECT_EQ(std::count(rooms[i], rooms[i] + i, i), static_cast<ptrdiff_t>(i));
  }
}

TEST(DecoderArenaTest, ReleaseGivesTheSameRoomAgain) {
  DecoderArena arena(1 << 20);
  arena.Allocate<uint64_t>(10);
  const DecoderArena::Mark mark = arena.mark();
  uint64_t* const room = arena.Allocate<uint64_t>(10);
  arena.Allocate<uint64_t>(50'000);
  arena.Release(mark);
  EXPECT_EQ(arena.Allocate<uint64_t>(10), room);
}

TEST(DecoderArenaTest, BeyondTheBoundThereIsNothing) {
  DecoderArena arena(1024);
  EXPECT_EQ(arena.Allocate<uint64_t>(129), nullptr);
  EXPECT_EQ(arena.Allocate<uint64_t>(SIZE_MAX / 8), nullptr);
  EXPECT_NE(arena.Allocate<uint64_t>(100), nullptr);
  EXPECT_EQ(arena.Allocate<uint64_t>(29), nullptr);
  EXPECT_NE(arena.Allocate<uint64_t>(28), nullptr);
  arena.Reset();
  EXPECT_NE(arena.Allocate<uint64_t>(128), nullptr);
}

TEST(DecoderArenaTest, FramesOfOneSizeNeedNoMoreMemoryAfterTheSecond) {
  DecoderArena arena(64 << 20);
  size_t held = 0;
  for (int frame = 0; frame < 5; ++frame) {
    arena.Reset();
    for (int i = 0; i < 100; ++i) arena.Allocate<uint64_t>(5'000);
    if (frame == 1) held = arena.Held();
    if (frame > 1) {
      EXPECT_EQ(arena.Held(), held);
    }
  }
}

TEST(DecoderArenaTest, MemoryOfAnExceptionalFrameIsGivenBack) {
  DecoderArena arena(256 << 20);
  ASSERT_NE(arena.Allocate<uint8_t>(100 << 20), nullptr);
  arena.Reset();
  EXPECT_LE(arena.Held(), DecoderArena::kKeptBytesMax);
}

}  // namespace
}  // namespace kvatlas
