#include "indexer/registry/holder_handle.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/stream/messages.h"

namespace kvatlas {
namespace {

const Domain kLlama{"llama-70b", ""};

std::vector<SequenceHash> Sequence(uint64_t first, size_t blocks) {
  std::vector<SequenceHash> sequence;
  for (uint64_t i = 0; i < blocks; ++i) sequence.push_back(SequenceHash{first + i});
  return sequence;
}

HolderInfo Named(const std::string& name, uint32_t rank = 0) {
  return {.id = {name, rank, ""}, .address = "", .labels = {}};
}

class LocalHolderTest : public testing::Test {
 protected:
  LocalHolderTest() {
    HolderRegistryOptions options;
    options.contract_id = "xxh3-chain-1:1337";
    options.clock = &clock_;
    registry_ = std::make_unique<HolderRegistry>(options);
  }

  std::unique_ptr<HolderHandle> Add(const std::string& name) {
    return *registry_->AddLocal(kLlama, 16, Named(name));
  }

  // By name; empty also when there is no domain.
  std::map<std::string, TierReach> Reaches(const std::vector<SequenceHash>& blocks) {
    std::map<std::string, TierReach> reaches;
    registry_
        ->VisitReaches(kLlama, blocks,
                       [&](const HolderInfo& holder, const TierReach& reach) {
                         reaches[holder.id.name] = reach;
                       })
        .IgnoreError();
    return reaches;
  }

