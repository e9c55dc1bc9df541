// `Stream` is one domain: its coverage, a resident set for each shard of the level above, and a
// pump for each parent. `State` has all streams and the map of parents in force.
//
// *Threads*: streams are ticked and stopped by one thread, which alone changes shards, parents and
// maps of a stream; `Stats` reads them under `taking_mutex_`. Lock order: `taking_mutex_`, a
// shard's `mutex`, a pump's own. Coverage is fed by ingest threads under its own lock.

#include "indexer/coverage/coverage_reporter.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"
#include "indexer/net/connection_watch.h"
#include "indexer/stream/message_size.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender_pump.h"

namespace kvatlas {
namespace {

// Flushing time of a stream that ends, for its goodbye: `Tick` waits for it.
constexpr Duration kGoodbyeTime = std::chrono::milliseconds(100);
constexpr Duration kWatchEvery = std::chrono::milliseconds(200);
// Former maps of parents that still count. With more the oldest goes before its time, so that a map
// that changes all the time does not make shards keep everything.
constexpr size_t kFormerMapsMax = 4;

// Blocks of prefill ahead of a request at the average worker.
double QueuedPrefillBlocksPerWorker(const Load& load) {
  return (static_cast<double>(load.waiting_prefill_blocks) + load.running_requests +
          load.waiting_requests) /
         std::max<uint32_t>(load.workers, 1);
}

// Counts the bytes that a link takes, as serialized whatever the link does with them
// (`HoldingsBytes`).
class CountingLink : public SenderLink {
 public:
  // `bytes` outlives it.
  CountingLink(std::unique_ptr<SenderLink> link, std::atomic<uint64_t>* bytes)
      : link_(std::move(link)), bytes_(bytes) {}

  void Start(SenderLinkObserver* observer) override { link_->Start(observer); }
  bool Write(const SenderMessage& message) override {
    if (!link_->Write(message)) return false;
    bytes_->fetch_add(HoldingsBytes(message), std::memory_order_relaxed);
    return true;
  }
  void Reset() override { link_->Reset(); }
  bool Confirmed(BatchNumber number) const override { return link_->Confirmed(number); }
  void Stop(std::chrono::nanoseconds flush_for) override { link_->Stop(flush_for); }

 private:
  const std::unique_ptr<SenderLink> link_;
  std::atomic<uint64_t>* const bytes_;
};

}  // namespace

// One domain: its coverage, what of it was announced to each shard, and a pump per parent.
class CoverageReporter::Stream {
 public:
  // `epochs` gives each new stream its epoch.
  Stream(const CoverageReporterOptions& options, Domain domain, uint32_t block_size,
         std::atomic<Epoch>* epochs)
      : options_(options),
        domain_(std::move(domain)),
        block_size_(block_size),
        epochs_(*epochs),
        coverage_(options.schedule, options.coverage, options.clock) {}

  Coverage* coverage() { return &coverage_; }
  const Domain& domain() const { return domain_; }
  uint32_t block_size() const { return block_size_; }

  // The domain has another block size now: another stream takes over.
  void Replace() { replaced_.store(true); }
  bool replaced() const { return replaced_.load(); }
  bool ended() const { return ended_; }
  int users = 1;  // of `coverage()`; the reporter's mutex guards it

  // 1. A replaced stream says goodbye, once.
  // 2. A new map of parents is adopted (`Adopt`), former ones whose time has come end
  //    (`EndOverlap`).
  // 3. News of the coverage go into the shards' resident sets and pumps (`Append`).
  // 4. The pumps write what is due, and refusals are reported.
  void Tick(const std::shared_ptr<const ShardMap>& map) {
    if (replaced_.load()) {
      if (!ended_) Stop(options_.clock->Now() + kGoodbyeTime);
      return;
    }
    if (map->empty()) return;  // no parent was found yet; what is due waits
    if (map != map_) Adopt(map);
    EndOverlap();
    Append();
    for (const auto& shard : shards_) {
      for (const auto& parent : shard->parents) {
        parent->pump->Tick();
        TellRefusal(*parent);
      }
    }
  }

