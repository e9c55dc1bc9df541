#include "indexer/process/c_api.h"

#include <pthread.h>

#include <stdexcept>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

struct Options {
  size_t struct_size;
  uint32_t old_field;
  uint32_t new_field;
};
constexpr size_t kOldSize = offsetof(Options, new_field);

void Init(Options* options, size_t struct_size) {
  InitStruct({.struct_size = struct_size, .old_field = 1, .new_field = 2}, options, struct_size);
}

TEST(CApiTest, TextsAreCutAndEnded) {
  char text[4] = {'x', 'x', 'x', 'x'};
  EXPECT_EQ(PutStatus(absl::NotFoundError("abcdef"), text, sizeof(text)), 5);
  EXPECT_STREQ(text, "abc");
  PutText("abc", text, 1);
  EXPECT_STREQ(text, "");
  PutText("abc", nullptr, 4);
  text[0] = 'y';
  PutText("abc", text, 0);
  EXPECT_EQ(text[0], 'y');
}

TEST(CApiTest, ExceptionsEndAsCodes) {
  EXPECT_EQ(Guarded([] { return int32_t{7}; }), 7);
  EXPECT_EQ(Guarded([]() -> int32_t { throw std::bad_alloc(); }), 8);
  EXPECT_EQ(Guarded([]() -> int32_t { throw std::runtime_error("x"); }), 13);
  EXPECT_STREQ(CodeName(8), "RESOURCE_EXHAUSTED");
  EXPECT_STREQ(CodeName(13), "INTERNAL");
  EXPECT_STREQ(CodeName(0), "OK");
  EXPECT_STREQ(CodeName(-1), "UNKNOWN");
}

TEST(CApiTest, AnOlderCallersStructKeepsItsSizeAndTheRestItsDefault) {
  Options old = {.struct_size = 0, .old_field = 9, .new_field = 9};
  Init(&old, kOldSize);
  EXPECT_EQ(old.struct_size, kOldSize);
  EXPECT_EQ(old.old_field, 1u);
  EXPECT_EQ(old.new_field, 9u) << "beyond what the caller has";
  old.old_field = 5;
  EXPECT_TRUE(IsInitialized(&old));
  const Options whole = Whole(old, &Init);
  EXPECT_EQ(whole.old_field, 5u);
  EXPECT_EQ(whole.new_field, 2u);
  PutStruct({.struct_size = sizeof(Options), .old_field = 6, .new_field = 6}, &old);
  EXPECT_EQ(old.struct_size, kOldSize);
  EXPECT_EQ(old.old_field, 6u);
  EXPECT_EQ(old.new_field, 9u);
  old.struct_size = 0;
  EXPECT_FALSE(IsInitialized(&old));
  EXPECT_FALSE(IsInitialized<Options>(nullptr));
  Init(nullptr, sizeof(Options));
}

TEST(CApiTest, SignalsAreBlockedForAWhile) {
  const auto blocked = [] {
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    return sigismember(&now, SIGUSR1) == 1;
  };
  EXPECT_FALSE(blocked());
  {
    const SignalsBlocked all;
    EXPECT_TRUE(blocked());
  }
  EXPECT_FALSE(blocked());
}

}  // namespace
}  // namespace kvatlas
