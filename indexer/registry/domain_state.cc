// One domain in four parts: holders come and go (`Add`, `Forget`, `Sweep`), pending prompts and
// sessions, questions (`FindOverlaps`, `FindBest`, `VisitReaches`), statistics.
//
// `table_` is copied for each change and never changed in place: a question takes the pointer once
// and works on it without a lock. A number's life: the index gives it, the table shows it, `Forget`
// takes it out of the table, `Sweep` empties it in the index and only then gives it back.

#include "indexer/registry/domain_state.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "indexer/base/for_each_bit.h"
#include "indexer/registry/address_space.h"

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

// The address space is asked for first: with `ulimit -v` one index must not take what the next ones
// and the rest of the process need.
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
      pending_(options.pending),
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

// Two hellos of one new holder may both get to `Add`; one of them makes it, and both get the same.
absl::StatusOr<HolderPtr> DomainState::FindOrAdd(const HolderId& id) {
  if (HolderPtr holder = Find(id); holder != nullptr) return holder;
  absl::StatusOr<Added> added = Add(id, [&](HolderIndex number) {
    return std::make_shared<Holder>(index_.get(), sides_.get(), number, observer_, &pending_,
                                    &counters_, receiver_options_, id);
  });
  if (!added.ok()) return added.status();
  return std::move(added->holder);
}

absl::StatusOr<HolderPtr> DomainState::AddLocal(const HolderInfo& info, Time now) {
  return AddNew(info.id, [&](HolderIndex number) {
    return std::make_shared<Holder>(index_.get(), sides_.get(), number, observer_, &pending_,
                                    &counters_, info, now);
  });
}

absl::StatusOr<HolderPtr> DomainState::AddRestored(const HolderId& id, const CacheLayout& layout) {
  return AddNew(id, [&](HolderIndex number) {
    auto holder = std::make_shared<Holder>(index_.get(), sides_.get(), number, observer_, &pending_,
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

// 1. The index gives a number, outside of the mutex: the index may be at its upkeep, for which
//    queries must not wait.
// 2. Under the mutex the holder is made and shown, unless another thread was faster or the domain
//    is closed.
// 3. A number that is not used goes back, outside of the mutex as well.
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
      if (IsStore(*(*table)[Raw(*number)].info)) has_stores_.store(true);
      table_ = std::move(table);
      // A restored holder has its classes already. A question may have read the layouts before it
      // was in the table: the new version makes it ask again.
      if (added.holder->layout() != nullptr) counters_.layouts_version.fetch_add(1);
    }
  }
  if (!added.made) index_->RemoveHolder(*number);
  if (!closed.ok()) return closed;
  return added;
}

// The entry may be another holder's by now, or up to date: then there is nothing to copy. Taking
// `info` before the mutex keeps to the lock order.
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
  if (IsStore(*info)) has_stores_.store(true);
  table_ = std::move(table);
}

// Irreversible: from here `Add` refuses with UNAVAILABLE, which makes callers look for the domain
// again. Holders that are still being swept do not count.
bool DomainState::Close() {
  MutexLock lock(&mutex_);
  closed_ = closed_ || holders_.empty();
  return closed_;
}

// The time of the first call that found the domain empty, not of the last holder's end: ticks are
// 200 ms apart.
std::optional<Time> DomainState::EmptySince(Time now) {
  MutexLock lock(&mutex_);
  if (!holders_.empty() || !to_sweep_.empty()) {
    empty_since_.reset();
  } else if (!empty_since_.has_value()) {
    empty_since_ = now;
  }
  return empty_since_;
}

// Idempotent: a holder that is not in the table any more, or whose id is another holder's by now,
// is left alone. Trailing empty entries are cut, so that the table is as long as the largest number
// in use. The counts of the holder's stream stay in `gone_`.
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
  pending_.Forget(holder->number());
  to_sweep_.push_back(holder);
}

// The newest first, in pieces of `kBatchBlocksMax`, without `mutex_` while the index works. Only
// `HolderRegistry::Tick` calls it, so a holder is in one sweep at a time.
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
    // A query that found this number before took the holder from a table that still had it, and
    // sees it retired: `Describe` is false. So another holder may get the number from here on.
    index_->RemoveHolder(holder->number());
    swept->fetch_add(1, std::memory_order_relaxed);
    MutexLock lock(&mutex_);
    to_sweep_.erase(std::find(to_sweep_.begin(), to_sweep_.end(), holder));
  }
}

