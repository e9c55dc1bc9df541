#include "frontend/prompt/prompt_router.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "frontend/prompt/error_code.h"
#include "frontend/prompt/meet_engines.h"
#include "frontend/prompt/openai/json_reader.h"
#include "indexer/service/http_pool.h"

namespace kvatlas {
namespace {

// When clients should come again that found the queue full.
constexpr Duration kQueueRetryAfter = std::chrono::seconds(1);

// Engines among whose models the only one is looked for, and models that a client is told of.
constexpr size_t kEnginesMax = 4096;
constexpr size_t kModelsTold = 20;

PromptForm FormOf(const Prompt& prompt) {
  return std::holds_alternative<ChatPrompt>(prompt) ? PromptForm::kChat : PromptForm::kCompletion;
}

}  // namespace

// One question on its way.
struct PromptRouter::Task {
  PromptQuestion question;
  Callback callback;
  Time started{0};
  PromptRoute answer;
};

class PromptRouter::Impl : public std::enable_shared_from_this<PromptRouter::Impl> {
 public:
  Impl(const PromptRouterOptions& options, Frontend* frontend, PromptTokenizer* tokenizer)
      : options_(options), frontend_(frontend), tokenizer_(tokenizer), pool_(options.queue_max) {
    pool_.Start(std::max<uint32_t>(options.threads, 1));
  }
  ~Impl() { Stop(); }

  void Stop() { pool_.Stop(); }

  std::shared_ptr<Task> NewTask(PromptQuestion question, Callback callback) const {
    auto task = std::make_shared<Task>();
    task->question = std::move(question);
    task->callback = std::move(callback);
    task->started = Clock::Real().Now();
    return task;
  }

  void OnPool(const std::shared_ptr<Task>& task, std::function<void()> job) {
    Run(std::move(job), [task](absl::Status why) { task->callback(std::move(why)); });
  }

  // `next`, once the model has the name that leaves know it by: in this thread, or on one of the router's where that is asked for.
  template <typename Next>
  void AsServed(const std::shared_ptr<Task>& task, Next next) {
    if (options_.served_name == nullptr ||
        options_.served_name(&task->question.input,
                             [self = shared_from_this(), task, next] { self->OnPool(task, next); }))
      next();
  }

  void Tokenize(const std::shared_ptr<Task>& task) {
    if (!task->question.prompt.has_value()) return Route(task);
    if (tokenizer_ == nullptr)
      return NoTokens(task, absl::NotFoundError("no tokenizer for model \"" +
                                                task->question.input.domain.model +
                                                "\": this frontend has none"));
    task->question.input.form = FormOf(*task->question.prompt);
    Duration deadline = options_.tokenize_deadline;
    if (task->question.deadline > Duration(0)) deadline = std::min(deadline, Left(*task));
    if (deadline <= Duration(0)) return NoTokens(task, absl::DeadlineExceededError("too late"));
    auto on_tokens = [this, self = shared_from_this(), task](absl::StatusOr<PromptTokens> tokens) {
      if (!tokens.ok()) return NoTokens(task, tokens.status());
      if (tokens->tokens.empty()) return NoTokens(task, absl::InvalidArgumentError("no tokens"));
      task->answer.tokenizer = task->question.input.tokenizer = std::move(tokens->source);
      task->question.input.bos = tokens->bos;
      task->question.input.tokens = std::move(tokens->tokens);
      RouteOnCaller(task);
    };
    const Domain& domain = task->question.input.domain;
    const Prompt& prompt = *task->question.prompt;
    // A choice by load meets engines by itself.
    if (task->question.by_load_without_tokens)
      return tokenizer_->Tokenize(domain.model, prompt, deadline, std::move(on_tokens));
    TokenizeMeetingEngines(frontend_, tokenizer_, domain,
                           std::shared_ptr<const Prompt>(task, &prompt), deadline,
                           std::move(on_tokens));
  }

  // The caller outlives its question, and so does what it runs.
  void RouteOnCaller(const std::shared_ptr<Task>& task) {
    if (task->question.on_caller == nullptr) return Route(task);
    const auto on_caller = std::exchange(task->question.on_caller, nullptr);
    on_caller([self = shared_from_this(), task] { self->Route(task); });
  }

  void NoTokens(const std::shared_ptr<Task>& task, absl::Status why) {
    if (!task->question.by_load_without_tokens)
      return task->callback(AboutTokenizer(std::move(why)));
    Without(std::move(why), task.get());
    RouteByLoad(task);
  }