  void Stop(Time end) {
    if (ended_) return;
    ended_ = true;
    for (const auto& shard : shards_) {
      for (const auto& parent : shard->parents) Goodbye(*parent, end);
    }
  }

  // How each parent is, by address: connected if any stream is, else refused if any is, else what
  // the last one says. By `Tick`'s thread.
  void AddProgress(std::map<std::string, std::optional<absl::Status>>* by_parent) const {
    const auto rank = [](const std::optional<absl::Status>& how) {
      return how.has_value() ? how->ok() ? 3 : absl::IsUnavailable(*how) ? 1 : 2 : 0;
    };
    for (const auto& shard : shards_) {
      for (const auto& parent : shard->parents) {
        if (parent->leaving) continue;
        std::optional<absl::Status> how = parent->pump->Progress();
        const auto [it, is_new] = by_parent->try_emplace(parent->address, how);
        if (!is_new && rank(how) > rank(it->second)) it->second = std::move(how);
      }
    }
  }

  void AddStats(std::vector<ParentStats>* stats) const {
    // A waypoint is in flight between `Take` and `Append`: `Append` takes both under the mutex, so
    // that being at rest is seen whole.
    MutexLock lock(&taking_mutex_);
    ParentStats of;
    of.domain = domain_;
    const CoverageStats coverage = coverage_.Stats();
    of.waypoints_announced = coverage.announced;
    of.waypoints_withdrawn = coverage.withdrawn;
    of.waypoints_held = coverage.held;
    of.waypoints_covered = coverage.covered;
    of.waypoints_waiting = coverage.waiting;
    // Until former maps are forgotten, shards have more than their parts.
    const bool at_rest = coverage_.AtRest() && former_.empty();
    if (shards_.empty()) AddUnstarted(of, stats);
    for (const auto& shard : shards_) {
      of.shard = shard->name;
      for (const auto& parent : shard->parents) {
        if (!parent->leaving) stats->push_back(StatsOf(*shard, *parent, at_rest, of));
      }
    }
  }

 private:
  struct Parent {
    std::string address;
    bool leaving = false;            // the map no longer names it
    std::atomic<uint64_t> bytes{0};  // outlives the pump
    std::unique_ptr<SenderPump> pump;
  };
  struct Shard {
    std::string name;
    Mutex mutex;
    ResidentSet resident ABSL_GUARDED_BY(mutex);
    std::vector<std::unique_ptr<Parent>> parents;
  };
  struct Former {
    std::shared_ptr<const ShardMap> map;
    Time until;
  };

  // ---- Shards and parents ----

  // 1. Everything announced so far is collected from all shards (`Announced`).
  // 2. Each shard of the map, old or new, is given its part of that (`Tell`).
  // 3. New parents are sent all that their shard has (`Join`).
  // 4. Parents that the map does not name leave after the overlap (`EndOverlap`); those that it
  //    names for another shard leave the old one at once.
  // Meanwhile a shard keeps what either map gives it, so a question that goes by the older map
  // finds what that promises. The new streams share one epoch, above those of earlier streams: a
  // parent that gets a second stream of this cell takes the newer one.
  void Adopt(const std::shared_ptr<const ShardMap>& map) {
    const ResidentSet all = Announced();
    const Epoch epoch = epochs_.fetch_add(1);
    MutexLock lock(&taking_mutex_);
    if (map_ != nullptr)
      former_.push_back({map_, options_.clock->Now() + options_.parents_overlap});
    map_ = map;
    for (const auto& shard : shards_) {
      for (const auto& parent : shard->parents) parent->leaving = true;
    }
    for (const ShardMap::Shard& named : map->shards()) {
      Shard& shard = ShardNamed(named.name);
      for (const Stored& run : all.AsRuns()) Tell(shard, run, std::nullopt);
      for (const std::string& address : named.addresses) Join(shard, address, epoch);
    }
  }

