#include "indexer/registry/holder.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/index/index.h"
#include "indexer/index/side_index.h"

namespace kvatlas {
namespace {

TEST(HolderTest, OneThatIsForgottenIsNotDumpedWithWhatItsNumbersNextOwnerHolds) {
  const std::unique_ptr<Index> index = *MakeIndex("atlas", {});
  SideIndex sides(/*bytes_max=*/0);
  PendingBlocks pending(PendingOptions{});
  DomainCounters counters;
  ManualClock clock;
  const auto add = [&](const std::string& name) {
    return std::make_unique<Holder>(
        index.get(), &sides, *index->AddHolder(), nullptr, &pending, &counters,
        HolderInfo{.id = {name, 0, ""}, .address = "", .labels = {}}, clock.Now());
  };
  const std::unique_ptr<Holder> first = add("first");
  const Event one = Stored{.blocks = {SequenceHash{1}}};
  ASSERT_TRUE(first->ApplyLocal({&one, 1}).status.ok());
  const absl::StatusOr<HolderDump> before = first->Dump(clock.Now());
  ASSERT_TRUE(before.ok());
  EXPECT_EQ(before->runs.size(), 1u);

  // Found by a caller that dumps it later, it is forgotten and swept, and its number is given to
  // another.
  first->Retire();
  while (first->Sweep(100)) {
  }
  index->RemoveHolder(first->number());
  const std::unique_ptr<Holder> second = add("second");
  ASSERT_EQ(second->number(), first->number());
  const Event two = Stored{.blocks = {SequenceHash{2}, SequenceHash{3}}};
  ASSERT_TRUE(second->ApplyLocal({&two, 1}).status.ok());

  EXPECT_TRUE(absl::IsNotFound(first->Dump(clock.Now()).status()));
  EXPECT_EQ(second->Dump(clock.Now())->runs.size(), 1u);
}

}  // namespace
}  // namespace kvatlas
