// Answers of leaves that were asked before the hierarchy named any. A route asks the hierarchy, then leaves; where it can
// guess the leaves, both are asked at once, and the route waits for the slower of the two instead of for one after the other.
//
//   asked one after the other    hierarchy ├───────┤ leaf ├───────┤ choice
//   asked ahead                  hierarchy ├───────┤ choice
//                                     leaf ├─────┤
//
// *Truth*: the leaf's own answer, at most as old as the hierarchy's. A guess that was wrong costs the leaf one question.
// *Threads*: any; `Take` once for each address, others may answer meanwhile.
// *Lifetime*: kept alive by the questions that are under way.

#ifndef KVATLAS_FRONTEND_ROUTE_ASKED_AHEAD_H_
#define KVATLAS_FRONTEND_ROUTE_ASKED_AHEAD_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "frontend/route/finders.h"
#include "frontend/route/prepared_prompt.h"
#include "frontend/route/route_request.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

class AskedAhead : public std::enable_shared_from_this<AskedAhead> {
 public:
  AskedAhead(Domain domain, PreparedPrompt::Ptr prompt)
      : domain_(std::move(domain)), prompt_(std::move(prompt)) {}

  // Leaves that can be guessed for this prompt, at most `ask_ahead`: all when no more cells are known, or else that of the
  // cell which was lately sent most of the prompt, and the session's. They are asked. Null: there are none.
  static std::shared_ptr<AskedAhead> Guess(const RequestPtr& request);

  void Ask(OverlapFinder* finder, const std::string& leaf_address, Duration deadline,
           const TraceContext& trace);
  // True: `callback` gets what the leaf says, now or later. False: it was not asked, or its answer was taken already.
  bool Take(const std::string& leaf_address, OverlapFinder::Callback callback);

 private:
  struct Question {
    std::optional<absl::StatusOr<WorkersAnswer>> answer;
    OverlapFinder::Callback callback;
  };

  void OnAnswer(const std::string& leaf_address, absl::StatusOr<WorkersAnswer> answer);

  const Domain domain_;
  const PreparedPrompt::Ptr prompt_;
  Mutex mutex_;
  std::map<std::string, Question> questions_ ABSL_GUARDED_BY(mutex_);  // not taken yet
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTE_ASKED_AHEAD_H_
