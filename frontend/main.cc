// kvatlas-frontend: which worker should take this prompt, as a service. `Main` reads and checks the
// flags, `Run` builds the parts and lives until a signal.

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
#include "frontend/accuracy/grpc_leaf_prober.h"
#include "frontend/accuracy/truth.h"
#include "frontend/accuracy/truth_http.h"
#include "frontend/accuracy/truth_service.h"
#include "frontend/cluster_client/grpc_lookup_clients.h"
#include "frontend/engine_client/engine_loads.h"
#include "frontend/engine_client/engine_reach.h"
#include "frontend/engine_client/suspect_probe.h"
#include "frontend/frontend_flags.h"
#include "frontend/gateway/ext_proc/endpoint_learner.h"
#include "frontend/gateway/ext_proc/endpoints.h"
#include "frontend/gateway/ext_proc/ext_proc_server.h"
#include "frontend/gateway/frontend_service.h"
#include "frontend/gateway/http/prompt_flags.h"
#include "frontend/prompt/engine_names.h"
#include "frontend/prompt/no_tokens.h"
#include "frontend/prompt/served_names.h"
#include "frontend/prompt/text/local_tokenizer.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/prompt/text/token_cache.h"
#include "frontend/router/frontend.h"
#include "frontend/status_parts.h"
#include "frontend/ui/fleet_watch.h"
#include "frontend/ui/frontend_page.h"
#include "frontend/ui/peer_asker.h"
#include "frontend/ui/prompt_explainer.h"
#include "frontend/ui/route_tally.h"
#include "frontend/ui/session_finder.h"
#include "frontend/ui/told_domains.h"
#include "frontend/upstreams_watch.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/base/memory_budget.h"
#include "indexer/base/shard_map.h"
#include "indexer/base/waypoints.h"
#include "indexer/discovery/announcer.h"
#include "indexer/discovery/directory.h"
#include "indexer/discovery/found_nodes.h"
#include "indexer/discovery/service_record.h"
#include "indexer/net/connection_account.h"
#include "indexer/net/grpc_server.h"
#include "indexer/process/admin_http.h"
#include "indexer/process/flags.h"
#include "indexer/process/memory_watch.h"
#include "indexer/process/process_health.h"
#include "indexer/process/service_main.h"
#include "indexer/security/security.h"
#include "indexer/telemetry/health.h"
#include "indexer/telemetry/log.h"
#include "indexer/telemetry/metrics.h"
#include "indexer/ui/ui_http.h"

