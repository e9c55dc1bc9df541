// Which nodes of the hierarchy does a flag name, now? Given as addresses or shards, in a file, by
// DNS names, by EndpointSlices, or by leases in Redis.
//
//   --parents=h1:7420,h2:7420                      replicas of one node
//   --parents=a=h1:7420|h2:7420,b=h3:7420          shards (`base/shard_map.h`)
//   --parents=@/etc/kvatlas/parents                either of them in a file
//   --parents=dns:hierarchy.prod:7420              every address of the name
//   --parents=k8s:hierarchy.prod:7420              every ready endpoint of a Service
//   --parents=redis://10.0.0.9:6379                nodes that announce themselves there; shards by their label `shard`
//
// *Truth*: whatever fails, nodes stay as they were; there is never a change to an empty list.
// Records of which only some have a label `shard` are no level: they change nothing, and are
// logged.
// *Threads*: one at a time.
// *Cost*: `Changed` reads the file, or takes a short lock; call it a few times a second.
//
// Example:
//   absl::StatusOr<FoundNodes> parents = FoundNodes::Read("--parents", flag);
//   ...                                             // a few times a second:
//   if (auto changed = parents->Changed(); changed.has_value()) reporter.SetParents(*changed);

#ifndef KVATLAS_INDEXER_DISCOVERY_FOUND_NODES_H_
#define KVATLAS_INDEXER_DISCOVERY_FOUND_NODES_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/shard_map.h"
#include "indexer/discovery/directory.h"
#include "indexer/discovery/service_record.h"
#include "indexer/process/shard_map_flag.h"

namespace kvatlas {

inline constexpr const char* kShardLabel = "shard";

// The level that these nodes are. INVALID_ARGUMENT: some are shards and some are not, or beyond the
// bounds of a map.
absl::StatusOr<ShardMap> LevelOf(const std::vector<ServiceRecord>& nodes);

class FoundNodes {
 public:
  // INVALID_ARGUMENT, naming `flag` and what is wrong. `options` are for DNS and Redis; their
  // entries and kind are filled in.
  static absl::StatusOr<FoundNodes> Read(std::string flag, const std::string& value,
                                         DirectoryOptions options = {});

  // Whether `Read` could take it, as far as one sees without asking DNS or Redis.
  static absl::Status Check(const std::string& flag, const std::string& value);

  FoundNodes(FoundNodes&&) noexcept;
  FoundNodes& operator=(FoundNodes&&) noexcept;
  ~FoundNodes();

  // At the start; may be empty.
  const ShardMap& map() const { return map_; }
  // By DNS or Redis: nodes may come, also when there are none now.
  bool finds() const { return found_ != nullptr; }

  // The map, when it is another one than at the last look. Never an empty one.
  std::optional<ShardMap> Changed();

 private:
  struct Found;
  FoundNodes();

  std::optional<ShardMapFlag> given_;
  std::unique_ptr<Found> found_;
  ShardMap map_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_FOUND_NODES_H_
