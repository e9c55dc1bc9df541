#include "indexer/discovery/k8s_pods.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvatlas {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Json Pod(const std::string& name, const std::string& address, bool ready = true) {
  return {{"metadata", {{"name", name}, {"resourceVersion", "7"}}},
          {"status",
           {{"podIP", address},
            {"conditions", {{{"type", "Ready"}, {"status", ready ? "True" : "False"}}}}}}};
}

std::string Page(const std::vector<Json>& items, const std::string& next = "") {
  return Json{{"metadata", {{"resourceVersion", "5"}, {"continue", next}}}, {"items", items}}
      .dump();
}

std::string Event(const std::string& type, const Json& object) {
  return Json{{"type", type}, {"object", object}}.dump();
}

std::vector<std::string> Known(const K8sPods& pods) {
  std::vector<std::string> known;
  const std::vector<ServiceRecord> records = *pods.Records();
  for (const ServiceRecord& record : records) known.push_back(record.name + " " + record.grpc);
  return known;
}

TEST(K8sPodsQueryTest, ANamespaceAndLabels) {
  EXPECT_EQ(*K8sPodsQuery::Parse("llm/app=vllm&tier=chat"),
            (K8sPodsQuery{.name_space = "llm", .selector = "app=vllm,tier=chat"}));
  EXPECT_EQ(*K8sPodsQuery::Parse("/app=vllm"),
            (K8sPodsQuery{.name_space = "", .selector = "app=vllm"}));
  for (const char* of_llm_d : {"llm", "llm/"})
    EXPECT_EQ(*K8sPodsQuery::Parse(of_llm_d),
              (K8sPodsQuery{.name_space = "llm", .selector = kEnginePodsLabel}));
  for (const char* bad : {"llm/app", "Llm/app=v", "l.m/app=v", "../app=v"})
    EXPECT_FALSE(K8sPodsQuery::Parse(bad).ok()) << bad;
}

TEST(K8sPodsTest, PodsThatAreReadyAndNotEnding) {
  K8sPods pods({.name_space = "", .selector = "app=v"});
  Json ends = Pod("c", "10.0.0.3");
  ends["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z";
  EXPECT_EQ(*pods.ReadPage(Page({Pod("a", "10.0.0.1"), Pod("b", "", false)}, "more")), "more");
  EXPECT_THAT(Known(pods), IsEmpty()) << "the list is not whole";
  EXPECT_EQ(*pods.ReadPage(Page({ends, Pod("d", "fd00::1")})), "");
  EXPECT_EQ(pods.resource_version(), "5");
  EXPECT_THAT(Known(pods), ElementsAre("a 10.0.0.1", "d fd00::1"));
  EXPECT_TRUE(pods.ReadEvent(Event("MODIFIED", Pod("b", "10.0.0.2"))).ok());
  EXPECT_TRUE(pods.ReadEvent(Event("MODIFIED", Pod("a", "10.0.0.1", false))).ok());
  EXPECT_TRUE(pods.ReadEvent(Event("DELETED", Pod("d", "fd00::1"))).ok());
  EXPECT_THAT(Known(pods), ElementsAre("b 10.0.0.2"));
  EXPECT_EQ(pods.resource_version(), "7");
}

TEST(K8sPodsTest, WhatHasAnotherFormChangesNothing) {
  K8sPods pods({.name_space = "", .selector = "app=v"});
  ASSERT_TRUE(pods.ReadPage(Page({Pod("a", "10.0.0.1")})).ok());
  for (const std::string& bad :
       {std::string("{"), std::string("[]"), Page({Pod("", "10.0.0.2")}), Page({Pod("b", "host")})})
    EXPECT_FALSE(pods.ReadPage(bad).ok()) << bad;
  for (const std::string& bad : {std::string("{"), Event("CHANGED", Pod("b", "10.0.0.2")),
                                 Event("ADDED", Pod("b", "host")), Event("ADDED", Json::object())})
    EXPECT_FALSE(pods.ReadEvent(bad).ok()) << bad;
  EXPECT_TRUE(
      absl::IsOutOfRange(pods.ReadEvent(Event("ERROR", {{"code", 410}, {"message", "x"}}))));
  EXPECT_THAT(Known(pods), ElementsAre("a 10.0.0.1"));
}

}  // namespace
}  // namespace kvatlas
