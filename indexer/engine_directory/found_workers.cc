// From pods to registrations. The watch's thread writes `Place::records`; the thread of `Run` turns
// them into registrations (`LookAt`) and tells the directory what changed.
//
// 1. `Take` compares the pods with those known: a new name or address is a new pod.
// 2. `Ask` asks new pods where their ranks publish, `kAskedAtOnce` at a time.
// 3. `PodWorkers::Of` makes the registrations of all pods.
// 4. The first time, `TakeOver` compares them with what a checkpoint restored.
// 5. `ChangesOf` against the last time; `ChangeWorkers` unregisters and registers.

#include "indexer/engine_directory/found_workers.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/address.h"
#include "indexer/kv_events/worker_flags.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// A pod that does not answer in this time is asked again later.
constexpr Duration kAskFor = std::chrono::seconds(1);

std::string UrlAt(const std::string& address, uint16_t port) {
  return "http://" + Address{address, port}.ToString();
}

}  // namespace

absl::StatusOr<PodWorkers> PodWorkers::Parse(std::string_view entry,
                                             const EngineRegistration& of_all) {
  const auto refuse = [entry](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker \"", absl::string_view(entry.data(), entry.size()), "\": ", why));
  };
  absl::StatusOr<EnginePods> pods = EnginePods::Parse(entry);
  if (!pods.ok()) return refuse(pods.status().message());
  PodWorkers workers{.pods = *std::move(pods), .of_all = of_all};
  std::vector<std::string> options;
  for (const std::string& option : workers.pods.options) {
    constexpr std::string_view kModel = "model=";
    if (!option.starts_with(kModel)) {
      options.push_back(option);
      continue;
    }
    workers.of_all.model = option.substr(kModel.size());
    if (workers.of_all.model.empty()) return refuse("no model in \"" + option + "\"");
  }
  // Other options are the same for every pod: checked once, here.
  absl::StatusOr<EngineRegistration> with = WithWorkerOptions(workers.of_all, options);
  if (!with.ok()) return refuse(with.status().message());
  workers.of_all = *std::move(with);
  return workers;
}

// A registration for each rank of a pod.
//
// 1. The pod said its ranks, and the entry names no number: those that it said.
// 2. Else as many as the entry names, one by default; a rank's endpoint is what its server said,
//    else the entry's port plus the rank.
//
// Only ports and topics are taken from what a pod says: the address is the pod's own.
std::vector<EngineRegistration> PodWorkers::Of(const ServiceRecord& pod,
                                               const SaidSources& said) const {
  std::vector<EngineRegistration> of_ranks;
  const auto add = [&](uint32_t rank, uint16_t http, const KvEventSource* source) {
    const auto at = [&](uint16_t port) {
      return "tcp://" + Address{pod.grpc, static_cast<uint16_t>(port + rank)}.ToString();
    };
    EngineRegistration& one = of_ranks.emplace_back(of_all);
    one.instance = pod.name;
    one.rank = rank;
    // Another process named the address: it is checked against --engine_addresses.
    one.from_flags = false;
    one.source = pods.place;
    one.endpoint = at(pods.events != 0 ? pods.events : EnginePods::kEventsPort);
    one.replay_endpoint = pods.replay == 0 ? "" : at(pods.replay);
    one.url = UrlAt(pod.grpc, http);
    if (source == nullptr) return;
    const std::string endpoint = EndpointAt(pod.grpc, source->endpoint);
    if (endpoint.empty()) return;
    one.endpoint = endpoint;
    if (pods.replay == 0) one.replay_endpoint = EndpointAt(pod.grpc, source->replay_endpoint);
    if (one.topic.empty()) one.topic = source->topic;
  };
  const auto sources_of = [&said](uint16_t http) {
    const auto of_port = said.find(http);
    return of_port == said.end() ? nullptr : &of_port->second;
  };
  const KvEventSources* const sources = sources_of(pods.http[0]);
  if (pods.ranks == 0 && sources != nullptr && !sources->empty()) {
    for (const auto& [rank, source] : *sources) add(rank, pods.http[0], &source);
    return of_ranks;
  }
  for (uint32_t rank = 0; rank < std::max(1u, pods.ranks); ++rank) {
    const uint16_t http = pods.http.size() == 1 ? pods.http[0] : pods.http[rank];
    const KvEventSources* const of_port = sources_of(http);
    const KvEventSource* source = nullptr;
    if (of_port != nullptr) {
      const auto found = of_port->find(rank);
      if (found != of_port->end()) source = &found->second;
      // With several ports a server has one rank of its own and may count it from 0.
      if (source == nullptr && pods.http.size() > 1 && of_port->size() == 1)
        source = &of_port->begin()->second;
    }
    add(rank, http, source);
  }
  return of_ranks;
}

struct FoundWorkers::Place {
  struct Pod {
    ServiceRecord record;
    SaidSources said = {};
    bool answered = false;  // or is not to be asked
  };

  PodWorkers pods;
  std::vector<ServiceRecord> records;  // as the directory has them; the owner's mutex
  bool began = false;                  // likewise
  // The thread of `FoundWorkers::Run` alone:
  std::map<std::string, Pod> known;  // by name
  std::vector<EngineRegistration> now;
  bool took_over = false;
  std::unique_ptr<Directory> directory;  // goes first: it writes to `records`

