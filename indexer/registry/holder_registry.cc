// The registry: its domains (`State`), one `Session` per connection, and the public calls, which
// find their domain and leave the rest to `DomainState`.
//
// Lock order: `tick_mutex` or `making_mutex`, then `mutex`, then a domain's, then a holder's.
// `mutex` guards the map alone and is held for a look-up; every query takes it once.

#include "indexer/registry/holder_registry.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/mutex.h"
#include "indexer/registry/domain_state.h"
#include "indexer/registry/hello_checks.h"
#include "indexer/registry/holder.h"
#include "indexer/registry/holder_table.h"
#include "indexer/stream/validate.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// One line per holder and 10 s: a refused sender tries again every few seconds. Never destroyed, so
// that sessions may log while the process ends.
LogLimiter& StreamLog() {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::seconds(10));
  return limiter;
}

// Owns the holder until `Finish`: destroyed before, it takes the holder out again, and what was
// restored so far is swept like that of any forgotten holder.
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
    // A holder that would have been masked or forgotten by now stays masked: a restart does not
    // bring stale blocks back into answers.
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

// Epochs are checked here and by the receiver (`CheckEpoch`): both have to read one wall clock.
HolderRegistryOptions WithOneClock(HolderRegistryOptions options) {
  options.receiver.clock = options.clock;
  return options;
}

}  // namespace

// The state shared by all sessions and calls. A domain is found without any lock but `mutex`; it is
// made under `making_mutex`, so that two hellos of a new domain make one index. A `DomainPtr` keeps
// a dropped domain alive for those that still use it: they find it closed (UNAVAILABLE) and look
// again.
struct HolderRegistry::State {
  explicit State(HolderRegistryOptions given)
      : options(WithOneClock(std::move(given))), quotas(options.peer) {}

  // Null: unknown.
  DomainPtr Find(const Domain& domain) const {
    MutexLock lock(&mutex);
    const auto it = domains.find(domain);
    return it == domains.end() ? nullptr : it->second;
  }

  // The domain, made when it is new, or when it has another block size and no holders left. A new
  // one is charged to `peer`, which asks for it.
  // 1. Found with that block size: the usual case, without `making_mutex`.
  // 2. Looked up again under `making_mutex`: another thread may have made it.
  // 3. Another block size: the domain is dropped if it is empty, else refused
  //    (FAILED_PRECONDITION).
  // 4. Memory and `domains_max` are checked (`MakeRoom`), the peer is charged, the index is made,
  //    and the domain is published in the map.
  absl::StatusOr<DomainPtr> FindOrAdd(const Domain& name, uint32_t block_size,
                                      const StreamPeer& peer) {
    DomainPtr domain = Find(name);
    if (domain != nullptr && domain->block_size() == block_size) return domain;
    // Making a domain takes milliseconds, and every query takes `mutex`: hence a lock of its own.
    MutexLock making(&making_mutex);
    domain = Find(name);
    if (domain != nullptr && domain->block_size() == block_size) return domain;
    if (domain != nullptr && !Drop(name)) {
      return absl::FailedPreconditionError("block size " + std::to_string(block_size) +
                                           " contradicts domain " + ToString(name) +
                                           ", which has " + std::to_string(domain->block_size()));
    }
    domain = nullptr;
    if (absl::Status full = MakeRoom(); !full.ok()) return full;
    auto charge = quotas.TakeDomain(peer, name.tenant);
    if (!charge.ok()) return charge.status();
    absl::StatusOr<DomainPtr> made = DomainState::Make(options, name, block_size, *charge);
    if (!made.ok()) return made.status();
    {
      MutexLock lock(&mutex);
      domains[name] = *made;
    }
    Log(LogLevel::kInfo, "domain announced",
        {{"domain", ToString(name)}, {"block_size", block_size}});
    return made;
  }

  // Makes room for one more domain: at `domains_max` the one that has been empty for longest is
  // forgotten. RESOURCE_EXHAUSTED: each has holders, or memory is full. O(domains), at a new domain
  // alone.
  absl::Status MakeRoom() {
    absl::Status full = CheckMemory(options.index.memory, MemoryLevel::kFull, "new domains");
    if (!full.ok()) return full;
    std::optional<std::pair<Time, Domain>> longest;
    const std::vector<DomainPtr> all = All();
    if (all.size() < options.domains_max) return absl::OkStatus();
    for (const DomainPtr& domain : all) {
      const std::optional<Time> empty = domain->EmptySince(options.clock->Now());
      if (empty.has_value() && (!longest.has_value() || *empty < longest->first))
        longest = {*empty, domain->domain()};
    }
    if (longest.has_value() && Forget(longest->second)) return absl::OkStatus();
    return absl::ResourceExhaustedError("no more than " + std::to_string(options.domains_max) +
                                        " domains are taken, and each of them has holders");
  }

