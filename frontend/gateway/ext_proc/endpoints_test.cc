#include "frontend/gateway/ext_proc/endpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

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
  EndpointSet subset;
  subset.Add("10.0.0.2:80,10.0.0.1:80,10.0.0.3:80");
  EXPECT_THAT(endpoints.NamesAt(subset), ElementsAre("a", "b"));
  EXPECT_EQ(endpoints.At("10.0.0.1:80"), (HolderId{"a", 0, ""}));
  EXPECT_EQ(endpoints.At("10.0.0.3:80"), std::nullopt);
  endpoints.Learn({"b", 0, ""}, "10.0.0.4:80");
  EndpointSet former;
  former.Add("10.0.0.2:80");
  EXPECT_THAT(endpoints.NamesAt(former), IsEmpty());
}

TEST(EndpointsTest, WithMembersWhatIsConfiguredOfOthersIsNotThere) {
  Endpoints endpoints;
  endpoints.OfMembersAlone();
  for (const char* entry : {"a=10.0.0.1:80", "b/1=10.0.0.2:80", "c=10.0.0.3:80"})
    ASSERT_TRUE(endpoints.Configure(entry).ok());
  EXPECT_THAT(endpoints.Names(), IsEmpty());
  EXPECT_EQ(endpoints.Next(), std::nullopt);
  endpoints.Join({"a", 3, ""});
  endpoints.Join({"b", 0, ""});
  EXPECT_EQ(endpoints.Of({"a", 3, ""}), "10.0.0.1:80");
  EXPECT_EQ(endpoints.Of({"a", 0, ""}), std::nullopt) << "this rank is not a member";
  EXPECT_EQ(endpoints.Of({"b", 1, ""}), std::nullopt);
  EXPECT_THAT(endpoints.Names(), ElementsAre("a"));
  endpoints.Join({"b", 1, ""});
  EndpointSet subset;
  subset.Add("10.0.0.1,10.0.0.2,10.0.0.3");
  EXPECT_THAT(endpoints.NamesAt(subset), ElementsAre("a", "b"));
  EXPECT_EQ(endpoints.Next(), "10.0.0.1:80");
  EXPECT_EQ(endpoints.Next(), "10.0.0.2:80");
  EXPECT_EQ(endpoints.Next(), "10.0.0.1:80");
  endpoints.Forget({"a", 3, ""});
  EXPECT_EQ(endpoints.Of({"a", 3, ""}), std::nullopt);
  EXPECT_THAT(endpoints.Names(), ElementsAre("b"));
  EXPECT_EQ(endpoints.Next(), "10.0.0.2:80");
  EXPECT_EQ(endpoints.Next(), "10.0.0.2:80");
}

