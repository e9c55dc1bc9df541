// One holder of the registry for each rank of an instance. A holder is masked while the instance is
// hidden or its rank is not alive (`ShowOrMask`); masking keeps what it holds.
//
// A holder lives as long as its handle: this map has one owner of it and the `EngineRank` that
// writes to it the other.

#include "indexer/engine_directory/rank_holders.h"

#include <algorithm>
#include <utility>

#include "indexer/telemetry/log.h"

namespace kvatlas {
RankHolders::RankHolders(HolderRegistry* registry, Domain domain, uint32_t block_size,
                         std::string instance, bool hidden,
                         std::vector<std::pair<std::string, std::string>> labels, RankStore store)
    : registry_(registry),
      domain_(std::move(domain)),
      block_size_(block_size),
      instance_(std::move(instance)),
      labels_(std::move(labels)),
      store_(std::move(store)),
      hidden_(hidden) {}

// The labels of one rank. A rank with a url of its own replaces the instance's, and `first_rank` is
// then the lowest rank with this url: servers of a pod that each have ranks of their own are asked
// for these by numbers from 0.
std::vector<std::pair<std::string, std::string>> RankHolders::LabelsOf(uint32_t rank) const {
  std::vector<std::pair<std::string, std::string>> labels = labels_;
  const auto own = urls_.find(rank);
  if (own == urls_.end()) return labels;
  const auto url = std::find_if(labels.begin(), labels.end(),
                                [](const auto& label) { return label.first == "url"; });
  if (url != labels.end() && url->second == own->second) return labels;
  std::erase_if(labels, [](const auto& label) {
    return label.first == "url" || label.first == "first_rank";
  });
  labels.emplace_back("url", own->second);
  const auto first = std::find_if(urls_.begin(), urls_.end(), [&](const auto& of_rank) {
    return of_rank.second == own->second;
  });
  if (first->first != 0) labels.emplace_back("first_rank", std::to_string(first->first));
  return labels;
}

// The rank, made at its first registration or batch. The holder of a shared store comes with the
// first rank. A new rank is not reached: it is stale until its engine was connected once. The
// pointer is valid until the rank is removed, under the mutex.
absl::StatusOr<RankHolders::Rank*> RankHolders::FindOrAdd(uint32_t rank) {
  const auto it = ranks_.find(rank);
  if (it != ranks_.end()) return &it->second;
  if (store_.holders != nullptr && store_holder_ == nullptr) {
    absl::StatusOr<std::shared_ptr<HolderHandle>> store =
        store_.holders->Of(domain_, block_size_, store_.name);
    if (!store.ok()) return store.status();
    store_holder_ = *std::move(store);
  }
  absl::StatusOr<std::unique_ptr<HolderHandle>> holder = registry_->AddLocal(
      domain_, block_size_, {.id = {instance_, rank, ""}, .address = "", .labels = LabelsOf(rank)});
  if (!holder.ok()) return holder.status();
  Rank& added = ranks_[rank];
  added.holder = *std::move(holder);
  added.holder->SetReached(false);
  if (store_holder_ != nullptr) added.holder->ShareStore(store_holder_, store_.tiers);
  ShowOrMask(&added);
  return &added;
}

// Tells the holder of changes alone.
void RankHolders::ShowOrMask(Rank* rank) {
  const bool mask = hidden_ || !rank->alive;
  if (mask == rank->masked) return;
  rank->masked = mask;
  rank->holder->SetMasked(mask);
}

absl::Status RankHolders::Add(uint32_t rank, const std::string& url) {
  MutexLock lock(&mutex_);
  if (!url.empty()) urls_[rank] = url;
  return FindOrAdd(rank).status();
}

absl::StatusOr<std::shared_ptr<HolderHandle>> RankHolders::HolderOf(uint32_t rank) {
  MutexLock lock(&mutex_);
  const absl::StatusOr<Rank*> found = FindOrAdd(rank);
  if (!found.ok()) return found.status();
  return (*found)->holder;
}

// Gives up one of the holder's two owners; the holder goes with the other one, the worker's rank.
// The store's holder goes with the last rank.
void RankHolders::Remove(uint32_t rank) {
  MutexLock lock(&mutex_);
  ranks_.erase(rank);
  urls_.erase(rank);
  if (ranks_.empty()) store_holder_.reset();
}

void RankHolders::RemoveAll() {
  MutexLock lock(&mutex_);
  ranks_.clear();
  urls_.clear();
  store_holder_.reset();
}

// First half of a change of the block size: all handles of the domain's holders go, so that the
// domain can come again with another size. The map keeps the state of each rank.
void RankHolders::Drop() {
  MutexLock lock(&mutex_);
  for (auto& [number, rank] : ranks_) {
    rank.reached = rank.holder->reached();
    rank.holder.reset();
  }
  store_holder_.reset();
}

// Second half: new holders with the same ranks. A rank that cannot be had again is logged and
// missing; its next event makes another attempt.
void RankHolders::AddAgain(uint32_t block_size) {
  MutexLock lock(&mutex_);
  block_size_ = block_size;
  std::map<uint32_t, Rank> before;
  before.swap(ranks_);
  for (const auto& [number, rank] : before) {
    const absl::StatusOr<Rank*> added = FindOrAdd(number);
    if (!added.ok()) {
      Log(LogLevel::kWarning, "engine rank has no holder",
          {{"worker", instance_}, {"rank", number}, {"reason", added.status()}});
      continue;
    }
    (*added)->alive = rank.alive;
    if (rank.reached) (*added)->holder->SetReached(true);
    ShowOrMask(*added);
  }
}

void RankHolders::SetReached(uint32_t rank) {
  MutexLock lock(&mutex_);
  const auto it = ranks_.find(rank);
  if (it == ranks_.end()) return;
  it->second.reached = true;
  if (it->second.holder != nullptr && !it->second.holder->reached())
    it->second.holder->SetReached(true);
}

void RankHolders::SetLoad(uint32_t rank, const Load& load) {
  MutexLock lock(&mutex_);
  const auto it = ranks_.find(rank);
  if (it != ranks_.end() && it->second.holder != nullptr) it->second.holder->SetLoad(load);
}

std::vector<uint32_t> RankHolders::ranks() const {
  MutexLock lock(&mutex_);
  std::vector<uint32_t> ranks;
  for (const auto& [rank, unused] : ranks_) ranks.push_back(rank);
  return ranks;
}

void RankHolders::SetHidden(bool hidden) {
  MutexLock lock(&mutex_);
  hidden_ = hidden;
  for (auto& [number, rank] : ranks_)
    if (rank.holder != nullptr) ShowOrMask(&rank);
}

// `heard`: the answer's age starts anew.
void RankHolders::SetAlive(uint32_t rank, bool heard, bool alive) {
  MutexLock lock(&mutex_);
  const auto it = ranks_.find(rank);
  if (it == ranks_.end()) return;
  it->second.alive = alive;
  if (it->second.holder == nullptr) return;  // between `Drop` and `AddAgain`
  ShowOrMask(&it->second);
  if (heard) it->second.holder->Heard();
}

}  // namespace kvatlas
