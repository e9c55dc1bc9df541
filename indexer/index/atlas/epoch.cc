// A line for each thread that ever held a guard at the same time as others, in blocks of 64 that
// are never freed. A thread keeps its line until it ends; a line's epoch is 0 while no guard is
// held.

#include "indexer/index/atlas/epoch.h"

#include <algorithm>

namespace kvatlas::atlas {
namespace {

// Never freed: a reclaimer may be walking over it.
struct LineBlock {
  EpochLine lines[64];
  std::atomic<LineBlock*> next{nullptr};
};

LineBlock g_first_block;

// Gives the line back when its thread ends.
struct LineReturner {
  ~LineReturner() {
    if (t_epoch.line != nullptr) t_epoch.line->taken.store(false, std::memory_order_release);
    t_epoch.line = nullptr;
  }
};

// The plain load first, so that taken lines cost no exchange.
EpochLine* FreeLineOf(LineBlock* block) {
  for (EpochLine& line : block->lines) {
    bool taken = false;
    if (!line.taken.load(std::memory_order_relaxed) &&
        line.taken.compare_exchange_strong(taken, true, std::memory_order_acquire))
      return &line;
  }
  return nullptr;
}

// The loser of the exchange takes the winner's block.
LineBlock* NextBlock(LineBlock* block) {
  LineBlock* next = block->next.load(std::memory_order_acquire);
  if (next != nullptr) return next;
  LineBlock* fresh = new LineBlock;
  if (block->next.compare_exchange_strong(next, fresh, std::memory_order_acq_rel)) return fresh;
  delete fresh;
  return next;
}

}  // namespace

std::atomic<uint64_t> g_epoch{1};
thread_local constinit EpochThread t_epoch;

void TakeEpochLine() {
  static thread_local LineReturner returner;
  (void)returner;
  for (LineBlock* block = &g_first_block; t_epoch.line == nullptr; block = NextBlock(block))
    t_epoch.line = FreeLineOf(block);
}

uint64_t RetireEpoch() {
  // Partner: the fence of `EpochGuard`.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return g_epoch.load(std::memory_order_relaxed);
}

// The new epoch separates guards taken before from those taken after. A guard that is being taken
// while the lines are walked either has its line seen, or was taken after the fence and sees what
// was unlinked before it. Without guards the answer is the new epoch, which is above every tag.
uint64_t OldestActiveEpoch() {
  uint64_t oldest = g_epoch.fetch_add(1, std::memory_order_seq_cst) + 1;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (LineBlock* block = &g_first_block; block != nullptr;
       block = block->next.load(std::memory_order_acquire)) {
    for (EpochLine& line : block->lines) {
      const uint64_t epoch = line.epoch.load(std::memory_order_acquire);
      if (epoch != 0) oldest = std::min(oldest, epoch);
    }
  }
  return oldest;
}

}  // namespace kvatlas::atlas
