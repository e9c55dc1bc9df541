// Tries the ways of a model one after the other (`TryNext`), each with what is left of the
// deadline. Two things hang on that chain: samples of what `local` made are compared with the
// engine's tokens (`Sample`), and a prompt with media that no way can tokenize is cut to its
// beginning (`TryBeginning`), which enters the chain again with prompts of text.

#include "frontend/prompt/tokenizer_choice.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "frontend/prompt/discover_engines.h"
#include "frontend/prompt/media_marks.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {

// An entry is `[MODEL=]WAY[+WAY]*`. The last "=" separates, since names of models may contain one.
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

// One prompt on its way through the ways of its model. Shared by the callbacks that continue it.
struct TokenizerChoice::Task {
  std::string model;
  Prompt prompt;
  Time started{0};
  Duration deadline{0};
  std::vector<Way> left;               // the next one last
  PromptTokenizer* sampler = nullptr;  // the way behind `local`; set together with `shape`
  std::string shape;                   // of the request; empty: its tokens are never sampled
  Callback callback;
};

namespace {

// Whether another way may be tried after this answer. A refusal of files here (INVALID_ARGUMENT of
// `local`) is not final: the engine may have a newer template. A refusal of the engine is. A late
// answer (DEADLINE_EXCEEDED) leaves no time for another way.
bool GoesOn(const absl::Status& status, bool is_local) {
  return absl::IsNotFound(status) || absl::IsUnavailable(status) ||
         absl::IsResourceExhausted(status) || absl::IsUnimplemented(status) ||
         (is_local && absl::IsInvalidArgument(status));
}

// Which of two reasons the caller gets when all ways failed. An earlier INVALID_ARGUMENT stands. An
// earlier UNIMPLEMENTED or "no engine met" stands before a NOT_FOUND. Otherwise the later one
// counts. A refusal that is followed by "no engine met" keeps its words and carries that mark, so
// that the caller learns of engines and asks again (`discover_engines.h`).
absl::Status Better(absl::Status earlier, absl::Status later) {
  const bool is_refused = absl::IsInvalidArgument(earlier) || absl::IsUnimplemented(earlier);
  if (is_refused && IsNoEngineMet(later)) return WithNoEngineMet(std::move(earlier));
  if (absl::IsInvalidArgument(earlier)) return earlier;
  if (absl::IsNotFound(later) && (is_refused || IsNoEngineMet(earlier))) return earlier;
  return later;
}

// The log line of the first sample of a shape that differs.
void SayDifference(const std::string& shape, const PromptTokens& here, const PromptTokens& engine) {
  const auto [ours, theirs] = std::mismatch(here.tokens.begin(), here.tokens.end(),
                                            engine.tokens.begin(), engine.tokens.end());
  Log(LogLevel::kWarning, "tokens made here differ from the engine's",
      {{"requests", shape},
       {"from_token", std::to_string(ours - here.tokens.begin())},
       {"tokens_here", std::to_string(here.tokens.size())},
       {"tokens_engine", std::to_string(engine.tokens.size())},
       {"here", here.source},
       {"engine", engine.source},
       {"remedy",
        "none is needed: such requests are tokenized by the engine now; that the files are the "
        "engine's can be looked at with kvatlas tokenize --compare"}});
}

}  // namespace

TokenizerChoice::TokenizerChoice(TokenizeWays ways, std::map<std::string, PromptTokenizer*> by_way,
                                 const TokenEvidenceOptions& evidence)
    : ways_(std::move(ways)),
      by_way_(std::move(by_way)),
      evidence_(std::make_shared<TokenEvidence>(evidence)) {}

// Ways of the model, else those of all others. Ways that this process does not have are left out.
std::vector<TokenizerChoice::Way> TokenizerChoice::WaysOf(const std::string& model) const {
  std::vector<Way> found;
  auto ways = ways_.find(model);
  if (ways == ways_.end()) ways = ways_.find("");
  if (ways == ways_.end()) return found;
  for (const std::string& way : ways->second) {
    if (const auto tokenizer = by_way_.find(way); tokenizer != by_way_.end())
      found.push_back({.tokenizer = tokenizer->second, .is_local = way == "local"});
  }
  return found;
}

