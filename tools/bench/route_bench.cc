// What does a route take? Token ids in, a worker out, through a real hierarchy and real leaves over
// loopback, at a steady rate.
//
//   bazel run -c opt //tools/bench:route_bench -- --qps 2000
//
//   grpc       a client asks a kvatlas-frontend process, as a gateway in another process does
//   embedded   the frontend is a library in this process: one hop less
//
// *Truth*: requests are due at a steady pace, whatever became of earlier ones, and a latency counts
// from when its request was due: what waits behind a slow one is seen. Every answer must be the
// worker that holds the prompt, at the full depth, without fallback; others are `wrong`. Each
// choice is reported as accepted, which is part of the cost and of no latency.
// *Threads*: one sends; answers come in gRPC's.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/cluster_client/grpc_lookup_clients.h"
#include "frontend/router/frontend.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/mutex.h"
#include "indexer/base/shard_map.h"
#include "indexer/base/tier.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_status.h"
#include "indexer/process/flags.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "publisher/publisher.h"
#include "tools/bench/service_bench_target.h"
#include "tools/bench/timing.h"
#include "tools/testing/cluster/process.h"

namespace kvatlas {
namespace {

constexpr char kModel[] = "bench";
constexpr std::chrono::seconds kStart(30);

struct Options {
  std::string mode = "both";
  double qps = 2000;
  double seconds = 10;
  double warm_up_s = 2;
  uint32_t cells = 2;
  uint32_t workers = 8;   // of a cell
  uint32_t blocks = 128;  // of a prompt
  uint32_t prompts = 256;
  uint32_t channels = 2;
  uint32_t ask_ahead = FrontendOptions().ask_ahead;
  bool question_streams = true;
  std::string otlp_endpoint;  // of all processes; empty: they trace nothing
  double trace_ratio = 0.1;
  std::string binaries;  // folder
  std::string json;
};

std::string DefaultBinaries() {
  const char* const workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  return (workspace == nullptr ? "" : std::string(workspace) + "/") + "bazel-bin";
}

void Declare(FlagSet* flags, Options* o) {
  flags->AddChoice("mode", &o->mode, "who routes: a process, this one, or one after the other",
                   {"both", "grpc", "embedded"});
  flags->Add("qps", &o->qps, "requests per second", 1.0, 1e6);
  flags->Add("seconds", &o->seconds, "how long it is measured", 0.1, 3600.0);
  flags->Add("warm_up_s", &o->warm_up_s, "and how long it runs before", 0.0, 600.0);
  flags->Add("cells", &o->cells, "leaves", 1u, 64u);
  flags->Add("workers", &o->workers, "of a cell", 1u, 256u);
  flags->Add("blocks", &o->blocks, "of a prompt, 16 tokens each", 1u, 65536u);
  flags->Add("question_streams", &o->question_streams,
             "of the frontend: it asks over streams; false: by a call per question");
  flags->Add("ask_ahead", &o->ask_ahead, "of the frontend: leaves asked at once with the hierarchy",
             0u, 64u);
  flags->Add("otlp_endpoint", &o->otlp_endpoint,
             "where the processes send spans; empty: they trace nothing");
  flags->Add("trace_ratio", &o->trace_ratio, "of the routes that are traced", 0.0, 1.0);
  flags->Add("prompts", &o->prompts, "distinct, each held by one worker", 1u, 65536u);
  flags->Add("channels", &o->channels, "of the client to the frontend process", 1u, 64u);
  flags->Add("binaries", &o->binaries, "folder with indexer/leaf/kvatlas-leaf and the others");
  flags->Add("json", &o->json, "file for one JSON object per mode; `-` standard output");
}

struct BenchPrompt {
  std::vector<TokenId> tokens;
  std::string worker;
};

std::vector<BenchPrompt> MakePrompts(const Options& options) {
  std::vector<BenchPrompt> prompts(options.prompts);
  uint32_t state = 7;
  for (uint32_t i = 0; i < options.prompts; ++i) {
    const uint32_t worker = i % (options.cells * options.workers);
    prompts[i].worker = "worker-" + std::to_string(worker);
    // One more than its blocks have: the last token of a prompt is computed wherever it is, and
    // with it a block that it ends.
    prompts[i].tokens.resize(size_t{options.blocks} * 16 + 1);
    for (TokenId& token : prompts[i].tokens) token = (state = state * 1664525 + 1013904223) >> 12;
  }
  return prompts;
}

// ---- The cluster ----

class BenchCluster {
 public:
  explicit BenchCluster(const Options& options)
      : options_(options), log_("/tmp/route_bench_" + std::to_string(getpid()) + ".log") {}
  ~BenchCluster() {
    for (auto& publisher : publishers_) publisher->Stop(false, Duration(0));
    processes_.clear();
    unlink(log_.c_str());
  }

