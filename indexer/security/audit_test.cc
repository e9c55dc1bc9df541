#include "indexer/security/audit.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "indexer/base/await.h"

namespace kvatlas {
namespace {

std::vector<nlohmann::json> LinesOf(const std::string& path) {
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

class AuditLogTest : public testing::Test {
 protected:
  AuditLogTest() {
    std::string directory = testing::TempDir() + "/audit_XXXXXX";
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    path_ = directory + "/audit.log";
  }
  std::string path_;
};

TEST_F(AuditLogTest, ALineSaysWhoWhatAndWhyWhateverTheNames) {
  {
    auto log = AuditLog::Open(path_, "kvatlas-leaf");
    ASSERT_TRUE(log.ok()) << log.status();
    (*log)->Write({.event = "hello",
                   .allowed = false,
                   .identity = "worker/a/1",
                   .peer = "10.0.0.7",
                   .verb = "publish",
                   .target = "holder=\"x\"\n{\xff",
                   .reason = "r"});
  }
  const std::vector<nlohmann::json> lines = LinesOf(path_);
  ASSERT_EQ(lines.size(), 1);
  EXPECT_EQ(lines[0]["event"], "hello");
  EXPECT_EQ(lines[0]["allowed"], false);
  EXPECT_EQ(lines[0]["identity"], "worker/a/1");
  EXPECT_EQ(lines[0]["process"], "kvatlas-leaf");
  struct stat status = {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600);
}

TEST_F(AuditLogTest, AFileThatWasRenamedIsMadeAnew) {
  auto log = AuditLog::Open(path_, "p");
  ASSERT_TRUE(log.ok());
  (*log)->Write({.event = "one", .identity = ""});
  ASSERT_TRUE(Await([&] { return LinesOf(path_).size() == 1; }, std::chrono::seconds(60)));
  ASSERT_EQ(rename(path_.c_str(), (path_ + ".1").c_str()), 0);
  (*log)->Write({.event = "two", .identity = ""});
  ASSERT_TRUE(Await([&] { return LinesOf(path_).size() == 1; }, std::chrono::seconds(60)));
  EXPECT_EQ(LinesOf(path_)[0]["event"], "two");
  EXPECT_EQ(LinesOf(path_ + ".1").size(), 1);
}

TEST_F(AuditLogTest, WhatHadNoRoomIsCounted) {
  auto log = AuditLog::Open(path_, "p");
  ASSERT_TRUE(log.ok());
  constexpr uint64_t kLines = 200'000;
  for (uint64_t i = 0; i < kLines; ++i) (*log)->Write({.event = "e", .identity = ""});
  EXPECT_EQ((*log)->lines(), kLines);
  const uint64_t dropped = (*log)->dropped();
  log->reset();
  size_t written = 0;
  for (const nlohmann::json& line : LinesOf(path_)) written += line["event"] == "e";
  EXPECT_EQ(written + dropped, kLines);
}

// A file that takes no more, as on a full disk: the cut line stands on a line of its own, and the
// log says how many are missing.
TEST_F(AuditLogTest, AfterAFullDiskLinesAreWholeAgainAndTellOfTheLost) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit unbounded = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &unbounded), 0);
  auto log = AuditLog::Open(path_, "p");
  ASSERT_TRUE(log.ok());
  rlimit bounded = unbounded;
  bounded.rlim_cur = 1030;  // within a line
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &bounded), 0);
  uint64_t written = 0;
  EXPECT_TRUE(Await(
      [&] {
        (*log)->Write({.event = "e", .identity = ""});
        ++written;
        return (*log)->dropped() > 0;
      },
      std::chrono::seconds(60)));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &unbounded), 0);
  (*log)->Write({.event = "e", .identity = ""});
  ++written;
  log->reset();
  std::ifstream file(path_);
  uint64_t whole = 0, told = 0, cut = 0;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_discarded()) {
      ++cut;
    } else if (json["event"] == "lost") {
      told += std::stoull(json["reason"].get<std::string>());
    } else {
      ++whole;
    }
  }
  EXPECT_EQ(cut, 1u);
  EXPECT_GT(told, 0u);
  EXPECT_EQ(whole + told, written);
}

// Neither the start, nor a line, nor the end waits for the reader of a FIFO.
TEST_F(AuditLogTest, AFifoHoldsUpNothing) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  auto log = AuditLog::Open(path_, "p");
  ASSERT_TRUE(log.ok()) << log.status();
  (*log)->Write({.event = "before", .identity = ""});
  const int reader = open(path_.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  std::string read_so_far;
  const auto reads = [&] {
    char bytes[1 << 12];
    for (ssize_t got; (got = read(reader, bytes, sizeof(bytes))) > 0;)
      read_so_far.append(bytes, static_cast<size_t>(got));
    return read_so_far;
  };
  EXPECT_TRUE(
      Await([&] { return reads().find("before") != std::string::npos; }, std::chrono::seconds(60)));
  // More than a FIFO takes, which is read no more.
  constexpr uint64_t kLines = 2000;
  for (uint64_t i = 0; i < kLines; ++i) (*log)->Write({.event = "e", .identity = ""});
  EXPECT_EQ((*log)->lines(), kLines + 1);
  log->reset();
  const std::string last = reads();
  size_t whole = 0;
  for (size_t at = last.find("\"e\""); at != std::string::npos; at = last.find("\"e\"", at + 1))
    ++whole;
  EXPECT_GT(whole, 0u);
  EXPECT_LT(whole, kLines);
  close(reader);
}

TEST_F(AuditLogTest, ALinkOrAFolderIsNotWrittenTo) {
  ASSERT_EQ(symlink("/tmp/elsewhere", path_.c_str()), 0);
  EXPECT_FALSE(AuditLog::Open(path_, "p").ok());
  EXPECT_FALSE(AuditLog::Open("/", "p").ok());
  EXPECT_TRUE(AuditLog::Open("", "p").ok());
}

}  // namespace
}  // namespace kvatlas
