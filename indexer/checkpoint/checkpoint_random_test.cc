// Does a leaf that is killed at any moment, with a checkpoint from any earlier one, end with what
// its publishers hold? Random calls, against the publishers' own memory.
//
// KVATLAS_CHECKPOINT_SEED=n runs that seed alone.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/overlap.h"
#include "indexer/checkpoint/checkpoint_test_util.h"
#include "indexer/checkpoint/checkpointer.h"
#include "indexer/checkpoint/fault_files.h"

namespace kvatlas {
namespace {

constexpr char kDirectory[] = "/checkpoints";
constexpr uint64_t kSeeds = 60;
constexpr int kSteps = 400;

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    clock_.Advance(std::chrono::hours(1));
    Start();
    const uint64_t publishers = 1 + Below(4);
    for (uint64_t i = 0; i < publishers; ++i) AddPublisher(i);
  }

  void Step() {
    const uint64_t kind = Below(1000);
    TestPublisher& publisher = *publishers_[Below(publishers_.size())];
    if (kind < 500) {
      publisher.ChangeSomething(&random_);
    } else if (kind < 850) {
      if (!publisher.connected()) publisher.Connect(&leaf_->registry());
      publisher.Exchange(static_cast<int>(Below(30)));
    } else if (kind < 880) {
      publisher.Disconnect();
    } else if (kind < 940) {
      Log("checkpoint");
      ASSERT_TRUE(leaf_->checkpointer().WriteNow().ok());
    } else if (kind < 960) {
      Pass(std::chrono::milliseconds(Below(20000)));
    } else if (kind < 975) {
      Log("restart of a publisher");
      const uint64_t i = Below(publishers_.size());
      publishers_[i].reset();
      AddPublisher(i);
    } else if (kind < 980) {
      Spoil();
    } else {
      Kill();
    }
  }

  // Quiet, connected publishers are answered exactly, by the leaf and by any that takes over.
  void ExpectAtRest() {
    for (int round = 0; round < 200; ++round) {
      bool rest = true;
      for (const auto& publisher : publishers_) {
        if (!publisher->connected()) publisher->Connect(&leaf_->registry());
        publisher->Exchange(1000);
        rest = rest && publisher->AtRest() && Trusted(*publisher);
      }
      if (rest) break;
      Pass(std::chrono::milliseconds(500));
    }
    AllContents expected;
    for (const auto& publisher : publishers_) {
      EXPECT_TRUE(publisher->AtRest()) << Story();
      EXPECT_TRUE(Trusted(*publisher)) << Story();
      expected[{publisher->domain(), publisher->holder()}] = publisher->contents();
      EXPECT_EQ(leaf_->LayoutOf(publisher->domain(), publisher->holder()), publisher->layout())
          << Story();
    }
    EXPECT_EQ(leaf_->Contents(), expected) << Story();
  }

  void Kill() {
    Log("kill");
    for (const auto& publisher : publishers_) publisher->Disconnect();
    leaf_.reset();
    Pass(std::chrono::milliseconds(Below(3) == 0 ? Below(60000) : 100));
    Start();
    leaf_->checkpointer().Restore().status().IgnoreError();  // spoiled ones are refused
    for (const auto& publisher : publishers_) {
      const auto answer = leaf_->AnswerOf(publisher->domain(), publisher->holder());
      if (answer.has_value()) {
        EXPECT_NE(answer->trust, Trust::kExact) << Story();
      }
    }
  }

 private:
  uint64_t Below(uint64_t limit) { return random_() % limit; }

  void Start() { leaf_ = std::make_unique<CheckpointedLeaf>(&clock_, &files_, kDirectory); }

  void AddPublisher(uint64_t i) {
    SenderOptions options;
    options.window_batches = uint64_t{1} << Below(8);
    auto publisher =
        std::make_unique<TestPublisher>(Domain{i % 2 == 0 ? "llama" : "qwen", ""},
                                        "w" + std::to_string(i), ++epoch_, options, &clock_);
    if (i < publishers_.size()) {
      publishers_[i] = std::move(publisher);
    } else {
      publishers_.push_back(std::move(publisher));
    }
  }

  void Pass(Duration duration) {
    clock_.Advance(duration);
    leaf_ == nullptr ? void() : leaf_->registry().Tick();
  }

  bool Trusted(const TestPublisher& publisher) const {
    const auto answer = leaf_->AnswerOf(publisher.domain(), publisher.holder());
    return answer.has_value() && answer->trust == Trust::kExact;
  }

  // Flips a bit of some checkpoint.
  void Spoil() {
    const std::vector<std::string> paths = files_.Paths();
    if (paths.empty()) return;
    Log("a bit turns");
    std::string* bytes = files_.BytesOf(paths[Below(paths.size())]);
    (*bytes)[Below(bytes->size())] ^= static_cast<char>(1 << Below(8));
  }

  void Log(const std::string& what) { story_ += what + ", "; }
  std::string Story() const { return story_; }

  std::mt19937_64 random_;
  ManualClock clock_;
  FaultFiles files_;
  std::unique_ptr<CheckpointedLeaf> leaf_;
  std::vector<std::unique_ptr<TestPublisher>> publishers_;  // go first
  Epoch epoch_ = 1000;
  std::string story_;
};

void RunSeed(uint64_t seed) {
  SCOPED_TRACE("KVATLAS_CHECKPOINT_SEED=" + std::to_string(seed));
  World world(seed);
  for (int step = 0; step < kSteps && !testing::Test::HasFailure(); ++step) {
    world.Step();
    if (step % 100 == 99) world.ExpectAtRest();
  }
  world.Kill();
  world.ExpectAtRest();
}

TEST(CheckpointRandomTest, CheckpointRestoreAndTheRestOfTheStreamEqualWhatPublishersHold) {
  if (const char* seed = std::getenv("KVATLAS_CHECKPOINT_SEED"); seed != nullptr)
    return RunSeed(std::strtoull(seed, nullptr, 10));
  for (uint64_t seed = 1; seed <= kSeeds && !testing::Test::HasFailure(); ++seed) RunSeed(seed);
}

}  // namespace
}  // namespace kvatlas
