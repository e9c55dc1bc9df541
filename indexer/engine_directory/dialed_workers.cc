// Engines that dial in: a lane reports a topic without a stream (`DialedTopics::Socket`), this
// thread registers it (`DialedWorkers::Register`), and the directory adds a stream to the socket,
// which takes the messages that waited.

#include "indexer/engine_directory/dialed_workers.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "indexer/base/address.h"
#include "indexer/kv_events/worker_flags.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

constexpr std::string_view kPrefix = "kv@=";
constexpr std::string_view kTcp = "tcp://";
constexpr uint32_t kRanksMax = 1024;

LogLimiter& Limiter() {
  static LogLimiter limiter(std::chrono::minutes(1));
  return limiter;
}

// The pod's address for requests, if its topic has one: an address gets the port `http`, an address
// with a port is taken as it is, a name gives none.
std::string UrlOf(const std::string& pod, uint16_t http) {
  if (IsNumericHost(pod)) return "http://" + Address{pod, http}.ToString();
  const absl::StatusOr<Address> address = Address::Parse(pod);
  return address.ok() && IsNumericHost(address->host) ? "http://" + address->ToString() : "";
}

}  // namespace

std::optional<PodTopic> PodTopic::Parse(std::string_view topic) {
  if (!topic.starts_with(kPodTopics)) return std::nullopt;
  const std::string_view rest = topic.substr(kPodTopics.size());
  const size_t at = rest.find('@');
  if (rest.substr(0, at).empty()) return std::nullopt;
  return PodTopic{
      .pod = std::string(rest.substr(0, at)),
      .model = at == std::string_view::npos ? std::string() : std::string(rest.substr(at + 1))};
}

// Each rank has a port of its own: the entry's port plus the rank.
absl::StatusOr<std::string> DialedTopics::EndpointOf(const std::string& endpoint, uint32_t rank) {
  const size_t colon = endpoint.rfind(':');
  uint32_t port = 0;
  if (!endpoint.starts_with(kTcp) || colon < kTcp.size() ||
      !absl::SimpleAtoi(endpoint.substr(colon + 1), &port) || port == 0 ||
      port + rank > UINT16_MAX) {
    return absl::InvalidArgumentError("'" + endpoint + "' is no tcp://ADDRESS:PORT to listen on");
  }
  return absl::StrCat(endpoint.substr(0, colon + 1), port + rank);
}

// The callback runs in a lane's thread with the socket's lock: it only notes the topic. Lists that
// are full are emptied: topics without a stream are reported again with a later message.
ZmqSharedSocket DialedTopics::Socket(const std::string& endpoint) {
  return {.endpoint = endpoint,
          .topic = std::string(kPodTopics),
          .on_topic = [this](const std::string& at, const std::string& topic) {
            const std::optional<PodTopic> parsed = PodTopic::Parse(topic);
            MutexLock lock(&mutex_);
            if (parsed.has_value()) {
              std::map<std::string, std::string>& of_endpoint = topics_[at];
              if (of_endpoint.size() >= kTopicsMax) of_endpoint.clear();
              of_endpoint[parsed->pod] = topic;
            }
            if (news_.size() >= kTopicsMax) news_.clear();
            news_.emplace_back(at, topic);
            changed_.SignalAll();
          }};
}

std::optional<std::string> DialedTopics::Find(const std::string& endpoint,
                                              const std::vector<std::string>& pods) const {
  MutexLock lock(&mutex_);
  const auto of_endpoint = topics_.find(endpoint);
  if (of_endpoint == topics_.end()) return std::nullopt;
  for (const std::string& pod : pods) {
    const auto topic = of_endpoint->second.find(pod);
    if (topic != of_endpoint->second.end()) return topic->second;
  }
  return std::nullopt;
}

std::vector<std::pair<std::string, std::string>> DialedTopics::Wait(Duration timeout) {
  MutexLock lock(&mutex_);
  if (news_.empty() && !stopped_) (void)changed_.WaitFor(&mutex_, timeout);
  return std::exchange(news_, {});
}

void DialedTopics::Stop() {
  MutexLock lock(&mutex_);
  stopped_ = true;
  changed_.SignalAll();
}

// "kv@=ENDPOINT;OPTION…": the options of this form, and those of any worker.
absl::StatusOr<DialedEntry> DialedEntry::Parse(std::string_view entry,
                                               const EngineRegistration& of_all) {
  const auto refuse = [entry](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker \"", absl::string_view(entry.data(), entry.size()), "\": ", why));
  };
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(entry.data(), entry.size()).substr(kPrefix.size()), ';');
  DialedEntry dialed;
  dialed.of_all = of_all;
  dialed.place = absl::StrCat("kv@", parts[0]);
  uint32_t ranks = 1;
  std::vector<std::string> options;
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    const std::string name = parts[i].substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : parts[i].substr(equals + 1);
    uint32_t number = 0;
    const bool is_number = absl::SimpleAtoi(value, &number) && number > 0;
    bool good = true;
    if (name == "ranks") {
      good = is_number && number <= kRanksMax;
      ranks = number;
    } else if (name == "http") {
      good = is_number && number <= UINT16_MAX;
      dialed.http = static_cast<uint16_t>(number);
    } else if (name == "model") {
      good = dialed.says_model = !value.empty();
      dialed.of_all.model = value;
    } else {
      options.push_back(parts[i]);
    }
    if (!good) return refuse("\"" + parts[i] + "\" is no option of engines that dial in");
  }
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    absl::StatusOr<std::string> endpoint = DialedTopics::EndpointOf(parts[0], rank);
    if (!endpoint.ok()) return refuse(endpoint.status().message());
    dialed.endpoints.push_back(*std::move(endpoint));
  }
  absl::StatusOr<EngineRegistration> with = WithWorkerOptions(dialed.of_all, options);
  if (!with.ok()) return refuse(with.status().message());
  dialed.of_all = *std::move(with);
  return dialed;
}

