#include "indexer/security/curve.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "indexer/security/secret_file.h"

namespace kvatlas {
namespace {

TEST(CurveTest, AFileHasTheSecretAndThePublicKeyFollows) {
  const absl::StatusOr<CurveKeys> made = MakeCurveKeys();
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(CheckCurveKey(made->public_key).ok());
  const std::string path = testing::TempDir() + "/curve_test.key";
  ASSERT_TRUE(WriteFileByRename(path, made->secret_key + "\n", 0600).ok());
  const absl::StatusOr<CurveKeys> read = ReadCurveKeys(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->public_key, made->public_key);
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  EXPECT_FALSE(ReadCurveKeys(path).ok()) << "others may read it";
}

TEST(CurveTest, WhatIsNoKeyIsRefusedWithoutBeingSaid) {
  const std::string path = testing::TempDir() + "/curve_test.bad";
  for (const std::string& bad :
       {std::string("short"), std::string(40, '~'), std::string(41, 'a')}) {
    EXPECT_FALSE(CheckCurveKey(bad).ok()) << bad;
    ASSERT_TRUE(WriteFileByRename(path, bad, 0600).ok());
    const absl::Status status = ReadCurveKeys(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(std::string(status.message()).find(bad), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace kvatlas
