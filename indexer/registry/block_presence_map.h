// The blocks of a prompt that each cache class of a holder has, and the class that ends what can be
// reused.
//
//   main      ##########......      '#' every block of the class that ends in this main block is held
//   window:7  ..####..........      '+' some are
//   state     -.-#-.-.-.-.-.-.      '.' none is        '-' no block of the class ends there
//
// A character for each main block of the prompt, so that strips lie under each other.
//
// *Truth*: as the holder was when it was dumped, blocks of any tier. "Ended" follows the engine's
// look-up (`reusable.h`): class after class shortens the prefix until all accept it, and the one
// that shortened it last has ended it.
// *Threads*: any. *Cost*: O(what the holder holds), as the dump itself.

#ifndef KVATLAS_INDEXER_REGISTRY_BLOCK_PRESENCE_MAP_H_
#define KVATLAS_INDEXER_REGISTRY_BLOCK_PRESENCE_MAP_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "indexer/base/cache_class.h"
#include "indexer/base/ids.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {

class BlockPresenceMap {
 public:
  BlockPresenceMap() = default;
  // `block_size`: of the domain, tokens. REQUIRES: the dump is of that domain.
  BlockPresenceMap(const HolderDump& dump, std::span<const SequenceHash> blocks,
                   uint32_t block_size);

  struct Strip {
    CacheClass of;
    std::string held;  // as above
    uint32_t accepts =
        0;  // main blocks: the longest prefix that this class alone would let be reused
  };
  // The main class first, if there is one, then the side classes. Empty: full attention alone.
  const std::vector<Strip>& strips() const { return strips_; }

  // Why no more than `reusable` blocks of the prompt can be reused: the class that ended it as
  // `ToString` says it, "alignment" where more is held but no length is left at which blocks of all
  // classes end, "look_ahead" where the engine matches one block more than it reuses. Empty: all of
  // the prompt can be, or there is nothing but full attention.
  std::string EndedBy(uint32_t reusable) const;

 private:
  struct Class {
    CacheClass of;  // with `EndsEvery` as its block size
    std::vector<uint64_t>
        run;  // by the class's own blocks: how many in a row are held, this one the last
  };
  bool Accepts(const Class& side, uint64_t tokens) const;
  uint64_t LongestOf(const Class& side, uint64_t tokens) const;
  std::string StripOf(const Class& side) const;

  CacheLayout layout_;
  uint64_t block_size_ = 0;
  uint64_t blocks_ = 0;     // of the prompt
  uint64_t alignment_ = 0;  // tokens; 0: nothing can be reused
  uint64_t held_ = 0;  // leading blocks of the main class; the whole prompt where there is none
  std::vector<Class> sides_;
  std::vector<Strip> strips_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_BLOCK_PRESENCE_MAP_H_
