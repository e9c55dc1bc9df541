// How long did that take, to a few nanoseconds? The processor's own clock, as the published peers
// were measured with it.
//
// *Cost*: `Ticks` waits for what came before (lfence): about 10 ns, 20 around one operation,
// subtracted nowhere.

#ifndef KVATLAS_TOOLS_BENCH_TIMING_H_
#define KVATLAS_TOOLS_BENCH_TIMING_H_

#include <cstdint>
#include <vector>

#if defined(__x86_64__)
#include <x86intrin.h>
#else
#include <chrono>
#endif

namespace kvatlas {

inline uint64_t Ticks() {
#if defined(__x86_64__)
  _mm_lfence();
  return __rdtsc();
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// Measured once per process against the steady clock; takes 50 ms then.
double NsPerTick();

// Seconds since some moment.
double NowSeconds();

// Seconds of processor time of this process, all threads: what others on the machine do is not in
// it.
double CpuSeconds();

// The same of the calling thread alone.
double ThreadCpuSeconds();

struct Percentiles {
  double p50 = 0;
  double p99 = 0;
  double p999 = 0;
  double max = 0;
  double mean = 0;
};

// Latencies in ticks, 32 bits each: longer ones count as 2^32 - 1.
class Latencies {
 public:
  void Reserve(size_t count) { ticks_.reserve(count); }
  void Add(uint64_t ticks) {
    ticks_.push_back(static_cast<uint32_t>(ticks < UINT32_MAX ? ticks : UINT32_MAX));
  }
  void Append(const Latencies& other);

  size_t size() const { return ticks_.size(); }

  // In nanoseconds; all 0 when there are none. Changes the order.
  Percentiles InNs();

 private:
  std::vector<uint32_t> ticks_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_TIMING_H_
