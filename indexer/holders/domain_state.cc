#include "indexer/holders/domain_state.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "indexer/base/for_each_bit.h"
#include "indexer/holders/address_space.h"

namespace kvatlas {
namespace {

void AddReceiverStats(const ReceiverStats& from, ReceiverStats* to) {
  to->batches_applied += from.batches_applied;
  to->gaps += from.gaps;
  to->snapshots_applied += from.snapshots_applied;
  to->digests_equal += from.digests_equal;
  to->digests_different += from.digests_different;
}

// `FindBest` is for more holders than this many times those that are wanted.
constexpr size_t kHoldersPerBest = 4;

}  // namespace

absl::StatusOr<std::shared_ptr<DomainState>> DomainState::Make(
    const HolderRegistryOptions& options, const Domain& domain, uint32_t block_size,
    std::shared_ptr<const PeerQuotas::Charge> charge) {
  IndexOptions index_options = options.index;
  index_options.holders_max = std::min(index_options.holders_max, options.holders_max);
  const std::optional<uint64_t> addresses = AddressBytesForIndex();
  if (!addresses.has_value()) {
    return absl::ResourceExhaustedError(
        "domain " + ToString(domain) +
        " cannot be taken: the process has few addresses left for another index (ulimit -v)");
  }
  index_options.address_bytes_max = *addresses;
  absl::StatusOr<std::unique_ptr<Index>> index = MakeIndex(options.index_name, index_options);
  if (!index.ok()) {
    return absl::ResourceExhaustedError("domain " + ToString(domain) + " cannot be taken: " +
                                        std::string(index.status().message()));
  }
  return std::shared_ptr<DomainState>(
      new DomainState(options, domain, block_size, *std::move(index), std::move(charge)));
}

DomainState::DomainState(const HolderRegistryOptions& options, Domain domain, uint32_t block_size,
                         std::unique_ptr<Index> index,
                         std::shared_ptr<const PeerQuotas::Charge> charge)
    : domain_(std::move(domain)),
      block_size_(block_size),
      receiver_options_(options.receiver),
      memory_(options.index.memory),
      charge_(std::move(charge)),
      forget_(options.forget),
      index_(std::move(index)),
      sides_(std::make_unique<SideIndex>(options.index.bytes_max, memory_)),
      observer_(options.observe ? options.observe(domain_, block_size) : nullptr),
      table_(std::make_shared<Table>()) {
  hybrids_.Start(index_.get(), sides_.get());
}

DomainState::~DomainState() {
  if (forget_ && observer_ != nullptr) forget_(observer_);
}

std::shared_ptr<const Table> DomainState::table() const {
  MutexLock lock(&mutex_);
  return table_;
}

HolderPtr DomainState::Find(const HolderId& id) const {
  MutexLock lock(&mutex_);
  const auto it = holders_.find(id);
  return it == holders_.end() ? nullptr : it->second;
}

absl::StatusOr<HolderPtr> DomainState::FindOrAdd(const HolderId& id) {
  if (HolderPtr holder = Find(id); holder != nullptr) return holder;
  absl::StatusOr<Added> added = Add(id, [&](HolderIndex number) {
    return std::make_shared<Holder>(index_.get(), sides_.get(), number, observer_, &counters_,
                                    receiver_options_, id);
  });
  if (!added.ok()) return added.status();
  return std::move(added->holder);
}

absl::StatusOr<HolderPtr> DomainState::AddLocal(const HolderInfo& info, Time now) {
  return AddNew(info.id, [&](HolderIndex number) {
    return std::make_shared<Holder>(index_.get(), sides_.get(), number, observer_, &counters_, info,
                                    now);
  });
}

absl::StatusOr<HolderPtr> DomainState::AddRestored(const HolderId& id, const CacheLayout& layout) {
  return AddNew(id, [&](HolderIndex number) {
    auto holder = std::make_shared<Holder>(index_.get(), sides_.get(), number, observer_,
                                           &counters_, receiver_options_, id);
    holder->BeginRestore(layout);
    return holder;
  });
}

absl::StatusOr<HolderPtr> DomainState::AddNew(const HolderId& id,
                                              const std::function<HolderPtr(HolderIndex)>& make) {
  const auto exists = absl::AlreadyExistsError("holder " + ToString(id) + " of domain " +
                                               ToString(domain_) + " exists");
  if (Find(id) != nullptr) return exists;
  absl::StatusOr<Added> added = Add(id, make);
  if (!added.ok()) return added.status();
  if (!added->made) return exists;
  return std::move(added->holder);
}

// The index is asked for a number outside the mutex: it may be at its upkeep, which queries do not wait for.
absl::StatusOr<DomainState::Added> DomainState::Add(
    const HolderId& id, const std::function<HolderPtr(HolderIndex)>& make) {
  absl::Status full = CheckMemory(memory_, MemoryLevel::kFull, "new holders");
  if (!full.ok()) return full;
  const absl::StatusOr<HolderIndex> number = index_->AddHolder();
  if (!number.ok()) {
    return absl::ResourceExhaustedError("domain " + ToString(domain_) +
                                        " takes no more holders: it has as many as it may");
  }
  absl::Status closed;
  Added added;
  {
    MutexLock lock(&mutex_);
    const auto it = holders_.find(id);
    if (it != holders_.end()) {
      added.holder = it->second;
    } else if (closed_) {
      closed = absl::UnavailableError("domain " + ToString(domain_) + " is going");
    } else {
      added = {make(*number), /*made=*/true};
      holders_[id] = added.holder;
      empty_since_.reset();
      auto table = std::make_shared<Table>(*table_);
      if (table->size() <= Raw(*number)) table->resize(Raw(*number) + 1);
      (*table)[Raw(*number)] = {added.holder, added.holder->info()};
      table_ = std::move(table);
      // One that is restored has its classes already, which a question may have looked for before it was in the table.
      if (added.holder->layout() != nullptr) counters_.layouts_version.fetch_add(1);
    }
  }
  if (!added.made) index_->RemoveHolder(*number);
  if (!closed.ok()) return closed;
  return added;
}

void DomainState::RefreshInfo(const HolderPtr& holder) {
  const std::shared_ptr<const HolderInfo> info = holder->info();
  MutexLock lock(&mutex_);
  const uint32_t number = Raw(holder->number());
  if (number >= table_->size() || (*table_)[number].holder != holder ||
      (*table_)[number].info == info) {
    return;
  }
  auto table = std::make_shared<Table>(*table_);
  (*table)[number].info = info;
  table_ = std::move(table);
}

bool DomainState::Close() {
  MutexLock lock(&mutex_);
  closed_ = closed_ || holders_.empty();
  return closed_;
}

std::optional<Time> DomainState::EmptySince(Time now) {
  MutexLock lock(&mutex_);
  if (!holders_.empty() || !to_sweep_.empty()) {
    empty_since_.reset();
  } else if (!empty_since_.has_value()) {
    empty_since_ = now;
  }
  return empty_since_;
}

void DomainState::Forget(const HolderPtr& holder) {
  MutexLock lock(&mutex_);
  const auto it = holders_.find(holder->id());
  if (it == holders_.end() || it->second != holder) return;
  holders_.erase(it);
  auto table = std::make_shared<Table>(*table_);
  (*table)[Raw(holder->number())] = {};
  while (!table->empty() && table->back().holder == nullptr) table->pop_back();
  table_ = std::move(table);
  if (holder->layout() != nullptr) counters_.layouts_version.fetch_add(1);
  AddReceiverStats(holder->receiver_stats(), &gone_);
  holder->SetCharge(nullptr);
  to_sweep_.push_back(holder);
}

uint64_t DomainState::Sweep(uint64_t blocks_max, std::atomic<uint64_t>* swept) {
  for (;;) {
    HolderPtr holder;
    {
      MutexLock lock(&mutex_);
      if (to_sweep_.empty()) return blocks_max;
      holder = to_sweep_.back();
    }
    for (bool more = true; more; blocks_max -= std::min<uint64_t>(blocks_max, kBatchBlocksMax)) {
      if (blocks_max == 0) return 0;
      more = holder->Sweep(std::min<uint64_t>(blocks_max, kBatchBlocksMax));
    }
    // A query that found this number before took the holder from a table that still had it, and sees it
    // retired: `Describe` is false. So the number may be another's from here.
    index_->RemoveHolder(holder->number());
    swept->fetch_add(1, std::memory_order_relaxed);
    MutexLock lock(&mutex_);
    to_sweep_.erase(std::find(to_sweep_.begin(), to_sweep_.end(), holder));
  }
}

OverlapAnswer DomainState::FindOverlaps(const OverlapQuery& query, bool all_holders, bool by_tier,
                                        bool held_only, Time now) const {
  const std::shared_ptr<const Table> table = this->table();
  std::vector<Overlap> overlaps;
  std::vector<HybridOverlap> hybrids;
  if (!query.blocks.empty()) hybrids_.Find(query, held_only, &overlaps, &hybrids);
  const bool reaches_differ = by_tier && !query.blocks.empty() &&
                              (counters_.tiers_seen.load() & ~TierMask(Tier::kDevice).bits()) != 0;
  static thread_local std::vector<TierReach> reaches;
  reaches.clear();
  if (reaches_differ) FindReaches(query.blocks, table->size(), held_only, &reaches);
  return AnswerOf(table, block_size_, overlaps, hybrids, all_holders, reaches, now);
}

std::vector<HybridOverlaps::OfHolder> DomainState::Layouts() const {
  std::vector<HybridOverlaps::OfHolder> layouts;
  const std::shared_ptr<const Table> table = this->table();
  for (uint32_t number = 0; number < table->size(); ++number) {
    const HolderPtr& holder = (*table)[number].holder;
    if (holder == nullptr) continue;
    if (auto layout = holder->layout(); layout != nullptr)
      layouts.emplace_back(number, std::move(layout));
  }
  return layouts;
}

void DomainState::FindReaches(std::span<const SequenceHash> blocks, size_t holders, bool held_only,
                              std::vector<TierReach>* reaches) const {
  reaches->assign(holders, {});
  FindTierReaches(
      [&](TierMask tiers, std::vector<Overlap>* overlaps) {
        std::vector<HybridOverlap> hybrids;
        hybrids_.Find({.blocks = blocks, .tiers = tiers}, held_only, overlaps, &hybrids);
      },
      TierMask(counters_.tiers_seen.load()), reaches);
}

std::optional<OverlapAnswer> DomainState::FindBest(const OverlapQuery& query, size_t best,
                                                   Time now) const {
  static thread_local OverlapSteps steps;
  static thread_local std::vector<uint64_t> by_rank, seen;
  static thread_local std::vector<uint32_t> newcomers;
  if (hybrids_.Any()) return std::nullopt;
  best_asked_.store(true, std::memory_order_relaxed);
  std::shared_ptr<const Table> table;
  std::shared_ptr<const LoadOrder> order;
  {
    MutexLock lock(&mutex_);
    table = table_;
    order = order_;
  }
  if (order == nullptr || order->replicas || table->size() / kHoldersPerBest < best)
    return std::nullopt;
  steps.depths.clear();
  if (!query.blocks.empty()) index_->FindSteps(query, &steps);
  seen.assign(steps.depths.empty() ? 0 : steps.words_per_step, 0);
  OverlapAnswer answer;
  answer.block_size = block_size_;
  answer.holders.reserve(best);
  const auto add = [&](uint32_t number, uint32_t depth) {
    if (answer.holders.size() < best) AddAnswer(*table, {HolderIndex(number), depth}, now, &answer);
    return answer.holders.size() < best;
  };
  for (size_t step = steps.depths.size(); step-- > 0 && answer.holders.size() < best;) {
    // The set, with ranks for numbers: its members in order of load without comparing any.
    by_rank.assign((order->numbers.size() + 63) / 64, 0);
    newcomers.clear();
    ForEachBit(steps.holders(step), [&](uint32_t number) {
      const uint32_t rank = order->RankOf(number);
      if (rank == UINT32_MAX) return newcomers.push_back(number);
      by_rank[rank / 64] |= uint64_t{1} << (rank % 64);
    });
    const uint32_t depth = steps.depths[step];
    ForEachBit(by_rank, [&](uint32_t rank) { return add(order->numbers[rank], depth); });
    for (uint32_t number : newcomers) add(number, depth);
    for (size_t i = 0; i < seen.size(); ++i) seen[i] |= steps.holders(step)[i];
  }
  for (size_t i = 0; i < order->numbers.size(); ++i) {
    const uint32_t number = order->numbers[i];
    if (number / 64 < seen.size() && (seen[number / 64] >> (number % 64) & 1) != 0) continue;
    if (!add(number, 0)) break;
  }
  answer.keeps.push_back(std::move(table));
  return answer;
}

void DomainState::SortByLoad(Time now) {
  if (!best_asked_.exchange(false, std::memory_order_relaxed)) {
    MutexLock lock(&mutex_);
    order_ = nullptr;  // the next question is not answered by loads of long ago
    return;
  }
  const std::shared_ptr<const Table> table = this->table();
  auto order = std::make_shared<LoadOrder>();
  std::vector<std::tuple<double, std::string_view, uint32_t>> sorted;
  for (uint32_t number = 0; number < table->size(); ++number) {
    HolderOverlap described;
    const TableEntry& entry = (*table)[number];
    if (entry.holder == nullptr || !entry.holder->Describe(now, &described)) continue;
    order->replicas = order->replicas || !entry.holder->id().replica.empty();
    sorted.emplace_back(QueuedPrefillBlocksPerWorker(described.load), entry.holder->id().name,
                        number);
  }
  std::sort(sorted.begin(), sorted.end());
  order->ranks.assign(table->size(), UINT32_MAX);
  for (const auto& [ahead, name, number] : sorted) {
    order->ranks[number] = static_cast<uint32_t>(order->numbers.size());
    order->numbers.push_back(number);
  }
  MutexLock lock(&mutex_);
  order_ = std::move(order);
}

void DomainState::VisitReaches(
    std::span<const SequenceHash> blocks, Time now, bool held_only,
    const std::function<void(const HolderInfo&, const TierReach&)>& visit) const {
  static thread_local std::vector<TierReach> reaches;
  const std::shared_ptr<const Table> table = this->table();
  FindReaches(blocks, table->size(), held_only, &reaches);
  for (size_t i = 0; i < reaches.size(); ++i) {
    const TableEntry& entry = (*table)[i];
    if (reaches[i].any > 0 && entry.holder != nullptr && entry.holder->Live(now))
      visit(*entry.info, reaches[i]);
  }
}

DomainStats DomainState::Stats(Time now) const {
  DomainStats stats;
  stats.domain = domain_;
  stats.block_size = block_size_;
  stats.index = index_->Stats();
  stats.sides = sides_->GetStats();
  stats.blocks_stored = counters_.blocks_stored.load(std::memory_order_relaxed);
  stats.blocks_removed = counters_.blocks_removed.load(std::memory_order_relaxed);
  stats.bytes_received = counters_.bytes_received.load(std::memory_order_relaxed);
  ReceiverStats sum;
  std::map<HolderId, HolderPtr> holders;
  {
    MutexLock lock(&mutex_);
    sum = gone_;
    holders = holders_;
  }
  for (const auto& [id, holder] : holders) {
    stats.holders.push_back(holder->Stats(now));
    AddReceiverStats(stats.holders.back().receiver, &sum);
  }
  stats.batches = sum.batches_applied;
  stats.gaps = sum.gaps;
  stats.snapshots = sum.snapshots_applied;
  stats.digests_equal = sum.digests_equal;
  stats.digests_different = sum.digests_different;
  return stats;
}

std::vector<HolderId> DomainState::Holders() const {
  std::vector<HolderId> ids;
  MutexLock lock(&mutex_);
  for (const auto& [id, holder] : holders_) ids.push_back(id);
  return ids;
}

}  // namespace kvatlas
