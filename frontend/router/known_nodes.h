// The hierarchy nodes below the top, and the cells that they named, as last seen: for when the top
// is away, and to know below which node a cell is.
//
// *Place*: beside `FleetMemory`, which remembers leaves.
// *Truth*: as old as the last answer. *Threads*: none; the owner serialises.
// *Bounds*: `kKnownNodesMax` nodes of a domain, the one seen longest ago is forgotten;
// `kKnownBelowMax` cells under them, then all of these are forgotten, and learnt again from the
// next answers; `kKnownNodeDomainsMax` domains, likewise.

#ifndef KVATLAS_FRONTEND_ROUTER_KNOWN_NODES_H_
#define KVATLAS_FRONTEND_ROUTER_KNOWN_NODES_H_

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frontend/router/lookup_clients.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"

namespace kvatlas {

inline constexpr size_t kKnownNodesMax = 4096;
inline constexpr size_t kKnownBelowMax = 65536;
inline constexpr size_t kKnownNodeDomainsMax = 256;

struct KnownNode {
  CellFound node;  // without bounds
  Time seen{0};
};

class KnownNodes {
 public:
  // An answer of the node `by`; empty: of the top.
  void Saw(const Domain& domain, std::span<const CellFound> cells, const std::string& by, Time now);

  // Latest seen first, then by name.
  std::vector<KnownNode> Nodes(const Domain& domain) const;

  // Whether the node named the cell, or a node that did.
  bool IsAbove(const Domain& domain, const std::string& node, const std::string& cell) const;

 private:
  struct OfDomain {
    std::map<std::string, KnownNode> nodes;
    absl::flat_hash_map<std::string, std::string> above;  // cell or node → the node that named it
  };
  absl::flat_hash_map<Domain, OfDomain> domains_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_KNOWN_NODES_H_
