#include "indexer/process/memory_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/memory_budget.h"
#include "indexer/telemetry/process_memory.h"

namespace kvatlas {
namespace {

constexpr size_t kPieceBytes = 16 << 10;
constexpr size_t kPieces = (96 << 20) / kPieceBytes;

// A block that lives at the end keeps the allocator from giving back anything before it.
TEST(MemoryWatchTest, WhatWasFreedGoesBackToTheSystemBehindWhatLives) {
  MemoryBudget memory(0, ResidentBytes);
  MemoryWatch watch(&memory);
  watch.Tick();
  const uint64_t before = ResidentBytes();
  std::vector<std::unique_ptr<char[]>> pieces;
  for (size_t i = 0; i < kPieces; ++i) {
    pieces.push_back(std::make_unique_for_overwrite<char[]>(kPieceBytes));
    std::memset(pieces.back().get(), 'x', kPieceBytes);
  }
  const std::unique_ptr<char[]> last = std::move(pieces.back());
  pieces.clear();
  ASSERT_GT(ResidentBytes(), before + (64 << 20));
  const Time until = Clock::Real().Now() + std::chrono::seconds(60);
  while (ResidentBytes() > before + (32 << 20) && Clock::Real().Now() < until) watch.Tick();
  EXPECT_LT(ResidentBytes(), before + (32 << 20)) << last[0];
}

}  // namespace
}  // namespace kvatlas
