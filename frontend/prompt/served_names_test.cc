#include "frontend/prompt/served_names.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using Workers = std::vector<std::string>;

RouteInput Asked(const std::string& name, Workers allowed = {}) {
  const ServedNames names = {
      {"pirate", {.model = "m", .adapter = true, .workers = {"w0", "w1"}}},
      {"given", {.model = "m", .adapter = true}},
      {"nickname", {.model = "m", .workers = {"w1"}}},
  };
  RouteInput input;
  input.domain = {.model = name, .tenant = "t"};
  input.allowed_workers = std::move(allowed);
  AsServed(names, &input);
  return input;
}

TEST(ServedNamesTest, AnAdapterIsInItsBasesDomainUnderItsNameAtWorkersThatServeIt) {
  const RouteInput input = Asked("pirate");
  EXPECT_EQ(input.domain.model, "m");
  EXPECT_EQ(input.domain.tenant, "t");
  EXPECT_EQ(input.lora_name, "pirate");
  EXPECT_EQ(input.allowed_workers, (Workers{"w0", "w1"}));
}

TEST(ServedNamesTest, WhatTheCallerAllowsStaysABound) {
  EXPECT_EQ(Asked("pirate", {"w1", "other"}).allowed_workers, Workers{"w1"});
  EXPECT_EQ(Asked("pirate", {"other"}).allowed_workers, Workers{""}) << "no worker, not all";
  EXPECT_EQ(Asked("given", {"other"}).allowed_workers, Workers{"other"});
}

TEST(ServedNamesTest, AnyWorkerTakesAnAdapterOfWhichNobodySaysWhoServesIt) {
  const RouteInput input = Asked("given");
  EXPECT_EQ(input.domain.model, "m");
  EXPECT_EQ(input.lora_name, "given");
  EXPECT_TRUE(input.allowed_workers.empty());
}

TEST(ServedNamesTest, AFurtherNameOfAModelHasTheModelsBlocks) {
  const RouteInput input = Asked("nickname");
  EXPECT_EQ(input.domain.model, "m");
  EXPECT_EQ(input.lora_name, "");
  EXPECT_EQ(input.allowed_workers, Workers{"w1"});
}

TEST(ServedNamesTest, OtherModelsStayAsTheyAre) {
  const RouteInput input = Asked("m");
  EXPECT_EQ(input.domain.model, "m");
  EXPECT_EQ(input.lora_name, "");
  EXPECT_TRUE(input.allowed_workers.empty());
}

}  // namespace
}  // namespace kvatlas
