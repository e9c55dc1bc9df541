#include "indexer/base/memory_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvatlas {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

TEST(MemoryBudgetTest, LevelsBeginAtTheirPartsAndEndALittleBelow) {
  uint64_t used = 0;
  MemoryBudget memory(1000, [&] { return used; });
  const auto at = [&](uint64_t bytes) {
    used = bytes;
    return memory.Measure().second;
  };
  EXPECT_EQ(at(0), MemoryLevel::kAmple);
  EXPECT_EQ(at(799), MemoryLevel::kAmple);
  EXPECT_EQ(at(800), MemoryLevel::kTight);
  EXPECT_EQ(at(785), MemoryLevel::kTight);
  EXPECT_EQ(at(779), MemoryLevel::kAmple);
  EXPECT_EQ(at(785), MemoryLevel::kAmple);
  EXPECT_EQ(at(960), MemoryLevel::kCritical);
  EXPECT_EQ(at(935), MemoryLevel::kCritical);
  EXPECT_EQ(at(925), MemoryLevel::kFull);
  EXPECT_EQ(at(885), MemoryLevel::kFull);
  EXPECT_EQ(at(100'000), MemoryLevel::kCritical);
  EXPECT_EQ(at(1), MemoryLevel::kAmple);
}

TEST(MemoryBudgetTest, WithoutABudgetAllIsAmple) {
  MemoryBudget memory(0, [] { return uint64_t{1} << 60; });
  EXPECT_EQ(memory.Measure().second, MemoryLevel::kAmple);
  EXPECT_TRUE(memory.Check(MemoryLevel::kTight, "anything").ok());
  EXPECT_TRUE(CheckMemory(nullptr, MemoryLevel::kTight, "anything").ok());
}

TEST(MemoryBudgetTest, ARefusalSaysHowFullItIs) {
  MemoryBudget memory(1000, [] { return 920; });
  memory.Measure();
  EXPECT_TRUE(memory.Check(MemoryLevel::kCritical, "large questions").ok());
  const absl::Status full = CheckMemory(&memory, MemoryLevel::kFull, "new domains");
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()),
              HasSubstr("memory is full (92 % of --memory_budget): no new domains"));
}

TEST(MemoryBudgetTest, PartsAndTheRest) {
  MemoryBudget memory(1000, [] { return 500; });
  memory.AddPart("index", [] { return 300; });
  memory.AddPart("names", [] { return 50; });
  memory.Measure();
  EXPECT_THAT(memory.Parts(),
              ElementsAre(Pair("index", 300), Pair("names", 50), Pair("rest", 150)));
}

TEST(MemoryBudgetTest, BytesUnitsAndPercent) {
  EXPECT_EQ(MemoryBudget::Parse("0", 1000).value(), 0u);
  EXPECT_EQ(MemoryBudget::Parse("8000000000", 1000).value(), 8'000'000'000u);
  EXPECT_EQ(MemoryBudget::Parse("3K", 1000).value(), 3072u);
  EXPECT_EQ(MemoryBudget::Parse("8G", 1000).value(), uint64_t{8} << 30);
  EXPECT_EQ(MemoryBudget::Parse("70%", 1000).value(), 700u);
  for (const char* const bad : {"", "%", "101%", "-1", "8 G", "8GB", "G", "99999999999999999999"})
    EXPECT_EQ(MemoryBudget::Parse(bad, 1000).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
}

}  // namespace
}  // namespace kvatlas
