#include "frontend/prompt/engine_names.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "frontend/peers/engine_probe.h"
#include "frontend/peers/models_question.h"
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
  std::string model;  // of its domain; empty: no leaf has named it
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
        given_(std::make_shared<const ServedNames>(options_.given)) {}

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
    const std::string& name = input->domain.model;
    Table given, table;
    {
      MutexLock lock(&mutex_);
      given = given_;
    }
    if (given->contains(name)) {
      AsServed(*given, input);
      return true;
    }
    if (name.empty() || options_.every <= Duration(0) || frontend_->KnowsModel(name)) return true;
    {
      MutexLock lock(&mutex_);
      if (stopping_) return true;
      const Time now = clock_->Now();
      const bool listed = table_->contains(name);
      if (listed) Want(now);
      if (!IsFresh(listed, now)) {
        if (waiting_count_ >= kWaitingMax) return true;
        ++waiting_count_;
      } else {
        table = table_;
      }
    }
    if (table != nullptr) {
      AsServed(*table, input);
      return true;
    }
    frontend_->RouteAsync(ToLearn(input->domain),
                          [self = shared_from_this(), input,
                           later = std::move(later)](const absl::StatusOr<RouteResult>&) mutable {
                            if (!self->frontend_->KnowsModel(input->domain.model))
                              return self->Wait({.input = input, .later = std::move(later)});
                            self->Over();
                            later();
                          });
    return false;
  }

  void SetGiven(ServedNames given) {
    MutexLock lock(&mutex_);
    given_ = std::make_shared<const ServedNames>(std::move(given));
  }

  ServedNames Known() const {
    MutexLock lock(&mutex_);
    ServedNames known = *given_;
    known.insert(table_->begin(), table_->end());
    return known;
  }

 private:
  using Table = std::shared_ptr<const ServedNames>;
  struct Waiting {
    RouteInput* input;
    std::function<void()> later;
  };

  bool IsFresh(bool listed, Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Duration fresh = listed ? kLooksFresh * options_.every : options_.again_after;
    return looked_at_.has_value() && now - *looked_at_ <= fresh;
  }

  void Want(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (wanted_until_ <= now) wake_.SignalAll();
    wanted_until_ = now + options_.wanted_for;
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
      const bool waited_for = !waiting_.empty();
      const Duration left =
          looked_at_.has_value() ? *looked_at_ + options_.every - now : Duration(0);
      if (!waited_for && wanted_until_ <= now) {
        wake_.Wait(&mutex_);
        continue;
      }
      if (!waited_for && left > Duration(0)) {
        wake_.WaitFor(&mutex_, left);
        continue;
      }
      const std::vector<Waiting> waiting = std::exchange(waiting_, {});
      mutex_.Unlock();
      const auto table = std::make_shared<const ServedNames>(Look(waited_for));
      mutex_.Lock();
      table_ = table;
      looked_at_ = clock_->Now();
      Answer(waiting, table);
    }
    Answer(std::exchange(waiting_, {}), std::make_shared<const ServedNames>());
  }

  void Answer(const std::vector<Waiting>& waiting, const Table& table)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    waiting_count_ -= waiting.size();
    for (const Waiting& one : waiting)
      if (table->contains(one.input->domain.model)) Want(clock_->Now());
    mutex_.Unlock();
    for (const Waiting& one : waiting) {
      // A leaf that has told of it meanwhile knows it better.
      if (!frontend_->KnowsModel(one.input->domain.model)) AsServed(*table, one.input);
      one.later();
    }
    mutex_.Lock();
  }

  bool stopping() const {
    MutexLock lock(&mutex_);
    return stopping_;
  }

  ServedNames Look(bool meet) {
    if (meet && options_.domains != nullptr) MeetEngines();
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
      at[authority].insert({.model = engine.domain.model, .worker = engine.worker.name});
    }
    Ask(urls);
    std::erase_if(listed_, [&](const auto& one) { return !at.contains(one.first); });
    return MakeTable(at);
  }

  // Peers are asked once in `every` at most, whatever names clients say.
  void MeetEngines() {
    const Time now = clock_->Now();
    if (met_at_.has_value() && now - *met_at_ < options_.every) return;
    const std::vector<Domain> told = options_.domains();
    if (!told.empty()) met_at_ = now;
    const std::vector<Domain> known = frontend_->Domains();
    std::set<Domain> met(known.begin(), known.end());
    size_t left = kDomainsMetMax;
    for (const Domain& domain : told) {
      if (domain.model.empty() || !met.insert(domain).second) continue;
      if (left-- == 0 || stopping()) return;
      (void)frontend_->Route(ToLearn(domain));
    }
  }

  void Ask(const std::vector<EngineUrl>& urls) {
    bool answered = false;
    io_.restart();
    end_question_ = AskForModels(&io_, &pool_, urls, {}, options_.timeout,
                                 [&](const std::vector<std::optional<std::string>>& bodies) {
                                   answered = true;
                                   for (size_t i = 0; i < bodies.size(); ++i) {
                                     if (!bodies[i].has_value() || IsNestedTooDeep(*bodies[i]))
                                       continue;
                                     absl::StatusOr<std::vector<ServedModel>> models =
                                         ReadModels(*bodies[i]);
                                     if (models.ok())
                                       listed_[urls[i].authority()] = *std::move(models);
                                   }
                                 });
    if (stopping()) end_question_();
    while (!answered && io_.run_one() > 0) {
    }
    io_.poll();  // what was cancelled
    end_question_ = nullptr;
  }

  ServedNames MakeTable(const std::map<std::string, std::set<Served>>& at) const {
    ServedNames names;
    for (const auto& [authority, models] : listed_) {
      for (const Served& served : at.at(authority)) {
        for (const ServedModel& model : models) {
          const bool adapter = !model.parent.empty();
          // What no leaf has named is known by its engine's own name.
          const std::string& own = served.model.empty() ? OwnName(models) : served.model;
          const bool is_own = model.id == own;
          if (is_own && (adapter || !served.model.empty())) continue;
          if (!is_own && !adapter && frontend_->KnowsModel(model.id)) continue;
          if (names.size() == kNamesMax && !names.contains(model.id)) continue;
          ServedName& name = names[model.id];
          if (!name.model.empty() && name.model < own) continue;
          if (name.model != own) name = {.model = own, .adapter = adapter};
          // Who serves a model under its own name leaves know best.
          if (!is_own) name.workers.push_back(served.worker);
        }
      }
    }
    for (auto& [id, name] : names) {
      std::sort(name.workers.begin(), name.workers.end());
      name.workers.erase(std::unique(name.workers.begin(), name.workers.end()), name.workers.end());
    }
    return names;
  }

  const EngineNamesOptions options_;
  Frontend* const frontend_;
  const Clock* const clock_;
  asio::io_context io_{1};
  EngineConnections pool_;
  // Of the own thread: what each engine listed last, by `EngineUrl::authority`; and what ends the question under way.
  std::map<std::string, std::vector<ServedModel>> listed_;
  std::function<void()> end_question_;
  std::optional<Time> met_at_;  // when peers told of domains
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar wake_;
  Table given_ ABSL_GUARDED_BY(mutex_);
  Table table_ ABSL_GUARDED_BY(mutex_) = std::make_shared<const ServedNames>();
  std::optional<Time> looked_at_ ABSL_GUARDED_BY(mutex_);
  Time wanted_until_ ABSL_GUARDED_BY(mutex_){0};
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_count_ ABSL_GUARDED_BY(mutex_) = 0;  // those whose route is under way included
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
void EngineNames::SetGiven(ServedNames given) { impl_->SetGiven(std::move(given)); }
ServedNames EngineNames::Known() const { return impl_->Known(); }
void EngineNames::Stop() { impl_->Stop(); }

}  // namespace kvatlas