  bool Forget(const Domain& name) {
    if (!Drop(name)) return false;
    domains_forgotten.fetch_add(1);
    Log(LogLevel::kInfo, "domain without holders forgotten", {{"domain", ToString(name)}});
    return true;
  }

  // Closes the domain, so that no holder joins it any more, and takes it out of the map; false if
  // it has holders. `dropped` is declared before the lock and so destroyed after it: freeing an
  // index takes long.
  bool Drop(const Domain& name) {
    DomainPtr dropped;
    MutexLock lock(&mutex);
    const auto it = domains.find(name);
    if (it == domains.end() || !it->second->Close()) return false;
    dropped = std::move(it->second);
    domains.erase(it);
    return true;
  }

  // A copy, so that callers work on domains without `mutex`. In no particular order.
  std::vector<DomainPtr> All() const {
    std::vector<DomainPtr> all;
    MutexLock lock(&mutex);
    for (const auto& [name, domain] : domains) all.push_back(domain);
    return all;
  }

  const HolderRegistryOptions options;
  PeerQuotas quotas;
  std::atomic<SessionId> next_session{1};
  std::atomic<bool> accepting{true};
  std::atomic<uint64_t> streams_open{0};
  std::atomic<uint64_t> streams_refused{0};
  std::atomic<uint64_t> holders_expired{0};
  std::atomic<uint64_t> holders_swept{0};
  std::atomic<uint64_t> domains_forgotten{0};

  Mutex tick_mutex;    // taken before `mutex`: a holder is swept, and its number given back, once
  Mutex making_mutex;  // taken before `mutex`: one domain is made at a time
  mutable Mutex mutex;
  absl::flat_hash_map<Domain, DomainPtr> domains ABSL_GUARDED_BY(mutex);
  RefusedHolders refused;
};

// ---- Sessions ----

// One connection. It is bound to a holder by its first hello, and to that one for good: a later
// hello must be of the same stream. `OnMessage` is called one at a time (`ReceiverSession`), so the
// fields need no lock. The destructor tells the holder, which ignores it if another connection has
// taken the stream since.
class HolderRegistry::Session : public ReceiverSession {
 public:
  Session(State* state, ReplyFn reply)
      : state_(state), id_(state->next_session.fetch_add(1)), reply_(std::move(reply)) {
    state_->streams_open.fetch_add(1);
  }

  ~Session() override {
    if (holder_ != nullptr) {
      holder_->OnDisconnected(id_, state_->options.clock->Now());
      LogEvery(StreamLog(), "ended " + ToString(holder_->id()), LogLevel::kInfo, "stream ended",
               {{"holder", ToString(holder_->id())},
                {"domain", ToString(domain_->domain())},
                {"peer", peer_.address}});
    }
    state_->streams_open.fetch_sub(1);
  }

  void OnPeer(const std::string& address) override { peer_.address = address; }

  void OnAllowance(std::shared_ptr<PeerAllowance> allowance) override {
    peer_.allowance = std::move(allowance);
  }

  void OnTransportLost(bool lost) override {
    if (holder_ != nullptr) holder_->OnTransportLost(id_, lost, state_->options.clock->Now());
  }

