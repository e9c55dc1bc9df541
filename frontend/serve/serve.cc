// The whole of `kvatlas serve`, top down: flags (`Declare`), what is made of them before anything
// starts, `Server` with the process's parts, a trial's security, and the two functions of the
// header at the end.

#include "frontend/serve/serve.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "frontend/accuracy/evidence.h"
#include "frontend/accuracy/grpc_leaf_prober.h"
#include "frontend/accuracy/truth.h"
#include "frontend/accuracy/truth_http.h"
#include "frontend/accuracy/truth_service.h"
#include "frontend/cluster_client/grpc_lookup_clients.h"
#include "frontend/engine_client/engine_call.h"
#include "frontend/engine_client/own_address.h"
#include "frontend/engine_client/suspect_probe.h"
#include "frontend/gateway/ext_proc/endpoint_learner.h"
#include "frontend/gateway/ext_proc/endpoints.h"
#include "frontend/gateway/ext_proc/ext_proc_server.h"
#include "frontend/gateway/frontend_service.h"
#include "frontend/gateway/http/prompt_flags.h"
#include "frontend/gateway/http/proxied_paths.h"
#include "frontend/gateway/http/proxy.h"
#include "frontend/prompt/engine_conventions.h"
#include "frontend/prompt/no_tokens.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/remote_tokenizer.h"
#include "frontend/prompt/served_names.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/prompt/tokenizer_choice.h"
#include "frontend/router/frontend.h"
#include "frontend/router/policy/policy.h"
#include "frontend/serve/engine_finder.h"
#include "frontend/serve/engine_fleet.h"
#include "frontend/serve/engine_list.h"
#include "frontend/serve/lookup_clients/in_process_lookup_clients.h"
#include "frontend/serve/model_tokenizers.h"
#include "frontend/serve/served_namespaces.h"
#include "frontend/ui/fleet_watch.h"
#include "frontend/ui/frontend_page.h"
#include "frontend/ui/peer_asker.h"
#include "frontend/ui/prompt_explainer.h"
#include "frontend/ui/route_tally.h"
#include "frontend/ui/session_finder.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/base/shard_map.h"
#include "indexer/discovery/found_nodes.h"
#include "indexer/engine_directory/dialed_workers.h"
#include "indexer/leaf/leaf.h"
#include "indexer/net/connection_account.h"
#include "indexer/net/grpc_server.h"
#include "indexer/process/admin_http.h"
#include "indexer/process/flags.h"
#include "indexer/process/memory_watch.h"
#include "indexer/process/process_health.h"
#include "indexer/process/service_main.h"
#include "indexer/security/pki.h"
#include "indexer/security/secret_file.h"
#include "indexer/security/security.h"
#include "indexer/security/tokens.h"
#include "indexer/telemetry/health.h"
#include "indexer/telemetry/log.h"
#include "indexer/telemetry/metrics.h"
#include "indexer/ui/ui_http.h"

