#include "indexer/engine_directory/pool_engine_test_util.h"

#include <algorithm>
#include <chrono>
#include <msgpack.hpp>
#include <utility>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

constexpr Duration kPatience = std::chrono::seconds(60);

// The msgpack that `pack` writes.
std::string Packed(const std::function<void(msgpack::packer<msgpack::sbuffer>&)>& pack) {
  msgpack::sbuffer buffer;
  msgpack::packer<msgpack::sbuffer> packer(buffer);
  pack(packer);
  return std::string(buffer.data(), buffer.size());
}

}  // namespace

bool Eventually(const std::function<bool()>& condition) {
  Mutex mutex;
  CondVar never;
  for (const Time end = Clock::Real().Now() + kPatience; Clock::Real().Now() < end;) {
    if (condition()) return true;
    MutexLock lock(&mutex);
    never.WaitFor(&mutex, std::chrono::milliseconds(5));
  }
  return condition();
}

PoolEngine::PoolEngine(PoolEngineOptions options)
    : options_(options),
      sockets_({.endpoint = options.dial.empty() ? "tcp://127.0.0.1:*" : options.dial,
                .dial = !options.dial.empty(),
                .topic = options.topic,
                .replay = options.replay,
                .ring = options.ring}),
      random_(options.seed) {}

EngineRegistration PoolEngine::Registration(const std::string& instance) const {
  EngineRegistration registration;
  registration.instance = instance;
  registration.model = "m";
  registration.rank = options_.rank;
  registration.block_size = options_.block_size;
  registration.endpoint = sockets_.endpoint();
  if (options_.replay) registration.replay_endpoint = sockets_.replay_endpoint();
  return registration;
}

int PoolEngine::MakeBlock(int parent) {
  Block block;
  block.parent = parent;
  block.name = random_();
  for (uint32_t i = 0; i < options_.block_size; ++i)
    block.tokens.push_back(static_cast<TokenId>(Random(50000)));
  const LocalHash local = LocalHashOf(block.tokens, {}, BlockSeed({}));
  block.sequence = parent < 0
                       ? SequenceHash{Raw(local)}
                       : NextSequenceHash(blocks_[static_cast<size_t>(parent)].sequence, local);
  blocks_.push_back(std::move(block));
  return static_cast<int>(blocks_.size()) - 1;
}

// As engines name blocks: an integer, or a digest that ends in it.
std::string PoolEngine::Name(const Block& block) const {
  return Packed([&](auto& to) {
    if (!options_.digests) {
      to.pack_uint64(block.name);
      return;
    }
    std::string digest(24, static_cast<char>(block.name % 251));
    for (int shift = 56; shift >= 0; shift -= 8) digest += static_cast<char>(block.name >> shift);
    to.pack_bin(32);
    to.pack_bin_body(digest.data(), 32);
  });
}

// A block that is held, new ones behind it, or a copy of what is held.
std::string PoolEngine::Store() {
  int parent = -1;
  std::vector<int> run;
  if (!held_.empty() && Random(8) == 0) {
    run.push_back(held_[Random(held_.size())]);
    parent = blocks_[static_cast<size_t>(run[0])].parent;
  } else {
    if (!held_.empty() && Random(4) != 0) parent = held_[Random(held_.size())];
    int last = parent;
    for (uint64_t left = 1 + Random(4); left > 0; --left) run.push_back(last = MakeBlock(last));
  }
  for (int i : run)
    if (blocks_[static_cast<size_t>(i)].copies++ == 0) held_.push_back(i);
  return Packed([&](auto& to) {
    to.pack_array(7);
    to.pack(std::string("BlockStored"));
    to.pack_array(static_cast<uint32_t>(run.size()));
    std::vector<TokenId> tokens;
    std::string names;
    for (int i : run) {
      const Block& block = blocks_[static_cast<size_t>(i)];
      const std::string name = Name(block);
      to.pack_bin_body(name.data(), static_cast<uint32_t>(name.size()));  // as it is
      tokens.insert(tokens.end(), block.tokens.begin(), block.tokens.end());
    }
    if (parent < 0) {
      to.pack_nil();
    } else {
      const std::string name = Name(blocks_[static_cast<size_t>(parent)]);
      to.pack_bin_body(name.data(), static_cast<uint32_t>(name.size()));
    }
    to.pack(tokens);
    to.pack(options_.block_size);
    to.pack_nil();
    to.pack(std::string("GPU"));
  });
}

std::string PoolEngine::Remove(size_t which) {
  const int i = held_[which];
  Block& block = blocks_[static_cast<size_t>(i)];
  if (--block.copies == 0) held_.erase(held_.begin() + static_cast<ptrdiff_t>(which));
  return Packed([&](auto& to) {
    to.pack_array(3);
    to.pack(std::string("BlockRemoved"));
    to.pack_array(1);
    const std::string name = Name(block);
    to.pack_bin_body(name.data(), static_cast<uint32_t>(name.size()));
    to.pack(std::string("GPU"));
  });
}

