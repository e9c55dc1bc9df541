// The namespaces of a worker rank's blocks: an adapter, a salt and a way to cut tokens, by small
// numbers.
//
// *Truth*: number 0 is the worker's own and always there. Others live as long as a block counts on
// them; their numbers are given out again.
// *Bounds*: `bytes_max`, and the process's memory budget: beyond either nothing new is interned.
// *Threads*: none; the caller serialises. *Cost*: one look-up by text per event that says one.

#ifndef KVATLAS_INDEXER_KV_EVENTS_NAMESPACES_H_
#define KVATLAS_INDEXER_KV_EVENTS_NAMESPACES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/hash.h"
#include "indexer/base/memory_budget.h"
#include "indexer/kv_events/engine_event.h"

namespace kvatlas {

struct Space {
  std::string lora_name;
  std::string cache_salt;
  uint32_t eagle = 0;  // `Blocking::eagle`
  uint64_t seed = 0;   // of local hashes
};

class Namespaces {
 public:
  // `memory` outlives this; null: no budget.
  Namespaces(const HashContract& contract, std::string_view lora_name, std::string_view cache_salt,
             size_t bytes_max, const MemoryBudget* memory);

  // Valid as long as the number is.
  const Space& at(uint32_t number) const { return entries_[number].space; }
  // Its number; of a new one to be counted or used with `Pin`. Nothing: it would be new, and there
  // is no room.
  std::optional<uint32_t> Intern(std::string_view lora_name, std::string_view cache_salt,
                                 uint32_t eagle);
  // One block more, or fewer.
  void Count(uint32_t number) { ++entries_[number].blocks; }
  void Discount(uint32_t number);
  // Whether a block counts on this one, however its tokens are cut.
  bool Holds(std::string_view lora_name, std::string_view cache_salt) const;
  // Forgets all but the worker's own. REQUIRES: no pin.
  void Clear();

  // Keeps a number alive that no block counts on yet.
  class Pin {
   public:
    Pin(Namespaces* spaces, uint32_t number) : spaces_(spaces), number_(number) {
      spaces_->Count(number_);
    }
    ~Pin() { spaces_->Discount(number_); }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

   private:
    Namespaces* const spaces_;
    const uint32_t number_;
  };

  size_t size() const { return entries_.size() - free_.size(); }
  // Memory of all but the worker's own.
  size_t bytes() const { return bytes_; }

 private:
  using Key = std::tuple<std::string_view, std::string_view, uint32_t>;  // of its entry
  struct Entry {
    Space space;
    uint64_t blocks = 0;
  };

  static size_t BytesOf(std::string_view lora_name, std::string_view cache_salt) {
    return sizeof(Entry) + sizeof(Key) + lora_name.size() + cache_salt.size();
  }
  static Key KeyOf(const Space& space) { return {space.lora_name, space.cache_salt, space.eagle}; }
  uint32_t Add(std::string_view lora_name, std::string_view cache_salt, uint32_t eagle);

  const HashContract contract_;
  const size_t bytes_max_;
  const MemoryBudget* const memory_;
  size_t bytes_ = 0;
  std::deque<Entry> entries_;  // stay where they are
  std::vector<uint32_t> free_;
  absl::flat_hash_map<Key, uint32_t> numbers_;
  uint32_t last_ = 0;  // interned
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_NAMESPACES_H_
