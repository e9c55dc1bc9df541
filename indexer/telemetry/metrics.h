// The counters and measurements of a process, for Prometheus to read.
//
// `Metrics` is a thin layer over prometheus-cpp. The handles it gives out are small values to keep
// where the counting happens; asking again for the same name and labels gives the same series.
//
// Threads: all of it, from any thread.
// Cost: a counter or gauge is one atomic operation, a histogram a short lock and a scan of its
//       buckets. Getting a handle takes a lock and allocates: do it once, not per request.
// Bounds: `kMetricSeriesMax` label sets per name; later ones share one whose values are all
// "other". Lifetime: handles are valid as long as their `Metrics`.
//
// Example:
//   Metrics metrics;
//   Counter stored = metrics.AddCounter("kvatlas_blocks_stored_total", "Blocks announced.",
//                                       {{"domain", domain}});
//   stored.Increment(blocks);

#ifndef KVATLAS_INDEXER_TELEMETRY_METRICS_H_
#define KVATLAS_INDEXER_TELEMETRY_METRICS_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace kvatlas {

inline constexpr size_t kMetricSeriesMax = 4096;

using MetricLabels = std::map<std::string, std::string>;

// Only goes up.
class Counter {
 public:
  void Increment(double by = 1);  // REQUIRES: by >= 0
  // To what is counted elsewhere; a smaller value changes nothing. One caller at a time.
  void RaiseTo(double value);
  double Value() const;

 private:
  friend class Metrics;
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  prometheus::Counter* counter_;
};

class Gauge {
 public:
  void Set(double value);
  void Add(double by);
  double Value() const;

 private:
  friend class Metrics;
  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  prometheus::Gauge* gauge_;
};

class Histogram {
 public:
  void Observe(double value);

 private:
  friend class Metrics;
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  prometheus::Histogram* histogram_;
};

// Upper bounds for times in seconds, 10 us to 10 s, three to a decade.
const std::vector<double>& LatencyBuckets();

// For a counter that was a gauge without "_total" before: the former name and its help. Both are
// there for one release.
std::string FormerName(std::string_view name);
std::string FormerHelp(std::string_view name);

class Metrics {
 public:
  Metrics();
  ~Metrics();

  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // REQUIRES: `name` and label names are legal in Prometheus, and a name keeps its kind. Anything
  // else is a bug and ends the process with a message.
  Counter AddCounter(const std::string& name, const std::string& help,
                     const MetricLabels& labels = {});
  Gauge AddGauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Histogram AddHistogram(const std::string& name, const std::string& help,
                         const std::vector<double>& buckets = LatencyBuckets(),
                         const MetricLabels& labels = {});

  // For `OnScrape`: a counter that is raised to `value`, counted elsewhere since the start, and the
  // gauge of its former name.
  void RaiseRenamed(const std::string& name, const std::string& help, double value,
                    const MetricLabels& labels = {});

  // Runs `refresh` at the start of each `Text`, in the order given, to set gauges that cost too
  // much to keep current. It may use this object, but not call `Text` or `OnScrape`.
  void OnScrape(std::function<void()> refresh);

  // Appends whole families of its own at each `Text`: for series that come and go, which the
  // handles above cannot. As `OnScrape` otherwise; no name of above.
  void OnText(std::function<void(std::string*)> append);

  // Everything, in Prometheus' text format 0.0.4.
  std::string Text();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TELEMETRY_METRICS_H_
