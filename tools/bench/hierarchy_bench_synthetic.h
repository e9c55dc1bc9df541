// What do thousands of made-up cells cover? A made coverage and questions about it, the same for
// equal seeds.
//
//   a cell covers   the waypoints of some of 64 system prompts, which hundreds of cells share, and of conversations
//                   behind them that are its own: `waypoints` in all
//   a question is   a conversation that some cell has, to some depth, or (every fourth) one that no cell has

#ifndef KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_SYNTHETIC_H_
#define KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_SYNTHETIC_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"

namespace kvatlas {

struct SyntheticCell {
  std::string name;
  Load load;
  std::vector<Event> events;  // positions are ordinals
};

class SyntheticCells {
 public:
  static const Domain& domain();

  SyntheticCells(uint32_t waypoints, uint64_t seed) : waypoints_(waypoints), random_(seed) {}

  // The next cell.
  SyntheticCell Next();
  // The waypoints of a prompt, about the cells made so far.
  std::vector<SequenceHash> Question(std::mt19937_64* random) const;
  // A conversation's own waypoints, behind those of its system prompt; the first stands at
  // `kTailOrdinal`. Conversations from 2^41 on are no cell's.
  static std::vector<SequenceHash> TailOf(uint64_t conversation);

  static constexpr uint32_t kTailOrdinal = 3, kTailWaypoints = 5;

 private:
  const uint32_t waypoints_;
  std::mt19937_64 random_;
  uint32_t cells_ = 0;
  std::vector<uint32_t> conversations_;  // the system prompt of each
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_SYNTHETIC_H_
