// The real changes of an event. Runs of blocks that a holder got or lost, for those that keep
// count: coverage, digests, observers. An index appends to it while it applies an event; the caller
// reads it when `Apply` has returned, outside of the index and its locks.
//
//   run        blocks at consecutive positions whose tiers changed alike, in the order of the changes; where blocks were
//              removed one by one not always of one sequence
//
// With several events in one log the index marks where each one's changes end (`EndEvent`).
//
// *Truth*: in order; all of it together leads from what the holder had before to what it has after.
// *Cost*: 8 bytes a block and 24 a run; a run is copied at once. Memory is kept for the next event,
// up to some 100 KiB.
// *Threads*: one at a time.
//
// Example:
//   ChangeLog changes;
//   index->Apply(holder, event, &changes).IgnoreError();
//   for (size_t i = 0; i < changes.size(); ++i) Tell(changes[i].position, changes[i].blocks);

#ifndef KVATLAS_INDEXER_INDEX_CHANGE_LOG_H_
#define KVATLAS_INDEXER_INDEX_CHANGE_LOG_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "indexer/base/ids.h"
#include "indexer/base/tier.h"

namespace kvatlas {

class ChangeLog {
 public:
  struct Run {
    Position position = 0;  // of the first block
    TierMask before;        // where the holder had them
    TierMask after;         // where it has them; another set
    std::span<const SequenceHash> blocks;
  };

  void Clear() {
    // The memory of one huge event is not kept for ever.
    if (blocks_.capacity() > kKeptBlocks) blocks_ = {};
    if (runs_.capacity() > kKeptBlocks) runs_ = {};
    runs_.clear();
    blocks_.clear();
    ends_.clear();
  }

  // Changes added from now on belong to the next event.
  void EndEvent() { ends_.push_back(runs_.size()); }

  // Appends a block: to the last run where it goes on there.
  void Add(SequenceHash block, Position position, TierMask before, TierMask after) {
    if (runs_.size() == (ends_.empty() ? 0 : ends_.back()) ||
        !runs_.back().GoesOn(position, blocks_.size(), before, after))
      runs_.push_back({blocks_.size(), position, before, after});
    blocks_.push_back(block);
  }

  // Appends a run of `count` blocks; the caller writes them. Valid until the next call.
  SequenceHash* AddRun(size_t count, Position position, TierMask before, TierMask after) {
    runs_.push_back({blocks_.size(), position, before, after});
    blocks_.resize(blocks_.size() + count);
    return blocks_.data() + blocks_.size() - count;
  }

  bool empty() const { return runs_.empty(); }
  size_t size() const { return runs_.size(); }
  // Blocks of all runs.
  size_t blocks() const { return blocks_.size(); }
  Run operator[](size_t i) const {
    const size_t end = i + 1 < runs_.size() ? runs_[i + 1].first : blocks_.size();
    return {.position = runs_[i].position,
            .before = runs_[i].before,
            .after = runs_[i].after,
            .blocks = std::span(blocks_).subspan(runs_[i].first, end - runs_[i].first)};
  }

  // The runs of one event, or all of them.
  class Part {
   public:
    Part(const ChangeLog& log) : Part(log, 0, log.size()) {}
    Part(const ChangeLog& log, size_t from, size_t to) : log_(&log), from_(from), to_(to) {}
    bool empty() const { return from_ == to_; }
    size_t size() const { return to_ - from_; }
    Run operator[](size_t i) const { return (*log_)[from_ + i]; }
    template <typename Visit>
    void ForEachBlock(Visit visit) const {
      for (size_t i = 0; i < size(); ++i) VisitRun((*this)[i], visit);
    }

   private:
    const ChangeLog* log_;
    size_t from_;
    size_t to_;
  };
  // REQUIRES: `EndEvent` was called so often and once more.
  Part OfEvent(size_t event) const {
    return {*this, event == 0 ? 0 : ends_[event - 1], ends_[event]};
  }

  // Blocks that began to be held in some tier, less those that ceased to be.
  int64_t held_delta() const {
    int64_t delta = 0;
    for (size_t i = 0; i < size(); ++i) {
      const Run run = (*this)[i];
      const int64_t blocks = static_cast<int64_t>(run.blocks.size());
      if (run.before.empty()) delta += blocks;
      if (run.after.empty()) delta -= blocks;
    }
    return delta;
  }

  // Calls visit(block, position, before, after) for every block.
  template <typename Visit>
  void ForEachBlock(Visit visit) const {
    Part(*this).ForEachBlock(visit);
  }

 private:
  template <typename Visit>
  static void VisitRun(const Run& run, Visit& visit) {
    for (size_t k = 0; k < run.blocks.size(); ++k)
      visit(run.blocks[k], run.position + static_cast<Position>(k), run.before, run.after);
  }

  struct Entry {
    size_t first;  // in `blocks_`
    Position position;
    TierMask before;
    TierMask after;

    bool GoesOn(Position next, size_t end, TierMask had, TierMask has) const {
      return next == position + static_cast<Position>(end - first) && had == before && has == after;
    }
  };

  static constexpr size_t kKeptBlocks = 1 << 13;

  std::vector<Entry> runs_;
  std::vector<SequenceHash> blocks_;
  std::vector<size_t> ends_;  // of events, in `runs_`
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_CHANGE_LOG_H_
