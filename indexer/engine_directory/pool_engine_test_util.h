// An engine whose cache is known: random prompts are stored and evicted, published as vLLM does
// over real sockets, and every answer about it can be compared with its own pool.
//
// Example:
//   PoolEngine engine({.seed = 1, .replay = true});
//   directory.Register(engine.Registration("1"));
//   engine.Run(100);
//   EXPECT_TRUE(Eventually([&] { return engine.Compare(registry, "1") == ""; }));

#ifndef KVATLAS_INDEXER_ENGINE_DIRECTORY_POOL_ENGINE_TEST_UTIL_H_
#define KVATLAS_INDEXER_ENGINE_DIRECTORY_POOL_ENGINE_TEST_UTIL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/registry/holder_registry.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {

// Waits for what other threads bring about; false: it never came.
bool Eventually(const std::function<bool()>& condition);

struct PoolEngineOptions {
  uint64_t seed = 1;
  bool replay = false;
  size_t ring = 10000;
  uint32_t block_size = 4;
  uint32_t rank = 0;
  bool digests = false;     // 32-byte hashes
  size_t blocks_max = 300;  // of the pool
  // A socket that it dials, with this topic; empty: it listens.
  std::string dial = {};
  std::string topic = {};
};

class PoolEngine {
 public:
  explicit PoolEngine(PoolEngineOptions options);

  ZmqTestEngine& sockets() { return sockets_; }
  // Model "m" in the default group.
  EngineRegistration Registration(const std::string& instance) const;

  // So many random batches: prompts stored, some twice, blocks evicted from anywhere. With `lost`,
  // they are not delivered.
  void Run(int batches, bool lost = false);
  // All of the pool goes, and so do numbers, connections and what a replay would have told.
  void Restart();
  // Evicts a random held block, or all.
  void Evict();
  void EvictAll();

  // How the registry's answers about that rank differ from the pool; empty: in nothing. With
  // `under` it may know less.
  std::string Compare(const HolderRegistry& registry, const std::string& instance,
                      bool under = false) const;
  size_t held() const { return held_.size(); }

 private:
  // Every block that ever was, with its place in the tree of prompts.
  struct Block {
    int parent = -1;
    uint64_t name = 0;
    SequenceHash sequence{0};
    std::vector<TokenId> tokens;
    int copies = 0;
  };

  int MakeBlock(int parent);
  std::string Store();
  std::string Remove(size_t which);
  void Send(const std::vector<std::string>& events, bool lost);
  std::string Name(const Block& block) const;
  std::vector<int> PathTo(int block) const;
  uint64_t Random(uint64_t below) { return random_() % below; }

  const PoolEngineOptions options_;
  ZmqTestEngine sockets_;
  std::mt19937_64 random_;
  std::vector<Block> blocks_;
  std::vector<int> held_;  // with copies
};

// An event of a hybrid model's engine, as vLLM publishes it; of its tokens only the first block's
// number matters.
struct HybridEvent {
  bool stored = true;
  uint32_t group = 0;
  std::string kind = "full_attention";
  uint32_t window = 0;  // 0: not said
  std::vector<uint64_t> names;
  std::vector<TokenId> tokens = {};
  std::optional<uint64_t> parent = {};
  uint32_t block_size = 4;
};

// A batch of these, of rank 0.
std::string HybridPayload(const std::vector<HybridEvent>& events);

// Tokens 100, 101, …: `blocks` blocks of 4.
std::vector<TokenId> HybridTokens(size_t blocks);

// Six blocks, 1 … 6, of full attention; the blocks 3, 4 and 5 of a window of 9 tokens; a state
// behind the fourth; and blocks of the window that no main block names yet. Four blocks can be
// reused.
std::string HybridPromptPayload();

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINE_DIRECTORY_POOL_ENGINE_TEST_UTIL_H_
