// A checkpoint has two parts: images of holders that streams feed, which are told as they are read
// (`CheckpointTeller`), and names of blocks of engines that the leaf listened to, which are
// gathered first (`EngineNames`) and then told (`TellEngine`).

#include "tools/kvatlas/checkpoint_holdings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/hash.h"
#include "indexer/checkpoint/checkpoint_file.h"
#include "indexer/checkpoint/file_layer.h"
#include "indexer/checkpoint/replica_snapshot.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/transport/wire.h"

namespace kvatlas {
namespace {

using Visit = std::function<void(const v1::DumpResponse&)>;

// Runs of one block each: a piece stays far below the bound of a message.
constexpr size_t kBlocksAPiece = 4096;

// The contract of an id; an unknown algorithm has no seed and matches nothing.
HashContract ContractOf(std::string_view id) {
  HashContract contract;
  const size_t colon = id.rfind(':');
  if (colon != std::string_view::npos)
    std::from_chars(id.data() + colon + 1, id.data() + id.size(), contract.seed);
  return contract;
}

// One rank of an engine, put together from the names of its blocks.
struct EngineHoldings {
  Domain domain;
  // The attention groups that have to hold a block for the rank to have it in that tier.
  std::array<std::vector<uint32_t>, kTiers> required = {};
  bool degraded = false;
  struct Named {
    Position position = 0;
    std::array<std::set<uint32_t>, kTiers> groups = {};
  };
  std::map<SequenceHash, Named> blocks = {};
  std::map<SequenceHash, Named> sides = {};
};

// Gathers the names of all ranks: a block may have several, one for each group, so nothing can be
// told before all are read.
class EngineNames : public SnapshotVisitor {
 public:
  explicit EngineNames(const DumpFilter& filter) : filter_(filter) {}

  absl::Status OnInstance(const EngineEntry& entry) override {
    domain_seen_ = domain_seen_ || filter_.Wants(entry.domain.model, entry.domain.tenant);
    return absl::OkStatus();
  }
  absl::Status OnPosition(const EngineEntry&, uint32_t,
                          const std::optional<StreamPosition>&) override {
    return absl::OkStatus();
  }
  absl::Status OnRank(const EngineEntry& entry, const EngineRankMark& mark) override {
    EngineHoldings* const of = Of(entry, mark.rank);
    if (of == nullptr) return absl::OkStatus();
    of->required = mark.required;
    of->degraded = of->degraded || mark.given_up;
    return absl::OkStatus();
  }
  absl::Status OnName(const EngineEntry& entry, const EngineAlias& alias) override {
    EngineHoldings* const of = Of(entry, alias.rank);
    // A side block without a main block waits for it, and belongs to no rank yet.
    if (of == nullptr || (alias.side && alias.block == SequenceHash{0})) return absl::OkStatus();
    of->degraded = of->degraded || alias.suspect;
    EngineHoldings::Named& named = (alias.side ? of->sides : of->blocks)[alias.block];
    named.position = alias.position;
    for (size_t tier = 0; tier < kTiers; ++tier)
      if (alias.copies[tier] > 0) named.groups[tier].insert(alias.group);
    return absl::OkStatus();
  }

  const std::map<HolderKey, EngineHoldings>& all() const { return all_; }
  bool domain_seen() const { return domain_seen_; }

 private:
  // Null: the filter does not want it.
  EngineHoldings* Of(const EngineEntry& entry, uint32_t rank) {
    if (!filter_.Wants(entry.domain.model, entry.domain.tenant, entry.instance)) return nullptr;
    return &all_[{entry.domain, HolderId{entry.instance, rank, ""}}];
  }

  const DumpFilter& filter_;
  std::map<HolderKey, EngineHoldings> all_;
  bool domain_seen_ = false;
};

// Whether the rank has the block in the tier: every required group has a copy.
bool Holds(const EngineHoldings& of, const EngineHoldings::Named& named, size_t tier) {
  const std::set<uint32_t>& groups = named.groups[tier];
  return !groups.empty() && std::all_of(of.required[tier].begin(), of.required[tier].end(),
                                        [&](uint32_t group) { return groups.contains(group); });
}

// Block by block, as names have no runs. Their class is not in a checkpoint (`kUnknownSide`).
void TellEngine(const HolderKey& key, const EngineHoldings& of, const Visit& visit) {
  v1::DumpResponse piece;
  ToProto(key.first, piece.mutable_domain());
  ToProto(key.second, piece.mutable_worker());
  piece.set_trust(of.degraded ? v1::TRUST_DEGRADED : v1::TRUST_EXACT);
  const auto add = [&](SequenceHash block, const EngineHoldings::Named& named, size_t tier,
                       bool side) {
    v1::Stored* const stored = piece.add_stored();
    stored->set_tier(static_cast<v1::Tier>(tier));
    stored->set_position(named.position);
    if (side) stored->set_side(kUnknownSide);
    stored->add_blocks(Raw(block));
    if (static_cast<size_t>(piece.stored_size()) < kBlocksAPiece) return;
    visit(piece);
    piece.clear_stored();
  };
  for (size_t tier = 0; tier < kTiers; ++tier) {
    for (const auto& [block, named] : of.blocks)
      if (Holds(of, named, tier)) add(block, named, tier, /*side=*/false);
    for (const auto& [block, named] : of.sides)
      if (!named.groups[tier].empty()) add(block, named, tier, /*side=*/true);
  }
  piece.set_last_of_worker(true);
  visit(piece);
}

// Tells a checkpoint's holders as pieces of a dump. `piece_` is the holder being read; empty: none,
// or one that the filter does not want.
class CheckpointTeller : public CheckpointVisitor {
 public:
  CheckpointTeller(HashContract contract, const DumpFilter& filter, const Visit& visit)
      : contract_(contract), filter_(filter), visit_(visit) {}

