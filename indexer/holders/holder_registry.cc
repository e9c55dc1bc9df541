#include "indexer/holders/holder_registry.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/for_each_bit.h"
#include "indexer/base/mutex.h"
#include "indexer/holders/hello_checks.h"
#include "indexer/holders/holder.h"
#include "indexer/holders/holder_table.h"
#include "indexer/holders/hybrid_overlaps.h"
#include "indexer/service/log.h"

namespace kvatlas {
namespace {

LogLimiter& StreamLog() {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::seconds(10));
  return limiter;
}

void AddReceiverStats(const ReceiverStats& from, ReceiverStats* to) {
  to->batches_applied += from.batches_applied;
  to->gaps += from.gaps;
  to->snapshots_applied += from.snapshots_applied;
  to->digests_equal += from.digests_equal;
  to->digests_different += from.digests_different;
}

// The holders of a domain by load, as of some tick.
struct LoadOrder {
  bool replicas = false;          // some holder is one: then one alone does not speak for its cell
  std::vector<uint32_t> numbers;  // least loaded first
  std::vector<uint32_t> ranks;    // by number; those not in it are last
  uint32_t RankOf(uint32_t number) const {
    return number < ranks.size() ? ranks[number] : UINT32_MAX;
  }
};

// `FindBest` is for more holders than this many times those that are wanted.
constexpr size_t kHoldersPerBest = 4;

// One domain: its index, and the holders in it.
//
// Lock order: `mutex_` before a holder's own; neither while the index calls back.
class DomainState {
 public:
  DomainState(const HolderRegistryOptions& options, Domain domain, uint32_t block_size)
      : domain_(std::move(domain)),
        block_size_(block_size),
        receiver_options_(options.receiver),
        observer_(options.observe ? options.observe(domain_, block_size) : nullptr),
        table_(std::make_shared<Table>()) {
    IndexOptions index_options = options.index;
    index_options.holders_max = std::min(index_options.holders_max, options.holders_max);
    sides_ = std::make_unique<SideIndex>(index_options.bytes_max);
    absl::StatusOr<std::unique_ptr<Index>> index = MakeIndex(options.index_name, index_options);
    if (!index.ok()) {
      std::fprintf(stderr, "kvatlas: no such index: %s\n", index.status().ToString().c_str());
      std::abort();
    }
    index_ = *std::move(index);
    hybrids_.Start(index_.get(), sides_.get());
  }

  const Domain& domain() const { return domain_; }
  uint32_t block_size() const { return block_size_; }

  std::shared_ptr<const Table> table() const {
    MutexLock lock(&mutex_);
    return table_;
  }

  HolderPtr Find(const HolderId& id) const {
    MutexLock lock(&mutex_);
    const auto it = holders_.find(id);
    return it == holders_.end() ? nullptr : it->second;
  }

  // RESOURCE_EXHAUSTED: too many holders. UNAVAILABLE: the domain was dropped.
  absl::StatusOr<HolderPtr> FindOrAdd(const HolderId& id) {
    MutexLock lock(&mutex_);
    const auto it = holders_.find(id);
    if (it != holders_.end()) return it->second;
    return Add(id, [&](HolderIndex number) {
      return std::make_shared<Holder>(index_.get(), sides_.get(), number, observer_, &counters_,
                                      receiver_options_, id);
    });
  }

  // ALREADY_EXISTS, and as above.
  absl::StatusOr<HolderPtr> AddLocal(const HolderInfo& info, Time now) {
    MutexLock lock(&mutex_);
    if (holders_.contains(info.id)) {
      return absl::AlreadyExistsError("holder " + ToString(info.id) + " of domain " +
                                      ToString(domain_) + " exists");
    }
    return Add(info.id, [&](HolderIndex number) {
      return std::make_shared<Holder>(index_.get(), sides_.get(), number, observer_, &counters_,
                                      info, now);
    });
  }

