// Two maps that are each other's inverse, `by_worker_` and `by_endpoint_` (`Put` and `Drop` change
// both), and beside them `named_`: workers whose url has a host name. Such a worker is in
// `by_worker_` only while its name has exactly one address.

#include "frontend/gateway/ext_proc/endpoints.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "indexer/base/address.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// The rank of an entry that was configured for all ranks of a worker. No real rank: `WorkerOf`
// refuses it.
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

// Host and port of a url; the host may be a name. An IPv6 zone ('%') is refused: it means something
// on this machine only.
absl::StatusOr<Address> AddressOf(std::string_view url) {
  if (const size_t scheme = url.find("://"); scheme != std::string_view::npos)
    url.remove_prefix(scheme + 3);
  absl::StatusOr<Address> address = Address::Parse(url.substr(0, url.find('/')));
  if (address.ok() && (address->port == 0 || address->host.find('%') != std::string::npos))
    return absl::InvalidArgumentError("'" + std::string(url) + "' is no IP:PORT");
  return address;
}

// REQUIRES: `endpoint` has a port. IPv6 keeps its brackets.
std::string_view HostOf(std::string_view endpoint) {
  return endpoint.substr(0, endpoint.rfind(':'));
}

// At most one line per worker in ten seconds: labels come with every answer.
void WarnOf(const std::string& worker, std::string_view what, std::string_view url,
            const absl::Status& why) {
  static LogLimiter limiter(std::chrono::seconds(10));
  LogEvery(limiter, worker, LogLevel::kWarning, what,
           {{"worker", worker}, {"url", url}, {"reason", why}});
}

// The only IPv4 address, or the only IPv6 address where there is no IPv4 one. Several of a family
// are an error: a name of many pods (a service) does not say which of them is the worker.
absl::StatusOr<std::string> OnlyOf(const std::string& host, std::vector<std::string> addresses) {
  const auto six = std::stable_partition(
      addresses.begin(), addresses.end(),
      [](const std::string& one) { return one.find(':') == std::string::npos; });
  if (six != addresses.begin()) addresses.erase(six, addresses.end());
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  if (addresses.size() == 1) return addresses.front();
  return absl::FailedPreconditionError(host + " has several addresses (" + addresses[0] + ", " +
                                       addresses[1] +
                                       " …): a worker's url has to name its pod alone");
}

}  // namespace

absl::StatusOr<std::string> EndpointOf(std::string_view url) {
  const absl::StatusOr<Address> address = AddressOf(url);
  if (!address.ok()) return address.status();
  if (!IsNumericHost(address->host))
    return absl::InvalidArgumentError("'" + std::string(url) + "' is no IP:PORT");
  return address->ToString();
}

// An entry with a port is an endpoint; one without is normalized to the host as `HostOf` returns
// it, so that `Contains` can compare texts.
void EndpointSet::Add(std::string_view text) {
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    if (entries_.size() >= kSubsetMax) return;
    const absl::string_view stripped = absl::StripAsciiWhitespace(part);
    std::string_view entry(stripped.data(), stripped.size());
    if (absl::StatusOr<std::string> endpoint = EndpointOf(entry); endpoint.ok()) {
      entries_.insert(*std::move(endpoint));
      continue;
    }
    if (entry.starts_with('[') && entry.ends_with(']')) entry = entry.substr(1, entry.size() - 2);
    if (!IsNumericHost(entry) || entry.find('%') != std::string_view::npos) continue;
    entries_.insert(std::string(HostOf(Address{std::string(entry), 1}.ToString())));
  }
}

bool EndpointSet::Contains(const std::string& endpoint) const {
  return entries_.contains(endpoint) || entries_.contains(HostOf(endpoint));
}

// Replaces what was learnt of the worker.
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

// A numeric host is learnt at once, a name once it is resolved. Both only within `addresses_`: for
// a name `Resolved` checks that.
void Endpoints::Learn(const HolderId& worker, std::string_view url, bool draining) {
  const absl::StatusOr<Address> address = AddressOf(url);
  if (!address.ok())
    return WarnOf(worker.name, "a worker gets no requests: its url names no HOST:PORT", url,
                  address.status());
  if (!IsNumericHost(address->host))
    return LearnNamed(worker, {.host = address->host, .port = address->port, .draining = draining});
  const absl::Status outside = addresses_.CheckHost(address->host);
  if (!outside.ok()) {
    return WarnOf(worker.name,
                  "a worker gets no requests: its url leads outside --engine_addresses", url,
                  outside);
  }
  MutexLock lock(&mutex_);
  named_.erase(worker);
  PutLearnt(worker, address->ToString(), draining);
}

