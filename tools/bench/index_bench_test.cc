#include "tools/bench/index_bench.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include <gtest/gtest.h>
#include "indexer/base/waypoints.h"
#include "tools/bench/bench_input.h"
#include "tools/bench/check.h"
#include "tools/bench/final_holdings.h"
#include "tools/bench/make_ops.h"
#include "tools/bench/ops_test_util.h"
#include "tools/bench/timing.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kWorkers = 4;
constexpr uint64_t kRequests = 120;

// Requests to engines that evict at random, so that there are holes.
OpsFile SmallFile() {
  OpsOptions options;
  options.workers = kWorkers;
  options.split = 2;
  options.capacity = 30;
  options.eviction = OpsEviction::kRandom;
  std::vector<TraceRequest> trace;
  for (uint64_t i = 0; i < kRequests; ++i) {
    TraceRequest request;
    request.timestamp_ms = static_cast<double>(i);
    for (uint64_t k = 0; k < i * 7 % 5; ++k) request.hash_ids.push_back(k);
    for (uint64_t k = 0; k < 1 + i % 3; ++k) request.hash_ids.push_back(1000 + i % 20 * 10 + k);
    trace.push_back(request);
  }
  return OpsFileOf(options, trace, "small.ops", 1'000'000'000);
}

// A structure that passes everything on; what a test double changes, it overrides.
class Passing : public Index {
 public:
  explicit Passing(std::unique_ptr<Index> real) : real_(std::move(real)) {}

  std::string_view Name() const override { return "passing"; }
  absl::StatusOr<HolderIndex> AddHolder() override { return real_->AddHolder(); }
  void RemoveHolder(HolderIndex holder) override { real_->RemoveHolder(holder); }
  void SetMasked(HolderIndex holder, bool masked) override { real_->SetMasked(holder, masked); }
  absl::Status Apply(HolderIndex holder, const Event& event, ChangeLog* changes) override {
    return real_->Apply(holder, event, changes);
  }
  void FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const override {
    real_->FindOverlaps(query, overlaps);
  }
  std::vector<Holding> HoldingsOf(HolderIndex holder) const override {
    return real_->HoldingsOf(holder);
  }
  Digest DigestOf(HolderIndex holder) const override { return real_->DigestOf(holder); }
  IndexStats Stats() const override { return real_->Stats(); }
  absl::Status Check() const override { return real_->Check(); }

 private:
  const std::unique_ptr<Index> real_;
};

template <typename Double>
Contender OfDouble(const std::string& name) {
  return {.name = name,
          .holders_max = 0,
          .make = [](const IndexOptions& options) -> absl::StatusOr<std::unique_ptr<Index>> {
            return std::make_unique<Double>(*MakeIndex("reference", options));
          }};
}

Contender Named(const std::string& name) { return (*ContendersByName({name}))[0]; }

BenchPlan Plan(BenchMode mode) {
  BenchPlan plan;
  plan.mode = mode;
  plan.options.check = 1000;
  plan.options.repeat = 3;
  return plan;
}

BenchResult RunOne(const Contender& contender, const OpsFile& file, const BenchPlan& plan) {
  const std::vector<BenchResult> results = RunBench({contender}, file, plan, [](const auto&) {});
  EXPECT_EQ(results.size(), 1u);
  return results.at(0);
}

// ---- The check ----

TEST(CheckTest, TheReferenceIsNeverWrong) {
  for (const char* query : {"full", "compact", "content", "tiers"}) {
    BenchPlan plan = Plan(BenchMode::kSeq);
    plan.options.query = std::string(query) == "full"      ? QueryForm::kFull
                         : std::string(query) == "compact" ? QueryForm::kCompact
                         : std::string(query) == "content" ? QueryForm::kContent
                                                           : QueryForm::kTiers;
    const BenchResult result = RunOne(Named("reference"), SmallFile(), plan);
    ASSERT_TRUE(result.check.has_value()) << query;
    EXPECT_EQ(result.check->queries, kRequests);
    EXPECT_GT(result.check->checked, kRequests);
    EXPECT_EQ(result.check->over, 0u) << query;
    EXPECT_EQ(result.check->under, 0u) << query;
  }
}

// Promises holder 1 a block more than it has.
class OverCounting : public Passing {
 public:
  using Passing::Passing;
  void FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const override {
    Passing::FindOverlaps(query, overlaps);
    for (Overlap& overlap : *overlaps) overlap.blocks += overlap.holder == HolderIndex{1};
  }
};

TEST(CheckTest, OverCountsAreCounted) {
  const BenchResult result =
      RunOne(OfDouble<OverCounting>("over"), SmallFile(), Plan(BenchMode::kSeq));
  EXPECT_GT(result.check->over, 10u);
  EXPECT_EQ(result.check->over_blocks, result.check->over);
  EXPECT_EQ(result.check->under, 0u);
}

// Ignores removals, so that holes are never seen.
class Forgetless : public Passing {
 public:
  using Passing::Passing;
  absl::Status Apply(HolderIndex holder, const Event& event, ChangeLog* changes) override {
    if (std::holds_alternative<Removed>(event)) return absl::OkStatus();
    return Passing::Apply(holder, event, changes);
  }
};

TEST(CheckTest, WhatWasEvictedIsOverCountedWhenRemovalsAreIgnored) {
  const BenchResult result =
      RunOne(OfDouble<Forgetless>("forgetless"), SmallFile(), Plan(BenchMode::kSeq));
  EXPECT_GT(result.check->over, 10u);
  EXPECT_EQ(result.check->under, 0u);
}

// Leaves out holder 2, names holder 0 twice and one that is not there.
class Confused : public Passing {
 public:
  using Passing::Passing;
  void FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const override {
    Passing::FindOverlaps(query, overlaps);
    std::erase_if(*overlaps, [](const Overlap& o) { return o.holder == HolderIndex{2}; });
    const size_t known = overlaps->size();
    for (size_t i = 0; i < known; ++i) {
      if ((*overlaps)[i].holder == HolderIndex{0}) overlaps->push_back((*overlaps)[i]);
    }
    overlaps->push_back({.holder = HolderIndex{99}, .blocks = 1});
  }
};

TEST(CheckTest, MissingRepeatedAndUnknownHoldersAreCounted) {
  const BenchResult result =
      RunOne(OfDouble<Confused>("confused"), SmallFile(), Plan(BenchMode::kSeq));
  EXPECT_GT(result.check->under, 10u);
  EXPECT_GT(result.check->over, kRequests + 10);
}

TEST(CheckTest, ASampleIsSpreadEvenly) {
  const OpsFile file = SmallFile();
  const BenchInput input(file, 0);
  const ExpectedAnswers expected(input, 12);
  EXPECT_EQ(expected.samples(), 12u);
  std::vector<uint64_t> sampled;
  for (uint64_t query = 0; query < kRequests; ++query) {
    if (expected.Sampled(query)) sampled.push_back(query);
  }
  ASSERT_EQ(sampled.size(), 12u);
  for (size_t i = 1; i < sampled.size(); ++i) EXPECT_EQ(sampled[i] - sampled[i - 1], 10u);
}

// ---- The modes ----

TEST(SeqTest, EveryOperationIsMeasured) {
  const OpsFile file = SmallFile();
  const BenchResult result = RunOne(Named("reference"), file, Plan(BenchMode::kSeq));
  const OpsHeader& header = file.header();
  EXPECT_EQ(result.mode, "seq");
  EXPECT_EQ(result.block_ops, header.query_blocks + header.store_blocks + header.remove_blocks);
  EXPECT_GT(*result.block_ops_per_s, 0);
  EXPECT_GE(*result.block_ops_per_s, *result.block_ops_per_s_median);
  EXPECT_GE(*result.block_ops_per_s_median, *result.block_ops_per_s_worst);
  EXPECT_GT(*result.ns_per_stored_block, 0);
  EXPECT_GT(*result.ns_per_removed_block, 0);
  EXPECT_GT(*result.ns_per_query_block, 0);
  EXPECT_GE(result.query_ns->p99, result.query_ns->p50);
  EXPECT_GE(result.write_ns->max, result.write_ns->p999);
  EXPECT_GT(*result.results_per_query, 0);
  EXPECT_EQ(result.refused_events, 0u);
  EXPECT_GE(result.undisturbed->block_ops_per_s, *result.block_ops_per_s);
  EXPECT_GT(result.harness->block_ops_per_s, *result.block_ops_per_s);
}

// Blocks of a file's operations from number `from` on.
uint64_t BlockOpsFrom(const OpsFile& file, size_t from) {
  uint64_t blocks = 0;
  for (const BenchOp& op : file.ops().subspan(from)) blocks += op.header.count;
  return blocks;
}

// Takes its time for the first events, and for these only.
class SlowStart : public Passing {
 public:
  static constexpr int kSlowEvents = 40;

  using Passing::Passing;
  absl::Status Apply(HolderIndex holder, const Event& event, ChangeLog* changes) override {
    const double until_s = CpuSeconds() + (events_++ < kSlowEvents ? 0.002 : 0);
    while (CpuSeconds() < until_s) {
    }
    return Passing::Apply(holder, event, changes);
  }

 private:
  int events_ = 0;
};

TEST(SeqTest, SteadyIsTheSecondHalfOfTheOperationsAndNothingElse) {
  const OpsFile file = SmallFile();
  const size_t middle = file.ops().size() / 2;
  const auto first_half = file.ops().first(middle);
  ASSERT_GT(std::ranges::count_if(
                first_half, [](const BenchOp& op) { return op.header.kind != OpKind::kQuery; }),
            SlowStart::kSlowEvents);
  const BenchResult result = RunOne(OfDouble<SlowStart>("slow start"), file, Plan(BenchMode::kSeq));
  ASSERT_NE(result.steady, nullptr);
  EXPECT_EQ(result.block_ops, BlockOpsFrom(file, 0));
  EXPECT_EQ(result.steady->block_ops, BlockOpsFrom(file, middle));
  // What the first half took is in no figure of the second.
  EXPECT_GT(*result.steady->block_ops_per_s, *result.block_ops_per_s);
  EXPECT_GT(*result.steady->block_ops_per_cpu_s, *result.block_ops_per_cpu_s);
  EXPECT_LT(*result.steady->ns_per_stored_block, *result.ns_per_stored_block);
  EXPECT_GT(result.steady->undisturbed->block_ops_per_s, result.undisturbed->block_ops_per_s);
}

TEST(SeqTest, SteadyQueriesFindWhatTheFirstHalfLeft) {
  const OpsFile file = SmallFile();
  const BenchInput input(file, 0);
  absl::StatusOr<std::unique_ptr<Index>> twin =
      MakeWithHolders(Named("reference"), WarmOptions(kWorkers), kWorkers);
  ASSERT_TRUE(twin.ok());
  uint64_t results = 0, queries = 0;
  for (size_t i = 0; i < input.steps().size(); ++i) {
    const BenchInput::Step& step = input.steps()[i];
    if (step.kind != OpKind::kQuery) {
      EXPECT_TRUE((*twin)->Apply(HolderIndex{step.worker}, input.event(step), nullptr).ok());
      continue;
    }
    std::vector<Overlap> overlaps;
    (*twin)->FindOverlaps(input.query(step), &overlaps);
    results += i >= input.second_half() ? overlaps.size() : 0;
    queries += i >= input.second_half();
  }
  ASSERT_GT(queries, 0u);
  const double expected = static_cast<double>(results) / static_cast<double>(queries);
  const BenchResult cold = RunOne(Named("atlas"), file, Plan(BenchMode::kSeq));
  EXPECT_EQ(*cold.steady->results_per_query, expected);
  EXPECT_NE(*cold.results_per_query, expected);
  const BenchResult steady = RunOne(Named("atlas"), file, Plan(BenchMode::kSteady));
  EXPECT_EQ(steady.mode, "steady");
  EXPECT_EQ(*steady.results_per_query, expected);
  EXPECT_EQ(steady.block_ops, cold.steady->block_ops);
  EXPECT_EQ(steady.check->over + steady.check->under, 0u);
}

TEST(SeqTest, TheSecondHalfBeginsWithTheSameOperationHoweverEventsAreCut) {
  const OpsFile file = SmallFile();
  const BenchInput whole(file, 0), cut(file, 1);
  EXPECT_EQ(whole.second_half(), file.ops().size() / 2);
  EXPECT_GT(cut.second_half(), whole.second_half());
  const auto blocks_from = [](const BenchInput& input) {
    uint64_t blocks = 0;
    for (size_t i = input.second_half(); i < input.steps().size(); ++i) {
      blocks += input.steps()[i].blocks;
    }
    return blocks;
  };
  EXPECT_EQ(blocks_from(whole), BlockOpsFrom(file, file.ops().size() / 2));
  EXPECT_EQ(blocks_from(cut), blocks_from(whole));
}

// Refuses every removal.
class Refusing : public Passing {
 public:
  using Passing::Passing;
  absl::Status Apply(HolderIndex holder, const Event& event, ChangeLog* changes) override {
    if (std::holds_alternative<Removed>(event)) return absl::ResourceExhaustedError("full");
    return Passing::Apply(holder, event, changes);
  }
};

TEST(SeqTest, RefusedEventsOfTheSecondHalfAreCountedByThemselves) {
  const OpsFile file = SmallFile();
  const size_t middle = file.ops().size() / 2;
  const auto is_removal = [](const BenchOp& op) { return op.header.kind == OpKind::kRemove; };
  const BenchResult result = RunOne(OfDouble<Refusing>("refusing"), file, Plan(BenchMode::kSteady));
  EXPECT_EQ(result.refused_events, std::ranges::count_if(file.ops().subspan(middle), is_removal));
}

TEST(SeqTest, ReuseStartsFromAnEmptyStructure) {
  BenchPlan plan = Plan(BenchMode::kSeq);
  const OpsFile file = SmallFile();
  const double fresh = *RunOne(Named("reference"), file, plan).results_per_query;
  plan.options.reuse = true;
  EXPECT_EQ(*RunOne(Named("reference"), file, plan).results_per_query, fresh);
}

TEST(ClosedTest, ReuseStartsFromAnEmptyStructure) {
  BenchPlan plan = Plan(BenchMode::kClosed);
  plan.options.reuse = true;
  const BenchResult result = RunOne(Named("atlas"), SmallFile(), plan);
  EXPECT_FALSE(result.skipped.has_value());
  EXPECT_EQ(result.check->over + result.check->under, 0u);
  EXPECT_GT(*result.event_block_ops_per_s, 0);
}

TEST(SeqTest, CutEventsNameTheSameBlocks) {
  const OpsFile file = SmallFile();
  const BenchInput whole(file, 0), cut(file, 3);
  EXPECT_EQ(whole.block_ops(), cut.block_ops());
  EXPECT_GT(cut.steps().size(), whole.steps().size());
  for (const BenchInput::Step& step : cut.steps()) {
    if (step.kind == OpKind::kQuery) continue;
    EXPECT_LE(BlockCount(cut.event(step)), 3u);
  }
  BenchPlan plan = Plan(BenchMode::kSeq);
  plan.options.write_blocks_max = 3;
  const BenchResult result = RunOne(Named("reference"), file, plan);
  EXPECT_EQ(result.check->over + result.check->under, 0u);
  EXPECT_EQ(result.write_blocks_max, 3u);
}

TEST(SeqTest, RefusedEventsAreCountedAndTheFirstIsQuoted) {
  const OpsFile file = SmallFile();
  const auto is_removal = [](const BenchOp& op) { return op.header.kind == OpKind::kRemove; };
  const BenchResult result = RunOne(OfDouble<Refusing>("refusing"), file, Plan(BenchMode::kSeq));
  EXPECT_EQ(result.refused_events, std::ranges::count_if(file.ops(), is_removal));
  EXPECT_EQ(result.refused_why, "full");
}

TEST(SeqTest, TooManyHoldersIsSaid) {
  Contender few = Named("reference");
  few.holders_max = kWorkers - 1;
  const BenchResult result = RunOne(few, SmallFile(), Plan(BenchMode::kSeq));
  EXPECT_EQ(result.skipped, "has at most 3 holders, the input has 4");
  EXPECT_FALSE(result.block_ops_per_s.has_value());
  EXPECT_FALSE(result.check.has_value());
}

TEST(SeqTest, WhatWouldTakeTooLongIsSkipped) {
  BenchPlan plan = Plan(BenchMode::kSeq);
  plan.options.limit_s = 0;
  const BenchResult result = RunOne(Named("reference"), SmallFile(), plan);
  ASSERT_TRUE(result.skipped.has_value());
  EXPECT_EQ(result.skipped->rfind("would take about ", 0), 0u) << *result.skipped;
}

// Slow when asked.
class Slow : public Passing {
 public:
  using Passing::Passing;
  void FindOverlaps(const OverlapQuery&, std::vector<Overlap>*) const override {
    const double until_s = CpuSeconds() + 0.002;
    while (CpuSeconds() < until_s) {
    }
  }
};

TEST(CheckTest, WhatTakesTooLongToCheckKeepsItsFigures) {
  const OpsFile file = SmallFile();
  const BenchInput input(file, 0);
  BenchOptions options;
  options.limit_s = 0.01;
  const BenchResult result =
      RunCheck(OfDouble<Slow>("slow"), input, ExpectedAnswers(input, 1000), options);
  EXPECT_FALSE(result.check.has_value());
  ASSERT_TRUE(result.skipped.has_value());
}

TEST(ClosedTest, EventsAndQueriesAreMeasuredTogetherAndAlone) {
  const OpsFile file = SmallFile();
  BenchPlan plan = Plan(BenchMode::kClosed);
  plan.options.check = 0;
  for (const auto& [events, queries] : {std::pair{1u, 0u}, {0u, 1u}, {1u, 1u}, {2u, 2u}}) {
    plan.options.event_threads = events;
    plan.options.query_threads = queries;
    const std::vector<BenchResult> results =
        RunBench({Named("reference")}, file, plan, [](const auto&) {});
    ASSERT_EQ(results.size(), 1u);
    const BenchResult& result = results[0];
    EXPECT_FALSE(result.skipped.has_value());
    EXPECT_EQ(result.event_threads, events);
    EXPECT_EQ(result.query_threads, queries);
    EXPECT_EQ(result.event_block_ops_per_s.has_value(), result.event_threads > 0);
    // Beside events there may be no time for a single query.
    EXPECT_GE(result.query_block_ops_per_s.value_or(0), result.event_threads == 0 ? 1.0 : 0.0);
    EXPECT_LE(result.query_ns.has_value(), result.query_threads > 0);
    EXPECT_GT(*result.block_ops_per_s, 0);
  }
}

TEST(OpenTest, LatencyCountsFromWhenItWasDue) {
  BenchPlan plan = Plan(BenchMode::kOpen);
  plan.options.speed = 100;  // the file's second in 10 ms
  const BenchResult result = RunOne(Named("reference"), SmallFile(), plan);
  EXPECT_FALSE(result.skipped.has_value());
  EXPECT_GT(result.query_ns->p50, 0);
  EXPECT_GT(result.write_ns->p50, 0);
  EXPECT_GT(*result.block_ops_per_s, 0);
}

// Takes so much for the first event and gives it back with the first clear.
class Greedy : public Passing {
 public:
  static constexpr size_t kBytes = 48 << 20;

  using Passing::Passing;
  ~Greedy() override { Release(); }

  absl::Status Apply(HolderIndex holder, const Event& event, ChangeLog* changes) override {
    if (std::holds_alternative<Cleared>(event)) {
      Release();
    } else if (taken_ == nullptr) {
      taken_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    }
    return Passing::Apply(holder, event, changes);
  }

 private:
  void Release() {
    if (taken_ != nullptr) munmap(taken_, kBytes);
    taken_ = nullptr;
  }
  void* taken_ = nullptr;
};

// A file without the clear at its end.
OpsFile FileOfShape() {
  OpsOptions options;
  options.shape = OpsShape::kChildren;
  options.workers = kWorkers;
  options.requests = 40;
  const std::string path = testing::TempDir() + "/shape.ops";
  EXPECT_TRUE(MakeOps(options, path).ok());
  return *OpsFile::Open(path);
}

TEST(MemTest, MemoryThatIsTakenAndGivenBackIsSeen) {
  BenchPlan plan = Plan(BenchMode::kMem);
  plan.options.churn = 3;
  const BenchResult result = RunOne(OfDouble<Greedy>("greedy"), FileOfShape(), plan);
  ASSERT_TRUE(result.memory.has_value()) << *result.skipped;
  constexpr uint64_t kSlackBytes = 16 << 20;
  EXPECT_GE(result.memory->bytes_built, Greedy::kBytes);
  EXPECT_LT(result.memory->bytes_built, Greedy::kBytes + kSlackBytes);
  EXPECT_GE(result.memory->bytes_peak, Greedy::kBytes);
  EXPECT_GE(*result.memory->bytes_after_churn, Greedy::kBytes);
  EXPECT_LT(result.memory->bytes_after_clear, kSlackBytes);
  EXPECT_GE(*result.memory->churn_stored_blocks, 3 * result.memory->holdings);
  EXPECT_EQ(result.check->over, 0u);
}

TEST(MemTest, HoldingsAreThoseOfTheModel) {
  const OpsFile file = FileOfShape();
  const absl::StatusOr<FinalHoldings> holdings = FinalHoldings::Of(file);
  ASSERT_TRUE(holdings.ok());
  // 40 branches of 2 blocks without a quarter, and a root of 8 blocks at each worker.
  EXPECT_EQ(holdings->holdings(), 30u * 2 + 8u * kWorkers);
  EXPECT_EQ(holdings->distinct_blocks(), 30u * 2 + 8);
  std::set<SequenceHash> of_first(holdings->of(0).begin(), holdings->of(0).end());
  EXPECT_EQ(of_first.size(), holdings->of(0).size());
  EXPECT_TRUE(of_first.contains(file.ops()[0].blocks[7].seq));
}

// States its holdings as its bytes.
class Counting : public Passing {
 public:
  using Passing::Passing;
  IndexStats Stats() const override {
    IndexStats stats = Passing::Stats();
    stats.bytes = stats.holdings;
    return stats;
  }
};

TEST(MemTest, WhatAStructureStatesIsReported) {
  const BenchResult result =
      RunOne(OfDouble<Counting>("counting"), FileOfShape(), Plan(BenchMode::kMem));
  EXPECT_EQ(result.memory->bytes_stated, result.memory->holdings);
}

// Ends the process that uses it.
class Crashing : public Passing {
 public:
  using Passing::Passing;
  absl::Status Apply(HolderIndex, const Event&, ChangeLog*) override { _exit(7); }
};

TEST(MemTest, AStructureThatCrashesIsSkipped) {
  BenchPlan plan = Plan(BenchMode::kMem);
  plan.options.check = 0;
  const BenchResult result = RunOne(OfDouble<Crashing>("crashing"), FileOfShape(), plan);
  EXPECT_EQ(result.skipped, "exited with 7");
}

// ---- What is done with changes ----

// Blocks at waypoints that a worker holds at the end.
uint64_t WaypointsHeld(const OpsFile& file) {
  const BenchInput input(file, 0);
  const std::unique_ptr<Index> twin =
      *MakeWithHolders(Named("reference"), WarmOptions(kWorkers), kWorkers);
  for (const BenchInput::Step& step : input.steps()) {
    if (step.kind == OpKind::kQuery) continue;
    EXPECT_TRUE(twin->Apply(HolderIndex{step.worker}, input.event(step), nullptr).ok());
  }
  std::set<SequenceHash> waypoints;
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    for (const Holding& holding : twin->HoldingsOf(HolderIndex{worker})) {
      if (WaypointSchedule::Standard().IsWaypoint(holding.position))
        waypoints.insert(holding.block);
    }
  }
  return waypoints.size();
}

TEST(SinkTest, CoverageIsFedInEveryRepetitionAndAnswersStayTheSame) {
  const OpsFile file = SmallFile();
  const uint64_t held = WaypointsHeld(file);
  ASSERT_GT(held, 0u);
  const double results = *RunOne(Named("atlas"), file, Plan(BenchMode::kSeq)).results_per_query;
  for (const bool reuse : {false, true}) {
    BenchPlan plan = Plan(BenchMode::kSeq);
    plan.options.sink = SinkKind::kCoverage;
    plan.options.reuse = reuse;
    const BenchResult result = RunOne(Named("atlas"), file, plan);
    EXPECT_EQ(result.sink, "coverage");
    ASSERT_TRUE(result.coverage.has_value());
    EXPECT_EQ(result.coverage->covered, held);
    EXPECT_EQ(result.results_per_query, results);
    EXPECT_EQ(result.check->over + result.check->under, 0u);
    EXPECT_EQ(Json::parse(ToJson(result, "small"))["waypoints_covered"], held);
  }
}

TEST(SinkTest, WithoutCoverageThereAreNoWaypoints) {
  for (const SinkKind sink : {SinkKind::kNone, SinkKind::kDigest}) {
    BenchPlan plan = Plan(BenchMode::kSteady);
    plan.options.sink = sink;
    const BenchResult result = RunOne(Named("atlas"), SmallFile(), plan);
    EXPECT_EQ(result.sink, NameOf(sink));
    EXPECT_FALSE(result.coverage.has_value());
    EXPECT_EQ(result.check->over + result.check->under, 0u);
  }
}

