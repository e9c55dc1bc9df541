#include "tools/testing/servers/k8s_test_server.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/mutex.h"
#include "indexer/net/http_server.h"
#include "indexer/security/pki.h"
#include "indexer/security/security.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr const char* kPaths[] = {"/apis/discovery.k8s.io/v1/namespaces/*", "/api/v1/namespaces/*"};
constexpr char kNamespace[] = "llm";
constexpr uint16_t kPort = 7410;
constexpr char kServiceLabel[] = "kubernetes.io/service-name";

Json SliceJson(const std::string& service, const std::string& name,
               const K8sTestServer::Endpoints& endpoints, uint64_t version) {
  Json slice = {{"metadata",
                 {{"name", name},
                  {"namespace", kNamespace},
                  {"resourceVersion", std::to_string(version)},
                  {"labels", {{kServiceLabel, service}}}}},
                {"addressType", "IPv4"},
                {"endpoints", Json::array()},
                {"ports", {{{"name", "grpc"}, {"port", kPort}, {"protocol", "TCP"}}}}};
  for (const auto& [address, ready] : endpoints)
    slice["endpoints"].push_back({{"addresses", {address}}, {"conditions", {{"ready", ready}}}});
  return slice;
}

Json PodJson(const std::string& app, const std::string& name, const std::string& address,
             bool ready, bool ends, uint64_t version) {
  Json metadata = {{"name", name},
                   {"namespace", kNamespace},
                   {"resourceVersion", std::to_string(version)},
                   {"labels", {{"app", app}}}};
  if (ends) metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z";
  Json status = {{"phase", "Running"},
                 {"conditions",
                  {{{"type", "PodScheduled"}, {"status", "True"}},
                   {{"type", "Ready"}, {"status", ready ? "True" : "False"}}}}};
  if (!address.empty()) status["podIP"] = address;
  return {{"metadata", metadata}, {"status", status}};
}

std::string StatusJson(int code, const std::string& message) {
  return Json{{"kind", "Status"}, {"status", "Failure"}, {"code", code}, {"message", message}}
      .dump();
}

HttpResponse Failure(int code, const std::string& message) {
  return {.status = code, .body = StatusJson(code, message)};
}

}  // namespace

struct K8sTestServer::State {
  struct Event {
    uint64_t version;
    std::string service;
    std::string type;
    Json object;
  };

