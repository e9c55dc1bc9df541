#include "indexer/discovery/endpoint_slices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvatlas {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json Endpoint(const std::string& address, Json conditions = Json::object(),
              const std::string& pod = "") {
  Json endpoint = {{"addresses", {address}}, {"conditions", std::move(conditions)}};
  if (!pod.empty()) endpoint["targetRef"] = {{"kind", "Pod"}, {"uid", pod}};
  return endpoint;
}

Json Slice(const std::string& name, std::vector<Json> endpoints, int version = 1,
           const std::string& family = "IPv4") {
  return {{"metadata", {{"name", name}, {"resourceVersion", std::to_string(version)}}},
          {"addressType", family},
          {"endpoints", endpoints},
          {"ports", {{{"name", "grpc"}, {"port", 7410}}, {{"name", "http"}, {"port", 8090}}}}};
}

std::string List(std::vector<Json> slices, int version, const std::string& next = "") {
  return Json{{"kind", "EndpointSliceList"},
              {"metadata", {{"resourceVersion", std::to_string(version)}, {"continue", next}}},
              {"items", slices}}
      .dump();
}

std::string Event(const std::string& type, const Json& object) {
  return Json{{"type", type}, {"object", object}}.dump();
}

class EndpointSlicesTest : public testing::Test {
 protected:
  std::vector<std::string> Addresses() {
    return slices_.Addresses().value_or(std::vector<std::string>{"none"});
  }
  std::string Why() { return std::string(slices_.Addresses().status().message()); }

  EndpointSlices slices_{K8sService{.service = "leaf"}};
};

TEST_F(EndpointSlicesTest, ReadyEndpointsCountAndThoseThatSayNothing) {
  ASSERT_EQ(
      *slices_.ReadPage(List(
          {Slice("s",
                 {Endpoint("10.0.0.1", {{"ready", true}}), Endpoint("10.0.0.2", {{"ready", false}}),
                  Endpoint("10.0.0.3"), Endpoint("10.0.0.4", {{"ready", nullptr}}),
                  Endpoint("10.0.0.5",
                           {{"ready", false}, {"serving", true}, {"terminating", true}})})},
          7)),
      "");
  EXPECT_THAT(Addresses(), ElementsAre("10.0.0.1:7410", "10.0.0.3:7410", "10.0.0.4:7410"));
  EXPECT_EQ(slices_.resource_version(), "7");
}

TEST_F(EndpointSlicesTest, AListOfSeveralPagesCountsWhenItIsWhole) {
  ASSERT_TRUE(slices_.ReadPage(List({Slice("old", {Endpoint("10.0.0.9")})}, 3)).ok());
  EXPECT_EQ(*slices_.ReadPage(List({Slice("a", {Endpoint("10.0.0.1")})}, 8, "more")), "more");
  EXPECT_THAT(Addresses(), ElementsAre("10.0.0.9:7410"));
  EXPECT_EQ(slices_.resource_version(), "3");
  EXPECT_EQ(*slices_.ReadPage(List({Slice("b", {Endpoint("10.0.0.2")})}, 8)), "");
  EXPECT_THAT(Addresses(), ElementsAre("10.0.0.1:7410", "10.0.0.2:7410"));
  // A list that breaks off is forgotten, and the next one begins anew.
  EXPECT_EQ(*slices_.ReadPage(List({Slice("c", {Endpoint("10.0.0.3")})}, 9, "more")), "more");
  EXPECT_TRUE(absl::IsInvalidArgument(slices_.ReadPage("{").status()));
  EXPECT_EQ(*slices_.ReadPage(List({Slice("d", {Endpoint("10.0.0.4")})}, 10)), "");
  EXPECT_THAT(Addresses(), ElementsAre("10.0.0.4:7410"));
}

TEST_F(EndpointSlicesTest, EventsChangeOneSliceAndMoveTheVersion) {
  ASSERT_TRUE(slices_.ReadPage(List({Slice("a", {Endpoint("10.0.0.1")})}, 1)).ok());
  ASSERT_TRUE(slices_.ReadEvent(Event("ADDED", Slice("b", {Endpoint("10.0.0.2")}, 2))).ok());
  EXPECT_THAT(Addresses(), ElementsAre("10.0.0.1:7410", "10.0.0.2:7410"));
  ASSERT_TRUE(slices_.ReadEvent(Event("MODIFIED", Slice("b", {Endpoint("10.0.0.3")}, 3))).ok());
  ASSERT_TRUE(slices_.ReadEvent(Event("DELETED", Slice("a", {Endpoint("10.0.0.1")}, 4))).ok());
  EXPECT_THAT(Addresses(), ElementsAre("10.0.0.3:7410"));
  ASSERT_TRUE(
      slices_.ReadEvent(Event("BOOKMARK", {{"metadata", {{"resourceVersion", "90"}}}})).ok());
  EXPECT_EQ(slices_.resource_version(), "90");
  EXPECT_THAT(Addresses(), ElementsAre("10.0.0.3:7410"));
}

TEST_F(EndpointSlicesTest, AnEndpointInTwoSlicesIsReadyWhereItIsReady) {
  ASSERT_TRUE(slices_
                  .ReadPage(List({Slice("a", {Endpoint("10.0.0.1", {{"ready", false}}, "p")}),
                                  Slice("b", {Endpoint("10.0.0.1", {{"ready", true}}, "p")})},
                                 1))
                  .ok());
  EXPECT_THAT(Addresses(), ElementsAre("10.0.0.1:7410"));
}

