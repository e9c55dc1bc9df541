#include "indexer/checkpoint/checkpoint_file.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/checkpoint/checkpoint_records.h"
#include "indexer/checkpoint/fault_files.h"
#include "indexer/index/index.h"

namespace kvatlas {
namespace {

constexpr char kPath[] = "/file";

// A visitor that notes as text what a reader told.
class Recorder : public CheckpointVisitor {
 public:
  absl::Status OnHeader(const CheckpointHeader& header) override {
    text += "header " + header.cell + "@" + header.replica + " " + std::to_string(header.number) +
            " " + std::to_string(header.wall_time_ns) + "\n";
    return absl::OkStatus();
  }
  absl::Status OnDomain(const Domain& domain, uint32_t block_size) override {
    text += "domain " + ToString(domain) + " " + std::to_string(block_size) + "\n";
    return absl::OkStatus();
  }
  absl::Status OnHolder(const HolderImage& image) override {
    images.push_back(image);
    text += "holder " + ToString(image.info.id) + "\n";
    return absl::OkStatus();
  }
  absl::Status OnRun(Stored* run, TierMask tiers) override {
    text += "run at " + std::to_string(run->position) + " after " +
            std::to_string(Raw(run->parent)) + " tiers " + std::to_string(tiers.bits()) + ":";
    for (size_t i = 0; i < run->blocks.size(); ++i) {
      text += " " + std::to_string(Raw(run->blocks[i]));
      if (!run->local_hashes.empty()) text += "/" + std::to_string(Raw(run->local_hashes[i]));
    }
    text += "\n";
    return absl::OkStatus();
  }
  absl::Status OnEngines(const ReadChunk& read) override {
    if (leave_engines) return absl::OkStatus();
    char chunk[1000];
    for (;;) {
      const absl::StatusOr<size_t> got = read(chunk, sizeof chunk);
      if (!got.ok()) return got.status();
      if (*got == 0) return absl::OkStatus();
      engines.append(chunk, *got);
    }
  }
  absl::Status OnEnd() override {
    text += "end\n";
    return absl::OkStatus();
  }

  std::string text;
  std::string engines;
  std::vector<HolderImage> images;
  bool leave_engines = false;
};

CheckpointExpectation Ours() { return {.contract_id = HashContract().Id(), .cell = "cell-a"}; }

CheckpointHeader HeaderOf(uint64_t number) {
  return {.contract_id = HashContract().Id(),
          .cell = "cell-a",
          .replica = "b",
          .wall_time_ns = 99,
          .number = number};
}

Holding HoldingOf(uint64_t block, Position position, uint64_t parent, TierMask tiers,
                  uint64_t local = 0) {
  return {.block = SequenceHash{block},
          .position = position,
          .parent = SequenceHash{parent},
          .tiers = tiers,
          .local = LocalHash{local}};
}

HolderCut CutOf(const std::string& name, std::vector<Holding> holdings) {
  HolderCut cut;
  cut.block_size = 16;
  cut.image.info.id = {name, 2, ""};
  cut.image.info.address = "10.0.0.1:7410";
  cut.image.info.labels = {{"zone", "a"}, {"rack", ""}};
  cut.image.stream = {
      .epoch = 1000, .instance_id = 77, .applied = 12345, .whole = false, .sender_degraded = true};
  cut.image.silent = std::chrono::milliseconds(1500);
  cut.image.load = Load{.running_requests = 1,
                        .waiting_requests = 2,
                        .used_blocks = 3,
                        .free_blocks = 4,
                        .waiting_prefill_blocks = 5,
                        .tokens_per_s = 6.5,
                        .workers = 7};
  for (const Holding& holding : holdings)
    for (int tier = 0; tier < kTiers; ++tier)
      if (holding.tiers.Has(static_cast<Tier>(tier)))
        cut.image.digest.Add(static_cast<Tier>(tier), holding.block);
  cut.holdings = std::move(holdings);
  return cut;
}

class CheckpointFileTest : public testing::Test {
 protected:
  CheckpointFileTest() {
    auto file = files_.Create(kPath);
    CheckpointWriter writer(file->get(), nullptr);
    EXPECT_TRUE(writer.Begin(HeaderOf(5)).ok());
    EXPECT_TRUE(writer.AddDomain({"llama", ""}, 16).ok());
    const TierMask device = Tier::kDevice;
    const TierMask both = device | Tier::kHost;
    EXPECT_TRUE(
        writer
            .AddHolder(CutOf("w1", {HoldingOf(13, 2, 12, both), HoldingOf(11, 0, 0, device),
                                    HoldingOf(12, 1, 11, device), HoldingOf(14, 3, 13, both),
                                    HoldingOf(22, 1, 11, device),  // a second child
                                    HoldingOf(31, 9, 30, device, 5)}))
            .ok());
    EXPECT_TRUE(writer.AddHolder(CutOf("w2", {})).ok());
    EXPECT_TRUE(writer.AddDomain({"qwen", "t"}, 32).ok());
    EXPECT_TRUE(writer.AddHolder(CutOf("w1", {HoldingOf(11, 0, 0, both)})).ok());
    EXPECT_TRUE(writer.AddEngines(engines_).ok());
    EXPECT_TRUE(writer.AddEngines("more").ok());
    EXPECT_TRUE(writer.End().ok());
    counts_ = writer.counts();
  }

