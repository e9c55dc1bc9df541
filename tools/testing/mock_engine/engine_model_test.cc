#include "tools/testing/mock_engine/engine_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAreArray;

// Blocks 100, 101, …: sequences that begin with different numbers share nothing.
std::vector<SequenceHash> Blocks(uint64_t first, size_t blocks) {
  std::vector<SequenceHash> run;
  for (size_t i = 0; i < blocks; ++i) run.push_back(SequenceHash{first + i});
  return run;
}

EngineRequest Request(uint64_t id, std::vector<SequenceHash> blocks, uint32_t output_tokens = 10) {
  const uint32_t tokens = static_cast<uint32_t>(blocks.size() * 10);
  return {.id = id,
          .blocks = std::move(blocks),
          .prompt_tokens = tokens,
          .output_tokens = output_tokens};
}

// One block takes 10 ms to prefill, one token 1 ms to decode.
EngineOptions Small(uint64_t capacity) {
  return {.capacity_blocks = capacity,
          .block_size = 10,
          .prefill_tokens_per_s = 1000,
          .decode_ms_per_token = 1,
          .prefill_step_tokens = 20};
}

TEST(EngineModelTest, StoresAPromptAsOneRunAndFindsItAgain) {
  EngineModel engine(Small(8));
  EngineStep step;
  EXPECT_EQ(engine.Submit(5, Request(1, Blocks(100, 3)), &step).cached_blocks, 0u);
  ASSERT_THAT(step.events, ElementsAre(Event(Stored{.blocks = Blocks(100, 3)})));
  EXPECT_THAT(step.admitted,
              ElementsAre(EngineAdmission{
                  .id = 1, .time_ms = 5, .cached_blocks = 0, .ttft_ms = 30, .finish_ms = 45}));
  EngineStep longer;
  EXPECT_EQ(engine.Submit(100, Request(2, Blocks(100, 5)), &longer).cached_blocks, 3u);
  ASSERT_THAT(longer.events,
              ElementsAre(Event(
                  Stored{.position = 3, .parent = SequenceHash{102}, .blocks = Blocks(103, 2)})));
  EXPECT_EQ(longer.admitted[0].ttft_ms, 20);
}

TEST(EngineModelTest, EvictsTheLeastRecentlyUsedAndTailsBeforeHeads) {
  EngineModel engine(Small(6));
  EngineStep step;
  engine.Submit(0, Request(1, Blocks(100, 3)), &step);
  engine.Submit(1000, Request(2, Blocks(200, 3)), &step);
  engine.Submit(2000, Request(3, Blocks(100, 1)),
                &step);  // touches 100, which becomes the most recent
  step = {};
  engine.Submit(3000, Request(4, Blocks(300, 5)), &step);
  ASSERT_EQ(step.events.size(), 2u);
  EXPECT_THAT(std::get<Removed>(step.events[0]).blocks,
              ElementsAre(SequenceHash{102}, SequenceHash{101}, SequenceHash{202},
                          SequenceHash{201}, SequenceHash{200}));
  EXPECT_EQ(std::get<Stored>(step.events[1]).blocks, Blocks(300, 5));
  EXPECT_EQ(engine.CachedPrefix(Blocks(100, 3)), 1u);
}

TEST(EngineModelTest, APromptLargerThanThePoolIsRefusedAndChangesNothing) {
  EngineModel engine(Small(4));
  EngineStep step;
  engine.Submit(0, Request(1, Blocks(100, 4)), &step);
  step = {};
  const EngineArrival arrival = engine.Submit(1, Request(2, Blocks(100, 5)), &step);
  EXPECT_TRUE(arrival.too_long);
  EXPECT_EQ(arrival.cached_blocks, 4u);
  EXPECT_EQ(arrival.held_blocks, 4u);
  EXPECT_TRUE(step.events.empty());
  EXPECT_TRUE(step.admitted.empty());
}

TEST(EngineModelTest, WaitsInOrderUntilRunningOnesFinish) {
  EngineModel engine(Small(4));
  EngineStep step;
  engine.Submit(0, Request(1, Blocks(100, 3)), &step);  // finishes at 40
  engine.Submit(1, Request(2, Blocks(200, 3)), &step);  // does not fit
  engine.Submit(2, Request(3, Blocks(300, 1)), &step);  // would fit, but is behind
  EXPECT_EQ(engine.CurrentLoad().waiting_requests, 2u);
  EXPECT_EQ(step.admitted.size(), 1u);
  engine.AdvanceTo(40, &step);
  ASSERT_EQ(step.admitted.size(), 3u);
  EXPECT_EQ(step.admitted[1].id, 2u);
  EXPECT_EQ(step.admitted[1].ttft_ms, 69);  // from 1 to 70
  EXPECT_EQ(step.admitted[2].ttft_ms, 78);  // from 2, behind the prefill of the other
  EXPECT_EQ(engine.CurrentLoad().waiting_requests, 0u);
}

