// A mock engine as its clients see it: OpenAI's chat, completion and embedding calls, streamed or
// not, /tokenize, and what gateways look at: /health, /version, /v1/models, /kv_event_sources, and
// /metrics under vLLM's names.
//
// *Truth*: the prompt really goes through the engine's cache: `usage` says what was cached on
// arrival, and its blocks are published. Words of an answer are made up ("w0 w1 …", `max_tokens` of
// them, 4 by default). A request whose header names a prefiller is sent there first, for one word,
// as the sidecar beside an engine that decodes does; when that fails it prefills itself. One whose
// header names a data-parallel rank is served by that, and refused with 400 where there is none of
// this number.
// *Threads*: the HTTP server's; the engine serialises.
// *Lifetime*: engine and tokenizer outlive it.

#ifndef KVATLAS_TOOLS_TESTING_MOCK_ENGINE_OPENAI_HTTP_H_
#define KVATLAS_TOOLS_TESTING_MOCK_ENGINE_OPENAI_HTTP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "frontend/prompt/request/prompt_request.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/mutex.h"
#include "indexer/net/http_exchange.h"
#include "indexer/net/http_server.h"
#include "tools/testing/mock_engine/engine_ranks.h"

namespace kvatlas {

struct OpenAiHttpOptions {
  Address listen;
  std::string model;
  Duration token_time{0};  // between two words of a stream, in real time
  Duration prefill_time{
      0};  // of 1,000 tokens of a prompt, in real time: so much later its blocks are stored
  std::string cache_salt = {};    // of requests without one
  uint32_t block_size = 0;        // as /metrics has it
  std::string events_topic = {};  // as /kv_event_sources has it
};

class OpenAiHttp {
 public:
  OpenAiHttp(const OpenAiHttpOptions& options, PromptTokenizer* tokenizer);
  ~OpenAiHttp() { server_.Stop(); }

  absl::Status Start() { return server_.Start(); }
  Address address() const { return server_.address(); }
  // Prompts that come before wait for it, as a real engine's do, which takes none until it is
  // ready.
  void Serve(EngineRanks* engine);
  void Stop() { server_.Stop(); }

 private:
  using Exchange = std::shared_ptr<HttpExchange>;

  // True: it is called again once there is an engine.
  bool Early(RequestPath call, const Exchange& exchange);
  void OnPrompt(RequestPath call, const std::shared_ptr<HttpExchange>& exchange);
  void OnBody(RequestPath call, const std::string& body,
              const std::shared_ptr<HttpExchange>& exchange);
  HttpResponse MetricsText();
  HttpResponse KvEventSources();
  void OnEmbeddings(const std::shared_ptr<HttpExchange>& exchange);
  void OnTokenize(const std::shared_ptr<HttpExchange>& exchange);
  // Answers after the time that the prompt's prefill takes.
  void AfterPrefill(RequestPath call, const PromptRequest& request, bool usage,
                    const std::vector<TokenId>& tokens,
                    const std::shared_ptr<HttpExchange>& exchange);
  void Answer(RequestPath call, const PromptRequest& request, bool usage,
              const std::vector<TokenId>& tokens, const std::shared_ptr<HttpExchange>& exchange);

  const OpenAiHttpOptions options_;
  PromptTokenizer* const tokenizer_;
  HttpServer server_;
  Mutex mutex_;
  EngineRanks* engine_ ABSL_GUARDED_BY(mutex_) = nullptr;
  // Go before the server does.
  std::vector<std::pair<RequestPath, Exchange>> early_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_MOCK_ENGINE_OPENAI_HTTP_H_
