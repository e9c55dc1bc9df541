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

constexpr int kLooksFresh = 3;
constexpr size_t kEnginesMetMax = 16384;

EngineCallOptions Within(EngineCallOptions call, Duration timeout) {
  call.connect_timeout = std::min(call.connect_timeout, timeout);
  call.head_timeout = std::min(call.head_timeout, timeout);
  call.idle_timeout = std::min(call.idle_timeout, timeout);
  call.idle_per_engine = 0;  // nothing sweeps between looks
  return call;
}

// A worker whose engine is at an address.
struct Served {
  std::optional<std::string> tenant;  // of its domain; nothing: no leaf has named it
  std::string model;
  std::string worker;
  auto operator<=>(const Served&) const = default;
};

// An engine's own come before adapters.
const std::string& OwnName(const std::vector<ServedModel>& models) {
  return models.front().parent.empty() ? models.front().id : models.front().parent;
}

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

  void Start() {
    if (options_.every > Duration(0)) thread_ = std::thread([this] { Run(); });
  }

  void Stop() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      wake_.SignalAll();
    }
    asio::post(io_, [this] {
      if (end_question_ != nullptr) end_question_();
    });
    if (thread_.joinable()) thread_.join();
  }

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
  // By tenant; nothing: of engines that no leaf has named, for all.
  using Listed = std::map<std::optional<std::string>, ServedNames>;
  using Table = std::shared_ptr<const Listed>;
  struct Waiting {
    RouteInput* input;
    std::function<void()> later;
  };

  // A look that met no engines says nothing of a name that is not listed.
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
  static void AsListed(const Listed& listed, RouteInput* input) {
    if (const ServedNames* const names = NamesFor(listed, input->domain)) AsServed(*names, input);
  }

  void Want(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (wanted_until_ <= now) wake_.SignalAll();
    wanted_until_ = now + options_.wanted_for;
  }

  // Of a request: once the last look is too old.
  void WantConventions() {
    if (options_.conventions == nullptr || options_.every <= Duration(0)) return;
    const auto is_due = [this, now = clock_->Now().count()] {
      return now >= conventions_due_.load(std::memory_order_relaxed);
    };
    if (!is_due()) return;
    MutexLock lock(&mutex_);
    // A look may have ended meanwhile.
    if (!is_due() || std::exchange(conventions_wanted_, true)) return;
    wake_.SignalAll();
  }

  void Over() {
    MutexLock lock(&mutex_);
    --waiting_count_;
  }

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
      // Before the first request there is time to meet engines.
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

  // They need no list of names.
  void Met(const std::vector<std::function<void()>>& meeting)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    waiting_count_ -= meeting.size();
    const bool stopping = stopping_;
    mutex_.Unlock();
    if (!stopping) DiscoverEngines();
    for (const std::function<void()>& later : meeting) later();
    mutex_.Lock();
  }

  void Answer(const std::vector<Waiting>& waiting, const Table& table)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    waiting_count_ -= waiting.size();
    for (const Waiting& one : waiting)
      if (NamesFor(*table, one.input->domain) != nullptr) Want(clock_->Now());
    mutex_.Unlock();
    for (const Waiting& one : waiting) {
      // A leaf that has told of it meanwhile knows it better.
      if (!frontend_->Knows(one.input->domain)) AsListed(*table, one.input);
      one.later();
    }
    mutex_.Lock();
  }

  bool stopping() const {
    MutexLock lock(&mutex_);
    return stopping_;
  }

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

  // Peers are asked once in `every` at most, whatever names clients say.
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

  void AskForModels(const std::vector<EngineUrl>& urls) {
    Ask(urls, "/v1/models", [&](const std::string& authority, const std::string& body) {
      absl::StatusOr<std::vector<ServedModel>> models = ReadModels(body);
      if (!models.ok()) return;
      if (models->size() > kNamesPerEngineMax)
        models->erase(models->begin() + kNamesPerEngineMax, models->end());
      listed_[authority] = *std::move(models);
    });
  }

  void AskForServerInfo(const std::vector<EngineUrl>& urls) {
    Ask(urls, "/server_info", [&](const std::string& authority, const std::string& body) {
      EngineFacts facts;
      ReadServerInfo(body, &facts);
      if (facts.kind == kSglang) server_infos_[authority] = std::move(facts);
    });
  }

  // Until all have answered, or this stops; `take` gets what each said.
  void Ask(const std::vector<EngineUrl>& urls, const std::string& target,
           const std::function<void(const std::string& authority, const std::string& body)>& take) {
    bool answered = false;
    io_.restart();
    end_question_ = AskEngines(&io_, &pool_, urls, target, {}, options_.timeout,
                               [&](const std::vector<std::optional<std::string>>& bodies) {
                                 answered = true;
                                 for (size_t i = 0; i < bodies.size(); ++i) {
                                   if (stopping()) return;
                                   if (bodies[i].has_value() && !IsNestedTooDeep(*bodies[i]))
                                     take(urls[i].authority(), *bodies[i]);
                                 }
                               });
    if (stopping()) end_question_();
    while (!answered && io_.run_one() > 0) {
    }
    io_.poll();  // what was cancelled
    end_question_ = nullptr;
  }

  void LookAtConventions(std::vector<EngineUrl> urls,
                         const std::map<std::string, std::set<Served>>& at) {
    std::erase_if(server_infos_, [&](const auto& one) { return KindAt(one.first) != kSglang; });
    std::erase_if(urls, [&](const EngineUrl& url) { return KindAt(url.authority()) != kSglang; });
    if (!urls.empty()) AskForServerInfo(urls);
    std::vector<EngineConventions::Engine> engines;
    bool all_answered = true;
    for (const auto& [authority, models] : at) {
      const auto listed = listed_.find(authority);
      all_answered = all_answered && listed != listed_.end();
      EngineFacts facts = {.kind = KindAt(authority)};
      if (const auto info = server_infos_.find(authority); info != server_infos_.end())
        facts = info->second;
      for (const Served& served : models) {
        const bool by_itself = served.model.empty() && listed != listed_.end();
        engines.push_back({.model = by_itself ? OwnName(listed->second) : served.model,
                           .authority = authority,
                           .convention = ConventionOf(facts)});
      }
    }
    options_.conventions->Set(engines);
    const Duration next = engines.empty() ? options_.again_after
                          : !all_answered ? std::min(options_.every, options_.conventions_every)
                                          : options_.conventions_every;
    conventions_due_ = (clock_->Now() + next).count();
  }

  std::string KindAt(const std::string& authority) const {
    const auto listed = listed_.find(authority);
    return listed == listed_.end() ? "" : KindOf(listed->second);
  }

  Listed MakeTable(const std::map<std::string, std::set<Served>>& at) const {
    Listed listed;
    size_t count = 0;
    for (const auto& [authority, models] : listed_) {
      for (const Served& served : at.at(authority)) {
        for (const ServedModel& model : models) {
          const bool adapter = !model.parent.empty();
          // What no leaf has named is known by its engine's own name.
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
          // Who serves a model under its own name leaves know best.
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
  // Of the own thread: what each engine listed last, by `EngineUrl::authority`; and what ends the
  // question under way.
  std::map<std::string, std::vector<ServedModel>> listed_;
  std::map<std::string, EngineFacts> server_infos_;  // of SGLangs
  std::function<void()> end_question_;
  std::optional<Time> met_at_;  // when peers were asked for domains
  bool peers_told_ = false;     // of some
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar wake_;
  Given given_ ABSL_GUARDED_BY(mutex_);
  Table table_ ABSL_GUARDED_BY(mutex_) = std::make_shared<const Listed>();
  std::optional<Time> looked_at_ ABSL_GUARDED_BY(mutex_);
  std::optional<Time> looked_widely_at_
      ABSL_GUARDED_BY(mutex_);  // with engines that no route had met
  Time wanted_until_ ABSL_GUARDED_BY(mutex_){0};
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> meeting_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_count_ ABSL_GUARDED_BY(mutex_) = 0;  // those whose route is under way included
  bool conventions_wanted_ ABSL_GUARDED_BY(mutex_);   // a look for them
  std::atomic<int64_t> conventions_due_{0};           // as `Time`; before it no request wants one
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
