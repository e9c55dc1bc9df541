#include "frontend/prompt/remote_tokenizer.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <limits>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "frontend/prompt/meet_engines.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
using Json = nlohmann::ordered_json;

// Of an engine's own words about a refusal.
constexpr size_t kWordsMax = 500;

// Of a prompt's deadline, what an engine has to itself.
constexpr int kAnotherAfterPart = 4;

// The array of token ids in an answer, whichever of the endpoints gave it; null: none.
const Json* IdsIn(const Json& answer) {
  const Json* of = &answer;
  if (of->is_array() && !of->empty()) of = &of->front();
  if (!of->is_object()) return nullptr;
  for (const char* name : {"token_ids", "tokens"}) {
    if (const auto ids = of->find(name); ids != of->end() && ids->is_array()) return &*ids;
  }
  return nullptr;
}

// {"error": {"message": …}}, {"message": …}, {"detail": …}, or the text itself.
std::string WordsOf(std::string_view body) {
  const Json json = Json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  const Json* at = &json;
  if (at->is_object() && at->contains("error")) at = &(*at)["error"];
  for (const char* name : {"message", "detail"}) {
    if (at->is_object() && at->contains(name)) at = &(*at)[name];
  }
  std::string words = at->is_string() ? at->get<std::string>() : std::string(body);
  if (words.size() > kWordsMax) words.resize(kWordsMax);
  return words;
}

}  // namespace

std::string RemoteTarget(RemoteWay way, const Prompt& prompt) {
  if (way == RemoteWay::kTokenize) return "/tokenize";
  return std::holds_alternative<ChatPrompt>(prompt) ? "/v1/chat/completions/render"
                                                    : "/v1/completions/render";
}

std::string RemoteBody(RemoteWay way, const std::string& model, const Prompt& prompt) {
  Json body;
  body["model"] = model;
  if (const auto* text = std::get_if<TextPrompt>(&prompt)) {
    body["prompt"] = text->text;
    if (text->add_special_tokens.has_value())
      body["add_special_tokens"] = *text->add_special_tokens;
    if (way == RemoteWay::kRender) body["max_tokens"] = 1;
  } else {
    const auto& chat = std::get<ChatPrompt>(prompt);
    body["messages"] = chat.messages;
    body["add_generation_prompt"] = chat.add_generation_prompt;
    body["continue_final_message"] = chat.continue_final_message;
    if (chat.add_special_tokens.has_value()) body["add_special_tokens"] = *chat.add_special_tokens;
    if (chat.chat_template.has_value()) body["chat_template"] = *chat.chat_template;
    if (chat.template_kwargs.is_object() && !chat.template_kwargs.empty())
      body["chat_template_kwargs"] = chat.template_kwargs;
    if (chat.tools.is_array()) body["tools"] = chat.tools;
  }
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<std::vector<TokenId>> ReadRemoteAnswer(int status, std::string_view body) {
  if (status == 400 || status == 413 || status == 422)
    return absl::InvalidArgumentError("the engine refuses the prompt: " + WordsOf(body));
  if (status == 404) return absl::NotFoundError("the engine does not know it: " + WordsOf(body));
  if (status != 200) return absl::UnavailableError("it answered " + std::to_string(status));
  const Json json = Json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  const Json* const ids = IdsIn(json);
  if (ids == nullptr) return absl::UnavailableError("its answer has no tokens");
  std::vector<TokenId> tokens;
  tokens.reserve(ids->size());
  for (const Json& id : *ids) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<uint32_t>::max())
      return absl::UnavailableError("its answer has tokens that are none");
    tokens.push_back(static_cast<TokenId>(id.get<uint32_t>()));
  }
  return tokens;
}

class RemoteTokenizer::Impl {
 public:
  explicit Impl(RemoteTokenizerOptions options)
      : options_(std::move(options)), pool_(options_.engine), thread_([this] { io_.run(); }) {}

  ~Impl() {
    asio::post(io_, [this] {
      stopping_ = true;
      const std::set<std::shared_ptr<Question>> questions = questions_;
      for (const auto& question : questions) End(question, absl::UnavailableError("stopping"));
    });
    work_.reset();
    thread_.join();
  }

