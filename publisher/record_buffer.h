// The engine's calls, kept until the publisher's thread gets to them: one after the other, in one
// growing array. A call costs a copy and, up to a mebibyte or once the array has grown, no
// allocation.
//
// *Threads*: none; the caller serialises.
// *Bounds*: none of its own; `bytes` says how much waits.

#ifndef KVATLAS_PUBLISHER_RECORD_BUFFER_H_
#define KVATLAS_PUBLISHER_RECORD_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "indexer/base/cache_class.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"

namespace kvatlas {

// One call of the engine. Which fields count depends on the kind.
struct Record {
  enum Kind : uint8_t {
    kStored,         // tier, hashes, parent when has_parent, tokens, lora_name and cache_salt
    kRemoved,        // tier, hashes
    kStoredHashed,   // tier, position, parent, hashes
    kRemovedHashed,  // tier, hashes
    kStoredSide,     // tier, side, hashes
    kRemovedSide,    // tier, side, hashes
    kLayout,         // payload: `PackLayout`
    kCleared,        // tiers
    kLoad,           // load
    kEngineBatch     // payload
  };

  Kind kind = kLoad;
  Tier tier = Tier::kDevice;
  TierMask tiers = {};
  bool has_parent = false;
  SideClass side = 0;
  Position position = 0;
  uint64_t parent = 0;
  std::span<const uint64_t> hashes = {};
  std::span<const TokenId> tokens = {};
  std::string_view lora_name = {};
  std::string_view cache_salt = {};
  std::string_view payload = {};  // an engine's own batch of events, or a layout
  Load load = {};
};

// A layout as a record's payload, for this process alone.
std::string PackLayout(const CacheLayout& layout);
CacheLayout UnpackLayout(std::string_view payload);

class RecordBuffer {
 public:
  RecordBuffer();

  void Append(const Record& record);

  // The next record in order; its views are good until `Append` or `Clear`. False: no more.
  bool Next(Record* record);

  // Forgets everything and keeps the memory, unless it is much more than was needed lately.
  void Clear();

  // The bytes of records that `Next` has not returned yet.
  size_t bytes() const { return (words_.size() - read_) * sizeof(uint64_t); }
  // The blocks of these; of payloads an estimate.
  size_t blocks() const { return blocks_; }
  size_t records() const { return records_; }
  bool empty() const { return records_ == 0; }

  // The bytes and blocks that `Append` will add.
  static size_t BytesOf(const Record& record);
  static size_t BlocksOf(const Record& record);

 private:
  // Memory for the usual, written to once, so that `Append` meets no page for the first time.
  void Reserve();

  std::vector<uint64_t> words_;
  size_t read_ = 0;  // words
  size_t blocks_ = 0;
  size_t records_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_PUBLISHER_RECORD_BUFFER_H_
