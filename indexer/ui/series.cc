// A ring of points: times in `times_`, and values point by point in `values_`, both allocated once.
// `next_` is the place of the next point, and the oldest is `size_` before it.

#include "indexer/ui/series.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace kvatlas {
namespace {

using Json = nlohmann::json;

std::vector<SeriesSpec> AllOf(const std::vector<ChartSpec>& charts) {
  std::vector<SeriesSpec> all;
  for (const ChartSpec& chart : charts)
    all.insert(all.end(), chart.series.begin(), chart.series.end());
  return all;
}

// Six significant digits: more than a chart shows, and they keep the answer short. Unknown values
// (NaN) become null; whole numbers stay whole.
Json Rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  if (value == 0) return 0;
  const double scale = std::pow(10.0, 5 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

Json Described(const ChartSpec& chart) {
  Json json = {{"id", chart.id},       {"title", chart.title},     {"unit", chart.unit},
               {"about", chart.about}, {"stacked", chart.stacked}, {"series", Json::array()}};
  for (const SeriesSpec& series : chart.series)
    json["series"].push_back({{"key", series.key}, {"label", series.label}});
  return json;
}

}  // namespace

double NoValue() { return std::numeric_limits<double>::quiet_NaN(); }

SeriesRing::SeriesRing(std::vector<ChartSpec> charts, size_t points)
    : charts_(std::move(charts)),
      specs_(AllOf(charts_)),
      points_(points),
      times_(points),
      values_(points * specs_.size()),
      last_(specs_.size(), NoValue()) {}

// A rate is the growth since the sample before, by the time between the two. A counter that became
// smaller was reset: no value for that point. Time that does not grow (the wall clock was set back)
// drops the sample.
void SeriesRing::Add(int64_t unix_ms, std::span<const double> values) {
  if (values.size() != specs_.size()) return;
  MutexLock lock(&mutex_);
  if (unix_ms <= last_ms_) return;
  const double seconds = static_cast<double>(unix_ms - last_ms_) / 1000;
  double* const point = &values_[next_ * specs_.size()];
  for (size_t i = 0; i < specs_.size(); ++i) {
    point[i] = values[i];
    if (specs_[i].rate) {
      const double grown = values[i] - last_[i];  // not a number where one of both is unknown
      point[i] = grown >= 0 ? grown / seconds : NoValue();
    }
    last_[i] = values[i];
  }
  times_[next_] = last_ms_ = unix_ms;
  next_ = (next_ + 1) % points_;
  if (size_ < points_) ++size_;
}

size_t SeriesRing::size() const {
  MutexLock lock(&mutex_);
  return size_;
}

// The charts' descriptions are always included: the page needs nothing else to draw. The lock is
// held while values are copied into the JSON.
std::string SeriesRing::Json(int64_t since_ms) const {
  nlohmann::json json = {{"every_ms", kSeriesEveryMs},
                         {"points", points_},
                         {"charts", nlohmann::json::array()},
                         {"t", nlohmann::json::array()},
                         {"values", nlohmann::json::object()}};
  for (const ChartSpec& chart : charts_) json["charts"].push_back(Described(chart));
  MutexLock lock(&mutex_);
  for (const SeriesSpec& spec : specs_) json["values"][spec.key] = nlohmann::json::array();
  for (size_t i = 0; i < size_; ++i) {
    const size_t at = (next_ + points_ - size_ + i) % points_;
    if (times_[at] <= since_ms) continue;
    json["t"].push_back(times_[at]);
    for (size_t s = 0; s < specs_.size(); ++s)
      json["values"][specs_[s].key].push_back(Rounded(values_[at * specs_.size() + s]));
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace kvatlas
