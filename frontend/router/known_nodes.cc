// Nodes with what they last said, and for each cell or node the node that named it last. `above`
// makes a forest that is walked upwards by `IsAbove`.

#include "frontend/router/known_nodes.h"

#include <algorithm>

namespace kvatlas {
namespace {

// Bounds the walk: two nodes that named each other make a circle.
constexpr int kLevelsMax = 8;

}  // namespace

void KnownNodes::Saw(const Domain& domain, std::span<const CellFound> cells, const std::string& by,
                     Time now) {
  // A flat fleet, where the top names leaves alone, keeps nothing here.
  const bool of_use =
      !by.empty() ||
      std::any_of(cells.begin(), cells.end(), [](const CellFound& cell) { return cell.is_node; });
  if (!of_use) return;
  if (!domains_.contains(domain) && domains_.size() >= kKnownNodeDomainsMax) domains_.clear();
  OfDomain& known = domains_[domain];
  for (const CellFound& cell : cells) {
    if (cell.is_node) known.nodes[cell.cell] = {.node = cell, .seen = now};
    if (by.empty()) continue;
    // At the bound all is forgotten, and learnt again from the next answers: cheaper than an age
    // per cell.
    if (known.above.size() >= kKnownBelowMax) known.above.clear();
    known.above[cell.cell] = by;
  }
  while (known.nodes.size() > kKnownNodesMax) {
    known.nodes.erase(std::min_element(
        known.nodes.begin(), known.nodes.end(),
        [](const auto& a, const auto& b) { return a.second.seen < b.second.seen; }));
  }
}

std::vector<KnownNode> KnownNodes::Nodes(const Domain& domain) const {
  std::vector<KnownNode> nodes;
  const auto found = domains_.find(domain);
  if (found == domains_.end()) return nodes;
  for (const auto& [name, node] : found->second.nodes) nodes.push_back(node);
  std::stable_sort(nodes.begin(), nodes.end(),
                   [](const KnownNode& a, const KnownNode& b) { return a.seen > b.seen; });
  return nodes;
}

// O(levels) look-ups.
bool KnownNodes::IsAbove(const Domain& domain, const std::string& node,
                         const std::string& cell) const {
  const auto found = domains_.find(domain);
  if (found == domains_.end()) return false;
  const auto& above = found->second.above;
  auto at = above.find(cell);
  for (int level = 0; level < kLevelsMax && at != above.end(); ++level) {
    if (at->second == node) return true;
    at = above.find(at->second);
  }
  return false;
}

}  // namespace kvatlas