// 1. Takes the ways of the model.
// 2. If `local` comes first and another way follows, looks up what samples of this shape of request
//    said: if one differed lately, `local` is left out; otherwise this request may become a sample.
// 3. Starts the chain. The first reason is "no tokenizer", which stands where the model has no
//    ways.
//
// Plain conventions are not sampled: no engine reads requests so.
void TokenizerChoice::Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                               Callback callback) {
  std::vector<Way> ways = WaysOf(model);
  auto task = std::make_shared<Task>();
  const auto* const body = std::get_if<BodyPrompt>(&prompt);
  if (ways.size() > 1 && ways.front().is_local && body != nullptr &&
      body->convention.engine != EngineKind::kPlain) {
    std::string shape = ShapeOf(model, *body);
    if (evidence_->IsDistrusted(shape)) {
      ways.erase(ways.begin());
    } else {
      task->sampler = ways[1].tokenizer;
      task->shape = std::move(shape);
    }
  }
  std::reverse(ways.begin(), ways.end());
  task->left = std::move(ways);
  task->model = model;
  task->prompt = prompt;
  task->started = Clock::Real().Now();
  task->deadline = deadline;
  task->callback = std::move(callback);
  TryNext(task,
          absl::NotFoundError("no tokenizer for model " + model + "; set --models or --tokenize"));
}

// Asks the next way. Without one, or without time, ends with the best reason so far.
void TokenizerChoice::TryNext(const std::shared_ptr<Task>& task, absl::Status why) {
  const Duration left = task->started + task->deadline - Clock::Real().Now();
  if (left <= Duration(0)) return task->callback(std::move(why));
  if (task->left.empty()) return TryBeginning(task, left, std::move(why));
  const Way next = task->left.back();
  task->left.pop_back();
  next.tokenizer->Tokenize(
      task->model, task->prompt, left,
      [this, task, why, is_local = next.is_local](absl::StatusOr<PromptTokens> answer) {
        if (GoesOn(answer.status(), is_local)) return TryNext(task, Better(why, answer.status()));
        // An engine's refusal is its own, and the last word.
        if (answer.ok() && is_local) Sample(*task, *answer);
        task->callback(std::move(answer));
      });
}

// Makes the tokens in front of the first media item of a prompt that no way could tokenize.
//
// 1. Puts a text in the place of each message with media, twice, with two texts that begin unlike
//    each other (`WithMarks`).
// 2. Tokenizes both by the ways of the model. They have no media, so this does not end here again.
// 3. Takes the tokens that both have in common, without the last one (`BeforeMarks`).
//
// If any of it fails, the caller gets the reason why the whole prompt has no tokens. What the
// engine refuses (INVALID_ARGUMENT) has no beginning either.
void TokenizerChoice::TryBeginning(const std::shared_ptr<Task>& task, Duration left,
                                   absl::Status why) {
  const auto* const body = std::get_if<BodyPrompt>(&task->prompt);
  if (body == nullptr || absl::IsInvalidArgument(why)) return task->callback(std::move(why));
  const absl::StatusOr<MarkedPrompt> one = WithMarks(*body, kMediaMarks[0]);
  const absl::StatusOr<MarkedPrompt> other = WithMarks(*body, kMediaMarks[1]);
  if (!one.ok() || !other.ok()) return task->callback(std::move(why));
  const auto end = [task, why, media = one->media](const PromptTokens& first,
                                                   absl::StatusOr<PromptTokens> second) {
    if (!second.ok()) return task->callback(why);
    second->tokens = BeforeMarks(first.tokens, second->tokens);
    if (second->tokens.empty()) return task->callback(why);
    second->reused = std::min(second->reused, second->tokens.size());
    second->ends_before = absl::StrCat("the prompt is known up to the message with ", media, ": ",
                                       std::string(why.message()));
    task->callback(std::move(second));
  };
  Tokenize(task->model, one->prompt, left,
           [this, task, why, end, other = other->prompt](absl::StatusOr<PromptTokens> first) {
             const Duration left = task->started + task->deadline - Clock::Real().Now();
             if (!first.ok() || left <= Duration(0)) return task->callback(why);
             Tokenize(task->model, other, left,
                      [end, first = *std::move(first)](absl::StatusOr<PromptTokens> second) {
                        end(first, std::move(second));
                      });
           });
}

// Asks the next way for its tokens of the same prompt and compares. The answer does not wait for
// it. `Samples` bounds how many are under way; each call of it that returns true is followed by
// `Add` or `Unknown`. The callback holds the evidence, not this object, which may be gone by then.
void TokenizerChoice::Sample(const Task& task, const PromptTokens& here) const {
  if (task.shape.empty() || !evidence_->Samples(task.shape)) return;
  task.sampler->Tokenize(
      task.model, task.prompt, task.deadline,
      [evidence = evidence_, shape = task.shape, here](absl::StatusOr<PromptTokens> engine) {
        if (!engine.ok()) return evidence->Unknown();
        if (evidence->Add(shape, here.tokens, engine->tokens)) SayDifference(shape, here, *engine);
      });
}

}  // namespace kvatlas
