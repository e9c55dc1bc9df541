// `Pause()`: a place where a test may put a thread of atlas to sleep. It does nothing in a usual
// build; in one with KVATLAS_ATLAS_PAUSES the thread gives the processor away now and then, so that
// others pass it in every place, or runs a function that the test has set for it.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_PAUSE_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_PAUSE_H_

#if KVATLAS_ATLAS_PAUSES
#include <sched.h>

#include <cstdint>
#include <functional>
#include <utility>
#endif

namespace kvatlas::atlas {

#if KVATLAS_ATLAS_PAUSES
inline constexpr bool kPauses = true;

// Run at each pause of this thread, but not while it runs; null: the thread pauses as told above.
inline thread_local std::function<void()> t_at_pause;

inline void Pause() {
  if (t_at_pause != nullptr) {
    const std::function<void()> run = std::exchange(t_at_pause, [] {});
    run();
    t_at_pause = run;
    return;
  }
  static thread_local uint64_t state =
      reinterpret_cast<uintptr_t>(&state) * 0x9E3779B97F4A7C15u | 1;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  // Now and then for long, so that every other thread runs several times.
  int turns = state % 256 == 0 ? 32 : state % 8 == 0 ? 1 : 0;
  for (; turns > 0; --turns) sched_yield();
}
#else
inline constexpr bool kPauses = false;

inline void Pause() {}
#endif

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_PAUSE_H_
