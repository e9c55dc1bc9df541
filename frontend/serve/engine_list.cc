// The text form of an engine (`EngineSpec::Parse`), files of these, names with several addresses
// (`Resolve`), pods (`SpecsOf`, `Watch`), and the list made of all (`Gather`).

#include "frontend/serve/engine_list.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "frontend/engine_client/engine_call.h"
#include "indexer/base/mutex.h"
#include "indexer/discovery/k8s_pods.h"
#include "indexer/engine_directory/dialed_workers.h"
#include "indexer/kv_events/engine_registration.h"
#include "indexer/process/flags.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

constexpr int kEventsPort = 5557;
constexpr int kReplayPort = 5657;
constexpr uint32_t kRanksMax = 1024;
// Shown with every error of the text form.
constexpr char kForm[] =
    "expected "
    "URL[;events=tcp://HOST:PORT][;replay=tcp://HOST:PORT][;topic=TEXT][;key=CURVE_KEY]"
    "[;name=NAME][;ranks=N][;first_rank=N][;hybrid=true][;window_tokens=N][;chunk_tokens=N]"
    "[;offload_chunk_tokens=N][;silent_tiers=TIERS][;silent_blocks=N][;silent_seconds=N][;count_"
    "copies=false]"
    "[;store=NAME][;store_tiers=TIERS][;eagle_drop="
    "all]";

// The entry, what is wrong with it, and what was expected.
absl::Status Wrong(std::string_view text, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "engine '", absl::string_view(text.data(), text.size()), "': ", what, "; ", kForm));
}

// "tcp://h:5557" and 2: "tcp://h:5559". An endpoint without a port, such as ipc://, stays as it is
// for rank 0 and gets the rank behind it for others, as engines do.
std::string WithRank(const std::string& endpoint, uint32_t rank) {
  if (endpoint.empty() || endpoint == "none") return "";
  if (endpoint.starts_with(kPodTopics)) return WithRank(endpoint.substr(kPodTopics.size()), rank);
  if (rank == 0) return endpoint;
  const size_t colon = endpoint.rfind(':');
  int port = 0;
  if (endpoint.rfind("tcp://", 0) == 0 && absl::SimpleAtoi(endpoint.substr(colon + 1), &port))
    return absl::StrCat(endpoint.substr(0, colon + 1), port + static_cast<int>(rank));
  return absl::StrCat(endpoint, "_dp", rank);
}

// Addresses are not resolved.
bool IsAddress(const std::string& host) {
  in6_addr scratch;
  return inet_pton(AF_INET, host.c_str(), &scratch) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &scratch) == 1;
}

// IPv6 addresses need brackets in front of a port.
std::string Bracketed(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

// With the prefix: behind one address there may be several engines.
std::string DefaultName(const EngineUrl& url) {
  return Bracketed(url.host) + ":" + url.port + url.prefix;
}

// Ports 5557 and 5657 on the host of the url.
void FillDefaults(const EngineUrl& url, EngineSpec* spec) {
  const std::string host = Bracketed(url.host);
  if (spec->events.empty()) spec->events = absl::StrCat("tcp://", host, ":", kEventsPort);
  if (spec->replay.empty()) {
    // Beside events of its own port an engine's replay socket is wherever its flags say.
    const bool usual = spec->events == absl::StrCat("tcp://", host, ":", kEventsPort);
    spec->replay = usual ? absl::StrCat("tcp://", host, ":", kReplayPort) : "none";
  }
  if (spec->name.empty()) spec->name = DefaultName(url);
}

// Addresses of a host, in order; empty: it cannot be resolved.
std::vector<std::string> AddressesOf(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  std::set<std::string> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    char text[INET6_ADDRSTRLEN] = {};
    if (getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) ==
        0)
      addresses.insert(text);
  }
  return {addresses.begin(), addresses.end()};
}

