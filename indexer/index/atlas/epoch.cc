#include "indexer/index/atlas/epoch.h"

#include <algorithm>

namespace kvatlas::atlas {
namespace {

// Lines in blocks that are never freed: as many as there were threads at once.
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

EpochLine* FreeLineOf(LineBlock* block) {
  for (EpochLine& line : block->lines) {
    bool taken = false;
    if (!line.taken.load(std::memory_order_relaxed) &&
        line.taken.compare_exchange_strong(taken, true, std::memory_order_acquire))
      return &line;
  }
  return nullptr;
}

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
