// Do leaves know what workers hold, whatever happens to them, to Redis and to what is between?
// Publishers' link, readers, registries and checkpoints as they are, over a Redis in simulated
// time, by seed: logs that are trimmed by length, bytes and age, connections that end, a server
// that stalls, restarts with what it had a while ago or with nothing, is full or evicts, leaves
// that are killed and come back from older checkpoints, clocks that jump, and holdings that drift.
//
// After every step: what a leaf holds of a worker under exact trust is what that worker held after
// the batch that the leaf says it has applied. After the faults stop: all are equal. Then drift is
// made, and is gone within `kRepairedWithin`.
//
// A failure prints its seed; KVATLAS_SIMULATION_SEED=n runs only that one,
// KVATLAS_SIMULATION_SEEDS=n that many.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/checkpoint/checkpointer.h"
#include "indexer/checkpoint/fault_files.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"
#include "indexer/stream/receiver.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender.h"
#include "indexer/stream/sender_pump.h"
#include "indexer/telemetry/log.h"
#include "indexer/telemetry/metrics.h"
#include "indexer/transport/redis/redis_link.h"
#include "indexer/transport/redis/redis_log_options.h"
#include "indexer/transport/redis/redis_reader.h"
#include "tools/testing/simulated_redis/simulated_redis.h"
#include "tools/testing/simulated_redis/simulated_redis_network.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A digest every 5 s, a snapshot asked for within 1 s, and the ways between them.
constexpr Duration kRepairedWithin = seconds(5) + seconds(1) + milliseconds(250);
constexpr Duration kCalmWithin = seconds(150);
constexpr char kDirectory[] = "/checkpoints";
constexpr size_t kImagesMax = 8;

using Contents = std::map<uint64_t, uint8_t>;  // block to its tiers

void ApplyTo(const Event& event, Contents* contents) {
  const auto drop = [contents](uint64_t block, TierMask tiers) {
    const auto found = contents->find(block);
    if (found == contents->end()) return;
    found->second &= ~tiers.bits();
    if (found->second == 0) contents->erase(found);
  };
  if (const Stored* stored = std::get_if<Stored>(&event)) {
    for (const SequenceHash block : stored->blocks) {
      (*contents)[Raw(block)] |= TierMask(stored->tier).bits();
    }
  } else if (const Removed* removed = std::get_if<Removed>(&event)) {
    for (const SequenceHash block : removed->blocks) drop(Raw(block), TierMask(removed->tier));
  } else {
    const Contents before = *contents;
    for (const auto& [block, tiers] : before) drop(block, std::get<Cleared>(event).tiers);
  }
}

// A program's own clock: it jumps when the program, or its machine, was asleep.
class JumpingClock : public Clock {
 public:
  explicit JumpingClock(const Clock* base) : base_(base) {}
  Time Now() const override { return base_->Now() + jumped_; }
  void Jump(Duration by) { jumped_ += by; }

 private:
  const Clock* const base_;
  Duration jumped_{0};
};

// What makes a receiver's holdings drift without anybody's noticing: an event is lost, or told
// twice.
enum class Drift { kLostRemove, kLostClear, kDoubledStore };

// Between transport and registry: the next batch that can be spoiled is, when armed.
class DriftAcceptor : public StreamAcceptor {
 public:
  using SpoiledFn = std::function<void(const HolderId&)>;
  DriftAcceptor(StreamAcceptor* inner, SpoiledFn spoiled)
      : inner_(inner), spoiled_(std::move(spoiled)) {}

  void Arm(std::optional<Drift> drift) { armed_ = drift; }
  bool armed() const { return armed_.has_value(); }
  std::unique_ptr<ReceiverSession> Accept(ReplyFn reply) override {
    return std::make_unique<Session>(this, inner_->Accept(std::move(reply)));
  }

 private:
  class Session : public ReceiverSession {
   public:
    Session(DriftAcceptor* acceptor, std::unique_ptr<ReceiverSession> inner)
        : acceptor_(acceptor), inner_(std::move(inner)) {}
    absl::Status OnMessage(SenderMessage message) override {
      if (const Hello* hello = std::get_if<Hello>(&message)) holder_ = hello->holder;
      if (Batch* batch = std::get_if<Batch>(&message);
          batch != nullptr && acceptor_->Spoil(batch)) {
        acceptor_->spoiled_(holder_);
      }
      return inner_->OnMessage(std::move(message));
    }
    void OnWireBytes(size_t bytes) override { inner_->OnWireBytes(bytes); }
    void OnTransportLost(bool lost) override { inner_->OnTransportLost(lost); }

