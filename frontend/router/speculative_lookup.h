// Answers of leaves that were asked before the hierarchy named any. A route asks the hierarchy,
// then leaves; where it can guess the leaves, both are asked at once, and the route waits for the
// slower of the two instead of for one after the other.
//
//   asked one after the other    hierarchy ├───────┤ leaf ├───────┤ choice
//   asked ahead                  hierarchy ├───────┤ choice
//                                     leaf ├─────┤
//
// *Truth*: the leaf's own answer, at most as old as the hierarchy's. A guess that was wrong costs
// the leaf one question.
// *Threads*: any; `Take` once for each address, others may answer meanwhile.
// *Lifetime*: kept alive by the questions that are under way.

#ifndef KVATLAS_FRONTEND_ROUTER_SPECULATIVE_LOOKUP_H_
#define KVATLAS_FRONTEND_ROUTER_SPECULATIVE_LOOKUP_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/router/route_request.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

class SpeculativeLookup : public std::enable_shared_from_this<SpeculativeLookup> {
 public:
  // Asks one leaf about the prompt.
  using Question = std::function<void(const std::string& leaf_address, Duration deadline,
                                      OverlapFinder::Callback callback)>;

  explicit SpeculativeLookup(Question question) : question_(std::move(question)) {}

  // Leaves that can be guessed for this prompt, at most `ask_ahead`: all when no more cells are
  // known, or else that of the cell which was lately sent most of the prompt, and the session's.
  // They are asked. Null: there are none.
  static std::shared_ptr<SpeculativeLookup> Guess(const RequestPtr& request);

  void Ask(const std::string& leaf_address, Duration deadline);
  // True: `callback` gets what the leaf says, now or later. False: it was not asked, or its answer
  // was taken already.
  bool Take(const std::string& leaf_address, OverlapFinder::Callback callback);

 private:
  struct Asked {
    std::optional<absl::StatusOr<WorkersAnswer>> answer;
    OverlapFinder::Callback callback;
  };

  void OnAnswer(const std::string& leaf_address, absl::StatusOr<WorkersAnswer> answer);

  const Question question_;
  Mutex mutex_;
  std::map<std::string, Asked> asked_ ABSL_GUARDED_BY(mutex_);  // not taken yet
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_SPECULATIVE_LOOKUP_H_
