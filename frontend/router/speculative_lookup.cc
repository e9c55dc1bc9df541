// A question is in `asked_` from `Ask` until both its answer and its taker have come; the second of
// the two erases it, and the taker is called without the lock. Answers that are never taken stay as
// long as the object.

#include "frontend/router/speculative_lookup.h"

#include <utility>
#include <vector>

#include "frontend/router/first_answer.h"

namespace kvatlas {
namespace {

// At most `ask_ahead` addresses: of all known cells, if these are so few; otherwise of the cell
// that was lately sent at least half of the prompt (or all of its waypoints), and of the session's
// cell.
std::vector<std::string> GuessLeaves(const RouteRequest& request) {
  const FrontendOptions& options = request.options();
  std::vector<std::string> leaves;
  const std::shared_ptr<ModelFleet> model = request.Model();
  MutexLock lock(&model->mutex);
  if (model->memory.cells(request.domain()) <= options.ask_ahead) {
    for (KnownCell& cell : model->memory.Cells(request.domain()))
      leaves.push_back(std::move(cell.address));
  } else {
    const SentTo sent = request.LastSent(model->memory);
    const PreparedPrompt& prompt = request.PromptOf(sent.reading);
    const KnownCell* lately = model->memory.FindCell(request.domain(), sent.cell);
    const bool most = sent.waypoints == prompt.waypoints().size() ||
                      options.schedule->BlocksCovered(sent.waypoints) >= prompt.blocks() / 2;
    if (lately != nullptr && most) leaves.push_back(lately->address);
    const KnownCell* of_session =
        request.session.has_value()
            ? model->memory.FindCell(request.domain(), request.session->first)
            : nullptr;
    if (of_session != nullptr && of_session != lately) leaves.push_back(of_session->address);
  }
  std::erase(leaves, "");
  if (leaves.size() > options.ask_ahead) leaves.resize(options.ask_ahead);
  return leaves;
}

}  // namespace

// Nothing is asked ahead under a policy that asks every cell anyway. `asked_ahead` and
// `asked_ahead_used` count how good the guesses are.
std::shared_ptr<SpeculativeLookup> SpeculativeLookup::Guess(const RequestPtr& request) {
  const Duration deadline =
      Share(request->Left(), kWaveShare);  // before that of any wave that follows
  if (request->options().ask_ahead == 0 || !request->policy->bounded_by_coverage() ||
      deadline < kHopMin)
    return nullptr;
  const std::vector<std::string> leaves = GuessLeaves(*request);
  if (leaves.empty()) return nullptr;
  request->fleet->counts.asked_ahead += leaves.size();
  auto ahead = std::make_shared<SpeculativeLookup>(
      [request](const std::string& leaf, Duration within, OverlapFinder::Callback callback) {
        request->FindOverlaps(leaf, within, std::move(callback));
      });
  for (const std::string& leaf : leaves) ahead->Ask(leaf, deadline);
  return ahead;
}

// The entry exists before the question goes out: the answer may come before the call returns.
void SpeculativeLookup::Ask(const std::string& leaf_address, Duration deadline) {
  {
    MutexLock lock(&mutex_);
    if (!asked_.try_emplace(leaf_address).second) return;
  }
  question_(leaf_address, deadline,
            [self = shared_from_this(), leaf_address](absl::StatusOr<WorkersAnswer> answer) {
              self->OnAnswer(leaf_address, std::move(answer));
            });
}

// The entry is there: only `Take` of an answer that has come, or this call, erases it.
void SpeculativeLookup::OnAnswer(const std::string& leaf_address,
                                 absl::StatusOr<WorkersAnswer> answer) {
  OverlapFinder::Callback callback;
  {
    MutexLock lock(&mutex_);
    const auto question = asked_.find(leaf_address);
    if (question->second.callback == nullptr) {
      question->second.answer = std::move(answer);
      return;
    }
    callback = std::move(question->second.callback);
    asked_.erase(question);
  }
  callback(std::move(answer));
}

bool SpeculativeLookup::Take(const std::string& leaf_address, OverlapFinder::Callback callback) {
  std::optional<absl::StatusOr<WorkersAnswer>> answer;
  {
    MutexLock lock(&mutex_);
    const auto question = asked_.find(leaf_address);
    if (question == asked_.end() || question->second.callback != nullptr) return false;
    if (!question->second.answer.has_value()) {
      question->second.callback = std::move(callback);
      return true;
    }
    answer = std::move(question->second.answer);
    asked_.erase(question);
  }
  callback(*std::move(answer));
  return true;
}

}  // namespace kvatlas