namespace kvatlas {
namespace {

constexpr size_t kHttpConnectionsMax = 4096;
// How often the main thread looks at files, peers and predictions.
constexpr Duration kLookAtFilesEvery = std::chrono::milliseconds(500);
// How long nodes and leaves have to say which domains they know, when prompts ask before any route.
constexpr Duration kDomainsWithin = std::chrono::milliseconds(200);

// The tokenizers of --models. Null: none is given.
absl::StatusOr<std::unique_ptr<ModelRegistry>> LoadModels(const std::string& flag) {
  auto models = ModelRegistry::FromFlag(flag);
  if (models.ok()) return models;
  return absl::InvalidArgumentError(OfFlag("models", models.status()).message());
}

// A record's name is its cell.
std::vector<ConfiguredLeaf> ToLeaves(const std::vector<ServiceRecord>& records) {
  std::vector<ConfiguredLeaf> leaves;
  for (const ServiceRecord& record : records)
    leaves.push_back({.cell = record.name, .address = record.grpc});
  return leaves;
}

// The flags that may change while the process runs. Each reload reads and checks first, and returns
// what commits it, so that a wrong value changes nothing. `reach` shares its given engines with
// everything that calls engines.
void AddReloads(FlagSet& set, FrontendFlags& flags, const EngineReach& reach, Endpoints* endpoints,
                EngineLoads* loads, EngineNames* names, Frontend* frontend) {
  set.OnReload({"adapters"}, [&flags, names]() -> absl::StatusOr<FlagSet::Commit> {
    absl::StatusOr<ServedNames> adapters = AdaptersOf(flags.prompts);
    if (!adapters.ok()) return adapters.status();
    return FlagSet::Commit([names, adapters = *std::move(adapters)] { names->SetGiven(adapters); });
  });
  set.OnReload(
      {"prefill_weight", "queue_weight", "decode_weight", "memory_weight", "fetch_host",
       "fetch_disk", "fetch_remote", "session_weight", "siblings_weight", "crowding_weight",
       "transfer_weight", "transfer_far_weight", "temperature", "seed", "model_weights"},
      [&flags, frontend]() -> absl::StatusOr<FlagSet::Commit> {
        absl::StatusOr<std::map<std::string, CostWeights>> of_models = WeightsOfModels(flags);
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
  set.OnReload({kEngineApiKeyFileFlag}, [&flags, &reach]() -> absl::StatusOr<FlagSet::Commit> {
    absl::StatusOr<std::string> key = ReadEngineApiKey(flags.proxy.engine_api_key_file);
    if (!key.ok()) return key.status();
    return FlagSet::Commit([&reach, key = *key] { reach.given->SetApiKey(key); });
  });
  set.OnReload({"engines"},
               [&flags, &reach, endpoints, loads, frontend]() -> absl::StatusOr<FlagSet::Commit> {
                 auto engines = EnginesOf(flags.proxy);
                 if (!engines.ok()) return engines.status();
                 absl::StatusOr<EngineReach> now = ReachOf(flags.proxy, flags.prompts);
                 if (!now.ok()) return now.status();
                 return FlagSet::Commit([&reach, endpoints, loads, frontend,
                                         engines = *std::move(engines), now = *now] {
                   reach.given->Set(now.given->authorities());
                   for (const auto& [worker, url] : engines)
                     endpoints->Configure(worker + "=" + url)
                         .IgnoreError();  // Envoy reaches IP addresses alone
                   loads->SetEngines(engines);
                   frontend->SetEngines(engines);
                 });
               });
}

// The share of prompts' texts whose tokens were cached.
void SetPrefixMetrics(const TokenCache::Stats& stats, Metrics* metrics) {
  metrics->RaiseRenamed("kvatlas_frontend_prompt_text_bytes_total",
                        "Of prompts' texts, all that were to be tokenized.",
                        static_cast<double>(stats.asked_bytes));
  metrics->RaiseRenamed("kvatlas_frontend_prompt_known_bytes_total",
                        "Of them, those whose tokens were known before.",
                        static_cast<double>(stats.known_bytes));
}

// Builds the parts in the order of what refers to what, as locals: their destructors run in the
// reverse order.
//   1. Memory, timer, finders; in front of the overlap finder the endpoint learner, in front of
//      that the engines' loads.
//   2. Observers (tally in front of truth), then the frontend, which asks and reports through all
//      of these.
//   3. Leaves: given ones, and those that announce themselves from here on, in a thread of the
//      directory.
//   4. Prompts, services, proxy, page, endpoint picker; nothing listens yet.
//   5. Servers start, the proxy last, so that a request finds everything there.
//   6. Announced and ready; then the loop of the main thread: memory, truth, parents, health.
//   7. After the signal: the announcement is withdrawn, waiting routes end, then the servers stop.
// `models` may be null.
int Run(ServiceMain& service, FrontendFlags& flags, const EngineReach& reach,
        FoundNodes& hierarchies, ModelRegistry* models, uint64_t memory_bytes_max) {
  MemoryBudget memory(memory_bytes_max, MemoryMeter(memory_bytes_max));
  MemoryWatch memory_watch(&memory);
  flags.frontend.memory_budget = &memory;
  flags.frontend.hierarchies = hierarchies.map();
  GrpcTimer timer;
  GrpcCellFinder cell_finder(flags.question_streams);
  Endpoints endpoints(reach.addresses);
  GrpcOverlapFinder overlap_finder(flags.question_streams);
  EndpointLearner learner(&overlap_finder, &endpoints, PoolOf(flags.ext_proc));
  // The first route must not wait for a connection.
  for (const std::string& address : hierarchies.map().Addresses()) cell_finder.Connect(address);
  GrpcLeafProber leaf_prober;
  Truth truth(flags.truth, &overlap_finder, &leaf_prober, &Clock::Real());
  RouteTally tally(&truth);
  flags.frontend.observer = &tally;
  EngineLoads loads({.engines = flags.frontend.engines,
                     .every = flags.proxy.engine_load_every,
                     .call = {.reach = reach}});
  EngineLoadFinder load_finder(&learner, &loads);
  flags.frontend.engine_load = [&loads](const HolderId& worker) { return loads.Of(worker); };
  Frontend frontend(flags.frontend, &cell_finder, &load_finder, &Clock::Real(), &timer);
  learner.SetCellOf(CellsOf(&frontend));
  const SuspectProbe suspect_probe({.reach = reach}, &frontend);
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
  GrpcPeerAsker peer_asker;
  NoTokensCounter no_tokens(&metrics);
  flags.prompts.router.on_no_tokens = no_tokens.counting();
  auto prompts = PromptParts::Make(
      flags.prompts, reach, &frontend, models == nullptr ? nullptr : &local,
      [&frontend, &peer_asker] { return ToldDomains(frontend, &peer_asker, kDomainsWithin); });
  if (!prompts.ok()) return service.Fail(prompts.status());
  FrontendService frontend_service(&frontend, &metrics, (*prompts)->router());
  const auto health = std::make_shared<ProcessHealth>();
  flags.proxy.proxy.health = health;
  flags.proxy.proxy.bodies_bytes_max =
      BodiesWithin(memory_bytes_max, flags.proxy.proxy.bodies_bytes_max);
  auto proxy = MakeProxy(flags.proxy, reach, &frontend, prompts->get(), &metrics);
  if (!proxy.ok()) return service.Fail(proxy.status());
  TruthService truth_service(&truth, &Clock::Real());
  FleetWatch fleet_watch({}, SourcesOf(&frontend), &peer_asker, &Clock::Real());
  fleet_watch.Start();
  const PromptExplainer explainer({.frontend = &frontend,
                                   .watch = &fleet_watch,
                                   .tokenizer = (*prompts)->tokenizer(),
                                   .cells = &cell_finder,
                                   .asker = &peer_asker});
  const SessionFinder sessions(&fleet_watch, &peer_asker);
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
  // Figures that exist only with tokenizers of this process.
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
  frontend_service.AddStatus("engine_loads", [&loads] { return EngineLoadsJson(loads.States()); });
  frontend_service.AddStatus("names", [&] { return NamesJson((*prompts)->names()->Known()); });
  frontend_service.AddStatus("memory", [&memory] { return MemoryJson(memory); });
  frontend_service.AddStatus("truth", [&truth] { return TruthStatusJson(truth); });
  AddTruthHttp(&truth, &Clock::Real(), &http);
  AddTruthMetrics(&truth, &metrics);
  const Ui page(
      FrontendPages(
          {.program = "kvatlas-frontend",
           .name = [&grpc] { return grpc.address().ToString(); },
           .frontend = &frontend,
           .tally = &tally,
           .watch = &fleet_watch,
           .truth = &truth,
           .explainer = flags.ui_explain || IsLoopbackHost(flags.http.host) ? &explainer : nullptr,
           .sessions = &sessions}),
      &http);
  flags.ext_proc.picker.served_name = (*prompts)->names()->finder();
  flags.ext_proc.picker.on_no_tokens = no_tokens.counting();
  flags.ext_proc.picker.meet_engines = [names = (*prompts)->names()](std::function<void()> later) {
    return names->Meet(std::move(later));
  };
  flags.ext_proc.picker.conventions = (*prompts)->conventions();
  ExtProcServer ext_proc(flags.ext_proc, &frontend, (*prompts)->tokenizer(), &endpoints, &metrics,
                         BodiesWithin(memory_bytes_max, ProxyOptions().bodies_bytes_max));
  // Bodies of requests are the largest memory that clients decide about.
  memory.AddPart("bodies", [&] {
    return http.server()->bodies_bytes() + (*proxy == nullptr ? 0 : (*proxy)->bodies_bytes()) +
           ext_proc.bodies_bytes();
  });
  if (absl::Status status = grpc.Start(); !status.ok()) return service.Fail(OfFlag("grpc", status));
  if (absl::Status status = ext_proc.Start(); !status.ok())
    return service.Fail(OfFlag("ext_proc", status));
  if (absl::Status status = http.Start(); !status.ok()) return service.Fail(OfFlag("http", status));
  if (*proxy != nullptr) {
    if (absl::Status status = (*proxy)->Start(); !status.ok())
      return service.Fail(OfFlag("proxy", status));
  }
  UpstreamsWatch upstreams(&frontend, &cell_finder, &overlap_finder, *proxy != nullptr,
                           [&](Health now, const char* why) {
                             grpc.SetHealth(now);
                             ext_proc.SetHealth(now);
                             http.SetHealth(now, why);
                           });
  // Before the process says that it is ready, so that its first health is right.
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
  AddReloads(service.flags(), flags, reach, &endpoints, &loads, (*prompts)->names(), &frontend);
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
  // The announcement goes first, so that no client is sent here any more.
  if (*announcer != nullptr) (*announcer)->Stop();
  frontend.Stop();  // pending routes are answered: the servers wait for them
  (*prompts)->names()->Stop();
  if (*proxy != nullptr) (*proxy)->Stop();
  ext_proc.Stop(service.stop_deadline());
  grpc.Stop(service.stop_deadline());
  http.Stop();
  return 0;
}

// All flags are checked before the first part is built; the first error is the one that is said.
int Main(int argc, char** argv) {
  ServiceMain service("kvatlas-frontend", "Which worker should take this prompt, and why.");
  FrontendFlags flags;
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
  if (bad.ok()) {
    // Its own files and listeners, questions to leaves and nodes, requests to each engine, and then
    // some clients.
    bad = CheckDescriptors(64 + 4 * engines->size(),
                           absl::StrCat("with ", engines->size(), " engines"));
  }
  if (const std::optional<int> exit = service.Checked(bad)) return *exit;
  absl::StatusOr<FoundNodes> hierarchies = FoundNodes::Read("--hierarchy", flags.hierarchies);
  if (!hierarchies.ok()) return service.Fail(hierarchies.status());
  flags.frontend.model_weights = *std::move(weights);
  // `schedules` outlives `Run`, in which all prompts refer to it.
  flags.frontend.schedule = &schedules->leaves;
  flags.frontend.hierarchy_schedule = &schedules->hierarchy;
  flags.frontend.engines = *std::move(engines);
  return Run(service, flags, *reach, *hierarchies, models->get(), *memory_bytes_max);
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