TEST_F(EndpointSlicesTest, OfAPodWithBothFamiliesTheIpv4AddressCounts) {
  ASSERT_TRUE(
      slices_
          .ReadPage(List({Slice("six", {Endpoint("fd00::1", {}, "p"), Endpoint("fd00::2", {}, "q")},
                                1, "IPv6"),
                          Slice("four", {Endpoint("10.0.0.1", {}, "p")})},
                         1))
          .ok());
  EXPECT_THAT(Addresses(), ElementsAre("10.0.0.1:7410", "[fd00::2]:7410"));
}

TEST_F(EndpointSlicesTest, ThePortIsTheNumberOrTheNameOrTheOnlyOne) {
  const std::string list = List({Slice("a", {Endpoint("10.0.0.1")})}, 1);
  const auto with = [&](K8sService service) {
    EndpointSlices slices(std::move(service));
    EXPECT_TRUE(slices.ReadPage(list).ok());
    const auto addresses = slices.Addresses();
    return addresses.ok() ? addresses->front() : std::string(addresses.status().message());
  };
  EXPECT_EQ(with({.service = "leaf"}), "10.0.0.1:7410");
  EXPECT_EQ(with({.service = "leaf", .port_name = "http"}), "10.0.0.1:8090");
  EXPECT_EQ(with({.service = "leaf", .port = 1234}), "10.0.0.1:1234");
  EXPECT_THAT(with({.service = "leaf", .port_name = "metrics"}),
              HasSubstr("no port named metrics"));
  Json one = Slice("a", {Endpoint("10.0.0.1")});
  one["ports"] = {{{"name", ""}, {"port", 9}}};
  EndpointSlices only(K8sService{.service = "leaf"});
  ASSERT_TRUE(only.ReadPage(List({one}, 1)).ok());
  EXPECT_THAT(*only.Addresses(), ElementsAre("10.0.0.1:9"));
}

TEST_F(EndpointSlicesTest, SaysWhyThereIsNoAddress) {
  ASSERT_TRUE(slices_.ReadPage(List({}, 1)).ok());
  EXPECT_THAT(Why(), HasSubstr("no EndpointSlice of Service leaf"));
  ASSERT_TRUE(
      slices_.ReadPage(List({Slice("a", {Endpoint("10.0.0.1", {{"ready", false}})})}, 2)).ok());
  EXPECT_THAT(Why(), HasSubstr("of 1 endpoints of Service leaf none is ready"));
}

TEST_F(EndpointSlicesTest, GoneAsksForAnotherList) {
  ASSERT_TRUE(slices_.ReadPage(List({Slice("a", {Endpoint("10.0.0.1")})}, 5)).ok());
  const auto error = [](int code) {
    return Event("ERROR", {{"kind", "Status"}, {"code", code}, {"message", "too old"}});
  };
  EXPECT_TRUE(absl::IsOutOfRange(slices_.ReadEvent(error(410))));
  EXPECT_TRUE(absl::IsUnavailable(slices_.ReadEvent(error(500))));
  EXPECT_EQ(slices_.resource_version(), "5");
}

TEST_F(EndpointSlicesTest, WhatIsMalformedChangesNothing) {
  ASSERT_TRUE(slices_.ReadPage(List({Slice("a", {Endpoint("10.0.0.1")})}, 5)).ok());
  Json no_name = Slice("", {Endpoint("10.0.0.2")});
  Json no_list = Slice("a", {});
  no_list["endpoints"] = "none";
  Json ports = Slice("a", {});
  ports["ports"] = 7;
  Json bare = Slice("a", {});
  bare["endpoints"] = {{{"addresses", Json::array()}}};
  for (const Json& object : {no_name, no_list, ports, bare, Slice("a", {Endpoint("leaf.example")}),
                             Slice("a", {Endpoint("fd00::1")}),
                             Slice("a", {Endpoint("10.0.0.1:80")}), Json(), Json("x")})
    EXPECT_TRUE(absl::IsInvalidArgument(slices_.ReadEvent(Event("MODIFIED", object)))) << object;
  for (const char* line : {"", "{", "[]", "null", R"({"type":"ADDED"})", "\xff\xfe"})
    EXPECT_TRUE(absl::IsInvalidArgument(slices_.ReadEvent(line))) << line;
  EXPECT_TRUE(absl::IsInvalidArgument(
      slices_.ReadEvent(Event("RENAMED", Slice("a", {Endpoint("10.0.0.2")}, 6)))));
  for (const char* page :
       {"", "{}", R"({"items":[]})", R"({"metadata":{"resourceVersion":"1"},"items":3})"})
    EXPECT_TRUE(absl::IsInvalidArgument(slices_.ReadPage(page).status())) << page;
  EXPECT_THAT(Addresses(), ElementsAre("10.0.0.1:7410"));
  EXPECT_EQ(slices_.resource_version(), "5");
}

TEST_F(EndpointSlicesTest, HasBounds) {
  const std::vector<Json> many(kEndpointsOfSliceMax + 1, Endpoint("10.0.0.1"));
  EXPECT_TRUE(absl::IsResourceExhausted(slices_.ReadPage(List({Slice("a", many)}, 1)).status()));
  std::vector<Json> slices;
  for (size_t i = 0; i <= kEndpointSlicesMax; ++i)
    slices.push_back(Slice("s" + std::to_string(i), {}));
  EXPECT_TRUE(absl::IsResourceExhausted(slices_.ReadPage(List(slices, 1)).status()));
  slices.pop_back();
  ASSERT_TRUE(slices_.ReadPage(List(slices, 1)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(slices_.ReadEvent(Event("ADDED", Slice("more", {}, 2)))));
  EXPECT_TRUE(slices_.ReadEvent(Event("MODIFIED", Slice("s1", {}, 2))).ok());
}

}  // namespace
}  // namespace kvatlas
