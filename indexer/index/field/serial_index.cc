#include "indexer/index/field/serial_index.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvatlas {

// ---- Holders ----

absl::StatusOr<HolderIndex> SerialIndex::AddHolder() {
  MutexLock lock(&mutex_);
  uint32_t number = static_cast<uint32_t>(holders_.size());
  if (!free_numbers_.empty()) {
    number = *free_numbers_.begin();
    free_numbers_.erase(free_numbers_.begin());
  } else {
    if (number >= options_.holders_max) return absl::ResourceExhaustedError("holders_max reached");
    holders_.emplace_back();
  }
  holders_[number].exists = true;
  return HolderIndex{number};
}

void SerialIndex::RemoveHolder(HolderIndex holder) {
  MutexLock lock(&mutex_);
  if (!Exists(holder)) return;
  Clear(holder, TierMask::All(), nullptr);
  holders_[Raw(holder)] = Holder();
  free_numbers_.insert(Raw(holder));
}

void SerialIndex::SetMasked(HolderIndex holder, bool masked) {
  MutexLock lock(&mutex_);
  if (Exists(holder)) holders_[Raw(holder)].masked = masked;
}

bool SerialIndex::Exists(HolderIndex holder) const {
  return Raw(holder) < holders_.size() && holders_[Raw(holder)].exists;
}

bool SerialIndex::Answers(HolderIndex holder, const OverlapQuery& query) const {
  if (!Exists(holder) || holders_[Raw(holder)].masked) return false;
  if (query.only.empty()) return true;
  const size_t word = Raw(holder) / 64;
  return word < query.only.size() && (query.only[word] >> (Raw(holder) % 64) & 1) != 0;
}

bool SerialIndex::Has(const Holders& holders, HolderIndex holder, TierMask tiers) {
  const auto found = holders.find(holder);
  return found != holders.end() && found->second.Intersects(tiers);
}

std::vector<HolderIndex> SerialIndex::Answering(const Holders& holders,
                                                const OverlapQuery& query) const {
  std::vector<HolderIndex> answering;
  for (const auto& [holder, tiers] : holders) {
    if (tiers.Intersects(query.tiers) && Answers(holder, query)) answering.push_back(holder);
  }
  return answering;
}

// ---- Events ----

absl::Status SerialIndex::Apply(HolderIndex holder, const Event& event, ChangeLog* changes) {
  MutexLock lock(&mutex_);
  if (!Exists(holder)) return absl::NotFoundError("no such holder");
  if (const Stored* stored = std::get_if<Stored>(&event)) return Store(holder, *stored, changes);
  if (const Removed* removed = std::get_if<Removed>(&event)) {
    Remove(holder, removed->blocks, removed->tier, changes);
  } else {
    Clear(holder, std::get<Cleared>(event).tiers, changes);
  }
  return absl::OkStatus();
}

void SerialIndex::Clear(HolderIndex holder, TierMask tiers, ChangeLog* changes) {
  if (tiers.empty()) return;
  Remove(holder, SomeBlocks(holder, holders_[Raw(holder)].blocks), tiers, changes);
}

bool SerialIndex::Sweep(HolderIndex holder, size_t blocks_max, ChangeLog* changes) {
  MutexLock lock(&mutex_);
  if (!Exists(holder)) return false;
  const size_t blocks = std::max<size_t>(blocks_max, 1);
  Remove(holder, SomeBlocks(holder, blocks), TierMask::All(), changes);
  return holders_[Raw(holder)].blocks != 0;
}

void SerialIndex::Change(HolderIndex holder, SequenceHash block, Position position, TierMask before,
                         TierMask after, ChangeLog* changes) {
  if (before == after) return;
  Holder& books = holders_[Raw(holder)];
  if (before.empty()) ++books.blocks, ++holdings_;
  if (after.empty()) --books.blocks, --holdings_;
  ChangeDigest(block, before, after, &books.digest);
  if (changes != nullptr) changes->Add(block, position, before, after);
}

