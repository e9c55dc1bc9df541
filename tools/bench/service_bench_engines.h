// What do engines under load say, and how does a service hear many of them at once? Prompts of
// random tokens, pools that evict, and the streams that follow from them, made before the clock
// runs; and PUB sockets of this process that lose nothing.
//
// *Truth*: an engine stores a prompt in steps of `event_blocks`, and before each evicts what has no
// room, the tails of its least recently stored prompts first: no holes. What it holds at the end is
// known (`HeldPrompt`).
// *Threads*: pure; a `ZmqFeeder` one at a time. *Cost*: 4 bytes a token and, for streams, about 90
// bytes a stored block.

#ifndef KVATLAS_TOOLS_BENCH_SERVICE_BENCH_ENGINES_H_
#define KVATLAS_TOOLS_BENCH_SERVICE_BENCH_ENGINES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "tools/bench/service_bench_http.h"

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

// The payload of one batch, as vLLM 0.24 and later sends it: one removed event per block, one
// stored event.
std::string FrameOf(const BenchStep& step, uint32_t block_size);
// The same of a whole prompt, in several batches.
std::vector<std::string> FramesOf(const BenchPrompt& prompt, uint32_t block_size,
                                  uint32_t event_blocks);

// PUB sockets, one an engine; one whose subscriber does not keep up is asked again later.
// *Lifetime*: payloads given to `TrySend` outlive the feeder.
class ZmqFeeder {
 public:
  // UNAVAILABLE: no socket.
  static absl::StatusOr<std::unique_ptr<ZmqFeeder>> Create(uint32_t engines);
  ~ZmqFeeder();
  ZmqFeeder(const ZmqFeeder&) = delete;
  ZmqFeeder& operator=(const ZmqFeeder&) = delete;

  // Registers engine i as instance i + 1 (POST /register), and waits until the service has
  // subscribed to all.
  absl::Status Register(HttpClient* http, uint32_t block_size, Duration timeout);

  // False: would have to wait.
  bool TrySend(uint32_t engine, const std::string& payload);
  uint32_t engines() const { return static_cast<uint32_t>(sockets_.size()); }
  uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  ZmqFeeder() = default;

  struct Socket {
    void* socket = nullptr;
    std::string endpoint;
    uint64_t next = 0;
  };

  void* context_ = nullptr;
  std::vector<Socket> sockets_;
  uint64_t bytes_sent_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_SERVICE_BENCH_ENGINES_H_
