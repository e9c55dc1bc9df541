// Checkpoints, replicas' snapshots and dumps.

#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/checkpoint/checkpoint_file.h"
#include "indexer/checkpoint/fault_files.h"
#include "indexer/checkpoint/file_layer.h"
#include "indexer/checkpoint/replica_snapshot.h"
#include "tests/wire/golden.h"

namespace kvatlas {
namespace {

constexpr char kPath[] = "/checkpoint";

Holding HoldingOf(uint64_t block, Position position, uint64_t parent, TierMask tiers,
                  uint64_t local = 0) {
  return {.block = SequenceHash{block},
          .position = position,
          .parent = SequenceHash{parent},
          .tiers = tiers,
          .local = LocalHash{local}};
}

HolderCut SomeCut() {
  HolderCut cut;
  cut.block_size = 16;
  cut.image.info.id = {"w1", 2, "r"};
  cut.image.info.address = "10.0.0.1:7410";
  cut.image.info.labels = {{"zone", "a"}, {"rack", ""}};
  cut.image.stream = {
      .epoch = 1000, .instance_id = 77, .applied = 12345, .whole = true, .sender_degraded = true};
  cut.image.silent = std::chrono::milliseconds(1500);
  cut.image.lease_over = true;
  cut.image.load = Load{.running_requests = 1,
                        .waiting_requests = 2,
                        .used_blocks = 3,
                        .free_blocks = 4,
                        .waiting_prefill_blocks = 5,
                        .tokens_per_s = 6.5,
                        .workers = 7};
  cut.image.layout.main = {.kind = CacheKind::kFull, .block_size = 16, .drops_last = true};
  cut.image.layout.sides = {{.kind = CacheKind::kWindow, .block_size = 16, .window_tokens = 1023}};
  const TierMask device = Tier::kDevice;
  cut.holdings = {HoldingOf(0x1100, 0, 0, device, 0x51), HoldingOf(0x1200, 1, 0x1100, device, 0x52),
                  HoldingOf(0x1300, 2, 0x1200, device | Tier::kHost, 0x53),
                  HoldingOf(0x3100, 9, 0x3000, Tier::kDisk)};
  for (const Holding& holding : cut.holdings)
    for (int tier = 0; tier < kTiers; ++tier)
      if (holding.tiers.Has(static_cast<Tier>(tier)))
        cut.image.digest.Add(static_cast<Tier>(tier), holding.block);
  cut.sides = {{.name = SequenceHash{0x7700}, .tiers = device},
               {.name = SequenceHash{0x7800}, .tiers = device | Tier::kHost}};
  return cut;
}

std::string LoadText(const Load& load) {
  return absl::StrJoin(
      std::make_tuple(load.running_requests, load.waiting_requests, load.used_blocks,
                      load.free_blocks, load.waiting_prefill_blocks, load.tokens_per_s,
                      load.workers),
      ",");
}

std::string ClassText(const CacheClass& of) {
  return absl::StrCat(static_cast<int>(of.kind), ":", of.block_size, ":", of.window_tokens, ":",
                      of.drops_last);
}

class CheckpointText : public CheckpointVisitor {
 public:
  absl::Status OnHeader(const CheckpointHeader& of) override {
    absl::StrAppend(&text, "header ", of.contract_id, " ", of.cell, "@", of.replica, " ", of.number,
                    " ", of.wall_time_ns, "\n");
    return absl::OkStatus();
  }
  absl::Status OnDomain(const Domain& domain, uint32_t block_size) override {
    absl::StrAppend(&text, "domain ", domain.model, " '", domain.tenant, "' ", block_size, "\n");
    return absl::OkStatus();
  }
  absl::Status OnHolder(const HolderImage& of) override {
    absl::StrAppend(&text, "holder ", of.info.id.name, " ", of.info.id.rank, " ",
                    of.info.id.replica, " at ", of.info.address);
    for (const auto& [name, value] : of.info.labels) absl::StrAppend(&text, " ", name, "=", value);
    absl::StrAppend(&text, " stream ", of.stream.epoch, " ", of.stream.instance_id, " ",
                    of.stream.applied, " ", of.stream.whole, of.stream.sender_degraded,
                    of.lease_over, " silent ",
                    std::chrono::duration_cast<std::chrono::milliseconds>(of.silent).count(),
                    " load ", of.load.has_value() ? LoadText(*of.load) : "none", " digest");
    for (const Digest::OfTier& tier : of.digest.tiers)
      absl::StrAppend(&text, " ", tier.blocks, ":", tier.sum);
    absl::StrAppend(&text, " layout ", of.layout.has_main, " ", ClassText(of.layout.main));
    for (const CacheClass& side : of.layout.sides) absl::StrAppend(&text, " ", ClassText(side));
    text += "\n";
    return absl::OkStatus();
  }
  absl::Status OnRun(Stored* run, TierMask tiers) override {
    absl::StrAppend(&text, "run side ", static_cast<int>(run->side), " at ", run->position,
                    " after ", Raw(run->parent), " tiers ", static_cast<int>(tiers.bits()), ":");
    for (size_t i = 0; i < run->blocks.size(); ++i) {
      absl::StrAppend(&text, " ", Raw(run->blocks[i]));
      if (!run->local_hashes.empty()) absl::StrAppend(&text, "/", Raw(run->local_hashes[i]));
    }
    text += "\n";
    return absl::OkStatus();
  }
  absl::Status OnEngines(const ReadChunk& read) override {
    char chunk[4096];
    size_t bytes = 0;
    for (;;) {
      const absl::StatusOr<size_t> got = read(chunk, sizeof(chunk));
      if (!got.ok()) return got.status();
      if (*got == 0) break;
      bytes += *got;
    }
    absl::StrAppend(&text, "engines ", bytes, " bytes\n");
    return absl::OkStatus();
  }
  absl::Status OnEnd() override {
    text += "end\n";
    return absl::OkStatus();
  }