// A cell's replicas are holders of their own. An id without a replica means any of them: the first
// in order.
HolderPtr DomainState::FindNamed(const HolderId& id) const {
  MutexLock lock(&mutex_);
  const auto at = holders_.lower_bound(id);
  const bool found = at != holders_.end() && at->first.name == id.name &&
                     at->first.rank == id.rank &&
                     (at->first.replica == id.replica || id.replica.empty());
  return found ? at->second : nullptr;
}

// A block names its whole prefix, so the last block alone shows whether the holder has it all. The
// index is asked after the telling was noted: events from then on confirm by themselves, so none
// falls between.
absl::Status DomainState::Tell(uint64_t frontend, const Routed& routed, Time now) {
  const HolderPtr holder = FindNamed(routed.worker);
  if (holder == nullptr) return absl::NotFoundError("no holder " + ToString(routed.worker));
  pending_.Tell(holder->number(), frontend, routed, now);
  if (routed.blocks.empty() || !index_->MayHold(routed.blocks.back())) return absl::OkStatus();
  std::vector<Overlap> overlaps;
  index_->FindOverlaps({.blocks = routed.blocks.last(1)}, &overlaps);
  const bool has_last = std::any_of(overlaps.begin(), overlaps.end(), [&](const Overlap& overlap) {
    return overlap.holder == holder->number();
  });
  if (has_last) pending_.Confirm(frontend, routed.decision);
  return absl::OkStatus();
}

// For each session: where its last prompt went, and which workers still have blocks of its prompts.
// Samples are asked deepest first, so that `add` keeps a worker's deepest one. *Cost*: one question
// of one block for each sample.
std::vector<SessionAnswer> DomainState::Sessions(uint64_t session, size_t max, Time now) const {
  std::vector<SessionAnswer> answers;
  const std::shared_ptr<const Table> table = this->table();
  const auto id_of = [&](HolderIndex number) -> const HolderId* {
    const auto at = Raw(number);
    return at < table->size() && (*table)[at].info != nullptr ? &(*table)[at].info->id : nullptr;
  };
  std::vector<Overlap> overlaps;
  for (const SessionSeen& seen : pending_.Sessions(session, max)) {
    const HolderId* const worker = id_of(seen.holder);
    if (worker == nullptr) continue;
    SessionAnswer answer{.session = seen.session,
                         .domain = domain_,
                         .block_size = block_size_,
                         .worker = *worker,
                         .age = now - seen.at,
                         .prompts = seen.prompts,
                         .blocks = seen.blocks};
    const auto add = [&answer](const HolderId& at, uint32_t blocks) {
      const bool is_known = std::any_of(answer.at.begin(), answer.at.end(),
                                        [&](const auto& known) { return known.worker == at; });
      if (!is_known) answer.at.push_back({.worker = at, .blocks = blocks});
    };
    for (auto sample = seen.samples.rbegin(); sample != seen.samples.rend(); ++sample) {
      overlaps.clear();
      index_->FindOverlaps({.blocks = std::span(&sample->second, 1)}, &overlaps);
      for (const Overlap& overlap : overlaps) {
        const HolderId* const at = id_of(overlap.holder);
        if (at != nullptr) add(*at, sample->first);
      }
    }
    // At a session's first prompt no block before the told ones is known here, so there is no
    // sample for what the worker had already: its depth is taken from the telling.
    const bool knows_first = !seen.samples.empty() && seen.samples.front().first <= seen.first;
    if (seen.first > 0 && !knows_first) add(*worker, seen.first);
    std::stable_sort(answer.at.begin(), answer.at.end(),
                     [](const auto& a, const auto& b) { return a.blocks > b.blocks; });
    answers.push_back(std::move(answer));
  }
  return answers;
}

