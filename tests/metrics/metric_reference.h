// Which metrics are there? Starts one of every program, with every feature on that has metrics of
// its own, and reads their /metrics: what docs/reference/metrics.md is made of, and what documents,
// rules and dashboards may name.
//
// *Truth*: a family counts when its head (# HELP, # TYPE) is there; it need not have series yet.
// *Threads*: one. *Lifetime*: the processes end with it.
//
// Example:
//   FleetOfAll fleet("/tmp/x");
//   absl::StatusOr<MetricFamilyMap> families = fleet.Families();
//   std::cout << ReferencePage(*families);

#ifndef KVATLAS_TESTS_METRICS_METRIC_REFERENCE_H_
#define KVATLAS_TESTS_METRICS_METRIC_REFERENCE_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/testing/cluster/process.h"

namespace kvatlas {

struct MetricFamily {
  std::string type;  // "counter", "gauge", "histogram"
  std::string help;
  std::set<std::string> labels;    // of its series, as far as there are some
  std::set<std::string> programs;  // "leaf", "hierarchy", …

  bool deprecated() const { return help.starts_with("Deprecated"); }
};

using MetricFamilyMap = std::map<std::string, MetricFamily>;

// Adds the families of a scrape. INVALID_ARGUMENT: a line that is none of the format.
absl::Status ReadScrape(const std::string& program, const std::string& text,
                        MetricFamilyMap* families);

class FleetOfAll {
 public:
  // Logs, checkpoints and the like go to `folder`.
  explicit FleetOfAll(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Start();
  // By program. REQUIRES: `Start` was OK.
  absl::StatusOr<std::map<std::string, std::string>> Scrapes() const;
  absl::StatusOr<MetricFamilyMap> Families() const;

 private:
  absl::Status Start(const std::string& program, const std::string& binary,
                     std::vector<std::string> args);

  const std::string folder_;
  std::map<std::string, std::unique_ptr<Process>> processes_;  // by program
};

// As Markdown.
std::string ReferencePage(const MetricFamilyMap& families);

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_METRICS_METRIC_REFERENCE_H_
