// Parked blocks in three structures that change together:
//
//   blocks_     name ─▶ block                  every parked block, once
//   children_   parent ─▶ names                blocks with tokens: they wait for this parent
//   queue_      (ticket, name), oldest first   blocks by age; an entry is stale once its block went
//
// `EngineRank::ParkBlock` fills it; `LinkAll`, `Resolve` and removals take blocks out; `Tick` drops
// what waited too long. Blocks are found by keys of `ParkedName`, since names point into the
// event's memory and have to be owned here.

#include "indexer/kv_events/orphans.h"

#include <algorithm>
#include <cstring>

#include "indexer/base/big_endian.h"

namespace kvatlas {

std::string ParkedName(size_t group, const EngineBlockHash& name) {
  std::string key;
  key.reserve(10 + name.bytes.size());
  // Group in a byte (`kGroupsMax` is 32), kind of name, bytes. A number is in the machine's order:
  // keys do not leave the process.
  key.push_back(static_cast<char>(group));
  if (name.bytes.empty()) {
    key.push_back('i');
    char value[8];
    std::memcpy(value, &name.value, sizeof(value));
    key.append(value, sizeof(value));
  } else {
    key.push_back('d');
    key.append(name.bytes.data(), name.bytes.size());
  }
  return key;
}

EngineBlockHash NameOfKey(const std::string& key) {
  const std::string_view bytes = std::string_view(key).substr(2);
  if (key[1] != 'i') return {.value = FromBigEndian(bytes), .bytes = bytes};
  EngineBlockHash name;
  std::memcpy(&name.value, bytes.data(), sizeof(name.value));
  return name;
}

size_t GroupOfKey(const std::string& key) { return static_cast<uint8_t>(key[0]); }

size_t Orphans::BytesOf(const std::string& name, const ParkedBlock& block) {
  // An estimate: the name is in the table, in the queue and under its parent.
  return 3 * (sizeof(std::string) + name.size()) + sizeof(ParkedBlock) + 2 * block.parent.size() +
         block.tokens.size() * sizeof(TokenId) + block.multimodal.size() * sizeof(uint64_t);
}

// The bound on bytes is checked before the block is added: the pool may exceed it by one block.
// Adapter and salt are interned, since many blocks of one request have the same ones.
bool Orphans::Admit(ParkedBlock* block, std::string_view lora_name, std::string_view cache_salt) {
  if (bytes() >= bytes_max_ || (memory_ != nullptr && memory_->level() >= MemoryLevel::kFull))
    return false;
  const std::optional<uint32_t> said = said_.Intern(lora_name, cache_salt, /*eagle=*/0);
  if (!said.has_value()) return false;
  said_.Count(*said);
  block->said = *said;
  return true;
}

// 1. A new block is added, if there is room.
// 2. A block that came without tokens gets them, with its copies and its age: it waits for its
//    parent from now on, and for its own name no longer. Where there is no room for the tokens it
//    stays as it is.
// 3. Either way the store counts as a copy in its tier.
bool Orphans::Park(const std::string& name, ParkedBlock block, std::string_view lora_name,
                   std::string_view cache_salt, Tier tier, AliasTable::Copies copies, Time now) {
  const int t = static_cast<int>(tier);
  auto it = blocks_.find(name);
  if (it == blocks_.end()) {
    if (blocks_.size() >= blocks_max_ || !Admit(&block, lora_name, cache_salt)) return false;
    block.since = now;
    block.ticket = next_ticket_++;
    block.copies = block.certain = {};
    queue_.emplace_back(block.ticket, name);
    bytes_ += BytesOf(name, block);
    if (block.has_tokens) children_[block.parent].insert(name);
    without_tokens_ += !block.has_tokens;
    it = blocks_.emplace(name, std::move(block)).first;
    TrimQueue();
  } else if (block.has_tokens && !it->second.has_tokens && Admit(&block, lora_name, cache_salt)) {
    bytes_ -= BytesOf(name, it->second);
    said_.Discount(it->second.said);
    block.copies = it->second.copies;
    block.sets = it->second.sets;
    block.certain = it->second.certain;
    block.since = it->second.since;
    block.ticket = it->second.ticket;
    children_[block.parent].insert(name);
    --without_tokens_;
    it->second = std::move(block);
    bytes_ += BytesOf(name, it->second);
  }
  const bool counted = copies == AliasTable::Copies::kOneMore;
  if (!counted) it->second.sets = it->second.sets | TierMask(tier);
  for (uint16_t* count : {&it->second.copies[t], &it->second.certain[t]})
    if (*count == 0 || (counted && *count < 0xffff)) ++*count;
  return true;
}

// The last copy of any tier takes the block out.
bool Orphans::Remove(const std::string& name, Tier tier) {
  const auto it = blocks_.find(name);
  if (it == blocks_.end()) return false;
  uint16_t& copies = it->second.copies[static_cast<int>(tier)];
  if (copies == 0) return false;
  --copies;
  uint16_t& certain = it->second.certain[static_cast<int>(tier)];
  if (certain != 0) --certain;
  if (it->second.copies == TierCopies{}) Take(name);
  return true;
}

const ParkedBlock* Orphans::Find(const std::string& name) const {
  const auto it = blocks_.find(name);
  return it == blocks_.end() ? nullptr : &it->second;
}

// Undoes what `Park` did beside `blocks_`. The entry in `queue_` stays and is stale.
void Orphans::Unlink(const std::string& name, const ParkedBlock& block) {
  bytes_ -= BytesOf(name, block);
  said_.Discount(block.said);
  if (!block.has_tokens) {
    --without_tokens_;
    return;
  }
  const auto children = children_.find(block.parent);
  children->second.erase(name);
  if (children->second.empty()) children_.erase(children);
}

std::optional<ParkedBlock> Orphans::Take(const std::string& name) {
  const auto it = blocks_.find(name);
  if (it == blocks_.end()) return std::nullopt;
  Unlink(name, it->second);
  std::optional<ParkedBlock> block = std::move(it->second);
  blocks_.erase(it);
  if (blocks_.empty()) Clear();
  return block;
}

std::vector<std::string> Orphans::ChildrenOf(const std::string& parent) const {
  const auto it = children_.find(parent);
  if (it == children_.end()) return {};
  return {it->second.begin(), it->second.end()};
}

// Stops at the oldest block that may stay: all behind it are younger. A stale entry's ticket is no
// block's, also where the name was parked again since.
size_t Orphans::DropExpired(Time now) {
  size_t dropped = 0;
  while (!queue_.empty()) {
    const auto& [ticket, name] = queue_.front();
    const ParkedBlock* const block = Find(name);
    const bool there = block != nullptr && block->ticket == ticket;
    if (there && now - block->since < ttl_) break;
    const std::string gone = name;
    queue_.pop_front();
    if (!there) continue;
    ++dropped;
    Take(gone);
  }
  return dropped;
}

// Goes round the queue from where the last call stopped, once at most, so that each name is asked
// for in turn. O(queue).
std::vector<std::string> Orphans::WithoutTokens(size_t most) {
  std::vector<std::string> names;
  if (without_tokens_ == 0) return names;
  for (size_t looked = 0; looked < queue_.size() && names.size() < most; ++looked, ++asked_) {
    if (asked_ >= queue_.size()) asked_ = 0;
    const auto& [ticket, name] = queue_[asked_];
    const ParkedBlock* const block = Find(name);
    if (block != nullptr && block->ticket == ticket && !block->has_tokens) names.push_back(name);
  }
  return names;
}

void Orphans::Lose() {
  for (auto& [name, block] : blocks_) block.certain = {};
}

void Orphans::Confirm() {
  for (auto& [name, block] : blocks_) block.certain = block.copies;
}

// A parked block costs no call of the writer: all of them are dropped at once.
size_t Orphans::DropUnconfirmed() {
  for (auto& [name, block] : blocks_) block.copies = block.certain;
  return TakeEmpty();
}

bool Orphans::AnyUnconfirmed() const {
  return std::any_of(blocks_.begin(), blocks_.end(),
                     [](const auto& of) { return of.second.copies != of.second.certain; });
}

void Orphans::DropGroup(size_t group) {
  for (auto& [name, block] : blocks_)
    if (GroupOfKey(name) == group) block.copies = {};
  TakeEmpty();
}

void Orphans::ClearTier(Tier tier) {
  for (auto& [name, block] : blocks_)
    block.copies[static_cast<int>(tier)] = block.certain[static_cast<int>(tier)] = 0;
  TakeEmpty();
}

// In two steps: taking a block changes the table that is walked.
size_t Orphans::TakeEmpty() {
  std::vector<std::string> empty;
  for (const auto& [name, block] : blocks_)
    if (block.copies == TierCopies{}) empty.push_back(name);
  for (const std::string& name : empty) Take(name);
  return empty.size();
}

// Stale entries are removed once they are the majority: amortized O(1) a block, and the queue is
// bounded by `blocks_max`.
void Orphans::TrimQueue() {
  if (queue_.size() < 64 + 2 * blocks_.size()) return;
  std::erase_if(queue_, [this](const auto& entry) {
    const ParkedBlock* const block = Find(entry.second);
    return block == nullptr || block->ticket != entry.first;
  });
}

// Assigns new containers, so that memory goes back after a burst. Tickets go on: a number is never
// given twice.
void Orphans::Clear() {
  blocks_ = {};
  children_ = {};
  queue_ = std::deque<std::pair<uint64_t, std::string>>();
  said_.Clear();
  bytes_ = 0;
  without_tokens_ = 0;
  asked_ = 0;
}

}  // namespace kvatlas