  // Shards may overlap: the set has each waypoint once.
  ResidentSet Announced() const {
    ResidentSet all;
    for (const auto& shard : shards_) {
      MutexLock lock(&shard->mutex);
      for (const Stored& run : shard->resident.AsRuns()) all.Apply(run);
    }
    return all;
  }

  Shard& ShardNamed(const std::string& name) {
    for (const auto& shard : shards_)
      if (shard->name == name) return *shard;
    shards_.push_back(std::make_unique<Shard>());
    shards_.back()->name = name;
    return *shards_.back();
  }

  // One stream per address and domain: a parent that changes shards leaves the old one now, without
  // a goodbye, since that would make the parent forget the cell that it is about to hear again.
  void LeaveOthers(const Shard& shard, const std::string& address) {
    for (const auto& other : shards_) {
      if (other.get() == &shard) continue;
      std::erase_if(other->parents, [&](const std::unique_ptr<Parent>& parent) {
        if (parent->address != address) return false;
        parent->pump->Stop(/*goodbye=*/false, Duration::zero());
        return true;
      });
    }
  }

  // A parent that was leaving and is named again keeps its stream. A new one gets everything that
  // its shard has before the pump starts, so that its first batch or snapshot is complete.
  void Join(Shard& shard, const std::string& address, Epoch epoch) {
    LeaveOthers(shard, address);
    for (const auto& parent : shard.parents) {
      if (parent->address != address) continue;
      parent->leaving = false;
      return;
    }
    shard.parents.push_back(std::make_unique<Parent>());
    Parent& parent = *shard.parents.back();
    parent.address = address;
    parent.pump = std::make_unique<SenderPump>(
        options_.sender, Identity(epoch), &shard.resident, &shard.mutex,
        std::make_unique<CountingLink>(options_.make_link(address), &parent.bytes), options_.clock);
    {
      MutexLock lock(&shard.mutex);
      std::vector<Event> events;
      for (Stored& run : shard.resident.AsRuns()) events.emplace_back(std::move(run));
      parent.pump->Append(events, load_told_);
    }
    parent.pump->Start();
  }

  // Ends the oldest former map if its time has come, or if there are too many. Each shard withdraws
  // what no other map gives it. Leaving parents get their goodbye with the last former map, and
  // shards without parents go.
  void EndOverlap() {
    const Time now = options_.clock->Now();
    if (former_.empty() || (now < former_.front().until && former_.size() <= kFormerMapsMax))
      return;
    MutexLock lock(&taking_mutex_);
    former_.pop_front();
    for (const auto& shard : shards_) {
      Removed surplus{.tier = Tier::kDevice, .blocks = Surplus(*shard)};
      if (!surplus.blocks.empty()) Tell(*shard, surplus, std::nullopt);
      if (!former_.empty()) continue;
      std::erase_if(shard->parents, [&](const std::unique_ptr<Parent>& parent) {
        if (parent->leaving) Goodbye(*parent, now + kGoodbyeTime);
        return parent->leaving;
      });
    }
    std::erase_if(shards_, [](const auto& shard) { return shard->parents.empty(); });
  }

  // Waypoints that the shard has and that no map in force gives it. O(waypoints of the shard).
  std::vector<SequenceHash> Surplus(Shard& shard) {
    std::vector<SequenceHash> surplus;
    MutexLock lock(&shard.mutex);
    for (const Stored& run : shard.resident.AsRuns()) {
      for (size_t i = 0; i < run.blocks.size(); ++i) {
        const auto ordinal = static_cast<uint32_t>(run.position + i);
        if (!Keeps(shard.name, ordinal, run.blocks[i])) surplus.push_back(run.blocks[i]);
      }
    }
    return surplus;
  }

