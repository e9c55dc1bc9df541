// `Impl` has two sides: `Of`, `SetEngines` and `States` from any thread, under `mutex_`, and a loop
// with a thread of its own that polls. `engines_` is what they share; `polls_` and the pool belong
// to the loop's thread alone.

#include "frontend/engine_client/engine_loads.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "frontend/engine_client/engine_probe.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;

// A load is used for so many polls after it was said: one that fails is no reason to forget it,
// three are.
constexpr int kPollsFresh = 3;

// A poll as a whole has to be over within `timeout`, roughly: each of its parts is.
EngineCallOptions Within(EngineCallOptions call, Duration timeout) {
  call.connect_timeout = std::min(call.connect_timeout, timeout);
  call.head_timeout = std::min(call.head_timeout, timeout);
  call.idle_timeout = std::min(call.idle_timeout, timeout);
  call.idle_per_engine = 1;
  return call;
}

}  // namespace

class EngineLoads::Impl {
 public:
  Impl(EngineLoadsOptions options, const Clock* clock)
      : every_(options.every),
        clock_(clock),
        pool_(Within(std::move(options.call), options.timeout)) {
    SetEngines(options.engines);
  }

  void Start() {
    if (every_ <= Duration(0)) return;
    thread_ = std::thread([this] { io_.run(); });
    asio::post(io_, [this] { Poll(); });
  }

  // On the loop's thread the timer and the calls are ended; without them and the work guard the
  // loop runs out.
  void Stop() {
    if (!thread_.joinable()) return;
    asio::post(io_, [this] {
      stopping_ = true;
      timer_.cancel();
      for (auto& [url, poll] : std::exchange(polls_, {})) poll.call->Cancel();
    });
    work_.reset();
    thread_.join();
  }

  // An engine whose url stays keeps its load and its time of being wanted.
  void SetEngines(const std::map<std::string, std::string>& engines) {
    MutexLock lock(&mutex_);
    std::map<std::string, Engine> now;
    for (const auto& [worker, url] : engines) {
      const auto before = engines_.find(worker);
      const bool same = before != engines_.end() && before->second.url == url;
      now[worker] = same ? std::move(before->second) : Engine{.url = url};
    }
    engines_ = std::move(now);
  }

  // Asking is what makes a load wanted: an engine is polled for `kLoadWantedFor` after the last
  // question.
  std::optional<Load> Of(const HolderId& worker) {
    MutexLock lock(&mutex_);
    const auto found = engines_.find(worker.name);
    if (found == engines_.end()) return std::nullopt;
    Engine& engine = found->second;
    const Time now = clock_->Now();
    engine.wanted_until = now + kLoadWantedFor;
    if (!IsFresh(engine, now)) return std::nullopt;
    const auto load = engine.loads.find(worker.rank);
    if (load == engine.loads.end()) return std::nullopt;
    return load->second;
  }

  // "waiting": wanted, and no poll has ended yet; "failing": wanted, and the last polls said
  // nothing.
  std::vector<EngineLoadState> States() const {
    MutexLock lock(&mutex_);
    const Time now = clock_->Now();
    std::vector<EngineLoadState> states;
    for (const auto& [worker, engine] : engines_) {
      states.push_back({.worker = worker,
                        .url = engine.url,
                        .state = engine.wanted_until <= now ? "unwanted"
                                 : IsFresh(engine, now)     ? "known"
                                 : engine.reason.empty()    ? "waiting"
                                                            : "failing",
                        .reason = engine.reason,
                        .age = engine.at.has_value() ? now - *engine.at : Duration(0),
                        .loads = engine.loads});
    }
    return states;
  }

 private:
  struct Engine {
    std::string url;
    Time wanted_until{0};
    std::optional<Time> at = {};  // of `loads`
    std::map<uint32_t, Load> loads = {};
    std::string reason = {};  // why the last poll said nothing
  };
  bool IsFresh(const Engine& engine, Time now) const {
    return engine.at.has_value() && now - *engine.at <= kPollsFresh * every_;
  }

  // Of the loop's thread.
  // One poll under way.
  struct Answer {
    std::shared_ptr<EngineCall> call;
    int status = 0;
    std::string text = {};
  };

  // ---- The loop's thread ----

  // All wanted engines at once; one whose last poll is still under way is left out. Several workers
  // with one url share a poll.
  void Poll() {
    // A timer that ran off just before `Stop` cancelled it comes here once more.
    if (stopping_) return;
    for (const std::string& url : Wanted()) {
      if (!polls_.contains(url)) Ask(url);
    }
    timer_.expires_after(every_);
    timer_.async_wait([this](const boost::system::error_code& cancelled) {
      if (!cancelled) Poll();
    });
  }

  // Each url once, however many workers have it.
  std::vector<std::string> Wanted() const {
    MutexLock lock(&mutex_);
    const Time now = clock_->Now();
    std::vector<std::string> urls;
    for (const auto& [worker, engine] : engines_)
      if (engine.wanted_until > now) urls.push_back(engine.url);
    std::sort(urls.begin(), urls.end());
    urls.erase(std::unique(urls.begin(), urls.end()), urls.end());
    return urls;
  }

