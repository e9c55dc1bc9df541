// Which endpoint should this HTTP request go to? From the body of an inference call to the header
// that a gateway's endpoint picker sets; nothing of Envoy's protocol is here.
//
//   body ─▶ model, prompt ─▶ served name ─▶ tokens (ids as they are, or a tokenizer) ─▶ Frontend::RouteAsync ─▶ worker ─▶ IP:PORT
//
// *Truth*: the worker that the frontend chose (the decoder, where another one prefills), if its
// endpoint is known and eligible; else the one that it chooses again among those that the route
// found, workers without such an endpoint last; else 503. The choice counts in flight at the worker
// that the request goes to, or nowhere. A prompt without
// tokens (no tokenizer, the tokenizer refused it, or it is beyond the frontend's bound) goes by
// load, as through the proxy: the engine says what is wrong with it. *Threads*: any; the callback
// is called exactly once, from any thread, possibly before the call returns. *Lifetime*: frontend,
// tokenizer and endpoints outlive it; it outlives its picks, its destructor waiting for them.
//
// Example:
//   picker.Pick({.call = RequestPath::kChat, .body = std::make_shared<const std::string>(body)},
//               [](std::variant<Picked, ClientError> result) { ... });

#ifndef KVATLAS_FRONTEND_GATEWAY_EXT_PROC_PICKER_H_
#define KVATLAS_FRONTEND_GATEWAY_EXT_PROC_PICKER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/gateway/errors.h"
#include "frontend/gateway/ext_proc/endpoints.h"
#include "frontend/gateway/ext_proc/picker_pool.h"
#include "frontend/gateway/http/response_makers.h"
#include "frontend/gateway/tenancy.h"
#include "frontend/prompt/engine_conventions.h"
#include "frontend/prompt/no_tokens.h"
#include "frontend/prompt/request/prompt_request.h"
#include "frontend/prompt/served_names.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/router/frontend.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/telemetry/tracing/trace_context.h"

namespace kvatlas {

struct PickerOptions {
  uint32_t endpoints_best = 1;  // named in one answer: the chosen one, then those to retry
  Duration tokenize_deadline = std::chrono::seconds(2);
  // How the engines of a model read requests; outlives the picker. Null: as vLLM does.
  const EngineConventions* conventions = nullptr;
  // For names of models that leaves know as others, as adapters are. Null: there are none.
  ServedNameFinder served_name = nullptr;
  // Called before a refusal for want of endpoints (`EngineNames::Meet`). True: nothing to wait for;
  // false: the given function is called later. Null: no engines can be looked for.
  std::function<bool(std::function<void()>)> meet_engines = nullptr;
  // Called for each prompt without tokens. Null: not called.
  OnNoTokens on_no_tokens = nullptr;
  PickerPool pool = {};  // endpoints of others are never named
  // Priority by the name of an InferenceObjective; a name that is not here has 0. Requests below 0
  // are shed first.
  std::map<std::string, int> objectives = {};
};

// A request before it is routed.
struct PickInput {
  // Empty: a call without a prompt, by load to a worker of the model that its body names, or
  // anywhere.
  std::optional<RequestPath> call = RequestPath::kCompletions;
  std::string method = {};
  std::string path = {};
  std::shared_ptr<const std::string> body;  // not null
  std::optional<EndpointSet> subset = {};   // that the gateway allows; nothing: all
  std::string tenant = {};
  std::string owner = {};  // `RouteInput::tenant`; empty: none
  // Whether the client may use a model; `kModelNotRead` for a model that is not read. Null: any.
  Tenancy::MayUse may_use = nullptr;
  std::string session_id = {};
  std::optional<uint32_t> rank = {};  // that the client's header names; nothing: its body may
  std::string objective = {};         // a name in `PickerOptions::objectives`
  TraceContext trace = {};            // of the gateway
};

struct PickedEndpoint {
  std::string address;     // IP:PORT
  CellWorker worker = {};  // there; no name: none that the frontend answered
};

struct Picked {
  std::vector<PickedEndpoint>
      endpoints;  // at least one, in the order in which they are to be tried
  // The frontend's decision, to be reported on; 0: the frontend counts none for this endpoint.
  uint64_t decision_id = 0;
  // The data-parallel rank that the first endpoint is to use, where its worker has several.
  std::optional<uint32_t> rank = {};
  std::vector<std::string> names_stored =
      {};  // ids that the body names: where it goes they are from now on
  std::string no_tokens =
      {};                  // why the choice is by load alone; empty: it is not, or has no prompt
  bool one_prompt = true;  // the engine's cache figures are of the prompt that was predicted
  bool decodes = false;    // another worker prefills:
  std::string prefiller = {};  // its IP:PORT; empty: not known, and the decoder prefills too
  // To go on in the place of the request's, and of its length (`WithoutFullReports`); nothing: the
  // request's goes on.
  std::optional<std::string> body = {};
  bool by_turns = false;  // any endpoint: the request names no model
};

// An answer instead of the engine's. A server error is always 503: gateways know no other kind of
// failure.
ClientError RefusalOf(const absl::Status& why);

using PickResult = std::variant<Picked, ClientError>;

class Picker {
 public:
  using Callback = std::function<void(PickResult)>;

