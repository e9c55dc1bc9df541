// How much can be offered to a structure before it falls behind?
//
// Operations are issued at `speed` times their recorded times: events by threads to which workers
// stick, queries by turns. Latency counts from the moment an operation was due. A speed is
// sustained when at least 99 % of the offered rate is achieved, drain included; the highest such
// speed is looked for by doubling, then by halving the interval. Every trial starts with an empty
// structure.
//
// *Truth*: an operation that is not due is waited for by spinning, so a thread needs a core of its
// own. The trace's bursts are in it: operations of one recorded moment are due at once.

#include "tools/bench/modes.h"

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>

#include "tools/bench/timing.h"

namespace kvatlas {
namespace {

constexpr double kAchievedMin = 0.99;
// The search: where it begins in block ops per second, how it ends.
constexpr double kFirstRate = 1e6;
constexpr double kPrecision = 1.03;
constexpr int kDoublingsMax = 16;

struct Due {
  const BenchInput::Step* step = nullptr;
  uint64_t time_ns = 0;  // recorded, never going back
};

struct Lane {
  std::vector<Due> due;
  Latencies latencies;
  double end_s = 0;
};

struct Trial {
  double rate = 0;      // block ops per second, offered
  double achieved = 0;  // share of it
  Percentiles query_ns, write_ns;
};

class OpenBench {
 public:
  OpenBench(const Contender& contender, const BenchInput& input, const BenchOptions& options)
      : contender_(contender), input_(input), options_(options) {
    uint64_t time_ns = 0, queries = 0;
    events_.resize(options.event_threads);
    queries_.resize(options.query_threads);
    for (const BenchInput::Step& step : input.steps()) {
      time_ns = std::max(time_ns, step.time_ns);
      Lane& lane = step.kind == OpKind::kQuery ? queries_[queries++ % queries_.size()]
                                               : events_[step.worker % events_.size()];
      lane.due.push_back({.step = &step, .time_ns = time_ns});
    }
    duration_ns_ = std::max<uint64_t>(time_ns, 1);
  }

  // Block ops per second when the file is played as it was recorded.
  double RecordedRate() const {
    return 1e9 * static_cast<double>(input_.block_ops()) / static_cast<double>(duration_ns_);
  }

  absl::StatusOr<Trial> Try(double speed) {
    absl::StatusOr<std::unique_ptr<Index>> index =
        MakeWithHolders(contender_, WarmOptions(input_.workers()), input_.workers());
    if (!index.ok()) return index.status();
    double start_s = 0;
    std::barrier meet(static_cast<std::ptrdiff_t>(events_.size() + queries_.size()),
                      [&]() noexcept { start_s = NowSeconds(); });
    std::vector<std::thread> threads;
    for (std::vector<Lane>* lanes : {&events_, &queries_}) {
      for (Lane& lane : *lanes) {
        lane.latencies = Latencies();
        lane.latencies.Reserve(lane.due.size());
        threads.emplace_back([&, this] {
          meet.arrive_and_wait();
          RunLane(index->get(), speed, &lane);
          lane.end_s = NowSeconds();
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
    return Summary(speed, start_s);
  }

 private:
  void RunLane(Index* index, double speed, Lane* lane) {
    Asker asker(options_);
    const double ticks_per_ns = 1 / (NsPerTick() * speed);
    const uint64_t start = Ticks();
    for (const Due& due : lane->due) {
      const uint64_t at =
          start + static_cast<uint64_t>(static_cast<double>(due.time_ns) * ticks_per_ns);
      while (Ticks() < at) {
      }
      if (due.step->kind == OpKind::kQuery) {
        asker.Ask(*index, input_.query(*due.step));
      } else {
        index->Apply(HolderIndex{due.step->worker}, input_.event(*due.step), nullptr).IgnoreError();
      }
      lane->latencies.Add(Ticks() - at);
    }
  }

  Trial Summary(double speed, double start_s) {
    Trial trial;
    trial.rate = RecordedRate() * speed;
    double end_s = start_s;
    Latencies writes, queries;
    for (const Lane& lane : events_) {
      end_s = std::max(end_s, lane.end_s);
      writes.Append(lane.latencies);
    }
    for (const Lane& lane : queries_) {
      end_s = std::max(end_s, lane.end_s);
      queries.Append(lane.latencies);
    }
    const double window_s = static_cast<double>(duration_ns_) / speed / 1e9;
    trial.achieved = std::min(1.0, window_s / (end_s - start_s));
    trial.query_ns = queries.InNs();
    trial.write_ns = writes.InNs();
    return trial;
  }

  const Contender& contender_;
  const BenchInput& input_;
  const BenchOptions& options_;
  std::vector<Lane> events_, queries_;
  uint64_t duration_ns_ = 1;
};

// The fastest trial that was sustained, `rate` 0 when none was.
absl::StatusOr<Trial> Search(OpenBench* bench, const Contender& contender,
                             const BenchOptions& options) {
  const TimeLimit limit(options.limit_s * (options.event_threads + options.query_threads));
  Trial best;
  double failed = 0;
  double rate = kFirstRate;
  for (int i = 0; i < kDoublingsMax * 2; ++i) {
    absl::StatusOr<Trial> trial = bench->Try(rate / bench->RecordedRate());
    if (!trial.ok()) return trial.status();
    const bool sustained = trial->achieved >= kAchievedMin;
    char line[128];
    std::snprintf(line, sizeof(line), "%s open %.1f M block ops/s: %.1f %% achieved",
                  contender.name.c_str(), rate / 1e6, 100 * trial->achieved);
    options.progress(line);
    if (sustained && trial->rate > best.rate) best = *trial;
    if (!sustained) failed = rate;
    if (limit.Exceeded(1, 1).has_value()) break;
    if (failed > 0 && best.rate > 0 && failed / best.rate < kPrecision) break;
    if (failed == 0) {
      if (i + 1 == kDoublingsMax) break;
      rate *= 2;
    } else {
      rate = best.rate > 0 ? (best.rate + failed) / 2 : failed / 4;
    }
  }
  return best;
}

}  // namespace

BenchResult RunOpen(const Contender& contender, const BenchInput& input,
                    const BenchOptions& options) {
  NsPerTick();
  BenchResult result;
  OpenBench bench(contender, input, options);
  absl::StatusOr<Trial> trial =
      options.speed > 0 ? bench.Try(options.speed) : Search(&bench, contender, options);
  if (!trial.ok()) {
    result.skipped = std::string(trial.status().message());
    return result;
  }
  result.block_ops = input.block_ops();
  result.block_ops_per_s = trial->rate * trial->achieved;
  if (trial->rate > 0) {
    result.query_ns = trial->query_ns;
    result.write_ns = trial->write_ns;
  }
  if (options.speed > 0 && trial->achieved < kAchievedMin) return result;
  result.sustained_block_ops_per_s = trial->rate;
  result.sustained_speed = trial->rate / bench.RecordedRate();
  return result;
}

}  // namespace kvatlas