// "tcp://localhost:1" and "tcp://127.0.0.1:1" are one.
std::string SameEndpoint(std::string endpoint) {
  constexpr std::string_view kLocal = "://localhost:";
  if (const size_t at = endpoint.find(kLocal); at != std::string::npos)
    endpoint.replace(at, kLocal.size(), "://127.0.0.1:");
  return endpoint;
}

// Two engines with one endpoint would each have what the other caches, unless their topics separate
// them. Only endpoints that the list names are compared here; those that engines say, `EngineFleet`
// compares.
absl::Status CheckEvents(const std::vector<EngineSpec>& specs) {
  std::map<std::string, std::vector<const EngineSpec*>> by_endpoint;
  for (const EngineSpec& spec : specs) {
    if (!spec.has_events) continue;
    const uint32_t first = spec.first_rank.value_or(0);
    for (uint32_t rank = first; rank < first + std::max<uint32_t>(spec.ranks, 1); ++rank) {
      const std::string endpoint = SameEndpoint(spec.EventsOf(rank));
      if (endpoint.empty()) continue;
      std::vector<const EngineSpec*>& there = by_endpoint[endpoint];
      for (const EngineSpec* other : there) {
        if (!other->topic.starts_with(spec.topic) && !spec.topic.starts_with(other->topic))
          continue;
        return absl::InvalidArgumentError(absl::StrCat(
            "engines ", other->url, " and ", spec.url, " have the same events, ", endpoint,
            ": what one of them caches would count for both; give each events=ENDPOINT of its own, "
            "first_rank=N where each serves other data-parallel ranks, or events=none"));
      }
      there.push_back(&spec);
    }
  }
  return absl::OkStatus();
}

// Names are workers' names, urls are where requests go: both must be unique.
absl::Status CheckDistinct(const std::vector<EngineSpec>& specs) {
  std::set<std::string> names;
  std::set<std::string> urls;
  for (const EngineSpec& spec : specs) {
    if (!urls.insert(spec.url).second)
      return absl::InvalidArgumentError("engine " + spec.url + " is named twice");
    if (!names.insert(spec.name).second)
      return absl::InvalidArgumentError("two engines have the name '" + spec.name +
                                        "'; give each a name=… of its own");
  }
  return CheckEvents(specs);
}

// Checks the options of an entry by parsing them behind an address that stands for any pod.
absl::Status CheckOptions(const EnginePods& pods) {
  std::string text = "http://127.0.0.1:1";
  for (const std::string& option : pods.options) {
    for (const std::string_view own : {"name=", "first_rank="})
      if (option.starts_with(own))
        return absl::InvalidArgumentError("'" + option + "' is said by the pods themselves");
    absl::StrAppend(&text, ";", option);
  }
  return EngineSpec::Parse(text).status();
}

// Changes when the file does; 0: there is none.
int64_t StampOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return 0;
  return info.st_mtim.tv_sec * int64_t{1'000'000'000} + info.st_mtim.tv_nsec + info.st_size + 1;
}

}  // namespace

