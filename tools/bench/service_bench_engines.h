// What do engines under load say? Prompts of random tokens, pools that evict, and the streams that
// follow from them, made before the clock runs.
//
// *Truth*: an engine stores a prompt in steps of `event_blocks`, and before each evicts what has no
// room, the tails of its least recently stored prompts first: no holes. What it holds at the end is
// known (`HeldPrompt`).
// *Threads*: pure. *Cost*: 4 bytes a token and, for streams, about 90 bytes a stored block.

#ifndef KVATLAS_TOOLS_BENCH_SERVICE_BENCH_ENGINES_H_
#define KVATLAS_TOOLS_BENCH_SERVICE_BENCH_ENGINES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "tools/bench/ops.h"

namespace kvatlas {

// How an engine calls its blocks: as the contract does, or by hashes of its own.
enum class BlockNames : uint8_t { kContract, kOwn };

struct BenchPrompt {
  std::vector<TokenId> tokens;
  std::vector<LocalHash> locals;
  std::vector<SequenceHash> blocks;
  std::vector<uint64_t> names;
};

// From its tokens.
BenchPrompt MakePrompt(std::vector<TokenId> tokens, uint32_t block_size, BlockNames names);
// Tokens evenly out of 2^17, as large vocabularies have them.
BenchPrompt RandomPrompt(uint32_t blocks, uint32_t block_size, BlockNames names,
                         std::mt19937_64& random);

// One step of an engine: evictions, then a run of blocks. Either may be empty.
struct BenchStep {
  std::span<const uint64_t> removed;
  Position position = 0;  // of the first stored block
  std::optional<uint64_t> parent;
  std::span<const uint64_t> stored;
  std::span<const TokenId> tokens;
};

struct HeldPrompt {
  BenchPrompt prompt;
  uint32_t blocks = 0;  // leading ones that are still held
};

struct EngineLoad {
  uint32_t block_size = 16;
  uint64_t blocks = 0;    // to store
  uint64_t capacity = 0;  // 0: no limit. REQUIRES else: at least two prompts
  uint32_t sequence_blocks = 512;
  uint32_t event_blocks = 128;
  BlockNames names = BlockNames::kOwn;
};

struct EngineOutcome {
  uint64_t stored = 0;
  uint64_t removed = 0;
  uint64_t held = 0;
  std::vector<HeldPrompt>
      prompts;  // of those held at the end, the last few, and one that is evicted
};

// Runs an engine; steps are valid during the visit.
EngineOutcome RunEngine(const EngineLoad& load, std::mt19937_64& random,
                        const std::function<void(const BenchStep&)>& visit);

// What a worker of an ops file does. Tokens are made from local hashes
// (`tools/testing/mock_engine/mock_tokens.h`), engine hashes are the file's sequence hashes.
EngineOutcome RunOps(const OpsFile& file, uint32_t worker, uint32_t block_size, BlockNames names,
                     const std::function<void(const BenchStep&)>& visit);

// The payload of one batch, as vLLM 0.24 and later sends it: one removed event per block, one
// stored event.
std::string FrameOf(const BenchStep& step, uint32_t block_size);
// The same of a whole prompt, in several batches.
std::vector<std::string> FramesOf(const BenchPrompt& prompt, uint32_t block_size,
                                  uint32_t event_blocks);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_SERVICE_BENCH_ENGINES_H_
