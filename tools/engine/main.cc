// mock_engine: an engine without a GPU. A model of its cache and its time, publishing through the real library.

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "indexer/service/address.h"
#include "indexer/service/flags.h"
#include "indexer/service/grpc_server.h"
#include "indexer/service/health.h"
#include "indexer/service/service_main.h"
#include "publisher/publisher.h"
#include "tools/engine/engine_model.h"
#include "tools/engine/engine_service.h"

int main(int argc, char** argv) {
  using namespace kvatlas;
  ServiceMain service("mock_engine", "An engine without a GPU: its cache, its time, its events.");
  EngineOptions options;
  PublisherOptions publishing;
  Address grpc_address;
  publishing.domain.model = "mock";
  publishing.worker = "worker-0";
  FlagSet& flags = service.flags();
  flags.Add("grpc", &grpc_address, "address for gRPC (tools/engine/engine.proto)");
  flags.Add("leaf", &publishing.leaves, "gRPC addresses of the replicas of its cell's leaf");
  flags.AddName("worker", &publishing.worker, "its name");
  flags.AddName("model", &publishing.domain.model, "model of its domain");
  flags.AddName("tenant", &publishing.domain.tenant, "tenant of its domain", true);
  flags.Add("capacity", &options.capacity_blocks, "blocks in its pool", uint64_t{1});
  flags.Add("block_size", &options.block_size, "tokens per block", 1u, 65536u);
  flags.Add("prefill_tokens_per_s", &options.prefill_tokens_per_s, "speed of prefill", 1.0, 1e9);
  flags.Add("decode_ms_per_token", &options.decode_ms_per_token, "time of an output token", 0.0,
            1e6);
  service.Start(argc, argv);

  publishing.block_size = options.block_size;
  absl::StatusOr<std::unique_ptr<Publisher>> publisher = Publisher::Create(publishing);
  if (!publisher.ok()) return service.Fail(publisher.status());
  EngineService engine(options, publisher->get());
  GrpcServer grpc({.listen = grpc_address});
  grpc.Register(&engine, "kvatlas.engine.v1.Engine");
  if (absl::Status status = grpc.Start(); !status.ok()) return service.Fail(status);
  grpc.SetHealth(Health::kServing);
  if (absl::Status status = service.Ready({{"grpc", grpc.address()}}); !status.ok()) {
    return service.Fail(status);
  }
  service.WaitForSignal();
  grpc.Stop(service.stop_deadline());
  (*publisher)->Stop(/*goodbye=*/true, std::chrono::milliseconds(100));
  return 0;
}
