// Random writers, checked against what each of them knows was true, and when: a clock that all
// threads share stamps every write and every question. No answer may be above the largest overlap
// that was true at some instant of the question, and none may be wrong at all for a holder that was
// not written meanwhile.
//
// The holders write runs of three sequences that part after 16 and after 32 blocks, so that what
// one stores, splits and loses is what another holds. KVATLAS_ROUNDS=N sets the length
// (`index_history_long_test`).

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/index/index_test_util.h"

namespace kvatlas {
namespace {

int Rounds(int usual) {
  const char* const rounds = std::getenv("KVATLAS_ROUNDS");
  return rounds == nullptr ? usual : std::atoi(rounds);
}

// ---- The sequences ----

// A block of the test: one of the three sequences' blocks, each with one place.
struct Block {
  SequenceHash hash{0};
  LocalHash local{0};
};

constexpr int kPaths = 3;
constexpr size_t kDepth = 48;
constexpr size_t kBlocks = 48 + 32 + 16;

class Sequences {
 public:
  Sequences() {
    Fill(0, 0, 0, 48);
    Fill(1, 16, 48, 32);
    Fill(2, 32, 80, 16);
  }

  // Numbers of a sequence's blocks, from the root.
  const std::vector<size_t>& path(int path) const { return paths_[path]; }
  const std::vector<SequenceHash>& chain(int path) const { return chains_[path]; }
  const std::vector<LocalHash>& locals(int path) const { return locals_[path]; }
  SequenceHash hash(size_t block) const { return hashes_[block]; }

  Stored Run(int path, size_t from, size_t to, Tier tier) const {
    const std::vector<SequenceHash>& chain = chains_[path];
    return {.tier = tier,
            .position = static_cast<Position>(from),
            .parent = from == 0 ? kNoParent : chain[from - 1],
            .blocks = {chain.begin() + from, chain.begin() + to},
            .local_hashes = {locals_[path].begin() + from, locals_[path].begin() + to}};
  }

 private:
  // The path shares `shared` blocks with path 0 and goes on with `own` of its own, numbered from
  // `first`.
  void Fill(int path, size_t shared, size_t first, size_t own) {
    for (size_t i = 0; i < shared; ++i) {
      paths_[path].push_back(i);
      locals_[path].push_back(locals_[0][i]);
    }
    for (size_t i = 0; i < own; ++i) {
      paths_[path].push_back(first + i);
      locals_[path].push_back(LocalHash{(path + 1) * 0x9E3779B97F4A7C15u + i});
    }
    chains_[path] = SequenceHashes(locals_[path]);
    for (size_t i = 0; i < paths_[path].size(); ++i) hashes_[paths_[path][i]] = chains_[path][i];
  }

  std::array<std::vector<size_t>, kPaths> paths_;
  std::array<std::vector<SequenceHash>, kPaths> chains_;
  std::array<std::vector<LocalHash>, kPaths> locals_;
  std::array<SequenceHash, kBlocks> hashes_;
};

// A view is a question: a path, in any tier, on the device, or in the host's memory.
constexpr int kMasks = 3;
constexpr int kViews = kPaths * kMasks;
constexpr std::array<TierMask, kMasks> kMaskOf = {TierMask::All(), TierMask(Tier::kDevice),
                                                  TierMask(Tier::kHost)};
using Depths = std::array<uint8_t, kViews>;

// ---- Writers ----

// One event of one holder: from `begin` to `end` on the clock the overlaps went from those before
// it to `after` and, since an event only adds or only takes away, were never above both. A masked
// holder has them as well, and is in no answer.
struct Step {
  uint64_t begin = 0;
  uint64_t end = 0;
  Depths after = {};
  bool masked = false;
};

class Writer {
 public:
  Writer(Index* index, const Sequences& sequences, std::atomic<uint64_t>* clock, uint64_t seed)
      : index_(index), sequences_(sequences), clock_(clock), random_(seed) {
    holder = *index->AddHolder();
    steps.push_back({});
  }

  // A random call.
  void Write();
  // Gives the number back and takes it again; REQUIRES: no other thread adds or removes holders.
  void Renew();
  void StoreRun(int path, size_t from, size_t to, Tier tier);
  void RemoveBlock(int path, size_t at, Tier tier);

  // The holdings that the index must report once there is no writer.
  std::map<uint64_t, TierMask> Held() const;

  HolderIndex holder{0};
  std::vector<Step> steps;

