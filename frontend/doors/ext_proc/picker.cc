#include "frontend/doors/ext_proc/picker.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/doors/errors.h"
#include "frontend/prompt/error_code.h"
#include "frontend/prompt/meet_engines.h"
#include "frontend/prompt/openai/json_reader.h"

namespace kvatlas {
namespace {

absl::Status EmptySubset() {
  return absl::UnavailableError(
      "the gateway's subset of endpoints is empty: no endpoint may be chosen");
}

// Of a body that is one of JSON; empty: it names none.
std::string ModelIn(const std::string& body) {
  const absl::StatusOr<nlohmann::ordered_json> json = ReadJson(body);
  if (!json.ok() || !json->is_object()) return "";
  const auto model = json->find("model");
  return model == json->end() || !model->is_string() ? "" : model->get<std::string>();
}

bool Contains(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

}  // namespace

Refusal RefusalOf(const absl::Status& why) {
  const ClientError error = ToClientError(why);
  return error.http_status < 500 ? error : ToClientError(absl::UnavailableError(why.message()));
}

struct Picker::Task {
  RouteInput input;
  std::shared_ptr<const Prompt> prompt;  // until it has its tokens
  std::optional<std::vector<std::string>> subset;
  Callback callback;
};

Picker::Picker(PickerOptions options, Frontend* frontend, PromptTokenizer* tokenizer,
               Endpoints* endpoints)
    : options_(options), frontend_(frontend), tokenizer_(tokenizer), endpoints_(endpoints) {}

Picker::~Picker() { WaitIdle(); }

void Picker::WaitIdle() {
  MutexLock lock(&mutex_);
  while (under_way_ > 0) idle_.Wait(&mutex_);
}

std::shared_ptr<Picker::Task> Picker::NewTask() {
  {
    MutexLock lock(&mutex_);
    ++under_way_;
  }
  return std::shared_ptr<Task>(new Task, [this](Task* task) {
    delete task;
    MutexLock lock(&mutex_);
    if (--under_way_ == 0) idle_.SignalAll();
  });
}

void Picker::Pick(PickInput input, Callback callback) {
  if (input.subset.has_value() && input.subset->empty()) return callback(RefusalOf(EmptySubset()));
  absl::StatusOr<OpenAiRequest> request = OpenAiRequest();
  if (input.call.has_value()) {
    request = ParseOpenAiRequest(*input.call, input.body);
  } else {
    request->model = ModelIn(input.body);
    request->no_prompt = absl::UnimplementedError("the call has no prompt");
    if (request->model.empty()) {
      std::variant<std::string, Refusal> any = PickAny(input.subset);
      if (auto* const refusal = std::get_if<Refusal>(&any)) return callback(std::move(*refusal));
      return callback(Picked{.endpoints = {{.address = std::get<std::string>(std::move(any))}}});
    }
  }
  if (request.ok() && request->model.empty())
    request = absl::InvalidArgumentError("model is missing");
  if (!request.ok()) return callback(RefusalOf(request.status()));
  const std::shared_ptr<Task> task = NewTask();
  task->input = {.domain = {.model = std::move(request->model), .tenant = std::move(input.tenant)},
                 .cache_salt = std::move(request->cache_salt),
                 .unknown_prompt = !request->no_prompt.ok(),
                 .session_id = std::move(input.session_id),
                 .tenant = std::move(input.owner),
                 .expected_output_tokens = static_cast<uint32_t>(
                     std::min<size_t>(request->output_tokens_max, UINT32_MAX)),
                 .end_follows = true,
                 .trace = input.trace};
  task->subset = std::move(input.subset);
  task->callback = std::move(callback);
  if (!task->input.unknown_prompt) {
    task->input.form = PromptForm::kCompletion;
    if (auto* const tokens = std::get_if<std::vector<TokenId>>(&request->prompt)) {
      task->input.tokens = std::move(*tokens);
    } else if (auto* const text = std::get_if<TextPrompt>(&request->prompt)) {
      task->prompt = std::make_shared<const Prompt>(std::move(*text));
    } else {
      task->input.form = PromptForm::kChat;
      task->prompt =
          std::make_shared<const Prompt>(std::get<ChatPrompt>(std::move(request->prompt)));
    }
  }
  if (options_.served_name == nullptr ||
      options_.served_name(&task->input, [this, task] { Tokenize(task); }))
    Tokenize(task);
}

void Picker::Tokenize(std::shared_ptr<Task> task) {
  if (task->prompt == nullptr) return Route(task);
  if (tokenizer_ == nullptr) {
    return task->callback(RefusalOf(WithErrorCode(
        absl::NotFoundError("no tokenizer is configured: send token ids, or set --models"),
        kTokenizerNotFound)));
  }
  TokenizeMeetingEngines(frontend_, tokenizer_, task->input.domain, std::move(task->prompt),
                         options_.tokenize_deadline,
                         [this, task](absl::StatusOr<PromptTokens> answer) {
                           if (!answer.ok())
                             return task->callback(RefusalOf(AboutTokenizer(answer.status())));
                           task->input.bos = answer->bos;
                           task->input.tokens = std::move(answer->tokens);
                           Route(task);
                         });
}

void Picker::Route(std::shared_ptr<Task> task) {
  if (task->subset.has_value()) {
    const std::vector<std::string> there = endpoints_->NamesAt(*task->subset);
    if (!there.empty()) AllowOnly(there, &task->input);
  }
  frontend_->RouteAsync(std::move(task->input), [this, task](absl::StatusOr<RouteResult> result) {
    task->callback(Choose(*task, std::move(result)));
  });
}

PickResult Picker::Choose(const Task& task, absl::StatusOr<RouteResult> result) {
  if (!result.ok()) {
    const bool no_worker = result.status().code() == absl::StatusCode::kNotFound;
    if (no_worker) return Without(task, std::string(result.status().message()));
    return RefusalOf(result.status());
  }
  if (!result->url.empty()) endpoints_->Learn(result->worker, result->url);
  const bool split = result->decode.has_value();
  if (split && !result->decode->url.empty())
    endpoints_->Learn(result->decode->worker, result->decode->url);
  Picked picked;
  const auto add = [&](const std::string& cell, const HolderId& worker) {
    if (picked.endpoints.size() == std::max<uint32_t>(options_.endpoints_best, 1)) return;
    std::optional<std::string> address = endpoints_->Of(worker);
    if (!address.has_value()) return;
    if (task.subset.has_value() && !Contains(*task.subset, *address)) return;
    picked.endpoints.push_back({.address = *std::move(address), .worker = {cell, worker}});
  };
  add(result->destination_cell(), result->destination());
  const bool as_chosen = !picked.endpoints.empty();
  picked.decodes = split && as_chosen;
  if (picked.decodes) picked.prefiller = endpoints_->Of(result->worker).value_or("");
  // The header that says who prefills goes with the first endpoint alone: no other one is named beside it.
  if (!picked.decodes) {
    for (const ReceiptCandidate& candidate : result->receipt.candidates)
      if (!(candidate.worker == result->worker) && !candidate.prefill_only)
        add(candidate.cell, candidate.worker);
  }
  if (as_chosen) {
    picked.decision_id = result->decision_id;
    if (result->of_several_ranks) picked.rank = result->destination().rank;
    return picked;
  }
  // The chosen worker gets nothing: nothing is in flight to it.
  frontend_->Report(result->decision_id, {.abandoned = true});
  if (!picked.endpoints.empty()) return picked;
  return Without(task, "the endpoint of worker " + ToString(result->worker) +
                           " is not known, or not one that the gateway allows");
}

PickResult Picker::Without(const Task& task, const std::string& why) {
  if (!task.subset.has_value()) return RefusalOf(absl::UnavailableError(why));
  return Picked{.endpoints = {{.address = OneOf(*task.subset)}}};
}

std::variant<std::string, Refusal> Picker::PickAny(
    const std::optional<std::vector<std::string>>& subset) {
  if (subset.has_value() && subset->empty()) return RefusalOf(EmptySubset());
  if (subset.has_value()) return OneOf(*subset);
  std::optional<std::string> next = endpoints_->Next(frontend_->draining());
  if (next.has_value()) return *std::move(next);
  return RefusalOf(absl::UnavailableError("no endpoint of an engine that takes requests is known"));
}

std::string Picker::OneOf(const std::vector<std::string>& endpoints) {
  return endpoints[turns_.fetch_add(1, std::memory_order_relaxed) % endpoints.size()];
}

}  // namespace kvatlas
