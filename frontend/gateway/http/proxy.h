// A listener that makes a fleet look like one engine: each request goes to the engine chosen for
// its prompt, and the answer comes back as the engine gives it.
//
//   client ──POST /v1/chat/completions──▶ Proxy ──▶ PromptRouter ──▶ worker, its url
//          ◀── the same bytes, as they come ──╯ ◀──────────────────── engine
//                                             ╰─▶ Report: accepted, finished, cached tokens
//
//   POST of a path with a prompt (`RequestPathOf`: chats, completions, responses, messages, generate)
//                                                by prompt; by load alone when there are no tokens of it
//   one that names what an engine has stored (`RequestWishes`)
//                                                by load, the engine that made it; after a 404 of one the others are asked
//   POST of other inference (`proxied_paths.h`)  by load, for the `model` that the JSON body or the
//   form names
//   GET /v1/models, /v1/models/ID                the models of all engines in one list, and one of them (`models_list.h`)
//   what is below /v1/responses/ID               the engine that made the response (`response_makers.h`); where that is not known, one
//                                                after the other until one does not answer 404
//   GET and others, /version, /ping, …           any engine, as do forms that name no model
//   what `ProxiedPaths` does not name            404
//   GET /health, /livez, /ready, /metrics        its own: it runs; what `ProcessHealth` says; Prometheus' text
//
// *Truth*: bodies are passed on untouched in both directions, and so are headers but those of a
// connection. An answer has more headers: `x-kvatlas-decision`, `-worker`, `-cell`,
// `-overlap-blocks`, `-fallback` ("none", a rung of the frontend's ladder, or "no_tokens: why"),
// `-decode-worker` and `-decode-cell` where another worker decodes, and `x-kvatlas-tried`, the
// workers that failed before it. An engine that fails before the first byte of its answer is
// avoided for a while and the next one is asked; an engine is tried once at most, and nothing of a
// request is written twice on a connection. An engine that has the request and is only too slow for
// us may still be working on it: no other engine is asked, and the client gets 504. After the first
// byte of an answer its break is passed on, as a closed connection. When no leaf or hierarchy knows
// a worker, engines that --engines names are asked by turns.
// *Reach*: a worker's label `url` is whatever its announcer says, so only engines within
// `EngineCallOptions::reach` get requests, with `authorization`, `proxy-authorization` and
// `cookie`. One outside counts as failed, in the log and in a metric.
// *Data-parallel ranks*: where the chosen worker has several, the engine is told which
// (`kDataParallelRankHeader`) and the answer has `x-kvatlas-rank`. A client that names a rank, by
// that header or in an SGLang body, is served by that rank: only such ranks are chosen, and the
// promised overlap is theirs. An engine that answers 400, as one with fewer ranks than it had does,
// is asked once more without a rank.
// *Prefill here, decode there*: the request goes to the decoder, with the header
// `x-prefiller-host-port` (`kPrefillerHeader`) that names the prefiller; such a header of a client
// is dropped. The cached tokens that such an engine reports are not passed on: they are the
// decoder's.
// *Threads*: `io_threads` of its own; a request stays on the thread of its connection, its engine's
// connection included.
// *Bounds*: a body of `body_bytes_max`, held whole since another engine may have to be asked; of an
// answer one piece of 64 KiB. `tries` engines a request. Each hop has its timeout: reading a
// request, tokenizing, routing, connecting, the head of the answer, from there to the first event
// of a stream (as long again), between its pieces, and the client's taking them
// (`HttpServerOptions::write_timeout`).
// *Lifetime*: frontend and router outlive it.
//
// Example:
//   Proxy proxy({.listen = {"127.0.0.1", 8000}}, &frontend, &router, &metrics);
//   if (absl::Status status = proxy.Start(); !status.ok()) return status;

#ifndef KVATLAS_FRONTEND_GATEWAY_HTTP_PROXY_H_
#define KVATLAS_FRONTEND_GATEWAY_HTTP_PROXY_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "frontend/engine_client/engine_call.h"
#include "frontend/gateway/http/proxied_paths.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/router/frontend.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/process/process_health.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

struct ProxyOptions {
  Address listen;
  uint32_t io_threads = 2;
  size_t connections_max = 16384;
  size_t header_bytes_max =
      64 << 10;  // more than Envoy takes (60 KiB), the cookies of a gateway with it
  size_t body_bytes_max = 64 << 20;
  size_t bodies_bytes_max = size_t{2} << 30;  // of all requests together; see `BodiesWithin`
  uint32_t tries = 8;
  Duration write_timeout = std::chrono::minutes(2);    // for a client to take a piece
  Duration models_timeout = std::chrono::seconds(2);   // for the lists of all engines together
  Duration models_kept_for = std::chrono::seconds(5);  // the list that was made of them
  EngineCallOptions engine;
  ProxiedPaths paths;
  // "auto": engines that take them get the ids of a chat (`PromptRoute::forward`), and make none of
  // their own. "off": bodies stay as they are.
  std::string forward_token_ids = "auto";
  // Before it is said that no engine is known (`EngineNames::Meet`): true: at once; else the call
  // follows. Null: nothing can be met.
  std::function<bool(std::function<void()>)> meet_engines = nullptr;
  // The state that /livez and /ready answer; null: it lives and is ready while it listens.
  std::shared_ptr<const ProcessHealth> health = nullptr;
  // The address of the page for people, for `GET /`; null: there is none.
  std::function<std::string()> page = nullptr;
  std::string tenant;  // of requests without a header `x-kvatlas-tenant`
};

// The bound of bodies for a process that may use so much memory (0: as much as there is): a quarter
// of it, at most `bodies_bytes_max`.
inline size_t BodiesWithin(uint64_t memory_bytes_max, size_t bodies_bytes_max) {
  if (memory_bytes_max == 0) return bodies_bytes_max;
  return std::min<uint64_t>(bodies_bytes_max, memory_bytes_max / 4);
}

class Proxy {
 public:
  Proxy(const ProxyOptions& options, Frontend* frontend, PromptRouter* router, Metrics* metrics);
  ~Proxy();  // stops

  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  absl::Status Start();
  Address address() const;
  size_t connections() const;
  size_t bodies_bytes() const;  // `HttpServer::bodies_bytes`
  // Cuts what is under way. Idempotent.
  void Stop();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_HTTP_PROXY_H_