TEST(EngineModelTest, ASiblingThatWaitedFindsWhatWasStoredMeanwhile) {
  EngineModel engine(Small(3));
  EngineStep step;
  engine.Submit(0, Request(1, Blocks(100, 2)), &step);
  EXPECT_EQ(engine.Submit(0, Request(2, Blocks(200, 2)), &step).cached_blocks, 0u);
  EXPECT_EQ(engine.Submit(0, Request(3, Blocks(200, 2)), &step).cached_blocks, 0u);
  engine.AdvanceTo(EngineModel::kForever, &step);
  ASSERT_EQ(step.admitted.size(), 3u);
  EXPECT_EQ(step.admitted[2].cached_blocks, 1u);  // never the last token
}

TEST(EngineModelTest, LoadFallsStepByStepWhileTimePasses) {
  EngineModel engine(Small(100));
  EngineStep step;
  engine.Submit(0, Request(1, Blocks(100, 5)), &step);  // prefill until 50, in steps of 20
  EXPECT_EQ(engine.CurrentLoad().waiting_prefill_blocks, 5u);
  EXPECT_EQ(engine.CurrentLoad().used_blocks, 5u);
  EXPECT_EQ(engine.CurrentLoad().free_blocks, 95u);
  std::vector<std::pair<double, uint64_t>> seen;
  while (std::optional<double> next = engine.NextEventMs()) {
    engine.AdvanceTo(*next, &step);
    seen.emplace_back(*next, engine.CurrentLoad().waiting_prefill_blocks);
  }
  EXPECT_THAT(seen, ElementsAre(std::pair(20.0, 3u), std::pair(40.0, 1u), std::pair(50.0, 0u),
                                std::pair(60.0, 0u)));
  EXPECT_EQ(engine.CurrentLoad().running_requests, 0u);
  EXPECT_EQ(engine.CurrentLoad().used_blocks, 0u);
}

TEST(EngineModelTest, TimeNeverGoesBack) {
  EngineModel engine(Small(10));
  EngineStep step;
  engine.AdvanceTo(100, &step);
  engine.AdvanceTo(50, &step);
  EXPECT_EQ(engine.now_ms(), 100);
  engine.Submit(20, Request(1, Blocks(100, 1)), &step);
  EXPECT_EQ(step.admitted[0].time_ms, 100);
  engine.AdvanceTo(EngineModel::kForever, &step);
  EXPECT_EQ(engine.now_ms(), 120);
}

TEST(EngineModelTest, AHybridReusesWhatItsSideClassAcceptsAndComputesTheRest) {
  EngineOptions options = Small(100);
  options.hybrid = {.kind = CacheKind::kState, .tokens = 30};
  EngineModel engine(options);
  EngineStep step;
  engine.Submit(0, Request(1, Blocks(100, 8)), &step);
  EXPECT_EQ(step.admitted[0].ttft_ms, 80);
  const EngineArrival arrival = engine.Submit(1000, Request(2, Blocks(100, 8)), &step);
  EXPECT_EQ(arrival.held_blocks, 8u);
  EXPECT_EQ(arrival.cached_blocks, 6u);  // states end at 3, 6 and 8
  EXPECT_EQ(step.admitted[1].cached_blocks, 6u);
  EXPECT_EQ(step.admitted[1].ttft_ms, 20);
  EXPECT_EQ(engine.CachedPrefix(Blocks(100, 8)), 8u);
  EXPECT_THAT(engine.Contents(kMockSide),
              UnorderedElementsAreArray({SequenceHash{102}, SequenceHash{105}, SequenceHash{107}}));
}

// The slow twin: lists searched from end to end, every rule written out.
class SlowEngine {
 public:
  explicit SlowEngine(const EngineOptions& options) : options_(options) {}

  void Submit(double time_ms, const EngineRequest& request) {
    AdvanceTo(time_ms);
    if (request.blocks.size() > options_.capacity_blocks) return;
    waiting_.push_back({now_, request});
    Admit();
  }

  void AdvanceTo(double time_ms) {
    for (;;) {
      auto next =
          std::min_element(running_.begin(), running_.end(),
                           [](const auto& a, const auto& b) { return a.finish < b.finish; });
      if (next == running_.end() || next->finish > time_ms) break;
      now_ = std::max(now_, next->finish);
      const std::vector<SequenceHash> blocks = next->blocks;
      running_.erase(next);
      for (size_t i = blocks.size(); i-- > 0;) {
        if (!InUse(blocks[i])) free_.push_back(blocks[i]);
      }
      Admit();
    }
    now_ = std::max(now_, time_ms);
  }

  size_t Prefix(const std::vector<SequenceHash>& sequence) const {
    size_t prefix = 0;
    while (prefix < sequence.size() && cached_.contains(sequence[prefix])) ++prefix;
    return prefix;
  }

  // Never the last token.
  size_t Reused(const std::vector<SequenceHash>& sequence) const {
    return std::min(Prefix(sequence), sequence.size() - 1);
  }

