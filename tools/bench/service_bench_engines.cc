#include "tools/bench/service_bench_engines.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "publisher/zmq_events.h"
#include "tools/testing/mock_engine/mock_tokens.h"

namespace kvatlas {
namespace {

// Kept of what is held at the end, for checks.
constexpr size_t kPromptsKept = 8;
// Frames carry some time; nothing depends on it.
constexpr double kFrameTime = 1700000000.5;

uint64_t Mixed(uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

uint64_t NameOf(SequenceHash block, BlockNames names) {
  return names == BlockNames::kContract ? Raw(block) : Mixed(Raw(block));
}

// Steps of one run of blocks.
template <typename Visit>
void StoreInSteps(const BenchPrompt& prompt, uint32_t block_size, uint32_t event_blocks,
                  const Visit& visit) {
  for (size_t at = 0; at < prompt.names.size(); at += event_blocks) {
    const size_t count = std::min<size_t>(event_blocks, prompt.names.size() - at);
    BenchStep step{.removed = {},
                   .position = static_cast<Position>(at),
                   .parent = std::nullopt,
                   .stored = std::span(prompt.names).subspan(at, count),
                   .tokens = std::span(prompt.tokens).subspan(at * block_size, count * block_size)};
    if (at > 0) step.parent = prompt.names[at - 1];
    visit(step);
  }
}

}  // namespace

BenchPrompt MakePrompt(std::vector<TokenId> tokens, uint32_t block_size, BlockNames names) {
  BenchPrompt prompt{.tokens = std::move(tokens), .locals = {}, .blocks = {}, .names = {}};
  prompt.locals = LocalHashes(prompt.tokens, {.block_size = block_size}, BlockSeed({}));
  prompt.blocks = SequenceHashes(prompt.locals);
  for (const SequenceHash block : prompt.blocks) prompt.names.push_back(NameOf(block, names));
  return prompt;
}

BenchPrompt RandomPrompt(uint32_t blocks, uint32_t block_size, BlockNames names,
                         std::mt19937_64& random) {
  std::vector<TokenId> tokens(size_t{blocks} * block_size);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() >> 47);
  return MakePrompt(std::move(tokens), block_size, names);
}

EngineOutcome RunEngine(const EngineLoad& load, std::mt19937_64& random,
                        const std::function<void(const BenchStep&)>& visit) {
  EngineOutcome outcome;
  std::deque<HeldPrompt> pool;  // least recently stored first
  std::optional<HeldPrompt> evicted;
  std::vector<uint64_t> removed;
  while (outcome.stored < load.blocks) {
    const uint32_t blocks = static_cast<uint32_t>(
        std::min<uint64_t>(load.sequence_blocks, load.blocks - outcome.stored));
    pool.push_back({RandomPrompt(blocks, load.block_size, load.names, random), 0});
    StoreInSteps(pool.back().prompt, load.block_size, load.event_blocks, [&](BenchStep step) {
      removed.clear();
      while (load.capacity != 0 && outcome.held + step.stored.size() > load.capacity) {
        HeldPrompt& oldest = pool.front();
        removed.push_back(oldest.prompt.names[--oldest.blocks]);
        --outcome.held;
        if (oldest.blocks == 0) {
          evicted = std::move(oldest);
          pool.pop_front();
        }
      }
      step.removed = removed;
      visit(step);
      outcome.removed += removed.size();
      outcome.stored += step.stored.size();
      outcome.held += step.stored.size();
      pool.back().blocks += static_cast<uint32_t>(step.stored.size());
    });
    // Without evictions only the last ones are of interest.
    while (load.capacity == 0 && pool.size() > kPromptsKept) pool.pop_front();
  }
  // The oldest is the one that is held in part.
  if (!pool.empty()) outcome.prompts.push_back(std::move(pool.front()));
  for (size_t i = pool.size(); i-- > 1 && outcome.prompts.size() < kPromptsKept;) {
    outcome.prompts.push_back(std::move(pool[i]));
  }
  if (evicted) outcome.prompts.push_back(*std::move(evicted));
  return outcome;
}

EngineOutcome RunOps(const OpsFile& file, uint32_t worker, uint32_t block_size, BlockNames names,
                     const std::function<void(const BenchStep&)>& visit) {
  EngineOutcome outcome;
  std::vector<uint64_t> removed;
  std::vector<uint64_t> stored;
  std::vector<SequenceHash> locals;
  for (const BenchOp& op : file.ops()) {
    if (op.header.worker != worker || op.header.kind == OpKind::kQuery) continue;
    for (const SequenceHash block : op.removed) removed.push_back(NameOf(block, names));
    outcome.removed += op.removed.size();
    if (op.header.kind != OpKind::kStore) continue;
    stored.clear();
    locals.clear();
    for (const OpBlock& block : op.blocks) {
      stored.push_back(NameOf(block.seq, names));
      locals.push_back(SequenceHash{Raw(block.local)});
    }
    const std::vector<TokenId> tokens = MockTokens(locals, block_size);
    BenchStep step{.removed = removed,
                   .position = op.header.position,
                   .parent = std::nullopt,
                   .stored = stored,
                   .tokens = tokens};
    if (op.header.parent != 0) step.parent = NameOf(SequenceHash{op.header.parent}, names);
    visit(step);
    removed.clear();
    outcome.stored += stored.size();
  }
  if (!removed.empty()) {
    BenchStep last{};
    last.removed = removed;
    visit(last);
  }
  outcome.held = outcome.stored - std::min(outcome.stored, outcome.removed);
  return outcome;
}

std::string FrameOf(const BenchStep& step, uint32_t block_size) {
  ZmqEventEncoder encoder(ZmqEventForm::kMap, block_size, /*rank=*/0);
  for (const uint64_t& name : step.removed) encoder.Removed(Tier::kDevice, {&name, 1});
  if (!step.stored.empty()) {
    encoder.Stored({.hashes = step.stored, .parent = step.parent, .tokens = step.tokens});
  }
  return encoder.Finish(kFrameTime);
}

std::vector<std::string> FramesOf(const BenchPrompt& prompt, uint32_t block_size,
                                  uint32_t event_blocks) {
  std::vector<std::string> frames;
  StoreInSteps(prompt, block_size, event_blocks,
               [&](const BenchStep& step) { frames.push_back(FrameOf(step, block_size)); });
  return frames;
}

}  // namespace kvatlas
