// One object, one thread (`io_`), two kinds of work: questions of prompts to engines, and looks at
// what engines are. `Ask` runs in the caller's thread up to `asio::post`; everything from `Begin`
// on runs in the thread of `io_`, which also calls back.
//
// Locks: `mutex_` guards what callers and the thread share (cache, engines, order of engines). It
// is never held over a callback or a call to an engine. What is marked "of the thread" needs no
// lock.

#include "frontend/prompt/remote_tokenizer.h"

#include <algorithm>
#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <iterator>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "frontend/engine_client/engine_probe.h"
#include "frontend/engine_client/engines_question.h"
#include "frontend/prompt/discover_engines.h"
#include "frontend/prompt/engine_question.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;

// An engine has a fourth of the prompt's deadline to itself; then another one is asked beside it.
constexpr int kAnotherAfterPart = 4;

// Where an engine says what it is, in the order in which `LookAt` asks. Each path is asked only if
// those before it did not say enough.
constexpr std::array kLookAt = {"/metrics", "/server_info", "/get_server_info"};
constexpr Duration kLookTimeout = std::chrono::seconds(2);

// Appended to a refusal of /tokenize when no engine has a render endpoint.
constexpr char kRenderRemedy[] =
    "; vLLM's render endpoints can: start the engine with --enable-scale-out, or `vllm launch "
    "render` beside it and name that by --tokenizer_url";

std::optional<EngineKind> KindOf(const EngineFacts& facts) {
  if (facts.kind == kVllm) return EngineKind::kVllm;
  if (facts.kind == kSglang) return EngineKind::kSglang;
  return std::nullopt;
}

// The kind of engine by whose rules a prompt is to be read. A text without a body counts as vLLM's.
EngineKind KindOf(const Prompt& prompt) {
  const auto* const body = std::get_if<BodyPrompt>(&prompt);
  const bool sglang = body != nullptr && body->convention.engine == EngineKind::kSglang;
  return sglang ? EngineKind::kSglang : EngineKind::kVllm;
}

}  // namespace

class RemoteTokenizer::Impl {
 public:
  explicit Impl(RemoteTokenizerOptions options)
      : options_(std::move(options)), pool_(options_.engine), thread_([this] { io_.run(); }) {}

  // Ends what is under way in the thread itself, so that no callback runs beside it, and joins.
  // `stopping_` stops looks and questions that were posted but have not begun. Both containers are
  // copied, since ending an entry erases it.
  ~Impl() {
    asio::post(io_, [this] {
      stopping_ = true;
      const std::set<std::shared_ptr<Question>> questions = questions_;
      for (const auto& question : questions) End(question, absl::UnavailableError("stopping"));
      for (const auto& [url, end] : std::map(looks_)) end();
    });
    work_.reset();
    thread_.join();
  }

  // 1. Drops engines of another kind than the prompt's, where some of its own kind are known
  //    (`OfOneKind`).
  // 2. Looks at the engines again, if the last look is old (`Look`); the question does not wait for
  //    it.
  // 3. Writes the question (`Formulate`).
  // 4. Answers from the cache (`Find`), in the caller's thread.
  // 5. Orders the engines (`InOrder`) and continues in the thread (`Begin`).
  void Ask(const std::string& model, const Prompt& prompt, Duration deadline, Callback callback) {
    std::vector<std::string> urls = options_.urls(model);
    if (urls.empty()) return callback(NoEngineMet(model));
    const EngineKind kind = OfOneKind(KindOf(prompt), &urls);
    for (const std::string& url : urls) Look(url);
    auto question = std::make_shared<Question>(&io_);
    question->callback = std::move(callback);
    question->kind = kind;
    if (absl::Status bad = Formulate(kind, model, prompt, question.get()); !bad.ok())
      return question->callback(std::move(bad));
    if (std::optional<PromptTokens> known = Find(*question))
      return question->callback(*std::move(known));
    question->urls = InOrder(std::move(urls));
    asio::post(io_, [this, question, deadline] { Begin(question, deadline); });
  }

