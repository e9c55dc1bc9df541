#include "indexer/telemetry/tracing/trace_context.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace kvatlas {
namespace {

constexpr char kExample[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceContextTest, ExampleOfTheStandardIsRead) {
  const std::optional<TraceContext> context = ParseTraceparent(kExample);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_high, 0x4bf92f3577b34da6u);
  EXPECT_EQ(context->trace_low, 0xa3ce929d0e0e4736u);
  EXPECT_EQ(context->span, 0x00f067aa0ba902b7u);
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(ToTraceparent(*context), kExample);
}

TEST(TraceContextTest, WhatIsNotExactlyOfTheFormIsNone) {
  const std::string ok = kExample;
  for (const std::string& bad :
       {std::string(), ok.substr(1), ok + "0", ok + "-00", "ff" + ok.substr(2), "0" + ok,
        std::string("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"),
        std::string("00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
        std::string("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"),
        std::string("00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        std::string("00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01"),
        std::string("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01x")}) {
    EXPECT_EQ(ParseTraceparent(bad), std::nullopt) << bad;
  }
}

TEST(TraceContextTest, LaterVersionsAreReadAsFarAsTheyAreKnown) {
  EXPECT_TRUE(ParseTraceparent("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-later"));
  EXPECT_FALSE(
      ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")->sampled);
  EXPECT_TRUE(ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff")->sampled);
}

TEST(TraceContextTest, AnyContextComesBackFromItsText) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 1000; ++i) {
    const TraceContext context{.trace_high = i % 3 == 0 ? 0 : random(),
                               .trace_low = random() | 1,
                               .span = random() | 1,
                               .sampled = i % 2 == 0};
    EXPECT_EQ(ParseTraceparent(ToTraceparent(context)), context);
  }
  EXPECT_EQ(ToTraceparent({}), "");
}

}  // namespace
}  // namespace kvatlas
