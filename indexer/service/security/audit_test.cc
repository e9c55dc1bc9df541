#include "indexer/service/security/audit.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

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
  ASSERT_TRUE(Await([&] { return LinesOf(path_).size() == 1; }, std::chrono::seconds(30)));
  ASSERT_EQ(rename(path_.c_str(), (path_ + ".1").c_str()), 0);
  (*log)->Write({.event = "two", .identity = ""});
  ASSERT_TRUE(Await([&] { return LinesOf(path_).size() == 1; }, std::chrono::seconds(30)));
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

TEST_F(AuditLogTest, ALinkOrAFolderIsNotWrittenTo) {
  ASSERT_EQ(symlink("/tmp/elsewhere", path_.c_str()), 0);
  EXPECT_FALSE(AuditLog::Open(path_, "p").ok());
  EXPECT_FALSE(AuditLog::Open("/", "p").ok());
  EXPECT_TRUE(AuditLog::Open("", "p").ok());
}

}  // namespace
}  // namespace kvatlas