// The registration of one topic. `from_flags`: the endpoint bound is the flag's, and only the topic
// came from the network.
absl::StatusOr<EngineRegistration> DialedEntry::Of(uint32_t rank, const std::string& topic) const {
  const std::optional<PodTopic> parsed = PodTopic::Parse(topic);
  if (!parsed.has_value()) return absl::InvalidArgumentError("it is no kv@POD@MODEL");
  EngineRegistration worker = of_all;
  worker.instance = parsed->pod;
  worker.rank = rank;
  worker.endpoint = endpoints[rank];
  worker.topic = topic;
  worker.bind = true;
  worker.from_flags = true;
  worker.source = place;
  worker.url = UrlOf(parsed->pod, http);
  if (!says_model) worker.model = parsed->model;
  if (worker.model.empty()) return absl::InvalidArgumentError("it names no model: say model=NAME");
  return worker;
}

bool DialedEntry::Names(const EngineListener& listener) const {
  return listener.bind && listener.rank < endpoints.size() &&
         listener.endpoint == endpoints[listener.rank] &&
         PodTopic::Parse(listener.topic).has_value();
}

DialedWorkers::DialedWorkers(std::vector<DialedEntry> entries, DialedTopics* topics,
                             EngineDirectory* registry, const Clock* clock)
    : entries_(std::move(entries)), topics_(topics), registry_(registry), clock_(clock) {
  if (!entries_.empty()) thread_ = std::thread([this] { Run(); });
}

// `Stop` ends the wait in `Run`.
DialedWorkers::~DialedWorkers() {
  topics_->Stop();
  if (thread_.joinable()) thread_.join();
}

// Registers topics as they come; looks for engines that went every `kLookEvery`.
void DialedWorkers::Run() {
  Time looked_at = clock_->Now();
  while (!topics_->stopped()) {
    for (const auto& [endpoint, topic] : topics_->Wait(kLookEvery)) Register(endpoint, topic);
    if (clock_->Now() - looked_at < kLookEvery) continue;
    looked_at = clock_->Now();
    ForgetGone();
  }
}

// Several entries may name one endpoint: each gets its registration. A refusal is logged and tried
// again when the topic is reported again.
void DialedWorkers::Register(const std::string& endpoint, const std::string& topic) {
  for (const DialedEntry& entry : entries_) {
    const auto at = std::find(entry.endpoints.begin(), entry.endpoints.end(), endpoint);
    if (at == entry.endpoints.end()) continue;
    const absl::StatusOr<EngineRegistration> worker =
        entry.Of(static_cast<uint32_t>(at - entry.endpoints.begin()), topic);
    const absl::Status status = worker.ok() ? registry_->Register(*worker) : worker.status();
    if (status.ok()) {
      Log(LogLevel::kInfo, "an engine dialed in",
          {{"worker", worker->instance}, {"rank", worker->rank}, {"topic", topic}});
    } else {
      LogEvery(Limiter(), topic, LogLevel::kWarning, "an engine that dialed in is not listened to",
               {{"topic", topic}, {"endpoint", endpoint}, {"reason", status}});
    }
  }
}

// Ranks of our entries that have had no connection for `kForgetAfter` are unregistered.
// `gone_since_` keeps only those that are gone now.
void DialedWorkers::ForgetGone() {
  std::map<std::pair<std::string, uint32_t>, Time> gone;
  const Time now = clock_->Now();
  for (const EngineEntry& one : registry_->List()) {
    const bool ours = std::any_of(entries_.begin(), entries_.end(), [&](const DialedEntry& entry) {
      return entry.place == one.source;
    });
    if (!ours) continue;
    for (const EngineListener& listener : one.listeners) {
      if (listener.stream.connected) continue;
      const std::pair<std::string, uint32_t> key(one.instance, listener.rank);
      const auto before = gone_since_.find(key);
      const Time since = before == gone_since_.end() ? now : before->second;
      if (now - since < kForgetAfter) {
        gone[key] = since;
        continue;
      }
      Log(LogLevel::kInfo, "an engine that dialed in is gone",
          {{"worker", one.instance}, {"rank", listener.rank}});
      (void)registry_->Unregister(one.instance, one.domain.model, GroupOf(one.domain),
                                  listener.rank);
    }
  }
  gone_since_ = std::move(gone);
}

}  // namespace kvatlas