  // Told with the answer, and to what diagnoses routes.
  static void Without(absl::Status tokens, Task* task) {
    task->question.input.no_tokens = std::string(tokens.message());
    task->answer.no_tokens = std::move(tokens);
  }

  void RouteByLoad(const std::shared_ptr<Task>& task) {
    task->question.input.unknown_prompt = true;
    RouteOnCaller(task);
  }

  void Route(const std::shared_ptr<Task>& task) {
    RouteInput& input = task->question.input;
    task->answer.prompt_tokens = input.tokens.size();
    if (task->question.return_tokens) task->answer.tokens = input.tokens;
    if (input.deadline == Duration(0)) input.deadline = frontend_->options().deadline;
    if (task->question.deadline > Duration(0))
      input.deadline = std::clamp(Left(*task), Duration(1), input.deadline);
    if (task->question.by_load_without_tokens && input.tokens.size() > kRouteBlocksMax)
      ForgetTokensBeyondBlocksMax(task.get());
    frontend_->RouteAsync(std::move(input), ToTask(task));
  }

  // An engine may take a prompt that is too long to be hashed here.
  void ForgetTokensBeyondBlocksMax(Task* task) {
    RouteInput& input = task->question.input;
    const absl::Status hashed = frontend_->Prepare(&input);
    if (!absl::IsResourceExhausted(hashed)) return;
    Without(hashed, task);
    input.tokens.clear();
    input.unknown_prompt = true;
  }

  static Frontend::Callback ToTask(const std::shared_ptr<Task>& task) {
    return [task](absl::StatusOr<RouteResult> route) {
      if (!route.ok()) return task->callback(route.status());
      task->answer.route = *std::move(route);
      task->callback(std::move(task->answer));
    };
  }

  void RouteAgain(const PromptRoute& earlier, std::vector<CellWorker> tried, Callback callback) {
    const std::shared_ptr<Task> task = NewTask({}, std::move(callback));
    task->answer.prompt_tokens = earlier.prompt_tokens;
    task->answer.tokenizer = earlier.tokenizer;
    task->answer.no_tokens = earlier.no_tokens;
    frontend_->RouteAgain(earlier.route.routed, std::move(tried), Duration(0), ToTask(task));
  }

  void Run(std::function<void()> job, std::function<void(absl::Status)> refused) {
    const bool taken = pool_.Submit(std::move(job), /*continued=*/false, [refused] {
      refused(absl::UnavailableError("the frontend is stopping"));
    });
    if (!taken)
      refused(WithRetryAfter(absl::ResourceExhaustedError("too many prompts wait to be tokenized"),
                             kQueueRetryAfter));
  }

  // INVALID_ARGUMENT: none is said, and there are several or none.
  absl::Status FillModel(std::string* model) const {
    if (!model->empty()) return absl::OkStatus();
    std::set<std::string> models;
    if (options_.models != nullptr) {
      const std::vector<std::string> all = options_.models();
      models.insert(all.begin(), all.end());
    } else {
      for (const KnownEngine& engine : frontend_->Engines(kEnginesMax))
        models.insert(engine.domain.model);
      models.erase("");
    }
    if (models.size() == 1) {
      *model = *models.begin();
      return absl::OkStatus();
    }
    if (models.empty()) return absl::InvalidArgumentError("model is missing");
    std::string text = "model is missing; expected one of ";
    size_t told = 0;
    for (const std::string& one : models) {
      if (told == kModelsTold) break;
      absl::StrAppend(&text, told++ == 0 ? "" : ", ", one);
    }
    if (told < models.size()) absl::StrAppend(&text, " and ", models.size() - told, " more");
    return absl::InvalidArgumentError(text);
  }

