// The nodes that a flag names now: a shard map on the command line, or in a file that may change
// while the process runs.
//
//   --parents=h1:7420,h2:7420             replicas of one node
//   --parents=a=h1:7420|h2:7420,b=h3:7420 shards
//   --parents=@/etc/kvatlas/parents       either of them in a file; white space at the ends does not matter
//
// *Truth*: a file that cannot be read, or holds no map, changes nothing after the start: it is
// logged once per content.
// *Threads*: one at a time.
// *Cost*: `Changed` reads the file; call it a few times a second. *Bounds*: 1 MiB of file.

#ifndef KVATLAS_INDEXER_PROCESS_SHARD_MAP_FLAG_H_
#define KVATLAS_INDEXER_PROCESS_SHARD_MAP_FLAG_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "indexer/base/shard_map.h"

namespace kvatlas {

class ShardMapFlag {
 public:
  // INVALID_ARGUMENT, naming `flag` and what is wrong.
  static absl::StatusOr<ShardMapFlag> Read(std::string flag, const std::string& value);

  const ShardMap& map() const { return map_; }

  // The map, when the file holds another one than at the last look. Never an empty one.
  std::optional<ShardMap> Changed();

 private:
  std::string flag_;
  std::string path_;  // empty: not from a file
  std::string seen_;  // the file's last content, or why there is none
  ShardMap map_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_SHARD_MAP_FLAG_H_
