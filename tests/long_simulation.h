// Do a leaf and a hierarchy know, after any history, exactly what engines have? One round of a long
// simulation.
//
//   engine ─▶ StreamSender ═ SimulatedLink ═▶ leaf: HolderRegistry, atlas ─▶ Coverage ─▶ CoverageReporter ═ link ═▶ Hierarchy
//     │            (a worker's publisher)                                                                             │
//     └─ what it has: a byte per block ────────────────── compared at rest, with both ────────────────────────────────╯
//
// A round has a world of its own, drawn from its seed: sequences, cells, workers, windows, delays,
// and what goes wrong. Messages are lost and delayed, connections cut (beyond leases too), engines,
// publishers, leaves and nodes are killed and come back, small windows drop batches so that
// snapshots repair, and the clock of a process jumps ahead, as after a suspension. Then the faults
// end, everything comes to rest, and every block of every worker is compared.
//
// *Truth*: a plain array per engine that no code of the product has touched.
// *Threads*: none; rounds share nothing and may run side by side. A round is the same whenever it
// runs.

#ifndef KVATLAS_TESTS_LONG_SIMULATION_H_
#define KVATLAS_TESTS_LONG_SIMULATION_H_

#include <array>
#include <cstdint>
#include <string>

namespace kvatlas {

struct RoundOptions {
  uint64_t seed = 1;
  uint64_t events =
      1'000'000;  // at least; one event is one block that is stored in, or removed from, a tier of an engine
  // One block is claimed that no engine has, and one is kept from the comparison: what the
  // comparison must find. For tests.
  bool plant_errors = false;
};

struct RoundResult {
  uint64_t events = 0;
  uint64_t over = 0;   // at rest: blocks that a leaf or a node claims and no engine has
  uint64_t under = 0;  // and those that an engine has and they do not know
  uint64_t compared = 0;
  uint64_t kills = 0;  // of engines, publishers, leaves and nodes
  uint64_t clock_jumps = 0;
  uint64_t snapshots = 0;
  uint64_t batches_dropped = 0;  // by a full window
  uint64_t messages_lost = 0;
  // Not empty: something else was wrong, such as a stream that never came to rest, or an answer
  // that is not exact there.
  std::string error;

  // All numbers above.
  std::array<uint64_t*, 9> Counts() {
    return {&events,      &over,      &under,           &compared,     &kills,
            &clock_jumps, &snapshots, &batches_dropped, &messages_lost};
  }

  bool ok() const { return over == 0 && under == 0 && error.empty(); }
  RoundResult& operator+=(RoundResult other);
};

RoundResult RunRound(const RoundOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_LONG_SIMULATION_H_
