#include "indexer/leaf/checkpoint/file_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "indexer/leaf/checkpoint/checkpoint_store.h"

namespace kvatlas {
namespace {

std::string TestDirectory() {
  return testing::TempDir() + "/file_layer_test_" +
         testing::UnitTest::GetInstance()->current_test_info()->name();
}

TEST(FileLayerTest, WhatIsWrittenIsReadAgain) {
  FileLayer& files = FileLayer::Real();
  const std::string directory = TestDirectory() + "/a/b";
  ASSERT_TRUE(files.MakeDirectory(directory).ok());
  ASSERT_TRUE(files.MakeDirectory(directory).ok());
  {
    auto file = files.Create(directory + "/x");
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Append("hello ").ok());
    ASSERT_TRUE((*file)->Append("there").ok());
    ASSERT_TRUE((*file)->Sync().ok());
  }
  ASSERT_TRUE(files.Rename(directory + "/x", directory + "/y").ok());
  ASSERT_TRUE(files.SyncDirectory(directory).ok());
  EXPECT_EQ(*files.List(directory), std::vector<std::string>{"y"});
  const auto file = files.Open(directory + "/y");
  ASSERT_TRUE(file.ok());
  std::string bytes(100, ' ');
  const auto got = (*file)->Read(6, bytes.data(), bytes.size());
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(bytes.substr(0, *got), "there");
  EXPECT_EQ(*(*file)->Read(11, bytes.data(), bytes.size()), 0);
  ASSERT_TRUE(files.Remove(directory + "/y").ok());
  EXPECT_TRUE(absl::IsNotFound(files.Open(directory + "/y").status()));
}

TEST(FileLayerTest, SaysWhyNot) {
  FileLayer& files = FileLayer::Real();
  EXPECT_TRUE(absl::IsNotFound(files.Create(TestDirectory() + "/nowhere/x").status()));
  EXPECT_TRUE(absl::IsNotFound(files.List(TestDirectory() + "/nowhere").status()));
  // A device that is always full.
  const auto full = files.Create("/dev/full");
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_TRUE(absl::IsResourceExhausted((*full)->Append("x")));
  // A file where a directory is wanted.
  EXPECT_FALSE(files.MakeDirectory("/dev/null/checkpoints").ok());
}

TEST(FileLayerTest, ADirectoryHasOneOwner) {
  const std::string directory = TestDirectory();
  auto first = std::make_unique<CheckpointStore>(&FileLayer::Real(), directory, 3);
  ASSERT_TRUE(first->Open().ok());
  CheckpointStore second(&FileLayer::Real(), directory, 3);
  EXPECT_TRUE(absl::IsFailedPrecondition(second.Open()));
  first.reset();
  EXPECT_TRUE(second.Open().ok());
}

TEST(FileLayerTest, AStoreKeepsTheYoungestFilesAndForgetsWhatWasHalfWritten) {
  const std::string directory = TestDirectory();
  {
    CheckpointStore store(&FileLayer::Real(), directory, 2);
    ASSERT_TRUE(store.Open().ok());
    for (uint64_t number = 1; number <= 4; ++number)
      ASSERT_TRUE(
          store.Write(number, [](WritableFile* file) { return file->Append("bytes"); }).ok());
    EXPECT_EQ(*store.Numbers(), (std::vector<uint64_t>{4, 3}));
    EXPECT_FALSE(store.Write(5, [](WritableFile*) { return absl::UnavailableError("no"); }).ok());
    EXPECT_EQ(*store.Numbers(), (std::vector<uint64_t>{4, 3}));
  }
  ASSERT_TRUE(FileLayer::Real().Create(directory + "/checkpoint.tmp").ok());
  CheckpointStore again(&FileLayer::Real(), directory, 2);
  ASSERT_TRUE(again.Open().ok());
  EXPECT_EQ(*again.NextNumber(), 5);
  std::vector<std::string> names = *FileLayer::Real().List(directory);
  EXPECT_EQ(std::count(names.begin(), names.end(), "checkpoint.tmp"), 0);
}

}  // namespace
}  // namespace kvatlas
