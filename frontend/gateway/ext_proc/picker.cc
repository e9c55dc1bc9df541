// The path of one pick: `Pick` reads and checks the body, `Tokenize` makes its tokens, `Route`
// narrows the set of workers, `RouteNow` asks the frontend, `OnRouted` asks again where the choice
// cannot be named, `Choose` turns it into endpoints. `Task` carries the state from step to step.
// Steps run on whatever thread finished the step before; a task has one step under way at a time,
// so its fields need no lock.

#include "frontend/gateway/ext_proc/picker.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/gateway/errors.h"
#include "frontend/prompt/discover_engines.h"
#include "frontend/prompt/error_code.h"
#include "frontend/prompt/prompt_form.h"
#include "frontend/prompt/tokenize_readings.h"

namespace kvatlas {
namespace {

// A subset that is present but empty allows no endpoint; a missing subset allows all of them.
absl::Status EmptySubset() {
  return absl::UnavailableError(
      "the gateway's subset of endpoints is empty: no endpoint may be chosen");
}

}  // namespace

// Client errors (below 500) keep their status; every server error becomes 503.
ClientError RefusalOf(const absl::Status& why) {
  const ClientError error = ToClientError(why);
  return error.http_status < 500 ? error : ToClientError(absl::UnavailableError(why.message()));
}

// One pick, from the read body to its callback. Its deleter counts `under_way_` down (`NewTask`),
// so the picker outlives every callback that holds a task.
struct Picker::Task {
  RouteInput input;
  std::shared_ptr<const Prompt> prompt;  // null once tokens are asked for, and for token ids
  std::optional<EndpointSet> subset;
  bool names_rank = false;
  bool one_prompt = true;
  std::vector<std::string> stored = {};  // ids of the body whose maker should serve it
  std::optional<RouteInput> elsewhere =
      {};  // the route without that restriction, tried when the maker cannot be chosen
  std::string model = {};
  absl::Status no_tokens = {};             // why it is routed by load; OK: by its tokens
  std::vector<ReadingTold> readings = {};  // by `RouteResult::reading`
  // The unrestricted input, kept where no worker of the subset or pool is known yet. The answers to
  // the first route teach the endpoints (`EndpointLearner`), and `RouteNow` then routes once more
  // among the workers that are eligible.
  std::optional<RouteInput> within_subset = {};
  bool chosen_again = false;  // `Frontend::RouteAgain` was asked
  // Its objective has a priority below 0: refused with 429 while half of the workers are
  // overloaded.
  bool sheddable = false;
  std::optional<std::string> without_reports = {};  // `Picked::body`
  Callback callback = {};
};

Picker::Picker(PickerOptions options, Frontend* frontend, PromptTokenizer* tokenizer,
               Endpoints* endpoints)
    : options_(options), frontend_(frontend), tokenizer_(tokenizer), endpoints_(endpoints) {}

// Callbacks of the tokenizer and the frontend hold `this`: the destructor waits for all of them.
Picker::~Picker() { WaitIdle(); }

void Picker::WaitIdle() {
  MutexLock lock(&mutex_);
  while (under_way_ > 0) idle_.Wait(&mutex_);
}

// A task whose deleter reports it done. The last holder may be a callback of the tokenizer or the
// frontend on any thread; `WaitIdle` returns only after the last delete.
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

// Reads the request and fills in the route's input:
// 1. An empty subset is refused before anything is read.
// 2. A body in UTF-16 or UTF-32 (`IsWideText`) is not read here for its model, so the policy is
//    asked about `kModelNotRead` first.
// 3. A call with a prompt goes through `ReadPromptRequest`. Of any other call only the model is
//    read; without a model any endpoint serves it (`AnyOf`, once more after `Meets`). Either may
//    have to go on with another body (`Picked::body`).
// 4. `may_use` decides about the model by the name that the client gave, before any lookup.
// 5. `served_name` replaces an adapter's or further name by the name that leaves know. It may need
//    the engines' lists; `Tokenize` then runs from its callback.
void Picker::Pick(PickInput input, Callback callback) {
  if (input.subset.has_value() && input.subset->empty()) return callback(RefusalOf(EmptySubset()));
  const auto may_use = [&input](const std::string& model) {
    return input.may_use == nullptr ? absl::OkStatus() : input.may_use(model);
  };
  if (IsWideText(*input.body)) {
    if (const absl::Status may = may_use(kModelNotRead); !may.ok()) return callback(RefusalOf(may));
  }
  absl::StatusOr<PromptRequest> request = PromptRequest();
  std::optional<std::string> without_reports;
  if (input.call.has_value()) {
    const std::shared_ptr<const std::string> body = input.body;
    request = ReadPromptRequest(*input.call, std::move(input.body));
    if (request.ok() && request->wishes.has_engine_arguments)
      without_reports = WithoutFullReports(*body);
  } else {
    without_reports = WithoutFullReports(*input.body);
    request->model = ReadModel(*input.body).value_or("");
    request->no_prompt = NoPromptOf(input.method, input.path);
    if (request->model.empty()) {
      if (const absl::Status may = may_use(kModelNotRead); !may.ok())
        return callback(RefusalOf(may));
      const PickResult any = AnyOf(input.subset, without_reports);
      const bool meets = std::holds_alternative<ClientError>(any) &&
                         Meets([this, subset = input.subset, without_reports, callback,
                                task = NewTask()] { callback(AnyOf(subset, without_reports)); });
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
  if (task->input.session_id.empty()) task->input.session_id = std::move(request->session);
  // The header counts before the body, as in the proxy.
  task->input.rank = input.rank.has_value() ? input.rank : request->wishes.rank;
  task->names_rank = task->input.rank.has_value();
  const auto objective = options_.objectives.find(input.objective);
  task->sheddable = objective != options_.objectives.end() && objective->second < 0;
  // A sheddable request never takes a place in the frontend's queue.
  if (task->sheddable) task->input.queue_wait = Duration(0);
  task->one_prompt = request->wishes.one_prompt;
  task->no_tokens = request->no_prompt;
  task->stored = std::move(request->wishes.stored);
  task->input.traits = std::move(request->traits);
  task->subset = std::move(input.subset);
  task->without_reports = std::move(without_reports);
  task->callback = std::move(callback);
  // Token ids need no tokenizer and go straight to `Route`; text and chats become a `Prompt`.
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

// Feeds the metric and the log of prompts without tokens, per served model.
void Picker::CountNoTokens(const Task& task, const absl::Status& why) const {
  if (options_.on_no_tokens != nullptr) options_.on_no_tokens(task.model, why);
}

// The model has its served name from here on; the pool is checked by that name, since adapters
// belong to the pool of their base model. Each convention of the model's engines may read the
// prompt in its own way, hence several readings; `RouteResult::reading` says which of them the
// choice used.
void Picker::Tokenize(std::shared_ptr<Task> task) {
  task->model = task->input.domain.model;
  if (!options_.pool.HasModel(task->model))
    return task->callback(RefusalOf(UnknownModelError(task->model)));
  if (task->prompt == nullptr) return Route(task);
  if (tokenizer_ == nullptr) {
    return ByLoad(task, absl::NotFoundError("no tokenizer for model \"" + task->model +
                                            "\": this frontend has none"));
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
        if (!told.ok()) return ByLoad(task, told.status());
        task->readings = *told;
        Route(task);
      });
}

// Routes without tokens: the engine itself reports what is wrong with the prompt. Only a model that
// neither leaves nor engines know ends here, with 404.
void Picker::ByLoad(std::shared_ptr<Task> task, absl::Status why) {
  if (IsUnknownModel(why)) return task->callback(RefusalOf(why));
  task->input.no_tokens = std::string(why.message());
  task->input.unknown_prompt = true;
  task->no_tokens = std::move(why);
  Route(std::move(task));
}

// Narrows the choice before it is made, in this order:
// 1. A prompt beyond the frontend's bound loses its tokens and goes by load.
// 2. A subset or a dividing pool restricts the workers by name. While none of its endpoints is
//    known, the first route is unrestricted and only serves to learn them (`within_subset`).
// 3. Stored items (a previous response, a conversation) restrict the choice to their maker; the
//    input without that restriction is kept in `elsewhere`.
void Picker::Route(std::shared_ptr<Task> task) {
  if (const absl::Status hashed = ForgetTokensBeyondBlocksMax(frontend_, &task->input);
      !hashed.ok()) {
    task->no_tokens = hashed;
    task->readings.clear();
  }
  if (IsLimited(*task)) {
    const std::vector<std::string> there = NamesWithin(*task);
    if (there.empty()) {
      task->within_subset = task->input;
    } else {
      AllowOnly(there, &task->input);
    }
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

// A pool by model alone does not divide the workers of a model: `Tokenize` has checked it already.
bool Picker::IsLimited(const Task& task) const {
  return task.subset.has_value() || options_.pool.divides_models();
}

std::vector<std::string> Picker::NamesWithin(const Task& task) const {
  return task.subset.has_value() ? endpoints_->NamesAt(*task.subset) : endpoints_->Names();
}

void Picker::RouteNow(std::shared_ptr<Task> task) {
  frontend_->RouteAsync(std::move(task->input), [this, task](absl::StatusOr<RouteResult> result) {
    OnRouted(task, std::move(result));
  });
}

// Routes at most four times, since each further route happens once for a task:
// 1. with every restriction that is known;
// 2. without the maker of stored items, if that route failed;
// 3. and 4. where the chosen worker cannot be named (`RouteOtherwise`).
void Picker::OnRouted(std::shared_ptr<Task> task, absl::StatusOr<RouteResult> result) {
  if (!result.ok() && task->elsewhere.has_value()) {
    task->input = *std::exchange(task->elsewhere, std::nullopt);
    return RouteNow(std::move(task));
  }
  if (result.ok()) {
    // Urls of the answer are learnt, unless a pool is set: then only `EndpointLearner` learns,
    // which knows the pool.
    if (options_.pool.empty()) {
      if (!result->url.empty()) endpoints_->Learn(result->worker, result->url);
      if (result->decode.has_value() && !result->decode->url.empty())
        endpoints_->Learn(result->decode->worker, result->decode->url);
    }
    if (!AddressOf(*task, result->destination()).has_value() && RouteOtherwise(task, *result))
      return;
  }
  PickResult picked = Choose(*task, std::move(result));
  if (auto* const to = std::get_if<Picked>(&picked)) to->body = std::move(task->without_reports);
  task->callback(std::move(picked));
}

// The chosen worker's endpoint is not known, or not one that the gateway allows. True: another
// route is under way, and this one's choice was given back. Each of these happens once:
// 1. Another choice among the workers that the route found (`RouteAgain`, which asks no peer), if
//    one of them can be named: a choice like the first one, with an id, a rank and a place in
//    flight. Candidates that cannot be named are chosen last. Decoders of a pair are not among the
//    receipt's candidates, so there it is tried in any case.
// 2. A route within the subset, if the answers have just made its endpoints known.
bool Picker::RouteOtherwise(const std::shared_ptr<Task>& task, const RouteResult& result) {
  if (!std::exchange(task->chosen_again, true)) {
    bool others = result.decode.has_value();
    std::vector<CellWorker> last = {{result.destination_cell(), result.destination()}};
    for (const ReceiptCandidate& candidate : result.receipt.candidates) {
      if (candidate.prefill_only) continue;
      if (AddressOf(*task, candidate.worker).has_value()) {
        others = true;
      } else {
        last.emplace_back(candidate.cell, candidate.worker);
      }
    }
    if (others) {
      frontend_->Report(result.decision_id, {.abandoned = true});
      frontend_->RouteAgain(
          result.routed, std::move(last), Duration(0),
          [this, task](absl::StatusOr<RouteResult> again) { OnRouted(task, std::move(again)); });
      return true;
    }
  }
  if (!task->within_subset.has_value()) return false;
  const std::vector<std::string> there = NamesWithin(*task);
  task->input = *std::exchange(task->within_subset, std::nullopt);
  if (there.empty()) return false;
  frontend_->Report(result.decision_id, {.abandoned = true});
  AllowOnly(there, &task->input);
  RouteNow(task);
  return true;
}

std::optional<std::string> Picker::AddressOf(const Task& task, const HolderId& worker) const {
  std::optional<std::string> address = endpoints_->Of(worker);
  if (address.has_value() && task.subset.has_value() && !task.subset->Contains(*address))
    return std::nullopt;
  return address;
}

// From a route to endpoints, or to a refusal:
// 1. A failed route becomes its refusal.
// 2. A sheddable request is given back where half of the candidates or more are overloaded.
// 3. The chosen worker's endpoint comes first, then those of other candidates, at most
//    `endpoints_best`, each one known and within the subset.
// 4. With the chosen worker's endpoint the decision stays in flight until the stream reports it.
//    Without it (`RouteOtherwise` has tried others) the decision is abandoned at once: the request
//    goes to a candidate whose load the frontend does not count (decision id 0) and whose rank is
//    its engine's to choose, or is refused.
PickResult Picker::Choose(const Task& task, absl::StatusOr<RouteResult> result) {
  if (!result.ok()) {
    // A typo is 404, which no client asks again; that no worker is there may pass.
    const bool no_worker = absl::IsNotFound(result.status()) && !IsUnknownModel(result.status());
    return RefusalOf(no_worker ? absl::UnavailableError(result.status().message())
                               : result.status());
  }
  if (observe_) observe_(*result);
  absl::Status no_tokens = task.no_tokens;
  if (result->reading < task.readings.size()) no_tokens = task.readings[result->reading].no_tokens;
  if (!no_tokens.ok()) CountNoTokens(task, no_tokens);
  if (task.sheddable && 2 * result->receipt.overloaded >= result->receipt.candidates_considered &&
      result->receipt.overloaded > 0) {
    frontend_->Report(result->decision_id, {.abandoned = true});
    return RefusalOf(WithRetryAfter(
        absl::ResourceExhaustedError("half of the workers are over their thresholds, and this "
                                     "request's objective is shed first"),
        std::chrono::seconds(1)));
  }
  Picked picked;
  picked.one_prompt = task.one_prompt;
  picked.no_tokens = std::string(no_tokens.message());
  picked.names_stored = task.stored;
  // Skips a worker without a known endpoint and one outside the subset: both are not eligible.
  const auto add = [&](const std::string& cell, const HolderId& worker) {
    if (picked.endpoints.size() == std::max<uint32_t>(options_.endpoints_best, 1)) return;
    std::optional<std::string> address = AddressOf(task, worker);
    if (!address.has_value()) return;
    picked.endpoints.push_back({.address = *std::move(address), .worker = {cell, worker}});
  };
  add(result->destination_cell(), result->destination());
  const bool as_chosen = !picked.endpoints.empty();
  picked.decodes = result->decode.has_value() && as_chosen;
  if (picked.decodes) picked.prefiller = endpoints_->Of(result->worker).value_or("");
  // The header that names the prefiller is right for the first endpoint alone, so no other endpoint
  // is named beside it.
  if (!picked.decodes) {
    for (const ReceiptCandidate& candidate : result->receipt.candidates)
      if (!(candidate.worker == result->worker) && !candidate.prefill_only)
        add(candidate.cell, candidate.worker);
  }
  if (as_chosen) {
    picked.decision_id = result->decision_id;
    // A rank that the client named is in the request already and is not set again.
    if (!task.names_rank) picked.rank = result->engine_rank;
    return picked;
  }
  // The chosen worker gets no request, so none is in flight to it.
  frontend_->Report(result->decision_id, {.abandoned = true});
  if (!picked.endpoints.empty()) return picked;
  return RefusalOf(absl::UnavailableError("the endpoint of worker " +
                                          ToString(result->destination()) +
                                          " is not known, or not one that the gateway allows"));
}

std::variant<std::string, ClientError> Picker::PickAny(const std::optional<EndpointSet>& subset) {
  if (subset.has_value() && subset->empty()) return RefusalOf(EmptySubset());
  // By turns, without workers that drain. The pool needs no check here: `endpoints_` names its
  // workers alone.
  std::optional<std::string> next =
      endpoints_->Next(frontend_->draining(), subset.has_value() ? &*subset : nullptr);
  if (next.has_value()) return *std::move(next);
  return RefusalOf(absl::UnavailableError("no endpoint of an engine that takes requests is known"));
}

// `PickAny` as a pick: decision id 0, nothing to report.
PickResult Picker::AnyOf(const std::optional<EndpointSet>& subset,
                         const std::optional<std::string>& body) {
  std::variant<std::string, ClientError> any = PickAny(subset);
  if (auto* const refusal = std::get_if<ClientError>(&any)) return std::move(*refusal);
  return Picked{.endpoints = {{.address = std::get<std::string>(std::move(any))}},
                .body = body,
                .by_turns = true};
}

// `meet_engines` returns true if there is nothing to wait for; `Meets` returns true if there is.
bool Picker::Meets(std::function<void()> then) {
  return options_.meet_engines != nullptr && !options_.meet_engines(std::move(then));
}

}  // namespace kvatlas
