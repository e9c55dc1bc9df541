// A list of Refs in chunks of 256 bytes, linked backwards from the last. All chunks but the last
// are full, so the place of an entry follows from its number. Chunks are the writer's alone and are
// freed at once, without waiting for readers.

#include "indexer/index/atlas/holder.h"

#include <algorithm>
#include <new>

namespace kvatlas::atlas {

bool RunList::Add(Ref run) {
  Chunk* chunk = last();
  if (chunk == nullptr || chunk->used == kRuns) {
    const Ref ref = heap_->Allocate(sizeof(Chunk));
    if (ref == 0) return false;
    chunk = new (heap_->At<void>(ref)) Chunk;
    chunk->previous = last_;
    chunk->used = 0;
    last_ = ref;
  }
  chunk->runs[chunk->used++] = run;
  ++size_;
  return true;
}

void RunList::DropLast() {
  const Ref gone = last_;
  last_ = last()->previous;
  heap_->Free(gone, sizeof(Chunk));
}

bool RunList::TakeLast(Ref* run) {
  Chunk* const chunk = last();
  if (chunk == nullptr) return false;
  *run = chunk->runs[--chunk->used];
  --size_;
  if (chunk->used == 0) DropLast();
  return true;
}

// From the last chunk to the first, which fills `runs` from its end.
uint32_t* RunList::CopyTo(Ref* runs) const {
  uint32_t end = size_;
  for (Ref ref = last_; ref != 0; ref = heap_->At<Chunk>(ref)->previous) {
    const Chunk& chunk = *heap_->At<Chunk>(ref);
    end -= chunk.used;
    std::copy_n(chunk.runs, chunk.used, runs + end);
  }
  return runs + size_;
}

// Keeps the first `count` places of memory and writes the Refs over what is there: needs no memory,
// as upkeep must not fail for want of it.
void RunList::Assign(const Ref* runs, uint32_t count) {
  const uint32_t chunks_before = (size_ + kRuns - 1) / kRuns;
  const uint32_t chunks = (count + kRuns - 1) / kRuns;
  for (uint32_t i = chunks; i < chunks_before; ++i) DropLast();
  size_ = count;
  uint32_t end = count;
  for (Ref ref = last_; ref != 0; ref = heap_->At<Chunk>(ref)->previous) {
    Chunk& chunk = *heap_->At<Chunk>(ref);
    chunk.used = end % kRuns == 0 ? kRuns : end % kRuns;
    end -= chunk.used;
    std::copy_n(runs + end, chunk.used, chunk.runs);
  }
}

void RunList::Clear() {
  while (last_ != 0) DropLast();
  size_ = 0;
}

}  // namespace kvatlas::atlas
