#include "frontend/doors/ext_proc/endpoints.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "indexer/service/address.h"
#include "indexer/service/log.h"

namespace kvatlas {
namespace {

constexpr uint32_t kWholeWorker = std::numeric_limits<uint32_t>::max();

HolderId Whole(const HolderId& worker) { return {worker.name, kWholeWorker, ""}; }

// "worker-3" or "worker-3/1".
std::optional<HolderId> WorkerOf(std::string_view text) {
  const size_t slash = text.rfind('/');
  HolderId worker{std::string(text.substr(0, slash)), kWholeWorker, ""};
  if (worker.name.empty()) return std::nullopt;
  if (slash == std::string_view::npos) return worker;
  const std::string_view rank = text.substr(slash + 1);
  if (!absl::SimpleAtoi(absl::string_view(rank.data(), rank.size()), &worker.rank) ||
      worker.rank == kWholeWorker) {
    return std::nullopt;
  }
  return worker;
}

}  // namespace

absl::StatusOr<std::string> EndpointOf(std::string_view url) {
  if (const size_t scheme = url.find("://"); scheme != std::string_view::npos)
    url.remove_prefix(scheme + 3);
  const absl::StatusOr<Address> address = Address::Parse(url.substr(0, url.find('/')));
  if (!address.ok()) return address.status();
  if (!IsNumericHost(address->host) || address->host.find('%') != std::string::npos ||
      address->port == 0) {
    return absl::InvalidArgumentError("'" + std::string(url) + "' is no IP:PORT");
  }
  return address->ToString();
}

absl::Status Endpoints::Configure(const std::string& entry) {
  const size_t equals = entry.find('=');
  const std::optional<HolderId> worker = WorkerOf(std::string_view(entry).substr(0, equals));
  if (equals == std::string::npos || !worker.has_value()) {
    return absl::InvalidArgumentError("'" + entry + "' is no WORKER=IP:PORT, WORKER/RANK=IP:PORT");
  }
  absl::StatusOr<std::string> endpoint = EndpointOf(std::string_view(entry).substr(equals + 1));
  if (!endpoint.ok()) return endpoint.status();
  MutexLock lock(&mutex_);
  Put(*worker, {.endpoint = *std::move(endpoint), .configured = true});
  return absl::OkStatus();
}

void Endpoints::Learn(const HolderId& worker, std::string_view url, bool draining) {
  absl::StatusOr<std::string> endpoint = EndpointOf(url);
  if (!endpoint.ok()) return;
  const absl::Status outside = addresses_.CheckHost(Address::Parse(*endpoint)->host);
  if (!outside.ok()) {
    static LogLimiter limiter(std::chrono::seconds(10));
    return LogEvery(limiter, worker.name, LogLevel::kWarning,
                    "a worker gets no requests: its url leads outside --engine_addresses",
                    {{"worker", worker.name}, {"url", url}, {"reason", outside}});
  }
  MutexLock lock(&mutex_);
  const auto known = by_worker_.find(worker);
  if (known != by_worker_.end() && known->second.configured) return;
  if (known != by_worker_.end() && known->second.endpoint == *endpoint) {
    known->second.draining = draining;
    return;
  }
  if (known == by_worker_.end() && learnt_ >= kEndpointsMax) ForgetLearnt();
  Put(worker, {.endpoint = *std::move(endpoint), .draining = draining});
}

void Endpoints::Forget(const HolderId& worker) {
  MutexLock lock(&mutex_);
  const auto known = by_worker_.find(worker);
  if (known != by_worker_.end() && !known->second.configured) Drop(worker);
}

void Endpoints::Put(const HolderId& worker, Entry entry) {
  Drop(worker);
  if (!entry.configured) ++learnt_;
  by_endpoint_[entry.endpoint].workers.insert(worker);
  by_worker_[worker] = std::move(entry);
}

void Endpoints::Drop(const HolderId& worker) {
  const auto known = by_worker_.find(worker);
  if (known == by_worker_.end()) return;
  if (!known->second.configured) --learnt_;
  const auto there = by_endpoint_.find(known->second.endpoint);
  there->second.workers.erase(worker);
  if (there->second.workers.empty()) by_endpoint_.erase(there);
  by_worker_.erase(known);
}

void Endpoints::ForgetLearnt() {
  std::vector<HolderId> learnt;
  for (const auto& [worker, entry] : by_worker_)
    if (!entry.configured) learnt.push_back(worker);
  for (const HolderId& worker : learnt) Drop(worker);
}

std::optional<std::string> Endpoints::Of(const HolderId& worker) const {
  MutexLock lock(&mutex_);
  auto known = by_worker_.find(worker);
  const auto whole = by_worker_.find(Whole(worker));
  // What is configured of the whole worker wins over what its rank says.
  if (known == by_worker_.end() ||
      (!known->second.configured && whole != by_worker_.end() && whole->second.configured)) {
    known = whole;
  }
  if (known == by_worker_.end()) return std::nullopt;
  return known->second.endpoint;
}

std::vector<std::string> Endpoints::NamesAt(std::span<const std::string> endpoints) const {
  std::set<std::string> names;
  MutexLock lock(&mutex_);
  for (const std::string& endpoint : endpoints) {
    const auto there = by_endpoint_.find(endpoint);
    if (there == by_endpoint_.end()) continue;
    for (const HolderId& worker : there->second.workers) names.insert(worker.name);
  }
  return {names.begin(), names.end()};
}

std::optional<HolderId> Endpoints::At(const std::string& endpoint) const {
  MutexLock lock(&mutex_);
  const auto there = by_endpoint_.find(endpoint);
  if (there == by_endpoint_.end()) return std::nullopt;
  HolderId worker = *there->second.workers.begin();
  if (worker.rank == kWholeWorker) worker.rank = 0;
  return worker;
}

std::optional<std::string> Endpoints::Next(const std::set<std::string>& draining) {
  MutexLock lock(&mutex_);
  const auto drains = [&](const HolderId& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return by_worker_.find(worker)->second.draining || draining.contains(worker.name);
  };
  std::optional<std::string> found;
  auto next = by_endpoint_.upper_bound(last_);
  for (size_t left = by_endpoint_.size(); left > 0; --left, ++next) {
    if (next == by_endpoint_.end()) next = by_endpoint_.begin();
    const std::set<HolderId>& workers = next->second.workers;
    if (std::all_of(workers.begin(), workers.end(), drains)) continue;
    found = last_ = next->first;
    if (next->second.pass_over == 0) break;
    --next->second.pass_over;
  }
  return found;
}

void Endpoints::Reached(const std::string& endpoint, bool reached) {
  MutexLock lock(&mutex_);
  const auto there = by_endpoint_.find(endpoint);
  if (there != by_endpoint_.end()) there->second.pass_over = reached ? 0 : kTurnsPassedOver;
}

}  // namespace kvatlas
