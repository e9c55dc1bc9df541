#include "frontend/serve/stream_break.h"

#include <gtest/gtest.h>

#include <chrono>

namespace kvatlas {
namespace {

using std::chrono::seconds;

ConnectionStatus Since(ConnectionState state, int seconds_ago) {
  return {.state = state, .reason = "", .since = seconds(seconds_ago)};
}

TEST(StreamBreakTest, AStreamThatIsAwayBrokeWhenItWent) {
  StreamBreak breaks;
  breaks.Look(0, Since(ConnectionState::kConnected, 5), Time(seconds(10)));
  EXPECT_EQ(breaks.last(), Time(0));
  breaks.Look(0, Since(ConnectionState::kConnected, 10), Time(seconds(15)));
  EXPECT_EQ(breaks.last(), Time(0));
  breaks.Look(0, Since(ConnectionState::kUnreachable, 2), Time(seconds(20)));
  EXPECT_EQ(breaks.last(), Time(seconds(18)));
  // It is back since a while.
  breaks.Look(0, Since(ConnectionState::kConnected, 3), Time(seconds(25)));
  EXPECT_EQ(breaks.last(), Time(seconds(18)));
}

TEST(StreamBreakTest, OneThatCameBackBetweenTwoLooksBrokeAfterTheFirst) {
  StreamBreak breaks;
  breaks.Look(0, Since(ConnectionState::kConnected, 5), Time(seconds(10)));
  breaks.Look(0, Since(ConnectionState::kConnected, 1), Time(seconds(12)));
  EXPECT_EQ(breaks.last(), Time(seconds(10)));
}

TEST(StreamBreakTest, TheLatestOfAllStreamsCounts) {
  StreamBreak breaks;
  breaks.Look(0, Since(ConnectionState::kUnreachable, 1), Time(seconds(10)));
  breaks.Look(1, Since(ConnectionState::kUnreachable, 4), Time(seconds(10)));
  EXPECT_EQ(breaks.last(), Time(seconds(9)));
}

}  // namespace
}  // namespace kvatlas
