// The leaf indexer of one cell, assembled: workers' streams in, questions answered, coverage upward.
//
//   workers ══ gRPC Holdings ══▶ HolderRegistry ──▶ CoverageReporter ══ gRPC Holdings ══▶ parents
//   askers  ══ gRPC Leaf ══▶ LeafService ──╯   ╰── GET /status, /metrics
//
// *Threads*: gRPC's, one for HTTP, and one of its own for what time brings: news for parents every 10 ms, leases and
// repairs every 200 ms. Every method may be called from any thread; `Stop` once.
// *Lifetime*: on `Stop` new streams and questions are refused, parents are told goodbye, running calls get the grace.
//
// Example:
//   absl::StatusOr<std::unique_ptr<Leaf>> leaf = Leaf::Start({.cell = "cell-a", .grpc = {"127.0.0.1", 0}});
//   (*leaf)->grpc_address();   // with the port that was taken

#ifndef KVATLAS_INDEXER_LEAF_LEAF_H_
#define KVATLAS_INDEXER_LEAF_LEAF_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/coverage/coverage_reporter.h"
#include "indexer/holders/holder_registry.h"
#include "indexer/service/address.h"

namespace kvatlas {

struct LeafOptions {
  std::string cell = "cell";
  std::string replica;
  Address grpc{"127.0.0.1", 7410};
  Address http{"127.0.0.1", 8090};
  std::string advertise;  // the gRPC address as others reach it; empty: the one listened on
  std::vector<std::pair<std::string, std::string>> labels;
  std::vector<std::string> parents;
  HashContract contract;
  HolderRegistryOptions registry;  // contract, schedule and observer are filled in
  CoverageOptions coverage;
  SenderOptions sender;  // to parents
};

class Leaf {
 public:
  // UNAVAILABLE, naming the address, when one cannot be had. INVALID_ARGUMENT: no such index, or a bad name.
  static absl::StatusOr<std::unique_ptr<Leaf>> Start(LeafOptions options);
  ~Leaf();  // Stop(0)

  Leaf(const Leaf&) = delete;
  Leaf& operator=(const Leaf&) = delete;

  Address grpc_address() const;
  Address http_address() const;
  const HolderRegistry& registry() const;
  std::vector<ParentStats> parents() const;

  // Idempotent.
  void Stop(Duration grace);

 private:
  struct Parts;
  explicit Leaf(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_LEAF_LEAF_H_
