#include "indexer/engines/namespaces.h"

namespace kvatlas {

Namespaces::Namespaces(const HashContract& contract, std::string_view lora_name,
                       std::string_view cache_salt)
    : contract_(contract) {
  Intern(lora_name, cache_salt, false);
}

uint32_t Namespaces::Intern(std::string_view lora_name, std::string_view cache_salt, bool eagle) {
  if (!entries_.empty()) {
    for (uint32_t number : {last_, 0u}) {
      const Space& space = entries_[number].space;
      if (space.lora_name == lora_name && space.cache_salt == cache_salt && space.eagle == eagle)
        return number;
    }
  }
  Key key{lora_name, cache_salt, eagle};
  const auto found = numbers_.find(key);
  if (found != numbers_.end()) return last_ = found->second;
  uint32_t number = static_cast<uint32_t>(entries_.size());
  if (free_.empty()) {
    entries_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  entries_[number] = {
      .space = {.lora_name = std::string(lora_name),
                .cache_salt = std::string(cache_salt),
                .eagle = eagle,
                .seed = BlockSeed({.lora_name = lora_name, .cache_salt = cache_salt}, contract_)}};
  numbers_.emplace(std::move(key), number);
  return last_ = number;
}

void Namespaces::Discount(uint32_t number) {
  Entry& entry = entries_[number];
  if (--entry.blocks != 0 || number == 0) return;
  numbers_.erase(Key{entry.space.lora_name, entry.space.cache_salt, entry.space.eagle});
  entry = Entry();
  free_.push_back(number);
  if (last_ == number) last_ = 0;
}

bool Namespaces::Holds(std::string_view lora_name, std::string_view cache_salt) const {
  for (const bool eagle : {false, true}) {
    const auto found = numbers_.find(Key{lora_name, cache_salt, eagle});
    if (found != numbers_.end() && entries_[found->second].blocks > 0) return true;
  }
  return false;
}

void Namespaces::Clear() {
  const Space own = entries_[0].space;
  entries_.clear();
  free_.clear();
  numbers_.clear();
  last_ = 0;
  Intern(own.lora_name, own.cache_salt, own.eagle);
}

}  // namespace kvatlas