  bool Happens(double probability) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return std::uniform_real_distribution<double>(0, 1)(random) < probability;
  }

  std::vector<std::string> ReadyOf(const std::string& service) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::set<std::string> ready;
    const auto found = slices.find(service);
    if (found == slices.end()) return {};
    for (const auto& [name, slice] : found->second) {
      if (!slice.contains("endpoints")) continue;  // a pod
      for (const Json& endpoint : slice["endpoints"]) {
        if (endpoint["conditions"]["ready"])
          ready.insert(endpoint["addresses"][0].get<std::string>() + ":" + std::to_string(kPort));
      }
    }
    return {ready.begin(), ready.end()};
  }

  void Changed(const std::string& service, const std::string& type, Json object)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    events.push_back({version, service, type, std::move(object)});
    history[service].push_back(ReadyOf(service));
    wake.SignalAll();
  }

  HttpResponse Answer(const HttpRequest& request) {
    MutexLock lock(&mutex);
    last_query = request.query;
    if (answer_all != 0) return Failure(answer_all, answer_all_message);
    std::string authorization;
    for (const auto& [name, value] : request.headers)
      if (absl::EqualsIgnoreCase(name, "authorization")) authorization = value;
    if (authorization != "Bearer " + token) {
      ++unauthorized;
      return Failure(401, "Unauthorized");
    }
    if (request.path !=
            absl::StrCat("/apis/discovery.k8s.io/v1/namespaces/", kNamespace, "/endpointslices") &&
        request.path != absl::StrCat("/api/v1/namespaces/", kNamespace, "/pods"))
      return Failure(403, "endpointslices.discovery.k8s.io is forbidden");
    if (Happens(faults.refuse)) return Failure(500, "etcdserver: request timed out");
    const std::string selector = request.Param("labelSelector").value_or("");
    const std::string service = selector.substr(selector.find('=') + 1);
    return request.Param("watch").value_or("") == "1" ? Watch(request, service)
                                                      : List(request, service);
  }

  HttpResponse List(const HttpRequest& request, const std::string& service)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (Happens(faults.garbage)) return {.body = "{\"items\": ["};
    // A list is of one version, however many pages it takes.
    const std::string from = request.Param("continue").value_or("");
    if (!from.empty() && (!listings.contains(from) || Happens(faults.gone)))
      return Failure(410, "The provided continue parameter is too old");
    Listing listing;
    if (from.empty()) {
      listing.version = version;
      for (const auto& [name, slice] : slices[service]) listing.items.push_back(slice);
    } else {
      listing = listings[from];
      listings.erase(from);
    }
    const size_t limit = std::min<size_t>(page_items, listing.items.size());
    Json page = {
        {"kind", "EndpointSliceList"},
        {"metadata", {{"resourceVersion", std::to_string(listing.version)}}},
        {"items", Json(std::vector<Json>(listing.items.begin(), listing.items.begin() + limit))}};
    listing.items.erase(listing.items.begin(), listing.items.begin() + limit);
    if (listing.items.empty()) {
      ++lists;
    } else {
      const std::string next = absl::StrCat("page/", ++pages, "=");
      page["metadata"]["continue"] = next;
      listings[next] = std::move(listing);
    }
    return {.body = page.dump()};
  }

  HttpResponse Watch(const HttpRequest& request, const std::string& service)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const uint64_t from = std::stoull(request.Param("resourceVersion").value_or("0"));
    const auto seconds = std::stoll(request.Param("timeoutSeconds").value_or("60"));
    if (Happens(faults.gone)) return Failure(410, "too old resource version");
    ++watches;
    return {.more = [this, service, seen = from, generation = watches_ended,
                     until = Clock::Real().Now() + std::chrono::seconds(seconds),
                     broken = false](std::string* piece) mutable {
      if (broken) throw std::runtime_error("cut");
      return More(service, generation, until, &seen, &broken, piece);
    }};
  }

  // The events of a watch after `*seen`; waits for one. False: the watch ends.
  bool More(const std::string& service, uint64_t generation, Time until, uint64_t* seen,
            bool* broken, std::string* piece) ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    while (true) {
      if (stopping || generation != watches_ended) return false;
      if (*seen < compacted) {
        *piece +=
            Json{{"type", "ERROR"}, {"object", Json::parse(StatusJson(410, "too old"))}}.dump() +
            "\n";
        return false;
      }
      for (const Event& event : events) {
        if (event.version <= *seen) continue;
        *seen = event.version;
        if (event.service != service) continue;
        return Tell(event, broken, piece);
      }
      const Duration left = until - Clock::Real().Now();
      if (left <= Duration::zero()) return false;
      wake.WaitFor(&mutex, left);
    }
  }

  // With whatever goes wrong.
  bool Tell(const Event& event, bool* broken, std::string* piece)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const std::string line = Json{{"type", event.type}, {"object", event.object}}.dump() + "\n";
    if (Happens(faults.gone)) {
      *piece +=
          Json{{"type", "ERROR"}, {"object", Json::parse(StatusJson(410, "too old"))}}.dump() +
          "\n";
      return false;
    }
    if (Happens(faults.end)) return false;
    if (Happens(faults.garbage)) {
      *piece += "\x01 no json\n";
      return true;
    }
    if (Happens(faults.cut)) {
      *piece += line.substr(0, line.size() / 2);
      *broken = true;
      return true;
    }
    *piece += line;
    if (Happens(faults.repeat)) *piece += line;
    if (Happens(faults.bookmark)) {
      *piece +=
          Json{{"type", "BOOKMARK"},
               {"object", {{"metadata", {{"resourceVersion", std::to_string(event.version)}}}}}}
              .dump() +
          "\n";
    }
    return true;
  }

  void WriteFile(const std::string& name, const std::string& text) const {
    const std::string path = directory + "/" + name;
    {
      std::ofstream file(path + ".new");
      file << text;
    }
    std::filesystem::rename(path + ".new", path);
  }

  struct Listing {
    uint64_t version = 0;
    std::vector<Json> items;
  };

  std::string directory;
  size_t page_items = 0;
  std::unique_ptr<HttpServer> server;

  mutable Mutex mutex;
  CondVar wake;
  std::map<std::string, std::map<std::string, Json>> slices ABSL_GUARDED_BY(mutex);  // of a Service
  std::vector<Event> events ABSL_GUARDED_BY(mutex);
  std::map<std::string, std::vector<std::vector<std::string>>> history ABSL_GUARDED_BY(mutex);
  std::map<std::string, Listing> listings ABSL_GUARDED_BY(mutex);
  uint64_t pages ABSL_GUARDED_BY(mutex) = 0;
  uint64_t version ABSL_GUARDED_BY(mutex) = 1;
  uint64_t compacted ABSL_GUARDED_BY(mutex) = 0;
  uint64_t watches_ended ABSL_GUARDED_BY(mutex) = 0;
  uint64_t lists ABSL_GUARDED_BY(mutex) = 0;
  uint64_t watches ABSL_GUARDED_BY(mutex) = 0;
  uint64_t unauthorized ABSL_GUARDED_BY(mutex) = 0;
  uint64_t tokens ABSL_GUARDED_BY(mutex) = 0;
  std::string token ABSL_GUARDED_BY(mutex);
  std::string last_query ABSL_GUARDED_BY(mutex);
  int answer_all ABSL_GUARDED_BY(mutex) = 0;
  std::string answer_all_message ABSL_GUARDED_BY(mutex);
  K8sFaults faults ABSL_GUARDED_BY(mutex);
  std::mt19937_64 random ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;
};

