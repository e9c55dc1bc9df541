// The whole path of one request, from the client's body to the routed answer. Each request is a
// `Task`; the public methods make one and enter the path at their place:
//
//   RouteBody   ─▶ ReadBody ────╮
//   Route       ────────────────┴─▶ AsServed ─▶ Tokenize ────╮
//   RouteModel  ─▶ ReadModelAlone ▶ AsServed ─▶ RouteByLoad ─┤
//   RouteByLoad ──────────────────▶ AsServed ─▶ RouteByLoad ─┴▶ RouteOnCaller ─▶ Route ─▶ ToTask
//
// Each step either passes the task on or calls `Task::callback` and stops, so the callback comes
// exactly once. One thread at a time owns a task; a task needs no lock.

#include "frontend/prompt/prompt_router.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "frontend/prompt/discover_engines.h"
#include "frontend/prompt/error_code.h"
#include "frontend/prompt/prompt_form.h"
#include "indexer/net/http_pool.h"

namespace kvatlas {
namespace {

// Told to a client (`Retry-After`) when its prompt found the queue full.
constexpr Duration kQueueRetryAfter = std::chrono::seconds(1);

// `FillModel` looks at so many known engines for the fleet's only model, and names so many models
// in its error.
constexpr size_t kEnginesMax = 4096;
constexpr size_t kModelsTold = 20;

// A body above this goes to `large_pool_`, which has one thread: long prompts queue behind each
// other and the small ones keep the other threads.
constexpr size_t kLargeBytes = 1 << 20;

size_t BytesOf(const Prompt& prompt) {
  if (const auto* body = std::get_if<BodyPrompt>(&prompt)) return body->body->size();
  return std::get<TextPrompt>(prompt).text.size();
}

}  // namespace

// One request on its way. Shared by the closures that continue it; the last of them frees it.
struct PromptRouter::Task {
  PromptQuestion question;
  Callback callback;
  // When the router got the request: `PromptQuestion::deadline` counts from here, waiting included.
  Time started{0};
  PromptRoute answer;  // filled in on the way; what a step does not know stays empty
  bool is_large = false;
  std::vector<std::vector<TokenId>> other_tokens;  // of `other_readings`; for `return_tokens` alone
  ModelConventions::Ptr conventions;               // set together with `answer.forward`
};

class PromptRouter::Impl : public std::enable_shared_from_this<PromptRouter::Impl> {
 public:
  Impl(const PromptRouterOptions& options, Frontend* frontend, PromptTokenizer* tokenizer)
      : options_(options),
        frontend_(frontend),
        tokenizer_(tokenizer),
        pool_(options.queue_max),
        large_pool_(options.queue_max) {
    pool_.Start(std::max<uint32_t>(options.threads, 1));
    large_pool_.Start(1);
  }
  ~Impl() { Stop(); }

  void Stop() {
    pool_.Stop();
    large_pool_.Stop();
  }

  std::shared_ptr<Task> NewTask(PromptQuestion question, Callback callback) const {
    auto task = std::make_shared<Task>();
    task->question = std::move(question);
    task->callback = std::move(callback);
    task->started = Clock::Real().Now();
    return task;
  }

  // Continues the task on a thread of the router's. A full queue or a stopping router answers it.
  void OnPool(const std::shared_ptr<Task>& task, std::function<void()> job) {
    RunOn(task->is_large ? &large_pool_ : &pool_, std::move(job),
          [task](absl::Status why) { task->callback(std::move(why)); });
  }

  // Runs `next` once the input has the model name by which leaves know the model.
  //
  // 1. Asks `may_use` whether the caller may use the name. Before the look-up, so that a caller
  //    without the right causes no question to leaves or engines.
  // 2. `served_name` puts base model and adapter in the place of the name. It returns true when it
  //    did so at once: `next` runs in this thread. Otherwise `next` runs on a pool thread later,
  //    since `served_name` calls back on its own thread, which must not tokenize.
  //
  // `next` may keep a plain `this`: `Stop` drops jobs that wait, and the waiting closure holds
  // `self`.
  template <typename Next>
  void AsServed(const std::shared_ptr<Task>& task, Next next) {
    if (task->question.may_use != nullptr) {
      const absl::Status may =
          std::exchange(task->question.may_use, nullptr)(task->question.input.domain.model);
      if (!may.ok()) return task->callback(may);
    }
    if (options_.served_name == nullptr ||
        options_.served_name(&task->question.input,
                             [self = shared_from_this(), task, next] { self->OnPool(task, next); }))
      next();
  }