  absl::Status Start() {
    absl::Status status = Run("hierarchy", "hierarchy/kvatlas-hierarchy", {});
    for (uint32_t cell = 0; status.ok() && cell < options_.cells; ++cell) {
      const std::string name = "leaf-" + std::to_string(cell);
      status = Run(name, "indexer/leaf/kvatlas-leaf",
                   {"--cell=" + name, "--parents=" + Grpc("hierarchy"), "--lease_ttl=1h"});
    }
    if (status.ok()) {
      status = Run(
          "frontend", "frontend/kvatlas-frontend",
          {"--hierarchy=" + Grpc("hierarchy"), "--ask_ahead=" + std::to_string(options_.ask_ahead),
           std::string("--question_streams=") + (options_.question_streams ? "true" : "false")});
    }
    return status;
  }

  absl::Status Fill(const std::vector<BenchPrompt>& prompts) {
    std::map<std::string, Publisher*> by_name;
    for (uint32_t i = 0; i < options_.cells * options_.workers; ++i) {
      const std::string worker = "worker-" + std::to_string(i);
      PublisherOptions options;
      options.leaves = {Grpc("leaf-" + std::to_string(i % options_.cells))};
      options.worker = worker;
      options.domain.model = kModel;
      absl::StatusOr<std::unique_ptr<Publisher>> made = Publisher::Create(std::move(options));
      if (!made.ok()) return made.status();
      (*made)->SetLoad({.running_requests = 1});
      by_name[worker] = made->get();
      publishers_.push_back(*std::move(made));
    }
    uint64_t name = 1;
    for (const BenchPrompt& prompt : prompts) {
      std::vector<EngineHash> blocks(options_.blocks);
      for (EngineHash& block : blocks) block = name++;
      const std::vector<TokenId> tokens(prompt.tokens.begin(), prompt.tokens.end() - 1);
      by_name[prompt.worker]->Stored(Tier::kDevice, blocks, std::nullopt, tokens);
    }
    for (auto& publisher : publishers_) {
      publisher->Flush();
      if (!publisher->WaitAcknowledged(kStart))
        return absl::UnavailableError("a leaf does not acknowledge");
    }
    return absl::OkStatus();
  }

  std::string Grpc(const std::string& name) const { return processes_.at(name)->address("grpc"); }

  // Seconds of processor time by process, the leaves' in one, and this one's.
  std::map<std::string, double> CpuSecondsByName() const {
    std::map<std::string, double> seconds;
    for (const auto& [name, process] : processes_) {
      const std::string key = name.starts_with("leaf") ? "leaves" : name;
      seconds[key] += BenchTarget::CpuSecondsOf(process->pid()).value_or(0);
    }
    seconds["client"] = CpuSeconds();
    return seconds;
  }

 private:
  absl::Status Run(const std::string& name, const std::string& binary,
                   std::vector<std::string> args) {
    args.insert(args.end(), {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--exit_with_parent",
                             "--otlp_endpoint=" + options_.otlp_endpoint,
                             "--trace_ratio=" + std::to_string(options_.trace_ratio)});
    auto process =
        std::make_unique<Process>(ProcessOptions{.name = name,
                                                 .binary = options_.binaries + "/" + binary,
                                                 .args = std::move(args),
                                                 .log = log_});
    absl::Status status = process->Start(kStart);
    processes_[name] = std::move(process);
    return status;
  }

