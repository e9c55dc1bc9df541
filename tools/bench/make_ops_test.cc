#include "tools/bench/make_ops.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <gtest/gtest.h>
#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

std::string TestPath(const std::string& suffix = "") {
  return testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name() +
         suffix + ".ops";
}

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// Requests that share heads of every length, in a fixed order.
std::vector<TraceRequest> SmallTrace(size_t requests) {
  std::vector<TraceRequest> trace;
  for (size_t i = 0; i < requests; ++i) {
    TraceRequest request;
    request.timestamp_ms = 10.0 * i;
    const size_t shared = i * 7 % 5;
    for (size_t k = 0; k < shared; ++k) request.hash_ids.push_back(k);
    for (size_t k = 0; k < 1 + i % 3; ++k) request.hash_ids.push_back(1000 + i % 20 * 10 + k);
    trace.push_back(request);
  }
  return trace;
}

OpsOptions SmallOptions(OpsEviction eviction) {
  OpsOptions options;
  options.workers = 3;
  options.split = 2;
  options.capacity = 24;
  options.eviction = eviction;
  return WithDefaults(options);
}

OpsFile Make(const OpsOptions& options, OpsSummary* summary = nullptr) {
  OpsSummary ignored{};
  absl::StatusOr<OpsWriter> out = OpsWriter::Create(TestPath(), 256, options.workers * options.dup);
  EXPECT_TRUE(out.ok());
  if (options.shape == OpsShape::kTrace) {
    WriteTraceOps(options, SmallTrace(200), &*out, summary ? summary : &ignored);
  } else {
    WriteShapeOps(options, &*out, summary ? summary : &ignored);
  }
  EXPECT_TRUE(out->Finish().ok());
  absl::StatusOr<OpsFile> file = OpsFile::Open(TestPath());
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

// What the workers hold while a file is read, and what their parents were.
struct Held {
  explicit Held(uint32_t workers) : of(workers) {}

  void Apply(const BenchOp& op) {
    std::set<SequenceHash>& mine = of[op.header.worker];
    SequenceHash parent{op.header.parent};
    for (const OpBlock& block :
         op.header.kind == OpKind::kStore ? op.blocks : std::span<const OpBlock>()) {
      mine.insert(block.seq);
      parent_of[Raw(block.seq)] = parent;
      parent = block.seq;
    }
    for (SequenceHash block : op.removed) {
      EXPECT_EQ(mine.erase(block), 1u) << "removed what was not held";
    }
    if (op.header.kind == OpKind::kClear) mine.clear();
  }

  // Blocks whose parent their worker does not hold.
  size_t Holes() const {
    size_t holes = 0;
    for (const std::set<SequenceHash>& mine : of) {
      for (SequenceHash block : mine) {
        const SequenceHash parent = parent_of.at(Raw(block));
        holes += parent != kNoParent && !mine.contains(parent);
      }
    }
    return holes;
  }

  std::vector<std::set<SequenceHash>> of;
  std::map<uint64_t, SequenceHash> parent_of;
};

// The most holes that there were after any operation.
size_t HolesMax(const OpsFile& file) {
  Held held(file.header().workers);
  size_t holes_max = 0;
  for (const BenchOp& op : file.ops()) {
    held.Apply(op);
    holes_max = std::max(holes_max, held.Holes());
  }
  return holes_max;
}

TEST(MakeOpsTest, LeastRecentlyUsedEvictionMakesNoHole) {
  const OpsFile file = Make(SmallOptions(OpsEviction::kLru));
  EXPECT_GT(file.header().remove_blocks, 100u);
  EXPECT_EQ(HolesMax(file), 0u);
}

TEST(MakeOpsTest, RandomEvictionMakesHoles) {
  const OpsFile file = Make(SmallOptions(OpsEviction::kRandom));
  EXPECT_GT(file.header().remove_blocks, 100u);
  EXPECT_GT(HolesMax(file), 5u);
}

TEST(MakeOpsTest, NoWorkerHoldsMoreThanItsCapacity) {
  for (OpsEviction eviction : {OpsEviction::kLru, OpsEviction::kRandom}) {
    const OpsFile file = Make(SmallOptions(eviction));
    Held held(file.header().workers);
    size_t most = 0;
    for (const BenchOp& op : file.ops()) {
      held.Apply(op);
      most = std::max(most, held.of[op.header.worker].size());
    }
    EXPECT_EQ(most, 24u);
  }
}

TEST(MakeOpsTest, AStoreAfterAHoleNamesBlocksThatAreStillHeld) {
  const OpsFile file = Make(SmallOptions(OpsEviction::kRandom));
  Held held(file.header().workers);
  size_t named_again = 0;
  for (const BenchOp& op : file.ops()) {
    if (op.header.kind == OpKind::kStore) {
      EXPECT_FALSE(held.of[op.header.worker].contains(op.blocks[0].seq));
      for (const OpBlock& block : op.blocks) {
        named_again += held.of[op.header.worker].contains(block.seq);
      }
    }
    held.Apply(op);
  }
  EXPECT_GT(named_again, 5u);
}

TEST(MakeOpsTest, TruncatedRequestsStoreLessThanIsAskedFor) {
  OpsOptions options = SmallOptions(OpsEviction::kRandom);
  const uint64_t whole = Make(options).header().store_blocks;
  options.truncate_percent = 50;
  const OpsFile file = Make(options);
  EXPECT_LT(file.header().store_blocks, whole * 9 / 10);
  size_t shorter = 0;
  const BenchOp* query = nullptr;
  for (const BenchOp& op : file.ops()) {
    if (op.header.kind == OpKind::kQuery) query = &op;
    if (op.header.kind != OpKind::kStore) continue;
    shorter += op.header.position + op.header.count < query->header.count;
  }
  EXPECT_GT(shorter, 20u);
}

TEST(MakeOpsTest, ARequestIsAQueryAndWhatItCauses) {
  OpsSummary summary{};
  const OpsFile file = Make(SmallOptions(OpsEviction::kLru), &summary);
  uint64_t queries = 0, missing = 0;
  for (const BenchOp& op : file.ops()) {
    if (op.header.kind == OpKind::kQuery) {
      EXPECT_EQ(op.header.time_ns, queries * 10'000'000);
      ++queries;
    }
    if (op.header.kind == OpKind::kStore) missing += op.header.count;
    std::vector<LocalHash> locals;
    for (const OpBlock& block : op.blocks) locals.push_back(block.local);
    const std::vector<SequenceHash> chain =
        SequenceHashesAfter(SequenceHash{op.header.parent}, locals);
    for (size_t i = 0; i < chain.size(); ++i) EXPECT_EQ(chain[i], op.blocks[i].seq);
  }
  EXPECT_EQ(queries, 200u);
  EXPECT_EQ(summary.requests, 200u);
  EXPECT_EQ(summary.cached_blocks + missing, file.header().query_blocks);
}

TEST(MakeOpsTest, EveryCopyOfAWorkerDoesTheSame) {
  OpsOptions options = SmallOptions(OpsEviction::kLru);
  const OpsHeader once = Make(options).header();
  options.dup = 3;
  const OpsFile file = Make(options);
  EXPECT_EQ(file.header().workers, 9u);
  EXPECT_EQ(file.header().query_blocks, once.query_blocks);
  EXPECT_EQ(file.header().store_blocks, once.store_blocks * 3);
  Held held(9);
  for (const BenchOp& op : file.ops()) held.Apply(op);
  EXPECT_EQ(held.of[0], held.of[2]);
  EXPECT_NE(held.of[0], held.of[3]);
}

TEST(MakeOpsTest, AffinityFindsWhatIsCached) {
  OpsOptions options = SmallOptions(OpsEviction::kLru);
  options.capacity = 4000;
  OpsSummary random{}, affine{};
  Make(options, &random);
  options.routing = OpsRouting::kAffinity;
  Make(options, &affine);
  EXPECT_GT(affine.cached_blocks, random.cached_blocks);
}

TEST(MakeOpsTest, ARequestLargerThanAPoolIsRefused) {
  OpsOptions options = SmallOptions(OpsEviction::kLru);
  options.capacity = 10;
  for (OpsEviction eviction : {OpsEviction::kLru, OpsEviction::kRandom}) {
    options.eviction = eviction;
    OpsSummary summary{};
    Make(options, &summary);
    EXPECT_GT(summary.too_long, 0u);
    EXPECT_LT(summary.too_long, 200u);
  }
}

TEST(MakeOpsTest, TheSeedDecidesEverything) {
  for (OpsShape shape : {OpsShape::kTrace, OpsShape::kSharedRoot, OpsShape::kRoots, OpsShape::kDeep,
                         OpsShape::kChildren}) {
    OpsOptions options = SmallOptions(OpsEviction::kRandom);
    options.shape = shape;
    options.requests = 50;
    options.branch_blocks = 20;
    Make(options);
    const std::string first = ReadAll(TestPath());
    Make(options);
    EXPECT_EQ(ReadAll(TestPath()), first);
    options.seed = 43;
    Make(options);
    EXPECT_NE(ReadAll(TestPath()), first);
  }
}

// ---- Shapes ----

// Distinct first blocks and, by block, its distinct next ones; among stores.
struct Shape {
  explicit Shape(const OpsFile& file) {
    for (const BenchOp& op : file.ops()) {
      if (op.header.kind == OpKind::kQuery) ++queries;
      if (op.header.kind != OpKind::kStore) continue;
      SequenceHash parent{op.header.parent};
      for (size_t i = 0; i < op.blocks.size(); ++i) {
        next[Raw(parent)].insert(op.blocks[i].seq);
        parent = op.blocks[i].seq;
        deepest = std::max<size_t>(deepest, op.header.position + i + 1);
      }
    }
  }
  size_t roots() const { return next.at(0).size(); }
  size_t children_max() const {
    size_t most = 0;
    for (const auto& [parent, children] : next) {
      if (parent != 0) most = std::max(most, children.size());
    }
    return most;
  }

  size_t queries = 0;
  size_t deepest = 0;
  std::map<uint64_t, std::set<SequenceHash>> next;
};

OpsOptions ShapeOptions(OpsShape shape, uint32_t workers, uint64_t requests) {
  OpsOptions options;
  options.shape = shape;
  options.workers = workers;
  options.requests = requests;
  return WithDefaults(options);
}

TEST(MakeShapeOpsTest, SharedRootIsHeldByEverybody) {
  const OpsFile file = Make(ShapeOptions(OpsShape::kSharedRoot, 50, 0));
  const Shape shape(file);
  EXPECT_EQ(shape.roots(), 1u);
  EXPECT_EQ(shape.queries, 100u);
  EXPECT_EQ(shape.deepest, 64u);
  EXPECT_EQ(file.header().store_blocks, 50u * 64 + 100 * 56);
  EXPECT_EQ(file.header().query_blocks, 100u * 64);
  Held held(50);
  for (const BenchOp& op : file.ops()) held.Apply(op);
  const SequenceHash root = file.ops()[0].blocks[7].seq;
  for (const std::set<SequenceHash>& mine : held.of) EXPECT_TRUE(mine.contains(root));
}

TEST(MakeShapeOpsTest, RootsHaveDistinctFirstBlocks) {
  const OpsFile file = Make(ShapeOptions(OpsShape::kRoots, 7, 1000));
  const Shape shape(file);
  EXPECT_EQ(shape.roots(), 1000u);
  EXPECT_EQ(shape.children_max(), 1u);
  EXPECT_EQ(file.header().remove_blocks, 250u * 2);
  EXPECT_EQ(HolesMax(file), 0u);
}

TEST(MakeShapeOpsTest, ChildrenHangUnderOneNode) {
  const OpsFile file = Make(ShapeOptions(OpsShape::kChildren, 7, 1000));
  const Shape shape(file);
  EXPECT_EQ(shape.roots(), 1u);
  EXPECT_EQ(shape.children_max(), 1000u);
  EXPECT_EQ(shape.deepest, 10u);
  EXPECT_EQ(HolesMax(file), 0u);
}

TEST(MakeShapeOpsTest, DeepIsOneLongSequence) {
  OpsOptions options = ShapeOptions(OpsShape::kDeep, 3, 20);
  EXPECT_EQ(options.branch_blocks, 100'000u);
  options.branch_blocks = 250;
  const OpsFile file = Make(options);
  const Shape shape(file);
  EXPECT_EQ(shape.roots(), 1u);
  EXPECT_EQ(shape.children_max(), 1u);
  EXPECT_EQ(shape.deepest, 250u);
  EXPECT_EQ(shape.queries, 20u);
  EXPECT_EQ(file.header().query_blocks, 20u * 250);
  EXPECT_EQ(file.header().store_blocks, 3u * 250);
  EXPECT_GT(file.header().remove_blocks, 3u * 100);
  EXPECT_EQ(HolesMax(file), 0u);
}

TEST(MakeShapeOpsTest, UsualSizesAreThoseOfTheFigures) {
  EXPECT_EQ(ShapeOptions(OpsShape::kSharedRoot, 0, 0).workers, 7000u);
  EXPECT_EQ(ShapeOptions(OpsShape::kSharedRoot, 0, 0).requests, 14'000u);
  EXPECT_EQ(ShapeOptions(OpsShape::kRoots, 0, 0).requests, 1'000'000u);
  EXPECT_EQ(ShapeOptions(OpsShape::kChildren, 0, 0).requests, 300'000u);
  EXPECT_EQ(ShapeOptions(OpsShape::kTrace, 0, 0).workers, 128u);
}

TEST(WellKnownInputTest, EveryInputHasItsNumbers) {
  EXPECT_EQ(WellKnownInput("b")->capacity, 4096u);
  EXPECT_EQ(WellKnownInput("c")->routing, OpsRouting::kAffinity);
  EXPECT_EQ(WellKnownInput("e")->dup * WellKnownInput("e")->workers, 7000u);
  EXPECT_EQ(WellKnownInput("f")->shape, OpsShape::kSharedRoot);
  EXPECT_EQ(WellKnownInput("g")->eviction, OpsEviction::kRandom);
  EXPECT_EQ(WellKnownInput("h")->workers, 16u);
  EXPECT_EQ(WellKnownInput("i")->truncate_percent, 50u);
  EXPECT_EQ(WellKnownInput("z").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvatlas
