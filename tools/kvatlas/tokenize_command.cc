// tokenize: the token ids that an engine makes of requests, from a model's files, one JSON body a
// line in and one answer a line out. Each answer is flushed, so that a script can hold a dialogue.
// With --compare an engine is asked for its own ids, and the exit status is 3 if any differ.

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/prompt/remote_tokenizer.h"
#include "frontend/prompt/request/prompt_request.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/prompt/text/text_model.h"
#include "indexer/base/clock.h"
#include "tools/kvatlas/command.h"

namespace kvatlas {
namespace {

// The number of ids shown on each side of the first one that differs.
constexpr size_t kIdsShown = 8;

// The same for all lines.
struct Question {
  std::shared_ptr<ModelRegistry> registry;
  std::vector<std::string> names;  // of the models
  RequestPath path = RequestPath::kChat;
  Convention convention = {};
  RemoteTokenizer* engine = nullptr;  // null: nothing is compared
  Duration timeout{0};
};

// Waits for the callback of the remote tokenizer, which comes by `timeout`.
absl::StatusOr<PromptTokens> ByEngine(const Question& question, const std::string& model,
                                      const Prompt& prompt) {
  std::promise<absl::StatusOr<PromptTokens>> answer;
  question.engine->Tokenize(
      model, prompt, question.timeout,
      [&](absl::StatusOr<PromptTokens> tokens) { answer.set_value(std::move(tokens)); });
  return answer.get_future().get();
}

// Ids around a place.
Json Around(const std::vector<TokenId>& ids, size_t at) {
  const size_t from = at - std::min(at, kIdsShown);
  const size_t end = std::min(ids.size(), at + kIdsShown);
  return std::vector<TokenId>(ids.begin() + static_cast<ptrdiff_t>(std::min(from, end)),
                              ids.begin() + static_cast<ptrdiff_t>(end));
}

// `ours` is null if no ids were made here: equal then means that the engine refuses the request,
// too.
void Compare(const Question& question, const std::string& model, const Prompt& prompt,
             const std::vector<TokenId>* ours, Json* answer) {
  const absl::StatusOr<PromptTokens> theirs = ByEngine(question, model, prompt);
  if (!theirs.ok()) {
    (*answer)["engine_error"] = std::string(theirs.status().message());
    (*answer)["equal"] = ours == nullptr && absl::IsInvalidArgument(theirs.status());
    return;
  }
  (*answer)["engine_ids"] = theirs->tokens;
  (*answer)["engine_way"] = theirs->source;
  (*answer)["equal"] = ours != nullptr && *ours == theirs->tokens;
  if (ours == nullptr || *ours == theirs->tokens) return;
  // The shorter list may be the beginning of the longer one: the place is then its end.
  const auto differ =
      std::mismatch(ours->begin(), ours->end(), theirs->tokens.begin(), theirs->tokens.end());
  const auto at = static_cast<size_t>(differ.first - ours->begin());
  (*answer)["first_difference"] = {
      {"token", at}, {"ids", Around(*ours, at)}, {"engine_ids", Around(theirs->tokens, at)}};
}

// A body without a model means the only one that was loaded. Ids in the body are the answer
// themselves.
Json Answer(const Question& question, std::string line) {
  const auto body = std::make_shared<const std::string>(std::move(line));
  absl::StatusOr<PromptRequest> request = ReadPromptRequest(question.path, body);
  if (request.ok() && !request->no_prompt.ok()) request = request->no_prompt;
  if (!request.ok()) return {{"error", std::string(request.status().message())}};
  if (request->model.empty() && question.names.size() == 1) request->model = question.names.front();
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&request->prompt))
    return {{"ids", *ids}, {"way", "ids"}};
  auto& prompt = std::get<BodyPrompt>(request->prompt);
  prompt.convention = question.convention;
  const absl::StatusOr<std::shared_ptr<TextModel>> model = question.registry->Find(request->model);
  if (!model.ok()) return {{"error", std::string(model.status().message())}};
  const Time start = Clock::Real().Now();
  const absl::StatusOr<PromptTokens> tokens = (*model)->Tokenize(prompt);
  const Duration took = Clock::Real().Now() - start;
  Json answer;
  if (tokens.ok()) {
    answer = {{"ids", tokens->tokens},
              {"way", "local"},
              {"reused", tokens->reused},
              {"us", std::chrono::duration_cast<std::chrono::microseconds>(took).count()}};
  } else {
    answer = {{"error", std::string(tokens.status().message())},
              {"code", absl::StatusCodeToString(tokens.status().code())}};
  }
  if (question.engine != nullptr)
    Compare(question, request->model, prompt, tokens.ok() ? &tokens->tokens : nullptr, &answer);
  return answer;
}

