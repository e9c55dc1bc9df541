// Chooses a worker for a chat or a text: reads the client's body, makes tokens of the prompt, and
// routes it.
//
//   body ─▶ ReadPromptRequest ──╮
//   text, chat ─────────────────┴▶ served name ─▶ TokenizeReadings ─▶ Frontend::RouteAsync ─▶ callback
//
// *Truth*: the tokens are the engine's, or there are none. Without tokens, a caller that needs a
// worker in any case (`by_load_without_tokens`) gets one by load alone, and `no_tokens` says why.
// Another caller gets the error, after leaves were asked for engines (`discover_engines.h`).
// *Threads*: any. Reading and tokenizing run on threads of its own, bodies above 1 MiB on a single
// thread of their own, so that they do not delay others; small bodies on the caller's thread where
// it allows that (`inline_bytes_max`); the callback runs on one of these or of the frontend's.
// *Bounds*: `queue_max` prompts waiting for a thread; more are RESOURCE_EXHAUSTED with a time to
// come again (`RetryAfter`).
// *Lifetime*: the destructor waits for jobs that run; prompts that wait for a thread get
// UNAVAILABLE. Frontend and tokenizer outlive it. Callbacks of routes under way may come after it,
// as the frontend's do.

#ifndef KVATLAS_FRONTEND_PROMPT_PROMPT_ROUTER_H_
#define KVATLAS_FRONTEND_PROMPT_PROMPT_ROUTER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/prompt/engine_conventions.h"
#include "frontend/prompt/no_tokens.h"
#include "frontend/prompt/request/prompt_request.h"
#include "frontend/prompt/served_names.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/prompt/tokenize_readings.h"
#include "frontend/router/frontend.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"

namespace kvatlas {

struct PromptRouterOptions {
  uint32_t threads = 2;
  size_t queue_max = 1024;
  Duration tokenize_deadline = std::chrono::seconds(2);
  // The fleet's models, for requests that name none; null: those whose engines the frontend has
  // met.
  std::function<std::vector<std::string>()> models = nullptr;
  // How the engines of a model read requests; outlives the router. Null: as vLLM does.
  const EngineConventions* conventions = nullptr;
  // Called before tokenizing: resolves names by which leaves do not know the model, such as
  // adapters. Null: there are none.
  ServedNameFinder served_name = nullptr;
  // Called for each prompt that is routed without tokens, or refused for lack of them. May be null.
  OnNoTokens on_no_tokens = nullptr;
  // Whether tokens of such prompts were equal to the engine's in enough samples
  // (`TokenizerChoice::IsTrusted`). Null: never.
  std::function<bool(const std::string& model, const BodyPrompt& prompt)> is_trusted = nullptr;
};

struct PromptQuestion {
  RouteInput input;  // its prompt is filled in, unless it has one
  std::optional<Prompt> prompt = {};
  absl::Status no_prompt =
      {};  // why none is read of the call (`NoPromptOf`), for `RouteModel` and `RouteByLoad`
  bool by_load_without_tokens = false;
  bool return_tokens = false;
  bool forward_tokens = false;  // `PromptRoute::forward` is wanted
  // A body of so many bytes is read, and tokenized if a tokenizer does so at once, in the caller's
  // thread, before `RouteBody` and `RouteModel` return: tens of microseconds per KiB. 0: none, for
  // callers that must not be held up.
  size_t inline_bytes_max = 0;
  // For tokenizing and routing together, in addition to the deadline of each; 0: none.
  Duration deadline{0};
  // Called before a worker is chosen, in the thread that reads the body, with what the body says of
  // its engine; may change the input. Null: a rank that the body names counts, nothing else.
  std::function<void(const RequestWishes&, RouteInput*)> on_wishes = nullptr;
  // Whether the caller may use the model that the request names. Called once the name is known,
  // before it is looked up; an error is the answer. Null: any model.
  std::function<absl::Status(const std::string& model)> may_use = nullptr;
  // Runs a job in the caller's thread. The route begins there when another thread made the tokens,
  // so that a thread with an I/O loop uses its own connections. Null: the route begins where the
  // tokens were made.
  std::function<void(std::function<void()>)> on_caller = nullptr;
};

struct PromptRoute {
  RouteResult route;
  // As the chosen engine reads the prompt, where engines read it differently.
  size_t prompt_tokens = 0;
  std::string tokenizer = {};        // that made the tokens; empty: the prompt was tokens
  std::vector<TokenId> tokens = {};  // when wanted
  absl::Status no_tokens = {};       // OK, or why the choice is by load alone
  // Tokens for the chosen engine to use instead of tokenizing: of a chat whose tokens are trusted,
  // where the engine takes token ids. Null: it must tokenize.
  std::shared_ptr<const std::vector<TokenId>> forward = {};
  std::vector<ReadingTold> readings =
      {};  // by `RouteResult::reading`; empty: the prompt was tokens, or has none
};

class PromptRouter {
 public:
  using Callback = std::function<void(absl::StatusOr<PromptRoute>)>;

  // Without a tokenizer only tokens are routed.
  PromptRouter(const PromptRouterOptions& options, Frontend* frontend, PromptTokenizer* tokenizer);
  ~PromptRouter();

  PromptRouter(const PromptRouter&) = delete;
  PromptRouter& operator=(const PromptRouter&) = delete;

  // The callback comes exactly once, possibly before this returns.
  void Route(PromptQuestion question, Callback callback);
  // `question` has what the body does not say: tenant, session, deadline. The text of
  // INVALID_ARGUMENT begins with the field's name. A body without a model means the fleet's only
  // model, as it does for an engine.
  void RouteBody(RequestPath call, std::shared_ptr<const std::string> body, PromptQuestion question,
                 Callback callback);
  // For any other call: by load, for the model that the body names.
  void RouteModel(std::shared_ptr<const std::string> body, PromptQuestion question,
                  Callback callback);
  // By load, for the model of `question`.
  void RouteByLoad(PromptQuestion question, Callback callback);
  // Another worker for a prompt that was routed and that the workers in `tried` failed to take;
  // these come last. Nothing is read or tokenized again (`Frontend::RouteAgain`). REQUIRES:
  // `earlier.route.routed` is not null.
  void RouteAgain(const PromptRoute& earlier, std::vector<CellWorker> tried, Callback callback);

  // Runs `job` on a thread that reads prompts. `refused` is called instead when the queue is full
  // or the router stops.
  void Run(std::function<void()> job, std::function<void(absl::Status)> refused);

 private:
  struct Task;
  class Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_PROMPT_ROUTER_H_