  // Makes the tokens of the prompt, once for each convention of the model's engines, and routes.
  //
  // 1. No prompt: the input has token ids already. Routes them.
  // 2. No tokenizer, or no time left: continues in `NoTokens`.
  // 3. `TokenizeReadings` asks the tokenizer (`AskForTokens`) and fills in the tokens of `input`.
  // 4. `RouteOnCaller` routes with them; an error goes to `NoTokens`.
  //
  // The prompt pointer aliases the task, so the prompt lives until the last answer.
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
    RouteInput& input = task->question.input;
    const ModelConventions::Ptr conventions =
        options_.conventions == nullptr ? nullptr : options_.conventions->Of(input.domain.model);
    TokenizeReadings(
        conventions, std::shared_ptr<const Prompt>(task, &*task->question.prompt), &input,
        [this, task, deadline](std::shared_ptr<const Prompt> prompt,
                               PromptTokenizer::Callback callback) {
          AskForTokens(*task, std::move(prompt), deadline, std::move(callback));
        },
        [this, self = shared_from_this(), task](absl::StatusOr<std::vector<ReadingTold>> told) {
          if (!told.ok()) return NoTokens(task, told.status());
          task->answer.readings = *std::move(told);
          TellReading(0, &task->answer);
          RouteOnCaller(task);
        });
  }

  // One question to the tokenizer. A question that fails without tokens first learns the engines of
  // the model from leaves (`discover_engines.h`), since only an engine may be able to tokenize. A
  // question that falls back to load needs no such round: its route by load learns the engines as
  // well, and the next prompt finds them. The callback holds the prompt, which the tokenizer takes
  // by reference.
  void AskForTokens(const Task& task, std::shared_ptr<const Prompt> prompt, Duration deadline,
                    PromptTokenizer::Callback callback) {
    const Domain& domain = task.question.input.domain;
    if (!task.question.by_load_without_tokens) {
      return TokenizeMeetingEngines(frontend_, tokenizer_, domain, std::move(prompt), deadline,
                                    std::move(callback));
    }
    const Prompt& question = *prompt;
    tokenizer_->Tokenize(domain.model, question, deadline,
                         [prompt = std::move(prompt), callback = std::move(callback)](
                             absl::StatusOr<PromptTokens> tokens) { callback(std::move(tokens)); });
  }

  // Keeps the tokens for the engine to run as they are (`PromptRoute::forward`), so that it does
  // not tokenize again. All of this must hold, since wrong ids would be computed without a check:
  // - the prompt is a chat: the engine takes ids in place of messages there alone;
  // - every engine of the model reads it alike, it is known whole, and it has no media items;
  // - some engine of the model takes ids, and samples of this shape of request were its own tokens
  //   (`is_trusted`).
  // The chosen engine is not known yet: `ToTask` drops the tokens if it does not take ids.
  void KeepToForward(Task* task) const {
    const RouteInput& input = task->question.input;
    if (options_.is_trusted == nullptr || options_.conventions == nullptr) return;
    if (input.tokens.empty() || !input.items.empty() || !input.other_readings.empty()) return;
    if (!task->answer.no_tokens.ok()) return;  // the beginning alone
    const auto* const body = task->question.prompt.has_value()
                                 ? std::get_if<BodyPrompt>(&*task->question.prompt)
                                 : nullptr;
    if (body == nullptr || body->path != RequestPath::kChat) return;
    const ModelConventions::Ptr conventions = options_.conventions->Of(input.domain.model);
    if (conventions->takes_token_ids.empty()) return;
    BodyPrompt as_read = *body;
    as_read.convention = conventions->conventions.front();
    if (!options_.is_trusted(input.domain.model, as_read)) return;
    task->conventions = conventions;
    task->answer.forward = std::make_shared<const std::vector<TokenId>>(input.tokens);
  }