   private:
    DriftAcceptor* const acceptor_;
    const std::unique_ptr<ReceiverSession> inner_;
    HolderId holder_;
  };

  bool Spoil(Batch* batch) {
    if (!armed_.has_value()) return false;
    const auto event =
        std::find_if(batch->events.begin(), batch->events.end(), [&](const Event& candidate) {
          return *armed_ == Drift::kLostClear ? std::holds_alternative<Cleared>(candidate)
                                              : std::holds_alternative<Removed>(candidate);
        });
    if (event == batch->events.end()) return false;
    if (*armed_ == Drift::kDoubledStore) {
      const Removed removed = std::get<Removed>(*event);
      batch->events.emplace_back(Stored{
          .tier = removed.tier, .position = 0, .parent = kNoParent, .blocks = removed.blocks});
    } else {
      batch->events.erase(event);
    }
    armed_.reset();
    return true;
  }

  StreamAcceptor* const inner_;
  const SpoiledFn spoiled_;
  std::optional<Drift> armed_;
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : random_(seed), redis_(&clock_), network_(&redis_, &clock_, random_()) {
    clock_.Advance(std::chrono::hours(1));
    log_.cell = "cell-a";
    log_.shards = 1 + static_cast<uint32_t>(Below(3));
    log_.log_entries_max = Below(2) == 0 ? 1 + Below(30) : 1 << 16;
    if (Below(3) == 0) log_.log_bytes_max = 1000 + Below(10000);
    if (Below(3) == 0) log_.log_age_max = seconds(1 + Below(20));
    if (Below(4) == 0) log_.log_ttl = seconds(12 + Below(60));
    log_.credit_batches = 1 + Below(40);
    sender_.window_batches = 1 + Below(40);
    redis_.SetNodeEntries(1 + Below(10));
    latency_ = milliseconds(1 + Below(300));
    drifting_ = Below(3) == 0;
    for (size_t i = 0; i < 1 + Below(3); ++i) {
      workers_.push_back(std::make_unique<Worker>(&clock_, i));
      StartWorker(workers_.back().get(), /*keep=*/false);
    }
    for (size_t i = 0; i < 1 + Below(3); ++i) {
      leaves_.push_back(std::make_unique<Leaf>(&clock_, i));
      StartLeaf(leaves_.back().get());
    }
  }
  ~Simulation() {
    for (const auto& worker : workers_) StopWorker(worker.get(), /*goodbye=*/false);
    for (const auto& leaf : leaves_) KillLeaf(leaf.get());
  }

  void Run() {
    network_.SetLatencyMax(latency_);
    const int steps = 60 + static_cast<int>(Below(120));
    for (int step = 0; step < steps && !Failed(); ++step) {
      Disturb();
      Work();
      Pass(milliseconds(Below(400)));
    }
    if (!Failed()) Calm();
    if (!Failed()) RepairDrift();
  }
  // At the end, and was repaired.
  bool drifted() const { return drifted_; }

 private:
  struct Worker {
    Worker(const Clock* clock, size_t i)
        : name("w" + std::to_string(i)), domain{i % 2 == 0 ? "llama" : "qwen", ""}, time(clock) {}
    const std::string name;
    const Domain domain;
    JumpingClock time;
    Mutex mutex;
    std::unique_ptr<ResidentSet> resident;
    std::unique_ptr<SenderPump> pump;  // none: it is down
    const RedisLink* link = nullptr;   // the pump's
    Contents truth;
    uint64_t instance_id = 0;
    BatchNumber known = 0;  // numbers up to here are in its history
  };
  struct Leaf {
    Leaf(const Clock* clock, size_t i) : name("leaf-" + std::to_string(i)), time(clock) {}
    const std::string name;
    JumpingClock time;
    std::unique_ptr<FaultFiles> files = std::make_unique<FaultFiles>();
    std::unique_ptr<Metrics> metrics;
    std::unique_ptr<HolderRegistry> registry;
    std::unique_ptr<Checkpointer> checkpointer;
    std::unique_ptr<DriftAcceptor> acceptor;
    std::unique_ptr<RedisReader> reader;
    // What was damaged, until a digest was found equal: that many had been before.
    std::map<std::string, uint64_t> touched;
    bool ever_touched = false;
  };