  void Forget(const std::string& url) {
    MutexLock lock(&mutex_);
    Restarted(&SelfOf(url));
  }

  uint64_t hits() const {
    MutexLock lock(&mutex_);
    return hits_;
  }

 private:
  // One engine that is asked for one prompt. `call` is null once the question has ended: the call
  // and its callbacks hold each other, and `End` breaks that ring.
  struct Try {
    std::string url;
    std::shared_ptr<EngineCall> call;
    int status = 0;
    std::string answer;
  };
  // One prompt on its way to engines and back. `Ask` makes it; then it is the thread's alone. It
  // lives while it is in `questions_` or a callback holds it: a callback that finds it gone from
  // `questions_` does nothing.
  struct Question {
    explicit Question(asio::io_context* io) : timer(*io), another(*io) {}
    EngineQuestion what;
    EngineKind kind = EngineKind::kVllm;      // of `urls`
    std::shared_ptr<const std::string> body;  // of `what`
    bool renders = false;                     // asked of a render endpoint, not of /tokenize
    absl::Status lacks;                       // why /tokenize cannot express it; set with `renders`
    std::vector<std::string> urls;            // of one kind of engine, in the order to ask them
    Callback callback;
    asio::steady_timer timer;    // the deadline of the whole question
    asio::steady_timer another;  // asks the next engine beside one that is late
    Duration another_after{0};
    std::vector<std::shared_ptr<Try>> under_way;  // asked and without an answer
    size_t tried = 0;                             // of `urls`, those before it were asked
    absl::Status why;                             // of the last engine that failed
  };
  // An answer that is kept. It is valid while its engine has the same start, for `answers_for` at
  // most. Its engine is always in `selves_`: `SelfOf` clears both together.
  struct Known {
    std::string key;  // `KeyOf`
    PromptTokens tokens;
    std::string url;     // of the engine that answered
    uint64_t start = 0;  // its `Self::starts` then
    Time until{0};
    // The key is stored twice, in the list and as the key of `known_`; 256 stands for the nodes.
    size_t bytes() const { return 2 * key.size() + tokens.tokens.size() * sizeof(TokenId) + 256; }
  };
  // The state of an engine, by its url. A restart is seen by another start, or by a counter of
  // prompt tokens that went back, or by another kind of engine at the same url.
  struct Self {
    std::optional<EngineKind> kind;  // nothing: not known
    std::string start;               // in its own words: a time, as text
    uint64_t prompt_tokens = 0;      // computed since then, by its metrics
    uint64_t starts = 0;             // restarts and failures seen; answers of an older one are void
    bool lacks_render = false;       // it answered that it has no render endpoint
    bool looking = false;            // a look is under way
    Time look_at{0};                 // no look before this
  };

  // ---- What engines are ----