namespace kvatlas {
namespace {

// How often the main thread looks at engines, leaves, files and parents.
constexpr Duration kTickEvery = std::chrono::milliseconds(100);
// Engines that do not answer must not keep the process from becoming ready for the others.
constexpr Duration kFirstLookWithin = std::chrono::seconds(3);
constexpr size_t kTokenizingEnginesMax = 64;
// An engine that answers again is heard again before it is said to have no events.
constexpr Duration kReconnectMax = std::chrono::milliseconds(500);

// The flags' values; parts that have options of their own are set in place.
struct Flags {
  std::vector<std::string> engines;
  std::string engines_file;
  Address listen{"127.0.0.1", 8000};
  Address http{"127.0.0.1", 8094};
  Address grpc{"127.0.0.1", 7430};
  std::string models;
  std::string hub = DefaultHub();
  std::vector<std::string> tokenize = PromptFlags().tokenize;
  std::string parents;
  std::vector<std::string> engine_addresses = EngineAddresses::Default();
  std::string engine_api_key_file;
  std::string engine_kind = "auto";
  std::string memory_budget;
  bool secure = false;
  bool ui_explain = false;
  uint32_t guessed_blocks = GuessOptions().pool_blocks;
  LeafOptions leaf;
  FrontendOptions frontend;
  ProxyOptions proxy;
  std::vector<std::string> proxy_paths;
  ExtProcFlags ext_proc;
};

void Declare(FlagSet& flags, Flags* f) {
  flags.Group("Engines");
  flags
      .Add("engine", &f->engines,
           "the URL of an engine, or k8s:NAMESPACE/SELECTOR[;http=PORT|PORT] for pods of "
           "Kubernetes by "
           "their labels. What it does not say itself may follow: "
           ";events=tcp://HOST:PORT ;replay=tcp://HOST:PORT ;topic=T ;key=CURVE_KEY ;name=NAME "
           ";ranks=N ;first_rank=N ;hybrid=true ;window_tokens=N ;chunk_tokens=N "
           ";offload_chunk_tokens=N ;silent_tiers=TIERS ;silent_blocks=N ;silent_seconds=N "
           ";count_copies=false ;store=NAME ;store_tiers=TIERS ;eagle_drop=all")
      .Repeats();
  flags.Add("engines_file", &f->engines_file,
            "more of them, one a line, read again when it changes; empty: none");
  flags.Add(kEngineAddressesFlag, &f->engine_addresses, kEngineAddressesHelp);
  flags.Add(kEngineApiKeyFileFlag, &f->engine_api_key_file, kEngineApiKeyFileHelp);
  flags.AddChoice(kEngineKindFlag, &f->engine_kind, kEngineKindHelp, EngineKindNames());
  flags.Add("plain_engines", &f->leaf.engines.ingest.plain_engines,
            "listen to events of engines beyond loopback that have no key, in clear, also with "
            "--secure or a policy");
  flags.Add(
      "guessed_blocks", &f->guessed_blocks,
      "blocks that an engine without events is taken to keep of what was sent there, where its "
      "metrics do not say; 0: it is chosen by load alone",
      0u, 1u << 22);
  flags.Add("models", &f->models,
            "tokenizers of models: NAME=PATH,… with a folder, a file or an earlier name, or @FILE");
  flags.Add("hf_cache", &f->hub,
            "cache of Hugging Face where tokenizers of models are looked for; empty: nowhere");
  AddTokenizeFlag(flags, &f->tokenize);
  flags.Group("Addresses");
  flags.Add("listen", &f->listen, "for clients: OpenAI's API").Listens();
  flags.Add("http", &f->http, "for /status, /metrics, /healthz and routes").Listens();
  flags.Add("grpc", &f->grpc, "for routes over gRPC").Listens();
  flags.Add("leaf_http", &f->leaf.http, "for the leaf's /query, /workers and the like").Listens();
  flags.Add("leaf_grpc", &f->leaf.grpc, "for the leaf's gRPC: publishers, other frontends")
      .Listens();
  flags.Group("Security");
  flags.Add("ui_explain", &f->ui_explain,
            "the page shows where a prompt is cached also where --http is beyond loopback");
  flags.Add("secure", &f->secure,
            "a throw-away CA and a token: every port by TLS, and only with the token or a "
            "certificate; for a trial, where --tls_cert and --access_policy are not given");
  flags.Group("Routing");
  flags.AddChoice("policy", &f->frontend.policy, "by what a worker is chosen", PolicyNames());
  flags.Add("threads", &f->proxy.io_threads, "threads that pass requests on", 1u, 256u);
  flags.Group("Requests passed on");
  AddProxyLimitFlags(flags, &f->proxy, &f->proxy_paths);
  flags.Group("For gateways: an endpoint picker");
  AddExtProcFlags(flags, &f->ext_proc);
  flags.Group("A cell of a fleet");
  flags.AddName("cell", &f->leaf.cell, "name of this cell");
  flags.Add("parents", &f->parents,
            "hierarchy nodes of the fleet that this process is a cell of, as for kvatlas-leaf; "
            "empty: none");
  flags.Add("advertise", &f->leaf.advertise,
            "the leaf's gRPC address as other cells reach it; empty: that of --leaf_grpc");
  flags.Add("contract_seed", &f->leaf.contract.seed,
            "seed S of the hash contract, the same in a whole fleet");
  flags.Group("State");
  flags.Add("checkpoint_dir", &f->leaf.checkpoint.directory,
            "directory for what is known of engines' caches, over restarts; empty: none");
  AddMemoryFlag(flags, &f->memory_budget);
  flags.Example("kvatlas serve --engine http://10.0.0.1:8000 --engine http://10.0.0.2:8000",
                "two engines, which say where their events are; else these come from port 5557 of "
                "their hosts");
  flags.Example("kvatlas serve --engine 'k8s:llm/app=vllm' --listen 0.0.0.0:8000",
                "the ready pods of a Deployment of vLLM, as its service account may list and watch "
                "them");
  flags.Example(
      "kvatlas serve --engines_file engines.txt --listen 0.0.0.0:8000 --secure --plain_engines",
      "engines that come and go, in a network that is trusted; clients from elsewhere, by TLS and "
      "a "
      "token");
}

// A line of the log, in the format that was asked for. Standard output has only the ready line, for
// scripts.
void SayLine(const ServiceMain& service, bool wrong, const std::string& line) {
  const LogLevel level = wrong ? LogLevel::kWarning : LogLevel::kInfo;
  if (service.logs_text()) return Log(level, line);
  Log(level, "status line", {{"text", line}});
}

// The engines that the flags name, or why there are none. An engine that is this process itself is
// refused: the proxy would pass each request to itself until no descriptor is left.
absl::StatusOr<EngineList> EnginesOf(const Flags& flags) {
  if (flags.engines.empty() && flags.engines_file.empty()) {
    return absl::InvalidArgumentError(
        "--engine: none is given; expected --engine http://HOST:PORT, once for each, or "
        "--engines_file FILE");
  }
  absl::StatusOr<EngineList> list = EngineList::Make(flags.engines, flags.engines_file);
  if (!list.ok()) return list;
  const std::pair<const char*, const Address*> own[] = {{"listen", &flags.listen},
                                                        {"http", &flags.http},
                                                        {"grpc", &flags.grpc},
                                                        {"leaf_http", &flags.leaf.http},
                                                        {"leaf_grpc", &flags.leaf.grpc}};
  for (const EngineSpec& engine : list->engines()) {
    const absl::StatusOr<EngineUrl> url = EngineUrl::Parse(engine.url);
    const absl::StatusOr<Address> at =
        url.ok() ? Address::Parse(url->authority()) : absl::StatusOr<Address>(url.status());
    if (!at.ok()) continue;
    for (const auto& [flag, listen] : own) {
      if (LeadsTo(*at, *listen))
        return absl::InvalidArgumentError(absl::StrCat(
            "--engine: ", engine.url, " is this process itself (--", flag, "=", listen->ToString(),
            "); name the engine's own port, or listen on another"));
    }
  }
  return list;
}

// Engines of the list may be called wherever they are; `given` is shared with all parts that call
// engines.
void GiveAll(const EngineList& engines, GivenEngines* given) {
  std::set<std::string> authorities;
  for (const EngineSpec& engine : engines.engines())
    authorities.insert(EngineUrl::Parse(engine.url)->authority());
  given->Set(std::move(authorities));
}

// Where engines may be called, and with which key.
absl::StatusOr<EngineReach> ReachOf(const Flags& flags, const EngineList& engines) {
  absl::StatusOr<EngineAddresses> addresses = EngineAddresses::Parse(flags.engine_addresses);
  if (!addresses.ok()) return addresses.status();
  EngineReach reach{.addresses = *std::move(addresses)};
  GiveAll(engines, reach.given.get());
  absl::StatusOr<std::string> key = ReadEngineApiKey(flags.engine_api_key_file);
  if (!key.ok()) return key.status();
  reach.given->SetApiKey(*std::move(key));
  return reach;
}

// The models that prompts are tokenized for, adapters aside.
std::vector<std::string> ModelsOf(const EngineView& view) {
  std::vector<std::string> models;
  for (const auto& [model, engines] : view.engines)
    if (!view.names.contains(model)) models.push_back(model);
  return models;
}

// Engines that may be asked for tokens of the model, or of the model behind the name; bounded,
// since one is enough.
std::vector<std::string> UrlsOf(const EngineView& view, const std::string& model) {
  std::vector<std::string> urls;
  const EngineView::Engines* engines = view.EnginesOf(view.ModelOf(model));
  if (engines == nullptr) return urls;
  for (const auto& [name, engine] : *engines) {
    urls.push_back(engine.url);
    if (urls.size() == kTokenizingEnginesMax) break;
  }
  return urls;
}

// The parts of the process. Members are what outlives the frontend; `RunFrontend` has the rest as
// locals, declared in the order of what refers to what, so that their destructors run in the
// reverse order.
class Server {
 public:
  Server(ServiceMain& service, Flags& flags, EngineList list, EngineReach reach,
         std::unique_ptr<ModelRegistry> models, FoundNodes parents)
      : service_(service),
        flags_(flags),
        list_(std::move(list)),
        reach_(std::move(reach)),
        parents_(std::move(parents)),
        tokenizers_(std::move(models), flags_.hub),
        conventions_(*ParseEngineKind(flags_.engine_kind)) {}

