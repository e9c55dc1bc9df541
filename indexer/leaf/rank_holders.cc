#include "indexer/leaf/rank_holders.h"

#include <utility>

#include "indexer/service/log.h"

namespace kvatlas {
namespace {

class HolderSink : public RankSink {
 public:
  // `owner` outlives it.
  HolderSink(RankHolders* owner, uint32_t rank, std::shared_ptr<LocalHolder> holder)
      : owner_(owner), rank_(rank), holder_(std::move(holder)) {}
  absl::Status Apply(const Event& event) override {
    if (!std::exchange(reached_, true)) owner_->SetReached(rank_);
    return holder_->Apply(event);
  }
  void SetTrust(Trust trust) override { owner_->SetTrust(rank_, trust); }
  void SetLayout(const CacheLayout& layout) override { holder_->SetLayout(layout); }
  std::optional<uint64_t> LastChanged() const override { return holder_->LastChanged(); }
  void ForEachHeld(
      const std::function<void(SequenceHash, SequenceHash, LocalHash)>& visit) const override {
    holder_->ForEachHeld(visit);
  }

 private:
  RankHolders* const owner_;
  const uint32_t rank_;
  const std::shared_ptr<LocalHolder> holder_;
  bool reached_ = false;
};

}  // namespace

RankHolders::RankHolders(HolderRegistry* registry, Domain domain, uint32_t block_size,
                         std::string instance, bool hidden, const std::string& url)
    : registry_(registry),
      domain_(std::move(domain)),
      block_size_(block_size),
      instance_(std::move(instance)),
      hidden_(hidden) {
  if (!url.empty()) labels_.emplace_back("url", url);
}

absl::StatusOr<RankHolders::Rank*> RankHolders::FindOrAdd(uint32_t rank) {
  const auto it = ranks_.find(rank);
  if (it != ranks_.end()) return &it->second;
  absl::StatusOr<std::unique_ptr<LocalHolder>> holder = registry_->AddLocal(
      domain_, block_size_, {.id = {instance_, rank, ""}, .address = "", .labels = labels_});
  if (!holder.ok()) return holder.status();
  Rank& added = ranks_[rank];
  added.holder = *std::move(holder);
  added.holder->SetTrust(Trust::kStale);
  ShowOrMask(&added);
  return &added;
}

void RankHolders::ShowOrMask(Rank* rank) {
  const bool mask = hidden_ || !rank->alive;
  if (mask == rank->masked) return;
  rank->masked = mask;
  rank->holder->SetMasked(mask);
}

absl::Status RankHolders::Add(uint32_t rank) {
  MutexLock lock(&mutex_);
  return FindOrAdd(rank).status();
}

absl::StatusOr<std::unique_ptr<RankSink>> RankHolders::MakeSink(uint32_t rank) {
  MutexLock lock(&mutex_);
  const absl::StatusOr<Rank*> found = FindOrAdd(rank);
  if (!found.ok()) return found.status();
  return std::make_unique<HolderSink>(this, rank, (*found)->holder);
}

void RankHolders::Remove(uint32_t rank) {
  MutexLock lock(&mutex_);
  ranks_.erase(rank);
}

void RankHolders::RemoveAll() {
  MutexLock lock(&mutex_);
  ranks_.clear();
}

void RankHolders::Drop() {
  MutexLock lock(&mutex_);
  for (auto& [number, rank] : ranks_) rank.holder.reset();
}

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
    (*added)->reached = rank.reached;
    (*added)->trust = rank.trust;
    if (rank.reached) (*added)->holder->SetTrust(rank.trust);
    ShowOrMask(*added);
  }
}

void RankHolders::SetReached(uint32_t rank) {
  MutexLock lock(&mutex_);
  const auto it = ranks_.find(rank);
  if (it == ranks_.end() || std::exchange(it->second.reached, true)) return;
  if (it->second.holder != nullptr) it->second.holder->SetTrust(it->second.trust);
}

void RankHolders::SetTrust(uint32_t rank, Trust trust) {
  MutexLock lock(&mutex_);
  const auto it = ranks_.find(rank);
  if (it == ranks_.end()) return;
  it->second.trust = trust;
  if (it->second.reached && it->second.holder != nullptr) it->second.holder->SetTrust(trust);
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