  // The entry of an engine, made if it is new. A table that is full is cleared, with all answers
  // that depend on it: urls come from the fleet, and more than `kEnginesKnownMax` are not expected.
  // References into `selves_` and `known_` do not survive a call with a new url.
  Self& SelfOf(const std::string& url) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (selves_.size() >= kEnginesKnownMax && !selves_.contains(url)) {
      selves_.clear();
      known_.clear();
      latest_.clear();
      bytes_ = 0;
    }
    return selves_[url];
  }

  // Forgets what the earlier process said. `kind` stays until the next look: the new process is
  // most likely of the same kind.
  static void Restarted(Self* self) {
    ++self->starts;
    self->start.clear();
    self->prompt_tokens = 0;
    self->lacks_render = false;
  }

  // Which kind of engine is asked. Engines that are known to be of another kind are dropped. Where
  // all are of another kind, the kind of the first one is asked instead: the caller asked for
  // tokens of this model, and no engine makes the wanted ones. Engines whose kind is not known are
  // kept.
  EngineKind OfOneKind(EngineKind kind, std::vector<std::string>* urls) {
    MutexLock lock(&mutex_);
    const auto is_other = [&](const std::string& url) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const std::optional<EngineKind> known = SelfOf(url).kind;
      return known.has_value() && *known != kind;
    };
    if (std::all_of(urls->begin(), urls->end(), is_other)) {
      kind = *SelfOf(urls->front()).kind;
    }
    std::erase_if(*urls, is_other);
    return kind;
  }

  // Asks an engine what it is, once in `look_every`. Called for each prompt, so that only engines
  // in use are looked at.
  void Look(const std::string& url) {
    if (options_.look_every <= Duration(0)) return;
    absl::StatusOr<EngineUrl> parsed = EngineUrl::Parse(url);
    if (!parsed.ok()) return;
    {
      MutexLock lock(&mutex_);
      Self& self = SelfOf(url);
      const Time now = Clock::Real().Now();
      if (self.looking || self.look_at > now) return;
      self.looking = true;
      self.look_at = now + options_.look_every;
    }
    asio::post(io_, [this, url, parsed = *std::move(parsed)] { LookAt(url, parsed, 0, {}); });
  }

  // Asks one path of `kLookAt` after another until the kind and the start of the engine are known.
  // vLLM says its start in its metrics, SGLang in its server info, which older versions call
  // /get_server_info. `facts` collects what the paths say.
  void LookAt(const std::string& url, const EngineUrl& parsed, size_t path, EngineFacts facts) {
    if (stopping_) return;
    looks_[url] = AskEngines(&io_, &pool_, {parsed}, kLookAt[path], {}, kLookTimeout,
                             [this, url, parsed, path, facts = std::move(facts)](
                                 const std::vector<std::optional<std::string>>& bodies) mutable {
                               const std::string said = bodies.front().value_or("");
                               path == 0 ? ReadMetrics(said, &facts) : ReadServerInfo(said, &facts);
                               const bool over =
                                   facts.kind == kVllm || (path > 0 && !facts.start.empty());
                               if (!over && path + 1 < kLookAt.size())
                                 return LookAt(url, parsed, path + 1, std::move(facts));
                               looks_.erase(url);
                               TakeFacts(url, facts);
                             });
  }

  // An engine that said nothing keeps what was known of it: it may be away for a moment.
  void TakeFacts(const std::string& url, const EngineFacts& facts) {
    MutexLock lock(&mutex_);
    Self& self = SelfOf(url);
    self.looking = false;
    if (facts.kind.empty()) return;
    const bool restarted = facts.start != self.start || facts.prompt_tokens < self.prompt_tokens ||
                           self.kind != KindOf(facts);
    if (restarted) Restarted(&self);
    self.kind = KindOf(facts);
    self.start = facts.start;
    self.prompt_tokens = facts.prompt_tokens;
  }

  // ---- A prompt ----

  // Writes the question: /tokenize where that can express the prompt, else a render endpoint. With
  // `RemoteWay::kRender` always the latter. UNIMPLEMENTED names what /tokenize lacks rather than
  // what the render endpoint lacks, as the former is the reason that the user can act on. The body
  // moves into `question->body`, which all calls share.
  absl::Status Formulate(EngineKind kind, const std::string& model, const Prompt& prompt,
                         Question* question) {
    absl::StatusOr<EngineQuestion> what =
        options_.way == RemoteWay::kTokenize
            ? TokenizeQuestion(kind, model, prompt)
            : absl::StatusOr<EngineQuestion>(absl::UnimplementedError("it was not asked"));
    if (absl::IsUnimplemented(what.status())) {
      question->renders = true;
      question->lacks = what.status();
      what = RenderQuestion(kind, model, prompt);
      if (absl::IsUnimplemented(what.status()) && options_.way == RemoteWay::kTokenize)
        return question->lacks;
    }
    if (!what.ok()) return what.status();
    question->what = *std::move(what);
    question->body = std::make_shared<const std::string>(std::move(question->what.body));
    return absl::OkStatus();
  }

  // The error of an engine without a render endpoint. NOT_FOUND lets the caller try its next way;
  // UNIMPLEMENTED tells what to start.
  absl::Status LacksRender(const Question& question, const std::string& url) const {
    if (options_.way == RemoteWay::kRender)
      return absl::NotFoundError(url + " has no " + question.what.target);
    return absl::UnimplementedError(std::string(question.lacks.message()) + kRenderRemedy);
  }

  // Rotates the engines by one for each question, which spreads the load, and moves those that were
  // late or failed in the last `kEngineLateFor` to the end. They stay in the list: they may be the
  // only ones.
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

  // In the thread. From here on the question ends in `End`, exactly once: by an answer, by the last
  // engine's failure, by the deadline, or by the destructor.
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

  // Engines that are under way at the deadline, or when the next one is asked, come last for the
  // following questions. They may still answer this one.
  void NoteAllLate(const Question& question) {
    for (const std::shared_ptr<Try>& one : question.under_way) NoteLate(one->url);
  }

  // At most `tries` engines are asked for one prompt, as each of them does the whole work.
  bool MayTry(const Question& question) const {
    return question.tried < std::min(options_.tries, question.urls.size());
  }

  // A slow engine is not given up: the next one is asked beside it and the first answer counts.
  void AskAnotherLater(const std::shared_ptr<Question>& question) {
    if (!MayTry(*question)) return;
    question->another.expires_after(question->another_after);
    question->another.async_wait([this, question](boost::system::error_code cancelled) {
      if (cancelled || !questions_.contains(question) || !MayTry(*question)) return;
      NoteAllLate(*question);
      TryNext(question);
    });
  }

  // Asks the next engine of the list. Engines that are known to lack the endpoint, and urls that do
  // not parse, cost no call. Ends the question with the last reason when no engine is left and none
  // is under way; otherwise an earlier one may still answer.
  void TryNext(const std::shared_ptr<Question>& question) {
    if (!MayTry(*question)) {
      if (question->under_way.empty()) End(question, question->why);
      return;
    }
    const std::string& text = question->urls[question->tried++];
    bool lacks_render = false;
    if (question->renders) {
      MutexLock lock(&mutex_);
      lacks_render = SelfOf(text).lacks_render;
    }
    if (lacks_render) {
      // It is not counted as tried, as it was not asked.
      question->urls.erase(question->urls.begin() + static_cast<ptrdiff_t>(--question->tried));
      question->why = LacksRender(*question, text);
      return TryNext(question);
    }
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
                          .target = question->what.target,
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

  // The body comes in pieces, and the next one only after `Resume`.
  void OnPiece(const std::shared_ptr<Question>& question, Try& one, std::string_view piece) {
    if (one.answer.size() + piece.size() > options_.answer_bytes_max)
      return End(question, absl::UnavailableError("the engine's answer is too long"));
    one.answer += piece;
    one.call->Resume();
  }

  // The engine is away, late or broken: it comes last for a while, and its answers and its lack of
  // endpoints are forgotten, since it may come back as another version.
  void OnFailed(const std::shared_ptr<Question>& question, const std::shared_ptr<Try>& one,
                absl::Status why) {
    NoteLate(one->url);
    Forget(one->url);
    GoOn(question, one, std::move(why));
  }

  // Continues after an engine that did not answer the question. The next one is asked only if no
  // other is under way: `another` asks it beside those that are.
  void GoOn(const std::shared_ptr<Question>& question, const std::shared_ptr<Try>& one,
            absl::Status why) {
    std::erase(question->under_way, one);
    question->why = std::move(why);
    if (question->under_way.empty()) TryNext(question);
  }

  // 1. No such endpoint: remembers that, and asks the next engine.
  // 2. Not readable as tokens (UNAVAILABLE): counts as a failure.
  // 3. A refusal is the engine's word: it ends the question, other engines are not asked.
  // 4. Tokens: kept for equal questions, and given to the caller.
  void OnAnswer(const std::shared_ptr<Question>& question, const std::shared_ptr<Try>& one) {
    if (question->renders && LacksEndpoint(one->status, one->answer)) {
      {
        MutexLock lock(&mutex_);
        SelfOf(one->url).lacks_render = true;
      }
      return GoOn(question, one, LacksRender(*question, one->url));
    }
    absl::StatusOr<PromptTokens> answer =
        ReadEngineAnswer(question->what, one->status, one->answer);
    if (absl::IsUnavailable(answer.status())) return OnFailed(question, one, answer.status());
    if (!answer.ok()) return End(question, answer.status());
    answer->source = one->url + question->what.target;
    Remember(*question, one->url, *answer);
    End(question, *std::move(answer));
  }

  // Calls back and cuts the calls that are still under way. A second call for the same question
  // does nothing.
  void End(const std::shared_ptr<Question>& question, absl::StatusOr<PromptTokens> answer) {
    if (questions_.erase(question) == 0) return;
    question->timer.cancel();
    question->another.cancel();
    for (const std::shared_ptr<Try>& one : std::exchange(question->under_way, {}))
      std::exchange(one->call, nullptr)->Cancel();
    std::exchange(question->callback, nullptr)(std::move(answer));
  }

  // The kind of engine, which may read an equal body otherwise, the path, and the whole body, which
  // names the model.
  static std::string KeyOf(const Question& question) {
    return static_cast<char>(question.kind) + question.what.target + *question.body;
  }

  // An answer of an earlier start of its engine, or one that is too old, counts as none; `Remember`
  // replaces it.
  std::optional<PromptTokens> Find(const Question& question) {
    MutexLock lock(&mutex_);
    const auto found = known_.find(KeyOf(question));
    if (found == known_.end()) return std::nullopt;
    const Known& known = *found->second;
    if (known.start != SelfOf(known.url).starts || known.until < Clock::Real().Now())
      return std::nullopt;
    ++hits_;
    latest_.splice(latest_.begin(), latest_, found->second);
    PromptTokens tokens = known.tokens;
    tokens.reused = tokens.tokens.size();
    return tokens;
  }

  // An answer that is larger than the cache is not kept. The answers used longest ago go first.
  void Remember(const Question& question, const std::string& url, const PromptTokens& tokens) {
    MutexLock lock(&mutex_);
    Known known{.key = KeyOf(question),
                .tokens = tokens,
                .url = url,
                .start = SelfOf(url).starts,
                .until = Clock::Real().Now() + options_.answers_for};
    if (known.bytes() > options_.cache_bytes) return;
    if (const auto earlier = known_.find(known.key); earlier != known_.end()) Drop(earlier->second);
    bytes_ += known.bytes();
    latest_.push_front(std::move(known));
    known_[latest_.front().key] = latest_.begin();
    while (bytes_ > options_.cache_bytes) Drop(std::prev(latest_.end()));
  }

  void Drop(std::list<Known>::iterator known) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    bytes_ -= known->bytes();
    known_.erase(known->key);
    latest_.erase(known);
  }

  const RemoteTokenizerOptions options_;
  asio::io_context io_{1};
  // Opens the loop's descriptors now: Asio does so with its first timer or socket, and throws where
  // there are none left.
  const asio::steady_timer opens_{io_};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  EngineConnections pool_;
  std::set<std::shared_ptr<Question>> questions_;       // under way; of the thread
  std::map<std::string, std::function<void()>> looks_;  // by url: ends a look; of the thread
  bool stopping_ = false;                               // of the thread

  mutable Mutex mutex_;
  std::list<Known> latest_ ABSL_GUARDED_BY(mutex_);  // the latest used first
  absl::flat_hash_map<std::string, std::list<Known>::iterator> known_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t hits_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t turn_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Self> selves_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Time> late_ ABSL_GUARDED_BY(mutex_);  // by url: comes last until then
  std::thread thread_;  // the last member: it starts when all others are there
};

RemoteTokenizer::RemoteTokenizer(RemoteTokenizerOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
RemoteTokenizer::~RemoteTokenizer() = default;

void RemoteTokenizer::Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                               Callback callback) {
  impl_->Ask(model, prompt, deadline, std::move(callback));
}

void RemoteTokenizer::Forget(const std::string& url) { impl_->Forget(url); }

uint64_t RemoteTokenizer::cache_hits() const { return impl_->hits(); }

}  // namespace kvatlas