TEST(EndpointsTest, WhatIsConfiguredForAWorkerIsNamedInThePlaceOfWhatItsRanksSay) {
  Endpoints endpoints;
  ASSERT_TRUE(endpoints.Configure("w=10.0.0.1:80").ok());
  endpoints.Learn({"w", 0, ""}, "10.0.0.8:80");
  endpoints.Learn({"w", 1, ""}, "10.0.0.9:80");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(endpoints.Next(), "10.0.0.1:80");
  EndpointSet subset;
  subset.Add("10.0.0.8:80");
  EXPECT_THAT(endpoints.NamesAt(subset), IsEmpty());
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

// ---- Sets of a gateway ----

TEST(EndpointSetTest, AnAddressWithoutAPortMeansAllThatIsThere) {
  EndpointSet set;
  set.Add(" 10.0.0.1:80, nonsense,10.0.0.2 ,[fd00::1], fd00::2, [fd00::3]:80,fe80::1%eth0");
  for (const char* in : {"10.0.0.1:80", "10.0.0.2:80", "10.0.0.2:81", "[fd00::1]:8000",
                         "[fd00::2]:1", "[fd00::3]:80"})
    EXPECT_TRUE(set.Contains(in)) << in;
  for (const char* out : {"10.0.0.1:81", "10.0.0.20:80", "[fd00::3]:81", "[fd00::]:1"})
    EXPECT_FALSE(set.Contains(out)) << out;
  EXPECT_EQ(set.entries().size(), 5u);
  EXPECT_TRUE(EndpointSet().empty());
}

TEST(EndpointsTest, WhoIsAtAPodWhateverThePort) {
  Endpoints endpoints;
  for (const char* entry :
       {"a/0=10.0.0.1:80", "a/1=10.0.0.1:81", "b=10.0.0.10:80", "c=[fd00::1]:80"})
    ASSERT_TRUE(endpoints.Configure(entry).ok());
  EndpointSet set;
  set.Add("10.0.0.1,fd00::1");
  EXPECT_THAT(endpoints.NamesAt(set), ElementsAre("a", "c"));
  std::set<std::string> turns;
  for (int i = 0; i < 6; ++i) turns.insert(endpoints.Next({}, &set).value());
  EXPECT_THAT(turns, ElementsAre("10.0.0.1:80", "10.0.0.1:81", "[fd00::1]:80"));
}

// ---- Host names ----

TEST(EndpointsTest, AWorkerWithAHostNameHasAnEndpointOnceTheNameIsResolved) {
  Endpoints endpoints;
  int asked = 0;
  endpoints.OnNewHostName([&asked] { ++asked; });
  const HolderId worker = {"w", 0, ""};
  endpoints.Learn(worker, "http://vllm-0.llm.svc:8000");
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(endpoints.Of(worker), std::nullopt);
  EXPECT_THAT(endpoints.HostNames(), ElementsAre("vllm-0.llm.svc"));
  endpoints.Resolved("vllm-0.llm.svc", std::vector<std::string>{"10.0.0.7", "10.0.0.7"});
  EXPECT_EQ(endpoints.Of(worker), "10.0.0.7:8000");
  endpoints.Learn({"w", 1, ""}, "http://vllm-0.llm.svc:8001");
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(endpoints.Of({"w", 1, ""}), "10.0.0.7:8001");
  endpoints.Resolved("vllm-0.llm.svc", std::vector<std::string>{"10.0.0.8"});
  EXPECT_EQ(endpoints.Of(worker), "10.0.0.8:8000") << "the pod has moved";
  EXPECT_EQ(endpoints.At("10.0.0.7:8000"), std::nullopt);
  endpoints.Resolved("vllm-0.llm.svc", absl::UnavailableError("the resolver is away"));
  EXPECT_EQ(endpoints.Of(worker), "10.0.0.8:8000") << "what was known stays";
  endpoints.Forget(worker);
  endpoints.Forget({"w", 1, ""});
  EXPECT_THAT(endpoints.HostNames(), IsEmpty());
  EXPECT_EQ(endpoints.Of(worker), std::nullopt);
}

// No request goes to where the worker was.
TEST(EndpointsTest, AWorkerThatHasANameNowHasNoEndpointUntilItIsResolved) {
  Endpoints endpoints;
  const HolderId worker = {"w", 0, ""};
  endpoints.Learn(worker, "http://10.0.0.3:8000");
  endpoints.Learn(worker, "http://vllm-0:8000");
  EXPECT_EQ(endpoints.Of(worker), std::nullopt);
  endpoints.Resolved("vllm-0", std::vector<std::string>{"10.0.0.4"});
  EXPECT_EQ(endpoints.Of(worker), "10.0.0.4:8000");
  endpoints.Learn(worker, "http://vllm-0:8000");
  EXPECT_EQ(endpoints.Of(worker), "10.0.0.4:8000");
  endpoints.Learn(worker, "http://vllm-1:8000");
  EXPECT_EQ(endpoints.Of(worker), std::nullopt);
}

TEST(EndpointsTest, AHostNameOfSeveralAddressesOrOneOutsideGivesNone) {
  Endpoints endpoints;
  const HolderId worker = {"w", 0, ""};
  endpoints.Learn(worker, "http://vllm:8000");
  endpoints.Resolved("vllm", std::vector<std::string>{"::1", "127.0.0.1"});
  EXPECT_EQ(endpoints.Of(worker), "127.0.0.1:8000") << "of one family each";
  endpoints.Resolved("vllm", std::vector<std::string>{"10.0.0.1", "10.0.0.2"});
  EXPECT_EQ(endpoints.Of(worker), std::nullopt) << "it is not known which it is";
  endpoints.Resolved("vllm", std::vector<std::string>{"8.8.8.8"});
  EXPECT_EQ(endpoints.Of(worker), std::nullopt);
  endpoints.Learn(worker, "http://10.0.0.3:8000");
  EXPECT_EQ(endpoints.Of(worker), "10.0.0.3:8000");
  EXPECT_THAT(endpoints.HostNames(), IsEmpty());
}

}  // namespace
}  // namespace kvatlas
