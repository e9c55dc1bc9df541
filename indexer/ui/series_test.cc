#include "indexer/ui/series.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvatlas {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;

std::vector<ChartSpec> Charts() {
  return {{.id = "routes",
           .title = "Routes",
           .unit = "1/s",
           .stacked = true,
           .series = {{.key = "none", .label = "direct", .rate = true},
                      {.key = "failed", .label = "failed", .rate = true}}},
          {.id = "flight", .title = "In flight", .series = {{.key = "in_flight", .label = "now"}}}};
}

Json Parsed(const SeriesRing& ring, int64_t since = 0) { return Json::parse(ring.Json(since)); }

TEST(SeriesRingTest, CountersBecomeRatesAndGaugesStay) {
  SeriesRing ring(Charts());
  ring.Add(1000, std::vector<double>{10, 0, 3});
  ring.Add(2000, std::vector<double>{30, 1, 4});
  ring.Add(4000, std::vector<double>{31, 1, 5});
  const Json json = Parsed(ring);
  EXPECT_EQ(json["t"], Json({1000, 2000, 4000}));
  EXPECT_EQ(json["values"]["none"], Json({nullptr, 20, 0.5}));
  EXPECT_EQ(json["values"]["failed"], Json({nullptr, 1, 0}));
  EXPECT_EQ(json["values"]["in_flight"], Json({3, 4, 5}));
}

TEST(SeriesRingTest, WhatIsNotKnownIsNullAndACounterThatStartsAgainHasNoRate) {
  SeriesRing ring(Charts());
  ring.Add(1000, std::vector<double>{10, 5, NoValue()});
  ring.Add(2000, std::vector<double>{2, NoValue(), 4});
  ring.Add(3000, std::vector<double>{4, 9, 4});
  const Json json = Parsed(ring);
  EXPECT_EQ(json["values"]["none"], Json({nullptr, nullptr, 2}));
  EXPECT_EQ(json["values"]["failed"], Json({nullptr, nullptr, nullptr}));
  EXPECT_EQ(json["values"]["in_flight"], Json({nullptr, 4, 4}));
}

TEST(SeriesRingTest, TheOldestPointsGo) {
  SeriesRing ring(Charts(), /*points=*/3);
  for (int i = 1; i <= 7; ++i) ring.Add(i * 1000, std::vector<double>{0, 0, 1.0 * i});
  EXPECT_EQ(ring.size(), 3u);
  EXPECT_EQ(Parsed(ring)["values"]["in_flight"], Json({5, 6, 7}));
  EXPECT_EQ(Parsed(ring)["t"], Json({5000, 6000, 7000}));
}

TEST(SeriesRingTest, OnlyLaterPointsAreTold) {
  SeriesRing ring(Charts());
  for (int i = 1; i <= 4; ++i) ring.Add(i * 1000, std::vector<double>{0, 0, 1.0 * i});
  EXPECT_EQ(Parsed(ring, 3000)["t"], Json({4000}));
  EXPECT_EQ(Parsed(ring, 3000)["values"]["in_flight"], Json({4}));
  EXPECT_TRUE(Parsed(ring, 4000)["t"].empty());
}

TEST(SeriesRingTest, ATimeThatDoesNotGrowIsIgnored) {
  SeriesRing ring(Charts());
  ring.Add(2000, std::vector<double>{0, 0, 1});
  ring.Add(2000, std::vector<double>{0, 0, 2});
  ring.Add(1000, std::vector<double>{0, 0, 3});
  EXPECT_EQ(Parsed(ring)["values"]["in_flight"], Json({1}));
}

TEST(SeriesRingTest, ChartsAreDescribed) {
  const Json json = Parsed(SeriesRing(Charts()));
  ASSERT_EQ(json["charts"].size(), 2u);
  EXPECT_EQ(json["charts"][0]["id"], "routes");
  EXPECT_EQ(json["charts"][0]["stacked"], true);
  EXPECT_EQ(json["charts"][0]["series"][1], Json({{"key", "failed"}, {"label", "failed"}}));
  EXPECT_EQ(json["every_ms"], kSeriesEveryMs);
}

TEST(SeriesRingTest, AnHourOfFortySeriesStaysWithinItsBounds) {
  std::vector<ChartSpec> charts(8);
  for (int c = 0; c < 8; ++c)
    for (int s = 0; s < 5; ++s)
      charts[static_cast<size_t>(c)].series.push_back(
          {.key = std::to_string(c * 5 + s), .label = ""});
  SeriesRing ring(charts);
  std::vector<double> values(40);
  for (int i = 1; i <= 3600; ++i) {
    for (double& value : values) value = i * 1.000001;
    ring.Add(i * 1000, values);
  }
  EXPECT_EQ(ring.size(), kSeriesPoints);
  EXPECT_LT(ring.Json(0).size(), 400u << 10);
}

}  // namespace
}  // namespace kvatlas
