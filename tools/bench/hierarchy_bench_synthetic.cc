#include "tools/bench/hierarchy_bench_synthetic.h"

#include <string_view>
#include <utility>

#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

constexpr uint32_t kRoots = 64;
constexpr uint32_t kRootsOfCell = 8;

using Waypoints = std::vector<SequenceHash>;

SequenceHash NameOf(uint64_t kind, uint64_t number, uint64_t ordinal) {
  const uint64_t name[] = {kind, number, ordinal};
  return SequenceHash{Xxh3(std::string_view(reinterpret_cast<const char*>(name), sizeof(name)), 1)};
}

Waypoints RootOf(uint32_t root) {
  Waypoints waypoints;
  for (uint32_t i = 0; i < SyntheticCells::kTailOrdinal; ++i)
    waypoints.push_back(NameOf(1, root, i));
  return waypoints;
}

}  // namespace

const Domain& SyntheticCells::domain() {
  static const auto& domain = *new Domain{"bench", ""};
  return domain;
}

Waypoints SyntheticCells::TailOf(uint64_t conversation) {
  Waypoints waypoints;
  for (uint32_t i = 0; i < kTailWaypoints; ++i)
    waypoints.push_back(NameOf(2, conversation, kTailOrdinal + i));
  return waypoints;
}

SyntheticCell SyntheticCells::Next() {
  SyntheticCell cell;
  cell.name = "cell-" + std::to_string(cells_++);
  cell.load = {.running_requests = static_cast<uint32_t>(random_() % 64), .workers = 64};
  uint32_t blocks = 0;
  const auto add = [&](Position ordinal, Waypoints waypoints) {
    blocks += static_cast<uint32_t>(waypoints.size());
    cell.events.push_back(Stored{.tier = Tier::kDevice,
                                 .position = ordinal,
                                 .parent = kNoParent,
                                 .blocks = std::move(waypoints)});
  };
  std::vector<uint32_t> roots;
  for (uint32_t i = 0; i < kRootsOfCell; ++i) {
    roots.push_back(static_cast<uint32_t>(random_() % kRoots));
    add(0, RootOf(roots.back()));
  }
  while (blocks < waypoints_) {
    const uint64_t conversation = conversations_.size();
    conversations_.push_back(roots[random_() % roots.size()]);
    add(kTailOrdinal, TailOf(conversation));
  }
  return cell;
}

Waypoints SyntheticCells::Question(std::mt19937_64* random) const {
  const uint64_t conversation = (*random)() % conversations_.size();
  const bool cold = (*random)() % 4 == 0;
  Waypoints waypoints = RootOf(conversations_[conversation]);
  const Waypoints tail = TailOf(cold ? conversation + (uint64_t{1} << 40) : conversation);
  const size_t depth = 1 + (*random)() % kTailWaypoints;
  waypoints.insert(waypoints.end(), tail.begin(), tail.begin() + static_cast<ptrdiff_t>(depth));
  return waypoints;
}

}  // namespace kvatlas
