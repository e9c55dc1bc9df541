#include "tests/watched_cluster.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"
#include "indexer/kv_events/decoder_test_util.h"
#include "indexer/security/pki.h"
#include "tools/bench/service_bench_http.h"

namespace kvatlas {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kStartTimeout(90);
constexpr char kRules[] = "tools/deploy/alerts/kvatlas.rules.yaml";
constexpr char kLeafBinary[] = "indexer/leaf/kvatlas-leaf";
constexpr char kHierarchyBinary[] = "hierarchy/kvatlas-hierarchy";
constexpr char kRelayBinary[] = "publisher/kvatlas-relay";
constexpr size_t kDiskBytes = size_t{40} << 20;
constexpr uint32_t kBlocks = 12;  // of a prompt

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A small disk of this program's own; false where the system does not allow it.
bool MountDisk(const std::string& path) {
  fs::create_directories(path);
  const std::string size = absl::StrCat("size=", kDiskBytes);
  return unshare(CLONE_NEWNS) == 0 &&
         mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", path.c_str(), "tmpfs", 0, size.c_str()) == 0;
}

}  // namespace

// Prompts, some twenty a second, whose blocks the chosen engine then has.
class WatchedCluster::Traffic {
 public:
  explicit Traffic(const Cluster& cluster)
      : cluster_(cluster), client_(cluster), thread_([this] { Run(); }) {}
  void Lie() { lies_ = true; }
  ~Traffic() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      wake_.SignalAll();
    }
    thread_.join();
  }

 private:
  void Run() {
    constexpr Duration kPause = std::chrono::milliseconds(50);
    for (uint64_t request = 1;; ++request) {
      Serve(request);
      MutexLock lock(&mutex_);
      if (!stopping_) wake_.WaitFor(&mutex_, kPause);
      if (stopping_) return;
    }
  }

  // Blocks of which the next ones of the same prompt find all but the last, and enough for a
  // waypoint: what has none, no cell promises.
  void Serve(uint64_t request) {
    const uint32_t block_size = cluster_.options().block_size;
    const uint64_t prompt = request % 7;
    engine::v1::SubmitRequest submit;
    std::vector<SequenceHash> blocks;
    for (uint64_t i = 1; i <= kBlocks; ++i) {
      blocks.push_back(SequenceHash{prompt * 100 + i});
      submit.add_blocks(prompt * 100 + i);
    }
    const auto route = client_.Route(blocks, kBlocks * block_size);
    if (!route.ok()) return;
    submit.set_id(request);
    submit.set_prompt_tokens(kBlocks * block_size);
    v1::ReportRequest report;
    report.set_decision_id(route->decision_id());
    report.set_accepted(true);
    report.set_finished(true);
    for (uint32_t worker = 0; worker < cluster_.workers(); ++worker) {
      if (cluster_.WorkerName(worker) != route->worker().name()) continue;
      const auto step = client_.Submit(worker, submit);
      if (!step.ok()) break;
      time_ms_ += 1000;
      for (const auto& advanced : client_.Advance({worker}, time_ms_, 100)) (void)advanced.ok();
    }
    report.set_prompt_tokens(kBlocks * block_size);
    report.set_cached_tokens(lies_ ? 0 : route->overlap_blocks() * block_size);
    client_.Report(report).IgnoreError();
  }

  const Cluster& cluster_;
  ClusterClient client_;
  double time_ms_ = 0;
  std::atomic<bool> lies_{false};
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<WatchedCluster>> WatchedCluster::Start(
    WatchedClusterOptions options) {
  std::unique_ptr<WatchedCluster> watched(new WatchedCluster);
  if (absl::Status bad = watched->StartAll(options); !bad.ok()) return bad;
  return watched;
}

WatchedCluster::~WatchedCluster() {
  prometheus_.reset();
  traffic_.reset();
}