// URL, then KEY=VALUE pairs in any order; a pair that is given twice counts as its last. Values are
// checked as they are read; what needs several of them at the end.
absl::StatusOr<EngineSpec> EngineSpec::Parse(std::string_view text) {
  const std::vector<std::string> parts =
      absl::StrSplit(absl::string_view(text.data(), text.size()), ';');
  EngineSpec spec;
  spec.url = std::string(absl::StripAsciiWhitespace(parts[0]));
  while (!spec.url.empty() && spec.url.back() == '/') spec.url.pop_back();
  if (spec.url.find("://") == std::string::npos) spec.url = "http://" + spec.url;
  const absl::StatusOr<EngineUrl> url = EngineUrl::Parse(spec.url);
  if (!url.ok()) return Wrong(text, std::string(url.status().message()));
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::string part(absl::StripAsciiWhitespace(parts[i]));
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (value.empty()) return Wrong(text, "'" + part + "' is not KEY=VALUE");
    if (key == "events") {
      spec.events = value;
      spec.has_events = true;
    } else if (key == "replay") {
      spec.replay = value;
      spec.has_replay = true;
    } else if (key == "topic") {
      spec.topic = value;
    } else if (key == "key") {
      spec.server_key = value;
    } else if (key == "name") {
      spec.name = value;
      spec.has_name = true;
    } else if (key == "ranks") {
      if (!absl::SimpleAtoi(value, &spec.ranks) || spec.ranks == 0 || spec.ranks > kRanksMax)
        return Wrong(text, "ranks=" + value + " is not a number from 1 to 1024");
    } else if (key == "first_rank") {
      if (!absl::SimpleAtoi(value, &spec.first_rank.emplace()) || *spec.first_rank >= kRanksMax)
        return Wrong(text, "first_rank=" + value + " is not a number below 1024");
    } else if (key == "hybrid") {
      spec.hybrid = value == "true";
      if (!spec.hybrid && value != "false")
        return Wrong(text, "hybrid=" + value + " is neither true nor false");
    } else if (key == "window_tokens" || key == "chunk_tokens" || key == "offload_chunk_tokens") {
      uint32_t* const tokens = key == "window_tokens"  ? &spec.window_tokens
                               : key == "chunk_tokens" ? &spec.chunk_tokens
                                                       : &spec.offload_chunk_tokens;
      if (!absl::SimpleAtoi(value, tokens) || *tokens == 0)
        return Wrong(text, key + "=" + value + " is not a number of tokens");
    } else if (key == "silent_tiers") {
      spec.silent_tiers = value;
      if (const auto tiers = ParseSilentTiers(value); !tiers.ok())
        return Wrong(text, std::string(tiers.status().message()));
    } else if (key == "silent_blocks" || key == "silent_seconds") {
      uint32_t* const to = key == "silent_blocks" ? &spec.silent_blocks : &spec.silent_seconds;
      if (!absl::SimpleAtoi(value, to) || *to == 0)
        return Wrong(text, key + "=" + value + " is not a number above 0");
    } else if (key == "count_copies") {
      spec.counts_copies = value == "true";
      if (!spec.counts_copies && value != "false")
        return Wrong(text, "count_copies=" + value + " is neither true nor false");
    } else if (key == "store") {
      spec.store = value;
    } else if (key == "store_tiers") {
      spec.store_tiers = value;
      if (const auto tiers = ParseStoreTiers(value); !tiers.ok())
        return Wrong(text, std::string(tiers.status().message()));
    } else if (key == "eagle_drop") {
      spec.eagle_drop = value;
      if (absl::Status bad = ParseEagleDrop(value).status(); !bad.ok())
        return Wrong(text, std::string(bad.message()));
    } else {
      return Wrong(text, "unknown key '" + key + "'");
    }
  }
  for (const std::string& endpoint : {spec.events, spec.replay}) {
    if (!endpoint.empty() && endpoint != "none" && endpoint.find("://") == std::string::npos)
      return Wrong(text, "'" + endpoint + "' is not an endpoint such as tcp://HOST:5557, nor none");
  }
  if (spec.dials_in()) {
    const auto dialed = DialedTopics::EndpointOf(spec.EventsOf(0), 0);
    if (!dialed.ok()) return Wrong(text, std::string(dialed.status().message()));
    if (spec.has_replay && spec.replay != "none")
      return Wrong(text, "an engine that dials in is not asked for replays");
  }
  if (spec.store.empty() && !spec.store_tiers.empty())
    return Wrong(text, "store_tiers=" + spec.store_tiers + " is of no store; say store=NAME too");
  FillDefaults(*url, &spec);
  return spec;
}

// "kv@" in front of the socket that it dials.
bool EngineSpec::dials_in() const { return events.starts_with(kPodTopics); }

