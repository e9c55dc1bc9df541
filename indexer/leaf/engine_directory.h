// Which engines does this leaf listen to? Workers are registered with an endpoint each; the directory makes what
// reads it, keeps its holders in the registry, and lists, pauses and removes it.
//
//   Register ─▶ EngineWorker (one per instance) ◀─ ZmqIngest (one stream per rank)
//                    └─ RankSink per rank ─▶ HolderRegistry::AddLocal
//
// *Truth*: an instance belongs to one domain (model, routing group). The first registration of a domain fixes its block
// size; when its last instance goes, the domain goes too. The texts of refusals are those of Dynamo's indexer, since
// clients read them.
// *Threads*: any. *Bounds*: `EngineDirectoryOptions`, the registry's and the ingest's.

#ifndef KVATLAS_INDEXER_LEAF_ENGINE_DIRECTORY_H_
#define KVATLAS_INDEXER_LEAF_ENGINE_DIRECTORY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/domain.h"
#include "indexer/base/hash.h"
#include "indexer/engines/engine_worker.h"
#include "indexer/engines/zmq_ingest.h"
#include "indexer/holders/holder_registry.h"

namespace kvatlas {

inline constexpr std::string_view kDefaultGroup = "default";

// The domain of a model and a routing group (Mooncake: tenant): the tenant is empty for "default" and for "".
Domain DomainOf(std::string_view model, std::string_view group);
// And back: "default" for an empty tenant.
std::string GroupOf(const Domain& domain);

struct EngineRegistration {
  std::string instance;  // a u64 in Dynamo's interface, any name in Mooncake's
  std::string model;
  std::string group = std::string(kDefaultGroup);
  uint32_t rank = 0;
  uint32_t block_size = 0;
  std::string endpoint;
  std::string replay_endpoint;
  std::string topic;
  bool bind = false;
  std::string lora_name;  // of all its blocks, unless an event says another
  std::string additional_salt;
  std::string engine_type;  // "vLLM", "SGLang", "Mooncake"; informational
  std::string source = "zmq";
};

struct EngineListener {
  uint32_t rank = 0;
  std::string endpoint;
  ZmqStreamStats stream;
};

struct EngineEntry {
  std::string instance;
  Domain domain;
  uint32_t block_size = 0;
  std::string source;
  std::string engine_type;
  std::vector<EngineListener> listeners;             // by rank
  ListenerStatus status = ListenerStatus::kPending;  // failed > pending > active > paused
  EngineWorkerStats worker;
};

struct EngineDirectoryOptions {
  HashContract contract;
  // Of every worker; name, block size, contract, adapter and salt are filled in.
  EngineWorkerOptions worker;
  uint32_t instances_max = 65536;
};

class EngineDirectory {
 public:
  // Registry and ingest outlive the directory.
  EngineDirectory(EngineDirectoryOptions options, HolderRegistry* registry, ZmqIngest* ingest);
  ~EngineDirectory();

  // INVALID_ARGUMENT: an endpoint, checked first. ALREADY_EXISTS: the rank; or the instance belongs elsewhere; or
  // another block size than the domain's.
  absl::Status Register(const EngineRegistration& registration);

  // Without a rank, or without a group: the whole instance. NOT_FOUND.
  absl::Status Unregister(const std::string& instance, const std::string& model,
                          const std::optional<std::string>& group, std::optional<uint32_t> rank);

  // In order of instance (numbers before names).
  std::vector<EngineEntry> List(std::optional<std::string_view> model = std::nullopt,
                                std::optional<std::string_view> group = std::nullopt) const;

  // NOT_FOUND; FAILED_PRECONDITION: wrong status.
  absl::Status Pause(const std::string& instance, std::optional<uint32_t> rank);
  absl::Status Resume(const std::string& instance, std::optional<uint32_t> rank);

  // Some rank of the domain announces bigrams: prompts are to be asked under look-ahead hashes too.
  bool HasEagle(const Domain& domain) const;

  // Every name of every worker of a domain, worker by worker, each a consistent cut.
  void ForEachAlias(
      const Domain& domain,
      const std::function<void(const std::string& instance, const EngineAlias&)>& visit) const;

  size_t instances() const;

  // Time passes, every 200 ms or so.
  void Tick();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_LEAF_ENGINE_DIRECTORY_H_
