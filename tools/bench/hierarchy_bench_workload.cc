#include "tools/bench/hierarchy_bench_workload.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/status/status.h"

namespace kvatlas {
namespace {

struct Range {
  uint32_t low, high;  // both included
};

struct Shape {
  const char* name;
  uint32_t roots;  // shared beginnings, the n-th chosen 1/n as often as the first
  Range root_ids;  // their lengths, in hash ids of 512 tokens
  Range turns;     // requests of one session
  Range turn_ids;  // that a turn adds: an answer, tools' output, the next question
  Range pause_s;   // between two turns
  Range output_tokens;
};

constexpr Shape kShapes[] = {
    {"sessions", 24, {1, 8}, {2, 16}, {1, 2}, {10, 90}, {100, 600}},
    {"agents", 8, {4, 12}, {20, 60}, {1, 3}, {2, 20}, {20, 300}},
    {"documents", 400, {10, 100}, {1, 3}, {1, 1}, {10, 60}, {100, 400}},
    {"short", 64, {1, 2}, {1, 1}, {1, 3}, {1, 1}, {20, 200}},
};

class Maker {
 public:
  Maker(const Shape& shape, uint64_t seed) : shape_(shape), random_(seed) {
    double sum = 0;
    for (uint32_t root = 0; root < shape.roots; ++root) {
      root_ids_.push_back(NewIds(shape.root_ids));
      cumulative_.push_back(sum += 1.0 / (root + 1));
    }
  }

  // One session's requests; the first comes at `time_ms`.
  void Session(double time_ms, std::vector<TraceRequest>* trace) {
    std::vector<uint64_t> ids = root_ids_[PickRoot()];
    const uint32_t turns = In(shape_.turns);
    const std::string session_id = std::to_string(next_session_++);
    for (uint32_t turn = 0; turn < turns; ++turn) {
      for (uint64_t id : NewIds(shape_.turn_ids)) ids.push_back(id);
      TraceRequest request;
      request.timestamp_ms = time_ms;
      request.hash_ids = ids;
      request.input_tokens = static_cast<uint32_t>(ids.size()) * kTokensPerHashId;
      request.output_tokens = In(shape_.output_tokens);
      request.session_id = session_id;
      trace->push_back(std::move(request));
      time_ms += 1000.0 * In(shape_.pause_s);
    }
  }

  double Exponential(double mean) { return -std::log(1 - Uniform()) * mean; }
  double TurnsMean() const { return (shape_.turns.low + shape_.turns.high) / 2.0; }

 private:
  double Uniform() { return double(random_() >> 11) * 0x1.0p-53; }
  uint32_t In(Range range) {
    return range.low + static_cast<uint32_t>(random_() % (range.high - range.low + 1));
  }
  std::vector<uint64_t> NewIds(Range count) {
    std::vector<uint64_t> ids(In(count));
    for (uint64_t& id : ids) id = next_id_++;
    return ids;
  }
  size_t PickRoot() {
    const double at = Uniform() * cumulative_.back();
    return static_cast<size_t>(std::upper_bound(cumulative_.begin(), cumulative_.end() - 1, at) -
                               cumulative_.begin());
  }

  const Shape& shape_;
  std::mt19937_64 random_;
  uint64_t next_id_ = 1;
  uint64_t next_session_ = 1;
  std::vector<std::vector<uint64_t>> root_ids_;
  std::vector<double> cumulative_;
};

}  // namespace

std::vector<std::string> WorkloadNames() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  return names;
}

absl::StatusOr<std::vector<TraceRequest>> MakeWorkload(const std::string& name, uint64_t requests,
                                                       double per_s, uint64_t seed) {
  const auto* const shape = std::find_if(std::begin(kShapes), std::end(kShapes),
                                         [&](const Shape& s) { return s.name == name; });
  if (shape == std::end(kShapes)) return absl::InvalidArgumentError("no such workload: " + name);
  Maker maker(*shape, seed);
  std::vector<TraceRequest> trace;
  // Sessions begin evenly; those that the last requests would be of are cut.
  for (double now = 0; trace.size() < 2 * requests;
       now += maker.Exponential(1000 * maker.TurnsMean() / per_s))
    maker.Session(now, &trace);
  std::stable_sort(trace.begin(), trace.end(), [](const TraceRequest& a, const TraceRequest& b) {
    return a.timestamp_ms < b.timestamp_ms;
  });
  trace.resize(std::min<size_t>(trace.size(), requests));
  return trace;
}

}  // namespace kvatlas