  void Ask(const std::string& model, const Prompt& prompt, Duration deadline, Callback callback) {
    auto question = std::make_shared<Question>(&io_);
    question->target = RemoteTarget(options_.way, prompt);
    question->body = std::make_shared<const std::string>(RemoteBody(options_.way, model, prompt));
    question->callback = std::move(callback);
    if (std::optional<PromptTokens> known = Find(*question)) {
      return question->callback(*std::move(known));
    }
    question->urls = InOrder(options_.urls(model));
    if (question->urls.empty()) {
      return question->callback(NoEngineMet(model));
    }
    asio::post(io_, [this, question, deadline] { Begin(question, deadline); });
  }

  uint64_t hits() const {
    MutexLock lock(&mutex_);
    return hits_;
  }

 private:
  // One engine that is asked.
  struct Try {
    std::string url;
    std::shared_ptr<EngineCall> call;
    int status = 0;
    std::string answer;
  };
  // One prompt on its way to engines and back; of the thread, but for its making.
  struct Question {
    explicit Question(asio::io_context* io) : timer(*io), another(*io) {}
    std::string target;
    std::shared_ptr<const std::string> body;
    std::vector<std::string> urls;
    Callback callback;
    asio::steady_timer timer;
    asio::steady_timer another;  // is asked beside one that is late
    Duration another_after{0};
    std::vector<std::shared_ptr<Try>> under_way;
    size_t tried = 0;
    absl::Status why;
  };
  struct Known {
    std::string key;
    PromptTokens tokens;
    size_t bytes() const { return 2 * key.size() + tokens.tokens.size() * sizeof(TokenId) + 256; }
  };

  // Another one first each time, and those that were late or failed last.
  std::vector<std::string> InOrder(std::vector<std::string> urls) {
    if (urls.size() < 2) return urls;
    MutexLock lock(&mutex_);
    std::rotate(urls.begin(), urls.begin() + static_cast<ptrdiff_t>(turn_++ % urls.size()),
                urls.end());
    std::erase_if(late_,
                  [now = Clock::Real().Now()](const auto& one) { return one.second <= now; });
    std::vector<std::string> ordered, late;
    for (std::string& url : urls) (late_.contains(url) ? late : ordered).push_back(std::move(url));
    ordered.insert(ordered.end(), late.begin(), late.end());
    return ordered;
  }

  void NoteLate(const std::string& url) {
    MutexLock lock(&mutex_);
    late_[url] = Clock::Real().Now() + kEngineLateFor;
  }

  void Begin(const std::shared_ptr<Question>& question, Duration deadline) {
    if (stopping_) return question->callback(absl::UnavailableError("stopping"));
    if (questions_.size() >= options_.calls_max)
      return question->callback(absl::ResourceExhaustedError("too many prompts are with engines"));
    questions_.insert(question);
    question->timer.expires_after(deadline);
    question->timer.async_wait([this, question](boost::system::error_code cancelled) {
      if (cancelled) return;
      NoteAllLate(*question);
      End(question, absl::DeadlineExceededError("the engine's tokens are late"));
    });
    question->another_after = deadline / kAnotherAfterPart;
    TryNext(question);
  }

  void NoteAllLate(const Question& question) {
    for (const std::shared_ptr<Try>& one : question.under_way) NoteLate(one->url);
  }

  bool MayTry(const Question& question) const {
    return question.tried < std::min(options_.tries, question.urls.size());
  }

  void AskAnotherLater(const std::shared_ptr<Question>& question) {
    if (!MayTry(*question)) return;
    question->another.expires_after(question->another_after);
    question->another.async_wait([this, question](boost::system::error_code cancelled) {
      if (cancelled || !questions_.contains(question) || !MayTry(*question)) return;
      NoteAllLate(*question);
      TryNext(question);
    });
  }

