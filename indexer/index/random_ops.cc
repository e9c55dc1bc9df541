#include "indexer/index/random_ops.h"

#include <algorithm>
#include <random>
#include <string_view>
#include <utility>

namespace kvatlas {
namespace {

using Numbers = std::vector<uint32_t>;

class Chooser {
 public:
  Chooser(const Choose& choose, const RandomTrie& trie, const RandomOptions& options)
      : choose_(choose), trie_(trie), options_(options), recent_(options.holders) {}

  Op Next();

 private:
  // The latest stores of a holder: places where removals and questions meet something.
  struct Recently {
    uint32_t tier = 0;
    Numbers blocks;
  };
  static constexpr size_t kRecent = 8;

  bool OneIn(uint32_t n) { return choose_(n) == 0; }
  Op::Kind Kind();
  uint32_t Holder();
  uint32_t Tier() { return options_.whole && OneIn(2) ? choose_(4) : 0; }
  uint32_t Mask() { return !options_.whole || OneIn(2) ? 15 : choose_(16); }
  Numbers AnyPath();
  Numbers Run(uint32_t holder);
  const Recently* Recent(uint32_t holder);
  Numbers Removal(uint32_t holder, uint32_t* tier);
  Numbers Part(const Numbers& run);
  Numbers Prompt();

