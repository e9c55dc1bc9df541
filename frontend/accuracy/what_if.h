// Under which other supposition would the index have found this prompt? The prompt's blocks, hashed
// as an engine or a publisher might have hashed them that differs in one respect.
//
// *Place*: asked of the leaf when a worker has finished a prompt and the leaf does not know it
// there. A supposition that hits names the cause.
// *Truth*: only the leading tokens are looked at. A supposition that does not change this prompt is
// left out, and so is one without a full block.
// *Cost*: about 10 ns a block and supposition.

#ifndef KVATLAS_FRONTEND_ACCURACY_WHAT_IF_H_
#define KVATLAS_FRONTEND_ACCURACY_WHAT_IF_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "indexer/base/hash.h"
#include "indexer/base/ids.h"

namespace kvatlas {

struct Supposition {
  enum class Kind : uint8_t {
    kFirstTokenTwice,    // the engine has our first token once more
    kFirstTokenDropped,  // the engine lacks our first token
    kBosAdded,           // the engine begins with the tokenizer's BOS, which we lack
    kBlockSize,
    kNoSalt,
    kNoLora,
    kNoNamespace,  // neither
    kSeed,
    kLookAhead,  // bigrams where we have none, and the other way round
  };
  Kind kind = Kind::kNoSalt;
  uint64_t value = 0;  // block size, or seed

  friend bool operator==(const Supposition&, const Supposition&) = default;
};

// "block size 32"
std::string ToString(const Supposition& supposition);

// The facts that a prompt was hashed from.
struct PromptFacts {
  std::vector<TokenId> tokens;  // leading ones
  std::string lora_name;
  std::string cache_salt;
  bool eagle = false;
  std::optional<TokenId> bos;
  uint32_t block_size = 16;
  HashContract contract;
};

struct WhatIfQuestion {
  Supposition what;
  std::vector<SequenceHash> sequence;  // never empty
};

// Block sizes that engines are run with.
inline constexpr uint32_t kUsualBlockSizes[] = {8, 16, 32, 48, 64, 128, 256};
// Seeds that implementations of the contract use.
inline constexpr uint64_t kUsualSeeds[] = {0, 1, 42, kDefaultHashSeed};

// One block each, at least, and none twice. `more_seeds`, `more_block_sizes`: others to suppose.
std::vector<WhatIfQuestion> WhatIf(const PromptFacts& prompt,
                                   std::span<const uint64_t> more_seeds = {},
                                   std::span<const uint32_t> more_block_sizes = {});

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_WHAT_IF_H_