// All that a topic may call this engine, the most precise first.
std::vector<std::string> EngineSpec::pods() const {
  const absl::StatusOr<EngineUrl> at = EngineUrl::Parse(url);
  std::vector<std::string> pods;
  if (at.ok()) pods = {at->host + ":" + at->port, at->host};
  pods.push_back(name);
  // The name of the pod, of an engine at one of its ports.
  if (const size_t colon = name.rfind(':'); colon != std::string::npos)
    pods.push_back(name.substr(0, colon));
  return pods;
}

std::string EngineSpec::EventsOf(uint32_t rank) const { return WithRank(events, rank); }
std::string EngineSpec::ReplayOf(uint32_t rank) const { return WithRank(replay, rank); }

namespace {

// Where a comment begins: at a "#" that begins the line or follows a blank, since keys may contain
// one.
size_t CommentAt(const std::string& line) {
  for (size_t at = line.find('#'); at != std::string::npos; at = line.find('#', at + 1)) {
    if (at == 0 || absl::ascii_isspace(static_cast<unsigned char>(line[at - 1]))) return at;
  }
  return line.size();
}

}  // namespace

// The first bad line refuses the whole file.
absl::StatusOr<std::vector<EngineSpec>> ReadEnginesFile(const std::string& path) {
  // A FIFO is not waited for.
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (type != std::filesystem::file_type::regular && type != std::filesystem::file_type::not_found)
    return absl::InvalidArgumentError(path + ": is no regular file");
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(path + ": no such file, or not readable");
  std::vector<EngineSpec> specs;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.find('\0') != std::string::npos)
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": has a NUL byte; expected a file of text"));
    line = line.substr(0, CommentAt(line));
    const std::string text(absl::StripAsciiWhitespace(line));
    if (text.empty()) continue;
    absl::StatusOr<EngineSpec> spec = EngineSpec::Parse(text);
    if (!spec.ok())
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": ", spec.status().message()));
    specs.push_back(*std::move(spec));
  }
  return specs;
}

// Blocking (DNS). A name with one address stays a name, so that the engine keeps its identity when
// the address changes; one with several becomes an engine per address, and its endpoints on that
// host follow.
std::vector<EngineSpec> Resolve(const std::vector<EngineSpec>& specs) {
  std::vector<EngineSpec> resolved;
  for (const EngineSpec& spec : specs) {
    const absl::StatusOr<EngineUrl> url = EngineUrl::Parse(spec.url);
    std::vector<std::string> addresses;
    if (url.ok() && !IsAddress(url->host) && url->host != "localhost")
      addresses = AddressesOf(url->host);
    if (addresses.size() < 2) {
      resolved.push_back(spec);
      continue;
    }
    for (const std::string& address : addresses) {
      EngineUrl one = *url;
      one.host = address;
      EngineSpec each = spec;
      each.url = "http://" + DefaultName(one);
      each.name = spec.has_name ? spec.name + "@" + address : DefaultName(one);
      for (std::string* endpoint : {&each.events, &each.replay}) {
        const size_t at = endpoint->find("://" + url->host + ":");
        if (at != std::string::npos)
          endpoint->replace(at + 3, url->host.size(), Bracketed(address));
      }
      resolved.push_back(std::move(each));
    }
  }
  return resolved;
}

// Builds the text form and parses it, so that pods have the same defaults and checks as entries.
std::vector<EngineSpec> SpecsOf(const EnginePods& pods, const ServiceRecord& pod) {
  std::vector<EngineSpec> specs;
  const std::string host = Bracketed(pod.grpc);
  for (size_t i = 0; i < pods.http.size(); ++i) {
    const bool several = pods.http.size() > 1;
    std::string text = absl::StrCat("http://", host, ":", pods.http[i], ";name=", pod.name);
    if (several) absl::StrAppend(&text, ":", pods.http[i], ";first_rank=", i);
    if (!several && pods.ranks > 0) absl::StrAppend(&text, ";ranks=", pods.ranks);
    if (pods.events != 0) absl::StrAppend(&text, ";events=tcp://", host, ":", pods.events);
    if (pods.replay != 0) absl::StrAppend(&text, ";replay=tcp://", host, ":", pods.replay);
    for (const std::string& option : pods.options) absl::StrAppend(&text, ";", option);
    absl::StatusOr<EngineSpec> spec = EngineSpec::Parse(text);
    if (spec.ok()) specs.push_back(*std::move(spec));  // the entry's check has seen its options
  }
  return specs;
}