void DomainState::AddPending(std::span<const SequenceHash> blocks, uint64_t frontend,
                             uint64_t session, OverlapAnswer* answer) const {
  if (!pending_.MayFind(session)) return;
  std::vector<std::pair<HolderIndex, uint32_t>> holders;
  holders.reserve(answer->holders.size());
  for (const HolderOverlap& overlap : answer->holders)
    holders.emplace_back(overlap.number, overlap.blocks);
  pending_.Find(blocks, holders, frontend, session, [&](size_t place, const Pending& pending) {
    answer->holders[place].pending = pending;
  });
}

// 1. The table is taken before the index is asked: a holder that came later is left out, and one
//    that left is still there, retired.
// 2. Main and side classes answer (`HybridOverlaps`).
// 3. Reaches by tier are asked for only if some block was ever below the device tier.
// 4. Trust, age and load come from the holders (`AnswerOf`).
// 5. Shared stores extend what workers can load (`AddLoadable`).
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
  OverlapAnswer answer = AnswerOf(table, block_size_, overlaps, hybrids, all_holders, reaches, now);
  if (has_stores_.load()) AddLoadable(query, table, overlaps, hybrids, now, &answer);
  return answer;
}

// Computed once a table: labels change only with it.
std::shared_ptr<const SharedStores> DomainState::StoresIn(
    const std::shared_ptr<const Table>& table) const {
  MutexLock lock(&mutex_);
  if (stores_of_ != table) {
    auto stores = std::make_shared<SharedStores>(StoresOf(*table));
    stores_ = stores->all.empty() ? nullptr : std::move(stores);
    stores_of_ = table;
  }
  return stores_;
}

namespace {

// Takes holders out of the store that are masked, stale or gone, and returns the worst trust of the
// others; nothing if none is left. With some missing the store is degraded at best: its other
// writers are not heard.
std::optional<Trust> KeepHeard(const Table& table, Time now, SharedStores::Store* store) {
  std::optional<Trust> trust;
  bool all = true;
  for (uint32_t number = 0; number < table.size() && number < store->holders.size() * 64;
       ++number) {
    uint64_t& word = store->holders[number / 64];
    const uint64_t bit = uint64_t{1} << (number % 64);
    HolderOverlap described;
    if ((word & bit) == 0) continue;
    if (table[number].holder->Describe(now, &described) && described.trust != Trust::kStale) {
      trust = std::max(trust.value_or(Trust::kExact), described.trust);
    } else {
      word &= ~bit;
      all = false;
    }
  }
  if (trust.has_value() && !all) trust = std::max(*trust, Trust::kDegraded);
  return trust;
}

}  // namespace

// 1. Stores themselves leave the answer: they are no workers.
// 2. `own` is what each worker's main class holds by itself.
// 3. Each store that was heard extends its workers (`ReachThrough`), within what their layouts let
//    them load (`LoadableOf`).
// 4. Workers that reach something only through a store are added to the answer with 0 blocks of
//    their own.
// 5. `loadable` and the worse trust of worker and store are written where a store helps.
void DomainState::AddLoadable(const OverlapQuery& query, const std::shared_ptr<const Table>& table,
                              std::span<const Overlap> overlaps,
                              std::span<const HybridOverlap> hybrids, Time now,
                              OverlapAnswer* answer) const {
  const std::shared_ptr<const SharedStores> stores = StoresIn(table);
  if (stores == nullptr) return;
  std::erase_if(answer->holders,
                [&](const HolderOverlap& overlap) { return stores->IsStore(Raw(overlap.number)); });
  if (query.blocks.empty() || !query.tiers.Has(Tier::kExternal)) return;
  // The main class's blocks, not the reusable ones: chunks are rounded afterwards, with the part of
  // the store included (`LoadableOf`).
  std::vector<uint32_t> own(table->size(), 0);
  const size_t plain = overlaps.size() - hybrids.size();
  for (size_t i = 0; i < overlaps.size(); ++i)
    if (Raw(overlaps[i].holder) < own.size())
      own[Raw(overlaps[i].holder)] = i < plain ? overlaps[i].blocks : hybrids[i - plain].held;
  std::vector<uint32_t> reached = own;
  std::vector<std::optional<Trust>> trusts(own.size());
  for (SharedStores::Store store : stores->stores) {
    const std::optional<Trust> trust = KeepHeard(*table, now, &store);
    if (!trust.has_value()) continue;
    ReachThrough(store, *index_, query, &reached);
    for (const uint32_t worker : store.workers) {
      reached[worker] = LoadableOf(*(*table)[worker].holder, query, own[worker], reached[worker]);
      if (reached[worker] > own[worker]) trusts[worker] = trust;
    }
  }
  std::vector<bool> is_told(own.size());
  for (const HolderOverlap& overlap : answer->holders) is_told[Raw(overlap.number)] = true;
  for (uint32_t number = 0; number < own.size(); ++number)
    if (trusts[number].has_value() && !is_told[number])
      AddAnswer(*table, {HolderIndex(number), 0}, now, answer);
  for (HolderOverlap& overlap : answer->holders) {
    const uint32_t number = Raw(overlap.number);
    if (!trusts[number].has_value() || reached[number] <= overlap.blocks) continue;
    overlap.loadable = reached[number];
    overlap.loadable_trust = std::max(overlap.trust, *trusts[number]);
  }
}