  void TryNext(const std::shared_ptr<Question>& question) {
    if (!MayTry(*question)) {
      if (question->under_way.empty()) End(question, question->why);
      return;
    }
    const std::string& text = question->urls[question->tried++];
    absl::StatusOr<EngineUrl> url = EngineUrl::Parse(text);
    if (!url.ok()) {
      question->why = url.status();
      return TryNext(question);
    }
    HttpHeaders headers = {{"content-type", "application/json"}};
    options_.engine.reach.Authorize(*url, &headers);
    const auto one = std::make_shared<Try>();
    one->url = text;
    one->call = std::make_shared<EngineCall>(
        &io_, &pool_,
        EngineCallRequest{.url = *std::move(url),
                          .method = "POST",
                          .target = question->target,
                          .headers = std::move(headers),
                          .body = question->body},
        EngineCallbacks{.on_head =
                            [one](const EngineHead& head) {
                              one->status = head.status;
                              one->call->Resume();
                            },
                        .on_piece = [this, question, one](
                                        std::string_view piece) { OnPiece(question, *one, piece); },
                        .on_end = [this, question, one] { OnAnswer(question, one); },
                        .on_failed =
                            [this, question, one](const absl::Status& why, bool) {
                              OnFailed(question, one, absl::UnavailableError(why.message()));
                            }});
    question->under_way.push_back(one);
    AskAnotherLater(question);
    one->call->Start();
  }

  void OnPiece(const std::shared_ptr<Question>& question, Try& one, std::string_view piece) {
    if (one.answer.size() + piece.size() > options_.answer_bytes_max)
      return End(question, absl::UnavailableError("the engine's answer is too long"));
    one.answer += piece;
    one.call->Resume();
  }

  void OnFailed(const std::shared_ptr<Question>& question, const std::shared_ptr<Try>& one,
                absl::Status why) {
    NoteLate(one->url);
    std::erase(question->under_way, one);
    question->why = std::move(why);
    if (question->under_way.empty()) TryNext(question);
  }

  void OnAnswer(const std::shared_ptr<Question>& question, const std::shared_ptr<Try>& one) {
    absl::StatusOr<std::vector<TokenId>> tokens = ReadRemoteAnswer(one->status, one->answer);
    if (absl::IsUnavailable(tokens.status())) return OnFailed(question, one, tokens.status());
    if (!tokens.ok()) return End(question, tokens.status());
    PromptTokens answer{.tokens = *std::move(tokens), .source = one->url + question->target};
    Remember(*question, answer);
    End(question, std::move(answer));
  }

  void End(const std::shared_ptr<Question>& question, absl::StatusOr<PromptTokens> answer) {
    if (questions_.erase(question) == 0) return;
    question->timer.cancel();
    question->another.cancel();
    for (const std::shared_ptr<Try>& one : std::exchange(question->under_way, {}))
      std::exchange(one->call, nullptr)->Cancel();
    std::exchange(question->callback, nullptr)(std::move(answer));
  }

  static std::string KeyOf(const Question& question) { return question.target + *question.body; }

  std::optional<PromptTokens> Find(const Question& question) {
    MutexLock lock(&mutex_);
    const auto found = known_.find(KeyOf(question));
    if (found == known_.end()) return std::nullopt;
    ++hits_;
    latest_.splice(latest_.begin(), latest_, found->second);
    PromptTokens tokens = found->second->tokens;
    tokens.reused = tokens.tokens.size();
    return tokens;
  }

  void Remember(const Question& question, const PromptTokens& tokens) {
    MutexLock lock(&mutex_);
    Known known{.key = KeyOf(question), .tokens = tokens};
    if (known.bytes() > options_.cache_bytes || known_.contains(known.key)) return;
    bytes_ += known.bytes();
    latest_.push_front(std::move(known));
    known_[latest_.front().key] = latest_.begin();
    while (bytes_ > options_.cache_bytes) {
      bytes_ -= latest_.back().bytes();
      known_.erase(latest_.back().key);
      latest_.pop_back();
    }
  }

  const RemoteTokenizerOptions options_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  EngineConnections pool_;
  std::set<std::shared_ptr<Question>> questions_;  // under way; of the thread
  bool stopping_ = false;                          // of the thread

  mutable Mutex mutex_;
  std::list<Known> latest_ ABSL_GUARDED_BY(mutex_);  // what was asked for last comes first
  absl::flat_hash_map<std::string, std::list<Known>::iterator> known_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t hits_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t turn_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Time> late_ ABSL_GUARDED_BY(mutex_);  // until when
  std::thread thread_;
};

RemoteTokenizer::RemoteTokenizer(RemoteTokenizerOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
RemoteTokenizer::~RemoteTokenizer() = default;

void RemoteTokenizer::Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                               Callback callback) {
  impl_->Ask(model, prompt, deadline, std::move(callback));
}

uint64_t RemoteTokenizer::cache_hits() const { return impl_->hits(); }

}  // namespace kvatlas