// ---- Names, reports, the executor ----

TEST(ContenderTest, AllIsEveryKindAndNull) {
  const absl::StatusOr<std::vector<Contender>> all = ContendersByName({"all"});
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all->size(), IndexKinds().size() + 1);
  EXPECT_EQ(all->back().name, "null");
  const absl::Status unknown = ContendersByName({"reference", "nothing"}).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
}

TEST(ReportTest, WhatWasNotMeasuredIsNull) {
  BenchResult result;
  result.index = "one";
  result.skipped = "too long";
  const Json json = Json::parse(ToJson(result, "a"));
  for (const char* field :
       {"block_ops", "block_ops_per_s", "block_ops_per_s_median", "ns_per_stored_block",
        "ns_per_removed_block", "ns_per_query_block", "bytes_per_holding", "bytes_per_block",
        "bytes_peak", "bytes_after_clear", "checked", "over", "under", "sustained_block_ops_per_s",
        "steady"}) {
    ASSERT_TRUE(json.contains(field)) << field;
    EXPECT_TRUE(json[field].is_null()) << field;
  }
  for (const char* share : {"p50", "p99", "p999", "mean"}) {
    EXPECT_TRUE(json["query_ns"].at(share).is_null());
  }
  EXPECT_EQ(json["skipped"], "too long");
  EXPECT_EQ(json["ops"], "a");
  EXPECT_NE(ToTable(std::vector{result}).find("one skipped: too long"), std::string::npos);
}

