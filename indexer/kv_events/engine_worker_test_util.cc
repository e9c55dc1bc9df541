#include "indexer/kv_events/engine_worker_test_util.h"

#include "indexer/base/big_endian.h"
#include "indexer/index/reusable.h"

#include <numeric>

namespace kvatlas {

EngineBlockHash HashOf(uint64_t value) { return {.value = value, .bytes = {}}; }

EngineBlockHash HashOf(const std::string& digest) {
  return {.value = FromBigEndian(digest), .bytes = digest};
}

EngineEvent OwnedEvent::View(Memory* memory) const {
  EngineEvent view = event;
  view.kind = kind;
  for (uint64_t hash : hashes) memory->hashes.push_back(HashOf(hash));
  for (const std::string& digest : digests) memory->hashes.push_back(HashOf(digest));
  view.hashes = memory->hashes;
  if (parent.has_value()) view.parent = HashOf(*parent);
  if (parent_digest.has_value()) view.parent = HashOf(*parent_digest);
  view.tokens = tokens;
  for (const auto& block : extra_keys) {
    std::vector<ExtraKey>& keys = memory->keys.emplace_back();
    for (const auto& [key_kind, text] : block) {
      ExtraKey key{.kind = key_kind, .text = text};
      if (key_kind == ExtraKey::Kind::kNumber) key.offset = std::stoll(text);
      keys.push_back(key);
    }
  }
  for (const auto& keys : memory->keys) memory->key_spans.emplace_back(keys);
  view.extra_keys = memory->key_spans;
  for (const auto& objects : multimodal) memory->object_spans.emplace_back(objects);
  view.multimodal = memory->object_spans;
  return view;
}

std::vector<TokenId> Tokens(size_t count, TokenId from) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

OwnedEvent StoreEvent(std::vector<uint64_t> hashes, std::vector<TokenId> tokens,
                      std::optional<uint64_t> parent, std::string_view medium) {
  OwnedEvent event;
  event.hashes = std::move(hashes);
  event.tokens = std::move(tokens);
  event.parent = parent;
  event.event.block_size = 4;
  event.event.medium = medium;
  return event;
}

OwnedEvent RemoveEvent(std::vector<uint64_t> hashes, std::string_view medium) {
  OwnedEvent event;
  event.kind = EngineEvent::Kind::kRemoved;
  event.hashes = std::move(hashes);
  event.event.medium = medium;
  return event;
}

OwnedEvent ClearEvent() {
  OwnedEvent event;
  event.kind = EngineEvent::Kind::kCleared;
  return event;
}

// ---- The worker's rank in a real index ----

class IndexWriter : public HoldingsWriter {
 public:
  IndexWriter(TestWorker* worker, uint32_t rank) : worker_(worker), rank_(rank) {}

  Applied Apply(std::span<const Event> events) override {
    ++worker_->ranks_.at(rank_).calls;
    return ApplyInOrder(
        events, [this](const Event& event, uint64_t* changed) { return ApplyOne(event, changed); });
  }
  void SetLayout(const CacheLayout& layout) override { worker_->ranks_.at(rank_).layout = layout; }
  void SetTrust(Trust trust) override { worker_->ranks_.at(rank_).trust = trust; }
  void ForEachHeld(
      const std::function<void(SequenceHash, SequenceHash, LocalHash)>& visit) const override {
    for (const Holding& holding : worker_->index_->HoldingsOf(worker_->ranks_.at(rank_).holder))
      visit(holding.block, holding.parent, holding.local);
  }

 private:
  absl::Status ApplyOne(const Event& event, uint64_t* changed) {
    TestWorker::Rank& rank = worker_->ranks_.at(rank_);
    rank.sent.push_back(event);
    SideIndex* const sides = &worker_->sides_;
    if (const Stored* stored = std::get_if<Stored>(&event); stored != nullptr && stored->side != 0)
      return sides->Store(rank.holder, stored->tier, stored->blocks, nullptr, nullptr);
    if (const Removed* removed = std::get_if<Removed>(&event);
        removed != nullptr && removed->side != 0) {
      sides->Remove(rank.holder, removed->tier, removed->blocks, nullptr);
      return absl::OkStatus();
    }
    if (const Cleared* cleared = std::get_if<Cleared>(&event))
      sides->Clear(rank.holder, cleared->tiers, nullptr);
    ChangeLog changes;
    const absl::Status status = worker_->index_->Apply(rank.holder, event, &changes);
    *changed = worker_->tells_ ? changes.blocks() : UINT64_MAX;
    return status;
  }