  const std::set<SequenceHash>& cached() const { return cached_; }
  const std::vector<EngineAdmission>& admitted() const { return admitted_; }
  size_t waiting() const { return waiting_.size(); }

 private:
  struct Running {
    double finish;
    std::vector<SequenceHash> blocks;
  };

  bool InUse(SequenceHash hash) const {
    return std::any_of(running_.begin(), running_.end(), [&](const Running& r) {
      return std::find(r.blocks.begin(), r.blocks.end(), hash) != r.blocks.end();
    });
  }

  void Admit() {
    while (!waiting_.empty()) {
      const auto [arrival, request] = waiting_.front();
      const size_t prefix = Prefix(request.blocks);
      const size_t reused = Reused(request.blocks);
      std::vector<SequenceHash> free = free_;
      for (size_t i = 0; i < prefix; ++i) std::erase(free, request.blocks[i]);
      const size_t needed = request.blocks.size() - prefix;
      const size_t empty = options_.capacity_blocks - cached_.size();
      if (needed > free.size() + empty) return;
      free_ = free;
      for (size_t i = prefix; i < request.blocks.size(); ++i) {
        if (cached_.size() == options_.capacity_blocks) {
          cached_.erase(free_.front());
          free_.erase(free_.begin());
        }
        cached_.insert(request.blocks[i]);
      }
      const double tokens = request.prompt_tokens - double(reused) * options_.block_size;
      prefill_free_ = std::max(now_, prefill_free_) + tokens * 1000 / options_.prefill_tokens_per_s;
      const double finish = prefill_free_ + request.output_tokens * options_.decode_ms_per_token;
      running_.push_back({finish, request.blocks});
      admitted_.push_back({request.id, now_, uint32_t(reused), prefill_free_ - arrival, finish});
      waiting_.pop_front();
    }
  }

  const EngineOptions options_;
  double now_ = 0;
  double prefill_free_ = 0;
  std::set<SequenceHash> cached_;
  std::vector<SequenceHash> free_;  // least recently used first
  std::deque<std::pair<double, EngineRequest>> waiting_;
  std::vector<Running> running_;
  std::vector<EngineAdmission> admitted_;
};

void ApplyTo(const std::vector<Event>& events, std::set<SequenceHash>* contents) {
  for (const Event& event : events) {
    if (const auto* stored = std::get_if<Stored>(&event)) {
      for (SequenceHash hash : stored->blocks) EXPECT_TRUE(contents->insert(hash).second);
      EXPECT_EQ(stored->position == 0, stored->parent == kNoParent);
      EXPECT_TRUE(stored->position == 0 || contents->contains(stored->parent));
    } else if (const auto* removed = std::get_if<Removed>(&event)) {
      for (SequenceHash hash : removed->blocks) EXPECT_EQ(contents->erase(hash), 1u);
    }
  }
}

// A prompt from a small tree of prefixes.
std::vector<SequenceHash> RandomPrompt(std::mt19937_64& random, size_t blocks_max) {
  std::vector<LocalHash> locals(1 + random() % blocks_max);
  for (LocalHash& local : locals) local = LocalHash{1 + (random() % 3 == 0 ? random() % 3 : 0)};
  return SequenceHashes(locals);
}

void RunTwins(uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const EngineOptions options = Small(5 + random() % 40);
  EngineModel engine(options);
  SlowEngine slow(options);
  std::set<SequenceHash> contents;
  std::vector<EngineAdmission> admitted;
  double time_ms = 0;
  for (uint64_t i = 0; i < 400 && !testing::Test::HasFailure(); ++i) {
    time_ms += double(random() % 120);
    EngineStep step;
    const std::vector<SequenceHash> prompt = RandomPrompt(random, options.capacity_blocks + 2);
    if (random() % 4 == 0) {
      engine.AdvanceTo(time_ms, &step);
      slow.AdvanceTo(time_ms);
    } else {
      const EngineRequest request = Request(i, prompt, uint32_t(random() % 100));
      slow.AdvanceTo(time_ms);
      const size_t expected = slow.Reused(prompt);
      slow.Submit(time_ms, request);
      EXPECT_EQ(engine.Submit(time_ms, request, &step).cached_blocks, expected);
    }
    ApplyTo(step.events, &contents);
    admitted.insert(admitted.end(), step.admitted.begin(), step.admitted.end());
    EXPECT_EQ(contents, slow.cached());
    EXPECT_THAT(engine.Contents(), UnorderedElementsAreArray(contents));
    EXPECT_EQ(engine.CachedPrefix(prompt), slow.Prefix(prompt));
    EXPECT_EQ(engine.CurrentLoad().waiting_requests, slow.waiting());
  }
  EXPECT_EQ(admitted, slow.admitted());
}

TEST(EngineModelTest, DoesWhatASlowTwinDoesOnRandomRequests) {
  for (uint64_t seed = 1; seed <= 20; ++seed) RunTwins(seed);
}

}  // namespace
}  // namespace kvatlas
