// Callers (`Find`, `Meet`) read an immutable table, or leave a closure and wake the own thread. The
// thread (`Run`) does all questions to peers, leaves and engines, one look at a time, and publishes
// the next table.
//
// Locks: `mutex_` guards what both sides share. It is released for looks and callbacks, and never
// held over a question. `conventions_due_` is atomic so that most requests need no lock for it.

#include "frontend/prompt/engine_names.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "frontend/engine_client/engine_probe.h"
#include "frontend/engine_client/engines_question.h"
#include "frontend/prompt/openai/json_depth.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;

// A hit may rely on lists of so many intervals (`every`): a look that fails or is slow does not
// make names unknown.
constexpr int kLooksFresh = 3;
// Entries taken of the frontend's engines. More than `kNamingEnginesMax`, as several workers may
// have one engine.
constexpr size_t kEnginesMetMax = 16384;

// Every wait of a call is within the time that all engines together have.
EngineCallOptions Within(EngineCallOptions call, Duration timeout) {
  call.connect_timeout = std::min(call.connect_timeout, timeout);
  call.head_timeout = std::min(call.head_timeout, timeout);
  call.idle_timeout = std::min(call.idle_timeout, timeout);
  call.idle_per_engine = 0;  // nothing sweeps between looks
  return call;
}

// A worker whose engine is at an address. Several may be there: ranks of one engine, or one engine
// in several tenants.
struct Served {
  std::optional<std::string> tenant;  // of its domain; nothing: no leaf has named it
  std::string model;
  std::string worker;
  auto operator<=>(const Served&) const = default;
};

// The name of the model that the engine itself serves. `ReadModels` puts models in front of
// adapters; the parent covers a list that has adapters alone.
const std::string& OwnName(const std::vector<ServedModel>& models) {
  return models.front().parent.empty() ? models.front().id : models.front().parent;
}

// A route that chooses no worker: the frontend learns workers and engines of the domain from the
// answers of leaves.
RouteInput ToLearn(const Domain& domain) {
  return {.domain = domain, .unknown_prompt = true, .only_learns = true};
}

}  // namespace

class EngineNames::Impl : public std::enable_shared_from_this<EngineNames::Impl> {
 public:
  Impl(EngineNamesOptions options, Frontend* frontend, const Clock* clock)
      : options_(std::move(options)),
        frontend_(frontend),
        clock_(clock),
        pool_(Within(options_.call, options_.timeout)),
        given_(std::make_shared<const ServedNames>(options_.given)),
        conventions_wanted_(options_.conventions != nullptr) {}

  // Without an interval nothing is asked, and there is no thread.
  void Start() {
    if (options_.every > Duration(0)) thread_ = std::thread([this] { Run(); });
  }

