// How does a whole kvatlas run on one machine? One hierarchy, a leaf per cell, one frontend and
// mock engines, as separate processes over real sockets.
//
//   frontend ──▶ hierarchy ◀── leaf-0 … leaf-C-1 ◀── worker-0-0 … (each a mock engine with the publisher in it)
//
// With `ClusterOptions::serve`:   clients ──▶ serve ──▶ worker-0-0 … (OpenAI's calls; events over ZeroMQ)
//
// *Truth*: processes are named "hierarchy", "frontend", "redis", "leaf-0", "worker-0-3" (cell,
// number in it). Cells are "cell-0" and so on; a worker's name is its process's. What is killed and
// restarted comes back on its port.
// *Threads*: none; one thread starts, kills and restarts, and outlives the processes.
// *Lifetime*: the destructor stops everything. Logs lie in a directory of their own; it is removed
// at the end unless something failed.
//
// Example:
//   absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start({.cells = 2, .workers = 2});
//   (*cluster)->Kill("leaf-0");
//   (*cluster)->Restart("leaf-0");

#ifndef KVATLAS_TOOLS_TESTING_CLUSTER_CLUSTER_H_
#define KVATLAS_TOOLS_TESTING_CLUSTER_CLUSTER_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/security/pki.h"
#include "tools/testing/cluster/process.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {

struct ClusterOptions {
  uint32_t cells = 4;
  uint32_t workers = 8;  // per cell
  uint64_t capacity = 4096;
  uint32_t block_size = 64;
  std::string model = "mock";
  // Waypoints that leaves report, nodes take and the frontend asks about; empty: the standard ones.
  std::string schedule;
  // Between engines and leaves: gRPC, or the logs of a redis-server of the cluster's own, which
  // keeps nothing on disk.
  bool redis = false;
  double prefill_tokens_per_s = 8000;
  double decode_ms_per_token = 20;
  // `kvatlas serve` in front of all engines, in the place of hierarchy, leaves and frontend:
  // engines answer OpenAI's calls and publish over ZeroMQ, as engines do that know nothing of
  // kvatlas.
  bool serve = false;
  std::vector<std::string> serve_args;
  // A throw-away CA: every process has a certificate of its own and a policy, and this program is
  // an operator.
  bool secure = false;
  // The side class of the engines' model (`hybrid.h`); empty: full attention alone.
  std::string hybrid;
  // Where bazel-bin's folders are: a directory with indexer/leaf/kvatlas-leaf and the others below
  // it. Empty: found from this program's own place.
  std::string binaries;
  // More arguments for every process of a kind.
  std::vector<std::string> leaf_args;
  std::vector<std::string> hierarchy_args;
  std::vector<std::string> frontend_args;
  std::vector<std::string> engine_args;
  // For the leaf of a cell, by the cell's number; of further cells: none.
  std::vector<std::vector<std::string>> cell_leaf_args;
  // And for the engines of a cell, by its number; of further cells: none.
  std::vector<std::vector<std::string>> cell_engine_args;
};

class Cluster {
 public:
  // Starts everything and waits until all are ready. An error quotes the log of what did not start.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(ClusterOptions options);
  ~Cluster();

  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // kill -9. NOT_FOUND: no such process.
  absl::Status Kill(const std::string& name);
  // Starts it again, on the same port. NOT_FOUND: no such process. REQUIRES: it was killed.
  absl::Status Restart(const std::string& name);

  const ClusterOptions& options() const { return options_; }
  uint32_t workers() const { return options_.cells * options_.workers; }

  // gRPC addresses.
  std::string frontend() const { return AddressOf(options_.serve ? "serve" : "frontend"); }
  std::string hierarchy() const { return AddressOf("hierarchy"); }
  std::string leaf(uint32_t cell) const {
    return options_.serve ? address("serve", "leaf_grpc") : AddressOf(LeafName(cell));
  }
  // Of the name that a process gives its address: "grpc", "http", "proxy"; empty: it has none.
  std::string address(const std::string& process, const std::string& name) const;
  // `worker` counts through all cells: worker w is number w % workers of cell w / workers.
  std::string engine(uint32_t worker) const { return AddressOf(WorkerName(worker)); }

  uint32_t CellOf(uint32_t worker) const { return worker / options_.workers; }
  std::string CellName(uint32_t cell) const;
  std::string LeafName(uint32_t cell) const { return "leaf-" + std::to_string(cell); }
  std::string WorkerName(uint32_t worker) const;

  // Those that run, by name.
  std::map<std::string, pid_t> Running() const;
  // Every process with its addresses, a line each.
  std::string Describe() const;
  const std::string& logs() const { return logs_; }
  // Of a cluster that is secure; else null.
  const Pki* pki() const { return pki_.get(); }
  // The logs stay when the cluster goes.
  void KeepLogs() { keep_logs_ = true; }

 private:
  explicit Cluster(ClusterOptions options) : options_(std::move(options)) {}

  absl::Status StartAll();
  absl::Status StartRedis();
  absl::Status MakePki();
  absl::Status AddSecurity(const std::string& identity, bool policy,
                           std::vector<std::string>* args) const;
  absl::Status StartHierarchy();
  absl::Status StartLeaves();
  absl::Status StartFrontendAndEngines();
  absl::Status StartServe();
  void AddSchedule(std::vector<std::string>* args) const;
  Process& Add(const std::string& name, const std::string& binary, std::vector<std::string> args);
  absl::Status WaitReady(const std::vector<Process*>& processes);
  std::string AddressOf(const std::string& name) const;

  ClusterOptions options_;
  std::string logs_;
  bool keep_logs_ = false;
  std::unique_ptr<RedisTestServer> redis_;  // null: none
  std::unique_ptr<Pki> pki_;                // likewise
  std::map<std::string, std::unique_ptr<Process>> processes_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_CLUSTER_CLUSTER_H_
