// A GET of one path to several engines at once, and the answer of each.
//
// *Truth*: an engine that is away, late, outside `EngineReach`, answers anything but 200, or more
// than `kEnginesAnswerBytesMax`, has no answer.
// *Threads*: everything on the thread of `io`. *Bounds*: `timeout` for all together.
// *Lifetime*: a question keeps itself until its callback has been called.

#ifndef KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINES_QUESTION_H_
#define KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINES_QUESTION_H_

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "frontend/engine_client/engine_connections.h"
#include "frontend/engine_client/engine_reach.h"
#include "indexer/base/clock.h"
#include "indexer/net/http_server.h"

namespace kvatlas {

inline constexpr size_t kEnginesAnswerBytesMax = 8 << 20;

// Bodies in the order of the engines.
using EnginesAnswers = std::function<void(std::vector<std::optional<std::string>> bodies)>;

// Whether the engines get their own key (`engine_reach.h`) where the headers have no authorization.
// A request for a client that shows none must go without it.
enum class EnginesKey { kOwn, kNone };

// With `headers`. The callback comes later, on the thread of `io`, unless that ends before. Returns
// what ends the question with the answers that are there; on that thread, at any time.
std::function<void()> AskEngines(boost::asio::io_context* io, EngineConnections* pool,
                                 std::vector<EngineUrl> engines, const std::string& target,
                                 const HttpHeaders& headers, Duration timeout,
                                 EnginesAnswers callback, EnginesKey key = EnginesKey::kOwn);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINES_QUESTION_H_
