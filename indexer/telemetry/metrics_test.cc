#include "indexer/telemetry/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace kvatlas {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsTest, TextHasEveryKind) {
  Metrics metrics;
  metrics.AddCounter("blocks_total", "Blocks.", {{"domain", "d\"1\n"}}).Increment(3);
  metrics.AddGauge("workers", "Workers.").Set(-2.5);
  Histogram histogram = metrics.AddHistogram("route_seconds", "Time.", {0.1, 1});
  histogram.Observe(0.05);
  histogram.Observe(0.5);
  histogram.Observe(5);
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("# HELP blocks_total Blocks.\n# TYPE blocks_total counter\n"
                              "blocks_total{domain=\"d\\\"1\\n\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE workers gauge\nworkers -2.5\n"));
  EXPECT_THAT(text, HasSubstr("route_seconds_bucket{le=\"0.1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("route_seconds_bucket{le=\"1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("route_seconds_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("route_seconds_count 3\n"));
}

TEST(MetricsTest, SameNameAndLabelsAreOneSeries) {
  Metrics metrics;
  Counter a = metrics.AddCounter("n_total", "N.", {{"cell", "a"}});
  a.Increment();
  metrics.AddCounter("n_total", "N.", {{"cell", "a"}}).Increment();
  metrics.AddCounter("n_total", "N.", {{"cell", "b"}}).Increment();
  EXPECT_EQ(a.Value(), 2);
}

TEST(MetricsTest, SeriesAreBounded) {
  Metrics metrics;
  for (size_t i = 0; i < kMetricSeriesMax + 10; ++i) {
    metrics.AddCounter("n_total", "N.", {{"peer", std::to_string(i)}}).Increment();
  }
  EXPECT_EQ(metrics.AddCounter("n_total", "N.", {{"peer", "other"}}).Value(), 10);
  EXPECT_EQ(metrics.AddCounter("n_total", "N.", {{"peer", "0"}}).Value(), 1);
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("\"" + std::to_string(kMetricSeriesMax) + "\"")));
}

TEST(MetricsTest, ScrapeRefreshesGauges) {
  Metrics metrics;
  Gauge memory = metrics.AddGauge("memory_bytes", "Memory.");
  int scrapes = 0;
  metrics.OnScrape([&] { memory.Set(++scrapes); });
  EXPECT_THAT(metrics.Text(), HasSubstr("memory_bytes 1\n"));
  EXPECT_THAT(metrics.Text(), HasSubstr("memory_bytes 2\n"));
}

TEST(MetricsTest, ThreadsLoseNoCounts) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        metrics.AddCounter("n_total", "N.", {{"i", std::to_string(i % 7)}}).Increment();
        if (i % 100 == 0) metrics.Text();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  double sum = 0;
  for (int i = 0; i < 7; ++i) {
    sum += metrics.AddCounter("n_total", "N.", {{"i", std::to_string(i)}}).Value();
  }
  EXPECT_EQ(sum, 4000);
}

TEST(MetricsTest, TextThatComesAndGoesFollowsTheRest) {
  Metrics metrics;
  metrics.AddCounter("n_total", "N.").Increment();
  metrics.OnText([](std::string* text) { *text += "own 1\n"; });
  const std::string text = metrics.Text();
  EXPECT_LT(text.find("n_total 1\n"), text.find("own 1\n"));
  EXPECT_NE(text.find("own 1\n"), std::string::npos);
}

TEST(MetricsDeathTest, BadNamesAreBugs) {
  Metrics metrics;
  EXPECT_DEATH(metrics.AddCounter("no spaces", "N."), "metric \"no spaces\"");
  EXPECT_DEATH(metrics.AddCounter("n_total", "N.", {{"bad-label", "x"}}), "metric \"n_total\"");
  metrics.AddCounter("twice", "N.");
  EXPECT_DEATH(metrics.AddGauge("twice", "N."), "metric \"twice\"");
}

TEST(MetricsTest, CounterThatIsCountedElsewhereIsRaised) {
  Metrics metrics;
  Counter counter = metrics.AddCounter("n_total", "N.");
  counter.RaiseTo(5);
  counter.RaiseTo(3);
  EXPECT_EQ(counter.Value(), 5);
}

TEST(MetricsTest, RenamedCounterHasItsFormerNameToo) {
  Metrics metrics;
  metrics.OnScrape([&] { metrics.RaiseRenamed("n_total", "N.", 7, {{"a", "b"}}); });
  const std::string text = metrics.Text();
  EXPECT_NE(text.find("# TYPE n_total counter\nn_total{a=\"b\"} 7\n"), std::string::npos) << text;
  EXPECT_NE(text.find("see n_total.\n# TYPE n gauge\nn{a=\"b\"} 7\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace kvatlas
