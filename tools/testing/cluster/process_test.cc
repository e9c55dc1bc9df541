#include "tools/testing/cluster/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <fstream>

namespace kvatlas {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

std::string TempFile(const std::string& name) {
  return std::string(std::getenv("TEST_TMPDIR")) + "/" + name;
}

// A shell script as a service; its arguments are in "$@".
ProcessOptions Script(const std::string& name, const std::string& script) {
  return {.name = name,
          .binary = "/bin/sh",
          .args = {"-c", script, "sh", "--grpc=127.0.0.1:0"},
          .log = TempFile(name + ".log")};
}

TEST(ProcessTest, ReadsAddressesFromTheReadyLineAndEndsOnKill) {
  Process process(
      Script("ready", "echo x ready grpc=127.0.0.1:17 http=127.0.0.1:18; exec sleep 1000"));
  ASSERT_TRUE(process.Start(seconds(30)).ok());
  EXPECT_EQ(process.address("grpc"), "127.0.0.1:17");
  EXPECT_EQ(process.address("http"), "127.0.0.1:18");
  EXPECT_EQ(process.address("other"), "");
  const pid_t pid = process.pid();
  process.Kill();
  EXPECT_FALSE(process.running());
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST(ProcessTest, AProcessThatEndsEarlyIsAnErrorThatQuotesItsLog) {
  Process process(Script("fails", "echo no such disk >&2; exit 3"));
  const absl::Status status = process.Start(seconds(30));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no such disk"));
  EXPECT_FALSE(process.running());
}

TEST(ProcessTest, ABinaryThatDoesNotExistIsAnError) {
  Process process(
      {.name = "none", .binary = "/no/such/binary", .args = {}, .log = TempFile("none.log")});
  EXPECT_FALSE(process.Start(seconds(30)).ok());
}

TEST(ProcessTest, ARestartTakesThePortOfTheFirstStart) {
  Process process(
      Script("again", "echo \"$@\" >&2; echo x ready grpc=127.0.0.1:17; exec sleep 1000"));
  ASSERT_TRUE(process.Start(seconds(30)).ok());
  process.Kill();
  ASSERT_TRUE(process.Start(seconds(30)).ok());
  EXPECT_EQ(TailOf(TempFile("again.log"), 5),
            "  --grpc=127.0.0.1:0 --exit_with_parent\n  --grpc=127.0.0.1:17 --exit_with_parent\n");
}

TEST(ProcessTest, StopWaitsForAGracefulEnd) {
  Process process(
      Script("graceful",
             "trap 'echo stopped >&2; exit 0' TERM; echo x ready; while :; do sleep 0.01; done"));
  ASSERT_TRUE(process.Start(seconds(30)).ok());
  process.Stop(seconds(30));
  EXPECT_EQ(TailOf(TempFile("graceful.log"), 1), "  stopped\n");
}

}  // namespace
}  // namespace kvatlas