// A line that is wrong is an answer with an error; it does not end the run.
int Answers(Command* command, const Question& question) {
  size_t differ = 0;
  for (std::string line; std::getline(command->io().in, line);) {
    const Json answer = Answer(question, std::move(line));
    differ += answer.contains("equal") && !answer["equal"].get<bool>() ? 1 : 0;
    command->out() << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return differ > 0 ? kExitDifferent : command->Done();
}

}  // namespace

int RunTokenize(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command("tokenize",
                  "The token ids that an engine makes of requests: a client's JSON body a line on "
                  "standard input, {\"ids\": [...], \"way\": \"local\"} or {\"error\": \"...\"} a "
                  "line on standard output. An error says why there are no ids: the engine refuses "
                  "the request, or what it reads cannot be told from files (\"code\": "
                  "\"UNIMPLEMENTED\").",
                  io);
  std::string models, as = "vllm", path, compare;
  bool describe = false;
  Question question;
  command.flags().Add("models", &models,
                      "NAME=DIR,… with tokenizer.json and chat templates, or @FILE; as of "
                      "kvatlas-frontend");
  command.flags().AddChoice("as", &as,
                            "whose rules turn a request into a prompt; transformers: "
                            "apply_chat_template alone",
                            {"vllm", "sglang", "transformers"});
  command.flags().Add(
      "path", &path,
      "where the bodies are sent; empty: /v1/chat/completions, or /v1/completions for a body with "
      "a prompt and no messages. /v1/chat/completions, "
      "/v1/completions, /v1/responses, /v1/messages, /generate");
  command.flags().Add("reasoning_parser", &question.convention.reasoning_parser,
                      "of SGLang, as it was started");
  command.flags().Add("tool_call_parser", &question.convention.tool_call_parser,
                      "of SGLang, as it was started");
  command.flags().Add("compare", &compare,
                      "URL of an engine: its own ids beside ours, and the first that differs");
  command.flags().Add("describe", &describe, "show what was loaded, and stop");
  command.flags().Example("kvatlas tokenize --models qwen3=/models/qwen3 --as vllm < bodies.jsonl",
                          "ids of chats");
  if (std::optional<int> exit = command.Parse(arguments)) return *exit;
  if (models.empty()) return command.Usage("--models: expected NAME=DIR");
  absl::StatusOr<std::vector<ModelOptions>> options = ParseModels(models);
  if (!options.ok()) return command.Usage("--models: " + std::string(options.status().message()));
  const std::optional<RequestPath> known =
      path.empty() ? RequestPath::kChatOrCompletion : RequestPathOf("POST", path);
  if (!known.has_value())
    return command.Usage(
        "--path: expected a path that has a prompt, such as /v1/messages; found '" + path + "'");
  question.path = *known;
  question.convention.engine = as == "vllm"     ? EngineKind::kVllm
                               : as == "sglang" ? EngineKind::kSglang
                                                : EngineKind::kPlain;
  for (const ModelOptions& model : *options) question.names.push_back(model.name);
  absl::StatusOr<std::unique_ptr<ModelRegistry>> registry =
      ModelRegistry::Create(*std::move(options));
  if (!registry.ok()) return command.Fail(registry.status());
  if (describe) {
    command.out() << (*registry)->Describe().dump(2) << "\n";
    return command.Done();
  }
  question.registry = *std::move(registry);
  question.timeout = command.timeout();
  if (compare.empty()) return Answers(&command, question);
  RemoteTokenizerOptions remote;
  remote.urls = [compare](const std::string&) { return std::vector<std::string>{compare}; };
  RemoteTokenizer engine(std::move(remote));
  question.engine = &engine;
  return Answers(&command, question);
}

}  // namespace kvatlas
