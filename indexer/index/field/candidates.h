// Who is still in play at this depth of a query? The holders of the first block, fewer from block
// to block, each written to the answer when it drops out.
//
// *Truth*: of holders that were seen at every block from the first to their depth, the answer is
// never above what was true at some instant of the query (`HolderTableBase::Removals`): one that
// lost blocks meanwhile counts the first block only. Holders that do not answer, or were not asked
// for, are counted while in play and left out of the answer.
// *Threads*: of one query, on its thread.

#ifndef KVATLAS_INDEXER_INDEX_FIELD_CANDIDATES_H_
#define KVATLAS_INDEXER_INDEX_FIELD_CANDIDATES_H_

#include <cstdint>
#include <vector>

#include "indexer/index/field/holder_table.h"
#include "indexer/index/holder_set.h"
#include "indexer/index/index.h"

namespace kvatlas {

class Candidates {
 public:
  // All outlive this.
  Candidates(const HolderTableBase& table, const OverlapQuery& query,
             std::vector<Overlap>* overlaps)
      : table_(table), query_(query), overlaps_(*overlaps) {}

  // Those of the first block. REQUIRES: the lock under which `holders` is written.
  void Start(const HolderSet& holders);

  // Those who are not in `holders` drop out with `depth`.
  void Keep(const HolderSet& holders, uint32_t depth);

  // Those who are not in `holders` leave, and are returned: the caller says how deep they reach.
  std::vector<HolderIndex> TakeOut(const HolderSet& holders);

  // Everybody who is left drops out with `depth`.
  void DropAll(uint32_t depth);

  // Writes one holder to the answer, unless it is not to be seen there.
  void Drop(HolderIndex holder, uint32_t depth);

  uint32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  struct Word {
    uint32_t word;
    uint64_t bits;
  };

  template <typename Visit>
  void TakeOutEach(const HolderSet& holders, Visit visit);

  const HolderTableBase& table_;
  const OverlapQuery& query_;
  std::vector<Overlap>& overlaps_;
  std::vector<Word> words_;
  uint32_t size_ = 0;
  // Removals of holder h when the query began, at place h.
  std::vector<uint64_t> removals_;
};

// Whether `only` names the holder; everybody when it is empty.
inline bool IsAskedFor(std::span<const uint64_t> only, HolderIndex holder) {
  if (only.empty()) return true;
  const size_t word = Raw(holder) / 64;
  return word < only.size() && (only[word] >> Raw(holder) % 64 & 1) != 0;
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_FIELD_CANDIDATES_H_