  // Copies what is known of one reading into the answer: that of the chosen engine counts.
  static void TellReading(size_t reading, PromptRoute* answer) {
    const ReadingTold& told = answer->readings[reading];
    answer->tokenizer = told.tokenizer;
    answer->prompt_tokens = told.prompt_tokens;
    answer->no_tokens = told.no_tokens;
  }

  // Continues on the caller's I/O thread, where it gave one (`PromptQuestion::on_caller`), so that
  // the route uses that thread's connections. The caller runs the job in any case: the answer
  // depends on it.
  void RouteOnCaller(const std::shared_ptr<Task>& task) {
    if (task->question.on_caller == nullptr) return Route(task);
    const auto on_caller = std::exchange(task->question.on_caller, nullptr);
    on_caller([self = shared_from_this(), task] { self->Route(task); });
  }

  // The prompt has no tokens. Where the caller must have a worker, the choice is by load alone and
  // the answer says why; otherwise the error is the answer. The error is counted here; a route by
  // load is counted in `Route`, after the leaves were asked.
  void NoTokens(const std::shared_ptr<Task>& task, absl::Status why) {
    if (!task->question.by_load_without_tokens) {
      if (options_.on_no_tokens != nullptr)
        options_.on_no_tokens(task->question.input.domain.model, why);
      return task->callback(AboutTokenizer(std::move(why)));
    }
    Without(std::move(why), task.get());
    RouteByLoad(task);
  }

  // Notes the reason in the answer, and in the input for the diagnosis of routes.
  static void Without(absl::Status tokens, Task* task) {
    task->question.input.no_tokens = std::string(tokens.message());
    task->answer.no_tokens = std::move(tokens);
  }

  // A call whose body holds no prompt (`no_prompt`), or a prompt without tokens.
  void RouteByLoad(const std::shared_ptr<Task>& task) {
    if (task->answer.no_tokens.ok()) task->answer.no_tokens = task->question.no_prompt;
    task->question.input.unknown_prompt = true;
    RouteOnCaller(task);
  }

  // Hands the input to the frontend. From here on the input is moved from: what the answer needs of
  // it is copied first.
  //
  // 1. Copies the tokens where the caller wants them, and those to forward (`KeepToForward`).
  // 2. Sets the deadline of the route: what is left of the request's, at most the input's, and at
  //    least the smallest unit, since 0 would mean "the default".
  // 3. Drops tokens that are too many to hash, where the caller falls back to load.
  // 4. Asks the frontend. A route by load counts as one without tokens only if it succeeded.
  void Route(const std::shared_ptr<Task>& task) {
    RouteInput& input = task->question.input;
    task->answer.prompt_tokens = input.tokens.size();
    if (task->question.return_tokens) {
      task->answer.tokens = input.tokens;
      for (const Reading& other : input.other_readings) task->other_tokens.push_back(other.tokens);
    }
    if (task->question.forward_tokens) KeepToForward(task.get());
    if (input.deadline == Duration(0)) input.deadline = frontend_->options().deadline;
    if (task->question.deadline > Duration(0))
      input.deadline = std::clamp(Left(*task), Duration(1), input.deadline);
    if (task->question.by_load_without_tokens) {
      if (absl::Status too_long = ForgetTokensBeyondBlocksMax(frontend_, &input); !too_long.ok()) {
        task->answer.no_tokens = std::move(too_long);
        task->answer.readings.clear();
      }
    }
    if (task->answer.no_tokens.ok() || options_.on_no_tokens == nullptr)
      return frontend_->RouteAsync(std::move(input), ToTask(task));
    // A client may name a model that does not exist. Only the leaves tell, so the count waits for
    // their answer.
    std::string model = input.domain.model;
    frontend_->RouteAsync(std::move(input),
                          [task, model = std::move(model), count = options_.on_no_tokens,
                           next = ToTask(task)](absl::StatusOr<RouteResult> route) {
                            if (route.ok()) count(model, task->answer.no_tokens);
                            next(std::move(route));
                          });
  }

