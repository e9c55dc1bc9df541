#include "tools/testing/mock_engine/openai_http.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "frontend/engine_client/engine_call.h"
#include "frontend/gateway/errors.h"
#include "frontend/router/frontend.h"
#include "tools/testing/mock_engine/mock_embeddings.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
using Json = nlohmann::ordered_json;

constexpr size_t kWords = 4;
constexpr size_t kWordsMax = 4096;
constexpr size_t kBodyBytesMax = 64 << 20;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json UsageOf(size_t prompt, size_t cached, size_t words) {
  return {{"prompt_tokens", prompt},
          {"completion_tokens", words},
          {"total_tokens", prompt + words},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

// A piece of an answer, or all of it: the text is where the call has it.
Json Piece(RequestPath call, const std::string& model, bool stream, const std::string& text,
           const char* finish) {
  const bool chat = call == RequestPath::kChat;
  Json choice = {{"index", 0}};
  if (chat) {
    choice[stream ? "delta" : "message"] = {{"role", "assistant"}, {"content", text}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = Json();
  choice["finish_reason"] = finish == nullptr ? Json() : Json(finish);
  const char* object = !chat    ? "text_completion"
                       : stream ? "chat.completion.chunk"
                                : "chat.completion";
  return {{"id", "mock"},
          {"object", object},
          {"created", 0},
          {"model", model},
          {"choices", Json::array({choice})}};
}

// One answer in server-sent events, a word at a time.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::shared_ptr<HttpExchange> exchange, std::vector<std::string> events, Duration pause)
      : exchange_(std::move(exchange)),
        events_(std::move(events)),
        pause_(pause),
        timer_(exchange_->io()) {}

  void Start() {
    exchange_->OnGone([self = shared_from_this()] { self->timer_.cancel(); });
    exchange_->Begin({.status = 200, .headers = {{"content-type", "text/event-stream"}}},
                     [self = shared_from_this()] { self->Next(); });
  }

 private:
  void Next() {
    if (at_ == events_.size()) return exchange_->End();
    timer_.expires_after(at_ == 0 ? Duration(0) : pause_);
    timer_.async_wait([self = shared_from_this()](boost::system::error_code cancelled) {
      if (cancelled) return;
      self->exchange_->Write(self->events_[self->at_++], [self] { self->Next(); });
    });
  }

  const std::shared_ptr<HttpExchange> exchange_;
  const std::vector<std::string> events_;
  const Duration pause_;
  asio::steady_timer timer_;
  size_t at_ = 0;
};

std::string HeaderOf(const HttpRequest& request, const char* wanted) {
  for (const auto& [name, value] : request.headers) {
    if (absl::EqualsIgnoreCase(name, wanted)) return value;
  }
  return "";
}

// The rank that is asked for takes it. INVALID_ARGUMENT: there is none of this number.
absl::StatusOr<EngineService*> RankFor(const HttpRequest& request, EngineRanks* ranks) {
  const std::string wanted = HeaderOf(request, kDataParallelRankHeader);
  uint32_t number = 0;
  if (!wanted.empty() && !absl::SimpleAtoi(wanted, &number))
    return absl::InvalidArgumentError(absl::StrCat(kDataParallelRankHeader, " is no number"));
  EngineService* const rank =
      ranks->Choose(wanted.empty() ? std::nullopt : std::optional<uint32_t>(number));
  if (rank != nullptr) return rank;
  return absl::InvalidArgumentError(absl::StrCat("data_parallel_rank ", number,
                                                 " is out of range [", ranks->number(0), ", ",
                                                 ranks->number(ranks->size()), ")."));
}

// A prompt at the engine that prefills it. Then, whatever became of it, `done`.
class Prefill : public std::enable_shared_from_this<Prefill> {
 public:
  explicit Prefill(std::function<void()> done) : done_(std::move(done)) {}

  void Start(asio::io_context* io, const std::string& prefiller, const std::string& target,
             const std::string& body) {
    Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
    absl::StatusOr<EngineUrl> url = EngineUrl::Parse("http://" + prefiller);
    if (!json.is_object() || !url.ok()) return done_();
    for (const char* name : {"stream", "stream_options", "max_completion_tokens"}) json.erase(name);
    json["max_tokens"] = 1;
    call_ = std::make_shared<EngineCall>(
        io, &pool_,
        EngineCallRequest{.url = *std::move(url),
                          .method = "POST",
                          .target = target,
                          .headers = {{"content-type", "application/json"}},
                          .body = std::make_shared<const std::string>(Dump(json))},
        EngineCallbacks{
            .on_head = [self = shared_from_this()](const EngineHead&) { self->call_->Resume(); },
            .on_piece = [self = shared_from_this()](std::string_view) { self->call_->Resume(); },
            .on_end = [self = shared_from_this()] { self->End(); },
            .on_failed = [self = shared_from_this()](const absl::Status&, bool) { self->End(); }});
    call_->Start();
  }

 private:
  void End() {
    call_.reset();
    done_();
  }

  EngineConnections pool_{EngineCallOptions{.idle_per_engine = 0}};
  const std::function<void()> done_;
  std::shared_ptr<EngineCall> call_;
};

HttpServerOptions ServerOptions(const OpenAiHttpOptions& options) {
  HttpServerOptions server;
  server.listen = options.listen;
  server.keep_headers = true;
  return server;
}

}  // namespace

OpenAiHttp::OpenAiHttp(const OpenAiHttpOptions& options, PromptTokenizer* tokenizer)
    : options_(options), tokenizer_(tokenizer), server_(ServerOptions(options)) {
  const auto post = [this](const char* path, HttpStreamHandler handler) {
    server_.Handle({.method = "POST",
                    .path = path,
                    .stream = std::move(handler),
                    .body_bytes_max = kBodyBytesMax});
  };
  post("/v1/chat/completions", [this](const std::shared_ptr<HttpExchange>& exchange) {
    OnPrompt(RequestPath::kChat, exchange);
  });
  post("/v1/completions", [this](const std::shared_ptr<HttpExchange>& exchange) {
    OnPrompt(RequestPath::kCompletions, exchange);
  });
  post("/v1/embeddings",
       [this](const std::shared_ptr<HttpExchange>& exchange) { OnEmbeddings(exchange); });
  post("/tokenize",
       [this](const std::shared_ptr<HttpExchange>& exchange) { OnTokenize(exchange); });
  const auto get = [this](const char* path, std::function<HttpResponse()> answer) {
    server_.Handle(
        {.method = "GET",
         .path = path,
         .handler = [answer = std::move(answer)](const HttpRequest&) { return answer(); }});
  };
  get("/health", [] { return HttpResponse{}; });
  get("/kv_event_sources", [this] { return KvEventSources(); });
  get("/version", [] { return HttpResponse{.body = Dump({{"version", "0.1.0+mock"}})}; });
  get("/metrics", [this] { return MetricsText(); });
  get("/v1/models", [this] {
    return HttpResponse{.body =
                            Dump({{"object", "list"},
                                  {"data", Json::array({{{"id", options_.model},
                                                         {"object", "model"},
                                                         {"created", 0},
                                                         {"owned_by", "mock"},
                                                         {"root", options_.model},
                                                         {"max_model_len", kBodyBytesMax}}})}})};
  });
}

// As vLLM's: the configuration of each rank that publishes, as bound.
HttpResponse OpenAiHttp::KvEventSources() {
  EngineRanks* ranks;
  {
    MutexLock lock(&mutex_);
    ranks = engine_;
  }
  nlohmann::json sources = nlohmann::json::object();
  for (size_t i = 0; ranks != nullptr && i < ranks->size(); ++i) {
    const std::optional<ZmqPublisherStats> zmq = ranks->publisher(i).Stats().zmq;
    if (!zmq.has_value()) continue;
    sources[std::to_string(ranks->number(i))] = {{"publisher", "zmq"},
                                                 {"endpoint", zmq->endpoint},
                                                 {"replay_endpoint", zmq->replay_endpoint},
                                                 {"topic", options_.events_topic}};
  }
  if (ranks == nullptr) return {.status = 503};
  // Events that leave another way are not vLLM's: as a server without the path.
  if (sources.empty()) return {.status = 404};
  return {.body = sources.dump()};
}

// As vLLM's: each rank is an engine of its own behind the port.
HttpResponse OpenAiHttp::MetricsText() {
  EngineRanks* ranks;
  {
    MutexLock lock(&mutex_);
    ranks = engine_;
  }
  std::string running, waiting, used;
  for (size_t i = 0; ranks != nullptr && i < ranks->size(); ++i) {
    const Load load = ranks->engine(i).CurrentLoad();
    const std::string label =
        absl::StrCat("{engine=\"", ranks->number(i), "\",model_name=\"", options_.model, "\"} ");
    absl::StrAppend(&running, "vllm:num_requests_running", label, load.running_requests, "\n");
    absl::StrAppend(&waiting, "vllm:num_requests_waiting", label, load.waiting_requests, "\n");
    absl::StrAppend(&used, "vllm:kv_cache_usage_perc", label,
                    static_cast<double>(load.used_blocks) /
                        static_cast<double>(ranks->engine(i).capacity_blocks()),
                    "\n");
  }
  const std::string blocks =
      ranks == nullptr
          ? ""
          : absl::StrCat(",num_gpu_blocks=\"", ranks->engine(0).capacity_blocks(), "\"");
  return {.content_type = "text/plain; version=0.0.4",
          .body = "# TYPE vllm:num_requests_running gauge\n" + running +
                  "# TYPE vllm:num_requests_waiting gauge\n" + waiting +
                  "# TYPE vllm:kv_cache_usage_perc gauge\n" + used +
                  absl::StrCat("# TYPE vllm:cache_config_info gauge\n"
                               "vllm:cache_config_info{block_size=\"",
                               options_.block_size, "\",enable_prefix_caching=\"True\"", blocks,
                               "} 1.0\n")};
}

void OpenAiHttp::Serve(EngineRanks* engine) {
  std::vector<std::pair<RequestPath, Exchange>> early;
  {
    MutexLock lock(&mutex_);
    engine_ = engine;
    early.swap(early_);
  }
  for (auto& [call, exchange] : early) {
    asio::io_context& io = exchange->io();
    asio::post(io,
               [this, call = call, exchange = std::move(exchange)] { OnPrompt(call, exchange); });
  }
}

bool OpenAiHttp::Early(RequestPath call, const Exchange& exchange) {
  MutexLock lock(&mutex_);
  if (engine_ != nullptr) return false;
  early_.emplace_back(call, exchange);
  return true;
}

void OpenAiHttp::OnPrompt(RequestPath call, const std::shared_ptr<HttpExchange>& exchange) {
  if (Early(call, exchange)) return;
  const std::string prefiller = HeaderOf(exchange->request(), kPrefillerHeader);
  std::string body = exchange->TakeBody();
  if (prefiller.empty()) return OnBody(call, body, exchange);
  std::make_shared<Prefill>([this, call, body, exchange] {
    OnBody(call, body, exchange);
  })->Start(&exchange->io(), prefiller, exchange->request().target, body);
}

void OpenAiHttp::OnBody(RequestPath call, const std::string& body,
                        const std::shared_ptr<HttpExchange>& exchange) {
  absl::StatusOr<PromptRequest> request =
      ReadPromptRequest(call, std::make_shared<const std::string>(body));
  if (request.ok() && !request->no_prompt.ok()) request = request->no_prompt;
  if (!request.ok()) return exchange->Answer(ErrorAnswer(request.status()));
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  const bool usage = !request->stream ||
                     (json.contains("stream_options") && json["stream_options"].is_object() &&
                      json["stream_options"].value("include_usage", Json(false)) == Json(true));
  if (auto* ids = std::get_if<std::vector<TokenId>>(&request->prompt))
    return AfterPrefill(call, *request, usage, *ids, exchange);
  const Prompt prompt = std::get<BodyPrompt>(std::move(request->prompt));
  tokenizer_->Tokenize(options_.model, prompt, std::chrono::seconds(60),
                       [&](absl::StatusOr<PromptTokens> tokens) {
                         if (!tokens.ok()) return exchange->Answer(ErrorAnswer(tokens.status()));
                         AfterPrefill(call, *request, usage, tokens->tokens, exchange);
                       });
}

void OpenAiHttp::AfterPrefill(RequestPath call, const PromptRequest& request, bool usage,
                              const std::vector<TokenId>& tokens,
                              const std::shared_ptr<HttpExchange>& exchange) {
  if (options_.prefill_time == Duration(0)) return Answer(call, request, usage, tokens, exchange);
  auto timer = std::make_shared<asio::steady_timer>(exchange->io());
  timer->expires_after(options_.prefill_time * tokens.size() / 1000);
  timer->async_wait(
      [this, timer, call, request, usage, tokens, exchange](boost::system::error_code cancelled) {
        if (!cancelled) Answer(call, request, usage, tokens, exchange);
      });
}

void OpenAiHttp::Answer(RequestPath call, const PromptRequest& request, bool usage,
                        const std::vector<TokenId>& tokens,
                        const std::shared_ptr<HttpExchange>& exchange) {
  EngineRanks* ranks;
  {
    MutexLock lock(&mutex_);
    ranks = engine_;
  }
  const absl::StatusOr<EngineService*> engine = RankFor(exchange->request(), ranks);
  if (!engine.ok()) return exchange->Answer(ErrorAnswer(engine.status()));
  const size_t words =
      std::min(request.output_tokens_max == 0 ? kWords : request.output_tokens_max, kWordsMax);
  const std::optional<uint32_t> cached = (*engine)->Serve(
      tokens, request.cache_salt.empty() ? options_.cache_salt : request.cache_salt,
      static_cast<uint32_t>(words));
  if (!cached.has_value()) {
    return exchange->Answer(
        ErrorAnswer(absl::InvalidArgumentError("the prompt is longer than the cache")));
  }
  const Json counted = UsageOf(tokens.size(), *cached, words);
  std::string text;
  std::vector<std::string> events;
  for (size_t i = 0; i < words; ++i) {
    const std::string word = (i == 0 ? "w" : " w") + std::to_string(i);
    text += word;
    const char* finish = i + 1 == words ? "length" : nullptr;
    if (request.stream)
      events.push_back("data: " + Dump(Piece(call, request.model, true, word, finish)) + "\n\n");
  }
  if (!request.stream) {
    Json answer = Piece(call, request.model, false, text, "length");
    answer["usage"] = counted;
    return exchange->Answer({.body = Dump(answer)});
  }
  if (usage) {
    Json last = Piece(call, request.model, true, "", nullptr);
    last["choices"] = Json::array();
    last["usage"] = counted;
    events.push_back("data: " + Dump(last) + "\n\n");
  }
  events.push_back("data: [DONE]\n\n");
  std::make_shared<Stream>(exchange, std::move(events), options_.token_time)->Start();
}

void OpenAiHttp::OnEmbeddings(const std::shared_ptr<HttpExchange>& exchange) {
  const MakeTokens tokenize = [this](const std::string& text) {
    absl::StatusOr<std::vector<TokenId>> made = absl::InternalError("no tokens");
    tokenizer_->Tokenize(options_.model, TextPrompt{.text = text}, std::chrono::seconds(60),
                         [&made](absl::StatusOr<PromptTokens> tokens) {
                           if (!tokens.ok()) {
                             made = tokens.status();
                           } else {
                             made = std::move(tokens->tokens);
                           }
                         });
    return made;
  };
  absl::StatusOr<std::string> answer =
      MockEmbeddings(exchange->TakeBody(), options_.model, tokenize);
  if (!answer.ok()) return exchange->Answer(ErrorAnswer(answer.status()));
  exchange->Answer({.body = *std::move(answer)});
}

void OpenAiHttp::OnTokenize(const std::shared_ptr<HttpExchange>& exchange) {
  const std::string body = exchange->TakeBody();
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  const bool chat = json.is_object() && json.contains("messages");
  absl::StatusOr<PromptRequest> request =
      ReadPromptRequest(chat ? RequestPath::kChat : RequestPath::kCompletions,
                        std::make_shared<const std::string>(body));
  if (request.ok() && std::holds_alternative<std::vector<TokenId>>(request->prompt))
    request = absl::InvalidArgumentError("prompt is not text");
  if (!request.ok()) return exchange->Answer(ErrorAnswer(request.status()));
  const Prompt prompt = std::get<BodyPrompt>(std::move(request->prompt));
  tokenizer_->Tokenize(options_.model, prompt, std::chrono::seconds(60),
                       [&](absl::StatusOr<PromptTokens> tokens) {
                         if (!tokens.ok()) return exchange->Answer(ErrorAnswer(tokens.status()));
                         exchange->Answer({.body = Dump({{"count", tokens->tokens.size()},
                                                         {"max_model_len", kBodyBytesMax},
                                                         {"tokens", tokens->tokens}})});
                       });
}

}  // namespace kvatlas
