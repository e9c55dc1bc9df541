// kvatlas-frontend: which worker should take this prompt, as a service.

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "frontend/doors/ext_proc/endpoint_learner.h"
#include "frontend/doors/ext_proc/endpoints.h"
#include "frontend/doors/ext_proc/ext_proc_server.h"
#include "frontend/doors/frontend_service.h"
#include "frontend/doors/http/prompt_flags.h"
#include "frontend/peers/engine_call.h"
#include "frontend/peers/grpc_finders.h"
#include "frontend/prompt/text/local_tokenizer.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/prompt/text/token_cache.h"
#include "frontend/route/cost.h"
#include "frontend/route/frontend.h"
#include "frontend/route/policy/policy.h"
#include "frontend/route/policy/weights_file.h"
#include "frontend/truth/grpc_leaf_prober.h"
#include "frontend/truth/truth.h"
#include "frontend/truth/truth_http.h"
#include "frontend/truth/truth_service.h"
#include "frontend/ui/fleet_watch.h"
#include "frontend/ui/frontend_page.h"
#include "frontend/ui/peer_asker.h"
#include "frontend/ui/prompt_explainer.h"
#include "frontend/ui/route_tally.h"
#include "indexer/base/clock.h"
#include "indexer/base/memory_budget.h"
#include "indexer/base/shard_map.h"
#include "indexer/base/waypoints.h"
#include "indexer/discovery/announce_flag.h"
#include "indexer/discovery/announcer.h"
#include "indexer/discovery/directory.h"
#include "indexer/discovery/found_nodes.h"
#include "indexer/discovery/service_record.h"
#include "indexer/service/address.h"
#include "indexer/service/admin_http.h"
#include "indexer/service/flags.h"
#include "indexer/service/grpc_server.h"
#include "indexer/service/health.h"
#include "indexer/service/log.h"
#include "indexer/service/memory_watch.h"
#include "indexer/service/metrics.h"
#include "indexer/service/process_health.h"
#include "indexer/service/security/security.h"
#include "indexer/service/service_main.h"
#include "indexer/ui/ui_http.h"

