// How does a prompt come to its worker? One route from top to bottom; `route.cc` is read in this
// order.
//
//   Start          refuses bad input, prepares the prompt
//   Begin          a try: `RouteRequest`, and new objects of the stages
//   AskHierarchy   `AskTop`, and leaves that can be guessed beside it (`SpeculativeLookup`)
//   AskNext        `CellSearch` names the next peers: nodes (`AskNodes`, whose cells take their place), leaves (`AskLeaves`), or the next source
//   Conclude       some of the candidates only prefill, and none that answered decodes: `TakeForDecoders`
//   Decide         `ChooseAndCount`; Finish, Wait for room, or Fail
//
// Another block size than the prompt was hashed with, and a wait for room, begin another try with
// new stages; `Again` chooses at once, among the candidates of an earlier route.
// *Threads*: one step at a time, in the thread of the answer that completes the step before it.
// *Lifetime*: kept alive by the callbacks it has given out.

#ifndef KVATLAS_FRONTEND_ROUTER_ROUTE_H_
#define KVATLAS_FRONTEND_ROUTER_ROUTE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "frontend/router/candidates.h"
#include "frontend/router/cell_question.h"
#include "frontend/router/cell_search.h"
#include "frontend/router/commit.h"
#include "frontend/router/fleet.h"
#include "frontend/router/frontend.h"
#include "frontend/router/leaf_wave.h"
#include "frontend/router/prepared_prompt.h"
#include "frontend/router/route_error.h"
#include "frontend/router/route_request.h"
#include "frontend/router/speculative_lookup.h"

namespace kvatlas {

// The candidates that a route found, for another choice among them.
class RoutedPrompt {
 public:
  RoutedPrompt(RouteInput input, std::vector<CandidateCellPtr> cells, Receipt receipt, Time at)
      : input(std::move(input)), cells(std::move(cells)), receipt(std::move(receipt)), at(at) {}

  const RouteInput input;  // prepared
  const std::vector<CandidateCellPtr> cells;
  const Receipt receipt;  // of those that were asked; no candidates
  const Time at;
};

class Route : public std::enable_shared_from_this<Route> {
 public:
  Route(std::shared_ptr<FleetState> fleet, RouteInput input, Frontend::Callback callback);

  void Start();
  void Again(const RoutedPrompt& routed);
  // Ends a route that waited (`FleetState::Wait`) and was taken off the list by `Stop`.
  void EndWaiting();

 private:
  // The stages of one try.
  struct Try {
    RequestPtr request;
    CellSearch search;
    Answers answers = {};
    Receipt receipt = {};
    std::shared_ptr<SpeculativeLookup> ahead = {};  // null: no leaf was
    uint32_t cells_wanted = 0;                      // of a hierarchy; 0: all
    bool cells_left_out = false;                    // by the hierarchy, which named the best alone
    FleetSaid said = {};
  };

  // `others`: of the input's other readings.
  void MakeTry(PreparedPrompt::Ptr prompt, std::vector<PreparedPrompt::Ptr> others);
  void Begin(PreparedPrompt::Ptr prompt, std::vector<PreparedPrompt::Ptr> others);
  void AskHierarchy();
  // Whether the hierarchy was last asked for all of its cells `every` ago or longer; then it counts
  // as asked now.
  bool ListsCells(Duration every);
  void Note(const TopAnswer& top);
  void OnTop(TopAnswer top);
  void AskNext();
  void AskNodes(std::vector<Target> nodes, std::vector<Target> leaves);
  void OnNodes(std::vector<Target> nodes, std::vector<Target> leaves, Time began,
               std::vector<CellsOutcome> outcomes);
  void AskLeaves(std::vector<Target> leaves);
  void OnLeaves(Time began, std::vector<AskedLeaf> leaves);
  void Conclude();
  bool AskForDecoders();
  void OnAllCells(TopAnswer top);
  void Decide();
  // `cells`: that were chosen among.
  void FinishLearning();
  void Tell(const Committed& committed, const PreparedPrompt& prompt);
  void Finish(Committed committed, const std::vector<CandidateCellPtr>& cells);
  void WaitOrReject(const Choice& choice);
  void Fail(absl::Status status);

  // Remembers the size; begins another try, once, when the prompt would be another one in it. True
  // when it did.
  bool BeginWith(uint32_t block_size);
  // Adds to the receipt why the choice may be made without the full path.
  void AddReason(const std::string& why);
  void AddFailure(const std::string& what, const CellsOutcome& outcome);

  const std::shared_ptr<FleetState> fleet_;
  const Time began_;
  std::shared_ptr<const RouteInput> input_;
  Frontend::Callback callback_;
  bool began_with_block_size_ = false;
  Time tried_since_{0};
  std::unique_ptr<Try> try_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_ROUTE_H_