  TestWorker* const worker_;
  const uint32_t rank_;
};

namespace {

EngineWorkerOptions WithBlocksOf4(EngineWorkerOptions options) {
  if (options.block_size == EngineWorkerOptions().block_size) options.block_size = 4;
  return options;
}

}  // namespace

TestWorker::TestWorker(EngineWorkerOptions options, uint64_t blocks_max)
    : options_(WithBlocksOf4(std::move(options))) {
  IndexOptions index_options;
  index_options.keep_local_hashes = options_.keep_local_hashes;
  index_options.blocks_max = blocks_max;
  index_ = *MakeIndex("atlas", index_options);
  worker_ = std::make_unique<EngineWorker>(
      options_, [this](uint32_t rank) -> absl::StatusOr<std::shared_ptr<HoldingsWriter>> {
        if (refused_rank_ == rank) return absl::ResourceExhaustedError("no more holders");
        ranks_[rank].holder = *index_->AddHolder();
        return std::make_shared<IndexWriter>(this, rank);
      });
}

TestWorker::~TestWorker() = default;

void TestWorker::Apply(const std::vector<OwnedEvent>& events, std::optional<int64_t> rank,
                       uint32_t stream_rank) {
  std::deque<OwnedEvent::Memory> memory;
  EngineBatch batch;
  batch.rank = rank;
  for (const OwnedEvent& event : events) batch.events.push_back(event.View(&memory.emplace_back()));
  worker_->Apply(stream_rank, batch, now_);
}

size_t TestWorker::Reach(const std::vector<TokenId>& tokens, const Asked& asked) const {
  const auto found = ranks_.find(asked.rank);
  if (found == ranks_.end()) return 0;
  const uint64_t seed =
      BlockSeed({.lora_name = asked.lora_name, .cache_salt = asked.cache_salt}, options_.contract);
  const std::vector<SequenceHash> blocks =
      SequenceHashes(LocalHashes(tokens, {.block_size = options_.block_size, .eagle = asked.eagle},
                                 seed, asked.multimodal),
                     options_.contract);
  std::vector<Overlap> overlaps;
  index_->FindOverlaps({.blocks = blocks, .tiers = asked.tiers}, &overlaps);
  std::vector<Overlap> own = {{found->second.holder, 0}};
  for (const Overlap& overlap : overlaps)
    if (overlap.holder == found->second.holder) own[0] = overlap;
  const CacheLayout& layout = found->second.layout;
  if (asked.held_only || layout.plain() || blocks.empty()) return own[0].blocks;
  SideIndex::Reader reader(sides_);
  const uint32_t number = Raw(own[0].holder);
  std::vector<uint64_t> holders(number / 64 + 1);
  holders.back() = uint64_t{1} << (number % 64);
  const auto find = [&](TierMask tiers) -> uint32_t {
    overlaps.clear();
    index_->FindOverlaps({.blocks = blocks, .tiers = tiers}, &overlaps);
    own[0].blocks = 0;
    for (const Overlap& overlap : overlaps)
      if (overlap.holder == found->second.holder) own[0] = overlap;
    std::vector<Overlap> reused;
    Reusable().Find(layout, blocks, options_.block_size, tiers, reader, StepsOf(own), holders,
                    &reused);
    return reused.empty() ? 0 : reused[0].blocks;
  };
  const TierMask on_device = asked.tiers & TierMask(Tier::kDevice);
  return LoadableBlocks(layout, options_.block_size, on_device.empty() ? 0 : find(on_device),
                        find(asked.tiers));
}

size_t TestWorker::Held(const std::vector<TokenId>& tokens, uint32_t rank) const {
  Asked asked;
  asked.rank = rank;
  asked.held_only = true;
  return Reach(tokens, asked);
}

std::map<uint64_t, TierMask> TestWorker::Holdings(uint32_t rank) const {
  std::map<uint64_t, TierMask> holdings;
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return holdings;
  for (const Holding& holding : index_->HoldingsOf(found->second.holder))
    holdings[Raw(holding.block)] = holding.tiers;
  return holdings;
}

std::map<uint64_t, TierMask> TestWorker::SideHoldings(uint32_t rank) const {
  std::map<uint64_t, TierMask> holdings;
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return holdings;
  sides_.ForEachOf(found->second.holder, [&](SequenceHash name, TierMask tiers, uint64_t) {
    holdings[Raw(name)] = tiers;
  });
  return holdings;
}

EngineRankStats TestWorker::RankStats(uint32_t rank) const {
  for (const EngineRankStats& stats : worker_->Stats().ranks)
    if (stats.rank == rank) return stats;
  return {};
}

}  // namespace kvatlas