// Keeps what is configured. At the bound all learnt entries go at once: they come again with the
// next answers of leaves, and no order of use is kept for them.
void Endpoints::PutLearnt(const HolderId& worker, std::string endpoint, bool draining) {
  const auto known = by_worker_.find(worker);
  if (known != by_worker_.end() && known->second.configured) return;
  if (known != by_worker_.end() && known->second.endpoint == endpoint) {
    known->second.draining = draining;
    return;
  }
  if (known == by_worker_.end() && learnt_ >= kEndpointsMax) ForgetLearnt();
  Put(worker, {.endpoint = std::move(endpoint), .draining = draining});
}

// A name that is resolved already gives an endpoint now. `named_` keeps the worker in any case,
// since the name's address may change. The resolver's thread is woken under the lock
// (`OnNewHostName`).
void Endpoints::LearnNamed(const HolderId& worker, Named named) {
  MutexLock lock(&mutex_);
  if (named_.size() >= kEndpointsMax && !named_.contains(worker)) named_.clear();
  const auto address = address_of_.find(named.host);
  const bool is_known = address != address_of_.end();
  if (is_known) {
    PutLearnt(worker, Address{address->second, named.port}.ToString(), named.draining);
  } else if (const auto before = named_.find(worker);
             before == named_.end() || before->second.host != named.host) {
    // It is elsewhere now, and until the name is resolved nothing says where.
    DropLearnt(worker);
  }
  named_[worker] = std::move(named);
  if (!is_known && on_new_name_ != nullptr) on_new_name_();
}

std::vector<std::string> Endpoints::HostNames() const {
  std::set<std::string> names;
  MutexLock lock(&mutex_);
  for (const auto& [worker, named] : named_) names.insert(named.host);
  return {names.begin(), names.end()};
}

// The answer of a resolver for one name:
// 1. One usable address: every worker of that name gets its endpoint.
// 2. An answer without exactly one usable address: learnt endpoints of these workers are dropped,
//    and a line of the log says why.
// 3. No answer: nothing changes, and the log says so.
// A name that no worker has any more is forgotten, which bounds `address_of_` by `named_`.
void Endpoints::Resolved(const std::string& host,
                         const absl::StatusOr<std::vector<std::string>>& addresses) {
  const absl::StatusOr<std::vector<std::string>> within =
      addresses.ok() ? addresses_.Within(host, *addresses) : addresses;
  const absl::StatusOr<std::string> one =
      within.ok() ? OnlyOf(host, *within) : absl::StatusOr<std::string>(within.status());
  MutexLock lock(&mutex_);
  // Known addresses stay known while a resolver is away.
  if (addresses.ok()) address_of_.erase(host);
  if (one.ok()) address_of_[host] = *one;
  std::string worker_of;
  for (const auto& [worker, named] : named_) {
    if (named.host != host) continue;
    worker_of = worker.name;
    if (one.ok()) {
      PutLearnt(worker, Address{*one, named.port}.ToString(), named.draining);
    } else if (addresses.ok()) {
      DropLearnt(worker);
    }
  }
  if (worker_of.empty()) {
    address_of_.erase(host);
  } else if (!one.ok()) {
    WarnOf(worker_of, "a worker gets no requests: the host name of its url gives no address", host,
           one.status());
  }
}

void Endpoints::OnNewHostName(std::function<void()> call) {
  MutexLock lock(&mutex_);
  on_new_name_ = std::move(call);
}

void Endpoints::Forget(const HolderId& worker) {
  MutexLock lock(&mutex_);
  named_.erase(worker);
  members_.erase(worker);
  DropLearnt(worker);
}

void Endpoints::OfMembersAlone() {
  MutexLock lock(&mutex_);
  members_alone_ = true;
}

void Endpoints::Join(const HolderId& worker) {
  MutexLock lock(&mutex_);
  if (members_.size() >= kEndpointsMax && !members_.contains(worker)) members_.clear();
  members_.insert(worker);
}

// What a rank says gives way to what is configured for the whole worker. A worker as a whole counts
// as long as one of its ranks is a member.
bool Endpoints::Counts(const Entry& entry, const HolderId& worker) const {
  if (!entry.configured) {
    const auto whole = by_worker_.find(Whole(worker));
    return whole == by_worker_.end() || !whole->second.configured;
  }
  if (!members_alone_) return true;
  if (worker.rank != kWholeWorker) return members_.contains(worker);
  const auto first = members_.lower_bound({worker.name, 0, ""});
  return first != members_.end() && first->name == worker.name;
}

void Endpoints::DropLearnt(const HolderId& worker) {
  const auto known = by_worker_.find(worker);
  if (known != by_worker_.end() && !known->second.configured) Drop(worker);
}

// REQUIRES: `entry.endpoint` is a valid IP:PORT. An earlier entry of the worker is dropped first.
void Endpoints::Put(const HolderId& worker, Entry entry) {
  Drop(worker);
  if (!entry.configured) ++learnt_;
  by_endpoint_[entry.endpoint].workers.insert(worker);
  by_worker_[worker] = std::move(entry);
}

// An endpoint goes with its last worker, and with it the count of turns to pass over.
void Endpoints::Drop(const HolderId& worker) {
  const auto known = by_worker_.find(worker);
  if (known == by_worker_.end()) return;
  if (!known->second.configured) --learnt_;
  const auto there = by_endpoint_.find(known->second.endpoint);
  there->second.workers.erase(worker);
  if (there->second.workers.empty()) by_endpoint_.erase(there);
  by_worker_.erase(known);
}

// Two passes: `Drop` would invalidate the iteration.
void Endpoints::ForgetLearnt() {
  std::vector<HolderId> learnt;
  for (const auto& [worker, entry] : by_worker_)
    if (!entry.configured) learnt.push_back(worker);
  for (const HolderId& worker : learnt) Drop(worker);
}

std::optional<std::string> Endpoints::Of(const HolderId& worker) const {
  MutexLock lock(&mutex_);
  auto known = by_worker_.find(worker);
  if (known == by_worker_.end() || !Counts(known->second, worker))
    known = by_worker_.find(Whole(worker));
  if (known == by_worker_.end() || !Counts(known->second, worker)) return std::nullopt;
  return known->second.endpoint;
}

std::vector<std::string> Endpoints::NamesAt(const EndpointSet& endpoints) const {
  std::set<std::string> names;
  MutexLock lock(&mutex_);
  const auto add = [&](const There& there) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const HolderId& worker : there.workers)
      if (Counts(by_worker_.find(worker)->second, worker)) names.insert(worker.name);
  };
  for (const std::string& entry : endpoints.entries()) {
    if (const auto there = by_endpoint_.find(entry); there != by_endpoint_.end())
      add(there->second);
    // `entry` is a host: all of its ports follow each other in the sorted map.
    for (auto there = by_endpoint_.lower_bound(entry + ":");
         there != by_endpoint_.end() && HostOf(there->first) == entry; ++there)
      add(there->second);
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> Endpoints::Names() const {
  std::set<std::string> names;
  MutexLock lock(&mutex_);
  for (const auto& [worker, entry] : by_worker_)
    if (Counts(entry, worker)) names.insert(worker.name);
  return {names.begin(), names.end()};
}

// A whole worker is reported as rank 0: reports and suspects need a rank that exists.
std::optional<HolderId> Endpoints::At(const std::string& endpoint) const {
  MutexLock lock(&mutex_);
  const auto there = by_endpoint_.find(endpoint);
  if (there == by_endpoint_.end()) return std::nullopt;
  HolderId worker = *there->second.workers.begin();
  if (worker.rank == kWholeWorker) worker.rank = 0;
  return worker;
}

// One round over the sorted endpoints, beginning behind the one given out last. An endpoint to be
// passed over uses up one of its turns and stays `found` as the last resort, so a fleet in which no
// endpoint was reached still gets one. O(endpoints) at worst.
std::optional<std::string> Endpoints::Next(const std::set<std::string>& draining,
                                           const EndpointSet* among) {
  MutexLock lock(&mutex_);
  const auto passed = [&](const HolderId& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const Entry& entry = by_worker_.find(worker)->second;
    return entry.draining || draining.contains(worker.name) || !Counts(entry, worker);
  };
  std::optional<std::string> found;
  auto next = by_endpoint_.upper_bound(last_);
  for (size_t left = by_endpoint_.size(); left > 0; --left, ++next) {
    if (next == by_endpoint_.end()) next = by_endpoint_.begin();
    if (among != nullptr && !among->Contains(next->first)) continue;
    const std::set<HolderId>& workers = next->second.workers;
    if (std::all_of(workers.begin(), workers.end(), passed)) continue;
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