  static bool Failed() { return testing::Test::HasFailure(); }
  uint64_t Below(uint64_t n) { return random_() % n; }
  bool PerMille(uint64_t n) { return Below(1000) < n; }

  // ---- Workers ----

  // `keep`: the same contents under a new epoch.
  void StartWorker(Worker* worker, bool keep) {
    if (!keep || worker->resident == nullptr) {
      worker->resident = std::make_unique<ResidentSet>();
      worker->truth.clear();
    }
    SenderIdentity identity;
    identity.holder.name = worker->name;
    identity.domain = worker->domain;
    identity.block_size = 16;
    identity.contract_id = HashContract().Id();
    // Clocks of machines go back: the epoch may be below the one before.
    identity.epoch = 1000 + static_cast<Epoch>(clock_.Now() / milliseconds(1)) - Below(500);
    identity.instance_id = worker->instance_id = random_();
    auto link = std::make_unique<RedisLink>(log_, &worker->time, network_.Connect(worker->name));
    worker->link = link.get();
    worker->pump = std::make_unique<SenderPump>(sender_, identity, worker->resident.get(),
                                                &worker->mutex, std::move(link), &worker->time);
    histories_[worker->instance_id][worker->pump->last_number()] = worker->truth;
    worker->known = worker->pump->last_number();
    worker->pump->Start();
  }

  void StopWorker(Worker* worker, bool goodbye) {
    if (worker->pump == nullptr) return;
    if (!goodbye) network_.Kill(worker->name);
    worker->pump->Stop(goodbye, Duration(0));
    worker->pump.reset();
  }

  // Numbers that were given out since have what is held now.
  void Remember(Worker* worker) {
    std::map<BatchNumber, Contents>& history = histories_[worker->instance_id];
    const BatchNumber last = worker->pump->last_number();
    for (BatchNumber number = worker->known + 1; number < last; ++number) {
      history[number] = worker->truth;
    }
    history[last] = worker->truth;
    worker->known = last;
  }

  void Tell(Worker* worker, const Event& event) {
    {
      MutexLock lock(&worker->mutex);
      ApplyTo(event, &worker->truth);
      worker->pump->Append(worker->resident->Apply(event), std::nullopt);
    }
    Remember(worker);
  }

  // A sequence is the multiples of its number, so that sequences share no block and parents are
  // known.
  Event RandomEvent() {
    const Tier tier = static_cast<Tier>(Below(3));
    if (Below(60) == 0) return Cleared{TierMask(static_cast<uint8_t>(1 + Below(15)))};
    const uint64_t sequence = 1 + Below(8);
    const uint64_t from = Below(16), count = 1 + Below(8);
    std::vector<SequenceHash> blocks;
    for (uint64_t i = from; i < from + count; ++i) {
      blocks.push_back(SequenceHash{sequence * 1000 + i});
    }
    if (Below(5) < 2) return Removed{.tier = tier, .blocks = blocks};
    return Stored{.tier = tier,
                  .position = static_cast<Position>(from),
                  .parent = from == 0 ? kNoParent : SequenceHash{sequence * 1000 + from - 1},
                  .blocks = blocks};
  }

  void Work() {
    for (const auto& worker : workers_) {
      if (worker->pump == nullptr || Below(2) == 0) continue;
      for (uint64_t n = Below(4); n > 0; --n) Tell(worker.get(), RandomEvent());
    }
  }

  // ---- Leaves ----

