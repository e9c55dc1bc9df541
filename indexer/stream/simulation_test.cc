// Sender and receiver converge whatever the network does: seeded histories of stores, removals,
// clears, layouts, lost, doubled, reordered and late messages, broken connections, restarts of
// either end, and wall clocks that jump, in simulated time.
//
// After every step: what a receiver holds under exact trust is what the sender held after the batch
// that the receiver says it has applied. After the faults stop: both ends are equal within bounded
// simulated time.
//
// A failure prints its seed; KVATLAS_SIMULATION_SEED=n runs only that one,
// KVATLAS_SIMULATION_SEEDS=n that many.

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/stream/messages.h"
#include "indexer/stream/receiver.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender.h"
#include "indexer/stream/validate.h"

namespace kvatlas {
namespace {

using Contents = std::map<uint64_t, uint8_t>;  // block to its tiers

// Blocks of side classes have names that say which.
constexpr uint64_t kSideBlocks = 1'000'000;
SideClass SideOf(uint64_t block) { return static_cast<SideClass>(block / kSideBlocks); }

// A slow and obviously right twin of a resident set, for both ends.
class Holdings : public HoldingsSink {
 public:
  // Stores that go beyond are shed.
  explicit Holdings(size_t blocks_max) : blocks_max_(blocks_max) {}

  absl::Status Apply(const Event& event) override {
    if (const Stored* stored = std::get_if<Stored>(&event)) {
      for (const SequenceHash block : stored->blocks) {
        EXPECT_EQ(stored->side, SideOf(Raw(block)));
        if (contents_.count(Raw(block)) == 0 && contents_.size() >= blocks_max_) {
          return absl::ResourceExhaustedError("full");
        }
        contents_[Raw(block)] |= TierMask(stored->tier).bits();
      }
    } else if (const Removed* removed = std::get_if<Removed>(&event)) {
      for (const SequenceHash block : removed->blocks) {
        EXPECT_EQ(removed->side, SideOf(Raw(block)));
        Drop(Raw(block), TierMask(removed->tier));
      }
    } else {
      std::vector<uint64_t> blocks;
      for (const auto& [block, tiers] : contents_) blocks.push_back(block);
      for (const uint64_t block : blocks) Drop(block, std::get<Cleared>(event).tiers);
    }
    return absl::OkStatus();
  }
  void SetLoad(const Load& load) override { load_ = load; }
  void SetLayout(const CacheLayout& layout) override { layout_ = layout; }
  void ForEachHeld(const std::function<void(SequenceHash, TierMask, SideClass)>& visit) override {
    for (const auto& [block, tiers] : contents_)
      visit(SequenceHash{block}, TierMask(tiers), SideOf(block));
  }
  Digest CurrentDigest() override {
    Digest digest;
    for (const auto& [block, tiers] : contents_) {
      for (int tier = 0; tier < kTiers; ++tier) {
        if (tiers >> tier & 1) digest.Add(static_cast<Tier>(tier), SequenceHash{block});
      }
    }
    return digest;
  }

  const Contents& contents() const { return contents_; }
  std::optional<Load> load() const { return load_; }
  const CacheLayout& layout() const { return layout_; }
  void LoseOne() {
    if (!contents_.empty()) contents_.erase(contents_.begin());
  }
  void SetBlocksMax(size_t blocks_max) { blocks_max_ = blocks_max; }

 private:
  void Drop(uint64_t block, TierMask tiers) {
    const auto found = contents_.find(block);
    if (found == contents_.end()) return;
    found->second &= ~tiers.bits();
    if (found->second == 0) contents_.erase(found);
  }

  size_t blocks_max_;
  Contents contents_;
  std::optional<Load> load_;
  CacheLayout layout_;
};

// A host's: the wall time may be wrong.
class HostClock : public Clock {
 public:
  explicit HostClock(const Clock* right) : right_(right) {}
  Time Now() const override { return right_->Now(); }
  uint64_t WallNs() const override {
    return right_->WallNs() + static_cast<uint64_t>(ahead_ / Duration(1));
  }
  void SetAhead(std::chrono::hours ahead) { ahead_ = ahead; }

