#include "indexer/net/message_account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace kvatlas {
namespace {

using testing::HasSubstr;
using Refused = MessageAccount::Refused;

constexpr size_t kMiB = 1 << 20;

TEST(MessageAccountTest, WhatIsAdmittedCountsUntilItIsGivenBack) {
  MessageAccount account(10 * kMiB);
  {
    absl::StatusOr<MessageAccount::Charge> first = account.Admit(6 * kMiB);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(first->bytes(), 6 * kMiB);
    EXPECT_EQ(account.bytes(), 6 * kMiB);
    const absl::Status second = account.Admit(5 * kMiB).status();
    EXPECT_EQ(second.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(second.message()), HasSubstr("--memory_budget"));
    EXPECT_EQ(account.bytes(), 6 * kMiB) << "what is refused leaves nothing";
    MessageAccount::Charge moved = *std::move(first);
    EXPECT_EQ(account.bytes(), 6 * kMiB);
    moved = {};
    EXPECT_EQ(account.bytes(), 0u);
    moved = *account.Admit(7 * kMiB);
    moved = *account.Admit(1 * kMiB);
    EXPECT_EQ(account.bytes(), 1 * kMiB);
  }
  EXPECT_EQ(account.bytes(), 0u);
  EXPECT_EQ(account.refused(Refused::kTooMany), 1u);
  EXPECT_EQ(account.refused(Refused::kTooLarge), 0u);
}

TEST(MessageAccountTest, SmallMessagesGoOnWhereAllIsTaken) {
  MessageAccount account(kMiB);
  const absl::StatusOr<MessageAccount::Charge> all = account.Admit(kMiB);
  ASSERT_TRUE(all.ok());
  const absl::StatusOr<MessageAccount::Charge> small = account.Admit(kSmallMessageBytes);
  ASSERT_TRUE(small.ok());
  EXPECT_FALSE(small->charged());
  EXPECT_EQ(small->bytes(), kSmallMessageBytes);
  EXPECT_FALSE(account.Admit(kSmallMessageBytes + 1).ok());
  EXPECT_TRUE(account.Admit(kSmallMessageBytes + 1, /*charged=*/false).ok());
}

TEST(MessageAccountTest, OneMessageHasABoundOfItsOwn) {
  MessageAccount account(4 * kParsedBytesMax);
  EXPECT_TRUE(account.Admit(kParsedBytesMax).ok());
  EXPECT_FALSE(account.Admit(kParsedBytesMax + 1).ok());
  EXPECT_FALSE(account.Admit(kParsedBytesMax + 1, /*charged=*/false).ok());
  EXPECT_EQ(account.refused(Refused::kTooLarge), 2u);
}

TEST(MessageAccountTest, AnEighthOfTheBudgetIsForMessages) {
  MessageAccount account(kMiB);
  account.SetBudget(0);
  EXPECT_EQ(account.bytes_max(), kMiB) << "no budget";
  account.SetBudget(1024 * kMiB);
  EXPECT_EQ(account.bytes_max(), 128 * kMiB);
  account.SetBudget(kMiB);
  EXPECT_EQ(account.bytes_max(), 16 * kMiB) << "ordinary prompts go on";
  EXPECT_GT(MessageAccount::OfProcess().bytes_max(), 16 * kMiB);
}

}  // namespace
}  // namespace kvatlas
