// Turns holders' reaches into the answer that clients read: ranks of one instance are brought
// together, blocks become tokens, and all of it text.
//
//   {"scores":{"1":{"0":12}},"frequencies":[],
//    "instances":{"1":{"longest_matched":12,"gpu":12,"dp":{"0":12},"cpu":12,"disk":12}}}
//
// *Truth*: an instance's `gpu`, `cpu` and `disk` are each the deepest of its ranks: blocks in the
// device tier, in device or host, in any; `dp` is `gpu` by rank. `scores` tells of ranks that have
// something on the device. A holder that is added twice counts with the larger of each.
// *Cost*: 20 to 30 ns a holder; nothing is allocated for holders that were seen before.
// *Threads*: one at a time. *Bounds*: what is remembered of holders is forgotten above
// `kHoldersRemembered`.

#ifndef KVATLAS_INDEXER_COMPAT_DYNAMO_SCORES_ANSWER_H_
#define KVATLAS_INDEXER_COMPAT_DYNAMO_SCORES_ANSWER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {

inline constexpr size_t kHoldersRemembered = 1 << 17;

class ScoresAnswer {
 public:
  void Clear();
  void Add(const HolderInfo& holder, const TierReach& reach);

  // Appends the object above, without its closing brace if `open`, so that more can follow.
  void Write(uint32_t block_size, bool open, std::string* out) const;

 private:
  static constexpr uint32_t kNone = ~0u;

  // `"1":`, escaped. Short ones lie here, so that they are copied without asking how long they are.
  struct Key {
    static constexpr size_t kShortMax = 24;
    char text[kShortMax] = {};
    uint32_t size = 0;
    std::string spilled = {};  // a longer one

    void Set(const std::string& key);
    char* Put(char* to) const;
  };
  // A holder, remembered from query to query.
  struct Known {
    Key rank_key;
    uint32_t rank = 0;
    uint32_t instance = 0;
    uint64_t query = 0;  // `entry` is of that one
    uint32_t entry = 0;
    std::string name = {};
  };
  struct Instance {
    Key key;
    uint64_t query = 0;
    uint32_t group = 0;
  };
  // A holder's reach in the current query.
  struct Entry {
    uint32_t known = 0;
    TierReach reach;
    uint32_t next = kNone;  // of the same instance
  };
  struct Group {
    uint32_t instance = 0;
    uint32_t first = kNone;
    uint32_t last = kNone;
    TierReach best = {};
  };

  uint32_t Find(const HolderInfo& holder);
  uint32_t Learn(const HolderInfo& holder);
  char* WriteScores(uint32_t block_size, char* to) const;
  char* WriteInstances(uint32_t block_size, char* to) const;

  std::vector<Known> known_;
  std::vector<Instance> instances_;
  absl::flat_hash_map<const HolderInfo*, uint32_t> by_info_;  // a hint: the address may be reused
  absl::flat_hash_map<std::string, uint32_t> by_name_;        // into `instances_`
  uint64_t query_ = 0;
  std::vector<Entry> entries_;
  std::vector<Group> groups_;
  size_t key_bytes_ = 0;  // of all entries and groups
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COMPAT_DYNAMO_SCORES_ANSWER_H_