 private:
  const Clock* const right_;
  std::chrono::hours ahead_{0};
};

// The holdings of a sender after a batch.
struct Truth {
  Contents contents;
  CacheLayout layout;
};

class Simulation {
 public:
  // 0 receivers: as the seed has it.
  explicit Simulation(uint64_t seed, uint64_t receivers = 0) : random_(seed) {
    sender_options_.window_batches = 1 + Below(40);
    receiver_options_.credit_batches = 1 + Below(20);
    loss_ = Below(3) == 0 ? 0 : static_cast<int>(Below(15));
    double_ = static_cast<int>(Below(10));
    ordered_ = Below(2) == 0;
    drift_ = Below(3) == 0;
    shedding_ = Below(5) == 0;
    jumping_ = Below(3) == 0;
    sender_options_.clock = &sender_clock_;
    const uint64_t any = 1 + Below(3);
    receivers_ = std::vector<Receiver>(receivers == 0 ? any : receivers);
    senders_.resize(receivers_.size());
    StartSender(/*keep=*/false);
    for (Receiver& receiver : receivers_) StartReceiver(&receiver);
  }

  // Without faults, but that a snapshot's parts are lost, `times` in a row: how long until all is
  // well?
  Duration RepairsALostSnapshotIn(int times) {
    faults_ = false;
    while (truth_.empty()) Work();
    Calm();
    snapshots_to_lose_ = times;
    receivers_[0].holdings->LoseOne();
    receivers_[0].touched = true;
    Time lost_at{0};
    for (int step = 0; step < 3000 && !Failed(); ++step) {
      const int before = snapshots_to_lose_;
      Pass(std::chrono::milliseconds(10));
      if (before == times && snapshots_to_lose_ < times) lost_at = now();
      if (lost_at != Time(0) && snapshots_to_lose_ == 0 && Settled()) return now() - lost_at;
    }
    return Duration::max();
  }

  void Run() {
    const int steps = 200 + static_cast<int>(Below(400));
    for (int step = 0; step < steps && !Failed(); ++step) {
      Disturb();
      Work();
      Pass(std::chrono::milliseconds(Below(400)));
    }
    Calm();
  }

 private:
  struct InFlight {
    Time at;
    std::optional<SenderMessage> up;
    std::optional<ReceiverMessage> down;
  };
  // One sender's connection to its receiver, in the middle of which messages are.
  struct Sender {
    std::unique_ptr<StreamSender> stream;
    std::map<BatchNumber, Truth> history;
    bool connected = false;
    bool session_welcomed = false;  // the receiver takes messages of this connection
    std::vector<InFlight> wire;
    Time latest_up{0}, latest_down{0};
  };
  struct Receiver {
    std::unique_ptr<HostClock> clock;
    std::unique_ptr<Holdings> holdings;
    std::unique_ptr<StreamReceiver> stream;
    bool touched = false;  // the test damaged what it holds
  };

  static bool Failed() { return testing::Test::HasFailure(); }
  uint64_t Below(uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n - 1)(random_); }
  bool Percent(int percent) { return faults_ && static_cast<int>(Below(100)) < percent; }
  Time now() const { return clock_.Now(); }

  // One engine: a resident set, and a stream to each receiver. `keep`: the same contents under a
  // new epoch.
  void StartSender(bool keep) {
    if (!keep) {
      resident_ = std::make_unique<ResidentSet>();
      truth_.clear();
    }
    // A sender that starts anew knows its classes, or learns them.
    if (!keep && Below(3) == 0) resident_->SetLayout(RandomLayout());
    last_load_.reset();
    // Clocks of machines go back: the epoch may be below the one before.
    const Epoch epoch = sender_clock_.WallNs() - Below(500) * 1'000'000;
    instance_ = random_();
    for (Sender& sender : senders_) {
      Break(&sender, static_cast<size_t>(&sender - senders_.data()));
      SenderIdentity identity;
      identity.holder.name = "worker";
      identity.domain.model = "model";
      identity.block_size = 16;
      identity.epoch = epoch;
      identity.instance_id = instance_;
      sender.stream =
          std::make_unique<StreamSender>(sender_options_, std::move(identity), resident_.get());
      sender.history.clear();
      sender.history[sender.stream->last_number()] = Held();
    }
  }
  Truth Held() const { return {truth_, resident_->layout()}; }

  void StartReceiver(Receiver* receiver) {
    Break(&senders_[receiver - receivers_.data()], receiver - receivers_.data());
    receiver->holdings = std::make_unique<Holdings>(shedding_ ? 60 : 1 << 20);
    if (receiver->clock == nullptr) receiver->clock = std::make_unique<HostClock>(&clock_);
    ReceiverOptions options = receiver_options_;
    options.clock = receiver->clock.get();
    receiver->stream = std::make_unique<StreamReceiver>(options, receiver->holdings.get());
    receiver->touched = false;
  }