absl::Status SerialIndex::RoomFor(uint64_t blocks) const {
  if (options_.blocks_max == 0 || blocks < options_.blocks_max) return absl::OkStatus();
  return absl::ResourceExhaustedError("blocks_max reached");
}

void SerialIndex::Refuse(const Stored& stored, size_t from) {
  refused_blocks_ += stored.blocks.size() - from;
}

// ---- Questions ----

OverlapQuery SerialIndex::AsAsked(const OverlapQuery& query) const {
  OverlapQuery asked = query;
  if (asked_ == Asked::kBySequence || query.local_hashes.size() != query.blocks.size())
    asked.local_hashes = {};
  return asked;
}

void SerialIndex::FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const {
  MutexLock lock(&mutex_);
  Find(AsAsked(query), overlaps);
}

void SerialIndex::FindTierOverlaps(const OverlapQuery& query,
                                   std::vector<TierOverlap>* overlaps) const {
  OverlapQuery asked = AsAsked(query);
  absl::flat_hash_map<HolderIndex, size_t> places;
  std::vector<Overlap> found;
  MutexLock lock(&mutex_);
  Find(asked, &found);
  for (const Overlap& each : found) {
    places[each.holder] = overlaps->size();
    overlaps->push_back({.holder = each.holder, .blocks = each.blocks});
  }
  for (int tier = 0; tier < kTiers; ++tier) {
    asked.tiers = static_cast<Tier>(tier);
    found.clear();
    Find(asked, &found);
    for (const Overlap& each : found) {
      const auto place = places.find(each.holder);
      if (place != places.end()) (*overlaps)[place->second].by_tier[tier] = each.blocks;
    }
  }
}

void SerialIndex::Descent::Begin(std::vector<HolderIndex> holders) {
  holders_ = std::move(holders);
  depth_ = 1;
}

void SerialIndex::Descent::End() {
  for (HolderIndex holder : holders_) overlaps_->push_back({.holder = holder, .blocks = depth_});
  holders_.clear();
}

// ---- Contents ----

std::vector<Holding> SerialIndex::HoldingsOf(HolderIndex holder) const {
  MutexLock lock(&mutex_);
  return Exists(holder) ? Holdings(holder) : std::vector<Holding>();
}

Digest SerialIndex::DigestOf(HolderIndex holder) const {
  MutexLock lock(&mutex_);
  return Exists(holder) ? holders_[Raw(holder)].digest : Digest();
}

IndexStats SerialIndex::Stats() const {
  MutexLock lock(&mutex_);
  IndexStats stats;
  stats.holders = holders_.size() - free_numbers_.size();
  stats.holdings = holdings_;
  stats.refused_blocks = refused_blocks_;
  stats.bytes = holders_.size() * sizeof(Holder);
  Describe(&stats);
  return stats;
}

absl::Status SerialIndex::Check() const {
  MutexLock lock(&mutex_);
  for (uint32_t number = 0; number < holders_.size(); ++number) {
    const absl::Status status = CheckHolder(HolderIndex{number});
    if (!status.ok()) return status;
  }
  return CheckTables();
}

absl::Status SerialIndex::CheckHolder(HolderIndex holder) const {
  Digest digest;
  const std::vector<Holding> holdings = Holdings(holder);
  for (const Holding& holding : holdings) {
    if (holding.tiers.empty()) return absl::InternalError("a holding in no tier");
    for (int i = 0; i < kTiers; ++i) {
      const Tier tier = static_cast<Tier>(i);
      if (holding.tiers.Has(tier)) digest.Add(tier, holding.block);
    }
  }
  const Holder& books = holders_[Raw(holder)];
  if (holdings.size() == books.blocks && digest == books.digest) return absl::OkStatus();
  return absl::InternalError("books of holder " + std::to_string(Raw(holder)) +
                             " differ from its holdings");
}

}  // namespace kvatlas
