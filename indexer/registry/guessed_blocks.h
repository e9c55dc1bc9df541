// Guesses the cache of a worker that announces nothing: the prompts that were sent there, least
// recently used ones dropped at the size of its pool.
//
//   Sent ──▶ blocks of the prompt, newest; beyond the pool's size the oldest go, ends of prompts before their beginnings
//   Served ─▶ the engine found less than was guessed: it has evicted, or begun anew; the older half is forgotten
//
// *Place*: beside an index that knows nothing of these workers. A worker whose events are heard is
// forgotten here.
// *Truth*: a guess (`Trust::kGuessed`), for choosing and never for a promise. Prompts that others
// sent there, and what the engine has generated, are not known. Engines let go of the ends of
// prompts first, so a prefix is never guessed with a hole.
// *Threads*: none; the owner serialises. *Cost*: of a prompt, a table look-up and a list's end for
// each of its blocks; of a question, one look-up for each halving of its length. *Bounds*: a pool's
// size for each worker, `kBlocksMax` for all; beyond, the worker that was used longest ago is
// forgotten. About 48 bytes a block.

#ifndef KVATLAS_INDEXER_REGISTRY_GUESSED_BLOCKS_H_
#define KVATLAS_INDEXER_REGISTRY_GUESSED_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/domain.h"
#include "indexer/base/ids.h"

namespace kvatlas {

class GuessedBlocks {
 public:
  static constexpr size_t kBlocksMax = 4 << 20;

  // `parent`: the block before the first of `blocks`, `kNoParent` at the beginning; it and what is
  // before it count as used now. `pool_blocks`: as many as the worker's cache has.
  void Sent(const Domain& domain, const HolderId& worker, SequenceHash parent,
            std::span<const SequenceHash> blocks, size_t pool_blocks);
  // Leading blocks of the prompt that it may have.
  uint32_t Depth(const Domain& domain, const HolderId& worker,
                 std::span<const SequenceHash> sequence) const;
  // It had so many blocks of a prompt of which it was guessed to have so many.
  void Served(const Domain& domain, const HolderId& worker, uint32_t guessed, uint32_t served);
  // All ranks of the worker of that name.
  void Forget(const Domain& domain, std::string_view worker);

  size_t blocks() const { return blocks_; }
  size_t workers() const { return pools_.size(); }

 private:
  using Slot = uint32_t;
  static constexpr Slot kNone = UINT32_MAX;
  struct Node {
    SequenceHash hash{0};
    SequenceHash parent{0};
    Slot newer = kNone, older = kNone;
  };
  struct Pool {
    std::vector<Node> nodes;
    std::vector<Slot> free;
    absl::flat_hash_map<SequenceHash, Slot> by_hash;
    Slot newest = kNone, oldest = kNone;
    uint64_t used = 0;  // when, by `clock_`

    void Unlink(Slot slot);
    void MakeNewest(Slot slot);
    void Touch(SequenceHash hash, SequenceHash parent);
    void DropOldest();
  };
  using Key = std::pair<Domain, HolderId>;

  void Shrink(Pool* pool, size_t blocks);

  std::map<Key, Pool> pools_;
  size_t blocks_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_GUESSED_BLOCKS_H_
