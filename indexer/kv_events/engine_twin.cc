#include "indexer/kv_events/engine_twin.h"

namespace kvatlas {
namespace {

void AddCopies(int* copies, Tier tier, int more) {
  // In the random test's words: "GPU" and "cpu"; "DISK" and "EXTERNAL" are no media of vLLM's.
  const bool counted = tier == Tier::kDevice || tier == Tier::kHost;
  *copies = counted ? *copies + more : (more > 0 ? 1 : *copies);
}

}  // namespace

const TwinContent* EngineTwin::Content(uint32_t group, uint64_t name) const {
  const auto own = known_.find({group, name});
  if (own != known_.end()) return &own->second.content;
  for (const auto& [other, known] : known_)
    if (other.second == name) return &known.content;
  return nullptr;
}

void EngineTwin::Add(Name name, const TwinContent& content, Tier tier, int copies, int certain) {
  required_[static_cast<int>(tier)].insert(name.first);
  auto it = known_.find(name);
  if (it != known_.end() && it->second.content != content) {
    if (it->second.content.salt != content.salt) ambiguous_.insert(name);
    known_.erase(it);
    it = known_.end();
  }
  if (it == known_.end()) it = known_.emplace(name, Known{.content = content, .copies = {}}).first;
  AddCopies(&it->second.copies.all[static_cast<int>(tier)], tier, copies);
  AddCopies(&it->second.copies.certain[static_cast<int>(tier)], tier, certain);
}

void EngineTwin::AddChunk(Name name, const TwinContent& content, Tier tier, int copies,
                          int certain) {
  Add(name, content, tier, copies, certain);
  if (tier == Tier::kDevice || content.tokens.size() / block_size_ % chunk_blocks_ != 0) return;
  TwinContent before = content;
  for (uint32_t back = 1; back < chunk_blocks_; ++back) {
    before.tokens.resize(before.tokens.size() - block_size_);
    Add(Member(name, back), before, tier, copies, certain);
  }
}

std::optional<TwinContent> EngineTwin::Before(const StoreBlock& first, bool* refused) const {
  if (!first.parent.has_value()) return TwinContent{.salt = first.salt.value_or(""), .tokens = {}};
  *refused = ambiguous_.contains({first.group, *first.parent});
  const TwinContent* const parent = Content(first.group, *first.parent);
  if (parent == nullptr) return std::nullopt;
  *refused = *refused || (first.salt.has_value() && *first.salt != parent->salt);
  return *parent;
}

void EngineTwin::Store(const std::vector<StoreBlock>& blocks) {
  bool refused = false;
  std::optional<TwinContent> content;
  const bool has_tokens = !blocks[0].tokens.empty();
  if (has_tokens) content = Before(blocks[0], &refused);
  if (refused) return;
  // Connectors leave out what the name knows.
  const bool by_name = blocks[0].tier != Tier::kDevice && !blocks[0].salt.has_value();
  const bool hides = by_name && missed_ && blocks[0].says_kind;
  for (StoreBlock block : blocks) {
    const TwinContent* const own = Content(block.group, block.name);
    if (own != nullptr && (by_name || !has_tokens || !content.has_value())) {
      content = *own;
    } else if (hides) {
      content.reset();
      block.tokens.clear();
    } else if (content.has_value() && has_tokens) {
      content->tokens.insert(content->tokens.end(), block.tokens.begin(), block.tokens.end());
    } else {
      content.reset();
    }
    if (content.has_value() && !has_tokens) {
      AddChunk({block.group, block.name}, TwinContent(*content), block.tier, 1, 1);
    } else if (content.has_value()) {
      Add({block.group, block.name}, TwinContent(*content), block.tier, 1, 1);
    } else {
      Park(block);
    }
  }
  Settle();
}

void EngineTwin::Park(const StoreBlock& block) {
  Parked& parked = parked_[{block.group, block.name}];
  if (parked.tokens.empty() && !block.tokens.empty()) {
    parked.parent = block.parent;
    parked.salt = block.salt;
    parked.tokens = block.tokens;
  }
  AddCopies(&parked.copies.all[static_cast<int>(block.tier)], block.tier, 1);
  AddCopies(&parked.copies.certain[static_cast<int>(block.tier)], block.tier, 1);
}

// Parked blocks whose name or parent is known now.
void EngineTwin::Settle() {
  for (auto it = parked_.begin(); it != parked_.end();) {
    const auto [name, parked] = *it;
    std::optional<TwinContent> content;
    bool refused = false;
    const auto own = known_.find(name);
    if (own != known_.end()) {
      content = own->second.content;
    } else if (!parked.tokens.empty()) {
      const auto parent = known_.find({name.first, *parked.parent});
      if (parent != known_.end() && !ambiguous_.contains(parent->first)) {
        content = parent->second.content;
        refused = parked.salt.has_value() && *parked.salt != content->salt;
        content->tokens.insert(content->tokens.end(), parked.tokens.begin(), parked.tokens.end());
      }
    }
    if (!content.has_value()) {
      ++it;
      continue;
    }
    parked_.erase(it);
    for (int tier = 0; tier < kTiers && !refused; ++tier)
      if (parked.copies.all[tier] != 0 && parked.tokens.empty()) {
        AddChunk(name, *content, static_cast<Tier>(tier), parked.copies.all[tier],
                 parked.copies.certain[tier]);
      } else if (parked.copies.all[tier] != 0) {
        Add(name, *content, static_cast<Tier>(tier), parked.copies.all[tier],
            parked.copies.certain[tier]);
      }
    it = parked_.begin();
  }
}

// False: no such name.
bool EngineTwin::RemoveCopy(Name name, Tier tier) {
  const int t = static_cast<int>(tier);
  const auto known = known_.find(name);
  if (known == known_.end()) return false;
  Copies& copies = known->second.copies;
  if (copies.all[t] != 0) --copies.all[t];
  if (copies.certain[t] != 0) --copies.certain[t];
  if (!copies.any()) known_.erase(known);
  return true;
}

void EngineTwin::Remove(uint32_t group, uint64_t name, Tier tier) {
  const int t = static_cast<int>(tier);
  for (uint32_t back = 1; back < chunk_blocks_; ++back)
    if (tier != Tier::kDevice) RemoveCopy(Member({group, name}, back), tier);
  if (RemoveCopy({group, name}, tier)) return;
  const auto parked = parked_.find({group, name});
  if (parked == parked_.end()) return;
  Copies& copies = parked->second.copies;
  if (copies.all[t] != 0) --copies.all[t];
  if (copies.certain[t] != 0) --copies.certain[t];
  if (!copies.any()) parked_.erase(parked);
}

void EngineTwin::Clear() {
  known_.clear();
  parked_.clear();
  ambiguous_.clear();
  gaps_ = 0;
  given_up_ = missed_ = false;
}

void EngineTwin::Restart() {
  Clear();
  required_ = {};
}

void EngineTwin::Lose() {
  ++gaps_;
  missed_ = true;
  for (auto& [name, known] : known_) known.copies.certain = {};
  for (auto& [name, parked] : parked_) parked.copies.certain = {};
}

void EngineTwin::Repair() {
  if (gaps_ > 0 && --gaps_ == 0) missed_ = given_up_;
  for (auto& [name, known] : known_) known.copies.certain = known.copies.all;
  for (auto& [name, parked] : parked_) parked.copies.certain = parked.copies.all;
}

void EngineTwin::GiveUp() {
  gaps_ = 0;
  given_up_ = true;
  for (auto it = known_.begin(); it != known_.end();) {
    it->second.copies.all = it->second.copies.certain;
    it = it->second.copies.any() ? std::next(it) : known_.erase(it);
  }
  for (auto it = parked_.begin(); it != parked_.end();) {
    it->second.copies.all = it->second.copies.certain;
    it = it->second.copies.any() ? std::next(it) : parked_.erase(it);
  }
}

std::map<uint64_t, TierMask> EngineTwin::Holdings() const {
  std::map<uint64_t, TierMask> holdings;
  for (const auto& [name, known] : known_) {
    const uint64_t seed = BlockSeed({.lora_name = {}, .cache_salt = known.content.salt});
    const std::vector<SequenceHash> chain =
        SequenceHashes(LocalHashes(known.content.tokens, {.block_size = block_size_}, seed));
    for (int tier = 0; tier < kTiers; ++tier) {
      bool everywhere = known.copies.all[tier] != 0;
      for (uint32_t group : required_[tier]) {
        const auto other = known_.find({group, name.second});
        everywhere = everywhere && other != known_.end() && other->second.copies.all[tier] != 0;
      }
      if (everywhere)
        holdings[Raw(chain.back())] =
            holdings[Raw(chain.back())] | TierMask(static_cast<Tier>(tier));
    }
  }
  return holdings;
}

}  // namespace kvatlas
