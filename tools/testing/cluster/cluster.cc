#include "tools/testing/cluster/cluster.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "indexer/security/security.h"
#include "tools/testing/cluster/fleet.h"

namespace kvatlas {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

constexpr char kLeaf[] = "indexer/leaf/kvatlas-leaf";
constexpr char kHierarchy[] = "hierarchy/kvatlas-hierarchy";
constexpr char kFrontend[] = "frontend/kvatlas-frontend";
constexpr char kKvatlas[] = "tools/kvatlas/kvatlas";
constexpr char kEngine[] = "tools/testing/mock_engine/mock_engine";
constexpr char kAnyPort[] = "127.0.0.1:0";
constexpr Duration kReadyTimeout = seconds(60);
constexpr Duration kStopTimeout = seconds(10);

// The nearest directory at or above `from` that has an engine below it, itself or in its bazel-bin.
std::string SearchUp(fs::path from) {
  std::error_code ignored;
  for (; !from.empty(); from = from.parent_path()) {
    if (fs::exists(from / kEngine, ignored)) return from.string();
    if (fs::exists(from / "bazel-bin" / kEngine, ignored)) return (from / "bazel-bin").string();
    if (from == from.root_path()) break;
  }
  return "";
}

// Under Bazel the working directory of a test and of `bazel run` is the runfiles' root.
absl::StatusOr<std::string> FindBinaries(const std::string& given) {
  std::error_code error;
  if (!given.empty()) return given;
  if (std::string found = SearchUp(fs::current_path(error)); !found.empty()) return found;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (std::string found = SearchUp(self.parent_path()); !found.empty()) return found;
  return absl::NotFoundError(std::string("cannot find ") + kEngine +
                             "; build it with: bazel build -c opt //...");
}

absl::StatusOr<std::string> MakeLogDirectory() {
  std::error_code error;
  const char* test_directory = std::getenv("TEST_TMPDIR");
  const fs::path parent =
      test_directory != nullptr ? fs::path(test_directory) : fs::temp_directory_path(error);
  std::string path = (parent / "kvatlas-cluster-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr)
    return absl::InternalError("cannot make a directory in " + parent.string());
  return path;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(ClusterOptions options) {
  if (options.cells == 0) return absl::InvalidArgumentError("cells must be at least 1");
  if (options.workers == 0) return absl::InvalidArgumentError("workers must be at least 1");
  absl::StatusOr<std::string> binaries = FindBinaries(options.binaries);
  if (!binaries.ok()) return binaries.status();
  options.binaries = *binaries;
  std::unique_ptr<Cluster> cluster(new Cluster(std::move(options)));
  absl::StatusOr<std::string> logs = MakeLogDirectory();
  if (!logs.ok()) return logs.status();
  cluster->logs_ = *logs;
  if (absl::Status status = cluster->StartAll(); !status.ok()) {
    cluster->KeepLogs();
    return status;
  }
  return cluster;
}

Cluster::~Cluster() {
  for (auto& [name, process] : processes_) {
    if (name.starts_with("worker")) process->Kill();
  }
  for (auto& [name, process] : processes_) process->Terminate();
  for (auto& [name, process] : processes_) process->Stop(kStopTimeout);
  std::error_code ignored;
  if (!logs_.empty() && !keep_logs_) fs::remove_all(logs_, ignored);
}

absl::Status Cluster::MakePki() {
  constexpr char kTrustDomain[] = "cluster.local";
  absl::StatusOr<Pki> pki = Pki::Create(logs_ + "/pki", kTrustDomain);
  if (!pki.ok()) return pki.status();
  pki_ = std::make_unique<Pki>(*std::move(pki));
  if (absl::Status bad = pki_->WriteExamplePolicy(); !bad.ok()) return bad;
  absl::StatusOr<TlsPaths> own = pki_->Issue({.identity = "operator/runner"});
  if (!own.ok()) return own.status();
  SecurityOptions options;
  options.process = "run_cluster";
  options.tls = *std::move(own);
  absl::StatusOr<std::shared_ptr<Security>> security = Security::Start(std::move(options));
  if (!security.ok()) return security.status();
  Security::SetOfProcess(*std::move(security));
  return absl::OkStatus();
}

// Without a policy: of a client, such as a publisher.
absl::Status Cluster::AddSecurity(const std::string& identity, bool policy,
                                  std::vector<std::string>* args) const {
  if (pki_ == nullptr) return absl::OkStatus();
  const absl::StatusOr<TlsPaths> paths = pki_->Issue({.identity = identity});
  if (!paths.ok()) return paths.status();
  args->push_back("--tls_cert=" + paths->certificate);
  args->push_back("--tls_key=" + paths->key);
  args->push_back("--tls_ca=" + paths->ca);
  if (policy) {
    args->push_back("--access_policy=" + pki_->policy_path());
    std::string name = identity;
    std::replace(name.begin(), name.end(), '/', '-');
    args->push_back("--audit_log=" + logs_ + "/" + name + ".audit");
  }
  return absl::OkStatus();
}

absl::Status Cluster::StartAll() {
  if (options_.secure) {
    if (absl::Status status = MakePki(); !status.ok()) return status;
  }
  if (options_.redis) {
    if (absl::Status status = StartRedis(); !status.ok()) return status;
  }
  if (options_.serve) return StartServe();
  if (absl::Status status = StartHierarchy(); !status.ok()) return status;
  if (absl::Status status = StartLeaves(); !status.ok()) return status;
  return StartFrontendAndEngines();
}

absl::Status Cluster::StartRedis() {
  const char* path = std::getenv("PATH");
  std::error_code ignored;
  std::istringstream directories(path == nullptr ? "" : path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    if (!fs::exists(fs::path(directory) / "redis-server", ignored)) continue;
    redis_ = std::make_unique<RedisTestServer>();
    return absl::OkStatus();
  }
  return absl::NotFoundError("there is no redis-server; tools/install brings it");
}

absl::Status Cluster::StartHierarchy() {
  std::vector<std::string> args = {std::string("--grpc=") + kAnyPort,
                                   std::string("--http=") + kAnyPort, "--node=hierarchy"};
  AddSchedule(&args);
  if (absl::Status bad = AddSecurity("node/hierarchy", true, &args); !bad.ok()) return bad;
  args.insert(args.end(), options_.hierarchy_args.begin(), options_.hierarchy_args.end());
  return Add("hierarchy", kHierarchy, std::move(args)).Start(kReadyTimeout);
}

absl::Status Cluster::StartLeaves() {
  std::vector<Process*> leaves;
  for (uint32_t cell = 0; cell < options_.cells; ++cell) {
    std::vector<std::string> args = {std::string("--grpc=") + kAnyPort,
                                     std::string("--http=") + kAnyPort, "--cell=" + CellName(cell),
                                     "--parents=" + hierarchy()};
    AddSchedule(&args);
    if (redis_ != nullptr) args.push_back("--redis=" + redis_->url());
    if (absl::Status bad = AddSecurity("leaf/" + CellName(cell) + "/-", true, &args); !bad.ok())
      return bad;
    args.insert(args.end(), options_.leaf_args.begin(), options_.leaf_args.end());
    if (cell < options_.cell_leaf_args.size()) {
      const std::vector<std::string>& more = options_.cell_leaf_args[cell];
      args.insert(args.end(), more.begin(), more.end());
    }
    leaves.push_back(&Add(LeafName(cell), kLeaf, std::move(args)));
    if (absl::Status status = leaves.back()->Spawn(); !status.ok()) return status;
  }
  return WaitReady(leaves);
}

absl::Status Cluster::StartFrontendAndEngines() {
  std::string leaves;
  for (uint32_t cell = 0; cell < options_.cells; ++cell) {
    leaves += (cell == 0 ? "" : ",") + CellName(cell) + "=" + leaf(cell);
  }
  std::vector<std::string> args = {std::string("--grpc=") + kAnyPort,
                                   std::string("--http=") + kAnyPort, "--hierarchy=" + hierarchy(),
                                   "--leaves=" + leaves,
                                   "--block_size=" + std::to_string(options_.block_size)};
  AddSchedule(&args);
  if (absl::Status bad = AddSecurity("frontend/frontend", true, &args); !bad.ok()) return bad;
  args.insert(args.end(), options_.frontend_args.begin(), options_.frontend_args.end());
  std::vector<Process*> started = {&Add("frontend", kFrontend, std::move(args))};
  for (uint32_t worker = 0; worker < workers(); ++worker) {
    std::vector<std::string> to = {"--leaf=" + leaf(CellOf(worker))};
    if (redis_ != nullptr) {
      to = {"--redis=" + redis_->url(), "--redis_cell=" + CellName(CellOf(worker))};
    }
    std::vector<std::string> engine_args = {
        std::string("--grpc=") + kAnyPort,
        "--worker=" + WorkerName(worker),
        "--model=" + options_.model,
        "--capacity=" + std::to_string(options_.capacity),
        "--block_size=" + std::to_string(options_.block_size),
        "--prefill_tokens_per_s=" + std::to_string(options_.prefill_tokens_per_s),
        "--decode_ms_per_token=" + std::to_string(options_.decode_ms_per_token)};
    if (!options_.hybrid.empty()) engine_args.push_back("--hybrid=" + options_.hybrid);
    engine_args.insert(engine_args.end(), to.begin(), to.end());
    const std::string identity = "worker/" + CellName(CellOf(worker)) + "/" + WorkerName(worker);
    if (absl::Status bad = AddSecurity(identity, false, &engine_args); !bad.ok()) return bad;
    engine_args.insert(engine_args.end(), options_.engine_args.begin(), options_.engine_args.end());
    if (CellOf(worker) < options_.cell_engine_args.size()) {
      const std::vector<std::string>& more = options_.cell_engine_args[CellOf(worker)];
      engine_args.insert(engine_args.end(), more.begin(), more.end());
    }
    started.push_back(&Add(WorkerName(worker), kEngine, std::move(engine_args)));
  }
  for (Process* process : started) {
    if (absl::Status status = process->Spawn(); !status.ok()) return status;
  }
  return WaitReady(started);
}

// Engines, then the process in front of them, which is ready once an engine answers.
absl::Status Cluster::StartServe() {
  std::vector<Process*> engines;
  for (uint32_t worker = 0; worker < workers(); ++worker) {
    std::vector<std::string> args = {std::string("--grpc=") + kAnyPort,
                                     std::string("--http=") + kAnyPort,
                                     std::string("--zmq_events=tcp://") + kAnyPort,
                                     std::string("--zmq_replay=tcp://") + kAnyPort,
                                     "--zmq_attach=bind",
                                     "--worker=" + WorkerName(worker),
                                     "--model=" + options_.model,
                                     "--capacity=" + std::to_string(options_.capacity),
                                     "--block_size=" + std::to_string(options_.block_size)};
    args.insert(args.end(), options_.engine_args.begin(), options_.engine_args.end());
    engines.push_back(&Add(WorkerName(worker), kEngine, std::move(args)));
    if (absl::Status status = engines.back()->Spawn(); !status.ok()) return status;
  }
  if (absl::Status status = WaitReady(engines); !status.ok()) return status;
  std::vector<std::string> args = {"serve", "--cell=" + CellName(0), "--hf_cache="};
  for (const char* port : {"listen", "http", "grpc", "leaf_http", "leaf_grpc"})
    args.push_back(std::string("--") + port + "=" + kAnyPort);
  for (const Process* engine : engines) {
    args.push_back("--engine=http://" + engine->address("http") + ";events=tcp://" +
                   engine->address("zmq_events") + ";replay=tcp://" +
                   engine->address("zmq_replay") + ";name=" + engine->name());
  }
  args.insert(args.end(), options_.serve_args.begin(), options_.serve_args.end());
  return Add("serve", kKvatlas, std::move(args)).Start(kReadyTimeout);
}

void Cluster::AddSchedule(std::vector<std::string>* args) const {
  if (!options_.schedule.empty()) args->push_back("--schedule=" + options_.schedule);
}

Process& Cluster::Add(const std::string& name, const std::string& binary,
                      std::vector<std::string> args) {
  std::unique_ptr<Process>& process = processes_[name];
  process = std::make_unique<Process>(ProcessOptions{.name = name,
                                                     .binary = options_.binaries + "/" + binary,
                                                     .args = std::move(args),
                                                     .log = logs_ + "/" + name + ".log"});
  return *process;
}

absl::Status Cluster::WaitReady(const std::vector<Process*>& processes) {
  for (Process* process : processes) {
    if (absl::Status status = process->WaitReady(kReadyTimeout); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Cluster::Kill(const std::string& name) {
  if (name == "redis" && redis_ != nullptr) {
    redis_->Kill();
    return absl::OkStatus();
  }
  auto it = processes_.find(name);
  if (it == processes_.end()) return absl::NotFoundError(name + ": no such process");
  it->second->Kill();
  return absl::OkStatus();
}

absl::Status Cluster::Restart(const std::string& name) {
  if (name == "redis" && redis_ != nullptr) {
    if (redis_->pid() != 0) return absl::FailedPreconditionError("redis is running");
    redis_->Start();
    return absl::OkStatus();
  }
  auto it = processes_.find(name);
  if (it == processes_.end()) return absl::NotFoundError(name + ": no such process");
  if (it->second->running()) return absl::FailedPreconditionError(name + " is running");
  return it->second->Start(kReadyTimeout);
}

std::string Cluster::CellName(uint32_t cell) const { return CellNameOf(cell); }

std::string Cluster::WorkerName(uint32_t worker) const {
  return WorkerNameOf(CellOf(worker), worker % options_.workers);
}

std::string Cluster::address(const std::string& process, const std::string& name) const {
  auto it = processes_.find(process);
  return it == processes_.end() ? "" : it->second->address(name);
}

std::string Cluster::AddressOf(const std::string& name) const { return address(name, "grpc"); }

std::map<std::string, pid_t> Cluster::Running() const {
  std::map<std::string, pid_t> running;
  if (redis_ != nullptr && redis_->pid() != 0) running["redis"] = redis_->pid();
  for (const auto& [name, process] : processes_) {
    if (process->running()) running[name] = process->pid();
  }
  return running;
}

std::string Cluster::Describe() const {
  std::string text;
  if (redis_ != nullptr) {
    text += "  redis         pid " + std::to_string(redis_->pid()) + "  " + redis_->url() + "\n";
  }
  for (const auto& [name, process] : processes_) {
    text += "  " + name + std::string(name.size() < 14 ? 14 - name.size() : 1, ' ') + "pid " +
            std::to_string(process->pid()) + "  grpc " + process->address("grpc");
    if (std::string http = process->address("http"); !http.empty()) text += "  http " + http;
    text += "\n";
  }
  return text;
}

}  // namespace kvatlas
