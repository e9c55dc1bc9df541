#include "indexer/index/atlas/holder.h"

#include <algorithm>
#include <new>

namespace kvatlas::atlas {

bool LineList::Add(uint32_t line) {
  Chunk* chunk = last();
  if (chunk == nullptr || chunk->used == kLines) {
    const Ref ref = heap_->Allocate(sizeof(Chunk));
    if (ref == 0) return false;
    chunk = new (heap_->At<void>(ref)) Chunk;
    chunk->previous = last_;
    chunk->used = 0;
    last_ = ref;
  }
  chunk->lines[chunk->used++] = line;
  ++size_;
  return true;
}

void LineList::DropLast() {
  const Ref gone = last_;
  last_ = last()->previous;
  heap_->Free(gone, sizeof(Chunk));
}

bool LineList::TakeLast(uint32_t* line) {
  Chunk* const chunk = last();
  if (chunk == nullptr) return false;
  *line = chunk->lines[--chunk->used];
  --size_;
  if (chunk->used == 0) DropLast();
  return true;
}

// Chunks before the last are full.
uint32_t* LineList::CopyTo(uint32_t* lines) const {
  uint32_t end = size_;
  for (Ref ref = last_; ref != 0; ref = heap_->At<Chunk>(ref)->previous) {
    const Chunk& chunk = *heap_->At<Chunk>(ref);
    end -= chunk.used;
    std::copy_n(chunk.lines, chunk.used, lines + end);
  }
  return lines + size_;
}

void LineList::Assign(const uint32_t* lines, uint32_t count) {
  const uint32_t chunks_before = (size_ + kLines - 1) / kLines;
  const uint32_t chunks = (count + kLines - 1) / kLines;
  for (uint32_t i = chunks; i < chunks_before; ++i) DropLast();
  size_ = count;
  uint32_t end = count;
  for (Ref ref = last_; ref != 0; ref = heap_->At<Chunk>(ref)->previous) {
    Chunk& chunk = *heap_->At<Chunk>(ref);
    chunk.used = end % kLines == 0 ? kLines : end % kLines;
    end -= chunk.used;
    std::copy_n(lines + end, chunk.used, chunk.lines);
  }
}

void LineList::Clear() {
  while (last_ != 0) DropLast();
  size_ = 0;
}

}  // namespace kvatlas::atlas
