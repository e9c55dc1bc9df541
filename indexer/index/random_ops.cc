#include "indexer/index/random_ops.h"

#include <algorithm>
#include <random>
#include <tuple>
#include <utility>

namespace kvatlas {
namespace {

// Calls of both structures, and what came back, as text that can be compared.
class Player {
 public:
  Player(std::unique_ptr<Index> index, const RandomOptions& options)
      : options_(options), index_(std::move(index)) {}

  std::string Play(const Op& op);
  std::string State() const;

 private:
  struct Recorder : ChangeSink {
    void Changed(HolderIndex holder, SequenceHash block, Position position, TierMask before,
                 TierMask after) override {
      changes.emplace_back(Raw(holder), Raw(block), position, before.bits(), after.bits());
    }
    std::vector<std::tuple<uint32_t, uint64_t, Position, int, int>> changes;
  };

  std::vector<SequenceHash> Hashes(const std::vector<uint32_t>& blocks) const;
  std::string Apply(const Op& op, const Event& event);
  std::string Find(const Op& op) const;

  const RandomOptions options_;
  std::unique_ptr<Index> index_;
};

std::vector<SequenceHash> Player::Hashes(const std::vector<uint32_t>& blocks) const {
  std::vector<SequenceHash> hashes;
  for (uint64_t block : blocks) {
    if (options_.spread == Spread::kHighBits) block <<= 56;
    if (options_.spread == Spread::kMixed) block = (block + 1) * 0xBF58476D1CE4E5B9u;
    hashes.push_back(SequenceHash{block});
  }
  return hashes;
}

std::string Player::Play(const Op& op) {
  const HolderIndex holder{op.holder};
  switch (op.kind) {
    case Op::kAddHolder:
      return "holder " + std::to_string(Raw(*index_->AddHolder()));
    case Op::kRemoveHolder:
      index_->RemoveHolder(holder);
      return "";
    case Op::kMask:
    case Op::kUnmask:
      index_->SetMasked(holder, op.kind == Op::kMask);
      return "";
    case Op::kStore:
      return Apply(op, Stored{.tier = static_cast<Tier>(op.tiers),
                              .position = op.position,
                              .parent = SequenceHash{op.position},
                              .blocks = Hashes(op.blocks)});
    case Op::kRemove:
      return Apply(op, Removed{.tier = static_cast<Tier>(op.tiers), .blocks = Hashes(op.blocks)});
    case Op::kClear:
      return Apply(op, Cleared{.tiers = TierMask(static_cast<uint8_t>(op.tiers))});
    case Op::kFind:
      return Find(op);
  }
  return "";
}

std::string Player::Apply(const Op& op, const Event& event) {
  Recorder recorder;
  std::string text = index_->Apply(HolderIndex{op.holder}, event, &recorder).ToString();
  // A clear may go in any order.
  if (op.kind == Op::kClear) std::sort(recorder.changes.begin(), recorder.changes.end());
  for (const auto& [holder, block, position, before, after] : recorder.changes) {
    text += "; " + std::to_string(holder) + " " + std::to_string(block) + "@" +
            std::to_string(position) + " " + std::to_string(before) + "->" + std::to_string(after);
  }
  return text;
}

std::string Player::Find(const Op& op) const {
  const std::vector<SequenceHash> prompt = Hashes(op.blocks);
  std::vector<Overlap> overlaps;
  index_->FindOverlaps({.blocks = prompt, .tiers = TierMask(static_cast<uint8_t>(op.tiers))},
                       &overlaps);
  std::sort(overlaps.begin(), overlaps.end(),
            [](const Overlap& a, const Overlap& b) { return a.holder < b.holder; });
  std::string text = "overlaps";
  for (const Overlap& overlap : overlaps) {
    text += " " + std::to_string(Raw(overlap.holder)) + ":" + std::to_string(overlap.blocks);
  }
  return text;
}

std::string Player::State() const {
  std::string text = "check " + index_->Check().ToString();
  const IndexStats stats = index_->Stats();
  text += ", holders " + std::to_string(stats.holders) + ", blocks " +
          std::to_string(stats.blocks) + ", holdings " + std::to_string(stats.holdings) +
          ", refused " + std::to_string(stats.refused_blocks);
  for (uint32_t holder = 0; holder <= options_.holders; ++holder) {
    std::vector<Holding> holdings = index_->HoldingsOf(HolderIndex{holder});
    std::sort(holdings.begin(), holdings.end(),
              [](const Holding& a, const Holding& b) { return a.block < b.block; });
    text += "\nholder " + std::to_string(holder) + ":";
    for (const Holding& holding : holdings) {
      text += " " + std::to_string(Raw(holding.block)) + "@" + std::to_string(holding.position) +
              "<" + std::to_string(Raw(holding.parent)) + "/" +
              std::to_string(holding.tiers.bits());
    }
    const Digest digest = index_->DigestOf(HolderIndex{holder});
    for (const Digest::OfTier& tier : digest.tiers) {
      text += " " + std::to_string(tier.blocks) + "+" + std::to_string(tier.sum);
    }
  }
  return text;
}

std::string Compare(std::string_view what, const std::string& expected, const std::string& actual) {
  if (expected == actual) return "";
  return std::string(what) + "\n  reference: " + expected + "\n  tested:    " + actual;
}

Op RandomOp(std::mt19937_64& random, const RandomOptions& options) {
  static constexpr Op::Kind kKinds[] = {
      Op::kStore, Op::kStore,     Op::kStore,  Op::kStore, Op::kStore,  Op::kRemove,
      Op::kFind,  Op::kFind,      Op::kFind,   Op::kFind,  Op::kRemove, Op::kRemove,
      Op::kClear, Op::kAddHolder, Op::kUnmask, Op::kMask,  Op::kUnmask, Op::kRemoveHolder};
  Op op;
  op.kind = kKinds[random() % std::size(kKinds)];
  op.holder = static_cast<uint32_t>(random() % options.holders);
  const bool is_mask = op.kind == Op::kClear || op.kind == Op::kFind;
  op.tiers = static_cast<uint32_t>(is_mask ? random() % 16 : random() % 3);
  if (op.kind == Op::kFind && random() % 2 == 0) op.tiers = 15;
  if (op.kind != Op::kStore && op.kind != Op::kRemove && op.kind != Op::kFind) return op;
  // Mostly runs, so that overlaps are deep; some blocks in no order.
  const bool is_run = random() % 4 != 0;
  uint32_t block = random() % 2 == 0 ? 0 : static_cast<uint32_t>(random() % options.blocks);
  op.position = block;
  for (uint64_t left = random() % 9; left > 0; --left) {
    op.blocks.push_back(block);
    block =
        static_cast<uint32_t>(is_run ? (block + 1) % options.blocks : random() % options.blocks);
  }
  return op;
}

bool Differs(const MakeTested& make, const std::vector<Op>& ops, const RandomOptions& options) {
  return !FirstDifference(make, ops, options).empty();
}

// Tries to leave out `length` of `items` at each place; true when something could go.
template <typename Item, typename StillDiffers>
bool LeaveOut(std::vector<Item>* items, size_t length, StillDiffers still_differs) {
  bool shorter = false;
  for (size_t at = 0; at + length <= items->size();) {
    std::vector<Item> rest = *items;
    rest.erase(rest.begin() + at, rest.begin() + at + length);
    std::swap(*items, rest);
    if (still_differs()) {
      shorter = true;
    } else {
      std::swap(*items, rest);
      ++at;
    }
  }
  return shorter;
}

}  // namespace

std::vector<Op> RandomOps(uint64_t seed, const RandomOptions& options) {
  std::mt19937_64 random(seed);
  std::vector<Op> ops;
  // Some holders at once; others come and go.
  for (uint32_t i = 0; i < options.holders / 2 + 1; ++i) {
    ops.emplace_back();
    ops.back().kind = Op::kAddHolder;
  }
  uint32_t holders = static_cast<uint32_t>(ops.size());
  while (ops.size() < options.ops) {
    Op op = RandomOp(random, options);
    if (op.kind == Op::kAddHolder && ++holders > 4 * options.holders) continue;
    ops.push_back(std::move(op));
  }
  return ops;
}

std::string FirstDifference(const MakeTested& make, const std::vector<Op>& ops,
                            const RandomOptions& options) {
  Player reference(*MakeIndex("reference", {.blocks_max = options.blocks_max}), options);
  Player tested(make(), options);
  for (size_t i = 0; i < ops.size(); ++i) {
    const std::string difference =
        Compare("op " + std::to_string(i), reference.Play(ops[i]), tested.Play(ops[i]));
    if (!difference.empty()) return difference;
    if (i % 50 != 49 && i + 1 != ops.size()) continue;
    const std::string state =
        Compare("state after op " + std::to_string(i), reference.State(), tested.State());
    if (!state.empty()) return state;
  }
  return "";
}

std::vector<Op> Shrink(const MakeTested& make, std::vector<Op> ops, const RandomOptions& options) {
  const auto still_differs = [&] { return Differs(make, ops, options); };
  for (size_t length = ops.size() / 2; length > 0; length /= 2) {
    LeaveOut(&ops, length, still_differs);
  }
  while (LeaveOut(&ops, 1, still_differs)) {
  }
  for (Op& op : ops) LeaveOut(&op.blocks, 1, still_differs);
  return ops;
}

std::string ToCode(const std::vector<Op>& ops) {
  static constexpr std::string_view kKinds[] = {"kAddHolder", "kRemoveHolder", "kMask",  "kUnmask",
                                                "kStore",     "kRemove",       "kClear", "kFind"};
  std::string code = "{\n";
  for (const Op& op : ops) {
    code += "    {Op::" + std::string(kKinds[op.kind]) + ", " + std::to_string(op.holder) + ", " +
            std::to_string(op.tiers) + ", " + std::to_string(op.position) + ", {";
    for (size_t i = 0; i < op.blocks.size(); ++i) {
      code += (i == 0 ? "" : ", ") + std::to_string(op.blocks[i]);
    }
    code += "}},\n";
  }
  return code + "}";
}

}  // namespace kvatlas
