// A loop with a thread of its own. Rounds run while some worker is suspected (`waiting_`: the next
// one is set); the frontend's call `OnSuspect` begins them. All members but `ended_` belong to the
// loop's thread.

#include "frontend/engine_client/suspect_probe.h"

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;

// No connection is kept: a new one is what is asked for.
EngineCallOptions CallOptions(const SuspectProbeOptions& options) {
  return {.reach = options.reach,
          .connect_timeout = options.timeout,
          .head_timeout = options.timeout,
          .idle_timeout = options.timeout,
          .idle_per_engine = 0};
}

}  // namespace

class SuspectProbe::Impl {
 public:
  Impl(const SuspectProbeOptions& options, Frontend* frontend)
      : every_(options.every), frontend_(frontend), pool_(CallOptions(options)) {
    thread_ = std::thread([this] { io_.run(); });
    frontend_->OnSuspect([this] { asio::post(io_, [this] { Begin(); }); });
  }

  // After `OnSuspect(nullptr)` returned no `Begin` is posted any more. Then the loop ends its calls
  // and runs out.
  ~Impl() {
    frontend_->OnSuspect(nullptr);
    asio::post(io_, [this] {
      stopping_ = true;
      timer_.cancel();
      for (auto& [url, probe] : std::exchange(probes_, {})) probe.call->Cancel();
    });
    work_.reset();
    thread_.join();
  }

  uint64_t ended() const { return ended_.load(std::memory_order_relaxed); }

 private:
  // A call to one engine, and its workers that were suspected when it began.
  struct Probe {
    std::shared_ptr<EngineCall> call;
    std::vector<KnownEngine> workers;
  };

  // ---- The loop's thread ----

  // A second suspect needs no second row of rounds.
  void Begin() {
    if (!waiting_) Round();
  }

  // One call per engine, however many of its workers are suspected. Engines whose last call is
  // still under way are left out. Without suspects no round follows.
  void Round() {
    waiting_ = false;
    if (stopping_) return;
    std::map<std::string, std::vector<KnownEngine>> by_url;
    for (KnownEngine& suspect : frontend_->SuspectEngines()) {
      if (suspect.url.empty()) continue;
      std::string url = suspect.url;
      by_url[std::move(url)].push_back(std::move(suspect));
    }
    if (by_url.empty()) return;
    for (auto& [url, workers] : by_url) {
      if (probes_.size() >= kSuspectsProbedMax) break;
      if (!probes_.contains(url)) Ask(url, std::move(workers));
    }
    waiting_ = true;
    timer_.expires_after(every_);
    timer_.async_wait([this](const boost::system::error_code& cancelled) {
      if (!cancelled) Round();
    });
  }

  void Ask(const std::string& url, std::vector<KnownEngine> workers) {
    const absl::StatusOr<EngineUrl> parsed = EngineUrl::Parse(url);
    if (!parsed.ok()) return;
    HttpHeaders headers;
    pool_.options().reach.Authorize(*parsed, &headers);
    auto call = std::make_shared<EngineCall>(
        &io_, &pool_,
        EngineCallRequest{.url = *parsed,
                          .method = "GET",
                          .target = "/health",
                          .headers = std::move(headers),
                          .body = nullptr},
        EngineCallbacks{
            .on_head = [this, url](const EngineHead&) { Ended(url, absl::OkStatus()); },
            .on_piece = [](std::string_view) {},
            .on_end = [] {},
            .on_failed = [this, url](const absl::Status& why, bool) { Ended(url, why); }});
    probes_[url] = {.call = call, .workers = std::move(workers)};
    call->Start();
  }

  // Only a connection that could not be made keeps the suspicion: once something was sent,
  // something was reached. The head of any answer is enough, so the rest is cancelled.
  // PERMISSION_DENIED says nothing of the engine.
  void Ended(const std::string& url, const absl::Status& why) {
    const auto found = probes_.find(url);
    if (found == probes_.end()) return;
    const Probe probe = std::move(found->second);
    probes_.erase(found);
    const bool is_away =
        !probe.call->sent() && (absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why));
    if (is_away) frontend_->KeepAvoiding(probe.workers);
    if (why.ok()) probe.call->Cancel();
    ended_.fetch_add(1, std::memory_order_relaxed);
  }

  const Duration every_;
  Frontend* const frontend_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  asio::steady_timer timer_{io_};
  EngineConnections pool_;
  std::map<std::string, Probe> probes_;  // under way, by url
  bool waiting_ = false;                 // for the next round
  bool stopping_ = false;
  std::atomic<uint64_t> ended_{0};
  std::thread thread_;
};

SuspectProbe::SuspectProbe(const SuspectProbeOptions& options, Frontend* frontend)
    : impl_(std::make_unique<Impl>(options, frontend)) {}
SuspectProbe::~SuspectProbe() = default;

uint64_t SuspectProbe::probes() const { return impl_->ended(); }

}  // namespace kvatlas