  std::string text;
};

std::string AliasText(const EngineAlias& alias) {
  std::string text = absl::StrCat(alias.rank, " ", alias.hash.value, " ", ToHex(alias.hash.bytes),
                                  " ", Raw(alias.block), " ", Raw(alias.parent), " ",
                                  alias.position, " ", Raw(alias.local), " ", alias.group);
  for (const uint32_t copies : alias.copies) absl::StrAppend(&text, " ", copies);
  return absl::StrCat(text, " '", std::string(alias.lora_name), "' '",
                      std::string(alias.cache_salt), "' ", alias.suspect, alias.eagle, alias.side);
}

std::string Lines(const std::multiset<std::string>& lines) {
  return lines.empty() ? "" : absl::StrJoin(lines, "\n") + "\n";
}

class ReplicaText : public SnapshotVisitor {
 public:
  absl::Status OnInstance(const EngineEntry& of) override {
    std::string text =
        absl::StrCat("instance ", of.instance, " ", of.domain.model, " '", of.domain.tenant, "' ",
                     of.block_size, " ", of.engine_type, " '", of.lora_name, "' '",
                     of.additional_salt, "' ", of.url, " ", of.counts_copies);
    for (const EngineListener& listener : of.listeners)
      absl::StrAppend(&text, " [", listener.rank, " ", listener.endpoint, " ",
                      listener.replay_endpoint, " ", listener.topic, "]");
    lines.insert(text);
    return absl::OkStatus();
  }
  absl::Status OnPosition(const EngineEntry& of, uint32_t rank,
                          const std::optional<StreamPosition>& position) override {
    lines.insert(absl::StrCat("position ", of.instance, "/", rank, " ",
                              position.has_value() ? absl::StrCat(position->last) : "none"));
    return absl::OkStatus();
  }
  absl::Status OnRank(const EngineEntry& of, const EngineRankMark& mark) override {
    lines.insert(absl::StrCat("rank ", of.instance, "/", mark.rank, " ", mark.extras_seen,
                              mark.zero_named, mark.given_up, mark.has_main));
    return absl::OkStatus();
  }
  absl::Status OnName(const EngineEntry& of, const EngineAlias& alias) override {
    lines.insert(absl::StrCat("name ", of.instance, " ", AliasText(alias)));
    return absl::OkStatus();
  }

  std::multiset<std::string> lines;
};

class DumpText : public DumpVisitor {
 public:
  absl::Status OnDomain(const Domain& domain, uint32_t block_size) override {
    lines.insert(absl::StrCat("domain ", domain.model, " '", domain.tenant, "' ", block_size));
    return absl::OkStatus();
  }
  absl::Status OnBlock(const Domain& domain, const std::string& instance,
                       const EngineAlias& alias) override {
    lines.insert(absl::StrCat("block ", domain.model, " ", instance, " ", AliasText(alias)));
    return absl::OkStatus();
  }

  std::multiset<std::string> lines;
};

}  // namespace

ReadChunk ChunksOf(const std::string& bytes) {
  auto at = std::make_shared<size_t>(0);
  return [at, bytes](char* to, size_t size) -> absl::StatusOr<size_t> {
    const size_t n = std::min(size, bytes.size() - *at);
    std::memcpy(to, bytes.data() + *at, n);
    *at += n;
    return n;
  };
}

std::string GoldenCheckpoint(std::string_view engines) {
  FaultFiles files;
  {
    auto file = *files.Create(kPath);
    CheckpointWriter writer(file.get(), nullptr);
    absl::Status status = writer.Begin({.contract_id = HashContract().Id(),
                                        .cell = "cell-a",
                                        .replica = "b",
                                        .wall_time_ns = 1'700'000'000'000'000'000,
                                        .number = 5});
    status.Update(writer.AddDomain({"llama", "acme"}, 16));
    status.Update(writer.AddHolder(SomeCut()));
    status.Update(writer.AddEngines(engines));
    status.Update(writer.End());
    if (!status.ok()) return "";
  }
  return *files.BytesOf(kPath);
}

absl::StatusOr<std::string> TextOfCheckpoint(const std::string& path) {
  // The machine's own layer follows no symbolic links, and test data are such.
  std::ifstream in(path, std::ios::binary);
  FaultFiles files;
  (*files.Create(kPath))
      ->Append(std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()})
      .IgnoreError();
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = files.Open(kPath);
  if (!file.ok()) return file.status();
  CheckpointText told;
  const absl::Status status =
      ReadCheckpoint(**file, {.contract_id = HashContract().Id(), .cell = "cell-a"}, &told)
          .status();
  if (!status.ok()) return status;
  return told.text;
}

absl::StatusOr<std::string> TextOfReplicaSnapshot(const std::string& bytes) {
  ReplicaText told;
  const absl::Status status = ReadReplicaSnapshot(HashContract(), ChunksOf(bytes), &told).status();
  if (!status.ok()) return status;
  return Lines(told.lines);
}

absl::StatusOr<std::string> TextOfDynamoDump(const std::string& json) {
  DumpText told;
  const absl::StatusOr<DumpReadStats> stats =
      ReadDump({.contract = HashContract()}, ChunksOf(json), &told);
  if (!stats.ok()) return stats.status();
  return absl::StrCat(Lines(told.lines), "skipped ", stats->skipped_events, " orphaned ",
                      stats->orphaned_blocks, "\n");
}

}  // namespace kvatlas
