// Collects what is to be handed over to a writer. The events of a batch come block by block:
// consecutive blocks of a sequence become one store, removals that follow each other one removal.
// Removals of the main class that depend on nothing stored since go before everything, as one
// removal: engines alternate evictions and stores, and the index takes blocks together in a third
// of the time.
//
// *Truth*: all of it leads to the same as in the order in which it came. On the way there may be
// less, never more, than at any moment of that order: a removal moves before stores of other
// blocks, no store moves before a removal.
// *Bounds*: the caller hands over and clears; an event has at most `kBatchBlocksMax` blocks.
// *Cost*: no allocation per event once grown.

#ifndef KVATLAS_INDEXER_KV_EVENTS_PENDING_EVENTS_H_
#define KVATLAS_INDEXER_KV_EVENTS_PENDING_EVENTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"

namespace kvatlas {

class PendingEvents {
 public:
  struct Block {
    SequenceHash block;
    Position position;
    SequenceHash parent;  // of another position than 0; `kNoParent`: not known
    std::optional<LocalHash> local;
  };

  void Store(Tier tier, const Block& block) {
    Stored* run = events_.empty() ? nullptr : std::get_if<Stored>(&events_.back());
    const bool goes_on = run != nullptr && run->side == 0 && run->tier == tier &&
                         run->blocks.back() == block.parent &&
                         run->position + run->blocks.size() == block.position &&
                         run->blocks.size() < kBatchBlocksMax &&
                         block.local.has_value() == !run->local_hashes.empty();
    if (!goes_on) {
      run = &AddStored();
      run->tier = tier;
      run->position = block.position;
      run->parent = block.position == 0 ? kNoParent : block.parent;
    }
    run->blocks.push_back(block.block);
    if (block.local.has_value()) run->local_hashes.push_back(*block.local);
    stored_[Slot(block.block)] |= Bit(block.block);
    ++blocks_;
  }

  void StoreSide(Tier tier, SideClass side, SequenceHash name) {
    Stored* run = events_.empty() ? nullptr : std::get_if<Stored>(&events_.back());
    if (run == nullptr || run->side != side || run->tier != tier ||
        run->blocks.size() == kBatchBlocksMax) {
      run = &AddStored();
      run->tier = tier;
      run->side = side;
    }
    run->blocks.push_back(name);
    ++blocks_;
  }

  // `side`: 0, or of `name`'s class.
  void Remove(Tier tier, SideClass side, SequenceHash name) {
    if (side == 0 && RemoveFirst(tier, name)) return;
    Removed* removed = events_.empty() ? nullptr : std::get_if<Removed>(&events_.back());
    if (removed == nullptr || removed->side != side || removed->tier != tier ||
        removed->blocks.size() == kBatchBlocksMax) {
      removed = &std::get<Removed>(events_.emplace_back(
          Removed{.tier = tier, .blocks = Spare<SequenceHash>(&spare_), .side = side}));
    }
    removed->blocks.push_back(name);
    ++blocks_;
  }

  bool empty() const { return events_.empty(); }
  bool has_stores() const { return has_stores_; }
  // Named in all events.
  size_t blocks() const { return blocks_; }
  std::span<const Event> events() const { return events_; }

  void Clear() {
    for (Event& event : events_) {
      if (Stored* const stored = std::get_if<Stored>(&event)) {
        Keep(std::move(stored->blocks), &spare_);
        if (stored->local_hashes.capacity() != 0)
          Keep(std::move(stored->local_hashes), &spare_locals_);
      } else if (Removed* const removed = std::get_if<Removed>(&event)) {
        Keep(std::move(removed->blocks), &spare_);
      }
    }
    events_.clear();
    blocks_ = 0;
    if (std::exchange(has_stores_, false)) stored_ = {};
    has_first_ = false;
  }

 private:
  // 256 KiB at most.
  static constexpr size_t kSparesMax = 32;
  static constexpr size_t kSpareHashesMax = 1024;

  // A filter over the blocks stored since the last `Clear`: a bit for some blocks together.
  static constexpr size_t kWords = 64;
  static size_t Slot(SequenceHash block) { return Raw(block) / 64 % kWords; }
  static uint64_t Bit(SequenceHash block) { return uint64_t{1} << (Raw(block) % 64); }

  // Into the first event. False: the block may have been stored since, or that is another tier's or
  // full.
  bool RemoveFirst(Tier tier, SequenceHash block) {
    if ((stored_[Slot(block)] & Bit(block)) != 0) return false;
    if (!has_first_) {
      events_.insert(events_.begin(),
                     Removed{.tier = tier, .blocks = Spare<SequenceHash>(&spare_)});
      has_first_ = true;
    }
    Removed& first = std::get<Removed>(events_.front());
    if (first.tier != tier || first.blocks.size() == kBatchBlocksMax) return false;
    first.blocks.push_back(block);
    ++blocks_;
    return true;
  }

  Stored& AddStored() {
    has_stores_ = true;
    return std::get<Stored>(events_.emplace_back(Stored{
        .blocks = Spare<SequenceHash>(&spare_), .local_hashes = Spare<LocalHash>(&spare_locals_)}));
  }
  // Memory of earlier events.
  template <typename Hash>
  static std::vector<Hash> Spare(std::vector<std::vector<Hash>>* spares) {
    if (spares->empty()) return {};
    std::vector<Hash> spare = std::move(spares->back());
    spares->pop_back();
    return spare;
  }
  template <typename Hash>
  static void Keep(std::vector<Hash> hashes, std::vector<std::vector<Hash>>* spares) {
    if (spares->size() == kSparesMax || hashes.capacity() > kSpareHashesMax) return;
    hashes.clear();
    spares->push_back(std::move(hashes));
  }

  std::vector<Event> events_;
  size_t blocks_ = 0;
  bool has_stores_ = false;
  bool has_first_ = false;
  std::array<uint64_t, kWords> stored_ = {};
  std::vector<std::vector<SequenceHash>> spare_;
  std::vector<std::vector<LocalHash>> spare_locals_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_PENDING_EVENTS_H_
