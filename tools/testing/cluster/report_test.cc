#include "tools/testing/cluster/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvatlas {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ReportTest, WhatWasNotMeasuredIsNull) {
  const nlohmann::json json = nlohmann::json::parse(ToJson({}));
  EXPECT_TRUE(json["cached_blocks"]["exact_global"].is_null());
  EXPECT_TRUE(json["at_rest"]["over"].is_null());
  EXPECT_TRUE(json["upward"]["bytes"].is_null());
  EXPECT_TRUE(json["ttft_ms"]["p99"].is_null());
  EXPECT_EQ(json["errors"], 0);
}

TEST(ReportTest, NamesAreThoseOfTheContract) {
  ReplayReport report;
  report.requests = 10;
  report.cached_blocks.kvatlas = 7;
  report.at_rest = AtRest{.checked = 100, .over = 1, .under = 2};
  report.leaf = LevelCost{.updates = 1000, .bytes = 9000};
  report.upward = LevelCost{.updates = 30, .bytes = 400};
  report.events_stored = 600;
  report.route_us = {3, 1, 2};
  report.ttft_ms = {10, 20};
  const nlohmann::json json = nlohmann::json::parse(ToJson(report));
  EXPECT_EQ(json["requests"], 10);
  EXPECT_EQ(json["cached_blocks"]["kvatlas"], 7);
  EXPECT_EQ(json["at_rest"]["checked"], 100);
  EXPECT_EQ(json["at_rest"]["under"], 2);
  EXPECT_EQ(json["events"]["stored"], 600);
  EXPECT_EQ(json["upward"]["updates"], 30);
  EXPECT_EQ(json["leaf"]["bytes"], 9000);
  EXPECT_EQ(json["route_us"]["p50"], 2);
  EXPECT_EQ(json["route_us"]["p99"], 3);
  EXPECT_EQ(json["ttft_ms"]["mean"], 15);
  EXPECT_THAT(ToTable(report), HasSubstr("3.00 %"));
}

TEST(ReportTest, OfHybridModelsSaysWhatWasHeldAndByHowMuchPromisesFailed) {
  ReplayReport report;
  EXPECT_TRUE(nlohmann::json::parse(ToJson(report))["hybrid"].is_null());
  EXPECT_THAT(ToTable(report), Not(HasSubstr("Hybrid model")));
  report.hybrid = "window:1024";
  report.answer = "held";
  report.cached_blocks.held = 90;
  report.promised_over = 3;
  report.promised_under = 0;
  report.promised_over_blocks = 40;
  report.promised_under_blocks = 0;
  report.at_rest = AtRest{.checked = 100, .over = 1, .over_blocks = 7};
  const nlohmann::json json = nlohmann::json::parse(ToJson(report));
  EXPECT_EQ(json["hybrid"], "window:1024");
  EXPECT_EQ(json["answer"], "held");
  EXPECT_EQ(json["cached_blocks"]["held"], 90);
  EXPECT_EQ(json["promised"]["over"], 3);
  EXPECT_EQ(json["promised_blocks"]["over"], 40);
  EXPECT_EQ(json["at_rest"]["over_blocks"], 7);
  EXPECT_THAT(ToTable(report), HasSubstr("Hybrid model window:1024; leaves promise held blocks"));
}

TEST(ReportTest, NamesWhatWasKilled) {
  ReplayReport report;
  EXPECT_TRUE(nlohmann::json::parse(ToJson(report))["chaos"].is_null());
  report.chaos = {{120, true, "leaf-2"}, {150, false, "leaf-2"}};
  report.rest_seconds = 1.5;
  const nlohmann::json json = nlohmann::json::parse(ToJson(report));
  EXPECT_EQ(json["chaos"].size(), 2u);
  EXPECT_EQ(json["chaos"][0]["what"], "kill");
  EXPECT_EQ(json["chaos"][1]["what"], "restart");
  EXPECT_EQ(json["chaos"][1]["request"], 150);
  EXPECT_EQ(json["rest_seconds"], 1.5);
  EXPECT_THAT(ToTable(report), HasSubstr("leaf-2"));
}

}  // namespace
}  // namespace kvatlas