  // The outer half: leaf and fleet.
  //   1. The leaf starts with what the list and the flags say; its own warnings about missing
  //      workers are off, since the fleet's lines say more.
  //   2. The fleet begins to probe (its threads), and registers nothing before its first `Tick`.
  //   3. `RunFrontend` runs until a signal.
  //   4. The leaf stops last: routes under way still ask it.
  int Run(const std::function<void(const ServeAddresses&)>& ready) {
    told_ready_ = ready;
    flags_.leaf.engines.ingest.addresses = reach_.addresses;
    flags_.leaf.parents = parents_.map();
    flags_.leaf.parents_may_come = parents_.finds();
    flags_.leaf.says_no_workers = false;  // the lines of engines say it
    flags_.leaf.engines.ingest.reconnect_max = kReconnectMax;
    flags_.leaf.engines.named = NamedBy(list_.engines());
    for (const std::string& endpoint : list_.dialed())
      flags_.leaf.engines.ingest.shared.push_back(topics_.Socket(endpoint));
    absl::StatusOr<std::unique_ptr<Leaf>> leaf = Leaf::Start(flags_.leaf);
    if (!leaf.ok()) return service_.Fail(leaf.status());
    leaf_ = *std::move(leaf);
    EngineFleet fleet(
        {.authorization =
             [this](const std::string& url) {
               const absl::StatusOr<EngineUrl> parsed = EngineUrl::Parse(url);
               return parsed.ok() ? reach_.given->AuthorizationFor(*parsed) : "";
             },
         .say = [this](bool wrong, const std::string& line) { SayLine(service_, wrong, line); },
         .tokenizer = [this](const ServedModel& model) { return TokenizerOf(model); },
         .conventions = &conventions_,
         .dialed =
             [this](const std::string& endpoint, const std::vector<std::string>& pods) {
               return topics_.Find(endpoint, pods);
             },
         .restarted =
             [this](const std::string& url) {
               if (restarted_ != nullptr) restarted_(url);
             },
         .served =
             [this](Time until) {
               return served_ == nullptr ? std::vector<ServedNamespace>() : served_->Take(until);
             }},
        &leaf_->engines());
    fleet_ = &fleet;
    fleet.SetEngines(list_.engines());
    const int status = RunFrontend();
    leaf_->Stop(service_.stop_deadline());
    return status;
  }

