// Figures of the last quarter of an hour, second by second, for the charts of the page, in a ring.
//
//   counters and gauges of the process ─ sample(), once a second ─▶ SeriesRing ─▶ /ui/series.json
//
// *Truth*: a figure that was not known at a second is null. A counter becomes a rate by the
// difference to the sample before and the time between; the first sample, and one that is lower
// than the last, have none.
// *Threads*: any.
// *Cost*: a sample is a copy of some doubles; the JSON of all 900 points of 40 series some 300 KB,
// so callers name the last point that they have.
// *Bounds*: `kSeriesPoints` points of the declared series: 8 bytes each.
//
// Example:
//   SeriesRing ring({{.id = "routes", .title = "Routes", .unit = "1/s", .series = {{.key = "none",
//   .rate = true}}}});
//   ring.Add(now_ms, {routes_so_far});
//   ring.Json(0);   // {"every_ms":1000,"charts":[…],"t":[…],"values":{"none":[null,…]}}

#ifndef KVATLAS_INDEXER_UI_SERIES_H_
#define KVATLAS_INDEXER_UI_SERIES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

inline constexpr size_t kSeriesPoints = 900;
inline constexpr int64_t kSeriesEveryMs = 1000;

// A value that is not known.
double NoValue();

struct SeriesSpec {
  std::string key = {};    // unique in the ring
  std::string label = {};  // in the legend
  bool rate = false;       // samples are a counter's; shown is its growth in a second
};

struct ChartSpec {
  std::string id = {};
  std::string title = {};
  std::string unit = {};   // "1/s", "ms", "share", "": a count
  std::string about = {};  // what it shows, in a sentence
  bool stacked = false;
  std::vector<SeriesSpec> series = {};
};

class SeriesRing {
 public:
  explicit SeriesRing(std::vector<ChartSpec> charts, size_t points = kSeriesPoints);

  // A value for each series of each chart, in the order of the declaration. `unix_ms` grows; one
  // that does not is ignored. REQUIRES: as many values as series.
  void Add(int64_t unix_ms, std::span<const double> values);

  size_t series() const { return specs_.size(); }
  size_t size() const;

  // Points later than `since_ms`, oldest first.
  std::string Json(int64_t since_ms) const;

 private:
  const std::vector<ChartSpec> charts_;
  const std::vector<SeriesSpec> specs_;  // of all charts
  const size_t points_;
  mutable Mutex mutex_;
  std::vector<int64_t> times_ ABSL_GUARDED_BY(mutex_);
  std::vector<double> values_ ABSL_GUARDED_BY(mutex_);  // point by point
  std::vector<double> last_ ABSL_GUARDED_BY(mutex_);    // as sampled
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t size_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t last_ms_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_UI_SERIES_H_
