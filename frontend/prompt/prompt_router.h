// Which worker should take this chat, or this text? From what a client says to a worker: read, made
// tokens of, routed.
//
//   body ─▶ ReadPromptRequest ──╮
//   text, chat ─────────────────┴▶ served name ─▶ TokenizeReadings ─▶ Frontend::RouteAsync ─▶ callback
//
// *Truth*: the tokens are the engine's or there are none. Who must have a worker in any case
// (`by_load_without_tokens`) gets one by load alone then, and `no_tokens` says why; who does not,
// gets the error, once leaves were asked for engines (`meet_engines.h`).
// *Threads*: any. Reading and tokenizing run on threads of its own, bodies above 1 MiB on one
// thread for them alone, so that a long prompt does not keep others from being served, or on the
// caller's for small bodies where it says so; the callback runs on one of these or of the
// frontend's.
// *Bounds*: `queue_max` prompts waiting for a thread; more are RESOURCE_EXHAUSTED with a time to
// come again (`RetryAfter`).
// *Lifetime*: the destructor waits for what runs; what waits for a thread then is UNAVAILABLE.
// Frontend and tokenizer outlive it; callbacks may come later than it ends only as the frontend's
// do.

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
  // Before anything is made of the prompt: for names of models that leaves know as others, as
  // adapters are. Null: there are none.
  ServedNameFinder served_name = nullptr;
  // Hears of each prompt that is routed without tokens, or refused for want of them. Null: nothing
  // does.
  OnNoTokens on_no_tokens = nullptr;
  // Whether the tokens that are made of such prompts were found to be the engine's often enough
  // (`TokenizerChoice::IsTrusted`). Null: no.
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
  // Of tokenizing and routing together, beside each one's own; 0: none.
  Duration deadline{0};
  // Hears, before anything is chosen, what the body says of the engine that must take it, in the
  // thread that reads it; may change the question by it. Null: a rank that the body names counts,
  // nothing else.
  std::function<void(const RequestWishes&, RouteInput*)> on_wishes = nullptr;
  // May the caller use the model that the request names? Asked once that is known, before it is
  // looked up; what is not OK is the answer. Null: any.
  std::function<absl::Status(const std::string& model)> may_use = nullptr;
  // Runs a job in the caller's thread. Where a thread of the router's made tokens, the route begins
  // there: a thread with an I/O loop asks over connections of its own. Null: it begins where the
  // tokens were made.
  std::function<void(std::function<void()>)> on_caller = nullptr;
};

struct PromptRoute {
  RouteResult route;
  // As the chosen engine reads the prompt, where engines do so differently.
  size_t prompt_tokens = 0;
  std::string tokenizer = {};        // what made tokens of the prompt; empty: it was tokens
  std::vector<TokenId> tokens = {};  // when wanted
  absl::Status no_tokens = {};       // OK, or why the choice is by load alone
  // Tokens that the chosen engine may be given in the place of making its own: of a chat whose
  // reading is trusted, where the engine takes them. Null: it is not to be given any.
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
  // `question` has what the body does not say: tenant, session, deadline. INVALID_ARGUMENT begins
  // with the field's name. A body without a model means the only one that there is, as it does for
  // an engine.
  void RouteBody(RequestPath call, std::shared_ptr<const std::string> body, PromptQuestion question,
                 Callback callback);
  // Of any other call: by load, for the model that the body names.
  void RouteModel(std::shared_ptr<const std::string> body, PromptQuestion question,
                  Callback callback);
  // By load, for the model of `question`.
  void RouteByLoad(PromptQuestion question, Callback callback);
  // Another worker for a prompt that was routed, and that those in `tried` failed to take: they
  // come last. Nothing is read or tokenized again (`Frontend::RouteAgain`). REQUIRES:
  // `earlier.route.routed` is not null.
  void RouteAgain(const PromptRoute& earlier, std::vector<CellWorker> tried, Callback callback);

  // Runs `job` on a thread that reads prompts; `refused` hears of a full queue or the end, and then
  // `job` is not run.
  void Run(std::function<void()> job, std::function<void(absl::Status)> refused);

 private:
  struct Task;
  class Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_PROMPT_ROUTER_H_
