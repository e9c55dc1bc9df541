// What is the load for? A leaf that this process starts, or a service that runs already; and what
// it has used.
//
// *Threads*: one. *Lifetime*: a started leaf ends with its target.

#ifndef KVATLAS_TOOLS_BENCH_SERVICE_BENCH_TARGET_H_
#define KVATLAS_TOOLS_BENCH_SERVICE_BENCH_TARGET_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "tools/testing/cluster/process.h"

namespace kvatlas {

class BenchTarget {
 public:
  // UNAVAILABLE: it does not come up; the end of its log says why.
  static absl::StatusOr<std::unique_ptr<BenchTarget>> StartLeaf(
      const std::string& binary, const std::vector<std::string>& more_args = {});
  // INVALID_ARGUMENT: `url` is not http://HOST:PORT. `pid` 0: its cost is not known.
  static absl::StatusOr<std::unique_ptr<BenchTarget>> Foreign(const std::string& url, uint32_t pid);

  ~BenchTarget();

  const std::string& name() const { return name_; }
  const Address& http() const { return http_; }
  // Empty: it has none.
  const std::string& grpc() const { return grpc_; }

  // Processor time of all threads of a process so far.
  static std::optional<double> CpuSecondsOf(pid_t pid);

  // Processor time of all its threads so far, and its resident memory.
  std::optional<double> CpuSeconds() const;
  std::optional<uint64_t> RssBytes() const;

 private:
  BenchTarget() = default;

  std::string name_;
  Address http_;
  std::string grpc_;
  pid_t pid_ = 0;
  std::string log_;
  std::unique_ptr<Process> process_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_SERVICE_BENCH_TARGET_H_