K8sTestServer::K8sTestServer(size_t page_items) : state_(std::make_unique<State>()) {
  signal(SIGPIPE,
         SIG_IGN);  // as in every process of ours: OpenSSL writes to connections that are gone
  std::string directory = testing::TempDir() + "/k8s_XXXXXX";
  EXPECT_NE(mkdtemp(directory.data()), nullptr);
  state_->directory = directory;
  state_->page_items = page_items;
  const absl::StatusOr<Pki> pki = Pki::Create(directory + "/pki", "cluster.example");
  EXPECT_TRUE(pki.ok()) << pki.status();
  SecurityOptions security;
  security.process = "kube-apiserver";
  security.tls = *pki->Issue({.identity = "", .dns = {"kubernetes"}, .name = "apiserver"});
  std::filesystem::copy_file(pki->ca_path(), directory + "/ca.crt");
  state_->WriteFile("namespace", kNamespace);
  ChangeToken();
  absl::StatusOr<std::shared_ptr<Security>> started = Security::Start(security);
  EXPECT_TRUE(started.ok()) << started.status();
  state_->server =
      std::make_unique<HttpServer>(HttpServerOptions{.listen = {"127.0.0.1", 0},
                                                     .pool_threads = 16,
                                                     .header_timeout = std::chrono::minutes(1),
                                                     .keep_headers = true,
                                                     .security = *started});
  for (const char* const path : kPaths) {
    state_->server->Handle(
        {.method = "GET", .path = path, .handler = [this](const HttpRequest& request) {
           return state_->Answer(request);
         }});
  }
  EXPECT_TRUE(state_->server->Start().ok());
}

