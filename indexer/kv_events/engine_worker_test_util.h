// An engine made by hand, a worker that listens to it, and a real index behind: for tests of
// meaning.
//
// Example:
//   TestWorker worker({.block_size = 4});
//   worker.Apply({StoreEvent({1, 2}, Tokens(8))});
//   EXPECT_EQ(worker.Reach(Tokens(8)), 2);

#ifndef KVATLAS_INDEXER_KV_EVENTS_ENGINE_WORKER_TEST_UTIL_H_
#define KVATLAS_INDEXER_KV_EVENTS_ENGINE_WORKER_TEST_UTIL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "indexer/index/index.h"
#include "indexer/index/side_index.h"
#include "indexer/kv_events/engine_worker.h"

namespace kvatlas {

// An event that owns what it points to. Copyable.
struct OwnedEvent {
  using Keys = std::vector<std::vector<std::pair<ExtraKey::Kind, std::string>>>;

  EngineEvent::Kind kind = EngineEvent::Kind::kStored;
  std::vector<uint64_t> hashes;
  std::vector<std::string> digests;  // instead of `hashes`
  std::optional<uint64_t> parent;
  std::optional<std::string> parent_digest;
  std::vector<TokenId> tokens;
  Keys extra_keys;
  std::vector<std::vector<uint64_t>> multimodal;
  EngineEvent event;  // the rest

  // The event with its views; valid as long as `memory` and this.
  struct Memory {
    std::vector<EngineBlockHash> hashes;
    std::vector<std::vector<ExtraKey>> keys;
    std::vector<std::span<const ExtraKey>> key_spans;
    std::vector<std::span<const uint64_t>> object_spans;
  };
  EngineEvent View(Memory* memory) const;
};

EngineBlockHash HashOf(uint64_t value);
EngineBlockHash HashOf(const std::string& digest);

// Tokens from, from + 1, …
std::vector<TokenId> Tokens(size_t count, TokenId from = 0);

// Blocks of 4 tokens, unless `event.block_size` is set afterwards.
OwnedEvent StoreEvent(std::vector<uint64_t> hashes, std::vector<TokenId> tokens,
                      std::optional<uint64_t> parent = std::nullopt,
                      std::string_view medium = "GPU");
OwnedEvent RemoveEvent(std::vector<uint64_t> hashes, std::string_view medium = "GPU");
OwnedEvent ClearEvent();

class TestWorker {
 public:
  explicit TestWorker(EngineWorkerOptions options = {}, uint64_t blocks_max = 0);
  ~TestWorker();

  EngineWorker& operator*() { return *worker_; }
  EngineWorker* operator->() { return worker_.get(); }

  void Apply(const std::vector<OwnedEvent>& events, std::optional<int64_t> rank = std::nullopt,
             uint32_t stream_rank = 0);
  void Advance(Duration by) {
    now_ += by;
    worker_->Tick(now_);
  }
  Time now() const { return now_; }

  struct Asked {
    std::string_view lora_name = {};
    std::string_view cache_salt = {};
    uint32_t rank = 0;
    TierMask tiers = TierMask::All();
    uint32_t eagle = 0;
    std::vector<std::vector<uint64_t>> multimodal = {};
    bool held_only = false;
  };
  // How many leading blocks of a prompt the rank can reuse; of a rank with full attention alone,
  // has.
  size_t Reach(const std::vector<TokenId>& tokens) const { return Reach(tokens, Asked()); }
  size_t Reach(const std::vector<TokenId>& tokens, const Asked& asked) const;

  // How many its main class has.
  size_t Held(const std::vector<TokenId>& tokens, uint32_t rank = 0) const;
  CacheLayout layout(uint32_t rank = 0) const { return ranks_.at(rank).layout; }

  // The index's blocks of a rank: tiers by block.
  std::map<uint64_t, TierMask> Holdings(uint32_t rank = 0) const;
  // Likewise of its side blocks, by name.
  std::map<uint64_t, TierMask> SideHoldings(uint32_t rank = 0) const;
  Trust trust(uint32_t rank = 0) const { return ranks_.at(rank).trust; }
  uint64_t Refused(Refusal refusal) const {
    return worker_->Stats().refused[static_cast<size_t>(refusal)];
  }
  EngineRankStats RankStats(uint32_t rank = 0) const;
  const std::vector<Event>& sent(uint32_t rank = 0) const { return ranks_.at(rank).sent; }
  // In how many calls that was.
  size_t calls(uint32_t rank = 0) const { return ranks_.at(rank).calls; }
  void ForgetSent() {
    for (auto& [number, rank] : ranks_) {
      rank.sent.clear();
      rank.calls = 0;
    }
  }
  const Index& index() const { return *index_; }

  // Writers say how many blocks an event changed.
  void SetTells(bool tells) { tells_ = tells; }
  void SetRefusesRank(std::optional<uint32_t> rank) { refused_rank_ = rank; }

 private:
  friend class IndexWriter;
  struct Rank {
    HolderIndex holder{0};
    Trust trust = Trust::kExact;
    CacheLayout layout;
    std::vector<Event> sent;
    size_t calls = 0;
  };

  const EngineWorkerOptions options_;
  bool tells_ = true;
  std::optional<uint32_t> refused_rank_;
  Time now_{1};
  std::unique_ptr<Index> index_;
  SideIndex sides_;
  std::map<uint32_t, Rank> ranks_;
  std::unique_ptr<EngineWorker> worker_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ENGINE_WORKER_TEST_UTIL_H_