  absl::Status OnMessage(SenderMessage message) override {
    // Every hello is reported, welcomed or not: the audit log has refusals, too.
    if (const Hello* hello = std::get_if<Hello>(&message)) {
      Epoch replaced = 0;
      const absl::Status answer = OnHello(*hello, &replaced);
      if (peer_.allowance != nullptr) peer_.allowance->OnHelloAnswered(*hello, answer, replaced);
      return answer;
    }
    if (holder_ == nullptr) return absl::InvalidArgumentError("the first message is not a hello");
    const Time now = state_->options.clock->Now();
    const absl::Status status = holder_->OnMessage(message, id_, now);
    // A goodbye ends the holder at once, without a lease. The connection may stay: its next hello
    // makes a new holder.
    if (status.ok() && std::holds_alternative<Goodbye>(message)) {
      Log(LogLevel::kInfo, "holder left",
          {{"holder", ToString(holder_->id())}, {"domain", ToString(domain_->domain())}});
      holder_->Retire();
      domain_->Forget(holder_);
    }
    if (absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status))
      LogRefusal(ToString(holder_->id()), status);
    return status;
  }

 private:
  // 1. Contract, schedule, names and epoch are checked (`CheckHello`), and that the connection
  //    stays with its stream.
  // 2. The peer is charged for the holder (`TakeHolder`); its charge replaces the one from before.
  // 3. Domain and holder are found or made. UNAVAILABLE from a domain means that it was dropped in
  //    between: the loop looks again.
  // 4. The holder's receiver welcomes the hello, or refuses it (an older epoch, a local holder). A
  //    holder that was retired in between is forgotten, and the loop makes a new one.
  // 5. Charge and limits are stored, and the table gets the new info (`RefreshInfo`).
  // Each turn of the loop follows a drop or a retirement by another thread, so it ends.
  absl::Status OnHello(const Hello& hello, Epoch* replaced) {
    absl::Status why = CheckHello(hello, state_->options);
    if (!state_->accepting.load()) why = absl::UnavailableError("stopping");
    if (why.ok() && holder_ != nullptr &&
        (!(holder_->id() == hello.holder) || !(domain_->domain() == hello.domain))) {
      why = absl::InvalidArgumentError("a connection carries one stream");
    }
    if (!why.ok()) return RefuseHello(hello, why);
    for (;;) {
      auto charge = TakeHolder(hello);
      if (!charge.ok()) return RefuseHello(hello, charge.status());
      const absl::StatusOr<DomainPtr> domain =
          state_->FindOrAdd(hello.domain, hello.block_size, peer_);
      if (!domain.ok()) return RefuseHello(hello, domain.status());
      const absl::StatusOr<HolderPtr> holder = (*domain)->FindOrAdd(hello.holder);
      if (absl::IsUnavailable(holder.status())) continue;
      if (!holder.ok()) return RefuseHello(hello, holder.status());
      const Holder::Taken taken =
          (*holder)->OnHello(hello, id_, reply_, state_->options.clock->Now(), &why, replaced);
      if (taken == Holder::Taken::kRetired) {
        (*domain)->Forget(*holder);
        continue;
      }
      if (taken == Holder::Taken::kRefused) {
        // A holder made for this hello alone is not kept, or refused hellos would fill the domain.
        if ((*holder)->RetireIfNew()) (*domain)->Forget(*holder);
        state_->streams_refused.fetch_add(1);
        // A starting sender comes back with a higher epoch at once, so its refusal is no fault. A
        // sender that ran before was replaced by another of its name: that is noted for metrics.
        if (!hello.starting) NoteRefused(hello, why);
        LogRefusal(ToString(hello.holder), why);
        return why;
      }
      domain_ = *domain;
      holder_ = *holder;
      holder_->SetCharge(*std::move(charge));
      if (peer_.allowance != nullptr)
        holder_->SetBlocks(peer_.allowance->BlocksOf(hello.domain.tenant));
      domain_->RefreshInfo(holder_);
      state_->refused.Welcomed(hello.domain, hello.holder);
      Log(LogLevel::kInfo, "stream welcomed",
          {{"holder", ToString(hello.holder)},
           {"domain", ToString(hello.domain)},
           {"sender", hello.starting ? "new" : "returning"},
           {"peer", peer_.address},
           {"epoch", hello.epoch},
           {"instance", hello.instance_id}});
      return absl::OkStatus();
    }
  }

  // Charges this connection's address for the holder. Its charge from an earlier hello does not
  // count against the limit, since this one replaces it. A charge of a hello that is refused later
  // is given back as it goes out of scope.
  absl::StatusOr<std::shared_ptr<const PeerQuotas::Charge>> TakeHolder(const Hello& hello) {
    uint64_t bytes = hello.holder.name.size() + hello.holder.replica.size() + hello.address.size();
    for (const auto& label : hello.labels)
      bytes += sizeof(label) + label.first.size() + label.second.size();
    const DomainPtr domain = state_->Find(hello.domain);
    const HolderPtr holder = domain == nullptr ? nullptr : domain->Find(hello.holder);
    return state_->quotas.TakeHolder(peer_, hello.domain.tenant, bytes,
                                     holder == nullptr ? nullptr : holder->charge());
  }

  // A refusal by the registry itself: counted, noted, logged, sent. The status makes the transport
  // close the connection after the reply.
  absl::Status RefuseHello(const Hello& hello, const absl::Status& why) {
    state_->streams_refused.fetch_add(1);
    NoteRefused(hello, why);
    LogRefusal(ToString(hello.holder), why);
    reply_(Refuse{.code = why.code(), .reason = std::string(why.message())});
    return why;
  }

  void NoteRefused(const Hello& hello, const absl::Status& why) {
    state_->refused.Refused(hello.domain, hello.holder, std::string(why.message()),
                            state_->options.clock->Now());
  }

  static void LogRefusal(const std::string& holder, const absl::Status& why) {
    LogEvery(StreamLog(), holder, LogLevel::kWarning, "stream refused",
             {{"holder", holder}, {"reason", why}});
  }

  State* const state_;
  const SessionId id_;
  const ReplyFn reply_;
  StreamPeer peer_;
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