void PoolEngine::Send(const std::vector<std::string>& events, bool lost) {
  const std::string payload = Packed([&](auto& to) {
    to.pack_array(3);
    to.pack(1700000000.5);
    to.pack_array(static_cast<uint32_t>(events.size()));
    for (const std::string& event : events)
      to.pack_bin_body(event.data(), static_cast<uint32_t>(event.size()));
    to.pack(options_.rank);
  });
  lost ? sockets_.Drop(payload) : sockets_.Publish(payload);
}

void PoolEngine::Run(int batches, bool lost) {
  for (; batches > 0; --batches) {
    std::vector<std::string> events;
    for (uint64_t left = 1 + Random(3); left > 0; --left) {
      const bool full = held_.size() >= options_.blocks_max;
      events.push_back(full || (!held_.empty() && Random(3) == 0) ? Remove(Random(held_.size()))
                                                                  : Store());
    }
    Send(events, lost);
  }
}

std::string HybridPayload(const std::vector<HybridEvent>& events) {
  return Packed([&](auto& to) {
    to.pack_array(3);
    to.pack(1700000000.5);
    to.pack_array(static_cast<uint32_t>(events.size()));
    for (const HybridEvent& event : events) {
      const bool has_window = event.stored && event.window != 0;
      to.pack_map(event.stored ? 8 + has_window : 4);
      const auto put = [&](const char* key, const auto& value) {
        to.pack(std::string(key));
        to.pack(value);
      };
      put("type", std::string(event.stored ? "BlockStored" : "BlockRemoved"));
      put("block_hashes", event.names);
      put("medium", std::string("GPU"));
      put("group_idx", event.group);
      if (!event.stored) continue;
      to.pack(std::string("parent_block_hash"));
      event.parent.has_value() ? to.pack(*event.parent) : to.pack_nil();
      put("token_ids", event.tokens);
      put("block_size", event.block_size);
      put("kv_cache_spec_kind", event.kind);
      if (has_window) put("kv_cache_spec_sliding_window", event.window);
    }
    to.pack(0);
  });
}

std::vector<TokenId> HybridTokens(size_t blocks) {
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < 4 * blocks; ++i) tokens.push_back(static_cast<TokenId>(100 + i));
  return tokens;
}

std::string HybridPromptPayload() {
  return HybridPayload(
      {{.names = {1, 2, 3, 4, 5, 6}, .tokens = HybridTokens(6)},
       {.group = 1, .kind = "sliding_window", .window = 9, .names = {3, 4, 5, 77, 78}, .parent = 2},
       {.group = 2, .kind = "mamba", .names = {4}, .parent = 3}});
}

void PoolEngine::Evict() { Send({Remove(Random(held_.size()))}, /*lost=*/false); }

void PoolEngine::EvictAll() {
  while (!held_.empty()) Evict();
}

void PoolEngine::Restart() {
  for (Block& block : blocks_) block.copies = 0;
  held_.clear();
  sockets_.Restart();
}

std::vector<int> PoolEngine::PathTo(int block) const {
  std::vector<int> path;
  for (int at = block; at >= 0; at = blocks_[static_cast<size_t>(at)].parent) path.push_back(at);
  std::reverse(path.begin(), path.end());
  return path;
}

std::string PoolEngine::Compare(const HolderRegistry& registry, const std::string& instance,
                                bool under) const {
  std::vector<bool> has_child(blocks_.size());
  for (const Block& block : blocks_)
    if (block.parent >= 0) has_child[static_cast<size_t>(block.parent)] = true;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (has_child[i]) continue;
    const std::vector<int> path = PathTo(static_cast<int>(i));
    std::vector<SequenceHash> sequence;
    uint32_t truth = 0;
    for (int at : path) {
      const Block& block = blocks_[static_cast<size_t>(at)];
      if (truth == sequence.size() && block.copies > 0) ++truth;
      sequence.push_back(block.sequence);
    }
    const absl::StatusOr<OverlapAnswer> answer =
        registry.FindOverlaps(DomainOf("m", "default"), {.blocks = sequence});
    if (!answer.ok()) return answer.status().ToString();
    uint32_t found = 0;
    for (const HolderOverlap& overlap : answer->holders)
      if (overlap.holder->id.name == instance && overlap.holder->id.rank == options_.rank)
        found = overlap.blocks;
    if (found == truth || (under && found < truth)) continue;
    return "seed " + std::to_string(options_.seed) + ", instance " + instance + ": of " +
           std::to_string(path.size()) + " blocks up to number " + std::to_string(i) + ", " +
           std::to_string(truth) + " are held and " + std::to_string(found) + " were found";
  }
  return "";
}

}  // namespace kvatlas
