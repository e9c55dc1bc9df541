#include "indexer/net/connection_watch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class ConnectionWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(pipe2(fds_.data(), O_NONBLOCK), 0);
    LogOptions options;
    options.fd = fds_[1];
    ConfigureLog(options);
  }
  void TearDown() override {
    ConfigureLog({});
    for (const int fd : fds_) close(fd);
  }

  // The records that were logged since the last call.
  std::vector<std::string> Said() {
    std::string all;
    char buffer[1 << 16];
    for (ssize_t n; (n = read(fds_[0], buffer, sizeof(buffer))) > 0;) all.append(buffer, n);
    std::vector<std::string> lines;
    std::istringstream stream(all);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }

  std::array<int, 2> fds_;
  ManualClock clock_;
  ConnectionWatch watch_{"engine events", "tcp://h:1", {{"worker", "w7"}}, &clock_};
};

TEST_F(ConnectionWatchTest, EachChangeIsSaidOnceAndSuccessToo) {
  for (int i = 0; i < 3; ++i) watch_.Set(ConnectionState::kUnreachable, "Connection refused");
  EXPECT_THAT(Said(), ElementsAre(AllOf(
                          HasSubstr("level=warning"), HasSubstr("event=unreachable"),
                          HasSubstr("connection=\"engine events\" worker=w7 endpoint=tcp://h:1"),
                          HasSubstr("reason=\"Connection refused\""))));
  clock_.Advance(seconds(12));
  for (int i = 0; i < 3; ++i) watch_.Set(ConnectionState::kConnected);
  EXPECT_THAT(Said(), ElementsAre(AllOf(HasSubstr("level=info"), HasSubstr("event=connected "),
                                        HasSubstr("after=12s"), Not(HasSubstr("reason")))));
  watch_.Set(ConnectionState::kUnreachable, "it closed");
  EXPECT_THAT(Said(), ElementsAre(HasSubstr("event=\"connection lost\"")));
  clock_.Advance(seconds(3));
  watch_.Set(ConnectionState::kConnected);
  EXPECT_THAT(Said(),
              ElementsAre(AllOf(HasSubstr("event=\"connected again\""), HasSubstr("after=3s"))));
}

TEST_F(ConnectionWatchTest, WhatLastsIsSaidOnceAMinuteWithTheLatestReason) {
  watch_.Set(ConnectionState::kUnreachable, "no address");
  Said();
  for (int second = 0; second < 180; ++second) {
    clock_.Advance(seconds(1));
    watch_.Set(ConnectionState::kUnreachable, "Connection refused");
  }
  const std::vector<std::string> said = Said();
  ASSERT_THAT(said, SizeIs(3));
  EXPECT_THAT(said[2], AllOf(HasSubstr("event=\"still unreachable\""), HasSubstr("for=3m"),
                             HasSubstr("reason=\"Connection refused\"")));
  watch_.Set(ConnectionState::kConnected);
  Said();
  for (int second = 0; second < 180; ++second) {
    clock_.Advance(seconds(1));
    watch_.Set(ConnectionState::kConnected);
  }
  EXPECT_THAT(Said(), IsEmpty());
}

TEST_F(ConnectionWatchTest, WhatNeverGetsAnywhereIsSaidToo) {
  watch_.Tick();
  EXPECT_THAT(Said(), IsEmpty());
  clock_.Advance(seconds(60));
  watch_.Tick();
  EXPECT_THAT(Said(),
              ElementsAre(AllOf(HasSubstr("event=\"still connecting\""), HasSubstr("for=1m"))));
}

TEST_F(ConnectionWatchTest, OneThatComesAndGoesFillsNoLog) {
  for (int i = 0; i < 1000; ++i) {
    watch_.Set(ConnectionState::kConnected);
    watch_.Set(ConnectionState::kUnreachable, "it closed");
  }
  EXPECT_THAT(Said(), SizeIs(ConnectionWatch::kChangesPerMinute));
  clock_.Advance(seconds(60));
  watch_.Tick();
  EXPECT_THAT(Said(), ElementsAre(AllOf(HasSubstr("event=\"still unreachable\""),
                                        HasSubstr("changes=1994"))));
}

TEST_F(ConnectionWatchTest, SaysItsStateInWords) {
  EXPECT_EQ(watch_.Get().ToString(), "connecting");
  watch_.Set(ConnectionState::kUnreachable, "Connection refused");
  EXPECT_EQ(watch_.Get().ToString(), "unreachable: tcp://h:1: Connection refused");
  EXPECT_FALSE(watch_.Get().ever);
  watch_.Set(ConnectionState::kConnected);
  EXPECT_EQ(watch_.Get().ToString(), "connected");
  EXPECT_TRUE(watch_.Get().ever);
}

TEST_F(ConnectionWatchTest, AStatusSaysWhetherItIsUnreachableOrRefuses) {
  watch_.Set(std::nullopt);
  EXPECT_EQ(watch_.Get().state, ConnectionState::kConnecting);
  watch_.Set(absl::UnavailableError("stopping"));
  EXPECT_EQ(watch_.Get().state, ConnectionState::kUnreachable);
  watch_.Set(absl::FailedPreconditionError("another block size"));
  EXPECT_EQ(watch_.Get().ToString(), "refused: tcp://h:1: another block size");
  watch_.Set(absl::OkStatus());
  EXPECT_EQ(watch_.Get().state, ConnectionState::kConnected);
}

TEST_F(ConnectionWatchTest, ARefusalIsAnErrorAndSoIsAnotherOne) {
  for (const char* why : {"another block size", "another block size", "another contract"})
    watch_.Set(absl::FailedPreconditionError(why));
  EXPECT_THAT(
      Said(),
      ElementsAre(AllOf(HasSubstr("level=error event=refused"), HasSubstr("another block size")),
                  AllOf(HasSubstr("level=error event=refused"), HasSubstr("another contract"))));
}

TEST(EveryMinuteTest, IsDueAtOnceAndThenEveryMinuteWhileItHolds) {
  EveryMinute every;
  EXPECT_FALSE(every.Due(false, Time(0)));
  EXPECT_TRUE(every.Due(true, Time(0)));
  EXPECT_FALSE(every.Due(true, seconds(59)));
  EXPECT_TRUE(every.Due(true, seconds(60)));
  EXPECT_FALSE(every.Due(false, seconds(61)));
  EXPECT_FALSE(every.Due(true, seconds(62))) << "it comes and goes";
  EXPECT_TRUE(every.Due(true, seconds(120)));
}

}  // namespace
}  // namespace kvatlas