  // Takes the pods that the watch has now. A pod with another address is another pod. A pod is not
  // asked where the entry names the events' port, or where its address is outside of `addresses`.
  // Returns the pods to be asked; pointers are valid until the next call.
  std::vector<Pod*> Take(const std::vector<ServiceRecord>& found,
                         const EngineAddresses& addresses) {
    std::map<std::string, Pod> after;
    std::vector<Pod*> ask;
    for (const ServiceRecord& record : found) {
      Pod& pod = after[record.name];
      const auto before = known.find(record.name);
      if (before != known.end() && before->second.record.grpc == record.grpc) {
        pod = std::move(before->second);
      } else {
        pod.record = record;
        pod.answered = pods.pods.events != 0 || !addresses.Contains(record.grpc);
      }
      if (!pod.answered) ask.push_back(&pod);
    }
    known = std::move(after);
    return ask;
  }

  // Called by several threads, each with a pod of its own. UNAVAILABLE: the server is not up yet,
  // and is asked again; any other answer is final.
  void Ask(Pod* pod) const {
    pod->answered = true;
    for (const uint16_t port : pods.pods.http) {
      absl::StatusOr<KvEventSources> said =
          AskKvEventSources(UrlAt(pod->record.grpc, port), kAskFor);
      if (said.ok()) pod->said[port] = *std::move(said);
      if (absl::IsUnavailable(said.status())) pod->answered = false;
    }
  }

  // A checkpoint or a peer may have brought back pods of this place. Pods that are there as before
  // keep their registration and what they hold; others have gone meanwhile and are unregistered.
  void TakeOver(const std::vector<EngineRegistration>& after, EngineDirectory* registry) {
    for (const EngineEntry& entry : registry->Registrations()) {
      if (entry.source != pods.pods.place) continue;
      for (const EngineListener& listener : entry.listeners) {
        const auto same =
            std::find_if(after.begin(), after.end(), [&](const EngineRegistration& one) {
              return one.instance == entry.instance && one.rank == listener.rank &&
                     one.endpoint == listener.endpoint && one.model == entry.domain.model;
            });
        if (same != after.end()) {
          now.push_back(*same);
        } else {
          (void)registry->Unregister(entry.instance, entry.domain.model, GroupOf(entry.domain),
                                     listener.rank);
        }
      }
    }
  }
};

// The steps above for one place. The mutex is held only to copy the records: asking and registering
// may take seconds.
bool FoundWorkers::LookAt(Place* place) {
  std::vector<ServiceRecord> records;
  {
    MutexLock lock(&mutex_);
    if (!place->began) return true;
    records = place->records;
  }
  const std::vector<Place::Pod*> ask = place->Take(records, addresses_);
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t at = next++; at < ask.size(); at = next++) place->Ask(ask[at]);
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(ask.size(), kAskedAtOnce); ++i) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
  std::vector<EngineRegistration> after;
  bool all_answered = true;
  for (const auto& [name, pod] : place->known) {
    all_answered = all_answered && pod.answered;
    for (EngineRegistration& one : place->pods.Of(pod.record, pod.said))
      after.push_back(std::move(one));
  }
  if (!std::exchange(place->took_over, true)) place->TakeOver(after, registry_);
  const WorkerChanges changes = ChangesOf(place->now, after);
  if (changes.gone.empty() && changes.come.empty()) return all_answered;
  Log(LogLevel::kInfo, "pods found",
      {{"place", place->pods.pods.place},
       {"come", changes.come.size()},
       {"gone", changes.gone.size()}});
  ChangeWorkers(changes, registry_);
  place->now = std::move(after);
  return all_answered;
}

// Waits for news of a watch, or `kAskAgainEvery` while some pod has not answered.
void FoundWorkers::Run() {
  for (;;) {
    bool all_answered = true;
    for (const std::unique_ptr<Place>& place : places_)
      all_answered = LookAt(place.get()) && all_answered;
    MutexLock lock(&mutex_);
    while (!news_ && !stopping_) {
      if (all_answered) {
        changed_.Wait(&mutex_);
      } else if (!changed_.WaitFor(&mutex_, kAskAgainEvery)) {
        break;
      }
    }
    if (stopping_) return;
    news_ = false;
  }
}

FoundWorkers::FoundWorkers(EngineDirectory* registry, const EngineAddresses& addresses)
    : registry_(registry), addresses_(addresses) {}

// The watches end first: they call back into this object.
FoundWorkers::~FoundWorkers() {
  for (const std::unique_ptr<Place>& place : places_) place->directory.reset();
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::unique_ptr<FoundWorkers>> FoundWorkers::Start(
    const std::vector<PodWorkers>& pods, EngineDirectory* registry,
    const EngineAddresses& addresses, const K8sOptions& k8s) {
  std::unique_ptr<FoundWorkers> found(new FoundWorkers(registry, addresses));
  for (const PodWorkers& one : pods) {
    found->places_.push_back(std::make_unique<Place>());
    Place* const place = found->places_.back().get();
    place->pods = one;
    DirectoryOptions options{.entries = {one.pods.place}};
    options.k8s = k8s;
    auto directory = Directory::Open(
        options, [found = found.get(), place](const std::vector<ServiceRecord>& records) {
          MutexLock lock(&found->mutex_);
          // Before its first answer a directory is empty, which says nothing of the pods.
          if (records.empty() && !place->began) return;
          place->began = true;
          place->records = records;
          found->news_ = true;
          found->changed_.SignalAll();
        });
    if (!directory.ok()) return directory.status();
    place->directory = *std::move(directory);
  }
  if (!pods.empty()) found->thread_ = std::thread([found = found.get()] { found->Run(); });
  return found;
}

}  // namespace kvatlas