// Side classes and dropped last blocks need blocks that the store's names do not tell of: such
// workers keep to what they own.
uint32_t DomainState::LoadableOf(const Holder& worker, const OverlapQuery& query, uint32_t own,
                                 uint32_t reached) const {
  const std::shared_ptr<const CacheLayout> layout = worker.layout();
  if (layout == nullptr || reached == own) return reached;
  if (!layout->sides.empty() || !layout->has_main || layout->main.drops_last) return own;
  std::vector<uint64_t> only(Raw(worker.number()) / 64 + 1);
  only.back() = uint64_t{1} << (Raw(worker.number()) % 64);
  std::vector<Overlap> device;
  index_->FindOverlaps(
      {.blocks = query.blocks, .tiers = query.tiers & TierMask(Tier::kDevice), .only = only},
      &device);
  return LoadableBlocks(*layout, block_size_, device.empty() ? 0 : device.front().blocks, reached);
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

// The best holders without describing all of them.
// 1. Not for hybrids or stores, whose reach is not in the compact answer; not for replicas, of
//    which one alone does not speak for its cell.
// 2. The index answers in steps (`FindSteps`): one set of holders a depth.
// 3. From the deepest step on, its holders are taken in the order of load: the set is translated
//    into ranks, and the lowest ranks come first. Holders newer than the order come last.
// 4. The places left go to the least loaded holders that reach nothing (`seen` excludes the
//    others). `best_asked_` keeps the order being made; the first question after a pause gets
//    nothing and is answered by `FindOverlaps`.
std::optional<OverlapAnswer> DomainState::FindBest(const OverlapQuery& query, size_t best,
                                                   Time now) const {
  static thread_local OverlapSteps steps;
  static thread_local std::vector<uint64_t> by_rank, seen;
  static thread_local std::vector<uint32_t> newcomers;
  if (hybrids_.Any() || has_stores_.load()) return std::nullopt;
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

// Ordered by load, then by name, so that equal loads give the same order at every replica. Nothing
// is sorted while no `FindBest` is asked.
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
    if (reaches[i].any > 0 && entry.holder != nullptr && entry.holder->Live(now) &&
        !(has_stores_.load(std::memory_order_relaxed) && IsStore(*entry.info)))
      visit(*entry.info, reaches[i]);
  }
}

// Holders are asked after the mutex is given up: each waits for its writer.
DomainStats DomainState::Stats(Time now) const {
  DomainStats stats;
  stats.domain = domain_;
  stats.block_size = block_size_;
  stats.index = index_->Stats();
  stats.sides = sides_->GetStats();
  stats.blocks_stored = counters_.blocks_stored.load(std::memory_order_relaxed);
  stats.blocks_removed = counters_.blocks_removed.load(std::memory_order_relaxed);
  stats.bytes_received = counters_.bytes_received.load(std::memory_order_relaxed);
  stats.pending = pending_.Stats();
  ReceiverStats sum;
  std::map<HolderId, HolderPtr> holders;
  {
    MutexLock lock(&mutex_);
    sum = gone_;
    holders = holders_;
  }
  for (const auto& [id, holder] : holders) {
    stats.holders.push_back(holder->Stats(now));
    stats.holders.back().pending = pending_.StatsOf(holder->number());
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
