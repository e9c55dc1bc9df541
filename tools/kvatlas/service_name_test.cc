#include "tools/kvatlas/service_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvatlas {
namespace {

using testing::HasSubstr;

TEST(ServiceNameTest, AKindAndAnAddressAreReadAndWrittenBack) {
  for (const char* text : {"leaf=127.0.0.1:7410", "hierarchy=h.example:7420", "frontend=[::1]:8092",
                           "relay=127.0.0.1:8093", "serve=127.0.0.1:8094"}) {
    const auto name = ServiceName::Parse(text);
    ASSERT_TRUE(name.ok()) << name.status();
    EXPECT_EQ(name->ToString(), text);
  }
  EXPECT_EQ(ServiceName::Parse("leaf=127.0.0.1:7410")->Title(), "leaf 127.0.0.1:7410");
}

TEST(ServiceNameTest, WhatIsNoNameIsQuotedWithWhatIsExpected) {
  for (const char* text : {"127.0.0.1:7410", "leaf", "tape=127.0.0.1:1", "leaves", ""}) {
    const auto name = ServiceName::Parse(text);
    ASSERT_FALSE(name.ok()) << text;
    EXPECT_THAT(std::string(name.status().message()), HasSubstr("expected KIND=HOST:PORT")) << text;
  }
  EXPECT_THAT(std::string(ServiceName::Parse("leef=127.0.0.1:7410").status().message()),
              HasSubstr("did you mean leaf?"));
  EXPECT_THAT(std::string(ServiceName::Parse("leaf=nowhere").status().message()),
              HasSubstr("nowhere"));
}

TEST(ServiceNameTest, SourcesAndServicesAreTold) {
  EXPECT_TRUE(IsNamed("leaf=127.0.0.1:7410"));
  EXPECT_TRUE(IsNamed("checkpoint=/tmp/c"));
  EXPECT_FALSE(IsNamed("out.json"));
  EXPECT_FALSE(IsNamed("leaf"));
}

TEST(ServiceNameTest, AWildcardIsTheHostThatWasAsked) {
  const auto status = nlohmann::json::parse(
      R"({"process":{"listens":{"grpc":"0.0.0.0:7410","http":"10.0.0.1:8090","odd":"x"}}})");
  const Address asked{"leaf.example", 8090};
  EXPECT_EQ(ListensAt(status, "grpc", asked)->ToString(), "leaf.example:7410");
  EXPECT_EQ(ListensAt(status, "http", asked)->ToString(), "10.0.0.1:8090");
  EXPECT_FALSE(ListensAt(status, "odd", asked).has_value());
  EXPECT_FALSE(ListensAt(status, "listen", asked).has_value());
  EXPECT_FALSE(ListensAt(nlohmann::json::object(), "grpc", asked).has_value());
}

}  // namespace
}  // namespace kvatlas
