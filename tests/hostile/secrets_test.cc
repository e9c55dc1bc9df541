// A Redis password that a process was given: who can read it afterwards?

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/hostile/raw_socket.h"
#include "tests/hostile/siege.h"
#include "tools/testing/cluster/process.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;

constexpr char kSecret[] = "hunter2";
// Nothing listens there: what goes wrong is told too.
constexpr char kUrl[] = "redis://:hunter2@127.0.0.1:1";

std::string PathOf(const std::string& name) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  return std::string(folder == nullptr ? "/tmp" : folder) + "/" + name;
}

std::string WriteUrl(const std::string& name, mode_t mode) {
  const std::string path = PathOf(name);
  std::ofstream(path) << kUrl << "\n";
  EXPECT_EQ(chmod(path.c_str(), mode), 0);
  return path;
}

std::vector<std::string> ArgsOf(const std::string& program, const std::string& url,
                                const std::string& url_in_list) {
  if (program == kFrontend)
    return {"--hierarchy=" + url_in_list, "--leaves=" + url_in_list, "--announce=" + url};
  std::vector<std::string> args = {"--parents=" + url_in_list, "--announce=" + url};
  if (program == kLeaf) args.insert(args.end(), {"--redis=" + url, "--cell=c"});
  return args;
}

std::string CommandLineOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class SecretsTest : public testing::TestWithParam<const char*> {
 protected:
  static void ExpectNotTold(const Siege& siege) {
    for (const char* path :
         {"/", "/status", "/metrics", "/healthz", "/ready", "/debug", "/peers"}) {
      const std::string answer = HttpGet(siege.http(), path, seconds(60)).value_or("");
      EXPECT_NE(answer, "") << path;
      EXPECT_EQ(answer.find(kSecret), std::string::npos) << path << ": " << answer;
    }
    EXPECT_EQ(siege.LogTail(1000).find(kSecret), std::string::npos) << siege.LogTail(1000);
  }
};

TEST_P(SecretsTest, APasswordOnTheCommandLineIsWarnedAboutAndToldNobody) {
  Siege siege(
      {.program = GetParam(), .args = ArgsOf(GetParam(), kUrl, kUrl), .watch_when_ready = false});
  ASSERT_TRUE(siege.ok());
  ExpectNotTold(siege);
  const std::string log = siege.LogTail(1000);
  EXPECT_NE(log.find("a Redis password is on the command line"), std::string::npos) << log;
  EXPECT_NE(log.find("flag=--announce"), std::string::npos) << log;
}

TEST_P(SecretsTest, OneInAFileIsOnNoCommandLine) {
  const std::string path = WriteUrl("redis-url", 0600);
  Siege siege({.program = GetParam(),
               .args = ArgsOf(GetParam(), "@" + path, "redis://@" + path),
               .watch_when_ready = false});
  ASSERT_TRUE(siege.ok());
  EXPECT_EQ(CommandLineOf(siege.pid()).find(kSecret), std::string::npos);
  ExpectNotTold(siege);
  EXPECT_EQ(siege.LogTail(1000).find("on the command line"), std::string::npos);
}

TEST_P(SecretsTest, WhatStopsAStartDoesNotTellIt) {
  const std::string open_to_all = WriteUrl("redis-url-of-all", 0644);
  for (const std::string& bad :
       {"--announce=@" + open_to_all, std::string("--announce=rediss://:hunter2@h"),
        std::string("--no_such_flag=redis://:hunter2@h"),
        std::string("--stop_deadline=redis://:hunter2@h"),
        std::string(GetParam() == std::string(kFrontend) ? "--hierarchy" : "--parents") +
            "=a=h:1|redis://:hunter2@h"}) {
    Process process({.name = "refused",
                     .binary = GetParam(),
                     .args = {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", bad},
                     .log = PathOf("refused.log")});
    const absl::Status started = process.Start(seconds(60));
    EXPECT_FALSE(started.ok()) << bad;
    EXPECT_EQ(started.ToString().find(kSecret), std::string::npos) << started;
    EXPECT_EQ(TailOf(PathOf("refused.log"), 1000).find(kSecret), std::string::npos) << bad;
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, SecretsTest, testing::Values(kLeaf, kHierarchy, kFrontend),
                         [](const auto& info) {
                           const std::string path = info.param;
                           return path.substr(path.rfind('-') + 1);
                         });

}  // namespace
}  // namespace kvatlas
