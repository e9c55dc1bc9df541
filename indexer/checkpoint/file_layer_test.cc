#include "indexer/checkpoint/file_layer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "indexer/checkpoint/checkpoint_store.h"

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
  EXPECT_GT(files.FreeBytes(directory).value_or(0), 0u);
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
  EXPECT_TRUE(absl::IsNotFound(files.FreeBytes(TestDirectory() + "/nowhere").status()));
  // No file may have any bytes.
  ASSERT_TRUE(files.MakeDirectory(TestDirectory()).ok());
  const auto full = files.Create(TestDirectory() + "/full");
  ASSERT_TRUE(full.ok()) << full.status();
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  const auto signal_before = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const absl::Status written = (*full)->Append("x");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, signal_before);
  EXPECT_TRUE(absl::IsResourceExhausted(written)) << written;
  // A file where a directory is wanted.
  EXPECT_FALSE(files.MakeDirectory("/dev/null/checkpoints").ok());
}

mode_t ModeOf(const std::string& path) {
  struct stat found = {};
  EXPECT_EQ(lstat(path.c_str(), &found), 0) << path;
  return found.st_mode & 07777;
}

TEST(FileLayerTest, WhatItMakesCanBeReadByItsOwnerAlone) {
  const std::string directory = TestDirectory();
  CheckpointStore store(&FileLayer::Real(), directory, 2);
  ASSERT_TRUE(store.Open().ok());
  // An old version left one that all may read.
  const std::string temporary = directory + "/checkpoint.tmp";
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(fchmod(fd, 0644), 0);
  close(fd);
  ASSERT_TRUE(store.Write(1, [](WritableFile* file) { return file->Append("bytes"); }).ok());
  EXPECT_EQ(ModeOf(store.PathOf(1)), 0600);
  EXPECT_EQ(ModeOf(directory + "/LOCK"), 0600);
}

TEST(FileLayerTest, NoSymbolicLinkIsFollowed) {
  FileLayer& files = FileLayer::Real();
  const std::string directory = TestDirectory();
  ASSERT_TRUE(files.MakeDirectory(directory).ok());
  const std::string victim = directory + "/victim";
  {
    auto file = files.Create(victim);
    ASSERT_TRUE(file.ok() && (*file)->Append("precious").ok());
  }
  const auto is_untouched = [&] {
    const auto file = files.Open(victim);
    std::string bytes(100, ' ');
    return file.ok() && bytes.substr(0, *(*file)->Read(0, bytes.data(), 100)) == "precious";
  };
  const std::string link = directory + "/link";
  ASSERT_EQ(symlink(victim.c_str(), link.c_str()), 0);
  EXPECT_FALSE(files.Open(link).ok());
  EXPECT_FALSE(files.Lock(link).ok());
  {
    auto file = files.Create(link);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Append("other").ok());
  }
  EXPECT_TRUE(is_untouched());
  // A hard link is the same file under another name.
  const std::string hard = directory + "/hard";
  ASSERT_EQ(::link(victim.c_str(), hard.c_str()), 0);
  ASSERT_TRUE(files.Create(hard).ok());
  EXPECT_TRUE(is_untouched());
  // The directory itself may be reached through one: that is how operators place it.
  ASSERT_EQ(symlink(directory.c_str(), (directory + "_elsewhere").c_str()), 0);
  EXPECT_TRUE(files.Open(directory + "_elsewhere/victim").ok());
}

TEST(FileLayerTest, WhatIsNoRegularFileIsNotRead) {
  FileLayer& files = FileLayer::Real();
  const std::string directory = TestDirectory();
  ASSERT_TRUE(files.MakeDirectory(directory).ok());
  const std::string fifo = directory + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsUnavailable(files.Open(fifo).status()));  // and returns at once
  EXPECT_TRUE(absl::IsUnavailable(files.Open("/dev/null").status()));
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

TEST(FileLayerTest, TheLastNumberIsNotFollowedByTheFirst) {
  const std::string directory = TestDirectory();
  CheckpointStore store(&FileLayer::Real(), directory, 2);
  ASSERT_TRUE(store.Open().ok());
  const auto fill = [](WritableFile* file) { return file->Append("bytes"); };
  ASSERT_TRUE(store.Write(UINT64_MAX - 1, fill).ok());
  EXPECT_EQ(*store.NextNumber(), UINT64_MAX);
  ASSERT_TRUE(store.Write(UINT64_MAX, fill).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(store.NextNumber().status()));
  // Also where this process did not write it.
  CheckpointStore other(&FileLayer::Real(), directory, 2);
  EXPECT_TRUE(absl::IsFailedPrecondition(other.NextNumber().status()));
  EXPECT_EQ(*other.Numbers(), (std::vector<uint64_t>{UINT64_MAX, UINT64_MAX - 1}));
}

}  // namespace
}  // namespace kvatlas