  std::string& bytes() { return *files_.BytesOf(kPath); }

  absl::StatusOr<CheckpointCounts> Read(Recorder* told,
                                        const CheckpointExpectation& expect = Ours()) {
    return ReadCheckpoint(**files_.Open(kPath), expect, told);
  }
  // Refused with that code, and nothing was told.
  void ExpectRefused(absl::StatusCode code, const CheckpointExpectation& expect = Ours()) {
    Recorder told;
    const absl::Status status = Read(&told, expect).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(told.text, "");
    EXPECT_EQ(told.engines, "");
  }
  // Writes records as any process could, each with a correct checksum.
  void WriteRecords(const std::vector<std::pair<uint8_t, std::string>>& records) {
    bytes() = std::string(kCheckpointMagic);
    uint64_t number = 0;
    for (const auto& [kind, payload] : records) {
      const size_t start = bytes().size();
      PutNumber(&bytes(), kind);
      PutNumber(&bytes(), static_cast<uint32_t>(payload.size()));
      bytes() += payload;
      PutNumber(&bytes(), Xxh3(std::string_view(bytes()).substr(start), number++));
    }
  }
  static std::string HeaderPayload() {
    std::string payload;
    PutText(&payload, HashContract().Id());
    PutText(&payload, "cell-a");
    PutText(&payload, "");
    PutNumber(&payload, uint64_t{0});
    PutNumber(&payload, uint64_t{1});
    return payload;
  }
  // As the writer writes it.
  std::string HolderPayload(const CacheLayout& layout) {
    constexpr char kOther[] = "/other";
    auto file = files_.Create(kOther);
    CheckpointWriter writer(file->get(), nullptr);
    HolderCut cut = CutOf("w", {});
    cut.image.layout = layout;
    EXPECT_TRUE(writer.Begin(HeaderOf(1)).ok());
    EXPECT_TRUE(writer.AddDomain({"m", ""}, 16).ok());
    EXPECT_TRUE(writer.AddHolder(cut).ok());
    EXPECT_TRUE(writer.End().ok());
    ByteTaker from(std::string_view(*files_.BytesOf(kOther)).substr(kCheckpointMagic.size()));
    std::string payload;
    for (int record = 0; record < 3; ++record) {
      from.Take<uint8_t>();
      const auto size = from.Take<uint32_t>();
      payload = std::string(from.TakeBytes(size));
      from.Take<uint64_t>();
    }
    return payload;
  }
  static std::string DomainPayload() {
    std::string payload;
    PutText(&payload, "m");
    PutText(&payload, "");
    PutNumber(&payload, uint32_t{16});
    return payload;
  }