  void StartLeaf(Leaf* leaf) {
    HolderRegistryOptions options;
    options.contract_id = HashContract().Id();
    options.clock = &leaf->time;
    options.sweep_after = seconds(20);
    leaf->metrics = std::make_unique<Metrics>();
    leaf->registry = std::make_unique<HolderRegistry>(std::move(options));
    CheckpointOptions checkpoint;
    checkpoint.directory = kDirectory;
    checkpoint.keep = 2;
    checkpoint.cell = log_.cell;
    checkpoint.files = leaf->files.get();
    checkpoint.wall_time_ns = [this] { return static_cast<uint64_t>(clock_.Now().count()); };
    leaf->checkpointer = std::make_unique<Checkpointer>(std::move(checkpoint), leaf->registry.get(),
                                                        nullptr, leaf->metrics.get());
    leaf->checkpointer->Restore().status().IgnoreError();  // none, or spoiled
    leaf->touched.clear();
    if (leaf->ever_touched) {  // the checkpoint may have it
      for (const auto& worker : workers_) leaf->touched[worker->name] = 0;
    }
    leaf->acceptor =
        std::make_unique<DriftAcceptor>(leaf->registry.get(), [this, leaf](const HolderId& holder) {
          leaf->touched[holder.name] = DigestsEqual(*leaf, holder.name);
          leaf->ever_touched = true;
        });
    leaf->reader = std::make_unique<RedisReader>(log_, leaf->name, leaf->acceptor.get(),
                                                 &leaf->time, network_.Connect(leaf->name));
  }

  void KillLeaf(Leaf* leaf) {
    network_.Kill(leaf->name);
    leaf->reader.reset();
    leaf->acceptor.reset();
    leaf->checkpointer.reset();
    leaf->registry.reset();
    leaf->metrics.reset();
  }

  uint64_t DigestsEqual(const Leaf& leaf, const std::string& holder) const {
    for (const Domain& domain : leaf.registry->Domains()) {
      const absl::StatusOr<DomainStats> stats = leaf.registry->StatsOf(domain);
      if (!stats.ok()) continue;
      for (const HolderStats& one : stats->holders) {
        if (one.holder->id.name == holder) return one.receiver.digests_equal;
      }
    }
    return 0;
  }

  // A bit of some checkpoint turns.
  void Spoil(FaultFiles* files) {
    const std::vector<std::string> paths = files->Paths();
    if (paths.empty()) return;
    std::string* bytes = files->BytesOf(paths[Below(paths.size())]);
    if (!bytes->empty()) (*bytes)[Below(bytes->size())] ^= static_cast<char>(1 << Below(8));
  }

  // ---- Faults ----

  void Disturb() {
    for (const auto& worker : workers_) {
      if (PerMille(10)) {
        StopWorker(worker.get(), /*goodbye=*/Below(2) == 0);
        if (Below(4) != 0) StartWorker(worker.get(), /*keep=*/Below(2) == 0);
      }
      if (worker->pump == nullptr && PerMille(100)) StartWorker(worker.get(), Below(2) == 0);
      if (PerMille(20)) network_.Cut(worker->name);
      if (PerMille(10)) worker->time.Jump(milliseconds(Below(60000)));
    }
    for (const auto& leaf : leaves_) {
      if (PerMille(50)) leaf->checkpointer->WriteNow().status().IgnoreError();
      if (PerMille(10)) Restart(leaf.get());
      if (PerMille(20)) network_.Cut(leaf->name);
      if (PerMille(10)) leaf->time.Jump(milliseconds(Below(60000)));
      if (drifting_ && PerMille(30)) leaf->acceptor->Arm(static_cast<Drift>(Below(3)));
    }
    if (PerMille(15)) clock_.Advance(seconds(Below(60)));
    DisturbRedis();
  }

  void Restart(Leaf* leaf) {
    KillLeaf(leaf);
    if (Below(2) == 0) {  // the whole machine
      leaf->files = leaf->files->AfterCut(static_cast<FaultFiles::Unsynced>(Below(3)), &random_);
    }
    if (Below(8) == 0) Spoil(leaf->files.get());
    if (Below(3) == 0) clock_.Advance(seconds(Below(40)));
    StartLeaf(leaf);
  }