  ManualClock clock_;
  std::unique_ptr<HolderRegistry> registry_;
};

TEST_F(LocalHolderTest, IsFoundWithoutAStream) {
  const std::unique_ptr<HolderHandle> engine = Add("7");
  ASSERT_TRUE(engine->Apply(Stored{.blocks = Sequence(100, 10)}).ok());
  const OverlapAnswer answer = *registry_->FindOverlaps(kLlama, {.blocks = Sequence(100, 12)});
  ASSERT_EQ(answer.holders.size(), 1u);
  EXPECT_EQ(answer.holders[0].blocks, 10u);
  EXPECT_EQ(answer.holders[0].holder->id.name, "7");
  EXPECT_EQ(answer.holders[0].trust, Trust::kExact);
}

TEST_F(LocalHolderTest, HasNoLease) {
  const std::unique_ptr<HolderHandle> engine = Add("7");
  ASSERT_TRUE(engine->Apply(Stored{.blocks = Sequence(100, 10)}).ok());
  clock_.Advance(std::chrono::hours(48));
  registry_->Tick();
  EXPECT_EQ(Reaches(Sequence(100, 10)).at("7").any, 10u);
  const OverlapAnswer answer = *registry_->FindOverlaps(kLlama, {.blocks = Sequence(100, 10)});
  EXPECT_EQ(answer.holders.at(0).age, std::chrono::hours(48));
  engine->Heard();
  EXPECT_EQ(registry_->FindOverlaps(kLlama, {.blocks = Sequence(100, 10)})->holders.at(0).age,
            Duration::zero());
}

TEST_F(LocalHolderTest, IsAsItWasWhenUnmasked) {
  const std::unique_ptr<HolderHandle> engine = Add("7");
  ASSERT_TRUE(engine->Apply(Stored{.blocks = Sequence(100, 10)}).ok());
  engine->SetMasked(true);
  EXPECT_TRUE(Reaches(Sequence(100, 10)).empty());
  ASSERT_TRUE(engine->Apply(Removed{.blocks = {SequenceHash{109}}}).ok());
  engine->SetMasked(false);
  EXPECT_EQ(Reaches(Sequence(100, 10)).at("7").any, 9u);
}

TEST_F(LocalHolderTest, TrustIsWhatItsReaderSays) {
  const std::unique_ptr<HolderHandle> engine = Add("7");
  ASSERT_TRUE(engine->Apply(Stored{.blocks = Sequence(100, 1)}).ok());
  engine->SetTrust(Trust::kDegraded);
  EXPECT_EQ(registry_->FindOverlaps(kLlama, {.blocks = Sequence(100, 1)})->holders.at(0).trust,
            Trust::kDegraded);
  EXPECT_EQ(registry_->StatsOf(kLlama)->holders.at(0).trust, Trust::kDegraded);
  clock_.Advance(std::chrono::seconds(1));
  engine->SetTrust(Trust::kExact);
  EXPECT_EQ(registry_->FindOverlaps(kLlama, {.blocks = Sequence(100, 1)})->holders.at(0).trust,
            Trust::kExact);
}

TEST_F(LocalHolderTest, ReachesAreCountedBlockByBlockOverTheTiers) {
  const std::unique_ptr<HolderHandle> engine = Add("7");
  const std::unique_ptr<HolderHandle> cold = Add("8");
  const std::vector<SequenceHash> blocks = Sequence(100, 6);
  // Device 0-1 and 3, host 2, disk 4-5.
  const auto store = [&](HolderHandle* holder, Tier tier, Position from, size_t count) {
    Stored stored;
    stored.tier = tier;
    stored.position = from;
    if (from > 0) stored.parent = blocks[from - 1];
    stored.blocks.assign(blocks.begin() + from, blocks.begin() + from + static_cast<long>(count));
    ASSERT_TRUE(holder->Apply(stored).ok());
  };
  store(engine.get(), Tier::kDevice, 0, 2);
  EXPECT_EQ(Reaches(blocks).at("7").any, 2u);
  EXPECT_EQ(Reaches(blocks).at("7").device_host, 2u);
  store(engine.get(), Tier::kHost, 2, 1);
  store(engine.get(), Tier::kDevice, 3, 1);
  EXPECT_EQ(Reaches(blocks).at("7").device, 2u);
  EXPECT_EQ(Reaches(blocks).at("7").device_host, 4u);
  EXPECT_EQ(Reaches(blocks).at("7").any, 4u);
  store(engine.get(), Tier::kDisk, 4, 2);
  store(cold.get(), Tier::kExternal, 0, 3);
  EXPECT_EQ(Reaches(blocks).at("7").device_host, 4u);
  EXPECT_EQ(Reaches(blocks).at("7").any, 6u);
  EXPECT_EQ(Reaches(blocks).at("8").device, 0u);
  EXPECT_EQ(Reaches(blocks).at("8").any, 3u);
}

TEST_F(LocalHolderTest, ItsNameIsTakenUntilItGoes) {
  std::unique_ptr<HolderHandle> engine = Add("7");
  EXPECT_TRUE(absl::IsAlreadyExists(registry_->AddLocal(kLlama, 16, Named("7")).status()));
  EXPECT_TRUE(registry_->AddLocal(kLlama, 16, Named("7", 1)).ok());
  ASSERT_TRUE(engine->Apply(Stored{.blocks = Sequence(100, 10)}).ok());
  engine.reset();
  EXPECT_TRUE(Reaches(Sequence(100, 10)).empty());
  engine = Add("7");
  EXPECT_TRUE(Reaches(Sequence(100, 10)).empty()) << "a name used again inherits nothing";
}

TEST_F(LocalHolderTest, AStreamOfTheSameNameIsRefused) {
  const std::unique_ptr<HolderHandle> engine = Add("7");
  absl::Status refused;
  std::unique_ptr<ReceiverSession> session = registry_->Accept([&](ReceiverMessage message) {
    if (const Refuse* refuse = std::get_if<Refuse>(&message))
      refused = absl::Status(refuse->code, refuse->reason);
  });
  const absl::Status said = session->OnMessage(Hello{.holder = {"7", 0, ""},
                                                     .domain = kLlama,
                                                     .block_size = 16,
                                                     .contract_id = "xxh3-chain-1:1337",
                                                     .schedule = "",
                                                     .epoch = 1,
                                                     .address = "",
                                                     .labels = {}});
  EXPECT_TRUE(absl::IsFailedPrecondition(said)) << said;
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  ASSERT_TRUE(engine->Apply(Stored{.blocks = Sequence(100, 3)}).ok());
  EXPECT_EQ(Reaches(Sequence(100, 3)).at("7").any, 3u);
}

TEST_F(LocalHolderTest, ADomainWithHoldersIsNotDroppedAndHoldsItsBlockSize) {
  std::unique_ptr<HolderHandle> engine = Add("7");
  EXPECT_FALSE(registry_->DropDomain(kLlama));
  EXPECT_TRUE(absl::IsFailedPrecondition(registry_->AddLocal(kLlama, 32, Named("8")).status()));
  engine.reset();
  EXPECT_TRUE(registry_->DropDomain(kLlama));
  EXPECT_FALSE(registry_->DropDomain(kLlama)) << "it is gone";
  EXPECT_TRUE(absl::IsNotFound(registry_->BlockSizeOf(kLlama).status()));
  EXPECT_TRUE(registry_->AddLocal(kLlama, 32, Named("8")).ok());
}

TEST_F(LocalHolderTest, AnEmptyDomainGivesWayToAnotherBlockSize) {
  Add("7").reset();
  EXPECT_EQ(*registry_->BlockSizeOf(kLlama), 16u);
  const auto engine = registry_->AddLocal(kLlama, 32, Named("8"));
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ(*registry_->BlockSizeOf(kLlama), 32u);
}

TEST_F(LocalHolderTest, NamesAndSizesAreChecked) {
  EXPECT_TRUE(absl::IsInvalidArgument(registry_->AddLocal({"", ""}, 16, Named("7")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(registry_->AddLocal(kLlama, 0, Named("7")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(registry_->AddLocal(kLlama, 16, Named("")).status()));
}

// Domains come and go while others ask and feed: no query sees a torn one.
TEST_F(LocalHolderTest, DomainsAreDroppedBesideQuestions) {
  std::atomic<bool> done{false};
  std::thread asker([&] {
    while (!done.load()) {
      for (const auto& [name, reach] : Reaches(Sequence(100, 10))) {
        EXPECT_LE(reach.any, 10u);
        EXPECT_TRUE(name == "a" || name == "b") << name;
      }
    }
  });
  std::vector<std::thread> feeders;
  for (const char* name : {"a", "b"})
    feeders.emplace_back([&, name] {
      for (int i = 0; i < 300; ++i) {
        const absl::StatusOr<std::unique_ptr<HolderHandle>> engine =
            registry_->AddLocal(kLlama, 16, Named(name));
        ASSERT_TRUE(engine.ok()) << engine.status();
        ASSERT_TRUE((*engine)->Apply(Stored{.blocks = Sequence(100, 10)}).ok());
        EXPECT_EQ(Reaches(Sequence(100, 10)).count(name), 1u);
        registry_->DropDomain(kLlama);
        registry_->Tick();
      }
    });
  for (std::thread& feeder : feeders) feeder.join();
  done.store(true);
  asker.join();
  EXPECT_TRUE(registry_->DropDomain(kLlama));
}

}  // namespace
}  // namespace kvatlas
