#include "indexer/process/build_version.h"

#include <gtest/gtest.h>

#include <string>

#include "indexer/base/version.h"

namespace kvatlas {
namespace {

TEST(BuildVersionTest, ABuildWithoutACommitSaysItsVersionAlone) {
  EXPECT_EQ(BuildVersion(kUnknownCommit), kVersion);
}

TEST(BuildVersionTest, AReleaseNamesItsCommit) {
  EXPECT_EQ(BuildVersion("1f0c"), std::string(kVersion) + " (commit 1f0c)");
  EXPECT_FALSE(BuildCommit().empty());
}

}  // namespace
}  // namespace kvatlas
