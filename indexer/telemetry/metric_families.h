// Writes series that come and go, for `Metrics::OnText`: families in the order of their first
// series, with the series of one together, as Prometheus' text format requires.
//
// *Threads*: none; one scrape makes one. *Cost*: a string per family.
//
// Example:
//   metrics.OnText([&](std::string* text) {
//     MetricFamilies families;
//     for (const Engine& engine : engines)
//       families.Gauge("kvatlas_engine_connected", "Whether its socket is there.",
//       MetricLabel("worker", engine.name), 1);
//     families.AppendTo(text);
//   });

#ifndef KVATLAS_INDEXER_TELEMETRY_METRIC_FAMILIES_H_
#define KVATLAS_INDEXER_TELEMETRY_METRIC_FAMILIES_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvatlas {

class MetricFamilies {
 public:
  // `labels` are of `MetricLabel`, with commas in between, or empty.
  void Gauge(std::string_view name, std::string_view help, std::string_view labels, double value);
  void Count(std::string_view name, std::string_view help, std::string_view labels, double value);

  // A counter `name`, which ends in "_total", and the gauge that it was before: the same name
  // without that end, for one release.
  void CountRenamed(std::string_view name, std::string_view help, std::string_view labels,
                    double value);

  // A family that may be without series.
  void DeclareGauge(std::string_view name, std::string_view help);
  // While `append` runs families are made and series are not: a scrape shows every family, also
  // before it has series.
  void Declare(const std::function<void(MetricFamilies*)>& append);

  void AppendTo(std::string* text) const;

 private:
  std::string& Family(std::string_view name, std::string_view type, std::string_view help);
  void Add(std::string_view name, std::string_view type, std::string_view help,
           std::string_view labels, double value);

  std::map<std::string, size_t, std::less<>> index_;
  std::vector<std::string> families_;
  bool declaring_ = false;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TELEMETRY_METRIC_FAMILIES_H_