  // One that is being restored. ALREADY_EXISTS, and as above. Its layout is known before the table has it: a query that
  // finds it shown (`FinishRestore`) after it had asked the index would promise what the main class holds.
  absl::StatusOr<HolderPtr> AddRestored(const HolderId& id, const CacheLayout& layout) {
    MutexLock lock(&mutex_);
    if (holders_.contains(id)) {
      return absl::AlreadyExistsError("holder " + ToString(id) + " of domain " + ToString(domain_) +
                                      " exists");
    }
    return Add(id, [&](HolderIndex number) {
      auto holder = std::make_shared<Holder>(index_.get(), sides_.get(), number, observer_,
                                             &counters_, receiver_options_, id);
      holder->BeginRestore(layout);
      return holder;
    });
  }

  // What it says of itself may have changed.
  void RefreshInfo(const HolderPtr& holder) {
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

  // Takes no more holders; false when it has some.
  bool Close() {
    MutexLock lock(&mutex_);
    closed_ = closed_ || holders_.empty();
    return closed_;
  }

  // Out of the tables; what it holds is left to `Sweep`. REQUIRES: `holder` is retired.
  void Forget(const HolderPtr& holder) {
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
    to_sweep_.push_back(holder);
  }

  void Tend(uint64_t steps) { index_->Tend(steps); }

  // At most `blocks_max` blocks; returns how many are left of it. Counts holders swept in `*swept`.
  uint64_t Sweep(uint64_t blocks_max, std::atomic<uint64_t>* swept) {
    for (;;) {
      HolderPtr holder;
      {
        MutexLock lock(&mutex_);
        if (to_sweep_.empty()) return blocks_max;
        holder = to_sweep_.back();
      }
      while (blocks_max > 0) {
        const uint64_t blocks = holder->Sweep(std::min<uint64_t>(blocks_max, kBatchBlocksMax));
        if (blocks == 0) break;
        blocks_max -= blocks;
      }
      if (blocks_max == 0) return 0;
      // A query that found this number before took the holder from a table that still had it, and sees it
      // retired: `Describe` is false. So the number may be another's from here.
      index_->RemoveHolder(holder->number());
      swept->fetch_add(1, std::memory_order_relaxed);
      MutexLock lock(&mutex_);
      to_sweep_.erase(std::find(to_sweep_.begin(), to_sweep_.end(), holder));
    }
  }

  OverlapAnswer FindOverlaps(const OverlapQuery& query, bool all_holders, bool by_tier,
                             bool held_only, Time now) const {
    const std::shared_ptr<const Table> table = this->table();
    std::vector<Overlap> overlaps;
    std::vector<HybridOverlap> hybrids;
    if (!query.blocks.empty()) hybrids_.Find(query, held_only, &overlaps, &hybrids);
    const bool reaches_differ =
        by_tier && !query.blocks.empty() &&
        (counters_.tiers_seen.load() & ~TierMask(Tier::kDevice).bits()) != 0;
    static thread_local std::vector<TierReach> reaches;
    reaches.clear();
    if (reaches_differ) FindReaches(query.blocks, table->size(), held_only, &reaches);
    return AnswerOf(table, block_size_, overlaps, hybrids, all_holders, reaches, now);
  }

  // Of the holders in the table that have more than the main class.
  std::vector<HybridOverlaps::OfHolder> Layouts() const {
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

  void FindReaches(std::span<const SequenceHash> blocks, size_t holders, bool held_only,
                   std::vector<TierReach>* reaches) const {
    reaches->assign(holders, {});
    FindTierReaches(
        [&](TierMask tiers, std::vector<Overlap>* overlaps) {
          std::vector<HybridOverlap> hybrids;
          hybrids_.Find({.blocks = blocks, .tiers = tiers}, held_only, overlaps, &hybrids);
        },
        TierMask(counters_.tiers_seen.load()), reaches);
  }

  bool MayHold(SequenceHash block) const { return index_->MayHold(block); }

  // Whole steps of the compact answer from the deepest on, the least loaded of the step that is too large, then the
  // least loaded of all others.
  std::optional<OverlapAnswer> FindBest(const OverlapQuery& query, size_t best, Time now) const {
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
      if (answer.holders.size() < best)
        AddAnswer(*table, {HolderIndex(number), depth}, now, &answer);
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

  // For `FindBest`, while somebody asks it.
  void SortByLoad(Time now) {
    if (!best_asked_.exchange(false, std::memory_order_relaxed)) {
      MutexLock lock(&mutex_);
      order_ = nullptr;  // whoever asks next is not told of loads of long ago
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
      sorted.emplace_back(AheadPerWorker(described.load), entry.holder->id().name, number);
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

  void VisitReaches(std::span<const SequenceHash> blocks, Time now, bool held_only,
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

  DomainStats Stats(Time now) const {
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

  std::vector<HolderId> Holders() const {
    std::vector<HolderId> ids;
    MutexLock lock(&mutex_);
    for (const auto& [id, holder] : holders_) ids.push_back(id);
    return ids;
  }

 private:
  absl::StatusOr<HolderPtr> Add(const HolderId& id,
                                const std::function<HolderPtr(HolderIndex)>& make)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (closed_) return absl::UnavailableError("domain " + ToString(domain_) + " is going");
    const absl::StatusOr<HolderIndex> number = index_->AddHolder();
    if (!number.ok()) {
      return absl::ResourceExhaustedError("domain " + ToString(domain_) + " takes no more holders");
    }
    HolderPtr holder = make(*number);
    holders_[id] = holder;
    auto table = std::make_shared<Table>(*table_);
    if (table->size() <= Raw(*number)) table->resize(Raw(*number) + 1);
    (*table)[Raw(*number)] = {holder, holder->info()};
    table_ = std::move(table);
    // One that is restored has its classes already, which a question may have looked for before it was in the table.
    if (holder->layout() != nullptr) counters_.layouts_version.fetch_add(1);
    return holder;
  }

  const Domain domain_;
  const uint32_t block_size_;
  const ReceiverOptions receiver_options_;
  DomainObserver* const observer_;
  std::unique_ptr<Index> index_;      // set once
  std::unique_ptr<SideIndex> sides_;  // likewise
  DomainCounters counters_;
  HybridOverlaps hybrids_{block_size_, &counters_.layouts_version, [this] { return Layouts(); }};

  mutable Mutex mutex_;
  std::map<HolderId, HolderPtr> holders_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Table> table_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const LoadOrder> order_ ABSL_GUARDED_BY(mutex_);  // null: not lately asked for
  mutable std::atomic<bool> best_asked_{false};                     // since the last tick
  std::vector<HolderPtr> to_sweep_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  ReceiverStats gone_ ABSL_GUARDED_BY(mutex_);  // sums over holders that were forgotten
};

using DomainPtr = std::shared_ptr<DomainState>;

// Keeps its domain, and with it the index, as long as somebody feeds it.
class LocalHolderImpl : public LocalHolder {
 public:
  LocalHolderImpl(DomainPtr domain, HolderPtr holder, const Clock* clock)
      : domain_(std::move(domain)), holder_(std::move(holder)), clock_(clock) {}

  ~LocalHolderImpl() override {
    holder_->Retire();
    domain_->Forget(holder_);
  }

  absl::Status Apply(const Event& event) override { return holder_->ApplyLocal(event); }
  uint64_t LastChanged() const override { return holder_->LastChanged(); }
  void ForEachHeld(
      const std::function<void(SequenceHash, SequenceHash, LocalHash)>& visit) const override {
    holder_->ForEachLocal(visit);
  }
  void SetLayout(const CacheLayout& layout) override { holder_->SetLocalLayout(layout); }
  void SetTrust(Trust trust) override { holder_->SetLocalTrust(trust, clock_->Now()); }
  void SetLoad(const Load& load) override { holder_->SetLocalLoad(load); }
  void SetMasked(bool masked) override { holder_->SetLocalMasked(masked); }
  void Heard() override { holder_->Heard(clock_->Now()); }

 private:
  const DomainPtr domain_;
  const HolderPtr holder_;
  const Clock* const clock_;
};

class RestoredHolderImpl : public RestoredHolder {
 public:
  RestoredHolderImpl(DomainPtr domain, HolderPtr holder, HolderImage image,
                     const HolderRegistryOptions& options)
      : domain_(std::move(domain)),
        holder_(std::move(holder)),
        image_(std::move(image)),
        options_(options) {}

  ~RestoredHolderImpl() override {
    if (finished_) return;
    holder_->Retire();
    domain_->Forget(holder_);
  }

  absl::Status Apply(const Stored& run) override { return holder_->RestoreRun(run); }

  bool Finish() override {
    finished_ = true;
    // One that would have been masked or forgotten by now is not shown again for being restored.
    const Duration lease_ttl = options_.receiver.lease_ttl;
    const bool lease_goes_on =
        !image_.lease_over && image_.silent < lease_ttl + options_.sweep_after;
    const bool same =
        holder_->FinishRestore(std::move(image_), lease_goes_on, options_.clock->Now());
    domain_->RefreshInfo(holder_);
    return same;
  }

 private:
  const DomainPtr domain_;
  const HolderPtr holder_;
  HolderImage image_;
  const HolderRegistryOptions& options_;
  bool finished_ = false;
};

}  // namespace

struct HolderRegistry::State {
  explicit State(HolderRegistryOptions given) : options(std::move(given)) {}

  // Null: unknown.
  DomainPtr Find(const Domain& domain) const {
    MutexLock lock(&mutex);
    const auto it = domains.find(domain);
    return it == domains.end() ? nullptr : it->second;
  }

  // The domain, made when it is new or when nobody is left in it that holds it to another block size.
  absl::StatusOr<DomainPtr> FindOrAdd(const Domain& name, uint32_t block_size) {
    MutexLock lock(&mutex);
    DomainPtr& domain = domains[name];
    if (domain == nullptr && domains.size() > options.domains_max) {
      domains.erase(name);
      return absl::ResourceExhaustedError("no more than " + std::to_string(options.domains_max) +
                                          " domains are taken");
    }
    if (domain != nullptr && domain->block_size() != block_size && domain->Close())
      domain = nullptr;
    if (domain == nullptr) {
      domain = std::make_shared<DomainState>(options, name, block_size);
      Log(LogLevel::kInfo, "domain announced",
          {{"domain", ToString(name)}, {"block_size", block_size}});
    }
    if (domain->block_size() != block_size) {
      return absl::FailedPreconditionError("block size " + std::to_string(block_size) +
                                           " contradicts domain " + ToString(name) +
                                           ", which has " + std::to_string(domain->block_size()));
    }
    return domain;
  }

  bool Drop(const Domain& name) {
    MutexLock lock(&mutex);
    const auto it = domains.find(name);
    if (it == domains.end() || !it->second->Close()) return false;
    domains.erase(it);
    return true;
  }

  std::vector<DomainPtr> All() const {
    std::vector<DomainPtr> all;
    MutexLock lock(&mutex);
    for (const auto& [name, domain] : domains) all.push_back(domain);
    return all;
  }

  const HolderRegistryOptions options;
  std::atomic<SessionId> next_session{1};
  std::atomic<bool> accepting{true};
  std::atomic<uint64_t> streams_open{0};
  std::atomic<uint64_t> streams_refused{0};
  std::atomic<uint64_t> holders_expired{0};
  std::atomic<uint64_t> holders_swept{0};

  Mutex tick_mutex;  // taken before `mutex`: a holder is swept, and its number given back, once
  mutable Mutex mutex;
  absl::flat_hash_map<Domain, DomainPtr> domains ABSL_GUARDED_BY(mutex);
  RefusedHolders refused;
};

// ---- Sessions ----

// One connection. It is bound to a holder by its hello.
class HolderRegistry::Session : public ReceiverSession {
 public:
  Session(State* state, ReplyFn reply)
      : state_(state), id_(state->next_session.fetch_add(1)), reply_(std::move(reply)) {
    state_->streams_open.fetch_add(1);
  }

  ~Session() override {
    if (holder_ != nullptr) holder_->OnDisconnected(id_, state_->options.clock->Now());
    state_->streams_open.fetch_sub(1);
  }

  void OnTransportLost(bool lost) override {
    if (holder_ != nullptr) holder_->OnTransportLost(id_, lost, state_->options.clock->Now());
  }

  absl::Status OnMessage(SenderMessage message) override {
    if (const Hello* hello = std::get_if<Hello>(&message)) return OnHello(*hello);
    if (holder_ == nullptr) return absl::InvalidArgumentError("the first message is not a hello");
    const Time now = state_->options.clock->Now();
    const absl::Status status = holder_->OnMessage(message, id_, now);
    if (status.ok() && std::holds_alternative<Goodbye>(message)) {
      Log(LogLevel::kInfo, "holder left",
          {{"holder", ToString(holder_->id())}, {"domain", ToString(domain_->domain())}});
      holder_->Retire();
      domain_->Forget(holder_);
    }
    if (absl::IsInvalidArgument(status)) LogRefusal(ToString(holder_->id()), status);
    return status;
  }

 private:
  // 1. The hello fits this process and its domain, or is refused by us.
  // 2. The holder's receiver welcomes it, or refuses it (an older epoch).
  // 3. A holder that is just being forgotten is replaced by a new one.
  absl::Status OnHello(const Hello& hello) {
    absl::Status why = CheckHello(hello, state_->options);
    if (!state_->accepting.load()) why = absl::UnavailableError("stopping");
    if (why.ok() && holder_ != nullptr &&
        (!(holder_->id() == hello.holder) || !(domain_->domain() == hello.domain))) {
      why = absl::InvalidArgumentError("a connection carries one stream");
    }
    if (!why.ok()) return RefuseHello(hello, why);
    for (;;) {
      const absl::StatusOr<DomainPtr> domain = state_->FindOrAdd(hello.domain, hello.block_size);
      if (!domain.ok()) return RefuseHello(hello, domain.status());
      const absl::StatusOr<HolderPtr> holder = (*domain)->FindOrAdd(hello.holder);
      if (absl::IsUnavailable(holder.status())) continue;
      if (!holder.ok()) return RefuseHello(hello, holder.status());
      const Holder::Taken taken =
          (*holder)->OnHello(hello, id_, reply_, state_->options.clock->Now(), &why);
      if (taken == Holder::Taken::kRetired) {
        (*domain)->Forget(*holder);
        continue;
      }
      if (taken == Holder::Taken::kRefused) {
        if ((*holder)->RetireIfNew()) (*domain)->Forget(*holder);
        state_->streams_refused.fetch_add(1);
        LogRefusal(ToString(hello.holder), why);
        return why;
      }
      domain_ = *domain;
      holder_ = *holder;
      domain_->RefreshInfo(holder_);
      state_->refused.Welcomed(hello.domain, hello.holder);
      Log(LogLevel::kInfo, "stream welcomed",
          {{"holder", ToString(hello.holder)},
           {"domain", ToString(hello.domain)},
           {"epoch", hello.epoch}});
      return absl::OkStatus();
    }
  }

  absl::Status RefuseHello(const Hello& hello, const absl::Status& why) {
    state_->streams_refused.fetch_add(1);
    state_->refused.Refused(hello.domain, hello.holder, std::string(why.message()));
    LogRefusal(ToString(hello.holder), why);
    reply_(Refuse{.code = why.code(), .reason = std::string(why.message())});
    return why;
  }

  static void LogRefusal(const std::string& holder, const absl::Status& why) {
    LogEvery(StreamLog(), holder, LogLevel::kWarning, "stream refused",
             {{"holder", holder}, {"reason", why}});
  }

  State* const state_;
  const SessionId id_;
  const ReplyFn reply_;
  DomainPtr domain_;  // of the holder: kept as long as this connection
  HolderPtr holder_;
};

// ---- The registry ----

HolderRegistry::HolderRegistry(HolderRegistryOptions options)
    : state_(std::make_unique<State>(std::move(options))) {}

HolderRegistry::~HolderRegistry() = default;

std::unique_ptr<ReceiverSession> HolderRegistry::Accept(ReplyFn reply) {
  return std::make_unique<Session>(state_.get(), std::move(reply));
}

void HolderRegistry::Tick() {
  MutexLock lock(&state_->tick_mutex);
  const Time now = state_->options.clock->Now();
  uint64_t to_sweep = state_->options.sweep_blocks_per_tick;
  for (const DomainPtr& domain : state_->All()) {
    const std::shared_ptr<const Table> table = domain->table();
    for (const auto& [holder, info] : *table) {
      if (holder == nullptr) continue;
      switch (holder->Tick(state_->options.sweep_after, now)) {
        case Holder::Lease::kLive:
        case Holder::Lease::kMasked:
          break;
        case Holder::Lease::kJustMasked:
          state_->holders_expired.fetch_add(1);
          Log(LogLevel::kWarning, "lease ran out",
              {{"holder", ToString(holder->id())}, {"domain", ToString(domain->domain())}});
          break;
        case Holder::Lease::kOver:
          Log(LogLevel::kInfo, "holder forgotten",
              {{"holder", ToString(holder->id())}, {"domain", ToString(domain->domain())}});
          domain->Forget(holder);
          break;
      }
    }
    to_sweep = domain->Sweep(to_sweep, &state_->holders_swept);
    domain->Tend(state_->options.tend_steps_per_tick);
    domain->SortByLoad(now);
  }
}

void HolderRegistry::StopAccepting() { state_->accepting.store(false); }

absl::StatusOr<OverlapAnswer> HolderRegistry::FindOverlaps(const Domain& domain,
                                                           const OverlapQuery& query,
                                                           bool all_holders, bool by_tier,
                                                           bool held_only) const {
  const DomainPtr state = state_->Find(domain);
  if (state == nullptr) return absl::NotFoundError("no such domain: " + ToString(domain));
  return state->FindOverlaps(query, all_holders, by_tier, held_only || state_->options.answer_held,
                             state_->options.clock->Now());
}

bool HolderRegistry::MayHold(const Domain& domain, SequenceHash block) const {
  const DomainPtr state = state_->Find(domain);
  return state != nullptr && state->MayHold(block);
}

std::optional<OverlapAnswer> HolderRegistry::FindBest(const Domain& domain,
                                                      const OverlapQuery& query,
                                                      size_t best) const {
  const DomainPtr state = state_->Find(domain);
  if (state == nullptr) return std::nullopt;
  return state->FindBest(query, best, state_->options.clock->Now());
}

absl::Status HolderRegistry::VisitReaches(
    const Domain& domain, std::span<const SequenceHash> blocks,
    const std::function<void(const HolderInfo& holder, const TierReach& reach)>& visit,
    bool held_only) const {
  const DomainPtr state = state_->Find(domain);
  if (state == nullptr) return absl::NotFoundError("no such domain: " + ToString(domain));
  if (!blocks.empty())
    state->VisitReaches(blocks, state_->options.clock->Now(),
                        held_only || state_->options.answer_held, visit);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LocalHolder>> HolderRegistry::AddLocal(const Domain& domain,
                                                                      uint32_t block_size,
                                                                      HolderInfo info) {
  if (absl::Status bad = CheckNames(domain, info.id, block_size); !bad.ok()) return bad;
  for (;;) {
    const absl::StatusOr<DomainPtr> state = state_->FindOrAdd(domain, block_size);
    if (!state.ok()) return state.status();
    absl::StatusOr<HolderPtr> holder = (*state)->AddLocal(info, state_->options.clock->Now());
    if (absl::IsUnavailable(holder.status())) continue;
    if (!holder.ok()) return holder.status();
    return std::make_unique<LocalHolderImpl>(*state, *std::move(holder), state_->options.clock);
  }
}

bool HolderRegistry::DropDomain(const Domain& domain) { return state_->Drop(domain); }

absl::StatusOr<uint32_t> HolderRegistry::BlockSizeOf(const Domain& domain) const {
  const DomainPtr state = state_->Find(domain);
  if (state == nullptr) return absl::NotFoundError("no such domain: " + ToString(domain));
  return state->block_size();
}

std::vector<Domain> HolderRegistry::Domains() const {
  std::vector<Domain> domains;
  for (const DomainPtr& domain : state_->All()) domains.push_back(domain->domain());
  std::sort(domains.begin(), domains.end());
  return domains;
}

std::vector<HolderId> HolderRegistry::HoldersOf(const Domain& domain) const {
  const DomainPtr state = state_->Find(domain);
  return state == nullptr ? std::vector<HolderId>() : state->Holders();
}

RegistryStats HolderRegistry::Stats() const {
  return {.streams_open = state_->streams_open.load(),
          .streams_refused = state_->streams_refused.load(),
          .holders_expired = state_->holders_expired.load(),
          .holders_swept = state_->holders_swept.load()};
}

std::vector<RefusedHolder> HolderRegistry::Refused() const { return state_->refused.All(); }

absl::StatusOr<DomainStats> HolderRegistry::StatsOf(const Domain& domain) const {
  const DomainPtr state = state_->Find(domain);
  if (state == nullptr) return absl::NotFoundError("no such domain: " + ToString(domain));
  return state->Stats(state_->options.clock->Now());
}

absl::StatusOr<HolderDump> HolderRegistry::Dump(const Domain& domain, const HolderId& id) const {
  const DomainPtr state = state_->Find(domain);
  if (state == nullptr) return absl::NotFoundError("no such domain: " + ToString(domain));
  const HolderPtr holder = state->Find(id);
  if (holder == nullptr) return absl::NotFoundError("no such holder: " + ToString(id));
  return holder->Dump(state_->options.clock->Now());
}

// ---- Checkpoints ----

absl::StatusOr<HolderCut> HolderRegistry::Cut(const Domain& domain, const HolderId& id) const {
  const DomainPtr state = state_->Find(domain);
  if (state == nullptr) return absl::NotFoundError("no such domain: " + ToString(domain));
  const HolderPtr holder = state->Find(id);
  if (holder == nullptr) return absl::NotFoundError("no such holder: " + ToString(id));
  absl::StatusOr<HolderCut> cut = holder->Cut(state_->options.clock->Now());
  if (cut.ok()) cut->block_size = state->block_size();
  return cut;
}

std::optional<ReceiverPosition> HolderRegistry::PositionOf(const Domain& domain,
                                                           const HolderId& id) const {
  const DomainPtr state = state_->Find(domain);
  const HolderPtr holder = state == nullptr ? nullptr : state->Find(id);
  return holder == nullptr ? std::nullopt : holder->StreamPosition();
}

absl::StatusOr<std::unique_ptr<RestoredHolder>> HolderRegistry::Restore(const Domain& domain,
                                                                        uint32_t block_size,
                                                                        HolderImage image) {
  if (absl::Status bad = CheckNames(domain, image.info.id, block_size); !bad.ok()) return bad;
  for (;;) {
    const absl::StatusOr<DomainPtr> state = state_->FindOrAdd(domain, block_size);
    if (!state.ok()) return state.status();
    absl::StatusOr<HolderPtr> holder = (*state)->AddRestored(image.info.id, image.layout);
    if (absl::IsUnavailable(holder.status())) continue;
    if (!holder.ok()) return holder.status();
    return std::make_unique<RestoredHolderImpl>(*state, *std::move(holder), std::move(image),
                                                state_->options);
  }
}

}  // namespace kvatlas