 private:
  // The inner half, in this thread until a signal:
  //   1. Finders in front of each other: own leaf by calls, others by gRPC, then engines without
  //      events, then what the endpoint picker learns.
  //   2. Observers behind each other: namespaces, tally, truth.
  //   3. Tokenizers: files, engines, render endpoints, in the order of --tokenize.
  //   4. Servers are built, then started. The first that fails ends the process with its flag's
  //      name.
  //   5. The engines are asked once, then the ready line is written, and flags may be read again.
  //   6. Every `kTickEvery`: the list, the fleet, the truth, health, and the parents.
  int RunFrontend() {
    const std::string own =
        flags_.leaf.advertise.empty() ? leaf_->grpc_address().ToString() : flags_.leaf.advertise;
    // Outlives the frontend, and waits for the alarms that are set.
    GrpcTimer timer;
    GrpcCellFinder cells(/*streams=*/true);
    GrpcOverlapFinder others(/*streams=*/true);
    InProcessOverlapFinder leaf(own, &leaf_->registry(), &others, &Clock::Real(),
                                [this] { leaf_->CountQuery(); });
    EngineFinder finder(
        own, &leaf, [this] { return fleet_->View(); },
        {.pool_blocks = flags_.guessed_blocks, .block_size = flags_.frontend.block_size});
    GrpcLeafProber prober;
    Truth truth({}, &finder, &prober, &Clock::Real());
    Endpoints endpoints(reach_.addresses);
    EndpointLearner learner(&finder, &endpoints, PoolOf(flags_.ext_proc));
    FrontendOptions options = flags_.frontend;
    options.contract = flags_.leaf.contract;
    options.hierarchies = parents_.map();
    // The finder knows `own` as the address of the leaf in this process.
    options.leaves = {{.cell = flags_.leaf.cell, .address = own}};
    RouteTally tally(&truth);
    ServedNamespaces served(flags_.leaf.cell, &tally);
    served_ = &served;
    // The observers: `served` tells `tally`, which tells `truth`.
    options.observer = &served;
    Frontend frontend(options, &cells, &learner, &Clock::Real(), &timer);
    learner.SetCellOf(CellsOf(&frontend));
    const SuspectProbe suspect_probe({.reach = reach_}, &frontend);
    RemoteTokenizerOptions remote;
    remote.urls = [this](const std::string& model) { return UrlsOf(*fleet_->View(), model); };
    remote.engine.reach = reach_;
    remote.engine.head_timeout = PromptRouterOptions().tokenize_deadline;
    RemoteTokenizer by_engine(remote);
    remote.way = RemoteWay::kRender;
    RemoteTokenizer by_render(remote);
    // Tokens that an engine made before its restart may be another model's.
    restarted_ = [&](const std::string& url) {
      by_engine.Forget(url);
      by_render.Forget(url);
    };
    TokenizerChoice tokenizer(
        *ParseTokenizeWays(flags_.tokenize),  // which the flag's check has seen
        {{"local", &tokenizers_}, {"engine", &by_engine}, {"render", &by_render}});
    PromptRouterOptions prompts;
    prompts.models = [this] { return ModelsOf(*fleet_->View()); };
    prompts.conventions = &conventions_;
    prompts.is_trusted = [&tokenizer](const std::string& model, const BodyPrompt& prompt) {
      return tokenizer.IsTrusted(model, prompt);
    };
    // Names are known from the fleet at any time: nothing has to be waited for.
    prompts.served_name = [this](RouteInput* input, const std::function<void()>&) {
      AsServed(fleet_->View()->names, input);
      return true;
    };
    Metrics metrics;
    NoTokensCounter no_tokens(&metrics);
    prompts.on_no_tokens = no_tokens.counting();
    PromptRouter router(prompts, &frontend, &tokenizer);
    FrontendService routes(&frontend, &metrics, &router);
    TruthService truths(&truth, &Clock::Real());
    GrpcPeerAsker peer_asker;
    FleetWatch fleet_watch({}, SourcesOf(&frontend), &peer_asker, &Clock::Real());
    fleet_watch.Start();
    const PromptExplainer explainer({.frontend = &frontend,
                                     .watch = &fleet_watch,
                                     .tokenizer = &tokenizer,
                                     .cells = &cells,
                                     .asker = &peer_asker});
    const SessionFinder sessions(&fleet_watch, &peer_asker);
    ProxyOptions proxy_options = flags_.proxy;
    proxy_options.listen = flags_.listen;
    proxy_options.engine.reach = reach_;
    const auto health = std::make_shared<ProcessHealth>();
    proxy_options.health = health;
    // The page's address is known only once the port is bound, and the proxy's options need it
    // before.
    AdminHttp* admin = nullptr;  // once it listens
    // Empty until the page can be reached.
    proxy_options.page = [&admin] {
      return admin == nullptr ? "" : absl::StrCat(Scheme(), admin->address().ToString(), "/ui/");
    };
    Proxy proxy(proxy_options, &frontend, &router, &metrics);
    flags_.ext_proc.picker.served_name = prompts.served_name;
    flags_.ext_proc.picker.on_no_tokens = no_tokens.counting();
    flags_.ext_proc.picker.conventions = &conventions_;
    ExtProcServer picker(flags_.ext_proc, &frontend, &tokenizer, &endpoints, &metrics,
                         flags_.proxy.bodies_bytes_max);
    GrpcServer grpc({.listen = flags_.grpc});
    grpc.Register(&routes, "kvatlas.v1.Frontend");
    grpc.Register(&truths, "kvatlas.v1.Truth");
    AdminHttp http(
        {.listen = flags_.http, .program = "kvatlas-serve", .keep_headers = true, .health = health},
        &metrics);
    // Not ready at once, so that balancers turn away while the requests under way end.
    service_.OnStopSignal([&] {
      http.SetHealth(Health::kStopping);
      grpc.SetHealth(Health::kStopping);
      picker.SetHealth(Health::kStopping);
      leaf_->SetNotReady();
    });
    // systemd's watchdog hears that all is well only while every listener takes connections.
    service_.OnWatchdog([&] { return health->deaf().empty(); });
    routes.AddHttp(&http);
    routes.AddStatus("truth", [&truth] { return TruthStatusJson(truth); });
    AddTruthHttp(&truth, &Clock::Real(), &http);
    AddTruthMetrics(&truth, &metrics);
    const Ui page(FrontendPages({.program = "kvatlas-serve",
                                 .name = [&proxy] { return proxy.address().ToString(); },
                                 .frontend = &frontend,
                                 .tally = &tally,
                                 .watch = &fleet_watch,
                                 .truth = &truth,
                                 .explainer = flags_.ui_explain || IsLoopbackHost(flags_.http.host)
                                                  ? &explainer
                                                  : nullptr,
                                 .sessions = &sessions,
                                 .own_leaf = own}),
                  &http);
    absl::Status bad = OfFlag("grpc", grpc.Start());
    if (bad.ok()) bad = OfFlag("http", http.Start());
    if (bad.ok()) admin = &http;
    if (bad.ok()) bad = OfFlag("listen", proxy.Start());
    if (bad.ok()) bad = OfFlag("ext_proc", picker.Start());
    if (!bad.ok()) return service_.Fail(bad);
    SayLine(
        service_, false,
        absl::StrCat("clients: ", Scheme(), proxy.address().ToString(), "/v1   page: ", Scheme(),
                     http.address().ToString(), "/ui/   engines: ", list_.engines().size()));
    // The first look at the engines is over before others are told that this is ready.
    const Time started = Clock::Real().Now();
    do {
      fleet_->Tick();
      if (service_.WaitForSignal(kTickEvery).has_value())
        return Stop(frontend, {&proxy, &picker, &grpc, &http});
    } while (!fleet_->all_asked() && Clock::Real().Now() - started < kFirstLookWithin);
    LookAtEngines(frontend);
    const Doors doors{&proxy, &picker, &grpc, &http};
    LookAtHealth(doors);
    ServeAddresses addresses = {{"listen", proxy.address()},
                                {"http", http.address()},
                                {"grpc", grpc.address()},
                                {"leaf_http", leaf_->http_address()},
                                {"leaf_grpc", leaf_->grpc_address()}};
    if (picker.address().has_value()) addresses.emplace_back("ext_proc", *picker.address());
    if (absl::Status status = service_.Ready(addresses, /*quiet=*/told_ready_ != nullptr);
        !status.ok())
      return service_.Fail(status);
    if (told_ready_ != nullptr) told_ready_(addresses);
    // Reloads check everything first and commit later, so that a wrong flag changes nothing.
    service_.flags().OnReload({kEngineApiKeyFileFlag}, [this]() -> absl::StatusOr<FlagSet::Commit> {
      absl::StatusOr<std::string> key = ReadEngineApiKey(flags_.engine_api_key_file);
      if (!key.ok()) return key.status();
      return FlagSet::Commit([this, key = *key] { reach_.given->SetApiKey(key); });
    });
    service_.flags().OnReload({"engine", "engines_file"},
                              [this]() -> absl::StatusOr<FlagSet::Commit> {
                                absl::StatusOr<EngineList> list = EnginesOf(flags_);
                                if (!list.ok()) return list.status();
                                absl::Status bad = list->Watch(reach_.addresses, &list_);
                                if (!bad.ok()) return bad;
                                return FlagSet::Commit([this, list = *std::move(list)] {
                                  list_ = list;
                                  TakeEngines();
                                });
                              });
    while (!service_.WaitForSignal(kTickEvery).has_value()) {
      RefreshEngines();
      // Once more, so that the frontend has the engines that were found.
      LookAtEngines(frontend);
      truth.SetUnreachable(Unreachable());
      truth.Tick();
      LookAtHealth(doors);
      if (std::optional<ShardMap> changed = parents_.Changed(); changed.has_value()) {
        frontend.SetHierarchies(*changed);
        (void)leaf_->SetParents(*std::move(changed));
      }
    }
    return Stop(frontend, doors);
  }

