// Are the best cells of many right while cells are being written? `HolderRegistry::FindBest` beside
// writers, beside what was true, and at rest beside `FindOverlaps`.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/test_seed.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

const Domain kDomain{"m", ""};
constexpr uint32_t kCells = 160, kBest = 16;
constexpr uint32_t kPrompts = 3, kDepth = 12;
constexpr uint32_t kWriters = 3, kReaders = 2;
constexpr int kWritesOfWriter = 4000;

SequenceHash BlockOf(uint32_t prompt, uint32_t depth) {
  return SequenceHash{Xxh3(std::to_string(prompt) + "/" + std::to_string(depth), 1)};
}

std::vector<SequenceHash> PromptOf(uint32_t prompt, uint32_t depth = kDepth) {
  std::vector<SequenceHash> blocks;
  for (uint32_t i = 0; i < depth; ++i) blocks.push_back(BlockOf(prompt, i));
  return blocks;
}

// How deep a cell is in a prompt, over time. One writes; others read what it was since some moment.
class DepthHistory {
 public:
  // Before the deeper is stored, and after what is cut was removed: it is never less than what is
  // true.
  void Say(uint32_t depth) {
    const uint32_t said = said_.load(std::memory_order_relaxed);
    depths_[said].store(static_cast<uint8_t>(depth), std::memory_order_relaxed);
    said_.store(said + 1, std::memory_order_release);
  }
  uint32_t Said() const { return said_.load(std::memory_order_acquire); }
  uint32_t MaxSince(uint32_t said) const {
    uint32_t most = 0;
    for (uint32_t i = said == 0 ? 0 : said - 1; i < Said(); ++i)
      most = std::max<uint32_t>(most, depths_[i].load(std::memory_order_relaxed));
    return most;
  }

 private:
  std::array<std::atomic<uint8_t>, kWritesOfWriter + 1> depths_{};
  std::atomic<uint32_t> said_{0};
};

class Cell {
 public:
  Cell(HolderRegistry* registry, uint32_t number)
      : session_(registry->Accept([](ReceiverMessage) {})) {
    Hello hello{.holder = {.name = "cell-" + std::to_string(number), .rank = 0, .replica = ""},
                .domain = kDomain,
                .block_size = 16,
                .contract_id = "c",
                .schedule = "",
                .epoch = 1,
                .instance_id = number + 1,
                .address = "",
                .labels = {}};
    EXPECT_TRUE(session_->OnMessage(hello).ok());
  }

  // Holds `depth` blocks of the prompt from now on.
  void SetDepth(uint32_t prompt, uint32_t depth, const Load& load) {
    uint32_t& now = depths_[prompt];
    Batch batch{.number = ++number_, .events = {}, .load = load, .digest = {}};
    if (depth > now) {
      histories_[prompt].Say(depth);
      const std::vector<SequenceHash> blocks = PromptOf(prompt, depth);
      batch.events.push_back(Stored{.tier = Tier::kDevice,
                                    .position = now,
                                    .parent = now == 0 ? kNoParent : blocks[now - 1],
                                    .blocks = {blocks.begin() + now, blocks.end()}});
    } else if (depth < now) {
      Removed removed{.tier = Tier::kDevice, .blocks = {}};
      for (uint32_t i = now; i-- > depth;) removed.blocks.push_back(BlockOf(prompt, i));
      batch.events.push_back(std::move(removed));
    }
    EXPECT_TRUE(session_->OnMessage(std::move(batch)).ok());
    if (depth < now) histories_[prompt].Say(depth);
    now = depth;
  }

  const DepthHistory& history(uint32_t prompt) const { return histories_[prompt]; }
  uint32_t depth(uint32_t prompt) const { return depths_[prompt]; }

 private:
  const std::unique_ptr<ReceiverSession> session_;
  BatchNumber number_ = 0;
  uint32_t depths_[kPrompts] = {};
  DepthHistory histories_[kPrompts];
};

using Row = std::tuple<int64_t, double, std::string>;  // best first

Row RowOf(const HolderOverlap& overlap) {
  return {-int64_t{overlap.blocks}, QueuedPrefillBlocksPerWorker(overlap.load),
          overlap.holder->id.name};
}

class FindBestTest : public testing::Test {
 protected:
  FindBestTest() : registry_(Options()) {
    ConfigureLog({.component = "find_best_test", .level_min = LogLevel::kError});
    for (uint32_t i = 0; i < kCells; ++i) cells_.push_back(std::make_unique<Cell>(&registry_, i));
    Refresh();
  }

