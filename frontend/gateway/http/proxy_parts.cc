// State that outlives single requests: pools of connections, turns, failures, and the kept list of
// models.

#include "frontend/gateway/http/proxy_parts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

// The most engines among which one is taken when any will do.
constexpr size_t kAnyOfMax = 1024;
constexpr size_t kFailingMax = 4096;

}  // namespace

ProxyParts::ProxyParts(const ProxyOptions& options, Frontend* frontend, PromptRouter* router,
                       Metrics* metrics)
    : hop(absl::StrCat(absl::Hex(RandomInstanceId(), absl::kZeroPad16))),
      counters(MakeCounters(metrics)),
      route_metrics(metrics),
      options_(options),
      frontend_(frontend),
      router_(router) {
  metrics->OnScrape([this, gauge = counters.under_way]() mutable {
    gauge.Set(static_cast<double>(under_way.load(std::memory_order_relaxed)));
  });
}

// One pool per I/O thread, made at its first request. The map never shrinks before `ClosePools`, so
// the pointer stays valid.
EngineConnections* ProxyParts::PoolOf(boost::asio::io_context* io) {
  MutexLock lock(&pools_mutex_);
  std::unique_ptr<EngineConnections>& pool = pools_[io];
  if (pool == nullptr) pool = std::make_unique<EngineConnections>(options_.engine);
  return pool.get();
}

void ProxyParts::ClosePools() {
  MutexLock lock(&pools_mutex_);
  pools_.clear();
}

// Called for every answer, so the common case (no engine fails) takes no lock. `any_failures_` may
// be stale by one answer, which at worst delays the reset of a count by one.
bool ProxyParts::FailsAgain(const std::string& engine, int status) {
  if (status != 500 && !any_failures_.load(std::memory_order_relaxed)) return false;
  MutexLock lock(&failures_mutex_);
  if (status != 500) {
    failures_.erase(engine);
  } else if (failures_.size() >= kFailingMax && !failures_.contains(engine)) {
    failures_.clear();
  }
  const bool again = status == 500 && ++failures_[engine] >= kFailuresInARow;
  any_failures_.store(!failures_.empty(), std::memory_order_relaxed);
  return again;
}

// Suspects come last (`Frontend::Engines`), which `AnyEngine` relies on.
std::vector<KnownEngine> ProxyParts::Engines() const {
  std::vector<KnownEngine> engines = frontend_->Engines(kAnyOfMax);
  if (!engines.empty()) return engines;
  for (const auto& [worker, url] : frontend_->options().engines) {
    engines.push_back(
        {.domain = {}, .cell = {}, .worker = {worker, 0, ""}, .url = url, .suspect = false});
    if (engines.size() == kAnyOfMax) break;
  }
  return engines;
}

// One list is kept, that of the latest asker: fleets have few keys, and a miss costs one question
// to the engines.
std::string ProxyParts::KeptModels(const std::string& authorization) const {
  MutexLock lock(&models_mutex_);
  const bool fresh = Clock::Real().Now() - models_.since < options_.models_kept_for;
  return fresh && models_.authorization == authorization ? models_.list : std::string();
}

void ProxyParts::KeepModels(const std::string& authorization, std::string list) {
  MutexLock lock(&models_mutex_);
  models_ = {.authorization = authorization, .list = std::move(list), .since = Clock::Real().Now()};
}

// Urls that cannot be parsed are left out here, so that they do not cost a try. Suspects are only
// used if all others were tried.
std::optional<KnownEngine> ProxyParts::AnyEngine(const std::set<std::string>& tried) {
  std::vector<KnownEngine> engines = Engines();
  std::erase_if(engines, [&](const KnownEngine& engine) {
    const absl::StatusOr<EngineUrl> url = EngineUrl::Parse(engine.url);
    return !url.ok() || tried.contains(url->authority());
  });
  if (engines.empty()) return std::nullopt;
  const auto suspects = std::find_if(engines.begin(), engines.end(),
                                     [](const KnownEngine& engine) { return engine.suspect; });
  if (suspects != engines.begin()) engines.erase(suspects, engines.end());
  return std::move(engines[turn_.fetch_add(1, std::memory_order_relaxed) % engines.size()]);
}

ProxyParts::Counters ProxyParts::MakeCounters(Metrics* metrics) {
  return {.answered = metrics->AddCounter("kvatlas_frontend_proxy_answers_total",
                                          "Requests that an engine answered."),
          .refused = metrics->AddCounter("kvatlas_frontend_proxy_refused_total",
                                         "Requests that no engine was asked about, or took."),
          .tried_again =
              metrics->AddCounter("kvatlas_frontend_proxy_tried_again_total",
                                  "Engines that failed before they answered, or answered that "
                                  "they cannot take a request, after which another was asked."),
          .outside = metrics->AddCounter("kvatlas_frontend_proxy_outside_total",
                                         "Workers that got no request, as their url leads outside "
                                         "--engine_addresses."),
          .broken = metrics->AddCounter("kvatlas_frontend_proxy_broken_total",
                                        "Answers that engines broke off."),
          .client_gone = metrics->AddCounter("kvatlas_frontend_proxy_clients_gone_total",
                                             "Requests whose client left before their end."),
          .forwarded_tokens =
              metrics->AddCounter("kvatlas_frontend_proxy_forwarded_tokens_total",
                                  "Requests that went on with the ids that were hashed, so that "
                                  "the engine makes none."),
          .under_way =
              metrics->AddGauge("kvatlas_frontend_proxy_under_way", "Requests not yet answered.")};
}

}  // namespace kvatlas
