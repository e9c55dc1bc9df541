#include "frontend/doors/ext_proc/endpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(EndpointOfTest, AnAddressWithAPortOrAUrlOfOne) {
  EXPECT_EQ(EndpointOf("10.0.0.7:8000").value(), "10.0.0.7:8000");
  EXPECT_EQ(EndpointOf("http://10.0.0.7:8000").value(), "10.0.0.7:8000");
  EXPECT_EQ(EndpointOf("https://[fd00::1]:8000/v1").value(), "[fd00::1]:8000");
  for (const char* bad : {"", "10.0.0.7", "engine-3:8000", "10.0.0.7:0", "http://", "10.0.0.7:x"})
    EXPECT_FALSE(EndpointOf(bad).ok()) << bad;
}

TEST(EndpointsTest, ConfiguredForAWorkerOrForARankOfIt) {
  Endpoints endpoints;
  ASSERT_TRUE(endpoints.Configure("w=10.0.0.1:80").ok());
  ASSERT_TRUE(endpoints.Configure("w/1=10.0.0.2:80").ok());
  EXPECT_EQ(endpoints.Of({"w", 0, ""}), "10.0.0.1:80");
  EXPECT_EQ(endpoints.Of({"w", 1, ""}), "10.0.0.2:80");
  EXPECT_EQ(endpoints.Of({"x", 0, ""}), std::nullopt);
  for (const char* bad : {"", "w", "=10.0.0.1:80", "w=", "w/x=10.0.0.1:80", "w=host:80"})
    EXPECT_FALSE(endpoints.Configure(bad).ok()) << bad;
}

TEST(EndpointsTest, WhatIsConfiguredWinsOverWhatIsLearnt) {
  Endpoints endpoints;
  endpoints.Learn({"w", 0, ""}, "http://10.0.0.9:80");
  EXPECT_EQ(endpoints.Of({"w", 0, ""}), "10.0.0.9:80");
  endpoints.Learn({"w", 0, ""}, "http://10.0.0.8:80");
  EXPECT_EQ(endpoints.Of({"w", 0, ""}), "10.0.0.8:80");
  endpoints.Learn({"w", 0, ""}, "no endpoint");
  EXPECT_EQ(endpoints.Of({"w", 0, ""}), "10.0.0.8:80");
  ASSERT_TRUE(endpoints.Configure("w=10.0.0.1:80").ok());
  EXPECT_EQ(endpoints.Of({"w", 0, ""}), "10.0.0.1:80");
}

TEST(EndpointsTest, WhatLeadsOutsideIsNotLearnt) {
  Endpoints endpoints;
  const HolderId worker = {"w", 0, ""};
  for (const char* outside : {"http://8.8.8.8:80", "169.254.169.254:80", "[::ffff:8.8.8.8]:80"})
    endpoints.Learn(worker, outside);
  EXPECT_EQ(endpoints.Of(worker), std::nullopt);
  EXPECT_TRUE(endpoints.Configure("w=8.8.8.8:80").ok());
  EXPECT_EQ(endpoints.Of(worker), "8.8.8.8:80");
}

TEST(EndpointsTest, BackFromEndpointsToWorkers) {
  Endpoints endpoints;
  ASSERT_TRUE(endpoints.Configure("a/0=10.0.0.1:80").ok());
  ASSERT_TRUE(endpoints.Configure("a/1=10.0.0.1:80").ok());
  endpoints.Learn({"b", 0, ""}, "10.0.0.2:80");
  const std::vector<std::string> subset = {"10.0.0.2:80", "10.0.0.1:80", "10.0.0.3:80"};
  EXPECT_THAT(endpoints.NamesAt(subset), ElementsAre("a", "b"));
  EXPECT_EQ(endpoints.At("10.0.0.1:80"), (HolderId{"a", 0, ""}));
  EXPECT_EQ(endpoints.At("10.0.0.3:80"), std::nullopt);
  endpoints.Learn({"b", 0, ""}, "10.0.0.4:80");
  EXPECT_THAT(endpoints.NamesAt(std::vector<std::string>{"10.0.0.2:80"}), IsEmpty());
}

TEST(EndpointsTest, AllByTurns) {
  Endpoints endpoints;
  EXPECT_EQ(endpoints.Next(), std::nullopt);
  ASSERT_TRUE(endpoints.Configure("a=10.0.0.1:80").ok());
  ASSERT_TRUE(endpoints.Configure("b=10.0.0.2:80").ok());
  EXPECT_EQ(endpoints.Next(), "10.0.0.1:80");
  EXPECT_EQ(endpoints.Next(), "10.0.0.2:80");
  EXPECT_EQ(endpoints.Next(), "10.0.0.1:80");
}

TEST(EndpointsTest, WhoWasNotReachedIsPassedOver) {
  Endpoints endpoints;
  endpoints.Reached("10.0.0.1:80", false);
  ASSERT_TRUE(endpoints.Configure("a=10.0.0.1:80").ok());
  ASSERT_TRUE(endpoints.Configure("b=10.0.0.2:80").ok());
  endpoints.Reached("10.0.0.1:80", false);
  for (uint32_t i = 0; i < kTurnsPassedOver; ++i) EXPECT_EQ(endpoints.Next(), "10.0.0.2:80");
  EXPECT_EQ(endpoints.Next(), "10.0.0.1:80") << "it may be back";
  endpoints.Reached("10.0.0.1:80", false);
  endpoints.Reached("10.0.0.1:80", true);
  EXPECT_EQ(endpoints.Next(), "10.0.0.2:80");
  EXPECT_EQ(endpoints.Next(), "10.0.0.1:80");
  endpoints.Reached("10.0.0.1:80", false);
  endpoints.Reached("10.0.0.2:80", false);
  for (int i = 0; i < 4; ++i) EXPECT_NE(endpoints.Next(), std::nullopt);
}

TEST(EndpointsTest, WhatIsLearntIsBounded) {
  Endpoints endpoints;
  ASSERT_TRUE(endpoints.Configure("configured=10.0.0.1:80").ok());
  for (size_t i = 0; i <= kEndpointsMax; ++i)
    endpoints.Learn({"w" + std::to_string(i), 0, ""}, "10.0.0.2:80");
  EXPECT_EQ(endpoints.Of({"w0", 0, ""}), std::nullopt);
  EXPECT_EQ(endpoints.Of({"w" + std::to_string(kEndpointsMax), 0, ""}), "10.0.0.2:80");
  EXPECT_EQ(endpoints.Of({"configured", 0, ""}), "10.0.0.1:80");
}

}  // namespace
}  // namespace kvatlas
