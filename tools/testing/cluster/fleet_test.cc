#include "tools/testing/cluster/fleet.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

TEST(FleetTest, ChoosesTheWorkerThatHoldsThePromptWhereverItIs) {
  Fleet fleet({.cells = 3,
               .workers = 2,
               .engine = {.capacity_blocks = 100, .block_size = 16},
               .weights = {}});
  EXPECT_EQ(fleet.workers(), 6u);
  const std::vector<SequenceHash> prompt = {SequenceHash{1}, SequenceHash{2}, SequenceHash{3}};
  EXPECT_EQ(fleet.Best(prompt).overlap_blocks, 0u);
  EngineStep step;
  fleet.engine(4).Submit(0, {.id = 1, .blocks = prompt, .prompt_tokens = 48}, &step);
  fleet.AdvanceTo(1e9, &step);
  const Fleet::Choice best = fleet.Best(prompt);
  EXPECT_EQ(best.worker, 4u);
  EXPECT_EQ(best.overlap_blocks, 2u);  // never the last token
  EXPECT_EQ(fleet.Best(prompt, 49).overlap_blocks, 3u);
}

TEST(FleetTest, ALongQueueOutweighsAHit) {
  Fleet fleet({.cells = 1,
               .workers = 2,
               .engine = {.capacity_blocks = 1000, .block_size = 16},
               .weights = {}});
  const std::vector<SequenceHash> prompt = {SequenceHash{1}, SequenceHash{2}};
  std::vector<SequenceHash> long_prompt;
  for (uint64_t i = 0; i < 500; ++i) long_prompt.push_back(SequenceHash{100 + i});
  EngineStep step;
  fleet.engine(0).Submit(0, {.id = 1, .blocks = prompt, .prompt_tokens = 32}, &step);
  fleet.AdvanceTo(1e6, &step);
  fleet.engine(0).Submit(1e6, {.id = 2, .blocks = long_prompt, .prompt_tokens = 8000}, &step);
  EXPECT_EQ(fleet.Best(prompt).worker, 1u);
}

}  // namespace
}  // namespace kvatlas