  // Completes the answer with the route. The readings of the answer are by `RouteResult::reading`:
  // the chosen engine decides which tokens and which tokenizer are reported.
  static Frontend::Callback ToTask(const std::shared_ptr<Task>& task) {
    return [task](absl::StatusOr<RouteResult> route) {
      if (!route.ok()) return task->callback(route.status());
      task->answer.route = *std::move(route);
      if (task->answer.forward != nullptr &&
          !task->conventions->TakesTokenIds(task->answer.route.destination_url()))
        task->answer.forward = nullptr;
      const size_t reading = task->answer.route.reading;
      if (!task->answer.readings.empty()) TellReading(reading, &task->answer);
      if (reading > 0 && reading <= task->other_tokens.size())
        task->answer.tokens = std::move(task->other_tokens[reading - 1]);
      task->callback(std::move(task->answer));
    };
  }

  // A second choice keeps what the first answer knew of the prompt. Tokens to forward are not among
  // it: the next engine may not take them.
  void RouteAgain(const PromptRoute& earlier, std::vector<CellWorker> tried, Callback callback) {
    const std::shared_ptr<Task> task = NewTask({}, std::move(callback));
    task->answer.prompt_tokens = earlier.prompt_tokens;
    task->answer.tokenizer = earlier.tokenizer;
    task->answer.no_tokens = earlier.no_tokens;
    task->answer.readings = earlier.readings;
    frontend_->RouteAgain(earlier.route.routed, std::move(tried), Duration(0), ToTask(task));
  }

  void Run(std::function<void()> job, std::function<void(absl::Status)> refused) {
    RunOn(&pool_, std::move(job), std::move(refused));
  }

  // `Submit` returns false for a full queue and for a pool that stops. `refused` then runs in the
  // calling thread; for a job that waited when the pool stopped it runs in the thread that stops
  // it.
  static void RunOn(HttpPool* pool, std::function<void()> job,
                    std::function<void(absl::Status)> refused) {
    const auto stopping = [refused] {
      refused(absl::UnavailableError("the frontend is stopping"));
    };
    if (pool->Submit(std::move(job), /*continued=*/false, stopping)) return;
    if (pool->stopping()) return stopping();
    refused(WithRetryAfter(absl::ResourceExhaustedError("too many prompts wait to be tokenized"),
                           kQueueRetryAfter));
  }

  // Fills in the only model of the fleet, as an engine does for a body without a model.
  // INVALID_ARGUMENT: the fleet has none, or several; the error lists them.
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

  // Reads the body and continues with the prompt that it has. Runs on a pool thread, or in the
  // caller's for small bodies.
  //
  // 1. Refuses a body whose model cannot be read where `may_use` has to judge it.
  // 2. Reads model, salt, limits and the place of the prompt; the prompt itself is left to the
  //    tokenizer.
  // 3. Tells the caller what the body says of its engine (`on_wishes`): the caller may restrict the
  //    workers before anything is chosen.
  // 4. Continues without a prompt, with ids, or with a body to tokenize.
  void ReadBody(RequestPath path, const std::shared_ptr<const std::string>& body,
                const std::shared_ptr<Task>& task) {
    if (absl::Status bad = CanBeAsked(*body, *task); !bad.ok()) return task->callback(bad);
    absl::StatusOr<PromptRequest> request = ReadPromptRequest(path, body);
    if (!request.ok()) return task->callback(request.status());
    if (absl::Status bad = FillModel(&request->model); !bad.ok()) return task->callback(bad);
    RouteInput& input = task->question.input;
    input.domain.model = std::move(request->model);
    input.cache_salt = std::move(request->cache_salt);
    input.cache_not_read = !request->cache_not_read.ok();
    input.traits = std::move(request->traits);
    if (input.session_id.empty()) input.session_id = std::move(request->session);
    input.expected_output_tokens = static_cast<uint32_t>(
        std::min<size_t>(request->output_tokens_max, std::numeric_limits<uint32_t>::max()));
    if (task->question.on_wishes != nullptr) {
      std::exchange(task->question.on_wishes, nullptr)(request->wishes, &input);
    } else if (!input.rank.has_value()) {
      input.rank = request->wishes.rank;
    }
    if (!request->no_prompt.ok())
      return AsServed(task, [this, task, why = request->no_prompt] { NoTokens(task, why); });
    if (auto* ids = std::get_if<std::vector<TokenId>>(&request->prompt)) {
      input.tokens = std::move(*ids);
      input.form = PromptForm::kCompletion;
    } else {
      task->question.prompt = std::get<BodyPrompt>(std::move(request->prompt));
      // The cost of a client's own template does not follow from its size, so it never runs in the
      // caller's thread, however small the body.
      if (request->own_template && body->size() <= task->question.inline_bytes_max)
        return AsServed(task, [this, task] { OnPool(task, [this, task] { Tokenize(task); }); });
    }
    AsServed(task, [this, task] { Tokenize(task); });
  }