// One entry "k8s:…" and what its watch named last. Shared by copies of the list; the watch writes
// from its own thread.
struct EngineList::Pods {
  EnginePods entry;
  EngineAddresses addresses;
  Mutex mutex;
  std::vector<ServiceRecord> records ABSL_GUARDED_BY(mutex);
  bool news ABSL_GUARDED_BY(mutex) = false;
  std::unique_ptr<Directory> directory;  // goes first: it writes to `records`
};

// An entry that `before` watches keeps its watch, so that a reload does not lose the pods that are
// known.
absl::Status EngineList::Watch(const EngineAddresses& addresses, const EngineList* before,
                               const K8sOptions& k8s) {
  pods_.clear();
  for (const EnginePods& entry : found_) {
    auto pods = std::make_shared<Pods>();
    for (size_t i = 0; before != nullptr && i < before->pods_.size(); ++i)
      if (before->pods_[i]->entry == entry) pods = before->pods_[i];
    if (pods->directory == nullptr) {
      pods->entry = entry;
      pods->addresses = addresses;
      DirectoryOptions options{.entries = {entry.place}};
      options.k8s = k8s;
      auto directory =
          Directory::Open(options, [pods = pods.get()](const std::vector<ServiceRecord>& records) {
            MutexLock lock(&pods->mutex);
            pods->records = records;
            pods->news = true;
          });
      if (!directory.ok()) return OfFlag("engine", directory.status());
      pods->directory = *std::move(directory);
    }
    pods_.push_back(std::move(pods));
  }
  resolved_ = Gather();
  return absl::OkStatus();
}

// Sockets must be bound before any engine is known, so pods are represented by one that stands for
// all.
std::vector<std::string> EngineList::dialed() const {
  std::vector<EngineSpec> specs = given_;
  specs.insert(specs.end(), from_file_.begin(), from_file_.end());
  ServiceRecord any;
  any.grpc = "127.0.0.1";
  any.name = "pod";
  for (const EnginePods& entry : found_)
    for (EngineSpec& spec : SpecsOf(entry, any)) specs.push_back(std::move(spec));
  std::set<std::string> endpoints;
  for (const EngineSpec& spec : specs) {
    const uint32_t first = spec.first_rank.value_or(0);
    if (!spec.dials_in()) continue;
    for (uint32_t rank = first; rank < first + std::max(1u, spec.ranks); ++rank)
      endpoints.insert(spec.EventsOf(rank));
  }
  return {endpoints.begin(), endpoints.end()};
}

std::string EngineList::finds() const {
  std::vector<std::string> places;
  for (const EnginePods& entry : found_)
    places.push_back(entry.place.substr(kK8sPodsPrefix.size()));
  return places.empty() ? "" : "pods of " + absl::StrJoin(places, ", ");
}