  // Callbacks find their poll by url: one that was cancelled or replaced is not there, and what
  // comes is dropped.
  void Ask(const std::string& url) {
    const absl::StatusOr<EngineUrl> parsed = EngineUrl::Parse(url);
    if (!parsed.ok()) return Failed(url, std::string(parsed.status().message()));
    HttpHeaders headers;
    pool_.options().reach.Authorize(*parsed, &headers);
    Answer& answer = polls_[url];
    const std::shared_ptr<EngineCall> call = answer.call = std::make_shared<EngineCall>(
        &io_, &pool_,
        EngineCallRequest{.url = *parsed,
                          .method = "GET",
                          .target = "/metrics",
                          .headers = std::move(headers),
                          .body = nullptr},
        EngineCallbacks{.on_head = [this, url](const EngineHead& head) { OnHead(url, head); },
                        .on_piece = [this, url](std::string_view piece) { OnPiece(url, piece); },
                        .on_end = [this, url] { OnEnd(url); },
                        .on_failed =
                            [this, url](const absl::Status& why, bool) {
                              polls_.erase(url);
                              Failed(url, std::string(why.message()));
                            }});
    call->Start();
  }

  void OnHead(const std::string& url, const EngineHead& head) {
    const auto poll = polls_.find(url);
    if (poll == polls_.end()) return;
    poll->second.status = head.status;
    Resume(poll->second);
  }

  void OnPiece(const std::string& url, std::string_view piece) {
    const auto poll = polls_.find(url);
    if (poll == polls_.end()) return;
    if (poll->second.text.size() + piece.size() > kMetricsBytesMax) {
      const std::shared_ptr<EngineCall> call = poll->second.call;
      polls_.erase(poll);
      call->Cancel();
      return Failed(url, absl::StrCat("/metrics has more than ", kMetricsBytesMax, " bytes"));
    }
    poll->second.text += piece;
    Resume(poll->second);
  }

  // The call may end within `Resume`, which erases the poll: the pointer keeps it.
  static void Resume(const Answer& answer) {
    const std::shared_ptr<EngineCall> call = answer.call;
    call->Resume();
  }

  // The loads go to every worker that has this url now; `SetEngines` may have changed them since.
  void OnEnd(const std::string& url) {
    const auto poll = polls_.find(url);
    if (poll == polls_.end()) return;
    const Answer answer = std::move(poll->second);
    polls_.erase(poll);
    if (answer.status != 200)
      return Failed(url, absl::StrCat("GET /metrics answered ", answer.status, "; expected 200"));
    EngineFacts facts;
    ReadMetrics(answer.text, &facts);
    if (facts.loads.empty())
      return Failed(url,
                    "/metrics has none of the metrics of vLLM or SGLang; SGLang has them with "
                    "--enable-metrics");
    for (auto& [rank, load] : facts.loads) load.workers = 1;
    MutexLock lock(&mutex_);
    for (auto& [worker, engine] : engines_) {
      if (engine.url != url) continue;
      engine.loads = facts.loads;
      engine.at = clock_->Now();
      engine.reason.clear();
    }
  }

  // The loads stay; they grow old (`IsFresh`).
  void Failed(const std::string& url, const std::string& reason) {
    MutexLock lock(&mutex_);
    for (auto& [worker, engine] : engines_)
      if (engine.url == url) engine.reason = reason;
  }

  const Duration every_;
  const Clock* const clock_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  asio::steady_timer timer_{io_};
  EngineConnections pool_;
  std::map<std::string, Answer> polls_;  // under way, by url
  bool stopping_ = false;
  std::thread thread_;

  mutable Mutex mutex_;
  std::map<std::string, Engine> engines_ ABSL_GUARDED_BY(mutex_);  // by worker
};

EngineLoads::EngineLoads(EngineLoadsOptions options, const Clock* clock)
    : impl_(std::make_unique<Impl>(std::move(options), clock)) {
  impl_->Start();
}
EngineLoads::~EngineLoads() { impl_->Stop(); }

void EngineLoads::SetEngines(const std::map<std::string, std::string>& engines) {
  impl_->SetEngines(engines);
}
std::optional<Load> EngineLoads::Of(const HolderId& worker) { return impl_->Of(worker); }
std::vector<EngineLoadState> EngineLoads::States() const { return impl_->States(); }

// A leaf's own word on a load comes first; `Of` is asked only where it says none, and only then
// makes engines be polled.
void EngineLoadFinder::FindOverlaps(const std::string& leaf_address,
                                    const OverlapQuestion& question, Duration deadline,
                                    Callback callback) {
  next()->FindOverlaps(
      leaf_address, question, deadline,
      [loads = loads_, callback = std::move(callback)](absl::StatusOr<WorkersAnswer> answer) {
        if (answer.ok()) {
          for (WorkerFound& found : answer->workers)
            if (!found.load.has_value()) found.load = loads->Of(found.worker);
        }
        callback(std::move(answer));
      });
}

}  // namespace kvatlas