  FaultFiles files_;
  const std::string engines_ = std::string(700000, 'e');
  CheckpointCounts counts_;
};

TEST_F(CheckpointFileTest, TellsWhatWasWrittenParentsFirst) {
  Recorder told;
  const absl::StatusOr<CheckpointCounts> counts = Read(&told);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(told.text,
            "header cell-a@b 5 99\n"
            "domain llama 16\n"
            "holder w1/2\n"
            "run at 0 after 0 tiers 1: 11 12\n"
            "run at 2 after 12 tiers 3: 13 14\n"
            "run at 1 after 11 tiers 1: 22\n"
            "run at 9 after 30 tiers 1: 31/5\n"
            "holder w2/2\n"
            "domain qwen|t 32\n"
            "holder w1/2\n"
            "run at 0 after 0 tiers 3: 11\n"
            "end\n");
  EXPECT_EQ(told.engines, engines_ + "more");
  EXPECT_EQ(counts->holders, 3);
  EXPECT_EQ(counts->blocks, 7);
  EXPECT_EQ(counts->engine_bytes, engines_.size() + 4);
  EXPECT_EQ(counts->bytes, bytes().size());
  EXPECT_EQ(counts_.bytes, bytes().size());
  const HolderImage expected = CutOf("w1", {}).image;
  EXPECT_EQ(told.images[0].info.id, expected.info.id);
  EXPECT_EQ(told.images[0].info.address, expected.info.address);
  EXPECT_EQ(told.images[0].info.labels, expected.info.labels);
  EXPECT_EQ(told.images[0].stream, expected.stream);
  EXPECT_EQ(told.images[0].silent, expected.silent);
  EXPECT_EQ(told.images[0].load, expected.load);
  EXPECT_EQ(told.images[0].digest.tiers[0].blocks, 6);
}

// ---- Side blocks ----

// A layout of random classes, or of none.
CacheLayout RandomLayout(std::mt19937_64* random) {
  const auto below = [&](uint64_t limit) { return static_cast<uint32_t>((*random)() % limit); };
  CacheLayout layout;
  if (below(4) == 0) return layout;
  layout.has_main = below(4) != 0;
  if (layout.has_main) layout.main = {.block_size = 16, .drops_last = below(2) == 0};
  for (uint32_t left = 1 + below(kSideClassesMax); left > 0; --left)
    layout.sides.push_back({.kind = static_cast<CacheKind>(1 + below(kCacheKinds - 1)),
                            .block_size = 1 + below(1024),
                            .window_tokens = 1 + below(100000),
                            .drops_last = below(2) == 0});
  return layout;
}

// Layout, main blocks and side blocks of each holder, as they were told.
class ContentsTold : public CheckpointVisitor {
 public:
  struct Of {
    CacheLayout layout;
    std::map<uint64_t, uint8_t> blocks;                       // to tiers
    std::map<uint64_t, std::pair<uint8_t, SideClass>> sides;  // to tiers and class
    friend bool operator==(const Of&, const Of&) = default;
  };
  absl::Status OnHeader(const CheckpointHeader&) override { return absl::OkStatus(); }
  absl::Status OnDomain(const Domain&, uint32_t) override { return absl::OkStatus(); }
  absl::Status OnHolder(const HolderImage& image) override {
    holders.emplace_back().layout = image.layout;
    return absl::OkStatus();
  }
  absl::Status OnRun(Stored* run, TierMask tiers) override {
    EXPECT_LE(run->blocks.size(), kBatchBlocksMax);
    if (run->side != 0) {
      EXPECT_EQ(run->position, 0u);
      EXPECT_EQ(run->parent, kNoParent);
      EXPECT_TRUE(run->local_hashes.empty());
    }
    Of& of = holders.back();
    for (const SequenceHash block : run->blocks) {
      const bool is_new =
          run->side == 0 ? of.blocks.emplace(Raw(block), tiers.bits()).second
                         : of.sides.emplace(Raw(block), std::pair(tiers.bits(), run->side)).second;
      EXPECT_TRUE(is_new);
    }
    return absl::OkStatus();
  }
  absl::Status OnEngines(const ReadChunk&) override { return absl::OkStatus(); }
  absl::Status OnEnd() override { return absl::OkStatus(); }
  std::vector<Of> holders;
};

TEST_F(CheckpointFileTest, SideBlocksAndLayoutsComeBackAsTheyWere) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto file = files_.Create(kPath);
    CheckpointWriter writer(file->get(), nullptr);
    ASSERT_TRUE(writer.Begin(HeaderOf(1)).ok());
    ASSERT_TRUE(writer.AddDomain({"m", ""}, 16).ok());
    std::vector<ContentsTold::Of> expected;
    for (uint64_t holder = 0; holder < 1 + random() % 4; ++holder) {
      ContentsTold::Of& of = expected.emplace_back();
      of.layout = RandomLayout(&random);
      const auto tiers = [&] { return static_cast<uint8_t>(random() % 4 ? 1 : 1 + random() % 15); };
      for (uint64_t left = random() % 20; left > 0; --left) of.blocks.emplace(random(), tiers());
      // Some need several runs, and records.
      const uint64_t sides = of.layout.plain() ? 0 : random() % (seed % 20 == 0 ? 200000 : 50);
      // The last of 16 classes has no number in the file.
      const auto side_of = [&] {
        const uint64_t side = 1 + random() % 16;
        return static_cast<SideClass>(side <= kNamesSideMax ? side : kUnknownSide);
      };
      for (uint64_t left = sides; left > 0; --left)
        of.sides.emplace(random(), std::pair(tiers(), side_of()));
      std::vector<Holding> holdings;
      for (const auto& [block, mask] : of.blocks)
        holdings.push_back(HoldingOf(block, 0, 0, TierMask(mask)));
      HolderCut cut = CutOf("w" + std::to_string(holder), std::move(holdings));
      cut.image.layout = of.layout;
      for (const auto& [name, in] : of.sides)
        cut.sides.push_back({.name = SequenceHash{name},
                             .tiers = TierMask(in.first),
                             .side = in.second == kUnknownSide ? SideClass{16} : in.second});
      ASSERT_TRUE(writer.AddHolder(cut).ok());
    }
    ASSERT_TRUE(writer.End().ok());
    ContentsTold told;
    const absl::StatusOr<CheckpointCounts> counts =
        ReadCheckpoint(**files_.Open(kPath), Ours(), &told);
    ASSERT_TRUE(counts.ok()) << counts.status();
    EXPECT_TRUE(told.holders == expected);
    EXPECT_EQ(counts->side_blocks, writer.counts().side_blocks);
    EXPECT_EQ(counts->blocks, writer.counts().blocks);
  }
}