  // Reads only the model of a call without a prompt, and routes by load.
  void ReadModelAlone(const std::string& body, const std::shared_ptr<Task>& task) {
    if (absl::Status bad = CanBeAsked(body, *task); !bad.ok()) return task->callback(bad);
    absl::StatusOr<std::string> name = ReadModel(body);
    if (!name.ok()) return task->callback(name.status());
    if (absl::Status bad = FillModel(&*name); !bad.ok()) return task->callback(bad);
    task->question.input.domain.model = *std::move(name);
    AsServed(task, [this, task] { RouteByLoad(task); });
  }

 private:
  // `may_use` judges the model that the engine will read. The name in a UTF-16 or UTF-32 body is
  // not read here, and the engine would read it: such a body is refused where `may_use` is set.
  static absl::Status CanBeAsked(const std::string& body, const Task& task) {
    if (task.question.may_use == nullptr || !IsWideText(body)) return absl::OkStatus();
    return absl::InvalidArgumentError("the body is not UTF-8: its model cannot be read");
  }

  // REQUIRES: the question has a deadline. May be negative.
  Duration Left(const Task& task) const {
    return task.started + task.question.deadline - Clock::Real().Now();
  }

  const PromptRouterOptions options_;
  Frontend* const frontend_;
  PromptTokenizer* const tokenizer_;
  HttpPool pool_;        // `threads` threads
  HttpPool large_pool_;  // one thread, for prompts above `kLargeBytes`
};

PromptRouter::PromptRouter(const PromptRouterOptions& options, Frontend* frontend,
                           PromptTokenizer* tokenizer)
    : impl_(std::make_shared<Impl>(options, frontend, tokenizer)) {}

// Waits for jobs that run. Closures that the frontend or a caller holds keep `Impl` alive longer.
PromptRouter::~PromptRouter() { impl_->Stop(); }

void PromptRouter::Route(PromptQuestion question, Callback callback) {
  auto task = impl_->NewTask(std::move(question), std::move(callback));
  Impl* const impl = impl_.get();
  if (!task->question.prompt.has_value())
    return impl->AsServed(task, [impl, task] { impl->Route(task); });
  task->is_large = BytesOf(*task->question.prompt) > kLargeBytes;
  impl->AsServed(task,
                 [impl, task] { impl->OnPool(task, [impl, task] { impl->Tokenize(task); }); });
}

void PromptRouter::RouteBody(RequestPath call, std::shared_ptr<const std::string> body,
                             PromptQuestion question, Callback callback) {
  auto task = impl_->NewTask(std::move(question), std::move(callback));
  if (body->size() <= task->question.inline_bytes_max) return impl_->ReadBody(call, body, task);
  task->is_large = body->size() > kLargeBytes;
  impl_->OnPool(task, [impl = impl_.get(), call, body = std::move(body), task] {
    impl->ReadBody(call, body, task);
  });
}

void PromptRouter::RouteModel(std::shared_ptr<const std::string> body, PromptQuestion question,
                              Callback callback) {
  auto task = impl_->NewTask(std::move(question), std::move(callback));
  if (body->size() <= task->question.inline_bytes_max) return impl_->ReadModelAlone(*body, task);
  task->is_large = body->size() > kLargeBytes;
  impl_->OnPool(task, [impl = impl_.get(), body = std::move(body), task] {
    impl->ReadModelAlone(*body, task);
  });
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