  void DisturbRedis() {
    if (PerMille(100)) {
      images_.push_back(redis_.database());
      if (images_.size() > kImagesMax) images_.pop_front();
    }
    if (PerMille(10) && network_.server_up()) {
      network_.StopServer();
      if (const uint64_t lost = Below(4); lost == 0) {
        redis_.Load({});
      } else if (lost < 3 && !images_.empty()) {
        redis_.Load(images_[Below(images_.size())]);
      }
    }
    if (!network_.server_up() && PerMille(150)) network_.StartServer();
    if (PerMille(10)) network_.StallUntil(clock_.Now() + milliseconds(Below(8000)));
    if (const std::vector<std::string> keys = redis_.Keys(); !keys.empty() && PerMille(10)) {
      redis_.Evict(keys[Below(keys.size())]);
    }
    if (PerMille(3)) redis_.Load({});
    if (PerMille(8)) redis_.SetBytesMax(Below(redis_.Bytes() + 1));
    if (PerMille(40)) redis_.SetBytesMax(std::nullopt);
    if (PerMille(8)) redis_.SetClockOffset(seconds(Below(7200)) - seconds(3600));
    if (PerMille(8)) DamageEntry();
  }

  void DamageEntry() {
    SimulatedRedis::Database database = redis_.database();
    std::vector<std::string*> texts;
    for (auto& [key, value] : database) {
      for (auto& [id, fields] : value.entries) texts.push_back(&fields.back());
    }
    if (texts.empty()) return;
    std::string* text = texts[Below(texts.size())];
    if (!text->empty()) (*text)[Below(text->size())] ^= static_cast<char>(1 << Below(8));
    redis_.Load(std::move(database));
  }

  // ---- Time ----

  void Pass(Duration by) {
    const Time until = clock_.Now() + by;
    Tick();
    network_.RunUntil(until, [this] {
      for (const auto& leaf : leaves_) leaf->reader->Step();
      for (const auto& worker : workers_) {
        if (worker->pump != nullptr) Remember(worker.get());
      }
    });
    Tick();
    for (const auto& leaf : leaves_) {
      if (!Failed()) Check(leaf.get());
    }
  }

  void Tick() {
    for (const auto& worker : workers_) {
      if (worker->pump == nullptr) continue;
      worker->pump->Tick();
      Remember(worker.get());
    }
    for (const auto& leaf : leaves_) {
      leaf->registry->Tick();
      leaf->reader->Step();
    }
  }

  // ---- What has to be true ----

  static Contents Of(const HolderDump& dump) {
    Contents contents;
    for (const Stored& run : dump.runs) ApplyTo(run, &contents);
    return contents;
  }

  void Check(Leaf* leaf) {
    std::erase_if(leaf->touched, [&](const auto& touched) {
      return DigestsEqual(*leaf, touched.first) != touched.second;
    });
    for (const Domain& domain : leaf->registry->Domains()) {
      for (const HolderId& holder : leaf->registry->HoldersOf(domain)) {
        if (leaf->touched.contains(holder.name)) continue;
        const absl::StatusOr<HolderDump> dump = leaf->registry->Dump(domain, holder);
        if (!dump.ok() || dump->trust != Trust::kExact) continue;
        const std::optional<ReceiverPosition> at = leaf->registry->PositionOf(domain, holder);
        ASSERT_TRUE(at.has_value());
        const auto history = histories_.find(at->instance_id);
        ASSERT_NE(history, histories_.end()) << holder.name;
        const auto then = history->second.find(at->applied);
        ASSERT_NE(then, history->second.end()) << holder.name << " applied " << at->applied;
        ASSERT_EQ(Of(*dump), then->second)
            << leaf->name << " of " << holder.name << " after batch " << at->applied;
      }
    }
  }

  // Why all is not as it should be; empty: it is.
  std::string Unsettled() const {
    size_t live = 0;
    for (const auto& worker : workers_) {
      if (worker->pump == nullptr) continue;
      ++live;
      if (!worker->pump->AtRest()) return worker->name + NotAtRest(*worker);
    }
    if (const std::string why = Different(); !why.empty()) return why;
    for (const auto& leaf : leaves_) {
      size_t holders = 0;
      for (const Domain& domain : leaf->registry->Domains()) {
        holders += leaf->registry->HoldersOf(domain).size();
      }
      if (holders != live) return leaf->name + " has " + std::to_string(holders) + " holders";
    }
    return {};
  }

  // What some leaf does not know exactly; empty: all do.
  std::string Different() const {
    for (const auto& worker : workers_) {
      for (const auto& leaf : leaves_) {
        if (worker->pump == nullptr) continue;
        if (const std::string why = Differs(*leaf, *worker); !why.empty()) return why;
      }
    }
    return {};
  }