  const Options options_;
  const std::string log_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<Publisher>> publishers_;
};

// ---- Who routes ----

struct Routed {
  std::string worker;
  uint32_t blocks = 0;
  bool fallback = false;
  uint64_t decision_id = 0;
};

class Router {
 public:
  using Callback = std::function<void(absl::StatusOr<Routed>)>;
  virtual ~Router() = default;
  virtual void Route(size_t prompt, Callback callback) = 0;
  virtual void Report(uint64_t decision_id) = 0;
};

class GrpcRouter : public Router {
 public:
  GrpcRouter(const std::string& address, uint32_t channels,
             const std::vector<BenchPrompt>& prompts) {
    for (uint32_t i = 0; i < channels; ++i)
      stubs_.push_back(v1::Frontend::NewStub(MakeChannel(address, {.own_connection = true})));
    for (const BenchPrompt& prompt : prompts) {
      v1::RouteRequest& request = requests_.emplace_back();
      request.mutable_domain()->set_model(kModel);
      request.mutable_tokens()->mutable_ids()->Add(prompt.tokens.begin(), prompt.tokens.end());
    }
  }

  void Route(size_t prompt, Callback callback) override {
    struct Call {
      grpc::ClientContext context;
      v1::RouteResponse response;
    };
    auto call = std::make_shared<Call>();
    Next().async()->Route(
        &call->context, &requests_[prompt], &call->response,
        [call, callback = std::move(callback)](const grpc::Status& status) {
          if (!status.ok()) return callback(FromGrpcStatus(status));
          const v1::RouteResponse& response = call->response;
          callback(Routed{.worker = response.worker().name(),
                          .blocks = response.overlap_blocks(),
                          .fallback = response.receipt().fallback() != v1::FALLBACK_NONE,
                          .decision_id = response.decision_id()});
        });
  }

  void Report(uint64_t decision_id) override {
    struct Call {
      grpc::ClientContext context;
      v1::ReportRequest request;
      v1::ReportResponse response;
    };
    auto call = std::make_shared<Call>();
    call->request.set_decision_id(decision_id);
    call->request.set_accepted(true);
    Next().async()->Report(&call->context, &call->request, &call->response,
                           [call](const grpc::Status&) {});
  }

 private:
  v1::Frontend::Stub& Next() {
    return *stubs_[next_.fetch_add(1, std::memory_order_relaxed) % stubs_.size()];
  }

  std::vector<std::unique_ptr<v1::Frontend::Stub>> stubs_;
  std::vector<v1::RouteRequest> requests_;
  std::atomic<size_t> next_{0};
};

class EmbeddedRouter : public Router {
 public:
  EmbeddedRouter(const std::string& hierarchy, const std::vector<BenchPrompt>& prompts,
                 const Options& with)
      : prompts_(prompts),
        cell_finder_(with.question_streams),
        overlap_finder_(with.question_streams) {
    FrontendOptions options;
    options.ask_ahead = with.ask_ahead;
    options.hierarchies = ShardMap::Parse(hierarchy).value();
    frontend_ = std::make_unique<Frontend>(options, &cell_finder_, &overlap_finder_, &Clock::Real(),
                                           &timer_);
  }

  void Route(size_t prompt, Callback callback) override {
    RouteInput input;
    input.domain.model = kModel;
    input.tokens = prompts_[prompt].tokens;
    frontend_->RouteAsync(std::move(input),
                          [callback = std::move(callback)](absl::StatusOr<RouteResult> result) {
                            if (!result.ok()) return callback(result.status());
                            callback(Routed{.worker = result->worker.name,
                                            .blocks = result->overlap_blocks,
                                            .fallback = result->receipt.fallback != Fallback::kNone,
                                            .decision_id = result->decision_id});
                          });
  }

  void Report(uint64_t decision_id) override { frontend_->Report(decision_id, {.accepted = true}); }

 private:
  const std::vector<BenchPrompt>& prompts_;
  GrpcTimer timer_;
  GrpcCellFinder cell_finder_;
  GrpcOverlapFinder overlap_finder_;
  std::unique_ptr<Frontend> frontend_;
};

// ---- The load ----

struct Outcome {
  Latencies latencies;
  uint64_t errors = 0;
  uint64_t wrong = 0;
  uint64_t fallbacks = 0;
  std::string first_error;
};

class Load {
 public:
  Load(const Options& options, const std::vector<BenchPrompt>& prompts, Router* router)
      : options_(options), prompts_(prompts), router_(router) {}

