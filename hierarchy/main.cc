// kvatlas-hierarchy: which cells hold this prompt, as a service.

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "hierarchy/hierarchy.h"
#include "hierarchy/hierarchy_service.h"
#include "indexer/index/index.h"
#include "indexer/service/address.h"
#include "indexer/service/admin_http.h"
#include "indexer/service/grpc_server.h"
#include "indexer/service/metrics.h"
#include "indexer/service/service_main.h"
#include "indexer/transport/grpc_acceptor.h"

namespace kvatlas {
namespace {

constexpr Duration kTickEvery = std::chrono::milliseconds(200);

struct Flags {
  Address grpc{"127.0.0.1", 7420};
  Address http{"127.0.0.1", 8091};
  HierarchyOptions hierarchy;
};

void Declare(FlagSet& flags, Flags* f) {
  HolderRegistryOptions& r = f->hierarchy.registry;
  std::vector<std::string> indexes;
  for (std::string_view name : IndexNames()) indexes.emplace_back(name);
  r.index_name = indexes.front();
  flags.Add("grpc", &f->grpc, "address for gRPC");
  flags.Add("http", &f->http, "address for HTTP");
  flags.Add("node", &f->hierarchy.node, "this node's name");
  flags.AddChoice("index", &r.index_name, "structure of the index", indexes);
  flags.Add("lease_ttl", &r.receiver.lease_ttl, "silence after which a cell is in no answer",
            std::chrono::milliseconds(100));
  flags.Add("sweep_after", &r.sweep_after, "further silence after which a cell is forgotten");
  flags.Add("repair_timeout", &r.receiver.repair_timeout,
            "how long unconfirmed coverage is kept after a gap");
  flags.Add("cells_max", &r.holders_max, "replicas of cells per domain", 1);
  flags.Add("domains_max", &r.domains_max, "domains", 1);
}

int Run(ServiceMain& service, const Flags& flags) {
  Metrics metrics;
  Hierarchy hierarchy(flags.hierarchy);
  HierarchyService hierarchy_service(&hierarchy, &metrics);
  GrpcAcceptor streams(&hierarchy.registry());
  GrpcServer grpc({.listen = flags.grpc});
  grpc.Register(&hierarchy_service, "kvatlas.v1.Hierarchy");
  grpc.Register(streams.service(), "kvatlas.v1.Holdings");
  AdminHttp http({.listen = flags.http, .program = "kvatlas-hierarchy"}, &metrics);
  hierarchy_service.AddHttp(&http);
  if (absl::Status status = grpc.Start(); !status.ok()) return service.Fail(status);
  if (absl::Status status = http.Start(); !status.ok()) return service.Fail(status);
  grpc.SetHealth(Health::kServing);
  http.SetHealth(Health::kServing);
  if (absl::Status status = service.Ready({{"grpc", grpc.address()}, {"http", http.address()}});
      !status.ok()) {
    return service.Fail(status);
  }
  while (!service.WaitForSignal(kTickEvery).has_value()) hierarchy.registry().Tick();
  http.SetHealth(Health::kStopping);
  grpc.SetHealth(Health::kStopping);
  hierarchy.registry().StopAccepting();
  streams.Stop();  // so that the server need not wait for senders
  grpc.Stop(service.stop_deadline());
  http.Stop();
  return 0;
}

int Main(int argc, char** argv) {
  ServiceMain service("kvatlas-hierarchy", "Which cells hold this prompt, and how deep.");
  Flags flags;
  Declare(service.flags(), &flags);
  service.Start(argc, argv);
  return Run(service, flags);
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