  static std::string NotAtRest(const Worker& worker) {
    const SenderPump& pump = *worker.pump;
    return std::string(" is not at rest") + (pump.connected() ? "" : ", not connected") +
           (pump.welcomed() ? "" : ", not welcomed") + ", acknowledged " +
           std::to_string(pump.acknowledged()) + " of " + std::to_string(pump.last_number()) +
           ", " + std::string(pump.status().message()) +
           std::string(worker.link->Stats().last_loss.message()) + ", readers " +
           std::to_string(worker.link->Stats().readers);
  }

  std::string Differs(const Leaf& leaf, const Worker& worker) const {
    const std::string where = leaf.name + " of " + worker.name + ": ";
    const auto dump = leaf.registry->Dump(worker.domain, HolderId{worker.name, 0, ""});
    if (!dump.ok()) return where + "unknown";
    if (dump->trust != Trust::kExact) return where + "not exact";
    return Of(*dump) == worker.truth ? "" : where + "not equal";
  }

  // No more faults: two and a half minutes for leases, time-outs, digests and snapshots.
  void Calm() {
    network_.StartServer();
    network_.SetLatencyMax(milliseconds(5));
    redis_.SetBytesMax(std::nullopt);
    for (const auto& leaf : leaves_) leaf->acceptor->Arm(std::nullopt);
    const Time until = clock_.Now() + kCalmWithin;
    while (clock_.Now() < until && !Failed()) {
      Pass(milliseconds(100));
      if (Unsettled().empty()) break;
    }
    EXPECT_EQ(Unsettled(), "");
  }

  // A remove or a clear is lost on its way into a leaf, or a store told twice, and the engine is
  // idle from then on.
  void RepairDrift() {
    Worker& worker = *workers_[Below(workers_.size())];
    Leaf& leaf = *leaves_[Below(leaves_.size())];
    if (worker.pump == nullptr) return;
    const auto drift = static_cast<Drift>(Below(3));
    const Stored stored{.tier = Tier::kDevice,
                        .position = 0,
                        .parent = kNoParent,
                        .blocks = {SequenceHash{1000}, SequenceHash{1001}}};
    Tell(&worker, stored);
    Pass(milliseconds(100));
    leaf.acceptor->Arm(drift);
    if (drift == Drift::kLostClear) {
      Tell(&worker, Cleared{});
    } else {
      Tell(&worker, Removed{.tier = stored.tier, .blocks = stored.blocks});
    }
    const Time spoiled = clock_.Now();
    do {
      Pass(milliseconds(20));
    } while (!Different().empty() && clock_.Now() - spoiled < kRepairedWithin && !Failed());
    drifted_ = !leaf.acceptor->armed();  // else a window of one batch: told by a snapshot
    EXPECT_EQ(Different(), "") << "drift " << static_cast<int>(drift);
  }

  std::mt19937_64 random_;
  ManualClock clock_;
  SimulatedRedis redis_;
  SimulatedRedisNetwork network_;
  RedisLogOptions log_;
  SenderOptions sender_;
  Duration latency_{0};
  bool drifting_ = false;
  bool drifted_ = false;
  std::deque<SimulatedRedis::Database> images_;
  std::map<uint64_t, std::map<BatchNumber, Contents>> histories_;  // by instance
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Leaf>> leaves_;
};

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(RedisSimulationTest, LeavesConvergeAndNeverOverCountWhateverHappensToTheLog) {
  ConfigureLog({.component = "simulation", .level_min = LogLevel::kError});
  const uint64_t only = FromEnvironment("KVATLAS_SIMULATION_SEED", 0);
  const uint64_t seeds = FromEnvironment("KVATLAS_SIMULATION_SEEDS", 100);
  uint64_t drifted = 0;
  for (uint64_t seed = only != 0 ? only : 1; seed <= (only != 0 ? only : seeds); ++seed) {
    SCOPED_TRACE("KVATLAS_SIMULATION_SEED=" + std::to_string(seed));
    Simulation simulation(seed);
    simulation.Run();
    if (testing::Test::HasFailure()) return;
    drifted += simulation.drifted() ? 1 : 0;
  }
  if (only == 0) {
    EXPECT_GT(drifted, seeds / 2);
  }
}

}  // namespace
}  // namespace kvatlas
