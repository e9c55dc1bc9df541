// The node of a split level that a waypoint is reported to, and that is asked about it. A level
// that is too big for one machine is split over named shards; each shard is one node or several
// replicas.
//
//   ordinal     0   1 ┊ 2   3   4   5  …
//   shard a     ●   ● ┊     ●   ●          a waypoint below `shallow` is on every shard,
//   shard b     ●   ● ┊ ●           ●      a deeper one on the shard that its own hash draws
//
// *Place*: a process that reports upward sends each shard its part; a client computes from the
// prompt's own waypoints which shards to ask. Shards themselves know nothing of it.
// *Truth*: a function of the names, `shallow` and the hash alone: equal in every process, whatever
// the addresses and their order. A waypoint's ancestors are not needed to know its shard; so no
// hole and no withdrawn ancestor can misplace it.
// *Balance*: deeper waypoints spread evenly, also those of one long head that every prompt shares.
// A new shard draws its even share from all the others, and nothing else moves (rendezvous
// hashing).
// *Cost*: a hash per shard and deep waypoint.
// *Bounds*: `kShardsMax` shards, `kShardReplicasMax` replicas each.
// *Format*: "HOST:PORT,HOST:PORT": not split, replicas of one node.
// "a=HOST:PORT|HOST:PORT,b=HOST:PORT": split;
// "shallow=N," (at least 1, the default) may stand in front; a name that comes again has more
// replicas.
//
// Example:
//   absl::StatusOr<ShardMap> map =
//   ShardMap::Parse("a=10.0.0.1:7420|10.0.0.2:7420,b=10.0.0.3:7420");
//   if (map->Keeps(shard, ordinal, waypoint)) Send(map->shards()[shard], waypoint);

#ifndef KVATLAS_INDEXER_BASE_SHARD_MAP_H_
#define KVATLAS_INDEXER_BASE_SHARD_MAP_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "indexer/base/ids.h"

namespace kvatlas {

inline constexpr size_t kShardsMax = 256;
inline constexpr size_t kShardReplicasMax = 64;

class ShardMap {
 public:
  struct Shard {
    std::string name;                    // empty when the level is not split
    std::vector<std::string> addresses;  // its replicas: each knows all of the shard
    uint64_t seed = 0;                   // of its name

    friend bool operator==(const Shard&, const Shard&) = default;
  };
  static constexpr uint32_t kShallowDefault = 1;

  // No shard.
  ShardMap() = default;
  // Not split: replicas that each know everything.
  ShardMap(std::initializer_list<std::string> addresses);  // a list of addresses is a map
  ShardMap(std::vector<std::string> addresses);

  // INVALID_ARGUMENT: not of the form, an address twice, or beyond the bounds.
  static absl::StatusOr<ShardMap> Parse(absl::string_view text);

  bool empty() const { return shards_.empty(); }
  bool split() const { return !shards_.empty() && !shards_[0].name.empty(); }
  const std::vector<Shard>& shards() const { return shards_; }
  // Waypoints that every shard has; all of them when the level is not split.
  uint32_t shallow() const { return split() ? shallow_ : UINT32_MAX; }
  // The addresses of all shards, in order.
  std::vector<std::string> Addresses() const;

  // The shard, as a place in `shards`, that a deep waypoint belongs to. REQUIRES: not empty.
  size_t OwnerOf(SequenceHash waypoint) const;
  // Whether the waypoint is reported to that shard.
  bool Keeps(size_t shard, uint32_t ordinal, SequenceHash waypoint) const {
    return ordinal < shallow() || OwnerOf(waypoint) == shard;
  }

  // `Parse` reads it.
  std::string ToString() const;

  friend bool operator==(const ShardMap&, const ShardMap&) = default;

 private:
  std::vector<Shard> shards_;  // by name
  uint32_t shallow_ = kShallowDefault;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_SHARD_MAP_H_