  void ReadBody(OpenAiCall call, const std::string& body, const std::shared_ptr<Task>& task) {
    absl::StatusOr<OpenAiRequest> request = ParseOpenAiRequest(call, body);
    if (!request.ok()) return task->callback(request.status());
    if (absl::Status bad = FillModel(&request->model); !bad.ok()) return task->callback(bad);
    RouteInput& input = task->question.input;
    input.domain.model = std::move(request->model);
    input.cache_salt = std::move(request->cache_salt);
    input.expected_output_tokens = static_cast<uint32_t>(
        std::min<size_t>(request->output_tokens_max, std::numeric_limits<uint32_t>::max()));
    if (!request->no_prompt.ok())
      return AsServed(task, [this, task, why = request->no_prompt] { NoTokens(task, why); });
    if (auto* ids = std::get_if<std::vector<TokenId>>(&request->prompt)) {
      input.tokens = std::move(*ids);
      input.form = PromptForm::kCompletion;
    } else if (auto* text = std::get_if<TextPrompt>(&request->prompt)) {
      task->question.prompt = std::move(*text);
    } else {
      task->question.prompt = std::get<ChatPrompt>(std::move(request->prompt));
      // What a client's own template costs does not follow from its size.
      const bool is_own = std::get<ChatPrompt>(*task->question.prompt).chat_template.has_value();
      if (is_own && body.size() <= task->question.inline_bytes_max)
        return AsServed(task, [this, task] { OnPool(task, [this, task] { Tokenize(task); }); });
    }
    AsServed(task, [this, task] { Tokenize(task); });
  }

  void ReadModel(const std::string& body, const std::shared_ptr<Task>& task) {
    const absl::StatusOr<nlohmann::ordered_json> json = ReadJson(body);
    if (!json.ok()) return task->callback(json.status());
    if (!json->is_object())
      return task->callback(absl::InvalidArgumentError("the body is not a JSON object"));
    const auto model = json->find("model");
    const bool said = model != json->end() && !model->is_null();
    if (said && !model->is_string())
      return task->callback(absl::InvalidArgumentError("model is not a string"));
    std::string name = said ? model->get<std::string>() : "";
    if (absl::Status bad = FillModel(&name); !bad.ok()) return task->callback(bad);
    task->question.input.domain.model = std::move(name);
    AsServed(task, [this, task] { RouteByLoad(task); });
  }

 private:
  Duration Left(const Task& task) const {
    return task.started + task.question.deadline - Clock::Real().Now();
  }

  const PromptRouterOptions options_;
  Frontend* const frontend_;
  PromptTokenizer* const tokenizer_;
  HttpPool pool_;
};

PromptRouter::PromptRouter(const PromptRouterOptions& options, Frontend* frontend,
                           PromptTokenizer* tokenizer)
    : impl_(std::make_shared<Impl>(options, frontend, tokenizer)) {}

PromptRouter::~PromptRouter() { impl_->Stop(); }

void PromptRouter::Route(PromptQuestion question, Callback callback) {
  auto task = impl_->NewTask(std::move(question), std::move(callback));
  Impl* const impl = impl_.get();
  if (!task->question.prompt.has_value())
    return impl->AsServed(task, [impl, task] { impl->Route(task); });
  impl->AsServed(task,
                 [impl, task] { impl->OnPool(task, [impl, task] { impl->Tokenize(task); }); });
}

void PromptRouter::RouteBody(OpenAiCall call, std::shared_ptr<const std::string> body,
                             PromptQuestion question, Callback callback) {
  auto task = impl_->NewTask(std::move(question), std::move(callback));
  if (body->size() <= task->question.inline_bytes_max) return impl_->ReadBody(call, *body, task);
  impl_->OnPool(task, [impl = impl_.get(), call, body = std::move(body), task] {
    impl->ReadBody(call, *body, task);
  });
}

void PromptRouter::RouteModel(std::shared_ptr<const std::string> body, PromptQuestion question,
                              Callback callback) {
  auto task = impl_->NewTask(std::move(question), std::move(callback));
  if (body->size() <= task->question.inline_bytes_max) return impl_->ReadModel(*body, task);
  impl_->OnPool(
      task, [impl = impl_.get(), body = std::move(body), task] { impl->ReadModel(*body, task); });
}

void PromptRouter::RouteByLoad(PromptQuestion question, Callback callback) {
  question.prompt = std::nullopt;
  auto task = impl_->NewTask(std::move(question), std::move(callback));
  impl_->AsServed(task, [impl = impl_.get(), task] { impl->RouteByLoad(task); });
}

void PromptRouter::RouteAgain(const PromptRoute& earlier, std::vector<CellWorker> tried,
                              Callback callback) {
  impl_->RouteAgain(earlier, std::move(tried), std::move(callback));
}

void PromptRouter::Run(std::function<void()> job, std::function<void(absl::Status)> refused) {
  impl_->Run(std::move(job), std::move(refused));
}

}  // namespace kvatlas
