// The meaning of an engine's events, computed slowly and plainly: maps by name, everything again
// for each question. The twin of `EngineWorker` in random tests, for one rank.
//
// *Truth*: it is written from the words of `engine_worker.h` and `engine_rank.h`, not from their
// code: a name's content is kept as its tokens and its parent's content; tiers count copies; a
// clear empties; a loss keeps two counts.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ENGINE_TWIN_H_
#define KVATLAS_INDEXER_KV_EVENTS_ENGINE_TWIN_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/hash.h"
#include "indexer/base/tier.h"

namespace kvatlas {

// The content of a block: a whole chain from its root.
struct TwinContent {
  std::string salt;
  std::vector<TokenId> tokens;

  friend auto operator<=>(const TwinContent&, const TwinContent&) = default;
};

class EngineTwin {
 public:
  // `chunk_blocks`: beside the device a store without tokens names so many blocks by their last
  //   one; 1: none but itself.
  explicit EngineTwin(uint32_t block_size, uint32_t chunk_blocks = 1)
      : block_size_(block_size), chunk_blocks_(chunk_blocks) {}

  struct StoreBlock {
    uint32_t group = 0;
    uint64_t name = 0;
    std::optional<uint64_t> parent;
    std::optional<std::string> salt;
    std::vector<TokenId> tokens;  // of this block; empty: none came
    Tier tier = Tier::kDevice;
    bool says_kind = false;  // as vLLM's connectors, which leave salts out
  };
  // Blocks of one event, each the parent of the next one. They are refused together.
  void Store(const std::vector<StoreBlock>& blocks);
  void Remove(uint32_t group, uint64_t name, Tier tier);
  void Clear();
  void Restart();
  void Lose();
  void Repair();
  void GiveUp();

  // Tiers by sequence hash.
  std::map<uint64_t, TierMask> Holdings() const;
  size_t parked() const { return parked_.size(); }

 private:
  using Name = std::pair<uint32_t, uint64_t>;  // group, hash
  struct Copies {
    std::array<int, kTiers> all = {};
    std::array<int, kTiers> certain = {};
    bool any() const { return all != std::array<int, kTiers>{}; }
  };
  struct Known {
    TwinContent content;
    Copies copies;
  };
  struct Parked {
    std::optional<uint64_t> parent;  // with tokens
    std::optional<std::string> salt;
    std::vector<TokenId> tokens;
    Copies copies;
  };

  const TwinContent* Content(uint32_t group, uint64_t name) const;
  // The content that the first block follows; nothing: unknown.
  std::optional<TwinContent> Before(const StoreBlock& first, bool* refused) const;
  void Park(const StoreBlock& block);
  void Add(Name name, const TwinContent& content, Tier tier, int copies, int certain);
  void Settle();
  // As `Add`, and the blocks of the chunk that this one ends.
  void AddChunk(Name name, const TwinContent& content, Tier tier, int copies, int certain);
  static Name Member(Name name, uint32_t back) {
    return {name.first, name.second | uint64_t{back} << 40};
  }
  bool RemoveCopy(Name name, Tier tier);

  const uint32_t block_size_;
  const uint32_t chunk_blocks_;
  std::map<Name, Known> known_;
  std::map<Name, Parked> parked_;
  std::set<Name> ambiguous_;
  std::array<std::set<uint32_t>, kTiers> required_;
  // Gaps that nothing repaired yet; what was lost may have said that salts are in use.
  int gaps_ = 0;
  bool given_up_ = false;
  bool missed_ = false;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ENGINE_TWIN_H_
