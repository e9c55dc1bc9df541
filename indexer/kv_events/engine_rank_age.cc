// Tiers that blocks leave without an event. They leave by age here, where the registration says how
// much such a tier keeps, or for how long (`EngineWorkerOptions::silent_blocks`, `silent_time`):
// the names that were stored there longest ago go first, as if they were removed. A name that is
// stored again is young again. A cache may keep a block longer because it was read, which no event
// says: too little is promised then. If a cache keeps less than was said, too much is promised:
// such a tier is never exact.
//
// `ages_` is a queue of stores in the order in which they came; `youngest_` says which store of a
// name counts. An entry that is not the youngest is skipped, so that a repeated store costs O(1).

#include <utility>

#include "indexer/kv_events/engine_rank.h"

namespace kvatlas {

bool EngineRank::Ages(Tier tier) const {
  const bool known = options_.silent_blocks != 0 || options_.silent_time > Duration(0);
  return known && (silent_ | options_.store_tiers).Has(tier);
}

void EngineRank::NoteAge(size_t group, const EngineBlockHash& name, Tier tier) {
  std::string key = ParkedName(group, name);
  key.push_back(static_cast<char>(tier));
  youngest_[key] = ++stored_count_;
  has_undated_ = has_undated_ || now_ == Time(0);
  ages_.push_back({.key = std::move(key), .number = stored_count_, .at = now_});
  // Names that were stored again stand in the queue twice: it is swept when it is twice as long as
  // it has names.
  if (ages_.size() > 2 * youngest_.size() + kAgesSpare)
    std::erase_if(ages_, [this](const Age& age) { return !IsYoungest(age); });
}

void EngineRank::ForgetAge(size_t group, const EngineBlockHash& name, Tier tier) {
  std::string key = ParkedName(group, name);
  key.push_back(static_cast<char>(tier));
  youngest_.erase(key);
}

bool EngineRank::IsYoungest(const Age& age) const {
  const auto known = youngest_.find(age.key);
  return known != youngest_.end() && known->second == age.number;
}

uint64_t EngineRank::AgingBlocks() const {
  uint64_t blocks = 0;
  for (int tier = 0; tier < kTiers; ++tier)
    if (Ages(static_cast<Tier>(tier))) blocks += held_[tier];
  return blocks;
}

// Runs at the end of each batch and with each tick. The flush before lets `held_` say what is held:
// `AgingBlocks` reads it.
void EngineRank::DropOld() {
  if (ages_.empty()) return;
  // Restored names have no time of their own: they count as stored now, at the first tick or batch
  // of this process.
  if (std::exchange(has_undated_, false))
    for (Age& age : ages_)
      if (age.at == Time(0)) age.at = now_;
  Flush();
  for (; !ages_.empty(); ages_.pop_front()) {
    const Age& oldest = ages_.front();
    if (!IsYoungest(oldest)) continue;
    const bool too_many = options_.silent_blocks != 0 && AgingBlocks() > options_.silent_blocks;
    const bool too_old =
        options_.silent_time > Duration(0) && now_ - oldest.at >= options_.silent_time;
    if (!too_many && !too_old) break;
    const auto tier = static_cast<Tier>(oldest.key.back());
    const std::string key = oldest.key.substr(0, oldest.key.size() - 1);
    youngest_.erase(oldest.key);
    RemoveOne(GroupOfKey(key), NameOfKey(key), tier);
  }
  Flush();
}

}  // namespace kvatlas