  // Wakes the thread, ends the questions that it waits for, and joins. `Run` then answers what
  // waits. `end_questions_` is the thread's, so it is called through `io_`.
  void Stop() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      wake_.SignalAll();
    }
    asio::post(io_, [this] {
      if (end_questions_ != nullptr) end_questions_();
    });
    if (thread_.joinable()) thread_.join();
  }

  // 1. A given name (--adapters): resolved at once.
  // 2. No name, no looks, or a model that leaves know: the input stays as it is.
  // 3. A name that a fresh table lists, or that a fresh look did not find: the table decides at
  //    once.
  // 4. Too many requests wait: the input stays as it is, and the route tells that the model is
  //    unknown.
  // 5. Otherwise a route that only learns asks the leaves. If they know the model now, the request
  //    goes on; if not, it waits for a look (`Wait`).
  //
  // `waiting_count_` counts a request from step 4 until it is called back, so that `kWaitingMax`
  // bounds the routes of step 5 as well. The closure of that route holds this object.
  bool Find(RouteInput* input, std::function<void()> later) {
    WantConventions();
    const std::string& name = input->domain.model;
    Given given;
    Table table;
    {
      MutexLock lock(&mutex_);
      given = given_;
    }
    if (given->contains(name)) {
      AsServed(*given, input);
      return true;
    }
    if (name.empty() || options_.every <= Duration(0) || frontend_->Knows(input->domain))
      return true;
    {
      MutexLock lock(&mutex_);
      if (stopping_) return true;
      const Time now = clock_->Now();
      const bool listed = NamesFor(*table_, input->domain) != nullptr;
      if (listed) Want(now);
      if (!IsFresh(listed, now)) {
        if (waiting_count_ >= kWaitingMax) return true;
        ++waiting_count_;
      } else {
        table = table_;
      }
    }
    if (table != nullptr) {
      AsListed(*table, input);
      return true;
    }
    frontend_->RouteAsync(ToLearn(input->domain),
                          [self = shared_from_this(), input,
                           later = std::move(later)](const absl::StatusOr<RouteResult>&) mutable {
                            if (!self->frontend_->Knows(input->domain))
                              return self->Wait({.input = input, .later = std::move(later)});
                            self->Over();
                            later();
                          });
    return false;
  }

  // Only a frontend that has met no engine at all waits here: a body without a model needs the
  // names of the fleet's models, whichever they are.
  bool Meet(std::function<void()> later) {
    if (options_.every <= Duration(0) || options_.domains == nullptr ||
        !frontend_->Engines(1).empty())
      return true;
    MutexLock lock(&mutex_);
    if (stopping_ || waiting_count_ >= kWaitingMax) return true;
    ++waiting_count_;
    meeting_.push_back(std::move(later));
    wake_.SignalAll();
    return false;
  }

  void SetGiven(ServedNames given) {
    MutexLock lock(&mutex_);
    given_ = std::make_shared<const ServedNames>(std::move(given));
  }

  ServedNames Known() const {
    MutexLock lock(&mutex_);
    ServedNames known = *given_;
    for (const auto& [tenant, names] : *table_) known.insert(names.begin(), names.end());
    return known;
  }

 private:
  using Given = std::shared_ptr<const ServedNames>;
  // Names by tenant. The entry of no tenant has the names of engines that no leaf has named; they
  // are for all tenants.
  using Listed = std::map<std::optional<std::string>, ServedNames>;
  using Table = std::shared_ptr<const Listed>;
  // A request that waits for a look. The caller keeps `input` untouched until `later`.
  struct Waiting {
    RouteInput* input;
    std::function<void()> later;
  };

  // Whether the last look answers for a name. A name that is listed may rely on any look. A name
  // that is not listed relies on a wide one alone, which asked peers for domains and met their
  // engines first: other looks ask known engines only, and the name may be of an engine that is not
  // known.
  bool IsFresh(bool listed, Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::optional<Time>& at = listed ? looked_at_ : looked_widely_at_;
    const Duration fresh = listed ? kLooksFresh * options_.every : options_.again_after;
    return at.has_value() && now - *at <= fresh;
  }

  // Null: the name is not listed for the domain's tenant.
  static const ServedNames* NamesFor(const Listed& listed, const Domain& domain) {
    for (const std::optional<std::string>& tenant :
         {std::optional<std::string>(domain.tenant), std::optional<std::string>()}) {
      const auto names = listed.find(tenant);
      if (names != listed.end() && names->second.contains(domain.model)) return &names->second;
    }
    return nullptr;
  }
  // Resolves a name of the table; another one stays.
  static void AsListed(const Listed& listed, RouteInput* input) {
    if (const ServedNames* const names = NamesFor(listed, input->domain)) AsServed(*names, input);
  }

  // A name of the table is in use: keeps the looks going for `wanted_for`.
  void Want(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (wanted_until_ <= now) wake_.SignalAll();
    wanted_until_ = now + options_.wanted_for;
  }

  // Wants a look at conventions once the last one is too old. Looks end while no requests come.
  void WantConventions() {
    if (options_.conventions == nullptr || options_.every <= Duration(0)) return;
    const auto is_due = [this, now = clock_->Now().count()] {
      return now >= conventions_due_.load(std::memory_order_relaxed);
    };
    if (!is_due()) return;
    MutexLock lock(&mutex_);
    // Checked again under the lock: a look may have ended meanwhile, or another request may have
    // asked for one.
    if (!is_due() || std::exchange(conventions_wanted_, true)) return;
    wake_.SignalAll();
  }

  // A request that waited for its route alone goes on.
  void Over() {
    MutexLock lock(&mutex_);
    --waiting_count_;
  }

  // Queues a request for the next look. After `Stop` it goes on as it is.
  void Wait(Waiting one) {
    {
      MutexLock lock(&mutex_);
      if (!stopping_) {
        waiting_.push_back(std::move(one));
        wake_.SignalAll();
        return;
      }
      --waiting_count_;
    }
    one.later();
  }

  // ---- The own thread ----

  // The loop of the thread. In this order:
  //
  // 1. Requests without a model (`meeting_`): discovers engines, answers them.
  // 2. Requests that wait for names, or conventions that are due: looks at once.
  // 3. Names of the table in use: looks once in `every`.
  // 4. Otherwise sleeps until it is woken.
  //
  // A look for waiting requests is wide (asks peers first); so is the very first one. Requests that
  // come during a look wait for the next: its peers may have been asked before.
  void Run() {
    MutexLock lock(&mutex_);
    while (!stopping_) {
      const Time now = clock_->Now();
      if (!meeting_.empty()) {
        Met(std::exchange(meeting_, {}));
        continue;
      }
      const bool waited_for = !waiting_.empty();
      const bool now_or_never = waited_for || conventions_wanted_;
      const Duration left =
          looked_at_.has_value() ? *looked_at_ + options_.every - now : Duration(0);
      if (!now_or_never && wanted_until_ <= now) {
        wake_.Wait(&mutex_);
        continue;
      }
      if (!now_or_never && left > Duration(0)) {
        wake_.WaitFor(&mutex_, left);
        continue;
      }
      const std::vector<Waiting> waiting = std::exchange(waiting_, {});
      // The first look has no request behind it: there is time to meet engines.
      const bool meet = waited_for || !looked_at_.has_value();
      mutex_.Unlock();
      const auto table = std::make_shared<const Listed>(Look(meet));
      mutex_.Lock();
      conventions_wanted_ = false;
      table_ = table;
      looked_at_ = clock_->Now();
      if (waited_for) looked_widely_at_ = looked_at_;
      Answer(waiting, table);
    }
    Answer(std::exchange(waiting_, {}), std::make_shared<const Listed>());
    Met(std::exchange(meeting_, {}));
  }

  // Answers requests that name no model. They need known engines, and no list of names. Releases
  // the lock meanwhile.
  void Met(const std::vector<std::function<void()>>& meeting)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    waiting_count_ -= meeting.size();
    const bool stopping = stopping_;
    mutex_.Unlock();
    if (!stopping) DiscoverEngines();
    for (const std::function<void()>& later : meeting) later();
    mutex_.Lock();
  }

  // Resolves the requests that waited by the new table and calls them back, without the lock. At
  // the stop the table is empty, and they go on as they are.
  void Answer(const std::vector<Waiting>& waiting, const Table& table)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    waiting_count_ -= waiting.size();
    for (const Waiting& one : waiting)
      if (NamesFor(*table, one.input->domain) != nullptr) Want(clock_->Now());
    mutex_.Unlock();
    for (const Waiting& one : waiting) {
      // Leaves may have named the model during the look: then the name is the model's own.
      if (!frontend_->Knows(one.input->domain)) AsListed(*table, one.input);
      one.later();
    }
    mutex_.Lock();
  }

  bool stopping() const {
    MutexLock lock(&mutex_);
    return stopping_;
  }

  // One look, in the thread and without the lock.
  //
  // 1. Discovers engines of domains that no route has met (wide looks alone).
  // 2. Collects the engines that the frontend has met, once for each HOST:PORT.
  // 3. Asks them for their models; engines that do not answer keep their last list.
  // 4. Forgets lists of engines that are gone.
  // 5. Publishes how the engines read requests (`LookAtConventions`).
  // 6. Makes the table.
  Listed Look(bool meet) {
    if (meet && options_.domains != nullptr) DiscoverEngines();
    std::map<std::string, std::set<Served>> at;  // by `EngineUrl::authority`
    std::vector<EngineUrl> urls;
    for (const KnownEngine& engine : frontend_->Engines(kEnginesMetMax)) {
      absl::StatusOr<EngineUrl> url = EngineUrl::Parse(engine.url);
      if (!url.ok()) continue;
      const std::string authority = url->authority();
      if (!at.contains(authority)) {
        if (urls.size() == kNamingEnginesMax) continue;
        urls.push_back(*std::move(url));
      }
      const Domain& domain = engine.domain;
      Served served{.tenant = {}, .model = domain.model, .worker = engine.worker.name};
      if (!domain.model.empty()) served.tenant = domain.tenant;
      at[authority].insert(std::move(served));
    }
    AskForModels(urls);
    std::erase_if(listed_, [&](const auto& one) { return !at.contains(one.first); });
    if (options_.conventions != nullptr) LookAtConventions(std::move(urls), at);
    return MakeTable(at);
  }

  // Asks peers for their domains and routes to each one that is new, which makes the frontend meet
  // its engines. Peers are asked once in `every` at most, however many unknown names clients send;
  // if the last answer was empty, after `again_after`. Stops after `kDomainsMetMax` domains or
  // `timeout`; the next look continues with the rest, as domains that were met are known by then.
  void DiscoverEngines() {
    const Time now = clock_->Now();
    const Duration wait =
        peers_told_ ? options_.every : std::min(options_.every, options_.again_after);
    if (met_at_.has_value() && now - *met_at_ < wait) return;
    const std::vector<Domain> told = options_.domains();
    met_at_ = now;
    peers_told_ = !told.empty();
    const std::vector<Domain> known = frontend_->Domains();
    std::set<Domain> met(known.begin(), known.end());
    size_t left = kDomainsMetMax;
    for (const Domain& domain : told) {
      if (domain.model.empty() || !met.insert(domain).second) continue;
      if (left-- == 0 || stopping() || clock_->Now() - now > options_.timeout) return;
      (void)frontend_->Route(ToLearn(domain));
    }
  }

  // A GET of `target` to each of `urls`; `take` gets what each said.
  struct Question {
    std::vector<EngineUrl> urls;
    std::string target;
    std::function<void(const std::string& authority, const std::string& body)> take;
  };

  // Replaces the list of each engine that gave a readable one.
  void AskForModels(const std::vector<EngineUrl>& urls) {
    const auto take = [&](const std::string& authority, const std::string& body) {
      absl::StatusOr<std::vector<ServedModel>> models = ReadModels(body);
      if (!models.ok()) return;
      if (models->size() > kNamesPerEngineMax)
        models->erase(models->begin() + kNamesPerEngineMax, models->end());
      listed_[authority] = *std::move(models);
    };
    Ask({{urls, "/v1/models", take}});
  }

  // SGLang tells its parsers at /server_info; whether vLLM takes token ids in place of a chat
  // follows from its version.
  void AskForFacts(std::vector<EngineUrl> sglang, std::vector<EngineUrl> vllm) {
    const auto server_info = [&](const std::string& authority, const std::string& body) {
      EngineFacts facts;
      ReadServerInfo(body, &facts);
      if (facts.kind == kSglang) told_[authority] = std::move(facts);
    };
    const auto version = [&](const std::string& authority, const std::string& body) {
      told_[authority] = EngineFacts{.kind = kVllm, .version = ReadVersion(body)};
    };
    Ask({{std::move(sglang), "/server_info", server_info}, {std::move(vllm), "/version", version}});
  }

  // Asks all engines of all questions at once and runs the loop until all have answered, the time
  // is over, or this stops. Answers that are nested too deep are dropped (`json_depth.h`). `Stop`
  // may have been called before `end_questions_` was set: so it is checked again behind that.
  void Ask(const std::vector<Question>& questions) {
    size_t left = questions.size();
    std::vector<std::function<void()>> ends;
    io_.restart();
    for (const Question& question : questions) {
      ends.push_back(AskEngines(&io_, &pool_, question.urls, question.target, {}, options_.timeout,
                                [&](const std::vector<std::optional<std::string>>& bodies) {
                                  --left;
                                  for (size_t i = 0; i < bodies.size(); ++i) {
                                    if (stopping()) return;
                                    if (bodies[i].has_value() && !IsNestedTooDeep(*bodies[i]))
                                      question.take(question.urls[i].authority(), *bodies[i]);
                                  }
                                }));
    }
    end_questions_ = [&ends] {
      for (const std::function<void()>& end : ends) end();
    };
    if (stopping()) end_questions_();
    while (left > 0 && io_.run_one() > 0) {
    }
    io_.poll();  // runs the handlers of cancelled calls, which hold references into this frame
    end_questions_ = nullptr;
  }

  // Tells `conventions` what all known engines are: kind and owner by the list of models, parsers
  // of SGLang by /server_info, vLLM's version by /version. Facts of an engine that does not answer
  // stay while its list says that it is of that kind. The next look is due sooner while some
  // engine, or all, have not answered.
  void LookAtConventions(std::vector<EngineUrl> urls,
                         const std::map<std::string, std::set<Served>>& at) {
    std::erase_if(told_, [&](const auto& one) { return KindAt(one.first) != one.second.kind; });
    const auto of_kind = [&](const char* kind) {
      std::vector<EngineUrl> found;
      for (const EngineUrl& url : urls)
        if (KindAt(url.authority()) == kind) found.push_back(url);
      return found;
    };
    AskForFacts(of_kind(kSglang), of_kind(kVllm));
    std::vector<EngineConventions::Engine> engines;
    bool all_answered = true;
    for (const auto& [authority, models] : at) {
      const auto listed = listed_.find(authority);
      all_answered = all_answered && listed != listed_.end();
      EngineFacts facts = {.kind = KindAt(authority)};
      if (const auto told = told_.find(authority); told != told_.end()) facts = told->second;
      for (const Served& served : models) {
        const bool by_itself = served.model.empty() && listed != listed_.end();
        engines.push_back({.model = by_itself ? OwnName(listed->second) : served.model,
                           .authority = authority,
                           .convention = ConventionOf(facts),
                           .takes_token_ids = TakesTokenIds(facts)});
      }
    }
    options_.conventions->Set(engines);
    const Duration next = engines.empty() ? options_.again_after
                          : !all_answered ? std::min(options_.every, options_.conventions_every)
                                          : options_.conventions_every;
    conventions_due_ = (clock_->Now() + next).count();
  }

  // "vllm", "sglang", or empty: not known.
  std::string KindAt(const std::string& authority) const {
    const auto listed = listed_.find(authority);
    return listed == listed_.end() ? "" : KindOf(listed->second);
  }

  // The names of all lists, by tenant.
  //
  // - The engine's own name of a model that leaves know under it is left out: leaves know it best.
  //   That of an engine that no leaf has named is kept: the name leads to the workers.
  // - A further name (no adapter) that is a model of the leaves itself is left out.
  // - A name of several models is that of the first model, by its name; the others lose it.
  // - At most `kNamesMax` names; further ones are dropped.
  // `workers` are sorted at the end, each once.
  Listed MakeTable(const std::map<std::string, std::set<Served>>& at) const {
    Listed listed;
    size_t count = 0;
    for (const auto& [authority, models] : listed_) {
      for (const Served& served : at.at(authority)) {
        for (const ServedModel& model : models) {
          const bool adapter = !model.parent.empty();
          // Leaves that do not know the model: the engine's own name stands for it.
          const bool named = served.tenant.has_value();
          const std::string& own = named ? served.model : OwnName(models);
          const bool is_own = model.id == own;
          if (is_own && (adapter || named)) continue;
          if (!is_own && !adapter && frontend_->Knows({model.id, served.tenant.value_or("")}))
            continue;
          ServedNames& names = listed[served.tenant];
          if (!names.contains(model.id) && ++count > kNamesMax) continue;
          ServedName& name = names[model.id];
          if (!name.model.empty() && name.model < own) continue;
          if (name.model != own) name = {.model = own, .adapter = adapter};
          // A model under its own name may be served by any of its workers, and leaves know them.
          if (!is_own) name.workers.push_back(served.worker);
        }
      }
    }
    for (auto& [tenant, names] : listed) {
      for (auto& [id, name] : names) {
        std::vector<std::string>& workers = name.workers;
        std::sort(workers.begin(), workers.end());
        workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
      }
    }
    return listed;
  }

  const EngineNamesOptions options_;
  Frontend* const frontend_;
  const Clock* const clock_;
  asio::io_context io_{1};
  // Opens the loop's descriptors now: Asio does so with its first timer or socket, and throws where
  // there are none left.
  const asio::steady_timer opens_{io_};
  EngineConnections pool_;
  // The following are the thread's alone. What each engine listed last, by `EngineUrl::authority`;
  // an entry goes when the frontend no longer knows the engine.
  std::map<std::string, std::vector<ServedModel>> listed_;
  std::map<std::string, EngineFacts> told_;  // by engines of themselves, by authority
  std::function<void()> end_questions_;      // null: no question is under way
  std::optional<Time> met_at_;               // when peers were asked for domains last
  bool peers_told_ = false;                  // they named some then
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar wake_;
  Given given_ ABSL_GUARDED_BY(mutex_);
  Table table_ ABSL_GUARDED_BY(mutex_) = std::make_shared<const Listed>();
  // When the last look ended; nothing: there was none.
  std::optional<Time> looked_at_ ABSL_GUARDED_BY(mutex_);
  std::optional<Time> looked_widely_at_
      ABSL_GUARDED_BY(mutex_);  // with engines that no route had met
  // Until then names of the table are in use, and looks go on.
  Time wanted_until_ ABSL_GUARDED_BY(mutex_){0};
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> meeting_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_count_ ABSL_GUARDED_BY(mutex_) = 0;  // with those whose route is under way
  bool conventions_wanted_ ABSL_GUARDED_BY(mutex_);   // a look for them
  std::atomic<int64_t> conventions_due_{0};           // as `Time`; no look is wanted before it
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

EngineNames::EngineNames(EngineNamesOptions options, Frontend* frontend, const Clock* clock)
    : impl_(std::make_shared<Impl>(std::move(options), frontend, clock)) {
  impl_->Start();
}
EngineNames::~EngineNames() { Stop(); }

bool EngineNames::Find(RouteInput* input, std::function<void()> later) {
  return impl_->Find(input, std::move(later));
}
bool EngineNames::Meet(std::function<void()> later) { return impl_->Meet(std::move(later)); }
void EngineNames::SetGiven(ServedNames given) { impl_->SetGiven(std::move(given)); }
ServedNames EngineNames::Known() const { return impl_->Known(); }
void EngineNames::Stop() { impl_->Stop(); }

}  // namespace kvatlas