namespace kvatlas {
namespace {

constexpr size_t kHttpConnectionsMax = 4096;
constexpr Duration kLookAtFilesEvery = std::chrono::milliseconds(500);

struct Flags {
  Address grpc{"127.0.0.1", 7430};
  Address http{"127.0.0.1", 8092};
  std::string hierarchies;
  std::string schedule = WaypointSchedule::Standard().Name();
  std::string hierarchy_schedule;
  std::vector<std::string> leaves;
  AnnounceFlag announce;
  ExtProcFlags ext_proc;
  PromptFlags prompts;
  std::string models;
  ProxyFlags proxy;
  std::string model_weights;
  std::vector<std::string> draining;
  bool question_streams = true;
  FrontendOptions frontend;
  TruthOptions truth;
  std::string memory_budget;
  bool ui_explain = false;
};

void Declare(FlagSet& flags, Flags* f) {
  FrontendOptions& o = f->frontend;
  flags.Group("Addresses");
  flags.Add("grpc", &f->grpc, "address for gRPC").Listens();
  flags.Add("http", &f->http, "address for HTTP").Listens();
  AddAnnounceFlags(flags, &f->announce);
  flags.Group("Fleet");
  flags
      .Add("hierarchy", &f->hierarchies,
           "the hierarchy's top: HOST:PORT,… that each know all cells, or "
           "NAME=HOST:PORT|HOST:PORT,… "
           "that share what is known, as in its reporters' --parents; or @FILE with either, or "
           "dns:HOST:PORT, or k8s:SERVICE[.NAMESPACE][:PORT], or redis://HOST:PORT where its nodes "
           "announce themselves")
      .List();
  flags.Add("schedule", &f->schedule, "the waypoints that leaves report, as in their --schedule");
  flags.Add("hierarchy_schedule", &f->hierarchy_schedule,
            "the waypoints that a top level of shards is told; empty: the leaves'");
  flags.Group("Questions");
  flags.Add("ask_shards", &o.ask_shards, "shards of the top level asked at once", 1, 256);
  flags.Add("hedge_after", &o.hedge_after,
            "without an answer for so long, a replica is asked beside the first");
  flags.Group("Fleet");
  flags.Add("leaves", &f->leaves,
            "own cells, asked when no hierarchy helps: CELL=HOST:PORT, or redis://HOST:PORT where "
            "leaves announce themselves");
  flags.Add("question_streams", &f->question_streams,
            "hierarchy and leaves are asked over calls that stay open; false: a call per question, "
            "for balancers of calls in between");
  flags.Group("Questions");
  flags.Add("ask", &o.ask_cells, "leaves asked at once", 1, 64);
  flags.Add("ask_ahead", &o.ask_ahead,
            "leaves asked at the same time as the hierarchy, where they can be guessed; 0: none", 0,
            64);
  flags.Add("ask_blind", &o.ask_cells_blind, "leaves asked at once without coverage information", 1,
            256);
  flags.Add("asked_max", &o.asked_max, "leaves asked for one prompt, failures included", 1, 4096);
  flags.Add("cells_best", &o.cells_best, "cells wanted from the hierarchy; 0 means all");
  flags.Add("block_size", &o.block_size, "tokens per block until the fleet says otherwise", 1,
            kBlockSizeMax);
  flags.Add("contract_seed", &o.contract.seed,
            "seed S of the hash contract, as in the leaves' --contract_seed");
  flags.Add("deadline", &o.deadline, "of a route that names none", std::chrono::milliseconds(1));
  flags.Group("Envoy");
  AddExtProcFlags(flags, &f->ext_proc);
  flags.Group("Prompts");
  AddPromptFlags(flags, &f->prompts);
  flags
      .Add("models", &f->models,
           "tokenizers of models: NAME=PATH,… with a folder, a file or an earlier name, or @FILE")
      .List();
  flags.Group("Proxy");
  AddProxyFlags(flags, &f->proxy);
  flags.Group("Weights");
  flags.Add("zone", &o.zone, "cells labelled with another zone are farther away");
  flags.Add("zone_distance", &o.zone_distance, "by so many blocks of prefill", 0);
  flags.Add("prefill_weight", &o.weights.prefill, "cost of a block to prefill", 0);
  flags.Add("queue_weight", &o.weights.queue, "cost of a block of prefill waiting ahead", 0);
  flags.Add("decode_weight", &o.weights.decode, "cost of a request at the worker", 0);
  flags.Add("memory_weight", &o.weights.memory, "cost of a block that the worker's pool lacks", 0);
  flags.Add("fetch_host", &o.weights.fetch_host, "cost of a block fetched from host memory,", 0);
  flags.Add("fetch_disk", &o.weights.fetch_disk, "from the worker's disk,", 0);
  flags.Add("fetch_remote", &o.weights.fetch_remote, "from another machine", 0);
  flags.Add("session_weight", &o.weights.session, "cost of leaving the session's worker", 0);
  flags.Add("siblings_weight", &o.weights.siblings,
            "cost of a block that another worker was just sent, when siblings go together", 0);
  flags.Add("transfer_weight", &o.weights.transfer,
            "cost of a block sent to a worker of the same cell that decodes,", 0);
  flags.Add("transfer_far_weight", &o.weights.transfer_far, "and to one of another cell", 0);
  flags.Add(
      "model_weights", &f->model_weights,
      "a JSON file, {\"MODEL\": {\"prefill\": 2, …}, …}: weights of models that have their own");
  flags.Group("Choice");
  flags.AddChoice("policy", &o.policy, "by what a worker is chosen", PolicyNames());
  flags.Add("siblings_together", &o.siblings_together,
            "requests of one prefix go to one worker before its events are back");
  flags.Add("sibling_ttl", &o.sibling_ttl, "so long is a prompt expected to be where it was sent",
            Duration(0));
  flags.Add("session_ttl", &o.sessions.ttl, "a session unheard of for so long is new");
  flags.Add("overload_queue", &o.overload.queue_blocks,
            "a worker with so many blocks to prefill gets no more requests; 0: no such threshold");
  flags.Add("overload_requests", &o.overload.requests, "nor one with so many requests", 0);
  flags.Add("overload_used", &o.overload.used_share, "nor one whose pool is in use to this share",
            0.0, 1.0);
  flags.Add("queue_wait", &o.queue_wait,
            "a route waits so long for a worker below the thresholds; 0: it is refused at once",
            Duration(0));
  flags.Add("queue_max", &o.queue_max, "routes that wait at once", 0);
  flags.Add("draining", &f->draining, "workers, by name, that get no requests");
  flags.Group("Weights");
  flags.Add("temperature", &o.weights.temperature,
            "0 takes the cheapest; T: costing T more is e times rarer", 0);
  flags.Add("seed", &o.weights.seed, "of tie-breaks and of the temperature");
  flags.Group("Choice");
  flags.Add("in_flight_ttl", &o.memory.in_flight_ttl, "how long a choice counts without a report");
  TruthOptions& t = f->truth;
  flags.Group("Truth");
  flags.Add("ui_explain", &f->ui_explain,
            "the page shows where a prompt is cached also where --http is beyond loopback");
  flags.Add("decisions_max", &t.decisions.count_max, "receipts kept to be looked up by id", 1);
  flags.Add("decisions_age", &t.decisions.age_max, "and for how long");
  flags.Add("sent_blocks_max", &t.sent_max,
            "blocks of prompts of which it is known which worker they were sent to, for diagnoses",
            1);
  flags.Add("checks_per_s", &t.checks_per_s,
            "finished prompts that leaves are asked about again, to find out why predictions fail",
            0);
  flags.Group("Limits");
  AddMemoryFlag(flags, &f->memory_budget);
  flags.Example("kvatlas-frontend --hierarchy=127.0.0.1:7420 --leaves=a=127.0.0.1:7410",
                "routes for gateways, by a hierarchy or, without it, the own cell");
  flags.Example(
      "kvatlas-frontend --hierarchy=127.0.0.1:7420 --proxy=127.0.0.1:8000 --engines="
      "w0=http://127.0.0.1:9000",
      "takes requests for engines itself");
}

// Own cells: given ones need their cell's name, announced ones have it.
absl::Status CheckLeaf(const std::string& entry) {
  absl::Status bad = CheckDirectoryEntry(entry);
  if (bad.ok() && !entry.starts_with("redis") && entry.find('=') == std::string::npos) {
    bad =
        absl::InvalidArgumentError("'" + entry + "' is none of CELL=HOST:PORT, redis://HOST:PORT");
  }
  return OfFlag("leaves", bad);
}

std::vector<ConfiguredLeaf> ToLeaves(const std::vector<ServiceRecord>& records) {
  std::vector<ConfiguredLeaf> leaves;
  for (const ServiceRecord& record : records)
    leaves.push_back({.cell = record.name, .address = record.grpc});
  return leaves;
}

struct Schedules {
  WaypointSchedule leaves = WaypointSchedule::Standard();
  WaypointSchedule hierarchy = WaypointSchedule::Standard();  // a part of the leaves'
};

absl::StatusOr<Schedules> ReadSchedules(const Flags& flags) {
  absl::StatusOr<WaypointSchedule> leaves = WaypointSchedule::Parse(flags.schedule);
  if (!leaves.ok()) return OfFlag("schedule", leaves.status());
  absl::StatusOr<WaypointSchedule> hierarchy = WaypointSchedule::Parse(
      flags.hierarchy_schedule.empty() ? flags.schedule : flags.hierarchy_schedule);
  absl::Status bad = hierarchy.status();
  if (bad.ok()) bad = hierarchy->Over(*leaves).status();
  if (!bad.ok()) return OfFlag("hierarchy_schedule", bad);
  return Schedules{*std::move(leaves), *std::move(hierarchy)};
}

// Null without any.
absl::StatusOr<std::unique_ptr<ModelRegistry>> LoadModels(const std::string& flag) {
  auto models = ModelRegistry::FromFlag(flag);
  if (models.ok()) return models;
  return absl::InvalidArgumentError(OfFlag("models", models.status()).message());
}

std::string MemoryJson(const MemoryBudget& memory) {
  nlohmann::json json = {{"budget_bytes", memory.bytes_max()},
                         {"used_bytes", memory.used_bytes()},
                         {"level", MemoryLevelName(memory.level())}};
  for (const auto& [part, bytes] : memory.Parts()) json["parts"][part] = bytes;
  return json.dump();
}

std::string PeersJson(const std::vector<PeerState>& nodes, const std::vector<PeerState>& leaves) {
  nlohmann::json json = {{"hierarchies", nlohmann::json::array()},
                         {"leaves", nlohmann::json::array()}};
  const auto add = [&](const char* kind, const std::vector<PeerState>& peers) {
    for (const PeerState& peer : peers)
      json[kind].push_back(
          {{"address", peer.address}, {"state", peer.state}, {"reason", peer.reason}});
  };
  add("hierarchies", nodes);
  add("leaves", leaves);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::map<std::string, CostWeights>> WeightsOfModels(const Flags& flags) {
  if (flags.model_weights.empty()) return std::map<std::string, CostWeights>();
  auto weights = ReadModelWeights(flags.model_weights, flags.frontend.weights);
  if (weights.ok()) return weights;
  return absl::InvalidArgumentError(OfFlag("model_weights", weights.status()).message());
}

// What may change while the process runs. `reach` shares who is given with everything that calls engines.
void AddReloads(FlagSet& set, Flags& flags, const EngineReach& reach, Endpoints* endpoints,
                Frontend* frontend) {
  set.OnReload({"prefill_weight", "queue_weight", "decode_weight", "memory_weight", "fetch_host",
                "fetch_disk", "fetch_remote", "session_weight", "siblings_weight",
                "transfer_weight", "transfer_far_weight", "temperature", "seed", "model_weights"},
               [&flags, frontend]() -> absl::StatusOr<FlagSet::Commit> {
                 absl::StatusOr<std::map<std::string, CostWeights>> of_models =
                     WeightsOfModels(flags);
                 if (!of_models.ok()) return of_models.status();
                 return FlagSet::Commit([&flags, frontend, of_models = *std::move(of_models)] {
                   frontend->SetWeights(flags.frontend.weights, of_models);
                 });
               });
  set.OnReload({"overload_queue", "overload_requests", "overload_used", "draining"},
               [&flags, frontend]() -> absl::StatusOr<FlagSet::Commit> {
                 return FlagSet::Commit([&flags, frontend] {
                   frontend->SetOverload(flags.frontend.overload);
                   frontend->SetDraining({flags.draining.begin(), flags.draining.end()});
                 });
               });
  set.OnReload({"engines"},
               [&flags, &reach, endpoints, frontend]() -> absl::StatusOr<FlagSet::Commit> {
                 auto engines = EnginesOf(flags.proxy);
                 if (!engines.ok()) return engines.status();
                 absl::StatusOr<EngineReach> now = ReachOf(flags.proxy, flags.prompts);
                 if (!now.ok()) return now.status();
                 return FlagSet::Commit(
                     [&reach, endpoints, frontend, engines = *std::move(engines), now = *now] {
                       reach.given->Set(now.given->authorities());
                       for (const auto& [worker, url] : engines)
                         endpoints->Configure(worker + "=" + url)
                             .IgnoreError();  // Envoy reaches IP addresses alone
                       frontend->SetEngines(engines);
                     });
               });
}

void SetPrefixMetrics(const TokenCache::Stats& stats, Metrics* metrics) {
  metrics->RaiseRenamed("kvatlas_frontend_prompt_text_bytes_total",
                        "Of prompts' texts, all that were to be tokenized.",
                        static_cast<double>(stats.asked_bytes));
  metrics->RaiseRenamed("kvatlas_frontend_prompt_known_bytes_total",
                        "Of them, those whose tokens were known before.",
                        static_cast<double>(stats.known_bytes));
}

// Ready once a hierarchy node or a leaf has answered, and while some is known: without, no route has a worker.
class UpstreamsWatch {
 public:
  using Tell = std::function<void(Health now, const char* why)>;

  UpstreamsWatch(const Frontend* frontend, GrpcCellFinder* cells, GrpcOverlapFinder* leaves,
                 Tell tell)
      : frontend_(frontend), cells_(cells), leaves_(leaves), tell_(std::move(tell)) {}

  void Look() {
    const bool known = frontend_->HasUpstreams();
    if (known && !answered_) {
      const bool cells = cells_->Reached();  // each connects what is not connected
      answered_ = leaves_->Reached() || cells;
    }
    const char* const why = !known       ? "no hierarchy node and no leaf is known"
                            : !answered_ ? "no hierarchy node and no leaf has answered yet"
                                         : "";
    if (why_ == why) return;
    why_ = why;
    if (!known)
      Log(LogLevel::kWarning, absl::StrCat("not ready: ", why),
          {{"remedy", "--hierarchy=HOST:PORT or --leaves=CELL=HOST:PORT"}});
    tell_(*why == '\0' ? Health::kServing : Health::kLoading, why);
  }

 private:
  const Frontend* const frontend_;
  GrpcCellFinder* const cells_;
  GrpcOverlapFinder* const leaves_;
  const Tell tell_;
  bool answered_ = false;
  std::optional<std::string> why_;  // as last told
};

// `models` may be null.
int Run(ServiceMain& service, Flags& flags, const EngineReach& reach, FoundNodes& hierarchies,
        ModelRegistry* models, uint64_t memory_bytes_max) {
  MemoryBudget memory(memory_bytes_max, MemoryMeter(memory_bytes_max));
  MemoryWatch memory_watch(&memory);
  flags.frontend.memory_budget = &memory;
  flags.frontend.hierarchies = hierarchies.map();
  GrpcTimer timer;
  GrpcCellFinder cell_finder(flags.question_streams);
  Endpoints endpoints(reach.addresses);
  GrpcOverlapFinder overlap_finder(flags.question_streams);
  EndpointLearner learner(&overlap_finder, &endpoints);
  for (const std::string& address : hierarchies.map().Addresses()) cell_finder.Connect(address);
  GrpcLeafProber leaf_prober;
  Truth truth(flags.truth, &overlap_finder, &leaf_prober, &Clock::Real());
  RouteTally tally(&truth);
  flags.frontend.observer = &tally;
  Frontend frontend(flags.frontend, &cell_finder, &learner, &Clock::Real(), &timer);
  frontend.SetDraining({flags.draining.begin(), flags.draining.end()});
  auto leaves = Directory::Open({.entries = flags.leaves, .kind = ServiceKind::kLeaf},
                                [&](const std::vector<ServiceRecord>& records) {
                                  for (const ServiceRecord& record : records)
                                    overlap_finder.Connect(record.grpc);
                                  frontend.SetLeaves(ToLeaves(records));
                                });
  if (!leaves.ok()) return service.Fail(leaves.status());
  Metrics metrics;
  LocalTokenizer local(models, {});
  auto prompts =
      PromptParts::Make(flags.prompts, reach, &frontend, models == nullptr ? nullptr : &local);
  if (!prompts.ok()) return service.Fail(prompts.status());
  FrontendService frontend_service(&frontend, &metrics, (*prompts)->router());
  const auto health = std::make_shared<ProcessHealth>();
  flags.proxy.proxy.health = health;
  auto proxy = MakeProxy(flags.proxy, reach, &frontend, (*prompts)->router(), &metrics);
  if (!proxy.ok()) return service.Fail(proxy.status());
  TruthService truth_service(&truth, &Clock::Real());
  GrpcPeerAsker peer_asker;
  FleetWatch fleet_watch({}, SourcesOf(&frontend), &peer_asker, &Clock::Real());
  fleet_watch.Start();
  const PromptExplainer explainer({.frontend = &frontend,
                                   .watch = &fleet_watch,
                                   .tokenizer = (*prompts)->tokenizer(),
                                   .cells = &cell_finder,
                                   .asker = &peer_asker});
  GrpcServer grpc({.listen = flags.grpc});
  grpc.Register(&frontend_service, "kvatlas.v1.Frontend");
  grpc.Register(&truth_service, "kvatlas.v1.Truth");
  AdminHttp http({.listen = flags.http,
                  .program = "kvatlas-frontend",
                  .connections_max = kHttpConnectionsMax,
                  .keep_headers = true,
                  .health = health},
                 &metrics);
  frontend_service.AddHttp(&http);
  memory.AddPart("bodies", [&] {
    return http.server()->bodies_bytes() + (*proxy == nullptr ? 0 : (*proxy)->bodies_bytes());
  });
  if (models != nullptr) {
    memory.AddPart("prefixes", [models] { return models->cache_stats().bytes; });
    metrics.OnScrape([&] { SetPrefixMetrics(models->cache_stats(), &metrics); });
    frontend_service.AddStatus("models", [models] {
      return models->Describe().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    });
  }
  metrics.OnScrape([&] { SetMemoryGauges(memory, "kvatlas_frontend", &metrics); });
  frontend_service.AddStatus(
      "peers", [&] { return PeersJson(cell_finder.States(), overlap_finder.States()); });
  frontend_service.AddStatus("memory", [&memory] { return MemoryJson(memory); });
  frontend_service.AddStatus("truth", [&truth] { return TruthStatusJson(truth); });
  AddTruthHttp(&truth, &Clock::Real(), &http);
  AddTruthMetrics(&truth, &metrics);
  const Ui page(
      FrontendPages({.program = "kvatlas-frontend",
                     .name = [&grpc] { return grpc.address().ToString(); },
                     .frontend = &frontend,
                     .tally = &tally,
                     .watch = &fleet_watch,
                     .truth = &truth,
                     .explainer = flags.ui_explain || IsLoopbackHost(flags.http.host) ? &explainer
                                                                                      : nullptr}),
      &http);
  ExtProcServer ext_proc(flags.ext_proc, &frontend, (*prompts)->tokenizer(), &endpoints, &metrics);
  if (absl::Status status = grpc.Start(); !status.ok()) return service.Fail(OfFlag("grpc", status));
  if (absl::Status status = ext_proc.Start(); !status.ok())
    return service.Fail(OfFlag("ext_proc", status));
  if (absl::Status status = http.Start(); !status.ok()) return service.Fail(OfFlag("http", status));
  if (*proxy != nullptr) {
    if (absl::Status status = (*proxy)->Start(); !status.ok())
      return service.Fail(OfFlag("proxy", status));
  }
  UpstreamsWatch upstreams(&frontend, &cell_finder, &overlap_finder,
                           [&](Health now, const char* why) {
                             grpc.SetHealth(now);
                             ext_proc.SetHealth(now);
                             http.SetHealth(now, why);
                           });
  upstreams.Look();
  ServiceRecord record;
  record.kind = ServiceKind::kFrontend;
  record.name = grpc.address().ToString();
  record.grpc = grpc.address().ToString();
  record.http = http.address().ToString();
  absl::StatusOr<std::unique_ptr<Announcer>> announcer = StartAnnouncing(flags.announce, record);
  if (!announcer.ok()) return service.Fail(announcer.status());
  std::vector<std::pair<std::string, Address>> listening = {{"grpc", grpc.address()},
                                                            {"http", http.address()}};
  if (ext_proc.address().has_value()) listening.emplace_back("ext_proc", *ext_proc.address());
  if (*proxy != nullptr) listening.emplace_back("proxy", (*proxy)->address());
  if (absl::Status status = service.Ready(listening); !status.ok()) return service.Fail(status);
  AddReloads(service.flags(), flags, reach, &endpoints, &frontend);
  service.OnStopSignal([&] {
    grpc.SetHealth(Health::kStopping);
    ext_proc.SetHealth(Health::kStopping);
    http.SetHealth(Health::kStopping);
  });
  service.OnWatchdog([&] { return http.health()->deaf().empty(); });
  while (!service.WaitForSignal(kLookAtFilesEvery).has_value()) {
    memory_watch.Tick();
    truth.Tick();
    if (std::optional<ShardMap> changed = hierarchies.Changed(); changed.has_value()) {
      for (const std::string& address : changed->Addresses()) cell_finder.Connect(address);
      frontend.SetHierarchies(*std::move(changed));
    }
    upstreams.Look();
  }
  if (*announcer != nullptr) (*announcer)->Stop();
  frontend.Stop();  // pending routes are answered: the servers wait for them
  if (*proxy != nullptr) (*proxy)->Stop();
  ext_proc.Stop(service.stop_deadline());
  grpc.Stop(service.stop_deadline());
  http.Stop();
  return 0;
}

int Main(int argc, char** argv) {
  ServiceMain service("kvatlas-frontend", "Which worker should take this prompt, and why.");
  Flags flags;
  Declare(service.flags(), &flags);
  service.Start(argc, argv);
  absl::Status bad;
  for (const std::string& entry : flags.leaves) {
    if (bad.ok()) bad = CheckLeaf(entry);
  }
  if (bad.ok()) bad = FoundNodes::Check("--hierarchy", flags.hierarchies);
  const absl::StatusOr<Schedules> schedules = ReadSchedules(flags);
  absl::StatusOr<std::map<std::string, std::string>> engines = EnginesOf(flags.proxy);
  if (bad.ok()) bad = engines.status();
  const absl::StatusOr<EngineReach> reach = ReachOf(flags.proxy, flags.prompts);
  if (bad.ok()) bad = reach.status();
  absl::StatusOr<std::unique_ptr<ModelRegistry>> models = LoadModels(flags.models);
  if (bad.ok()) bad = models.status();
  if (bad.ok()) bad = schedules.status();
  absl::StatusOr<std::map<std::string, CostWeights>> weights = WeightsOfModels(flags);
  if (bad.ok()) bad = weights.status();
  const absl::StatusOr<uint64_t> memory_bytes_max = ReadMemoryFlag(flags.memory_budget);
  if (bad.ok()) bad = memory_bytes_max.status();
  if (const std::optional<int> exit = service.Checked(bad)) return *exit;
  absl::StatusOr<FoundNodes> hierarchies = FoundNodes::Read("--hierarchy", flags.hierarchies);
  if (!hierarchies.ok()) return service.Fail(hierarchies.status());
  flags.frontend.model_weights = *std::move(weights);
  flags.frontend.schedule = &schedules->leaves;
  flags.frontend.hierarchy_schedule = &schedules->hierarchy;
  flags.frontend.engines = *std::move(engines);
  return Run(service, flags, *reach, *hierarchies, models->get(), *memory_bytes_max);
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
