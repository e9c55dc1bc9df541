#include "frontend/prompt/tokenizer_choice.h"

#include <algorithm>
#include <utility>

#include "frontend/prompt/meet_engines.h"

namespace kvatlas {

absl::StatusOr<TokenizeWays> ParseTokenizeWays(const std::vector<std::string>& flag) {
  TokenizeWays ways;
  for (const std::string& entry : flag) {
    const size_t equals = entry.rfind('=');
    const std::string model = equals == std::string::npos ? "" : entry.substr(0, equals);
    if (ways.contains(model)) {
      return absl::InvalidArgumentError(model.empty() ? "two ways for all models"
                                                      : "'" + model + "' twice");
    }
    std::string_view rest = entry;
    if (equals != std::string::npos) rest.remove_prefix(equals + 1);
    while (true) {
      const size_t plus = rest.find('+');
      const std::string way(rest.substr(0, plus));
      if (way != "local" && way != "engine" && way != "render") {
        return absl::InvalidArgumentError("'" + entry +
                                          "': a way is local, engine or render, such as "
                                          "local+engine");
      }
      ways[model].push_back(way);
      if (plus == std::string_view::npos) break;
      rest.remove_prefix(plus + 1);
    }
  }
  return ways;
}

struct TokenizerChoice::Task {
  std::string model;
  Prompt prompt;
  Time started{0};
  Duration deadline{0};
  std::vector<PromptTokenizer*> left;  // the next one last
  Callback callback;
};

TokenizerChoice::TokenizerChoice(TokenizeWays ways, std::map<std::string, PromptTokenizer*> by_way)
    : ways_(std::move(ways)), by_way_(std::move(by_way)) {}

void TokenizerChoice::Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                               Callback callback) {
  auto ways = ways_.find(model);
  if (ways == ways_.end()) ways = ways_.find("");
  auto task = std::make_shared<Task>();
  if (ways != ways_.end()) {
    for (const std::string& way : ways->second) {
      if (const auto found = by_way_.find(way); found != by_way_.end())
        task->left.push_back(found->second);
    }
  }
  std::reverse(task->left.begin(), task->left.end());
  if (task->left.size() == 1)
    return task->left.front()->Tokenize(model, prompt, deadline, std::move(callback));
  task->model = model;
  task->prompt = prompt;
  task->started = Clock::Real().Now();
  task->deadline = deadline;
  task->callback = std::move(callback);
  TryNext(task,
          absl::NotFoundError("no tokenizer for model " + model + "; set --models or --tokenize"));
}

void TokenizerChoice::TryNext(const std::shared_ptr<Task>& task, absl::Status why) const {
  const Duration left = task->started + task->deadline - Clock::Real().Now();
  if (task->left.empty() || left <= Duration(0)) return task->callback(std::move(why));
  PromptTokenizer* const next = task->left.back();
  task->left.pop_back();
  next->Tokenize(task->model, task->prompt, left,
                 [this, task, why](absl::StatusOr<PromptTokens> answer) {
                   const absl::Status& status = answer.status();
                   if (absl::IsNotFound(status) && IsNoEngineMet(why)) return TryNext(task, why);
                   if (absl::IsNotFound(status) || absl::IsUnavailable(status) ||
                       absl::IsResourceExhausted(status)) {
                     return TryNext(task, status);
                   }
                   task->callback(std::move(answer));
                 });
}

}  // namespace kvatlas