TEST(ReportTest, MemoryIsDividedByWhatLives) {
  BenchResult result;
  result.memory = MemoryResult{};
  result.memory->holdings = 10;
  result.memory->distinct_blocks = 4;
  result.memory->bytes_built = 200;
  const Json json = Json::parse(ToJson(result, "a"));
  EXPECT_EQ(json["bytes_per_holding"], 20);
  EXPECT_EQ(json["bytes_per_block"], 50);
}

BenchResult WithRate(double rate, double p99) {
  BenchResult result;
  result.block_ops_per_s = rate;
  result.query_ns = Percentiles{.p50 = 1, .p99 = p99, .p999 = 1, .max = 1, .mean = 1};
  return result;
}

TEST(ReportTest, TheFirstRepetitionStandsByItself) {
  const BenchResult together =
      Together({WithRate(90, 1), WithRate(10, 7), WithRate(30, 5), WithRate(20, 6)});
  EXPECT_EQ(together.block_ops_per_s, 30);
  EXPECT_EQ(together.block_ops_per_s_median, 20);
  EXPECT_EQ(together.block_ops_per_s_worst, 10);
  EXPECT_EQ(together.block_ops_per_s_first, 90);
  EXPECT_EQ(together.query_ns->p99, 5);
}

TEST(LatenciesTest, PercentilesAreOrdered) {
  Latencies latencies;
  for (uint64_t i = 1000; i > 0; --i) latencies.Add(i * 1000);
  const Percentiles ns = latencies.InNs();
  EXPECT_NEAR(ns.p50 / ns.max, 0.501, 0.001);
  EXPECT_NEAR(ns.p99 / ns.max, 0.991, 0.001);
  EXPECT_NEAR(ns.mean / ns.max, 0.5005, 0.001);
}

}  // namespace
}  // namespace kvatlas