// Entries and the file first, then pods: a pod never takes the name or url of an engine that was
// given.
std::vector<EngineSpec> EngineList::Gather() {
  std::vector<EngineSpec> all = given_;
  all.insert(all.end(), from_file_.begin(), from_file_.end());
  all = Resolve(all);
  std::set<std::string> taken;
  for (const EngineSpec& spec : all) taken.insert({spec.name, spec.url});
  // A line a minute and pod: the list is made again every few seconds.
  const auto leave_out = [](const ServiceRecord& pod, const std::string& why) {
    static LogLimiter limiter(std::chrono::minutes(1));
    LogEvery(limiter, pod.name, LogLevel::kWarning, "a pod is left out",
             {{"pod", pod.name}, {"address", pod.grpc}, {"reason", why}});
  };
  for (const std::shared_ptr<Pods>& pods : pods_) {
    MutexLock lock(&pods->mutex);
    for (const ServiceRecord& pod : pods->records) {
      if (!pods->addresses.Contains(pod.grpc)) {
        leave_out(pod, std::string(pods->addresses.Outside(pod.grpc).message()));
        continue;
      }
      for (EngineSpec& spec : SpecsOf(pods->entry, pod)) {
        const bool is_new = !taken.contains(spec.name) && !taken.contains(spec.url);
        if (!is_new) leave_out(pod, "another engine has its name or its URL");
        if (!is_new) continue;
        taken.insert({spec.name, spec.url});
        all.push_back(std::move(spec));
      }
    }
  }
  return all;
}

absl::StatusOr<EngineList> EngineList::Make(const std::vector<std::string>& texts,
                                            std::string file) {
  EngineList list;
  list.file_ = std::move(file);
  for (const std::string& text : texts) {
    if (EnginePods::IsEntry(text)) {
      absl::StatusOr<EnginePods> pods = EnginePods::Parse(text);
      absl::Status bad = pods.status();
      if (bad.ok()) bad = CheckOptions(*pods);
      if (!bad.ok())
        return OfFlag("engine",
                      absl::InvalidArgumentError(absl::StrCat("'", text, "': ", bad.message())));
      list.found_.push_back(*std::move(pods));
      continue;
    }
    absl::StatusOr<EngineSpec> spec = EngineSpec::Parse(text);
    if (!spec.ok()) return OfFlag("engine", spec.status());
    list.given_.push_back(*std::move(spec));
  }
  // Entries alone first, so that the error names the flag that is at fault.
  if (absl::Status bad = CheckDistinct(list.given_); !bad.ok()) return OfFlag("engine", bad);
  if (!list.file_.empty()) {
    if (absl::Status bad = list.ReadFile(); !bad.ok()) return OfFlag("engines_file", bad);
  }
  list.resolved_ = list.Gather();
  return list;
}

// The stamp is taken first, so that a bad file is an error once and not at each look.
absl::Status EngineList::ReadFile() {
  file_stamp_ = StampOf(file_);
  absl::StatusOr<std::vector<EngineSpec>> read = ReadEnginesFile(file_);
  if (!read.ok()) return read.status();
  // An editor that writes in place empties the file for an instant: no engine at all is taken for
  // that.
  if (read->empty() && !from_file_.empty())
    return absl::InvalidArgumentError(file_ + ": names no engine any more; expected one at least");
  std::vector<EngineSpec> all = given_;
  all.insert(all.end(), read->begin(), read->end());
  if (absl::Status bad = CheckDistinct(all); !bad.ok())
    return absl::InvalidArgumentError(file_ + ": " + std::string(bad.message()));
  from_file_ = *std::move(read);
  return absl::OkStatus();
}

// Reads what may have changed, and compares the result: DNS answers in another order change
// nothing.
absl::StatusOr<bool> EngineList::Refresh(Time now) {
  const bool changed = !file_.empty() && StampOf(file_) != file_stamp_;
  absl::Status bad;
  if (changed) bad = ReadFile();
  if (!bad.ok()) return bad;
  bool due = changed || now - resolved_at_ >= kResolveEvery;
  for (const std::shared_ptr<Pods>& pods : pods_) {
    MutexLock lock(&pods->mutex);
    due = std::exchange(pods->news, false) || due;
  }
  if (!due) return false;
  resolved_at_ = now;
  std::vector<EngineSpec> resolved = Gather();
  if (resolved == resolved_) return false;
  resolved_ = std::move(resolved);
  return true;
}

}  // namespace kvatlas