  const Choose& choose_;
  const RandomTrie& trie_;
  const RandomOptions& options_;
  std::vector<std::vector<Recently>> recent_;
};

Op::Kind Chooser::Kind() {
  static constexpr Op::Kind kOften[] = {Op::kStore, Op::kStore, Op::kStore,  Op::kStore,
                                        Op::kStore, Op::kFind,  Op::kRemove, Op::kRemove,
                                        Op::kFind,  Op::kFind,  Op::kRemove, Op::kRemove};
  static constexpr Op::Kind kFinds[] = {Op::kFindTiers, Op::kFindSteps};
  static constexpr Op::Kind kSeldom[] = {
      Op::kAddHolder, Op::kAddHolder, Op::kAddHolder, Op::kRemoveHolder, Op::kMask,
      Op::kUnmask,    Op::kUnmask,    Op::kClear,     Op::kSweep,        Op::kTend,
      Op::kTend,      Op::kTend,      Op::kTend};
  const uint32_t dice = choose_(100);
  if (dice < 70) return kOften[choose_(std::size(kOften))];
  if (dice < 90) return options_.whole ? kFinds[choose_(std::size(kFinds))] : Op::kFind;
  return kSeldom[choose_(std::size(kSeldom))];
}

uint32_t Chooser::Holder() {
  // A few holders do most; sometimes one that cannot exist.
  if (OneIn(100)) return options_.holders + choose_(1000);
  return OneIn(2) ? choose_(options_.holders) : choose_(std::min(options_.holders, 4u));
}

Numbers Chooser::AnyPath() {
  Numbers path = trie_.PathTo(choose_(trie_.size()));
  trie_.Descend(&path, choose_(options_.run_max + 1));
  return path;
}

const Chooser::Recently* Chooser::Recent(uint32_t holder) {
  if (holder >= recent_.size() || recent_[holder].empty()) return nullptr;
  return &recent_[holder][choose_(static_cast<uint32_t>(recent_[holder].size()))];
}

// Consecutive blocks of one sequence: from the root, from anywhere, after what was stored before,
// or what another holder stored.
Numbers Chooser::Run(uint32_t holder) {
  const Recently* other = OneIn(3) ? Recent(Holder()) : nullptr;
  Numbers path = other != nullptr ? trie_.PathTo(other->blocks.back()) : AnyPath();
  size_t first = 0;
  if (OneIn(3)) {
    first = choose_(static_cast<uint32_t>(path.size()));
  } else if (const Recently* mine = Recent(holder); mine != nullptr && OneIn(2)) {
    path = trie_.PathTo(mine->blocks.back());
    first = path.size() - choose_(2);
    trie_.Descend(&path, options_.run_max);
    if (first >= path.size()) first = path.size() - 1;
  }
  path.erase(path.begin(), path.begin() + first);
  static constexpr uint32_t kShort = 8;
  const uint32_t length = OneIn(4)   ? 1
                          : OneIn(3) ? 1 + choose_(std::min(options_.run_max, kShort))
                                     : 1 + choose_(options_.run_max);
  if (path.size() > length) path.resize(length);
  return path;
}

Numbers Chooser::Part(const Numbers& run) {
  Numbers part;
  const uint32_t size = static_cast<uint32_t>(run.size());
  const uint32_t count = 1 + choose_(size);
  switch (choose_(7)) {
    case 0:  // the tail, its end first
      part.assign(run.rbegin(), run.rbegin() + count);
      break;
    case 1:  // the tail, in order
      part.assign(run.end() - count, run.end());
      break;
    case 2:  // the head
      part.assign(run.begin(), run.begin() + count);
      break;
    case 3:  // every other block
      for (uint32_t i = choose_(2); i < size; i += 2) part.push_back(run[i]);
      break;
    case 4:  // any blocks, in any order
      for (uint32_t i = 0; i < count; ++i) part.push_back(run[choose_(size)]);
      break;
    case 5:
      part.push_back(run[choose_(size)]);
      break;
    case 6:  // a stretch inside
      part.assign(run.begin() + choose_(size), run.end());
      part.resize(1 + choose_(static_cast<uint32_t>(part.size())));
      break;
  }
  return part;
}

Numbers Chooser::Removal(uint32_t holder, uint32_t* tier) {
  const Recently* run = Recent(holder);
  const bool meets = run != nullptr && !OneIn(6);
  *tier = meets && !OneIn(4) ? run->tier : Tier();
  Numbers blocks = Part(meets ? run->blocks : AnyPath());
  if (OneIn(6)) {  // several sequences in one event, and blocks without holders
    if (const Recently* more = Recent(holder); more != nullptr) {
      const Numbers part = Part(more->blocks);
      blocks.insert(blocks.begin() + choose_(static_cast<uint32_t>(blocks.size()) + 1),
                    part.begin(), part.end());
    }
    blocks.push_back(trie_.size() + choose_(20));
    blocks.push_back(choose_(trie_.size()));
  }
  return blocks;
}

Numbers Chooser::Prompt() {
  const Recently* run = OneIn(3) ? nullptr : Recent(Holder());
  Numbers prompt = run != nullptr ? trie_.PathTo(run->blocks.back()) : AnyPath();
  if (OneIn(2)) trie_.Descend(&prompt, options_.run_max);
  if (OneIn(4)) prompt.resize(choose_(static_cast<uint32_t>(prompt.size()) + 1));
  // Leaves the trie, and never comes back: a sequence hash names one prefix.
  if (OneIn(3)) {
    for (uint32_t left = 1 + choose_(5); left > 0; --left)
      prompt.push_back(trie_.size() + choose_(20));
  }
  return prompt;
}

Op Chooser::Next() {
  Op op;
  op.kind = Kind();
  switch (op.kind) {
    case Op::kAddHolder:
      break;
    case Op::kRemoveHolder:
    case Op::kMask:
    case Op::kUnmask:
      op.holder = Holder();
      break;
    case Op::kStore: {
      op.holder = Holder();
      op.tiers = Tier();
      op.blocks = Run(op.holder);
      if (op.holder >= recent_.size()) break;
      std::vector<Recently>& recent = recent_[op.holder];
      if (recent.size() < kRecent) {
        recent.push_back({op.tiers, op.blocks});
      } else {
        recent[choose_(kRecent)] = {op.tiers, op.blocks};
      }
      break;
    }
    case Op::kRemove:
      op.holder = Holder();
      op.blocks = Removal(op.holder, &op.tiers);
      break;
    case Op::kClear:
      op.holder = Holder();
      op.tiers = Mask();
      break;
    case Op::kSweep:
      op.holder = Holder();
      op.count = 1 + choose_(options_.run_max);
      break;
    case Op::kTend:
      op.count = 1 + choose_(100);
      break;
    case Op::kFind:
    case Op::kFindTiers:
    case Op::kFindSteps:
      op.tiers = Mask();
      op.count = options_.whole && OneIn(3) ? 1 + choose_(1000) : 0;
      op.blocks = Prompt();
      break;
  }
  return op;
}

constexpr std::string_view kKinds[] = {"kAddHolder", "kRemoveHolder", "kMask",      "kUnmask",
                                       "kStore",     "kRemove",       "kClear",     "kSweep",
                                       "kTend",      "kFind",         "kFindTiers", "kFindSteps"};
constexpr std::string_view kShapes[] = {"kMixed", "kLongRuns", "kBushy", "kRoots", "kChain"};
constexpr std::string_view kSpreads[] = {"kSmall",        "kHighBits",  "kMixed",  "kSameLowBits",
                                         "kSameHighBits", "kFibonacci", "kChained"};

}  // namespace

std::vector<Op> ChooseOps(const Choose& choose, const std::function<bool()>& more,
                          const RandomTrie& trie, const RandomOptions& options) {
  Chooser chooser(choose, trie, options);
  std::vector<Op> ops;
  // Some holders at once; others come and go.
  for (uint32_t i = 0; i < options.holders / 2 + 1; ++i) {
    ops.emplace_back();
    ops.back().kind = Op::kAddHolder;
  }
  while (more()) ops.push_back(chooser.Next());
  return ops;
}

std::vector<Op> RandomOps(uint64_t seed, const RandomOptions& options) {
  std::mt19937_64 random(seed);
  size_t left = options.ops;
  return ChooseOps([&random](uint32_t below) { return static_cast<uint32_t>(random() % below); },
                   [&left] { return left-- > 0; }, RandomTrie(options.trie), options);
}

std::string ToCode(const std::vector<Op>& ops) {
  std::string code = "{\n";
  for (const Op& op : ops) {
    code += "      {Op::" + std::string(kKinds[op.kind]) + ", " + std::to_string(op.holder) + ", " +
            std::to_string(op.tiers) + ", " + std::to_string(op.count) + ", {";
    for (size_t i = 0; i < op.blocks.size(); ++i) {
      code += (i == 0 ? "" : ", ") + std::to_string(op.blocks[i]);
    }
    code += "}},\n";
  }
  return code + "  }";
}

std::string ToCode(const RandomOptions& options) {
  const auto flag = [](bool value) { return value ? std::string("true") : std::string("false"); };
  return "{.trie = {.seed = " + std::to_string(options.trie.seed) +
         ", .blocks = " + std::to_string(options.trie.blocks) +
         ", .shape = Shape::" + std::string(kShapes[static_cast<int>(options.trie.shape)]) +
         ", .spread = Spread::" + std::string(kSpreads[static_cast<int>(options.trie.spread)]) +
         "}, .holders = " + std::to_string(options.holders) +
         ", .blocks_max = " + std::to_string(options.blocks_max) +
         ", .keep_local_hashes = " + flag(options.keep_local_hashes) +
         ", .whole = " + flag(options.whole) +
         ", .state_every = " + std::to_string(options.state_every) + "}";
}

}  // namespace kvatlas