// 1. Leases: each holder's `Tick` masks it or ends it; one that is over leaves the table here.
// 2. Holders that left are emptied, at most `sweep_blocks_per_tick` blocks over all domains, so
//    that one large holder does not delay the leases of others.
// 3. Upkeep of the index, pending prompts that timed out, the order by load for `FindBest`.
// 4. A domain that has been empty for `forget_domain_after` is forgotten.
// `tick_mutex` keeps two ticks apart: a holder is swept, and its number given back, once.
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
    domain->Maintain(state_->options.maintain_steps_per_tick);
    domain->pending().Tick(now);
    domain->SortByLoad(now);
    const std::optional<Time> empty = domain->EmptySince(now);
    if (empty.has_value() && now - *empty >= state_->options.forget_domain_after)
      state_->Forget(domain->domain());
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

absl::Status HolderRegistry::Tell(const Domain& domain, uint64_t frontend, const Routed& routed) {
  const DomainPtr state = state_->Find(domain);
  if (state == nullptr) return absl::NotFoundError("no such domain: " + ToString(domain));
  return state->Tell(frontend, routed, state_->options.clock->Now());
}

void HolderRegistry::End(const Domain& domain, uint64_t frontend, const RouteOver& over) {
  const DomainPtr state = state_->Find(domain);
  if (state != nullptr) state->pending().End(frontend, over, state_->options.clock->Now());
}

void HolderRegistry::Leave(uint64_t frontend) {
  for (const DomainPtr& domain : state_->All()) domain->pending().Leave(frontend);
}

void HolderRegistry::AddPending(const Domain& domain, std::span<const SequenceHash> blocks,
                                uint64_t frontend, uint64_t session, OverlapAnswer* answer) const {
  const DomainPtr state = state_->Find(domain);
  if (state != nullptr) state->AddPending(blocks, frontend, session, answer);
}

std::vector<SessionAnswer> HolderRegistry::Sessions(uint64_t session, size_t max) const {
  std::vector<SessionAnswer> answers;
  const Time now = state_->options.clock->Now();
  for (const DomainPtr& domain : state_->All())
    for (SessionAnswer& answer : domain->Sessions(session, max, now))
      answers.push_back(std::move(answer));
  return answers;
}

uint64_t HolderRegistry::PendingBytes() const {
  uint64_t bytes = 0;
  for (const DomainPtr& domain : state_->All()) bytes += domain->pending().bytes();
  return bytes;
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

// No peer is charged: what this process reads itself is under its own flags. The loop is that of
// `OnHello`: a domain that was dropped in between is made again.
absl::StatusOr<std::unique_ptr<HolderHandle>> HolderRegistry::AddLocal(const Domain& domain,
                                                                       uint32_t block_size,
                                                                       HolderInfo info) {
  if (absl::Status bad = CheckNames(domain, info.id, block_size); !bad.ok()) return bad;
  for (;;) {
    const absl::StatusOr<DomainPtr> state = state_->FindOrAdd(domain, block_size, StreamPeer());
    if (!state.ok()) return state.status();
    absl::StatusOr<HolderPtr> holder = (*state)->AddLocal(info, state_->options.clock->Now());
    if (absl::IsUnavailable(holder.status())) continue;
    if (!holder.ok()) return holder.status();
    return std::make_unique<HolderHandle>(*state, *std::move(holder), state_->options.clock);
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
          .holders_swept = state_->holders_swept.load(),
          .domains_forgotten = state_->domains_forgotten.load()};
}

const MemoryBudget* HolderRegistry::memory() const { return state_->options.index.memory; }

std::vector<RefusedHolder> HolderRegistry::Refused() const {
  return state_->refused.All(state_->options.clock->Now());
}

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

// The domain's block size never changes, so it may be read after the cut.
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

// An epoch from the future is refused as in a hello: restored, it would keep every later sender of
// that name out. Until `Finish` hellos of this holder are answered with UNAVAILABLE.
absl::StatusOr<std::unique_ptr<RestoredHolder>> HolderRegistry::Restore(const Domain& domain,
                                                                        uint32_t block_size,
                                                                        HolderImage image) {
  absl::Status bad = CheckNames(domain, image.info.id, block_size);
  bad.Update(CheckEpoch(image.stream.epoch, state_->options.clock->WallNs()));
  if (!bad.ok()) return bad;
  for (;;) {
    const absl::StatusOr<DomainPtr> state = state_->FindOrAdd(domain, block_size, StreamPeer());
    if (!state.ok()) return state.status();
    absl::StatusOr<HolderPtr> holder = (*state)->AddRestored(image.info.id, image.layout);
    if (absl::IsUnavailable(holder.status())) continue;
    if (!holder.ok()) return holder.status();
    return std::make_unique<RestoredHolderImpl>(*state, *std::move(holder), std::move(image),
                                                state_->options);
  }
}

}  // namespace kvatlas