  // The servers, in the order in which they stop.
  struct Doors {
    Proxy* proxy;
    ExtProcServer* picker;
    GrpcServer* grpc;
    AdminHttp* http;
  };

  // How prompts of the model are tokenized, in words. Files are looked for only if "local" is among
  // the ways.
  std::string TokenizerOf(const ServedModel& model) {
    const absl::StatusOr<TokenizeWays> ways = ParseTokenizeWays(flags_.tokenize);
    auto of_model = ways->find(model.id);
    if (of_model == ways->end()) of_model = ways->find("");
    if (of_model == ways->end()) return "none: --tokenize names other models alone";
    const std::vector<std::string>& names = of_model->second;
    if (std::find(names.begin(), names.end(), "local") != names.end())
      return tokenizers_.Describe(model);
    return names.front() == "render" ? "its own render endpoints" : "its own /tokenize";
  }

  // The frontend first: its waiting routes end, and the servers wait for their requests.
  int Stop(Frontend& frontend, const Doors& doors) {
    frontend.Stop();
    doors.proxy->Stop();
    doors.picker->Stop(service_.stop_deadline());
    doors.grpc->Stop(service_.stop_deadline());
    doors.http->Stop();
    return 0;
  }

  static const char* Scheme() {
    return Security::OfProcess()->tls() == nullptr ? "http://" : "https://";
  }