  // Without a tokenizer only prompts of token ids are routed by prompt.
  Picker(PickerOptions options, Frontend* frontend, PromptTokenizer* tokenizer,
         Endpoints* endpoints);
  ~Picker();

  // 400: a body that is no such call. 404: a model that no leaf and no engine knows. 429: every
  // worker is over its thresholds. 503: no worker, or none whose endpoint is known and eligible.
  void Pick(PickInput input, Callback callback);
  // Called with each route, on the route's thread. Set before the first pick.
  void ObserveRoutes(std::function<void(const RouteResult&)> observe) {
    observe_ = std::move(observe);
  }

  // Any endpoint, for a request that names no model. 503: none is known, or none allowed.
  std::variant<std::string, ClientError> PickAny(const std::optional<EndpointSet>& subset);
  // After a refusal of `PickAny`. True: leaves are asked for engines that no route has met, and
  // `then` is called once they have answered.
  bool Meets(std::function<void()> then);

  // Waits until no pick is under way. Not from a callback.
  void WaitIdle();

  // Which worker made a response, or has an item or a conversation: filled by the reader of the
  // answers.
  ResponseMakers& stored() { return stored_; }
  Frontend* frontend() const { return frontend_; }
  Endpoints& endpoints() const { return *endpoints_; }

 private:
  struct Task;
  std::shared_ptr<Task> NewTask();
  void Tokenize(std::shared_ptr<Task> task);
  void Route(std::shared_ptr<Task> task);
  void RouteNow(std::shared_ptr<Task> task);
  void OnRouted(std::shared_ptr<Task> task, absl::StatusOr<RouteResult> result);
  bool RouteOtherwise(const std::shared_ptr<Task>& task, const RouteResult& result);
  // Of the worker, if it is known and the gateway allows it.
  std::optional<std::string> AddressOf(const Task& task, const HolderId& worker) const;
  PickResult Choose(const Task& task, absl::StatusOr<RouteResult> result);
  PickResult AnyOf(const std::optional<EndpointSet>& subset,
                   const std::optional<std::string>& body);
  void ByLoad(std::shared_ptr<Task> task, absl::Status why);
  // Whether some workers of the model may not be named, and the names of those that may, as far as
  // they are known.
  bool IsLimited(const Task& task) const;
  std::vector<std::string> NamesWithin(const Task& task) const;
  void CountNoTokens(const Task& task, const absl::Status& why) const;

  const PickerOptions options_;
  Frontend* const frontend_;
  PromptTokenizer* const tokenizer_;
  Endpoints* const endpoints_;
  std::function<void(const RouteResult&)> observe_;
  ResponseMakers stored_;
  Mutex mutex_;
  CondVar idle_;
  uint64_t under_way_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_EXT_PROC_PICKER_H_
