#include "tools/bench/timing.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace kvatlas {
namespace {

using Steady = std::chrono::steady_clock;

double MeasureNsPerTick() {
  const Steady::time_point start = Steady::now();
  const uint64_t start_ticks = Ticks();
  while (Steady::now() - start < std::chrono::milliseconds(50)) {
  }
  const uint64_t ticks = Ticks() - start_ticks;
  return std::chrono::duration<double, std::nano>(Steady::now() - start).count() /
         static_cast<double>(ticks);
}

double ClockSeconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double NsPerTick() {
  static const double kNsPerTick = MeasureNsPerTick();
  return kNsPerTick;
}

double NowSeconds() {
  return std::chrono::duration<double>(Steady::now().time_since_epoch()).count();
}

double CpuSeconds() { return ClockSeconds(CLOCK_PROCESS_CPUTIME_ID); }

double ThreadCpuSeconds() { return ClockSeconds(CLOCK_THREAD_CPUTIME_ID); }

void Latencies::Append(const Latencies& other) {
  ticks_.insert(ticks_.end(), other.ticks_.begin(), other.ticks_.end());
}

Percentiles Latencies::InNs() {
  if (ticks_.empty()) return {};
  std::sort(ticks_.begin(), ticks_.end());
  const double ns = NsPerTick();
  const auto at = [&](double share) {
    const auto place = static_cast<size_t>(share * static_cast<double>(ticks_.size()));
    return ns * ticks_[std::min(place, ticks_.size() - 1)];
  };
  double sum = 0;
  for (uint32_t ticks : ticks_) sum += ticks;
  return {.p50 = at(0.5),
          .p99 = at(0.99),
          .p999 = at(0.999),
          .max = ns * ticks_.back(),
          .mean = ns * sum / static_cast<double>(ticks_.size())};
}

}  // namespace kvatlas