  static HolderRegistryOptions Options() {
    HolderRegistryOptions options;
    options.contract_id = "c";
    return options;
  }

  std::optional<OverlapAnswer> FindBest(uint32_t prompt) {
    const std::vector<SequenceHash> blocks = PromptOf(prompt);
    return registry_.FindBest(kDomain, {.blocks = blocks}, kBest);
  }

  // The order by load is of a tick after a query.
  void Refresh() {
    FindBest(0);
    registry_.Tick();
  }

  void Write(uint32_t writer, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < kWritesOfWriter; ++i) {
      const auto cell = static_cast<uint32_t>(random() % (kCells / kWriters)) * kWriters + writer;
      cells_[cell]->SetDepth(static_cast<uint32_t>(random() % kPrompts),
                             static_cast<uint32_t>(random() % (kDepth + 1)),
                             Load{.running_requests = static_cast<uint32_t>(random() % 100)});
    }
  }

  void Read(uint64_t seed, const std::atomic<bool>& stop) {
    std::mt19937_64 random(seed);
    std::vector<uint32_t> said(kCells);
    while (!stop.load()) {
      const auto prompt = static_cast<uint32_t>(random() % kPrompts);
      for (uint32_t i = 0; i < kCells; ++i) said[i] = cells_[i]->history(prompt).Said();
      const std::optional<OverlapAnswer> best = FindBest(prompt);
      if (!best.has_value()) continue;
      EXPECT_LE(best->holders.size(), kBest);
      uint32_t deepest = kDepth;
      std::vector<bool> seen(kCells, false);
      for (const HolderOverlap& of : best->holders) {
        const auto cell = static_cast<uint32_t>(std::stoul(of.holder->id.name.substr(5)));
        EXPECT_FALSE(seen[cell]) << "no cell is named twice";
        seen[cell] = true;
        EXPECT_LE(of.blocks, deepest) << "deepest first";
        deepest = of.blocks;
        EXPECT_LE(of.blocks, cells_[cell]->history(prompt).MaxSince(said[cell]))
            << "more than it had at any instant of the question";
      }
      answers_.fetch_add(1);
    }
  }

  HolderRegistry registry_;
  std::vector<std::unique_ptr<Cell>> cells_;
  std::atomic<uint64_t> answers_{0};
};

TEST_F(FindBestTest, NeverSaysTooMuchWhileCellsAreWrittenAndIsWhatAllAnswersSayAtRest) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(SeedText(seed));
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers, writers;
  for (uint32_t i = 0; i < kReaders; ++i)
    readers.emplace_back([&, i] { Read(seed + 100 + i, stop); });
  std::thread ticks([&] {
    while (!stop.load()) registry_.Tick();
  });
  for (uint32_t i = 0; i < kWriters; ++i) writers.emplace_back([&, i] { Write(i, seed + i); });
  for (std::thread& writer : writers) writer.join();
  EXPECT_TRUE(Await([&] { return answers_.load() > 0; }, std::chrono::seconds(60)));
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  ticks.join();
  Refresh();
  for (uint32_t prompt = 0; prompt < kPrompts; ++prompt) {
    SCOPED_TRACE(prompt);
    const std::vector<SequenceHash> blocks = PromptOf(prompt);
    const std::optional<OverlapAnswer> best = FindBest(prompt);
    ASSERT_TRUE(best.has_value());
    const absl::StatusOr<OverlapAnswer> all =
        registry_.FindOverlaps(kDomain, {.blocks = blocks}, /*all_holders=*/true);
    ASSERT_TRUE(all.ok()) << all.status();
    ASSERT_EQ(all->holders.size(), kCells);
    std::vector<Row> wanted, got;
    for (const HolderOverlap& of : all->holders) {
      const auto cell = static_cast<uint32_t>(std::stoul(of.holder->id.name.substr(5)));
      EXPECT_EQ(of.blocks, cells_[cell]->depth(prompt));
      wanted.push_back(RowOf(of));
    }
    std::sort(wanted.begin(), wanted.end());
    wanted.resize(kBest);
    for (const HolderOverlap& of : best->holders) got.push_back(RowOf(of));
    EXPECT_EQ(got, wanted);
    Refresh();
  }
}

}  // namespace
}  // namespace kvatlas
