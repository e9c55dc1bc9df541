// The page of a frontend: the fleet as `FleetWatch` sees it, routes as they went, and what `Truth`
// found.
//
// *Lifetime*: everything that is named outlives the pages.

#ifndef KVATLAS_FRONTEND_UI_FRONTEND_PAGE_H_
#define KVATLAS_FRONTEND_UI_FRONTEND_PAGE_H_

#include <functional>
#include <string>

#include "frontend/accuracy/truth.h"
#include "frontend/router/frontend.h"
#include "frontend/ui/fleet_watch.h"
#include "frontend/ui/prompt_explainer.h"
#include "frontend/ui/route_tally.h"
#include "frontend/ui/session_finder.h"
#include "indexer/ui/ui_http.h"

namespace kvatlas {

struct FrontendPageOptions {
  std::string program;
  std::function<std::string()> name;  // its address; asked for when it serves
  Frontend* frontend = nullptr;
  RouteTally* tally = nullptr;
  FleetWatch* watch = nullptr;
  const Truth* truth = nullptr;
  const PromptExplainer* explainer = nullptr;  // null: prompts are not explained
  const SessionFinder* sessions = nullptr;     // null: sessions are not shown
  std::string own_leaf = {};  // address of a leaf that is in this process; empty: none is
};

// Nodes and own cells of a frontend, whatever they are at the time.
FleetSources SourcesOf(const Frontend* frontend);

UiPages FrontendPages(FrontendPageOptions options);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_UI_FRONTEND_PAGE_H_
