#include "indexer/process/shard_map_flag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace kvatlas {
namespace {

using testing::HasSubstr;

class ShardMapFlagTest : public testing::Test {
 protected:
  ShardMapFlagTest() : path_(std::string(std::getenv("TEST_TMPDIR")) + "/nodes") {}

  void Write(const std::string& text) { std::ofstream(path_) << text; }

  const std::string path_;
};

TEST_F(ShardMapFlagTest, WhatStandsOnTheCommandLineNeverChanges) {
  absl::StatusOr<ShardMapFlag> flag = ShardMapFlag::Read("--parents", "a=h:1|h:2,b=h:3");
  ASSERT_TRUE(flag.ok());
  EXPECT_EQ(flag->map().ToString(), "a=h:1|h:2,b=h:3");
  EXPECT_FALSE(flag->Changed().has_value());
  EXPECT_TRUE(ShardMapFlag::Read("--parents", "")->map().empty());
}

TEST_F(ShardMapFlagTest, AFileIsReadAgain) {
  Write("h:1\n");
  absl::StatusOr<ShardMapFlag> flag = ShardMapFlag::Read("--parents", "@" + path_);
  ASSERT_TRUE(flag.ok()) << flag.status();
  EXPECT_EQ(flag->map().ToString(), "h:1");
  EXPECT_FALSE(flag->Changed().has_value());
  Write("  a=h:1,b=h:2 \n");
  EXPECT_EQ(flag->Changed()->ToString(), "a=h:1,b=h:2");
  EXPECT_FALSE(flag->Changed().has_value());
  EXPECT_EQ(flag->map().ToString(), "a=h:1,b=h:2");
}

TEST_F(ShardMapFlagTest, AFileThatIsGoneOrBrokenChangesNothing) {
  Write("a=h:1,b=h:2");
  absl::StatusOr<ShardMapFlag> flag = ShardMapFlag::Read("--parents", "@" + path_);
  for (const char* text : {"", "a=", "nonsense", "h:99999"}) {
    Write(text);
    EXPECT_FALSE(flag->Changed().has_value()) << text;
  }
  std::remove(path_.c_str());
  EXPECT_FALSE(flag->Changed().has_value());
  EXPECT_EQ(flag->map().ToString(), "a=h:1,b=h:2");
  Write("a=h:1,b=h:2");
  EXPECT_FALSE(flag->Changed().has_value()) << "it is as it was";
  Write("a=h:1,b=h:3");
  EXPECT_TRUE(flag->Changed().has_value());
}

TEST_F(ShardMapFlagTest, AtTheStartWhatIsWrongIsNamed) {
  for (const std::string& value :
       {std::string("x"), std::string("h:99999"), "@" + path_ + "/none"}) {
    const absl::StatusOr<ShardMapFlag> flag = ShardMapFlag::Read("--parents", value);
    ASSERT_FALSE(flag.ok()) << value;
    EXPECT_THAT(std::string(flag.status().message()), HasSubstr("--parents: "));
  }
}

}  // namespace
}  // namespace kvatlas