K8sTestServer::~K8sTestServer() {
  {
    MutexLock lock(&state_->mutex);
    state_->stopping = true;
    state_->wake.SignalAll();
  }
  state_->server->Stop();
  std::filesystem::remove_all(state_->directory);
}

K8sOptions K8sTestServer::options() const {
  K8sOptions options;
  options.url = "https://" + state_->server->address().ToString();
  options.account_dir = state_->directory;
  options.backoff_min = std::chrono::milliseconds(1);
  options.backoff_max = std::chrono::milliseconds(20);
  options.seed = 1;
  return options;
}

void K8sTestServer::Put(const std::string& service, const std::string& slice,
                        const Endpoints& endpoints) {
  MutexLock lock(&state_->mutex);
  ++state_->version;
  const bool known = state_->slices[service].contains(slice);
  Json json = SliceJson(service, slice, endpoints, state_->version);
  state_->slices[service][slice] = json;
  state_->Changed(service, known ? "MODIFIED" : "ADDED", std::move(json));
}

void K8sTestServer::PutPod(const std::string& app, const std::string& name,
                           const std::string& address, bool ready, bool ends) {
  MutexLock lock(&state_->mutex);
  ++state_->version;
  const bool known = state_->slices[app].contains(name);
  Json json = PodJson(app, name, address, ready, ends, state_->version);
  state_->slices[app][name] = json;
  state_->Changed(app, known ? "MODIFIED" : "ADDED", std::move(json));
}

void K8sTestServer::Delete(const std::string& service, const std::string& slice) {
  MutexLock lock(&state_->mutex);
  const auto found = state_->slices[service].find(slice);
  if (found == state_->slices[service].end()) return;
  ++state_->version;
  Json json = found->second;
  json["metadata"]["resourceVersion"] = std::to_string(state_->version);
  state_->slices[service].erase(found);
  state_->Changed(service, "DELETED", std::move(json));
}

void K8sTestServer::Compact() {
  MutexLock lock(&state_->mutex);
  state_->compacted = ++state_->version;
  state_->events.clear();
  state_->listings.clear();
  state_->wake.SignalAll();
}

void K8sTestServer::SetFaults(uint64_t seed, const K8sFaults& faults) {
  MutexLock lock(&state_->mutex);
  state_->random.seed(seed);
  state_->faults = faults;
}

void K8sTestServer::EndWatches() {
  MutexLock lock(&state_->mutex);
  ++state_->watches_ended;
  state_->wake.SignalAll();
}

void K8sTestServer::ChangeToken(bool write) {
  {
    MutexLock lock(&state_->mutex);
    state_->token = "token-" + std::to_string(++state_->tokens);
  }
  if (write) WriteToken();
}

void K8sTestServer::WriteToken() {
  MutexLock lock(&state_->mutex);
  state_->WriteFile("token", state_->token + "\n");
}

void K8sTestServer::AnswerAll(int status, const std::string& message) {
  MutexLock lock(&state_->mutex);
  state_->answer_all = status;
  state_->answer_all_message = message;
}

std::vector<std::string> K8sTestServer::Ready(const std::string& service) const {
  MutexLock lock(&state_->mutex);
  return state_->ReadyOf(service);
}

std::vector<std::vector<std::string>> K8sTestServer::History(const std::string& service) const {
  MutexLock lock(&state_->mutex);
  const auto found = state_->history.find(service);
  return found == state_->history.end() ? std::vector<std::vector<std::string>>() : found->second;
}

uint64_t K8sTestServer::lists() const {
  MutexLock lock(&state_->mutex);
  return state_->lists;
}
uint64_t K8sTestServer::watches() const {
  MutexLock lock(&state_->mutex);
  return state_->watches;
}
uint64_t K8sTestServer::unauthorized() const {
  MutexLock lock(&state_->mutex);
  return state_->unauthorized;
}
std::string K8sTestServer::last_query() const {
  MutexLock lock(&state_->mutex);
  return state_->last_query;
}

}  // namespace kvatlas
