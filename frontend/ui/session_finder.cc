#include "frontend/ui/session_finder.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/ui/gathered_answers.h"
#include "indexer/security/security.h"
#include "indexer/ui/sessions.h"

namespace kvatlas {
namespace {

// Leaves tell this process what it may see, which may be more than its caller may.
void DropHidden(const HttpRequest& request, v1::FindSessionsResponse* found) {
  const std::shared_ptr<const AccessPolicy> policy = Security::OfProcess()->policy();
  if (policy == nullptr) return;
  auto* const sessions = found->mutable_sessions();
  sessions->erase(
      std::remove_if(sessions->begin(), sessions->end(),
                     [&](const v1::SessionSeen& session) {
                       const PolicyTarget target = {.model = session.domain().model(),
                                                    .tenant = session.domain().tenant()};
                       return !policy->Decide(*request.identity, Verb::kDump, target).allowed;
                     }),
      sessions->end());
}

}  // namespace

HttpResponse SessionFinder::Answer(const HttpRequest& request) const {
  std::vector<std::pair<std::string, std::string>> cells = watch_->Leaves();
  SessionsAnswer answer;
  answer.cells_known = cells.size();
  if (cells.size() > kSessionCellsMax) cells.resize(kSessionCellsMax);
  answer.cells_asked = cells.size();
  const v1::FindSessionsRequest question = SessionsQuestion(request);
  GatheredAnswers<v1::FindSessionsResponse> answers(cells.size());
  for (size_t i = 0; i < cells.size(); ++i)
    asker_->FindSessions(cells[i].second, question, kSessionsDeadline, answers.Slot(i));
  std::vector<absl::StatusOr<v1::FindSessionsResponse>> said = answers.Wait();
  for (size_t i = 0; i < cells.size(); ++i) {
    if (said[i].ok()) {
      DropHidden(request, &*said[i]);
      answer.cells.emplace_back(cells[i].first, *std::move(said[i]));
    } else {
      answer.failed.push_back("cell " + cells[i].first + ": " +
                              std::string(said[i].status().message()));
    }
  }
  return {.body = SessionsJson(answer)};
}

}  // namespace kvatlas
