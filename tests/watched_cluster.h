// What do alerts and dashboards see of a real fleet? A small cluster with something of everything,
// traffic, and a real Prometheus that scrapes it and judges by the rules that we ship, with shorter
// times (`ShortenedRules`) or as they are.
//
//   "top" ◀── hierarchy ◀── leaf-0 (checkpoints on a disk of its own) ◀── worker-0-0, worker-0-1
//                       ◀── leaf-1 ◀── worker-1-0, worker-1-1, and engine(), which a test can break
//   frontend      "of-redis": a leaf that reads a Redis.      "relay": between an engine of its own and leaf-0
//   with `all`    "tight": memory beyond its budget.  "exposed": beyond loopback, without TLS.  "of-a-day": TLS, a policy, and a
//                 certificate that ends within the hour
//
// *Threads*: one; processes end with it. *Lifetime*: the destructor stops everything.

#ifndef KVATLAS_TESTS_WATCHED_CLUSTER_H_
#define KVATLAS_TESTS_WATCHED_CLUSTER_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/mutex.h"
#include "tools/testing/cluster/client.h"
#include "tools/testing/cluster/cluster.h"
#include "tools/testing/cluster/process.h"
#include "tools/testing/servers/prometheus_test_server.h"
#include "tools/testing/servers/redis_test_server.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {

struct WatchedClusterOptions {
  bool all = false;
  bool relay = false;
  bool rules_as_shipped = false;  // else shortened
};

class WatchedCluster {
 public:
  // Returns when every process was scraped. An error quotes the log of what did not start.
  static absl::StatusOr<std::unique_ptr<WatchedCluster>> Start(WatchedClusterOptions options);
  ~WatchedCluster();

  Cluster& cluster() { return *cluster_; }
  PrometheusTestServer& prometheus() { return *prometheus_; }
  RedisTestServer& redis() { return redis_; }
  // Instance 7 of the domain "raw" at leaf 1, with blocks of 16 tokens.
  ZmqTestEngine& engine() { return *engine_; }
  // After leaf 1 was started again.
  absl::Status RegisterEngine();

  // Empty: this system lets the test mount no disk.
  const std::string& disk() const { return disk_; }
  std::string certificate() const { return certificate_; }
  // From now on reports say that engines served nothing from cache.
  void Lie();
  // The label `instance` of a process of `cluster()`.
  std::string Instance(const std::string& process) const;
  pid_t PidOf(const std::string& process) const { return cluster_->Running().at(process); }
  // A metric with this value at this moment, or any if none is given.
  bool Has(const std::string& expression) { return !prometheus_->Query(expression).empty(); }

 private:
  class Traffic;

  WatchedCluster() = default;
  absl::Status StartAll(WatchedClusterOptions options);
  absl::Status StartOther(const std::string& name, const char* binary,
                          std::vector<std::string> args);
  absl::Status StartOdd();
  absl::Status StartRelay();
  std::vector<PrometheusTarget> Targets() const;

  std::string disk_;
  std::string certificate_;
  std::string tls_;  // for Prometheus
  RedisTestServer redis_;
  std::unique_ptr<ZmqTestEngine> engine_;
  std::unique_ptr<ZmqTestEngine> relayed_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<std::unique_ptr<Process>> others_;
  std::unique_ptr<Traffic> traffic_;
  std::unique_ptr<PrometheusTestServer> prometheus_;
};

// As vLLM publishes it, at that time, of a block of so many tokens.
std::string StoredBlockPayload(uint64_t name, double at_s, uint32_t block_size = 16);
double WallSeconds();

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_WATCHED_CLUSTER_H_