 private:
  size_t Draw(size_t below) { return random_() % below; }
  Depths Overlaps() const;
  void Say(const std::function<void()>& call);
  void Remove();

  Index* const index_;
  const Sequences& sequences_;
  std::atomic<uint64_t>* const clock_;
  std::mt19937_64 random_;
  std::array<TierMask, kBlocks> held_ = {};
  bool masked_ = false;
};

Depths Writer::Overlaps() const {
  Depths depths = {};
  for (int view = 0; view < kViews; ++view) {
    for (size_t block : sequences_.path(view / kMasks)) {
      if (!held_[block].Intersects(kMaskOf[view % kMasks])) break;
      ++depths[view];
    }
  }
  return depths;
}

// The model has changed already; now the index does.
void Writer::Say(const std::function<void()>& call) {
  Step step;
  step.after = Overlaps();
  step.masked = masked_;
  step.begin = clock_->fetch_add(1);
  call();
  step.end = clock_->fetch_add(1);
  steps.push_back(step);
}

void Writer::StoreRun(int path, size_t from, size_t to, Tier tier) {
  for (size_t i = from; i < to; ++i) {
    TierMask& held = held_[sequences_.path(path)[i]];
    held = held | tier;
  }
  Say([&] { index_->Apply(holder, sequences_.Run(path, from, to, tier), nullptr).IgnoreError(); });
}

void Writer::RemoveBlock(int path, size_t at, Tier tier) {
  TierMask& held = held_[sequences_.path(path)[at]];
  held = held & ~TierMask(tier);
  Say([&] {
    const Removed removed = {.tier = tier, .blocks = {sequences_.chain(path)[at]}};
    index_->Apply(holder, removed, nullptr).IgnoreError();
  });
}

void Writer::Remove() {
  const Tier tier = Draw(4) == 0 ? Tier::kHost : Tier::kDevice;
  const int path = static_cast<int>(Draw(kPaths));
  std::vector<size_t> positions;
  const size_t from = Draw(kDepth), step = 1 + Draw(2), end = from + 1 + Draw(kDepth - from);
  for (size_t i = from; i < end; i += step) positions.push_back(i);
  if (Draw(2) == 0) std::reverse(positions.begin(), positions.end());
  if (Draw(4) == 0) std::shuffle(positions.begin(), positions.end(), random_);
  Removed removed = {.tier = tier, .blocks = {}};
  for (size_t position : positions) {
    TierMask& held = held_[sequences_.path(path)[position]];
    held = held & ~TierMask(tier);
    removed.blocks.push_back(sequences_.chain(path)[position]);
  }
  Say([&] { index_->Apply(holder, removed, nullptr).IgnoreError(); });
}

void Writer::Write() {
  const size_t dice = Draw(40);
  if (dice < 20) {
    const size_t from = Draw(2) == 0 ? 0 : Draw(kDepth);
    const size_t to = from + 1 + (Draw(3) == 0 ? 0 : Draw(kDepth - from));
    const int path = static_cast<int>(Draw(kPaths));
    StoreRun(path, from, to, Draw(4) == 0 ? Tier::kHost : Tier::kDevice);
  } else if (dice < 36) {
    Remove();
  } else if (dice == 36) {
    const TierMask tiers = Draw(2) == 0 ? TierMask::All() : TierMask(Tier::kDevice);
    for (TierMask& held : held_) held = held & ~tiers;
    Say([&] { index_->Apply(holder, Cleared{.tiers = tiers}, nullptr).IgnoreError(); });
  } else if (dice == 37) {
    held_ = {};
    Say([&] {
      while (index_->Sweep(holder, 5, nullptr)) {
      }
    });
  } else {
    masked_ = !masked_;
    Say([&] { index_->SetMasked(holder, masked_); });
  }
}

void Writer::Renew() {
  held_ = {};
  masked_ = false;
  Say([&] { index_->RemoveHolder(holder); });
  Say([&] { holder = *index_->AddHolder(); });
}

std::map<uint64_t, TierMask> Writer::Held() const {
  std::map<uint64_t, TierMask> held;
  for (size_t block = 0; block < kBlocks; ++block) {
    if (!held_[block].empty()) held[Raw(sequences_.hash(block))] = held_[block];
  }
  return held;
}

// ---- Readers ----

// One answer about one holder in one view.
struct Seen {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t holder = 0;
  uint8_t view = 0;
  uint8_t blocks = 0;
};

class Reader {
 public:
  Reader(const Index* index, const Sequences& sequences, std::atomic<uint64_t>* clock,
         uint32_t holders, uint64_t seed)
      : index_(index), sequences_(sequences), clock_(clock), holders_(holders), random_(seed) {}