  absl::Status OnHeader(const CheckpointHeader&) override { return absl::OkStatus(); }
  absl::Status OnDomain(const Domain& domain, uint32_t) override {
    domain_ = domain;
    domain_seen_ = domain_seen_ || filter_.Wants(domain.model, domain.tenant);
    EndHolder();
    return absl::OkStatus();
  }
  absl::Status OnHolder(const HolderImage& image) override {
    EndHolder();
    if (!filter_.Wants(domain_.model, domain_.tenant, image.info.id.name)) return absl::OkStatus();
    piece_.emplace();
    ToProto(domain_, piece_->mutable_domain());
    ToProto(image.info.id, piece_->mutable_worker());
    piece_->set_applied(image.stream.applied);
    const bool exact = image.stream.whole && !image.stream.sender_degraded;
    piece_->set_trust(exact ? v1::TRUST_EXACT : v1::TRUST_DEGRADED);
    if (!image.layout.plain()) ToProto(image.layout, piece_->mutable_layout());
    return absl::OkStatus();
  }
  // A run in several tiers is told once for each.
  absl::Status OnRun(Stored* run, TierMask tiers) override {
    if (!piece_.has_value()) return absl::OkStatus();
    for (int tier = 0; tier < kTiers; ++tier) {
      if (!tiers.Has(static_cast<Tier>(tier))) continue;
      run->tier = static_cast<Tier>(tier);
      piece_->clear_stored();
      ToProto(*run, piece_->add_stored());
      visit_(*piece_);
    }
    return absl::OkStatus();
  }
  absl::Status OnEngines(const ReadChunk& read) override {
    EndHolder();
    EngineNames names(filter_);
    const absl::StatusOr<SnapshotStats> stats = ReadReplicaSnapshot(contract_, read, &names);
    if (!stats.ok()) return stats.status();
    domain_seen_ = domain_seen_ || names.domain_seen();
    for (const auto& [key, of] : names.all()) TellEngine(key, of, visit_);
    return absl::OkStatus();
  }
  absl::Status OnEnd() override {
    EndHolder();
    return absl::OkStatus();
  }

  bool domain_seen() const { return domain_seen_ || filter_.model.empty(); }

 private:
  // The last piece of a holder has no blocks, only the mark.
  void EndHolder() {
    if (!piece_.has_value()) return;
    piece_->clear_stored();
    piece_->set_last_of_worker(true);
    visit_(*piece_);
    piece_.reset();
  }

  const HashContract contract_;
  const DumpFilter& filter_;
  const Visit& visit_;
  Domain domain_;
  bool domain_seen_ = false;
  std::optional<v1::DumpResponse> piece_;
};

}  // namespace

absl::Status ReadCheckpointHoldings(const std::string& path, const DumpFilter& filter,
                                    const Visit& visit) {
  const std::string name = "checkpoint " + path;
  const auto about = [&](const absl::Status& status) {
    return absl::Status(status.code(), name + ": " + std::string(status.message()));
  };
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = FileLayer::Real().Open(path);
  if (!file.ok()) return about(file.status());
  // Whatever contract and cell it is of.
  const absl::StatusOr<CheckpointHeader> header = ReadCheckpointHeader(**file);
  if (!header.ok()) return about(header.status());
  CheckpointTeller teller(ContractOf(header->contract_id), filter, visit);
  const absl::StatusOr<CheckpointCounts> counts =
      ReadCheckpoint(**file, {.contract_id = header->contract_id, .cell = std::nullopt}, &teller);
  if (!counts.ok()) return about(counts.status());
  if (teller.domain_seen()) return absl::OkStatus();
  return absl::NotFoundError(name + ": domain " + DomainName({filter.model, filter.tenant}) +
                             " is not in it");
}

}  // namespace kvatlas
