#include "indexer/telemetry/metric_families.h"

#include <gtest/gtest.h>

#include <string>

#include "indexer/telemetry/text_escape.h"

namespace kvatlas {
namespace {

std::string TextOf(const MetricFamilies& families) {
  std::string text;
  families.AppendTo(&text);
  return text;
}

TEST(MetricFamiliesTest, SeriesOfAFamilyStandTogether) {
  MetricFamilies families;
  families.Gauge("a", "A.", MetricLabel("x", "1"), 1);
  families.Count("b_total", "B.", "", 2);
  families.Gauge("a", "A.", MetricLabel("x", "2"), 0.5);
  EXPECT_EQ(TextOf(families),
            "# HELP a A.\n# TYPE a gauge\na{x=\"1\"} 1\na{x=\"2\"} 0.5\n"
            "# HELP b_total B.\n# TYPE b_total counter\nb_total 2\n");
}

TEST(MetricFamiliesTest, RenamedCounterHasItsFormerNameToo) {
  MetricFamilies families;
  families.CountRenamed("gaps_total", "Gaps.", "", 3);
  EXPECT_EQ(TextOf(families),
            "# HELP gaps_total Gaps.\n# TYPE gaps_total counter\ngaps_total 3\n"
            "# HELP gaps Deprecated, gone in the next release: see gaps_total.\n"
            "# TYPE gaps gauge\ngaps 3\n");
}

TEST(MetricFamiliesTest, FamilyWithoutSeriesIsThere) {
  MetricFamilies families;
  families.DeclareGauge("a", "A.");
  EXPECT_EQ(TextOf(families), "# HELP a A.\n# TYPE a gauge\n");
}

TEST(MetricFamiliesTest, DeclaredFamiliesGetTheirSeriesLater) {
  MetricFamilies families;
  const auto append = [](MetricFamilies* to) { to->Gauge("a", "A.", "", 1); };
  families.Declare(append);
  EXPECT_EQ(TextOf(families), "# HELP a A.\n# TYPE a gauge\n");
  append(&families);
  EXPECT_EQ(TextOf(families), "# HELP a A.\n# TYPE a gauge\na 1\n");
}

TEST(MetricFamiliesTest, LargeNumbersKeepTheirDigits) {
  MetricFamilies families;
  families.Count("b_total", "B.", "", 9007199254740991);
  EXPECT_NE(TextOf(families).find("b_total 9007199254740991\n"), std::string::npos);
}

}  // namespace
}  // namespace kvatlas