  // Asks in one of the ways there are.
  void Ask();

  std::vector<Seen> seen;
  std::string wrong;

 private:
  void Keep(uint64_t begin, uint64_t end, int view, const std::vector<Overlap>& overlaps);
  void AskTiers(int path);
  void AskSteps(int path);

  const Index* const index_;
  const Sequences& sequences_;
  std::atomic<uint64_t>* const clock_;
  const uint32_t holders_;
  std::mt19937_64 random_;
  OverlapSteps steps_;
};

// Holders that are not in the answer are answers too: 0.
void Reader::Keep(uint64_t begin, uint64_t end, int view, const std::vector<Overlap>& overlaps) {
  std::vector<uint8_t> depths(holders_, 0);
  for (const Overlap& overlap : overlaps) {
    if (Raw(overlap.holder) >= holders_) continue;  // the one that only grows
    uint8_t& depth = depths[Raw(overlap.holder)];
    if (depth != 0) wrong = "a holder twice in one answer";
    if (overlap.blocks == 0 || overlap.blocks > kDepth) wrong = "an overlap that cannot be";
    depth = static_cast<uint8_t>(overlap.blocks);
  }
  for (uint32_t holder = 0; holder < holders_; ++holder)
    seen.push_back({begin, end, holder, static_cast<uint8_t>(view), depths[holder]});
}

void Reader::AskTiers(int path) {
  std::vector<TierOverlap> found;
  const uint64_t begin = clock_->fetch_add(1);
  index_->FindTierOverlaps(
      {.blocks = sequences_.chain(path), .local_hashes = sequences_.locals(path)}, &found);
  const uint64_t end = clock_->fetch_add(1);
  std::array<std::vector<Overlap>, kMasks> views;
  for (const TierOverlap& each : found) {
    views[0].push_back({each.holder, each.blocks});
    for (int tier = 0; tier < 2; ++tier) {
      if (each.by_tier[tier] > 0) views[1 + tier].push_back({each.holder, each.by_tier[tier]});
    }
  }
  for (int mask = 0; mask < kMasks; ++mask) Keep(begin, end, path * kMasks + mask, views[mask]);
}

void Reader::AskSteps(int path) {
  const uint64_t begin = clock_->fetch_add(1);
  index_->FindSteps({.blocks = sequences_.chain(path), .local_hashes = sequences_.locals(path)},
                    &steps_);
  const uint64_t end = clock_->fetch_add(1);
  std::vector<Overlap> found;
  for (size_t step = 0; step < steps_.depths.size(); ++step) {
    for (uint32_t word = 0; word < steps_.words_per_step; ++word) {
      for (uint64_t bits = steps_.holders(step)[word]; bits != 0; bits &= bits - 1) {
        const uint32_t bit = static_cast<uint32_t>(__builtin_ctzll(bits));
        found.push_back({HolderIndex{word * 64 + bit}, steps_.depths[step]});
      }
    }
  }
  Keep(begin, end, path * kMasks, found);
}

void Reader::Ask() {
  const int path = static_cast<int>(random_() % kPaths);
  const size_t kind = random_() % 6;
  if (kind == 0) return AskTiers(path);
  if (kind == 1) return AskSteps(path);
  const int mask = static_cast<int>(random_() % kMasks);
  const OverlapQuery query = {.blocks = sequences_.chain(path),
                              .tiers = kMaskOf[mask],
                              .local_hashes = sequences_.locals(path)};
  std::vector<Overlap> found;
  const uint64_t begin = clock_->fetch_add(1);
  index_->FindOverlaps(query, &found);
  const uint64_t end = clock_->fetch_add(1);
  Keep(begin, end, path * kMasks + mask, found);
}

// ---- The history ----

class History {
 public:
  explicit History(std::string_view kind) : index_(*MakeIndex(kind, {})) {}

  Writer* AddWriter() {
    writers_.push_back(
        std::make_unique<Writer>(index_.get(), sequences_, &clock_, writers_.size() + 1));
    return writers_.back().get();
  }
  Index* index() { return index_.get(); }
  const Sequences& sequences() const { return sequences_; }

  // One thread for each of `bodies`, each called `rounds` times; readers ask until all are done.
  void Run(int rounds, const std::vector<std::function<void(int round)>>& bodies, int readers);