  // Until every prompt is routed to its worker at full depth: the hierarchy has heard of all.
  absl::Status WaitSettled() {
    const Time until = Clock::Real().Now() + kStart;
    for (size_t prompt = 0; prompt < prompts_.size();) {
      const Outcome outcome = One(prompt);
      if (outcome.errors + outcome.wrong + outcome.fallbacks == 0) {
        ++prompt;
      } else if (Clock::Real().Now() > until) {
        return absl::DeadlineExceededError("not settled: " + outcome.first_error);
      }
    }
    return absl::OkStatus();
  }

  Outcome Run(double seconds) {
    {
      MutexLock lock(&mutex_);
      outcome_ = {};
      outcome_.latencies.Reserve(static_cast<size_t>(seconds * options_.qps) + 1);
    }
    const auto interval = std::chrono::duration<double, std::nano>(1e9 / options_.qps);
    const Time begin = Clock::Real().Now();
    const uint64_t ticks_begin = Ticks();
    const double ticks_per_ns = 1 / NsPerTick();
    const auto count = static_cast<uint64_t>(seconds * options_.qps);
    for (uint64_t i = 0; i < count; ++i) {
      const double due_ns = static_cast<double>(i) * interval.count();
      SleepUntil(begin + Duration(static_cast<int64_t>(due_ns)));
      Send(next_prompt_++ % prompts_.size(),
           ticks_begin + static_cast<uint64_t>(due_ns * ticks_per_ns));
    }
    return WaitAll();
  }

 private:
  static void SleepUntil(Time due) {
    const auto left = due - Clock::Real().Now();
    if (left <= Duration(0)) return;
    const timespec wait = {.tv_sec = left.count() / 1'000'000'000,
                           .tv_nsec = left.count() % 1'000'000'000};
    nanosleep(&wait, nullptr);
  }

  Outcome One(size_t prompt) {
    {
      MutexLock lock(&mutex_);
      outcome_ = {};
    }
    Send(prompt, Ticks());
    return WaitAll();
  }

  void Send(size_t prompt, uint64_t due) {
    {
      MutexLock lock(&mutex_);
      ++under_way_;
    }
    router_->Route(prompt, [this, prompt, due](absl::StatusOr<Routed> routed) {
      const uint64_t ticks = Ticks() - due;
      if (routed.ok()) router_->Report(routed->decision_id);
      Count(prompt, ticks, routed);
    });
  }

  void Count(size_t prompt, uint64_t ticks, const absl::StatusOr<Routed>& routed) {
    MutexLock lock(&mutex_);
    outcome_.latencies.Add(ticks);
    if (!routed.ok()) {
      if (outcome_.errors++ == 0) outcome_.first_error = routed.status().ToString();
    } else if (routed->fallback) {
      ++outcome_.fallbacks;
    } else if (routed->worker != prompts_[prompt].worker || routed->blocks != options_.blocks) {
      if (outcome_.wrong++ == 0)
        outcome_.first_error =
            routed->worker + " with " + std::to_string(routed->blocks) + " blocks";
    }
    if (--under_way_ == 0) idle_.SignalAll();
  }

  Outcome WaitAll() {
    MutexLock lock(&mutex_);
    while (under_way_ > 0) idle_.Wait(&mutex_);
    return std::exchange(outcome_, {});
  }

  const Options& options_;
  const std::vector<BenchPrompt>& prompts_;
  Router* const router_;
  uint64_t next_prompt_ = 0;
  Mutex mutex_;
  CondVar idle_;
  uint64_t under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  Outcome outcome_ ABSL_GUARDED_BY(mutex_);
};

// ---- What is said ----

struct Measured {
  std::string mode;
  double qps = 0;
  uint64_t routes = 0;
  Outcome outcome;
  Percentiles us;
  std::map<std::string, double> cpu_us;  // per route, by process
};

std::string ToJson(const Options& options, const Measured& m) {
  nlohmann::ordered_json json = {{"mode", m.mode},
                                 {"qps", m.qps},
                                 {"routes", m.routes},
                                 {"errors", m.outcome.errors},
                                 {"wrong", m.outcome.wrong},
                                 {"fallbacks", m.outcome.fallbacks},
                                 {"cells", options.cells},
                                 {"workers", options.cells * options.workers},
                                 {"blocks", options.blocks},
                                 {"route_us",
                                  {{"p50", m.us.p50},
                                   {"p99", m.us.p99},
                                   {"p999", m.us.p999},
                                   {"max", m.us.max},
                                   {"mean", m.us.mean}}},
                                 {"cpu_us_per_route", m.cpu_us}};
  return json.dump();
}

void Print(std::FILE* to, const Measured& m) {
  std::fprintf(
      to, "%-9s %7.0f/s  p50 %6.0f us  p99 %6.0f  p99.9 %6.0f  max %6.0f  wrong %llu  ",
      m.mode.c_str(), m.qps, m.us.p50, m.us.p99, m.us.p999, m.us.max,
      static_cast<unsigned long long>(m.outcome.errors + m.outcome.wrong + m.outcome.fallbacks));
  std::fprintf(to, "cpu us per route:");
  for (const auto& [name, us] : m.cpu_us) std::fprintf(to, " %s %.0f", name.c_str(), us);
  std::fprintf(to, "%s%s\n",
               m.outcome.first_error.empty() ? "" : "  first: ", m.outcome.first_error.c_str());
}

absl::StatusOr<Measured> Measure(const Options& options, const std::string& mode,
                                 const BenchCluster& cluster,
                                 const std::vector<BenchPrompt>& prompts) {
  std::unique_ptr<Router> router;
  if (mode == "grpc") {
    router = std::make_unique<GrpcRouter>(cluster.Grpc("frontend"), options.channels, prompts);
  } else {
    router = std::make_unique<EmbeddedRouter>(cluster.Grpc("hierarchy"), prompts, options);
  }
  Load load(options, prompts, router.get());
  if (absl::Status status = load.WaitSettled(); !status.ok()) return status;
  load.Run(options.warm_up_s);
  const std::map<std::string, double> before = cluster.CpuSecondsByName();
  const double begin = NowSeconds();
  Measured measured{.mode = mode, .outcome = load.Run(options.seconds), .us = {}, .cpu_us = {}};
  const double took = NowSeconds() - begin;
  measured.routes = measured.outcome.latencies.size();
  measured.qps = static_cast<double>(measured.routes) / took;
  const Percentiles ns = measured.outcome.latencies.InNs();
  measured.us = {.p50 = ns.p50 / 1e3,
                 .p99 = ns.p99 / 1e3,
                 .p999 = ns.p999 / 1e3,
                 .max = ns.max / 1e3,
                 .mean = ns.mean / 1e3};
  for (const auto& [name, seconds] : cluster.CpuSecondsByName()) {
    if (mode == "embedded" && name == "frontend") continue;
    measured.cpu_us[name] =
        (seconds - before.at(name)) * 1e6 / static_cast<double>(measured.routes);
  }
  return measured;
}

absl::Status Run(const Options& options) {
  const std::vector<BenchPrompt> prompts = MakePrompts(options);
  BenchCluster cluster(options);
  if (absl::Status status = cluster.Start(); !status.ok()) return status;
  if (absl::Status status = cluster.Fill(prompts); !status.ok()) return status;
  std::ofstream file;
  if (!options.json.empty() && options.json != "-") file.open(options.json);
  std::ostream& json = options.json == "-" ? std::cout : file;
  for (const std::string mode : {"grpc", "embedded"}) {
    if (options.mode != "both" && options.mode != mode) continue;
    const absl::StatusOr<Measured> measured = Measure(options, mode, cluster, prompts);
    if (!measured.ok()) return measured.status();
    if (!options.json.empty()) json << ToJson(options, *measured) << std::endl;
    Print(options.json == "-" ? stderr : stdout, *measured);
  }
  if (!options.json.empty() && !json) return absl::UnavailableError(options.json + ": not written");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  options.binaries = DefaultBinaries();
  FlagSet flags("route_bench", "What a route takes through a real hierarchy and real leaves.");
  Declare(&flags, &options);
  flags.ParseOrExit(argc, argv);
  const absl::Status status = Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "route_bench: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
