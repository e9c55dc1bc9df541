#include "indexer/process/path_flag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

namespace kvatlas {
namespace {

using ::testing::HasSubstr;

std::string Folder() { return std::getenv("TEST_TMPDIR"); }

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(PathFlagTest, ADirectoryIsThereOrCanBeMade) {
  EXPECT_TRUE(CheckDirectoryToWrite(Folder()).ok());
  EXPECT_TRUE(CheckDirectoryToWrite(Folder() + "/").ok());
  EXPECT_TRUE(CheckDirectoryToWrite(Folder() + "/a/b//c/").ok());
  EXPECT_TRUE(CheckDirectoryToWrite("a/b").ok());
  const std::string file = Folder() + "/file";
  std::ofstream(file) << "x";
  EXPECT_THAT(Message(CheckDirectoryToWrite(file)), HasSubstr("file: Not a directory"));
  EXPECT_THAT(Message(CheckDirectoryToWrite(file + "/a/b")), HasSubstr("Not a directory"));
}

TEST(PathFlagTest, AFileIsThereOrItsDirectoryIs) {
  const std::string file = Folder() + "/log";
  EXPECT_TRUE(CheckFileToWrite(file).ok());
  std::ofstream(file) << "x";
  EXPECT_TRUE(CheckFileToWrite(file).ok());
  EXPECT_TRUE(CheckFileToWrite("log").ok());
  EXPECT_TRUE(CheckFileToWrite("/dev/null").ok());
  EXPECT_THAT(Message(CheckFileToWrite(Folder())), HasSubstr("Is a directory"));
  EXPECT_THAT(Message(CheckFileToWrite(Folder() + "/none/log")),
              HasSubstr("none/log: No such file or directory"));
  EXPECT_THAT(Message(CheckFileToWrite(file + "/log")), HasSubstr("Not a directory"));
}

}  // namespace
}  // namespace kvatlas