  // The first wrong answer and what is wrong with it, or empty.
  std::string Judge() const;
  // The same at rest, holdings and digests included.
  std::string JudgeAtRest() const;

 private:
  std::string JudgeOne(const Seen& seen) const;

  // Readers stop keeping answers there; they go on asking.
  static constexpr size_t kSeenMax = 1'000'000;

  const Sequences sequences_;
  const std::unique_ptr<Index> index_;
  std::atomic<uint64_t> clock_{1};
  std::vector<std::unique_ptr<Writer>> writers_;
  std::vector<std::unique_ptr<Reader>> readers_;
};

void History::Run(int rounds, const std::vector<std::function<void(int round)>>& bodies,
                  int readers) {
  std::atomic<size_t> running{bodies.size()};
  std::vector<std::thread> threads;
  for (int i = 0; i < readers; ++i) {
    readers_.push_back(std::make_unique<Reader>(index_.get(), sequences_, &clock_,
                                                static_cast<uint32_t>(writers_.size()), 100 + i));
    threads.emplace_back([&running, reader = readers_.back().get()] {
      do {
        if (reader->seen.size() > kSeenMax) reader->seen.clear();
        reader->Ask();
      } while (running.load(std::memory_order_relaxed) != 0);
    });
  }
  for (const auto& body : bodies) {
    threads.emplace_back([&running, &body, rounds] {
      for (int round = 0; round < rounds; ++round) body(round);
      running.fetch_sub(1, std::memory_order_relaxed);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::string History::JudgeOne(const Seen& seen) const {
  const std::vector<Step>& steps = writers_[seen.holder]->steps;
  auto step = std::partition_point(steps.begin(), steps.end(),
                                   [&](const Step& each) { return each.end < seen.begin; });
  const Step& last = *std::prev(step);
  const uint8_t before = last.masked ? 0 : last.after[seen.view];
  const bool was_written = step != steps.end() && step->begin < seen.end;
  uint8_t largest = last.after[seen.view];
  bool was_masked = last.masked;
  for (; step != steps.end() && step->begin < seen.end; ++step) {
    largest = std::max(largest, step->after[seen.view]);
    was_masked = was_masked && step->masked;
  }
  if (was_masked) largest = 0;
  const bool is_right = was_written ? seen.blocks <= largest : seen.blocks == before;
  if (is_right) return "";
  return "holder " + std::to_string(seen.holder) + ", path " + std::to_string(seen.view / kMasks) +
         ", mask " + std::to_string(seen.view % kMasks) + " at " + std::to_string(seen.begin) +
         ".." + std::to_string(seen.end) + ": answered " + std::to_string(seen.blocks) +
         (was_written ? ", at most " + std::to_string(largest) + " was true"
                      : ", no writer and " + std::to_string(before) + " was true");
}

std::string History::Judge() const {
  for (const auto& reader : readers_) {
    if (!reader->wrong.empty()) return reader->wrong;
    for (const Seen& seen : reader->seen) {
      const std::string wrong = JudgeOne(seen);
      if (!wrong.empty()) return wrong;
    }
  }
  return JudgeAtRest();
}

std::string History::JudgeAtRest() const {
  const absl::Status check = index_->Check();
  if (!check.ok()) return check.ToString();
  for (const auto& writer : writers_) {
    const std::string who = "at rest, holder " + std::to_string(Raw(writer->holder));
    const std::vector<Holding> holdings = index_->HoldingsOf(writer->holder);
    std::map<uint64_t, TierMask> held;
    for (const Holding& holding : holdings) held[Raw(holding.block)] = holding.tiers;
    if (held != writer->Held()) return who + ": holdings";
    if (DigestOf(holdings) != index_->DigestOf(writer->holder)) return who + ": digest";
  }
  return "";
}

class IndexHistoryTest : public ::testing::TestWithParam<IndexKind> {
 protected:
  IndexHistoryTest() : history_(GetParam().name) {}

  // The default runs at full length, the others at a part of it.
  static int RoundsOf(int usual) { return Rounds(GetParam().name == "atlas" ? usual : usual / 3); }

  static constexpr int kReaders = 2;
  History history_;
};

INSTANTIATE_TEST_SUITE_P(Structures, IndexHistoryTest,
                         ::testing::ValuesIn(KindsThatClaim(kHoles | kOrphans | kPlaces)),
                         KindName);

TEST_P(IndexHistoryTest, RandomWritersOfTheSameRuns) {
  std::vector<std::function<void(int)>> bodies;
  for (int thread = 0; thread < 4; ++thread) {
    std::vector<Writer*> group;
    for (int i = 0; i < 3; ++i) group.push_back(history_.AddWriter());
    // One holder at a time, so that its events are close together.
    bodies.push_back([group](int round) { group[round / 64 % group.size()]->Write(); });
  }
  history_.Run(RoundsOf(15'000), bodies, kReaders);
  EXPECT_EQ(history_.Judge(), "");
}

// Holders that are not written are exact all the time, whatever others do to the runs they share.
TEST_P(IndexHistoryTest, QuietHoldersAreExactWhileOthersSplitAndMergeTheirRuns) {
  for (size_t depth : {48, 32, 17, 5}) {
    for (int path = 0; path < kPaths; ++path)
      history_.AddWriter()->StoreRun(path, 0, depth, Tier::kDevice);
  }
  Writer* const with_holes = history_.AddWriter();
  with_holes->StoreRun(0, 0, 48, Tier::kDevice);
  for (size_t hole : {20, 31, 47}) with_holes->RemoveBlock(0, hole, Tier::kDevice);
  Writer* const in_two_tiers = history_.AddWriter();
  in_two_tiers->StoreRun(1, 0, 24, Tier::kDevice);
  in_two_tiers->StoreRun(1, 12, 48, Tier::kHost);
  std::vector<std::function<void(int)>> bodies;
  for (int thread = 0; thread < 3; ++thread) {
    Writer* const writer = history_.AddWriter();
    bodies.push_back([writer](int) { writer->Write(); });
  }
  // One writer evicts and restores every other block, one moves its tail, with upkeep in between.
  Writer* const every_other = history_.AddWriter();
  bodies.push_back([every_other](int round) {
    const size_t at = static_cast<size_t>(round) * 2 % kDepth;
    if (round % kDepth == 0) every_other->StoreRun(0, 0, kDepth, Tier::kDevice);
    every_other->RemoveBlock(0, at, Tier::kDevice);
  });
  bodies.push_back([this](int) { history_.index()->Maintain(20); });
  history_.Run(RoundsOf(15'000), bodies, kReaders);
  EXPECT_EQ(history_.Judge(), "");
}

// Tables grow and shrink, and a number changes hands, beside readers.
TEST_P(IndexHistoryTest, GrowthAndNewHoldersDisturbNobody) {
  history_.AddWriter()->StoreRun(0, 0, 48, Tier::kDevice);
  history_.AddWriter()->StoreRun(2, 0, 40, Tier::kHost);
  Writer* const writer = history_.AddWriter();
  Writer* const renewed = history_.AddWriter();
  const HolderIndex grows = *history_.index()->AddHolder();
  const auto grow = [&](int round) {
    std::vector<LocalHash> locals;
    for (uint64_t i = 0; i < 64; ++i)
      locals.push_back(LocalHash{static_cast<uint64_t>(round) * 1000 + i});
    const Stored stored = {.blocks = SequenceHashes(locals), .local_hashes = locals};
    history_.index()->Apply(grows, stored, nullptr).IgnoreError();
    if (round % 400 == 399) history_.index()->Apply(grows, Cleared{}, nullptr).IgnoreError();
  };
  const auto renew = [&](int round) {
    if (round % 7 == 0) renewed->Renew();
    renewed->Write();
  };
  history_.Run(RoundsOf(2'000), {grow, renew, [&](int) { writer->Write(); }}, kReaders);
  EXPECT_EQ(history_.Judge(), "");
}

// More than a word of holders, all of one run: sets change their form under readers.
TEST_P(IndexHistoryTest, SetsOfManyHoldersChangeUnderReaders) {
  std::vector<Writer*> all;
  for (int i = 0; i < 150; ++i) all.push_back(history_.AddWriter());
  std::vector<std::function<void(int)>> bodies;
  for (size_t thread = 0; thread < 3; ++thread) {
    bodies.push_back([&all, thread](int round) {
      Writer* const writer = all[(static_cast<size_t>(round) * 3 + thread) % all.size()];
      const size_t depth = 1 + static_cast<size_t>(round) * 7 % kDepth;
      if (round / 50 % 2 == 0) {
        writer->StoreRun(0, 0, depth, Tier::kDevice);
      } else {
        writer->Write();
      }
    });
  }
  history_.Run(RoundsOf(10'000), bodies, kReaders);
  EXPECT_EQ(history_.Judge(), "");
}

}  // namespace
}  // namespace kvatlas