  // A bad file is said once and leaves the list as it is (`EngineList::Refresh`).
  void RefreshEngines() {
    const absl::StatusOr<bool> changed = list_.Refresh(Clock::Real().Now());
    if (!changed.ok()) {
      SayLine(service_, true,
              absl::StrCat(changed.status().message(), "; the engines stay as they were"));
    } else if (*changed) {
      TakeEngines();
    }
  }

  // Reach first: the fleet's next probe needs it.
  void TakeEngines() {
    GiveAll(list_, reach_.given.get());
    fleet_->SetEngines(list_.engines());
  }

  // Takes what the fleet knows to the frontend: engines that are gone are forgotten with what was
  // seen of them, and the others are given as engines, so that models that no request asked for yet
  // can be answered too.
  void LookAtEngines(Frontend& frontend) {
    fleet_->Tick();
    std::map<std::string, std::string> urls = fleet_->Urls();
    if (urls == urls_) return;
    std::set<std::string> gone;
    for (const auto& [name, url] : urls_) {
      if (!fleet_->Has(name)) gone.insert(name);
    }
    if (!gone.empty()) frontend.Forget(gone);
    urls_ = std::move(urls);
    frontend.SetEngines(urls_);
  }

  // `Truth` hears of engines that do not answer from here, and then not from requests that fail.
  std::vector<UnreachableWorker> Unreachable() const {
    std::vector<UnreachableWorker> unreachable;
    for (UnreachableEngine& engine : fleet_->Unreachable()) {
      unreachable.push_back({.domain = {.model = std::move(engine.model), .tenant = ""},
                             .cell = flags_.leaf.cell,
                             .worker = {.name = std::move(engine.name), .rank = 0, .replica = ""},
                             .since = engine.since,
                             .last = Clock::Real().Now(),
                             .why = std::move(engine.why)});
    }
    return unreachable;
  }

