// Explains an answer as JSON: every rank by tier with trust, age and load, and block by block which
// ranks have it; for hybrid models class by class, with the class that ended what can be reused
// (`block_presence_map.h`).
//
// *Truth*: of ranks that are being written, what was true at some moment of reading. *Threads*: one
// at a time.

#ifndef KVATLAS_INDEXER_REGISTRY_EXPLAIN_JSON_H_
#define KVATLAS_INDEXER_REGISTRY_EXPLAIN_JSON_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "indexer/base/domain.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/registry/block_presence_map.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {

// {"error":"<text>"}
void AppendJsonError(std::string_view text, std::string* out);
// In quotes.
void AppendJsonText(std::string_view text, std::string* out);
// "exact"
std::string_view TrustName(Trust trust);
// "device"
std::string_view TierName(Tier tier);

// How deep a rank reaches, in blocks.
struct RankDetail {
  std::array<uint32_t, kTiers> tiers = {};  // in that tier alone
  uint32_t any = 0;                         // each block in any
  uint32_t held = 0;                        // likewise, of the main class alone
  uint32_t loadable = 0;  // `any`, or more with what stores have (`shared_stores.h`)
  Trust loadable_trust = Trust::kExact;
  Trust trust = Trust::kExact;
  Duration age{0};
  std::optional<Load> load;
};

// By instance and rank.
using RankDetails = std::map<std::string, std::map<uint32_t, RankDetail>>;

// Asks for `blocks`; of a rank that is there already the larger counts.
void AddRankDetails(const HolderRegistry& registry, const Domain& domain,
                    std::span<const SequenceHash> blocks, RankDetails* ranks);

// {"1":{"0":{"device":12,"host":0,"disk":0,"external":0,"any":12,"trust":"exact","age_ms":3,"load":{…}}}},
// in tokens.
void AppendRankDetails(const RankDetails& ranks, uint32_t block_size, std::string* out);

struct ExplanationHead {
  std::string_view model;
  std::string_view group;
  uint32_t block_size = 0;
  uint64_t tokens = 0;
  std::string_view lora_name;
  std::string_view cache_salt;
  std::string contract;
  uint32_t blocks_max = 0;
};

struct Explanation {
  bool eagle = false;
  std::vector<SequenceHash> blocks;
  std::vector<LocalHash> locals;

  struct Rank {
    std::string instance;
    uint32_t rank = 0;
    RankDetail detail;
    bool read = false;
    std::vector<TierMask> held;          // by position, if `read`
    std::optional<uint32_t> first_hole;  // a block it lacks before one that it has
    uint32_t behind_hole = 0;            // blocks of the prompt that it has behind that
    BlockPresenceMap classes;            // if `read`
  };
  std::vector<Rank> ranks;  // the deepest first

  // Asks which ranks have what, and reads the holdings of the first `ranks_max`. `block_size`: of
  // the domain, tokens.
  void Read(const HolderRegistry& registry, const Domain& domain, uint32_t block_size,
            uint32_t ranks_max);
  // Leading blocks that some rank can reuse.
  uint32_t deepest() const { return ranks.empty() ? 0 : ranks.front().detail.any; }
  void Append(const ExplanationHead& head, std::string* out) const;

 private:
  void ReadHoldings(const HolderRegistry& registry, const Domain& domain, uint32_t block_size,
                    Rank* rank) const;
  void AppendPath(uint32_t blocks_max, std::string* out) const;
  void AppendRanks(std::string* out) const;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_EXPLAIN_JSON_H_