// Its bytes are those of a file without layouts and side blocks, but for the magic.
TEST_F(CheckpointFileTest, AFileOfTheVersionBeforeSideBlocksIsRead) {
  Recorder now;
  ASSERT_TRUE(Read(&now).ok());
  bytes().replace(0, kCheckpointMagic.size(), kCheckpointMagicWithoutSides);
  Recorder before;
  ASSERT_TRUE(Read(&before).ok());
  EXPECT_EQ(before.text, now.text);
  EXPECT_TRUE(before.images[0].layout.plain());
  EXPECT_TRUE(ReadCheckpointHeader(**files_.Open(kPath)).ok());
  bytes()[7] = '3';
  ExpectRefused(absl::StatusCode::kFailedPrecondition);
}

TEST_F(CheckpointFileTest, SideBlocksThatCannotBeAreRefused) {
  const auto names = [](uint8_t tiers, uint64_t count, size_t names) {
    std::string payload;
    PutNumber(&payload, tiers);
    PutVarint(&payload, count);
    payload.append(names * 8, 'b');
    return payload;
  };
  for (const std::string& bad :
       {names(0, 1, 1), names(1, 0, 0), names(1, 2, 1), names(1, uint64_t{1} << 61, 1),
        names(1, kBatchBlocksMax + 1, kBatchBlocksMax + 1)}) {
    WriteRecords({{kHeaderRecord, HeaderPayload()},
                  {kDomainRecord, DomainPayload()},
                  {kHolderRecord, HolderPayload({})},
                  {kSidesRecord, bad}});
    ExpectRefused(absl::StatusCode::kDataLoss);
  }
  WriteRecords({{kHeaderRecord, HeaderPayload()}, {kSidesRecord, names(1, 1, 1)}});
  ExpectRefused(absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointFileTest, LayoutsThatCannotBeAreRefused) {
  const CacheClass window = {.kind = CacheKind::kWindow, .block_size = 16, .window_tokens = 31};
  const CacheLayout good = {.main = {.block_size = 16}, .sides = {window}};
  std::vector<CacheLayout> bad(5, good);
  bad[0].sides.assign(kSideClassesMax + 1, window);
  bad[1].sides[0].block_size = 0;
  bad[2].sides[0].kind = CacheKind::kFull;
  bad[3].sides[0].kind = static_cast<CacheKind>(kCacheKinds);
  bad[4].has_main = false;
  bad[4].sides.clear();
  const auto records = [&](const std::string& holder) {
    WriteRecords({{kHeaderRecord, HeaderPayload()},
                  {kDomainRecord, DomainPayload()},
                  {kHolderRecord, holder}});
    Recorder told;
    return std::string(Read(&told).status().message());
  };
  // This holder is accepted: only the end of the file is missing.
  EXPECT_EQ(records(HolderPayload(good)), "the checkpoint is broken: it ends early");
  for (const CacheLayout& layout : bad)
    EXPECT_EQ(records(HolderPayload(layout)), "the checkpoint is broken: a holder");
  const std::string whole = HolderPayload(good);
  EXPECT_EQ(records(whole.substr(0, whole.size() - 1)), "the checkpoint is broken: a holder");
}

TEST_F(CheckpointFileTest, EnginesNeedNotBeRead) {
  Recorder told;
  told.leave_engines = true;
  const absl::StatusOr<CheckpointCounts> counts = Read(&told);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->engine_bytes, engines_.size() + 4);
}