  void Goodbye(Parent& parent, Time end) {
    const Duration left = end - options_.clock->Now();
    parent.pump->Stop(/*goodbye=*/true, std::max(left, Duration::zero()));
  }

  SenderIdentity Identity(Epoch epoch) const {
    return {.holder = options_.cell,
            .domain = domain_,
            .block_size = block_size_,
            .contract_id = options_.contract_id,
            .schedule = options_.schedule_name,
            .address = options_.address,
            .labels = options_.labels,
            .epoch = epoch,
            .instance_id = options_.instance_id};
  }

  // ---- News for them ----

  static bool Keeps(const ShardMap& map, const std::string& shard, uint32_t ordinal,
                    SequenceHash waypoint) {
    for (size_t i = 0; i < map.shards().size(); ++i)
      if (map.shards()[i].name == shard) return map.Keeps(i, ordinal, waypoint);
    return false;
  }

  // By the map in force or a former one that still counts.
  bool Keeps(const std::string& shard, uint32_t ordinal, SequenceHash waypoint) const {
    return Keeps(*map_, shard, ordinal, waypoint) ||
           std::any_of(former_.begin(), former_.end(), [&](const Former& former) {
             return Keeps(*former.map, shard, ordinal, waypoint);
           });
  }

  // The parts of a stored run that the shard keeps. A removal goes whole to every shard: the
  // resident set drops what the shard does not have. A level that is not split keeps everything.
  std::vector<Event> PartOf(const Shard& shard, const Event& event) const {
    const Stored* run = std::get_if<Stored>(&event);
    if (run == nullptr || (!map_->split() && former_.empty())) return {event};
    std::vector<Event> parts;
    bool goes_on = false;
    for (size_t i = 0; i < run->blocks.size(); ++i) {
      const auto ordinal = static_cast<Position>(run->position + i);
      const bool kept = Keeps(shard.name, ordinal, run->blocks[i]);
      if (kept && !goes_on) {
        parts.push_back(
            Stored{.tier = run->tier, .position = ordinal, .parent = kNoParent, .blocks = {}});
      }
      if (kept) std::get<Stored>(parts.back()).blocks.push_back(run->blocks[i]);
      goes_on = kept;
    }
    return parts;
  }

  // Set and pumps change under the shard's mutex: a pump that captures a snapshot meanwhile sees
  // both or neither.
  void Tell(Shard& shard, const std::vector<Event>& due, const std::optional<Load>& load) {
    MutexLock lock(&shard.mutex);
    std::vector<Event> changes;
    for (const Event& event : due) {
      for (const Event& part : PartOf(shard, event)) {
        for (Event& change : shard.resident.Apply(part)) changes.push_back(std::move(change));
      }
    }
    if (changes.empty() && !load.has_value()) return;
    for (const auto& parent : shard.parents) parent->pump->Append(changes, load);
  }
  void Tell(Shard& shard, Event event, const std::optional<Load>& load) {
    Tell(shard, std::vector<Event>{std::move(event)}, load);
  }

  // The load to send now, if any. It waits until it matters: a step of `load_step` blocks of
  // prefill per worker, or another number of workers, is sent after `load_every`, anything else
  // after `load_refresh`. The first one is sent at once.
  std::optional<Load> LoadDue() {
    if (std::optional<Load> load = coverage_.TakeLoad(); load.has_value()) load_ = load;
    if (load_ == load_told_) return std::nullopt;
    const Time now = options_.clock->Now();
    if (load_told_.has_value()) {
      const Duration waited = now - load_told_at_;
      const double step = std::abs(QueuedPrefillBlocksPerWorker(*load_) -
                                   QueuedPrefillBlocksPerWorker(*load_told_));
      const bool matters = step >= options_.load_step || load_->workers != load_told_->workers;
      if (waited < (matters ? options_.load_every : options_.load_refresh)) return std::nullopt;
    }
    load_told_at_ = now;
    return load_told_ = load_;
  }

  // One `Take` feeds all shards: what it returned is not in the coverage any more, so it must reach
  // the sets before the mutex is given up (`AddStats`).
  void Append() {
    MutexLock taking(&taking_mutex_);
    const std::vector<Event> due = coverage_.Take(options_.waypoints_per_tick);
    const std::optional<Load> load = LoadDue();
    if (due.empty() && !load.has_value()) return;
    for (const auto& shard : shards_) Tell(*shard, due, load);
  }

  // ---- Statistics and refusals ----

  // UNAVAILABLE (a parent that stops or has not begun) is not reported: nothing has to be mended
  // for it.
  void TellRefusal(const Parent& parent) const {
    if (options_.on_refused == nullptr) return;
    const absl::Status why = parent.pump->WhyRefused();
    if (why.ok() || absl::IsUnavailable(why)) return;
    options_.on_refused({parent.address, domain_, options_.schedule_name, why});
  }

  // Before the first tick there is no stream yet, and so no rest.
  void AddUnstarted(ParentStats of, std::vector<ParentStats>* stats) const {
    for (const ShardMap::Shard& shard : options_.parents.shards()) {
      for (const std::string& address : shard.addresses) {
        of.shard = shard.name;
        of.parent = address;
        stats->push_back(of);
      }
    }
  }

  static ParentStats StatsOf(Shard& shard, const Parent& parent, bool coverage_at_rest,
                             ParentStats of) {
    of.parent = parent.address;
    of.connected = parent.pump->connected();
    of.at_rest = coverage_at_rest && parent.pump->AtRest();
    of.bytes_sent = parent.bytes.load(std::memory_order_relaxed);
    of.acknowledged = parent.pump->acknowledged();  // first: never beyond the last
    of.last_batch = parent.pump->last_number();
    of.sender = parent.pump->stats();
    of.status = parent.pump->status();
    of.refusal = parent.pump->refusal();
    of.progress = parent.pump->Progress();
    MutexLock lock(&shard.mutex);
    of.waypoints_here = shard.resident.size();
    return of;
  }

  const CoverageReporterOptions& options_;
  const Domain domain_;
  const uint32_t block_size_;
  std::atomic<Epoch>& epochs_;
  std::atomic<bool> replaced_{false};
  bool ended_ = false;  // only by `Tick` and then by `Stop`
  Coverage coverage_;
  std::optional<Load> load_, load_told_;  // only by `Tick`
  Time load_told_at_{0};
  mutable Mutex taking_mutex_;
  // Changed by `Tick` alone, under `taking_mutex_`.
  std::shared_ptr<const ShardMap> map_;
  std::deque<Former> former_;  // oldest first
  std::vector<std::unique_ptr<Shard>> shards_;
};

struct CoverageReporter::State {
  explicit State(CoverageReporterOptions given)
      : options(std::move(given)),
        epochs(options.epoch),
        parents(std::make_shared<const ShardMap>(options.parents)) {}

  std::vector<std::shared_ptr<Stream>> All() const {
    MutexLock lock(&mutex);
    return streams;
  }

  // Removes the streams of domains that are gone, once they have said goodbye. By `Tick`. A stream
  // that was replaced by another block size stays while its coverage is still fed (`users`).
  void RemoveEnded() {
    std::vector<std::shared_ptr<Stream>> ended;  // to be destroyed without the lock
    MutexLock lock(&mutex);
    for (const auto& stream : streams)
      if (stream->users == 0 && stream->ended()) ended.push_back(stream);
    std::erase_if(streams,
                  [](const auto& stream) { return stream->users == 0 && stream->ended(); });
  }

  // Logs how parents are reached, by address over all domains (`ConnectionWatch`). By `Tick`, five
  // times a second at most.
  void WatchParents() {
    const Time now = options.clock->Now();
    if (watch_at.has_value() && now < *watch_at) return;
    watch_at = now + kWatchEvery;
    std::map<std::string, std::optional<absl::Status>> by_parent;
    for (const auto& stream : All()) stream->AddProgress(&by_parent);
    std::erase_if(watches, [&](const auto& watch) { return !by_parent.contains(watch.first); });
    for (const auto& [address, how] : by_parent) {
      std::unique_ptr<ConnectionWatch>& watch = watches[address];
      if (watch == nullptr) {
        watch = std::make_unique<ConnectionWatch>(
            "parent", address, std::vector<LogField>{{"cell", ToString(options.cell)}},
            options.clock);
      }
      watch->Set(how);
    }
  }

  bool KeepsCoverage() const { return !options.parents.empty() || options.parents_may_come; }

  CoverageReporterOptions options;                                  // immutable from the first tick
  std::optional<Time> watch_at;                                     // of `Tick`'s thread
  std::map<std::string, std::unique_ptr<ConnectionWatch>> watches;  // by address; likewise
  std::atomic<Epoch> epochs;  // the next stream's: a later one fences an earlier one of its cell
  mutable Mutex mutex;
  std::shared_ptr<const ShardMap> parents ABSL_GUARDED_BY(mutex);
  // A domain that comes again with another block size has a new one.
  std::vector<std::shared_ptr<Stream>> streams ABSL_GUARDED_BY(mutex);
};

CoverageReporter::CoverageReporter(CoverageReporterOptions options)
    : state_(std::make_unique<State>(std::move(options))) {}

CoverageReporter::~CoverageReporter() = default;

void CoverageReporter::SetAddress(std::string address) {
  state_->options.address = std::move(address);
}

absl::Status CoverageReporter::SetParents(ShardMap parents) {
  if (parents.empty() || !state_->KeepsCoverage()) {
    return absl::FailedPreconditionError(
        "a process that has parents keeps some, and one without has none");
  }
  MutexLock lock(&state_->mutex);
  if (*state_->parents == parents) return absl::OkStatus();
  state_->parents = std::make_shared<const ShardMap>(std::move(parents));
  return absl::OkStatus();
}

// The registry adds a domain for each index that it makes, and may add one again before it has
// removed the earlier: equal block sizes share a stream and are counted (`users`). Another block
// size replaces the stream, whose coverage lives until it is removed.
Coverage* CoverageReporter::AddDomain(const Domain& domain, uint32_t block_size) {
  if (!state_->KeepsCoverage()) return nullptr;
  MutexLock lock(&state_->mutex);
  for (const auto& stream : state_->streams) {
    if (stream->domain() != domain) continue;
    // The last one of the domain counts: the others are replaced.
    if (stream->block_size() == block_size && !stream->replaced()) {
      ++stream->users;
      return stream->coverage();
    }
    stream->Replace();
  }
  auto stream = std::make_shared<Stream>(state_->options, domain, block_size, &state_->epochs);
  Coverage* const coverage = stream->coverage();
  state_->streams.push_back(std::move(stream));
  return coverage;
}

void CoverageReporter::RemoveDomain(const DomainObserver* coverage) {
  MutexLock lock(&state_->mutex);
  for (const auto& stream : state_->streams) {
    if (stream->coverage() != coverage) continue;
    if (--stream->users == 0) stream->Replace();
  }
}

void CoverageReporter::Tick() {
  std::shared_ptr<const ShardMap> parents;
  {
    MutexLock lock(&state_->mutex);
    parents = state_->parents;
  }
  for (const auto& stream : state_->All()) stream->Tick(parents);
  state_->RemoveEnded();
  state_->WatchParents();
}

void CoverageReporter::Stop(Duration flush_for) {
  const Time end = state_->options.clock->Now() + flush_for;
  for (const auto& stream : state_->All()) stream->Stop(end);
}

std::vector<ParentStats> CoverageReporter::Stats() const {
  std::vector<ParentStats> stats;
  for (const auto& stream : state_->All())
    if (!stream->replaced()) stream->AddStats(&stats);
  return stats;
}

}  // namespace kvatlas
