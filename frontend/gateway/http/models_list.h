// Which models does the fleet serve? `GET /v1/models` of every engine, as one list, of which `GET
// /v1/models/ID` is an entry.
//
//   {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm", …}, …]}
//
// *Truth*: the union by `id` of what engines answer, each entry as the first engine with that id
// has it, in the engines' own order and a model before its adapters: clients without a model of
// their own take the first. An engine that is away, late or answers something else is left out;
// when none answers with a list there is none. A list is up to `ProxyOptions::models_kept_for` old,
// and is kept for requests with the same `authorization` alone.
// *Threads*: `AskModels` on the thread of `io`; the others any. *Cost*: linear in the bytes of the
// answers, which may be many: what takes them apart belongs on another thread.
// *Bounds*: `kModelsEnginesMax` engines asked at once, each once (HOST:PORT);
// `kEnginesAnswerBytesMax` of an answer; 100,000 models;
// `ProxyOptions::models_timeout` for all together.

#ifndef KVATLAS_FRONTEND_GATEWAY_HTTP_MODELS_LIST_H_
#define KVATLAS_FRONTEND_GATEWAY_HTTP_MODELS_LIST_H_

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "frontend/engine_client/engine_connections.h"
#include "frontend/engine_client/engines_question.h"
#include "frontend/router/frontend.h"
#include "indexer/base/clock.h"
#include "indexer/net/http_server.h"

namespace kvatlas {

inline constexpr size_t kModelsEnginesMax = 64;

// Asks `engines`, with `headers`, and waits `timeout` for all together. The callback comes later,
// on the thread of `io`, unless that ends before.
void AskModels(boost::asio::io_context* io, EngineConnections* pool,
               const std::vector<KnownEngine>& engines, const HttpHeaders& headers,
               Duration timeout, EnginesAnswers callback, EnginesKey key);

// The union of such bodies (`engines_question.h`); nothing: none of them is a list.
std::optional<std::string> MergeModels(const std::vector<std::optional<std::string>>& bodies);

// Such a list without the entries whose ids are not to be kept.
std::string ModelsOf(const std::string& list,
                     const std::function<bool(const std::string& id)>& keep);

// The entry of such a list that has this id.
std::optional<std::string> ModelIn(const std::string& list, const std::string& id);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_HTTP_MODELS_LIST_H_
