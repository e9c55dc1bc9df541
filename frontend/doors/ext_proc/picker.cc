#include "frontend/doors/ext_proc/picker.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/doors/errors.h"
#include "frontend/prompt/error_code.h"
#include "frontend/prompt/meet_engines.h"
#include "frontend/prompt/prompt_form.h"
#include "frontend/prompt/tokenize_readings.h"

namespace kvatlas {
namespace {

absl::Status EmptySubset() {
  return absl::UnavailableError(
      "the gateway's subset of endpoints is empty: no endpoint may be chosen");
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
  bool names_rank = false;
  bool one_prompt = true;
  std::vector<std::string> stored = {};
  std::optional<RouteInput> elsewhere =
      {};  // where the worker that has what is stored cannot be chosen
  std::string model = {};
  absl::Status no_tokens = {};  // why it is routed by load
  Callback callback = {};
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
  const auto may_use = [&input](const std::string& model) {
    return input.may_use == nullptr ? absl::OkStatus() : input.may_use(model);
  };
  if (IsWideText(input.body)) {
    if (const absl::Status may = may_use(kModelNotRead); !may.ok()) return callback(RefusalOf(may));
  }
  absl::StatusOr<PromptRequest> request = PromptRequest();
  if (input.call.has_value()) {
    request =
        ReadPromptRequest(*input.call, std::make_shared<const std::string>(std::move(input.body)));
  } else {
    request->model = ReadModel(input.body).value_or("");
    request->no_prompt = NoPromptOf(input.method, input.path);
    if (request->model.empty()) {
      if (const absl::Status may = may_use(kModelNotRead); !may.ok())
        return callback(RefusalOf(may));
      const PickResult any = AnyOf(input.subset);
      const bool meets = std::holds_alternative<Refusal>(any) &&
                         Meets([this, subset = input.subset, callback, task = NewTask()] {
                           callback(AnyOf(subset));
                         });
      return meets ? void() : callback(any);
    }
  }
  if (request.ok() && request->model.empty())
    request = absl::InvalidArgumentError("model is missing");
  if (!request.ok()) return callback(RefusalOf(request.status()));
  if (const absl::Status may = may_use(request->model); !may.ok()) return callback(RefusalOf(may));
  const std::shared_ptr<Task> task = NewTask();
  task->input = {.domain = {.model = std::move(request->model), .tenant = std::move(input.tenant)},
                 .cache_salt = std::move(request->cache_salt),
                 .unknown_prompt = !request->no_prompt.ok(),
                 .cache_not_read = !request->cache_not_read.ok(),
                 .session_id = std::move(input.session_id),
                 .tenant = std::move(input.owner),
                 .expected_output_tokens = static_cast<uint32_t>(
                     std::min<size_t>(request->output_tokens_max, UINT32_MAX)),
                 .end_follows = true,
                 .trace = input.trace};
  task->input.rank = input.rank.has_value() ? input.rank : request->wishes.rank;
  task->names_rank = task->input.rank.has_value();
  task->one_prompt = request->wishes.one_prompt;
  task->no_tokens = request->no_prompt;
  task->stored = std::move(request->wishes.stored);
  task->input.traits = std::move(request->traits);
  task->subset = std::move(input.subset);
  task->callback = std::move(callback);
  if (!task->input.unknown_prompt) {
    if (auto* const tokens = std::get_if<std::vector<TokenId>>(&request->prompt)) {
      task->input.form = PromptForm::kCompletion;
      task->input.tokens = std::move(*tokens);
    } else {
      task->prompt =
          std::make_shared<const Prompt>(std::get<BodyPrompt>(std::move(request->prompt)));
      task->input.form = FormOf(*task->prompt);
    }
  }
  if (options_.served_name == nullptr ||
      options_.served_name(&task->input, [this, task] { Tokenize(task); }))
    Tokenize(task);
}

void Picker::CountNoTokens(const Task& task, const absl::Status& why) const {
  if (options_.on_no_tokens != nullptr) options_.on_no_tokens(task.model, why);
}

void Picker::Tokenize(std::shared_ptr<Task> task) {
  task->model = task->input.domain.model;
  if (task->prompt == nullptr) return Route(task);
  if (tokenizer_ == nullptr) {
    const absl::Status none =
        absl::NotFoundError("no tokenizer is configured: send token ids, or set --models");
    CountNoTokens(*task, none);
    return task->callback(RefusalOf(AboutTokenizer(none)));
  }
  const std::string& model = task->input.domain.model;
  TokenizeReadings(
      options_.conventions == nullptr ? nullptr : options_.conventions->Of(model),
      std::exchange(task->prompt, nullptr), &task->input,
      [this, task](std::shared_ptr<const Prompt> prompt, PromptTokenizer::Callback answer) {
        TokenizeMeetingEngines(frontend_, tokenizer_, task->input.domain, std::move(prompt),
                               options_.tokenize_deadline, std::move(answer));
      },
      [this, task](const absl::StatusOr<std::vector<ReadingTold>>& told) {
        if (!told.ok()) {
          CountNoTokens(*task, told.status());
          return task->callback(RefusalOf(AboutTokenizer(told.status())));
        }
        Route(task);
      });
}

void Picker::Route(std::shared_ptr<Task> task) {
  if (task->subset.has_value()) {
    const std::vector<std::string> there = endpoints_->NamesAt(*task->subset);
    if (!there.empty()) AllowOnly(there, &task->input);
  }
  for (const std::string& id : task->stored) {
    const std::optional<KnownEngine> maker = stored_.Of(id);
    if (!maker.has_value()) continue;
    task->elsewhere = task->input;
    AllowOnly({maker->worker.name}, &task->input);
    break;
  }
  RouteNow(std::move(task));
}

void Picker::RouteNow(std::shared_ptr<Task> task) {
  frontend_->RouteAsync(std::move(task->input), [this, task](absl::StatusOr<RouteResult> result) {
    if (!result.ok() && task->elsewhere.has_value()) {
      task->input = *std::exchange(task->elsewhere, std::nullopt);
      return RouteNow(task);
    }
    task->callback(Choose(*task, std::move(result)));
  });
}

PickResult Picker::Choose(const Task& task, absl::StatusOr<RouteResult> result) {
  if (!result.ok()) {
    const bool no_worker = result.status().code() == absl::StatusCode::kNotFound;
    if (no_worker) return Without(task, result.status());
    return RefusalOf(result.status());
  }
  if (!task.no_tokens.ok()) CountNoTokens(task, task.no_tokens);
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
    picked.one_prompt = task.one_prompt;
    picked.names_stored = task.stored;
    if (result->of_several_ranks && !task.names_rank) picked.rank = result->destination().rank;
    return picked;
  }
  // The chosen worker gets nothing: nothing is in flight to it.
  frontend_->Report(result->decision_id, {.abandoned = true});
  if (!picked.endpoints.empty()) return picked;
  return Without(task, absl::UnavailableError("the endpoint of worker " + ToString(result->worker) +
                                              " is not known, or not one that the gateway allows"));
}

// A typo is 404, which no client asks again; that no worker is there may pass.
PickResult Picker::Without(const Task& task, const absl::Status& why) {
  if (!task.subset.has_value())
    return RefusalOf(IsUnknownModel(why) ? why : absl::UnavailableError(why.message()));
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

PickResult Picker::AnyOf(const std::optional<std::vector<std::string>>& subset) {
  std::variant<std::string, Refusal> any = PickAny(subset);
  if (auto* const refusal = std::get_if<Refusal>(&any)) return std::move(*refusal);
  return Picked{.endpoints = {{.address = std::get<std::string>(std::move(any))}}};
}

bool Picker::Meets(std::function<void()> then) {
  return options_.meet_engines != nullptr && !options_.meet_engines(std::move(then));
}

std::string Picker::OneOf(const std::vector<std::string>& endpoints) {
  return endpoints[turns_.fetch_add(1, std::memory_order_relaxed) % endpoints.size()];
}

}  // namespace kvatlas