TEST_F(CheckpointFileTest, TheHeaderAloneCanBeRead) {
  const absl::StatusOr<CheckpointHeader> header = ReadCheckpointHeader(**files_.Open(kPath));
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->number, 5);
  EXPECT_EQ(header->cell, "cell-a");
}

TEST_F(CheckpointFileTest, ABitThatTurnedAnywhereIsRefused) {
  const std::string good = bytes();
  std::mt19937_64 random(1);
  for (size_t at = 0; at < good.size(); at += at < 2000 || at + 200 > good.size() ? 1 : 9973) {
    bytes()[at] ^= static_cast<char>(1 << random() % 8);
    Recorder told;
    const absl::Status status = Read(&told).status();
    EXPECT_FALSE(status.ok()) << "byte " << at;
    EXPECT_EQ(told.text, "") << "byte " << at;
    bytes()[at] = good[at];
  }
}

TEST_F(CheckpointFileTest, ACutFileIsRefusedWhereverItEnds) {
  const std::string good = bytes();
  for (size_t size = 0; size < good.size();
       size += size < 2000 || size + 200 > good.size() ? 1 : 9973) {
    bytes().resize(size);
    ExpectRefused(absl::StatusCode::kDataLoss);
    bytes() = good;
  }
}

TEST_F(CheckpointFileTest, MoreBehindTheEndIsRefused) {
  bytes() += "x";
  ExpectRefused(absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointFileTest, WhatIsNoCheckpointOrAnothersIsRefusedWithItsReason) {
  ExpectRefused(absl::StatusCode::kFailedPrecondition,
                {.contract_id = HashContract{.seed = 7}.Id(), .cell = "cell-a"});
  ExpectRefused(absl::StatusCode::kFailedPrecondition,
                {.contract_id = HashContract().Id(), .cell = "cell-b"});
  Recorder told;
  EXPECT_TRUE(Read(&told, {.contract_id = HashContract().Id(), .cell = std::nullopt}).ok());
  bytes()[7] = '9';
  ExpectRefused(absl::StatusCode::kFailedPrecondition);
  bytes() = "#!/bin/sh\necho no checkpoint\n";
  ExpectRefused(absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckpointFileTest, RecordsThatSwappedPlacesAreRefused) {
  WriteRecords({{kHeaderRecord, HeaderPayload()}, {kDomainRecord, DomainPayload()}});
  const std::string one = bytes();
  WriteRecords({{kHeaderRecord, HeaderPayload()},
                {kDomainRecord, DomainPayload()},
                {kDomainRecord, DomainPayload()}});
  // The same bytes again are signed for another place.
  bytes() = one + one.substr(one.size() - (bytes().size() - one.size()));
  ExpectRefused(absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointFileTest, LengthsThatLieAreRefusedWithoutMemoryForThem) {
  // A record that says that it is 4 GB long.
  bytes() = std::string(kCheckpointMagic) + std::string("\x01\xff\xff\xff\xff", 5);
  ExpectRefused(absl::StatusCode::kDataLoss);
  // A text that claims the largest possible length.
  std::string text;
  PutVarint(&text, UINT64_MAX);
  WriteRecords({{kHeaderRecord, text}});
  ExpectRefused(absl::StatusCode::kDataLoss);
  // A holder with as many labels.
  std::string holder;
  for (const char* of : {"w", "", ""}) {
    if (holder.size() == 2) PutNumber(&holder, uint32_t{0});
    PutText(&holder, of);
  }
  PutVarint(&holder, UINT64_MAX);
  WriteRecords({{kHeaderRecord, HeaderPayload()},
                {kDomainRecord, DomainPayload()},
                {kHolderRecord, holder}});
  ExpectRefused(absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointFileTest, RunsThatCannotBeAreRefused) {
  const std::string holder = HolderPayload({});
  const auto run = [](uint8_t flags, uint64_t position, uint64_t count, size_t blocks) {
    std::string payload;
    PutNumber(&payload, flags);
    PutVarint(&payload, position);
    PutVarint(&payload, count);
    payload.append(blocks * 8, 'b');
    return payload;
  };
  for (const std::string& bad :
       {run(1, 0, uint64_t{1} << 61, 1),  // 8 times that is nothing
        run(1, 0, kBatchBlocksMax + 1, kBatchBlocksMax + 1), run(1, 0, 0, 0),  // empty
        run(0, 0, 1, 1),                                                       // in no tier
        run(1, 0, 2, 1),                                                       // cut short
        run(1, UINT32_MAX, 1, 1),          // beyond all positions
        run(1 | kRunHasLocals, 0, 1, 1),   // without its local hashes
        run(1 | kRunHasParent, 0, 0, 0)})  // without its parent
  {
    WriteRecords({{kHeaderRecord, HeaderPayload()},
                  {kDomainRecord, DomainPayload()},
                  {kHolderRecord, holder},
                  {kRunsRecord, bad}});
    ExpectRefused(absl::StatusCode::kDataLoss);
  }
  WriteRecords({{kHeaderRecord, HeaderPayload()}, {kRunsRecord, run(1, 0, 1, 1)}});
  ExpectRefused(absl::StatusCode::kDataLoss);
  WriteRecords({{kHeaderRecord, HeaderPayload()}, {kHolderRecord, holder}});
  ExpectRefused(absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointFileTest, RandomBytesAreRefused) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    std::mt19937_64 random(seed);
    std::string payload(random() % 200, ' ');
    for (char& byte : payload) byte = static_cast<char>(random());
    constexpr uint8_t kKinds[] = {kDomainRecord,  kHolderRecord, kRunsRecord,
                                  kEnginesRecord, kEndRecord,    kSidesRecord};
    const uint8_t kind = kKinds[random() % 6];
    WriteRecords(
        {{kHeaderRecord, HeaderPayload()}, {kDomainRecord, DomainPayload()}, {kind, payload}});
    Recorder told;
    EXPECT_FALSE(Read(&told).ok()) << "seed " << seed;
    EXPECT_EQ(told.text, "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvatlas
