// Entries stay in a deque, so that keys, which are views of their texts, remain valid. An entry
// lives while blocks count on it or a `Pin` holds it; entry 0 is never freed and not counted in
// `bytes_`.

#include "indexer/kv_events/namespaces.h"

namespace kvatlas {

Namespaces::Namespaces(const HashContract& contract, std::string_view lora_name,
                       std::string_view cache_salt, size_t bytes_max, const MemoryBudget* memory)
    : contract_(contract), bytes_max_(bytes_max), memory_(memory) {
  Add(lora_name, cache_salt, 0);
}

// The last one and the worker's own are tried first: most events repeat one of them.
std::optional<uint32_t> Namespaces::Intern(std::string_view lora_name, std::string_view cache_salt,
                                           uint32_t eagle) {
  const Key key{lora_name, cache_salt, eagle};
  for (uint32_t number : {last_, 0u})
    if (KeyOf(entries_[number].space) == key) return number;
  const auto found = numbers_.find(key);
  if (found != numbers_.end()) return last_ = found->second;
  const size_t bytes = BytesOf(lora_name, cache_salt);
  if (bytes_ + bytes > bytes_max_ || (memory_ != nullptr && memory_->level() >= MemoryLevel::kFull))
    return std::nullopt;
  bytes_ += bytes;
  return last_ = Add(lora_name, cache_salt, eagle);
}

// Takes a free number, else a new one. The seed is computed once here: it goes into every block's
// hash.
uint32_t Namespaces::Add(std::string_view lora_name, std::string_view cache_salt, uint32_t eagle) {
  uint32_t number = static_cast<uint32_t>(entries_.size());
  if (free_.empty()) {
    entries_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  Space& space = entries_[number].space;
  space = {.lora_name = std::string(lora_name),
           .cache_salt = std::string(cache_salt),
           .eagle = eagle,
           .seed = BlockSeed({.lora_name = lora_name, .cache_salt = cache_salt}, contract_)};
  numbers_.emplace(KeyOf(space), number);
  return number;
}

// The last block frees texts and number. The key is erased first: it points into the texts.
void Namespaces::Discount(uint32_t number) {
  Entry& entry = entries_[number];
  if (--entry.blocks != 0 || number == 0) return;
  numbers_.erase(KeyOf(entry.space));
  bytes_ -= BytesOf(entry.space.lora_name, entry.space.cache_salt);
  entry = Entry();
  free_.push_back(number);
  if (last_ == number) last_ = 0;
}

// Each look-ahead makes an entry of its own: all of them are tried.
bool Namespaces::Holds(std::string_view lora_name, std::string_view cache_salt) const {
  for (uint32_t eagle = 0; eagle <= kLookAheadMax; ++eagle) {
    const auto found = numbers_.find(Key{lora_name, cache_salt, eagle});
    if (found != numbers_.end() && entries_[found->second].blocks > 0) return true;
  }
  return false;
}

void Namespaces::Clear() {
  const Space own = entries_[0].space;
  numbers_.clear();
  entries_.clear();
  free_.clear();
  bytes_ = 0;
  last_ = 0;
  Add(own.lora_name, own.cache_salt, own.eagle);
}

}  // namespace kvatlas
