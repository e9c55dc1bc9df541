// kvatlas-relay: tells leaves what engines hold that know nothing of leaves. Flags, their checks,
// and the order of start and stop.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/domain.h"
#include "indexer/discovery/found_leaves.h"
#include "indexer/kv_events/engine_flags.h"
#include "indexer/kv_events/engine_registration.h"
#include "indexer/kv_events/worker_flags.h"
#include "indexer/net/redis_url.h"
#include "indexer/process/admin_http.h"
#include "indexer/process/flags.h"
#include "indexer/process/service_main.h"
#include "indexer/telemetry/health.h"
#include "indexer/telemetry/metrics.h"
#include "indexer/transport/redis/redis_log_options.h"
#include "publisher/relay/relay.h"
#include "publisher/relay/relay_http.h"
#include "publisher/relay/relay_metrics.h"

namespace kvatlas {
namespace {

// Read by `Declare`'s flags; `Finish` turns the texts into `relay`'s options.
struct Flags {
  RelayOptions relay;
  Address http{"127.0.0.1", 8093};
  std::string redis;
  uint32_t redis_shards = 1;
  std::vector<std::string> labels;  // NAME=VALUE
  EngineFlags engines;
  bool goodbye = false;
};

// In the groups of --help; defaults are those of the options.
void Declare(FlagSet& flags, Flags* f) {
  RelayOptions& relay = f->relay;
  relay.blocks_max = uint64_t{64} << 20;
  flags.Group("Leaves");
  flags.Add("http", &f->http, "address for HTTP").Listens();
  flags.Add("leaves", &relay.leaves,
            "gRPC addresses of the replicas of the cell's leaf, or where they are found: "
            "dns:HOST:PORT, k8s:SERVICE[.NAMESPACE][:PORT], redis://HOST:PORT or @FILE; empty: "
            "127.0.0.1:7410, or none with --redis");
  flags.AddName("cell", &relay.cell,
                "name of the cell, for --redis and for leaves that announce themselves", true);
  flags
      .Add("redis", &f->redis,
           "URL of a Redis where the cell's leaf reads, redis://HOST:PORT or @FILE; empty: none")
      .Check([](const std::string& url) { return ParseRedisUrl(url).status(); });
  flags.Add("redis_shards", &f->redis_shards, "shards of the cell's logs, the same for its leaf",
            1u, kRedisShardsMax);
  flags.Add("labels", &f->labels, "NAME=VALUE,… told to leaves, such as zone=a");
  flags.Add("contract_seed", &relay.contract.seed, "seed S of the hash contract");
  flags.Group("Engines");
  f->engines.Declare(flags, "engines to relay");
  flags.Add("min_initial_workers", &relay.min_initial_workers,
            "worker ranks to be offered before this relay says that it is ready");
  flags.Group("Leases");
  flags.Add("lease_ttl", &relay.lease_ttl,
            "absence of an engine after which leaves hear no more of it",
            std::chrono::milliseconds(100));
  flags.Add("repair_timeout", &relay.worker.repair_timeout,
            "how long unconfirmed blocks are kept after a gap");
  flags.Add("replay_timeout", &relay.ingest.tracker.replay_timeout,
            "silence after which an engine's replay is given up");
  flags.Add("orphan_ttl", &relay.worker.orphan_ttl,
            "how long an engine's block waits for its parent");
  flags.Group("Limits");
  flags.Add("batch_age", &relay.batch_age, "how long a change waits for others before it is sent");
  flags.Add("window_batches", &relay.sender.window_batches,
            "batches kept for each leaf that does not acknowledge; then a snapshot", 1);
  flags.Add("max_blocks", &relay.blocks_max, "blocks held for all ranks together; 0: no limit");
  flags.Add("max_instances", &relay.instances_max, "engines", 1);
  flags.Add("max_workers", &relay.ranks_max, "worker ranks", 1);
  flags.Add("ingest_threads", &relay.ingest.io_threads, "threads of ZeroMQ", 1, 64);
  flags.Add("decode_threads", &relay.ingest.decode_threads,
            "threads that decode and apply engines' events; 0: as many as cores, at most 8", 0,
            256);
  flags.Add("goodbye", &f->goodbye,
            "on SIGTERM leaves forget the engines at once, instead of after the lease");
  flags.Example(
      "kvatlas-relay --leaves=127.0.0.1:7410 --workers='0=tcp://127.0.0.1:5557' --model_name=m "
      "--block_size=16",
      "tells a leaf what a vLLM engine announces over ZeroMQ");
}

// --redis without --leaves means the log alone; neither means the default leaf.
absl::Status FinishLeaves(Flags* flags) {
  RelayOptions& relay = flags->relay;
  if (!flags->redis.empty()) {
    absl::StatusOr<RedisOptions> redis = ParseRedisUrl(flags->redis);
    if (!redis.ok()) return OfFlag("redis", redis.status());
    if (relay.cell.empty()) return absl::InvalidArgumentError("--redis needs --cell");
    RedisLogOptions log;
    log.redis = *std::move(redis);
    log.cell = relay.cell;
    log.shards = flags->redis_shards;
    relay.redis = std::move(log);
  } else if (relay.leaves.empty()) {
    relay.leaves = {"127.0.0.1:7410"};
  }
  for (const std::string& leaf : relay.leaves) {
    if (!IsPlaceToLook(leaf) && !Address::Parse(leaf).ok())
      return absl::InvalidArgumentError("--leaves: \"" + leaf + "\" is not HOST:PORT");
  }
  return OfFlag("leaves", FoundLeaves::Check(relay.leaves, relay.cell));
}

// Checks that need several flags at once, or files.
absl::Status Finish(Flags* flags) {
  auto workers = flags->engines.Workers();
  if (!workers.ok()) return workers.status();
  flags->relay.workers = *std::move(workers);
  if (absl::Status bad = flags->engines.ReadInto(&flags->relay.ingest); !bad.ok()) return bad;
  if (absl::Status bad = FinishLeaves(flags); !bad.ok()) return bad;
  auto read = ReadLabels(flags->labels);
  if (!read.ok()) return read.status();
  flags->relay.labels = *std::move(read);
  return absl::OkStatus();
}

// --workers was read again: engines that are gone or registered otherwise are ended, new ones
// begin. Parsing is done before the commit, so that a wrong text changes nothing.
absl::StatusOr<FlagSet::Commit> PrepareWorkers(const Flags& flags, Relay* relay,
                                               std::vector<EngineRegistration>* workers) {
  auto parsed = flags.engines.Workers();
  if (!parsed.ok()) return parsed.status();
  return FlagSet::Commit([relay, workers, after = *std::move(parsed)] {
    ChangeWorkers(ChangesOf(*workers, after), relay);
    *workers = after;
  });
}

// 1. Flags are read and checked.
// 2. The relay starts, and with it its streams.
// 3. HTTP starts, and shows readiness.
// 4. After a signal the relay stops, with half of the stop's time for what is due, then HTTP.
int Main(int argc, char** argv) {
  ServiceMain service("kvatlas-relay",
                      "Tells leaves what engines hold, from the engines' own event streams.");
  Flags flags;
  Declare(service.flags(), &flags);
  service.Start(argc, argv);
  if (const std::optional<int> exit = service.Checked(Finish(&flags))) return *exit;
  absl::StatusOr<std::unique_ptr<Relay>> relay = Relay::Start(flags.relay);
  if (!relay.ok()) return service.Fail(relay.status());
  Metrics metrics;
  AdminHttp http({.listen = flags.http, .program = "kvatlas-relay"}, &metrics);
  AddRelayRoutes(relay->get(), &http);
  AddRelayMetrics(relay->get(), &metrics);
  if (absl::Status status = http.Start(); !status.ok()) return service.Fail(OfFlag("http", status));
  http.SetHealth(Health::kServing);
  if (absl::Status status = service.Ready({{"http", http.address()}}); !status.ok())
    return service.Fail(status);
  service.flags().OnReload({"workers", "model_name", "routing_group", "block_size"}, [&] {
    return PrepareWorkers(flags, relay->get(), &flags.relay.workers);
  });
  // Health goes down before the streams end, so that no probe takes the relay for serving.
  service.OnStopSignal([&] { http.SetHealth(Health::kStopping); });
  service.OnWatchdog([&] { return http.health()->deaf().empty(); });
  service.WaitForSignal();
  http.SetHealth(Health::kStopping);
  (*relay)->Stop(flags.goodbye, service.stop_deadline() / 2);
  http.Stop();
  return 0;
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