  void Break(Sender* sender, size_t index) {
    if (!sender->connected) return;
    sender->connected = false;
    sender->session_welcomed = false;
    sender->wire.clear();
    sender->stream->OnDisconnected(now());
    if (receivers_[index].stream != nullptr) receivers_[index].stream->OnDisconnected(now());
  }

  void Disturb() {
    if (Percent(1)) StartSender(/*keep=*/Below(2) == 0);
    for (size_t i = 0; i < receivers_.size(); ++i) {
      if (Percent(1)) StartReceiver(&receivers_[i]);
      if (Percent(3)) Break(&senders_[i], i);
      if (drift_ && Percent(1)) {
        receivers_[i].holdings->LoseOne();
        receivers_[i].touched = true;
      }
    }
    if (Percent(2)) clock_.Advance(std::chrono::seconds(Below(60)));
    if (jumping_ && Percent(4)) SetClocks(/*right=*/false);
  }

  // Sets the clock of one host, or of all at once.
  void SetClocks(bool right) {
    const bool all = right || Below(2) == 0;
    const uint64_t which = right ? 0 : Below(receivers_.size() + 1);
    const std::chrono::hours ahead(right || Below(2) == 0 ? 0 : 20 + 10 * Below(4));
    for (size_t i = 0; i < receivers_.size(); ++i)
      if (all || which == i) receivers_[i].clock->SetAhead(ahead);
    if (all || which == receivers_.size()) sender_clock_.SetAhead(ahead);
  }

  // With up to two more side classes than before, which keep their places.
  CacheLayout RandomLayout() {
    CacheLayout layout = resident_->layout();
    layout.main = {.block_size = 16, .drops_last = Below(2) == 0};
    for (uint64_t n = Below(3); n > 0 && layout.sides.size() < 4; --n)
      layout.sides.push_back({.kind = CacheKind::kWindow,
                              .block_size = 16,
                              .window_tokens = static_cast<uint32_t>(1 + Below(100))});
    return layout;
  }

  // A sequence is the multiples of its number, so that sequences share no block and parents are
  // known.
  Event RandomEvent() {
    const Tier tier = static_cast<Tier>(Below(3));
    if (Below(60) == 0) return Cleared{TierMask(static_cast<uint8_t>(1 + Below(15)))};
    const uint64_t sequence = 1 + Below(8);
    const uint64_t from = Below(16), count = 1 + Below(8);
    const uint64_t sides = resident_->layout().sides.size();
    if (sides > 0 && Below(3) == 0) {
      const SideClass side = static_cast<SideClass>(1 + Below(sides));
      std::vector<SequenceHash> names;
      for (uint64_t i = from; i < from + count; ++i)
        names.push_back(SequenceHash{side * kSideBlocks + Raw(Block(sequence, i))});
      if (Below(5) < 2) return Removed{.tier = tier, .blocks = names, .side = side};
      return Stored{.tier = tier, .blocks = names, .side = side};
    }
    std::vector<SequenceHash> blocks;
    for (uint64_t i = from; i < from + count; ++i) blocks.push_back(Block(sequence, i));
    if (Below(5) < 2) return Removed{.tier = tier, .blocks = blocks};
    return Stored{.tier = tier,
                  .position = static_cast<Position>(from),
                  .parent = from == 0 ? kNoParent : Block(sequence, from - 1),
                  .blocks = blocks};
  }
  static SequenceHash Block(uint64_t sequence, uint64_t i) {
    return SequenceHash{sequence * 1000 + i};
  }

  void Work() {
    if (Below(3) == 0) return;
    std::vector<Event> changes;
    if (Below(15) == 0 && resident_->SetLayout(RandomLayout()))
      for (Sender& sender : senders_) sender.stream->NoteLayout();
    for (uint64_t n = Below(4); n > 0; --n) {
      const Event event = RandomEvent();
      for (const Event& change : resident_->Apply(event)) changes.push_back(change);
      ApplyToTruth(event);
    }
    std::optional<Load> load;
    if (Below(4) == 0)
      load = last_load_ = Load{.running_requests = static_cast<uint32_t>(Below(9))};
    for (Sender& sender : senders_) {
      sender.stream->Append(changes, load, now());
      sender.history[sender.stream->last_number()] = Held();
    }
  }

