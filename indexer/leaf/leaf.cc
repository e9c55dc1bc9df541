#include "indexer/leaf/leaf.h"

#include <chrono>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/mutex.h"
#include "indexer/leaf/leaf_service.h"
#include "indexer/service/admin_http.h"
#include "indexer/service/grpc_server.h"
#include "indexer/service/health.h"
#include "indexer/service/metrics.h"
#include "indexer/stream/validate.h"
#include "indexer/transport/grpc_acceptor.h"
#include "indexer/transport/grpc_link.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/leaf.pb.h"

namespace kvatlas {
namespace {

constexpr Duration kReportEvery = std::chrono::milliseconds(10);
constexpr int kReportsPerTick = 20;

absl::Status Check(const LeafOptions& options) {
  absl::Status names = ValidateHolder({options.cell, 0, options.replica}, options.labels);
  if (!names.ok()) return names;
  return MakeIndex(options.registry.index_name, options.registry.index).status();
}

CoverageReporterOptions ReporterOptions(const LeafOptions& options) {
  CoverageReporterOptions reporter;
  reporter.cell = {.name = options.cell, .rank = 0, .replica = options.replica};
  reporter.labels = options.labels;
  reporter.parents = options.parents;
  reporter.make_link = [](const std::string& parent) { return std::make_unique<GrpcLink>(parent); };
  reporter.contract_id = options.contract.Id();
  reporter.coverage = options.coverage;
  reporter.sender = options.sender;
  reporter.epoch = WallTimeNs();
  reporter.instance_id = RandomInstanceId();
  return reporter;
}

HolderRegistryOptions RegistryOptions(const LeafOptions& options, CoverageReporter* reporter) {
  HolderRegistryOptions registry = options.registry;
  registry.contract_id = options.contract.Id();
  registry.schedule = "";
  registry.observe = [reporter](const Domain& domain, uint32_t block_size) {
    return reporter->AddDomain(domain, block_size);
  };
  return registry;
}

void FillParents(const CoverageReporter& reporter, v1::StatsResponse* response) {
  for (const ParentStats& stats : reporter.Stats()) {
    v1::ParentStats* parent = response->add_parents();
    parent->set_address(stats.parent);
    ToProto(stats.domain, parent->mutable_domain());
    parent->set_connected(stats.connected);
    parent->set_at_rest(stats.at_rest);
    parent->set_waypoints_announced(stats.waypoints_announced);
    parent->set_waypoints_withdrawn(stats.waypoints_withdrawn);
    parent->set_bytes_sent(stats.bytes_sent);
    parent->set_waypoints_held(stats.waypoints_held);
  }
}

}  // namespace

// In order of construction: who uses comes after whom it uses.
struct Leaf::Parts {
  explicit Parts(const LeafOptions& options)
      : reporter(ReporterOptions(options)),
        registry(RegistryOptions(options, &reporter)),
        service(
            {options.cell, options.replica, options.contract}, &registry,
            [this](v1::StatsResponse* response) { FillParents(reporter, response); }, &metrics),
        streams(&registry),
        grpc({.listen = options.grpc}),
        http({.listen = options.http, .program = "kvatlas-leaf"}, &metrics) {
    grpc.Register(&service, "kvatlas.v1.Leaf");
    grpc.Register(streams.service(), "kvatlas.v1.Holdings");
    service.AddHttp(&http);
  }

  // What time brings, until `stopping`.
  void RunTimer() {
    MutexLock lock(&mutex);
    for (int i = 0; !stopping; i = (i + 1) % kReportsPerTick) {
      mutex.Unlock();
      if (i == 0) registry.Tick();
      reporter.Tick();
      mutex.Lock();
      if (!stopping) wake.WaitFor(&mutex, kReportEvery);
    }
  }

  void StopTimer() {
    {
      MutexLock lock(&mutex);
      stopping = true;
      wake.SignalAll();
    }
    if (timer.joinable()) timer.join();
  }

  Metrics metrics;
  CoverageReporter reporter;
  HolderRegistry registry;
  LeafService service;
  GrpcAcceptor streams;
  GrpcServer grpc;
  AdminHttp http;

  Mutex mutex;
  CondVar wake;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  bool stopped ABSL_GUARDED_BY(mutex) = false;
  std::thread timer;
};

Leaf::Leaf(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Leaf::~Leaf() { Stop(Duration::zero()); }

absl::StatusOr<std::unique_ptr<Leaf>> Leaf::Start(LeafOptions options) {
  if (absl::Status bad = Check(options); !bad.ok()) return bad;
  auto leaf = std::unique_ptr<Leaf>(new Leaf(std::make_unique<Parts>(options)));
  Parts& parts = *leaf->parts_;
  if (absl::Status status = parts.grpc.Start(); !status.ok()) return status;
  if (absl::Status status = parts.http.Start(); !status.ok()) return status;
  parts.reporter.SetAddress(options.advertise.empty() ? parts.grpc.address().ToString()
                                                      : options.advertise);
  parts.timer = std::thread([&parts] { parts.RunTimer(); });
  parts.grpc.SetHealth(Health::kServing);
  parts.http.SetHealth(Health::kServing);
  return leaf;
}

Address Leaf::grpc_address() const { return parts_->grpc.address(); }
Address Leaf::http_address() const { return parts_->http.address(); }
const HolderRegistry& Leaf::registry() const { return parts_->registry; }
std::vector<ParentStats> Leaf::parents() const { return parts_->reporter.Stats(); }

// 1. Say that we stop, and take no new streams. 2. End the workers' streams. 3. Tell the parents goodbye.
// 4. Let running questions finish.
void Leaf::Stop(Duration grace) {
  Parts& parts = *parts_;
  {
    MutexLock lock(&parts.mutex);
    if (parts.stopped) return;
    parts.stopped = true;
  }
  parts.http.SetHealth(Health::kStopping);
  parts.grpc.SetHealth(Health::kStopping);
  parts.registry.StopAccepting();
  parts.streams.Stop();
  parts.StopTimer();
  parts.reporter.Stop(grace / 2);
  parts.grpc.Stop(grace / 2);
  parts.http.Stop();
}

}  // namespace kvatlas