  // Ready once an engine answers. Until one had the time to, nothing is said. Sets health only when
  // it changes.
  void LookAtHealth(const Doors& doors) {
    const std::optional<bool> known = fleet_->ready();
    const bool ready = known.value_or(false);
    if (known.has_value() && ready_ == ready) return;
    if (!known.has_value()) {
      ready_.reset();
    } else if (!ready) {
      SayLine(service_, true,
              fleet_->size() == 0 && !list_.finds().empty()
                  ? absl::StrCat("not ready: there are no ready ", list_.finds(),
                                 "; the log says if Kubernetes does not let this process list them")
              : fleet_->size() == 0
                  ? "not ready: no engine is known; name one by --engine URL or in --engines_file"
                  : absl::StrCat("not ready: none of ", fleet_->size(), " engines answers"));
    } else if (ready_.has_value()) {
      SayLine(service_, false, "ready");
    }
    ready_ = known;
    const Health health = ready ? Health::kServing : Health::kLoading;
    doors.grpc->SetHealth(health);
    doors.picker->SetHealth(health);
    doors.http->SetHealth(health, "no engine answers");
  }

  ServiceMain& service_;
  Flags& flags_;
  EngineList list_;
  const EngineReach reach_;
  FoundNodes parents_;
  ModelTokenizers tokenizers_;
  EngineConventions conventions_;
  DialedTopics topics_;  // outlives the leaf
  std::unique_ptr<Leaf> leaf_;
  std::function<void(const ServeAddresses&)> told_ready_;
  EngineFleet* fleet_ = nullptr;
  ServedNamespaces* served_ = nullptr;                     // while engines are looked at
  std::function<void(const std::string& url)> restarted_;  // as long
  std::map<std::string, std::string> urls_;                // as the frontend has them
  std::optional<bool> ready_;
};

// --secure: a CA, a policy and a token in a folder that goes with the process.
class TrialSecurity {
 public:
  ~TrialSecurity() {
    std::error_code ignored;
    if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
  }