  void ApplyToTruth(const Event& event) {
    Holdings twin(1 << 20);
    for (const auto& [block, tiers] : truth_) {
      for (int tier = 0; tier < kTiers; ++tier) {
        if (tiers >> tier & 1) {
          twin.Apply(Stored{.tier = static_cast<Tier>(tier),
                            .blocks = {SequenceHash{block}},
                            .side = SideOf(block)})
              .IgnoreError();
        }
      }
    }
    twin.Apply(event).IgnoreError();
    truth_ = twin.contents();
  }

  // Time passes; connections come up, messages are made, lost, doubled, delayed and delivered.
  void Pass(Duration by) {
    clock_.Advance(by);
    for (size_t i = 0; i < senders_.size() && !Failed(); ++i) {
      Sender& sender = senders_[i];
      if (!sender.connected && (!faults_ || Below(4) == 0)) {
        sender.connected = true;
        sender.stream->OnConnected(now());
        sender.latest_up = sender.latest_down = now();
      }
      Poll(&sender);
      Deliver(i);
      Poll(&sender);
      std::vector<ReceiverMessage> out;
      receivers_[i].stream->Tick(now(), &out);
      if (sender.session_welcomed) Reply(&sender, std::move(out));
      Check(i);
    }
  }

  void Poll(Sender* sender) {
    while (std::optional<SenderMessage> message = sender->stream->Poll(now())) {
      sender->history[sender->stream->last_number()] = Held();
      const int copies = IsLostPart(*message) || Percent(loss_) ? 0 : Percent(double_) ? 2 : 1;
      for (int i = 0; i < copies; ++i) {
        sender->wire.push_back({Arrival(&sender->latest_up), *message, std::nullopt});
      }
    }
  }

  bool IsLostPart(const SenderMessage& message) {
    const auto* part = std::get_if<SnapshotPart>(&message);
    if (part == nullptr || snapshots_to_lose_ == 0) return false;
    if (part->last) --snapshots_to_lose_;
    return true;
  }

  void Reply(Sender* sender, std::vector<ReceiverMessage> messages) {
    for (ReceiverMessage& message : messages) {
      const int copies = Percent(loss_) ? 0 : Percent(double_) ? 2 : 1;
      for (int i = 0; i < copies; ++i) {
        sender->wire.push_back({Arrival(&sender->latest_down), std::nullopt, message});
      }
    }
  }

  Time Arrival(Time* latest) {
    const Time at = now() + std::chrono::milliseconds(Below(faults_ ? 300 : 5));
    if (!ordered_) return at;
    *latest = std::max(*latest, at);
    return *latest;
  }

  void Deliver(size_t i) {
    Sender& sender = senders_[i];
    std::stable_sort(sender.wire.begin(), sender.wire.end(),
                     [](const InFlight& a, const InFlight& b) { return a.at < b.at; });
    while (sender.connected && !sender.wire.empty() && sender.wire.front().at <= now()) {
      const InFlight next = sender.wire.front();
      sender.wire.erase(sender.wire.begin());
      if (next.down.has_value()) {
        ASSERT_TRUE(sender.stream->OnMessage(*next.down, now()).ok());
        continue;
      }
      const bool hello = std::holds_alternative<Hello>(*next.up);
      if (!hello && !sender.session_welcomed) continue;  // the hello is still under way, or lost
      std::vector<ReceiverMessage> out;
      if (const absl::Status bad = CheckClock(*next.up, *receivers_[i].clock); !bad.ok()) {
        Reply(&sender, {Refuse{.code = bad.code(), .reason = std::string(bad.message())}});
        continue;
      }
      ASSERT_TRUE(receivers_[i].stream->OnMessage(*next.up, now(), &out).ok());
      if (hello) {
        for (const ReceiverMessage& reply : out) {
          if (std::holds_alternative<Welcome>(reply)) sender.session_welcomed = true;
        }
      }
      Reply(&sender, std::move(out));
      Check(i);
    }
  }

  // As a registry does before its receiver is asked.
  static absl::Status CheckClock(const SenderMessage& message, const Clock& clock) {
    const Hello* const hello = std::get_if<Hello>(&message);
    return hello == nullptr ? absl::OkStatus() : CheckEpoch(hello->epoch, clock.WallNs());
  }