absl::Status WatchedCluster::StartAll(WatchedClusterOptions options) {
  const std::string checkpoints = ::testing::TempDir() + "/checkpoints";
  if (MountDisk(checkpoints)) disk_ = checkpoints;
  absl::Status bad = StartOther("top", kHierarchyBinary,
                                {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--node=top"});
  if (!bad.ok()) return bad;
  ClusterOptions parts;
  parts.cells = 2;
  parts.workers = 2;
  parts.hierarchy_args = {"--parents=" + others_.back()->address("grpc")};
  parts.frontend_args = {"--proxy=127.0.0.1:0"};
  parts.cell_leaf_args = {{"--checkpoint_dir=" + checkpoints, "--checkpoint_every=500ms"}};
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(parts);
  if (!cluster.ok()) return cluster.status();
  cluster_ = *std::move(cluster);
  bad = StartOther(
      "of-redis", kLeafBinary,
      {"--http=127.0.0.1:0", "--grpc=127.0.0.1:0", "--cell=of-redis", "--redis=" + redis_.url()});
  if (bad.ok() && options.all) bad = StartOdd();
  engine_ = std::make_unique<ZmqTestEngine>(ZmqTestEngineOptions{});
  if (bad.ok()) bad = RegisterEngine();
  if (bad.ok() && options.relay) bad = StartRelay();
  if (!bad.ok()) return bad;
  traffic_ = std::make_unique<Traffic>(*cluster_);
  const std::string rules = ReadFile(kRules);
  prometheus_ = std::make_unique<PrometheusTestServer>(PrometheusOptions{
      .targets = Targets(), .rules = options.rules_as_shipped ? rules : ShortenedRules(rules)});
  if (Await([this] { return prometheus_->AllUp(); }, kStartTimeout)) return absl::OkStatus();
  return absl::DeadlineExceededError("not every process is scraped");
}

absl::Status WatchedCluster::StartRelay() {
  relayed_ = std::make_unique<ZmqTestEngine>(ZmqTestEngineOptions{});
  const absl::Status bad =
      StartOther("relay", kRelayBinary,
                 {"--http=127.0.0.1:0", "--leaves=" + cluster_->leaf(0), "--model_name=relayed",
                  "--block_size=16", "--workers=r=" + relayed_->endpoint()});
  if (!bad.ok()) return bad;
  relayed_->WaitForSubscribers();
  relayed_->Publish(StoredBlockPayload(1, WallSeconds()));
  return absl::OkStatus();
}

void WatchedCluster::Lie() { traffic_->Lie(); }

absl::Status WatchedCluster::StartOther(const std::string& name, const char* binary,
                                        std::vector<std::string> args) {
  others_.push_back(
      std::make_unique<Process>(ProcessOptions{.name = name,
                                               .binary = binary,
                                               .args = std::move(args),
                                               .log = ::testing::TempDir() + "/" + name + ".log"}));
  return others_.back()->Start(kStartTimeout);
}

// Leaves that have something wrong from the start.
absl::Status WatchedCluster::StartOdd() {
  absl::Status bad = StartOther(
      "tight", kLeafBinary,
      {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--cell=tight", "--memory_budget=1M"});
  if (bad.ok()) {
    bad = StartOther("exposed", kLeafBinary,
                     {"--grpc=127.0.0.1:0", "--http=0.0.0.0:0", "--cell=exposed", "--insecure"});
  }
  const absl::StatusOr<Pki> pki = Pki::Create(::testing::TempDir() + "/pki", "test.local");
  bad.Update(pki.status());
  if (!bad.ok()) return bad;
  const auto own = pki->Issue({.identity = "leaf/of-a-day/-", .valid_for_s = 3600});
  const auto viewer = pki->Issue({.identity = "viewer/prometheus"});
  bad.Update(own.status());
  bad.Update(viewer.status());
  bad.Update(pki->WriteExamplePolicy());
  if (!bad.ok()) return bad;
  certificate_ = own->certificate;
  tls_ = absl::StrCat("ca_file: ", viewer->ca, "\ncert_file: ", viewer->certificate,
                      "\nkey_file: ", viewer->key, "\n");
  return StartOther("of-a-day", kLeafBinary,
                    {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--cell=of-a-day",
                     "--tls_cert=" + own->certificate, "--tls_key=" + own->key,
                     "--tls_ca=" + own->ca, "--access_policy=" + pki->policy_path()});
}

absl::Status WatchedCluster::RegisterEngine() {
  HttpClient leaf(*Address::Parse(Instance("leaf-1")));
  const absl::StatusOr<HttpAnswer> answer =
      leaf.Post("/register",
                absl::StrCat(R"({"instance_id":7,"model_name":"raw","block_size":16,"endpoint":")",
                             engine_->endpoint(), R"("})"));
  if (!answer.ok()) return answer.status();
  if (answer->status != 201) return absl::InternalError("/register: " + answer->body);
  return absl::OkStatus();
}

std::vector<PrometheusTarget> WatchedCluster::Targets() const {
  std::vector<PrometheusTarget> targets = {{"kvatlas-hierarchy", Instance("hierarchy")},
                                           {"kvatlas-leaf", Instance("leaf-0")},
                                           {"kvatlas-leaf", Instance("leaf-1")},
                                           {"kvatlas-frontend", Instance("frontend")}};
  for (const auto& other : others_) {
    const std::string kind = other->name() == "relay" ? "relay"
                             : other->name() == "top" ? "hierarchy"
                                                      : "leaf";
    Address address = *Address::Parse(other->address("http"));
    address.host = "127.0.0.1";
    targets.push_back(
        {"kvatlas-" + kind, address.ToString(), other->name() == "of-a-day" ? tls_ : ""});
  }
  return targets;
}

std::string WatchedCluster::Instance(const std::string& process) const {
  return cluster_->address(process, "http");
}

std::string StoredBlockPayload(uint64_t name, double at_s, uint32_t block_size) {
  MsgpackWriter batch;
  batch.Array(3).Float(at_s).Array(1).Map(6);
  batch.Text("type").Text("BlockStored").Text("block_hashes").Array(1).Unsigned(name);
  batch.Text("parent_block_hash").Nil().Text("token_ids").Array(block_size);
  for (uint32_t i = 0; i < block_size; ++i) batch.Unsigned(name + i);
  batch.Text("block_size").Unsigned(block_size).Text("medium").Text("GPU");
  batch.Unsigned(0);
  return batch.bytes();
}

double WallSeconds() { return static_cast<double>(WallTimeNs()) * 1e-9; }

}  // namespace kvatlas
