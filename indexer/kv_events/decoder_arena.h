// Memory of decoded values until the next frame: handed out in order and taken back at once.
//
// *Truth*: what was handed out stays where it is until `Reset`, or until `Release` of an earlier
// mark.
// *Threads*: one. *Cost*: an addition; after a few frames of one size a frame costs no allocation.
// *Bounds*: `bytes_max` in use; between frames it keeps at most `kKeptBytesMax`.

#ifndef KVATLAS_INDEXER_KV_EVENTS_DECODER_ARENA_H_
#define KVATLAS_INDEXER_KV_EVENTS_DECODER_ARENA_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <vector>

namespace kvatlas {

class DecoderArena {
 public:
  static constexpr size_t kKeptBytesMax = 16 << 20;

  struct Mark {
    size_t chunk = 0;
    size_t used = 0;   // of that chunk
    size_t total = 0;  // of all
  };

  explicit DecoderArena(size_t bytes_max) : bytes_max_(bytes_max) {}

  // Room for `count` values, not initialised; null when it is over the bound.
  template <typename T>
  T* Allocate(size_t count) {
    static_assert(alignof(T) <= kAlignment && std::is_trivially_destructible_v<T>);
    if (count > bytes_max_ / sizeof(T)) return nullptr;
    return reinterpret_cast<T*>(AllocateBytes(count * sizeof(T)));
  }

  Mark mark() const { return at_; }
  // Takes back what was handed out since.
  void Release(const Mark& mark) { at_ = mark; }

  // Takes everything back. Several chunks become one, so that the next frame of this size finds it.
  void Reset() {
    const size_t held = Held();
    if (chunks_.size() > 1 || held > kKeptBytesMax) {
      chunks_.clear();
      if (held > 0) chunks_.push_back(MakeChunk(std::min(held, kKeptBytesMax)));
    }
    at_ = {};
  }

  size_t Held() const {
    size_t held = 0;
    for (const Chunk& chunk : chunks_) held += chunk.size;
    return held;
  }

 private:
  static constexpr size_t kAlignment = 8;
  static constexpr size_t kChunkBytes = 64 << 10;

  struct Chunk {
    std::unique_ptr<std::byte[]> bytes;
    size_t size = 0;
  };

  static Chunk MakeChunk(size_t size) {
    return {std::make_unique_for_overwrite<std::byte[]>(size), size};
  }

  std::byte* AllocateBytes(size_t bytes) {
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (rounded > bytes_max_ - at_.total) return nullptr;
    if (at_.chunk == chunks_.size() || rounded > chunks_[at_.chunk].size - at_.used) {
      NextChunk(rounded);
    }
    std::byte* const room = chunks_[at_.chunk].bytes.get() + at_.used;
    at_.used += rounded;
    at_.total += rounded;
    return room;
  }

  void NextChunk(size_t bytes) {
    if (at_.chunk < chunks_.size()) ++at_.chunk;
    at_.used = 0;
    if (at_.chunk < chunks_.size() && chunks_[at_.chunk].size >= bytes) return;
    // Chunks beyond the current one are empty.
    chunks_.resize(at_.chunk);
    chunks_.push_back(MakeChunk(std::max({bytes, kChunkBytes, std::min(Held(), kKeptBytesMax)})));
  }

  const size_t bytes_max_;
  std::vector<Chunk> chunks_;
  Mark at_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_DECODER_ARENA_H_
