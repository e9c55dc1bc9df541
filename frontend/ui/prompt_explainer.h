// Where in the fleet is a prompt cached? The page's question, answered by the leaves that may have
// it.
//
//   text ─ tokenizer ─▶ tokens ─▶ all cells, or of many those that the hierarchy names ─▶ Leaf.Explain ─▶ strips
//
// *Truth*: as the leaves say it; those that do not answer are named. It is no route: nothing is
// counted or remembered.
// *Threads*: any; `Answer` waits, at most `kExplainDeadline` for each of its three steps.
// *Bounds*: `kExplainCellsMax` leaves and `kExplainNodesMax` nodes are asked.
// *Lifetime*: what it is made of outlives it.

#ifndef KVATLAS_FRONTEND_UI_PROMPT_EXPLAINER_H_
#define KVATLAS_FRONTEND_UI_PROMPT_EXPLAINER_H_

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/ui/fleet_watch.h"
#include "frontend/ui/peer_asker.h"
#include "indexer/base/clock.h"
#include "indexer/net/http_server.h"
#include "indexer/ui/explain.h"

namespace kvatlas {

inline constexpr size_t kExplainCellsMax = 32;
inline constexpr size_t kExplainNodesMax = 32;
inline constexpr Duration kExplainDeadline = std::chrono::seconds(2);

class PromptExplainer {
 public:
  struct Parts {
    const Frontend* frontend = nullptr;
    FleetWatch* watch = nullptr;
    PromptTokenizer* tokenizer = nullptr;  // null: only token ids are explained
    CellFinder* cells = nullptr;
    PeerAsker* asker = nullptr;
  };
  explicit PromptExplainer(Parts parts) : parts_(parts) {}

  // The answer to POST /ui/explain: `explain.h` has the format. 403: the caller may not dump what
  // the question names.
  HttpResponse Answer(const HttpRequest& request) const;

 private:
  using NamedCell = std::pair<std::string, std::string>;  // and its leaf's address

  absl::Status MakeTokens(ExplainQuestion* question) const;
  std::vector<NamedCell> CellsFor(const ExplainQuestion& question, size_t* known) const;
  std::vector<NamedCell> Covering(const ExplainQuestion& question) const;

  const Parts parts_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_UI_PROMPT_EXPLAINER_H_
