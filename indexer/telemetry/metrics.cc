// Series are made and kept by prometheus-cpp's registry, which takes its own locks; handles point
// into it. This file bounds the number of series per name and orders a scrape: refreshers first,
// then the registry, then texts of others.

#include "indexer/telemetry/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <set>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

struct Metrics::Impl {
  // The labels that a series of `name` gets: `labels`, or "other" for every value when `name` has
  // `kMetricSeriesMax` label sets already. Known sets are never forgotten.
  MetricLabels BoundedLabels(const std::string& name, const MetricLabels& labels)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::set<MetricLabels>& known = series[name];
    if (labels.empty() || known.contains(labels)) return labels;
    if (known.size() < kMetricSeriesMax) {
      known.insert(labels);
      return labels;
    }
    MetricLabels other = labels;
    for (auto& label : other) label.second = "other";
    return other;
  }

  // Makes or finds the series. prometheus-cpp throws when the caller breaks its rules (an illegal
  // name, another kind): a bug, which ends the process.
  template <typename Builder, typename... Args>
  auto* Add(Builder builder, const std::string& name, const std::string& help,
            const MetricLabels& labels, const Args&... args) {
    MutexLock lock(&mutex);
    try {
      return &builder.Name(name).Help(help).Register(registry).Add(BoundedLabels(name, labels),
                                                                   args...);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "metric \"%s\": %s\n", name.c_str(), error.what());
      std::abort();
    }
  }

  prometheus::Registry registry;  // locks for itself
  Mutex mutex;
  // The label sets of each name; bounded by `kMetricSeriesMax` for each.
  std::map<std::string, std::set<MetricLabels>> series ABSL_GUARDED_BY(mutex);

  Mutex scrape_mutex;  // before `mutex`
  std::vector<std::function<void()>> refreshers ABSL_GUARDED_BY(scrape_mutex);
  std::vector<std::function<void(std::string*)>> texts ABSL_GUARDED_BY(scrape_mutex);
};

void Counter::Increment(double by) { counter_->Increment(by); }
// Read and add are two steps, hence one caller at a time.
void Counter::RaiseTo(double value) {
  const double more = value - Value();
  if (more > 0) Increment(more);
}
double Counter::Value() const { return counter_->Value(); }

void Gauge::Set(double value) { gauge_->Set(value); }
void Gauge::Add(double by) { gauge_->Increment(by); }
double Gauge::Value() const { return gauge_->Value(); }

void Histogram::Observe(double value) { histogram_->Observe(value); }

const std::vector<double>& LatencyBuckets() {
  static const auto* const buckets =
      new std::vector<double>{10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3,
                              20e-3, 50e-3, 0.1,   0.2,    0.5,    1,      2,    5,    10};
  return *buckets;
}

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

Counter Metrics::AddCounter(const std::string& name, const std::string& help,
                            const MetricLabels& labels) {
  return Counter(impl_->Add(prometheus::BuildCounter(), name, help, labels));
}

Gauge Metrics::AddGauge(const std::string& name, const std::string& help,
                        const MetricLabels& labels) {
  return Gauge(impl_->Add(prometheus::BuildGauge(), name, help, labels));
}

Histogram Metrics::AddHistogram(const std::string& name, const std::string& help,
                                const std::vector<double>& buckets, const MetricLabels& labels) {
  return Histogram(impl_->Add(prometheus::BuildHistogram(), name, help, labels, buckets));
}

// A name without "_total" is a bug of the caller and ends the process.
std::string FormerName(std::string_view name) {
  constexpr std::string_view kEnd = "_total";
  if (!name.ends_with(kEnd) || name.size() == kEnd.size()) {
    std::fprintf(stderr, "metric \"%.*s\": a counter's name ends in _total\n",
                 static_cast<int>(name.size()), name.data());
    std::abort();
  }
  return std::string(name.substr(0, name.size() - kEnd.size()));
}

std::string FormerHelp(std::string_view name) {
  return "Deprecated, gone in the next release: see " + std::string(name) + ".";
}

void Metrics::RaiseRenamed(const std::string& name, const std::string& help, double value,
                           const MetricLabels& labels) {
  AddCounter(name, help, labels).RaiseTo(value);
  AddGauge(FormerName(name), FormerHelp(name), labels).Set(value);
}

void Metrics::OnScrape(std::function<void()> refresh) {
  MutexLock lock(&impl_->scrape_mutex);
  impl_->refreshers.push_back(std::move(refresh));
}

void Metrics::OnText(std::function<void(std::string*)> append) {
  MutexLock lock(&impl_->scrape_mutex);
  impl_->texts.push_back(std::move(append));
}

// One scrape at a time, by `scrape_mutex`. Refreshers take `mutex` when they ask for handles, which
// is why the two are separate.
std::string Metrics::Text() {
  MutexLock lock(&impl_->scrape_mutex);
  for (const std::function<void()>& refresh : impl_->refreshers) refresh();
  std::string text = prometheus::TextSerializer().Serialize(impl_->registry.Collect());
  for (const std::function<void(std::string*)>& append : impl_->texts) append(&text);
  return text;
}

}  // namespace kvatlas