  void Check(size_t i) {
    const Sender& sender = senders_[i];
    const Receiver& receiver = receivers_[i];
    ASSERT_TRUE(sender.stream->status().ok()) << sender.stream->status();
    if (receiver.touched || receiver.stream->trust(now()) != Trust::kExact) return;
    if (receiver.stream->instance_id() != instance_) return;  // a sender that is no more
    const auto then = sender.history.find(receiver.stream->applied());
    ASSERT_NE(then, sender.history.end()) << "applied " << receiver.stream->applied();
    ASSERT_EQ(receiver.holdings->contents(), then->second.contents)
        << "after batch " << receiver.stream->applied();
    ASSERT_TRUE(receiver.holdings->layout() == then->second.layout ||
                (receiver.holdings->layout().plain() && then->second.layout.plain()))
        << "after batch " << receiver.stream->applied();
  }

  bool Settled() const {
    for (size_t i = 0; i < senders_.size(); ++i) {
      if (!senders_[i].stream->AtRest()) return false;
      if (receivers_[i].stream->trust(now()) != Trust::kExact) return false;
      if (receivers_[i].holdings->contents() != truth_) return false;
    }
    return true;
  }

  // No more faults: two and a half minutes for time-outs, digests, snapshots after shedding, and
  // all must be equal.
  void Calm() {
    faults_ = false;
    SetClocks(/*right=*/true);
    for (Receiver& receiver : receivers_) receiver.holdings->SetBlocksMax(1 << 20);
    for (int step = 0; step < 3000 && !Failed(); ++step) {
      Pass(std::chrono::milliseconds(50));
      if (step >= 300 && Settled()) break;
    }
    for (size_t i = 0; i < senders_.size() && !Failed(); ++i) {
      const Receiver& receiver = receivers_[i];
      EXPECT_TRUE(senders_[i].stream->AtRest());
      EXPECT_EQ(receiver.stream->trust(now()), Trust::kExact);
      EXPECT_EQ(receiver.holdings->contents(), truth_);
      EXPECT_EQ(receiver.holdings->CurrentDigest(), resident_->digest());
      EXPECT_TRUE(receiver.holdings->layout() == resident_->layout() ||
                  (receiver.holdings->layout().plain() && resident_->layout().plain()));
      EXPECT_EQ(receiver.stream->applied(), senders_[i].stream->last_number());
      if (last_load_.has_value()) {
        EXPECT_EQ(receiver.holdings->load(), last_load_);
      }
    }
  }

  std::mt19937_64 random_;
  ManualClock clock_;
  HostClock sender_clock_{&clock_};
  SenderOptions sender_options_;
  ReceiverOptions receiver_options_;
  int loss_ = 0;
  int double_ = 0;
  bool ordered_ = true;
  bool drift_ = false;
  bool shedding_ = false;
  bool jumping_ = false;  // clocks
  bool faults_ = true;
  int snapshots_to_lose_ = 0;

  std::unique_ptr<ResidentSet> resident_;
  Contents truth_;
  uint64_t instance_ = 0;
  std::optional<Load> last_load_;
  std::vector<Receiver> receivers_;
  std::vector<Sender> senders_;
};

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(SimulationTest, ConvergesAndNeverOverCountsWhateverTheNetworkDoes) {
  const uint64_t only = FromEnvironment("KVATLAS_SIMULATION_SEED", 0);
  const uint64_t seeds = FromEnvironment("KVATLAS_SIMULATION_SEEDS", 200);
  for (uint64_t seed = only != 0 ? only : 1; seed <= (only != 0 ? only : seeds); ++seed) {
    SCOPED_TRACE("KVATLAS_SIMULATION_SEED=" + std::to_string(seed));
    Simulation(seed).Run();
    if (testing::Test::HasFailure()) return;
  }
}

// A receiver repeats what it asks for every second, and is answered.
TEST(SimulationTest, ASnapshotThatIsLostIsSentAgainWithinASecond) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    EXPECT_LE(Simulation(seed, /*receivers=*/1).RepairsALostSnapshotIn(1),
              std::chrono::milliseconds(1100));
    EXPECT_LE(Simulation(seed, /*receivers=*/1).RepairsALostSnapshotIn(3),
              std::chrono::milliseconds(3300));
  }
}

}  // namespace
}  // namespace kvatlas
