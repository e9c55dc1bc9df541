#include "frontend/cluster_client/peer_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "indexer/base/clock.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PeerWatchTest : public testing::Test {
 protected:
  PeerWatchTest() { ConfigureLog({.component = "test", .fd = fileno(file_)}); }
  ~PeerWatchTest() override {
    ConfigureLog({});
    std::fclose(file_);
  }

  // The log's text since the last call.
  std::string Logged() {
    std::string text;
    std::fseek(file_, read_, SEEK_SET);
    for (int c = 0; (c = std::fgetc(file_)) != EOF;) text += static_cast<char>(c);
    read_ += static_cast<long>(text.size());
    return text;
  }
  size_t Lines() {
    const std::string text = Logged();
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  std::FILE* const file_ = std::tmpfile();
  long read_ = 0;
  ManualClock clock_;
  PeerWatch watch_{"leaf", "10.0.0.1:7410", &clock_};
};

// Before a request comes, and so a question is asked.
TEST_F(PeerWatchTest, APeerThatWasNeverAskedIsSaidToBeAway) {
  watch_.NotConnected();
  EXPECT_THAT(Logged(), AllOf(HasSubstr("event=unreachable"), HasSubstr("10.0.0.1:7410"),
                              HasSubstr("no connection can be made")));
  watch_.NotConnected();
  EXPECT_EQ(Lines(), 0u);
  clock_.Advance(std::chrono::seconds(61));
  watch_.NotConnected();
  EXPECT_EQ(Lines(), 1u);
  watch_.Answered();
  EXPECT_THAT(Logged(), HasSubstr("event=connected"));
}

TEST_F(PeerWatchTest, EachChangeIsSaidOnceWithAddressAndReason) {
  watch_.Answered();
  EXPECT_THAT(Logged(), AllOf(HasSubstr("event=connected"), HasSubstr("10.0.0.1:7410")));
  watch_.Answered();
  EXPECT_EQ(Lines(), 0u);
  for (int i = 0; i < 5; ++i) watch_.Ended(absl::UnavailableError("Connection refused"));
  const std::string text = Logged();
  EXPECT_THAT(text, AllOf(HasSubstr("event=\"connection lost\""), HasSubstr("10.0.0.1:7410"),
                          HasSubstr("Connection refused"), HasSubstr("connection=leaf")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  watch_.Ended(absl::NotFoundError("no such domain"));
  EXPECT_THAT(Logged(), HasSubstr("connected again"));
}

TEST_F(PeerWatchTest, ItIsSaidAgainOnceAMinute) {
  watch_.Failed("x");
  EXPECT_EQ(Lines(), 1u);
  clock_.Advance(std::chrono::seconds(59));
  watch_.Failed("x");
  EXPECT_EQ(Lines(), 0u);
  clock_.Advance(std::chrono::seconds(1));
  watch_.Failed("x");
  EXPECT_THAT(Logged(), HasSubstr("still unreachable"));
}

// Where nothing is asked, it would be unreachable for ever.
TEST_F(PeerWatchTest, APeerThatCameBackIsConnectedBeforeItIsAsked) {
  watch_.ConnectionStands();
  EXPECT_EQ(watch_.Get().state, "connecting") << "it was never asked";
  watch_.Ended(absl::UnavailableError("Connection refused"));
  watch_.ConnectionStands();
  EXPECT_EQ(watch_.Get().state, "unreachable") << "it has just failed";
  clock_.Advance(PeerWatch::kQuietMin);
  watch_.ConnectionStands();
  EXPECT_EQ(watch_.Get().state, "connected");
  EXPECT_TRUE(watch_.reached());
  // A peer that answers nothing has connections too.
  for (uint32_t i = 0; i < PeerWatch::kLateMax; ++i)
    watch_.Ended(absl::DeadlineExceededError("late"));
  clock_.Advance(PeerWatch::kQuietMin);
  watch_.ConnectionStands();
  EXPECT_EQ(watch_.Get().state, "unreachable");
  watch_.Answered();
  EXPECT_EQ(watch_.Get().state, "connected");
}

TEST_F(PeerWatchTest, OneLateAnswerIsNoOutageAndManyAre) {
  watch_.Answered();
  Logged();
  const absl::Status late = absl::DeadlineExceededError("late");
  for (uint32_t i = 0; i + 1 < PeerWatch::kLateMax; ++i) watch_.Ended(late);
  watch_.Answered();
  for (uint32_t i = 0; i + 1 < PeerWatch::kLateMax; ++i) watch_.Ended(late);
  EXPECT_EQ(Lines(), 0u);
  watch_.Ended(late);
  EXPECT_THAT(Logged(), HasSubstr("no answer in time"));
}

}  // namespace
}  // namespace kvatlas