  // Must run before anything listens: `Security::SetOfProcess` counts for what is made afterwards.
  absl::Status Start(const ServiceMain& service, const std::string& cell) {
    if (Security::OfProcess()->tls() != nullptr) {
      return absl::InvalidArgumentError("the certificate of --tls_cert counts: give one of both");
    }
    std::string directory = std::filesystem::temp_directory_path() / "kvatlas-serve-XXXXXX";
    if (mkdtemp(directory.data()) == nullptr) {
      return absl::UnavailableError("no folder for its files can be made in " + directory);
    }
    directory_ = directory;
    absl::StatusOr<Pki> pki = Pki::Create(directory_ + "/pki", "kvatlas.local");
    if (!pki.ok()) return pki.status();
    if (absl::Status bad = pki->WriteExamplePolicy(); !bad.ok()) return bad;
    absl::StatusOr<TlsPaths> own = pki->Issue({.identity = "leaf/" + cell + "/-"});
    if (!own.ok()) return own.status();
    // A certificate for an operator with access to the folder.
    const absl::StatusOr<TlsPaths> me = pki->Issue({.identity = "operator/me"});
    if (!me.ok()) return me.status();
    const std::string token = NewBearerToken();
    const std::string token_path = directory_ + "/token";
    absl::Status bad = WriteFileByRename(token_path, token, 0600);
    bad.Update(WriteFileByRename(directory_ + "/tokens",
                                 "sha256:" + TokenHash(token) + " operator/me name=trial\n", 0600));
    if (!bad.ok()) return bad;
    SecurityOptions options;
    options.process = "kvatlas-serve";
    options.tls = *std::move(own);
    options.policy = pki->policy_path();
    options.tokens.tokens = directory_ + "/tokens";
    absl::StatusOr<std::shared_ptr<Security>> security = Security::Start(std::move(options));
    if (!security.ok()) return security.status();
    Security::SetOfProcess(*std::move(security));
    SayLine(service, false,
            absl::StrCat("secure: clients need --cacert ", pki->ca_path(),
                         " and -H \"Authorization: Bearer $(cat ", token_path, ")\""));
    SayLine(
        service, false,
        absl::StrCat("secure: kvatlas needs --tls_ca=", pki->ca_path(), " --token=@", token_path));
    return absl::OkStatus();
  }

 private:
  std::string directory_;
};

}  // namespace

namespace {

// The parts of every service, before its flags are read.
struct Service : ServiceMain {
  Service() : ServiceMain("kvatlas-serve", "One process in front of engines.", "text") {
    flags().CalledAs("kvatlas serve");
  }
};

}  // namespace

void LookAtServeFlags(const std::function<void(const FlagSet&)>& look) {
  Service service;
  Flags flags;
  Declare(service.flags(), &flags);
  look(service.flags());
}

// All flags are checked before the first part starts, and the first error is the one that is said.
// With `checking` the process ends after the checks.
int RunServe(const std::vector<std::string>& arguments,
             const std::function<void(const ServeAddresses&)>& ready) {
  Service service;
  Flags flags;
  Declare(service.flags(), &flags);
  std::vector<const char*> argv = {"kvatlas serve"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  service.Start(static_cast<int>(argv.size()), argv.data());
  absl::StatusOr<EngineList> list = EnginesOf(flags);
  absl::Status bad = list.status();
  TrialSecurity trial;
  if (bad.ok() && flags.secure && !service.checking())
    bad = OfFlag("secure", trial.Start(service, flags.leaf.cell));
  absl::StatusOr<EngineReach> reach = list.ok() ? ReachOf(flags, *list) : EngineReach();
  if (bad.ok()) bad = reach.status();
  absl::StatusOr<std::unique_ptr<ModelRegistry>> models = ModelRegistry::FromFlag(flags.models);
  if (bad.ok()) bad = OfFlag("models", models.status());
  if (bad.ok()) bad = FoundNodes::Check("--parents", flags.parents);
  const absl::StatusOr<uint64_t> memory = ReadMemoryFlag(flags.memory_budget);
  if (bad.ok()) bad = memory.status();
  absl::StatusOr<ProxiedPaths> paths = ProxiedPaths::With(flags.proxy_paths);
  if (bad.ok()) bad = OfFlag("proxy_paths", paths.status());
  if (bad.ok() && !service.checking()) bad = list->Watch(reach->addresses, nullptr);
  if (bad.ok()) {
    // Its own files and listeners, streams and questions of each engine, and then some clients.
    const size_t engines = list->engines().size();
    bad = CheckDescriptors(128 + 4 * engines, absl::StrCat("with ", engines, " engines"));
  }
  if (const std::optional<int> exit = service.Checked(bad)) return *exit;
  absl::StatusOr<FoundNodes> parents = FoundNodes::Read("--parents", flags.parents);
  if (!parents.ok()) return service.Fail(parents.status());
  flags.leaf.memory_bytes_max = *memory;
  flags.proxy.bodies_bytes_max = BodiesWithin(*memory, flags.proxy.bodies_bytes_max);
  // A budget of memory is shared: bodies under way get a part of it, the index the rest.
  flags.leaf.memory_meter = MemoryMeter(*memory);
  flags.proxy.paths = *std::move(paths);
  return Server(service, flags, *std::move(list), *std::move(reach), *std::move(models),
                *std::move(parents))
      .Run(ready);
}

}  // namespace kvatlas
