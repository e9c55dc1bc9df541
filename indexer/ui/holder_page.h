// The page of a process that keeps holders: of a leaf about its workers, of a node about its cells.
//
// *Lifetime*: registry and `stats` outlive the pages. *Threads*: as `UiPages`.

#ifndef KVATLAS_INDEXER_UI_HOLDER_PAGE_H_
#define KVATLAS_INDEXER_UI_HOLDER_PAGE_H_

#include <cstdint>
#include <functional>
#include <string>

#include "indexer/registry/holder_registry.h"
#include "indexer/ui/fleet.h"
#include "indexer/ui/ui_http.h"
#include "proto/kvatlas/v1/leaf.pb.h"

namespace kvatlas {

struct HolderPageOptions {
  std::string program;  // "kvatlas-leaf"
  bool leaf = true;     // else a node
  std::string name;
  // The answer of `Stats`.
  std::function<v1::StatsResponse()> stats;
  // Questions answered since the start.
  std::function<uint64_t()> queries;
  HttpHandler explain = nullptr;
  HttpHandler sessions = nullptr;
};

// The state of a page about this process alone.
FleetPage PageOf(const HolderPageOptions& options, const v1::StatsResponse& stats);

UiPages HolderPages(HolderPageOptions options, const HolderRegistry* registry);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_UI_HOLDER_PAGE_H_
