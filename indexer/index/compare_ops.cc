// `Twins` plays operations on both structures and compares; `FirstDifference` plays a list of them;
// `Shrink` leaves out what the difference does not need. Every comparison is a text, empty where
// both agree, so that the first difference is also the message.

#include "indexer/index/compare_ops.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>

namespace kvatlas {
namespace {

// A change of one block as both logs tell it, for the comparison.
struct Change {
  HolderIndex holder;
  SequenceHash block;
  Position position;
  TierMask before;
  TierMask after;

  friend bool operator==(const Change&, const Change&) = default;
};

// Keys by which items are ordered and printed: all their fields.

auto KeyOf(const Overlap& each) { return std::tuple(Raw(each.holder), each.blocks); }
auto KeyOf(const TierOverlap& each) {
  return std::tuple(Raw(each.holder), each.blocks, each.by_tier[0], each.by_tier[1],
                    each.by_tier[2], each.by_tier[3]);
}
auto KeyOf(const Holding& each) {
  return std::tuple(Raw(each.block), each.position, Raw(each.parent), int{each.tiers.bits()},
                    Raw(each.local));
}
auto KeyOf(const Change& each) {
  return std::tuple(Raw(each.block), Raw(each.holder), each.position, int{each.before.bits()},
                    int{each.after.bits()});
}

template <typename Item>
void Sort(std::vector<Item>* items, size_t from = 0) {
  std::sort(items->begin() + from, items->end(),
            [](const Item& a, const Item& b) { return KeyOf(a) < KeyOf(b); });
}

template <typename Item>
std::string Text(const Item& item) {
  std::ostringstream text;
  std::apply(
      [&](const auto& first, const auto&... rest) {
        text << "{" << first;
        ((text << " " << rest), ...);
        text << "}";
      },
      KeyOf(item));
  return text.str();
}

// The first item in which two lists differ.
template <typename Item>
std::string Differ(const char* what, const std::vector<Item>& expected,
                   const std::vector<Item>& actual) {
  if (expected == actual) return "";
  size_t at = 0;
  while (at < expected.size() && at < actual.size() && expected[at] == actual[at]) ++at;
  const auto text = [at](const std::vector<Item>& items) {
    return (at < items.size() ? Text(items[at]) : std::string("nothing")) + " (item " +
           std::to_string(at) + " of " + std::to_string(items.size()) + ")";
  };
  return std::string(what) + "\n  reference: " + text(expected) + "\n  tested:    " + text(actual);
}

std::string Differ(const char* what, const std::string& expected, const std::string& actual) {
  if (expected == actual) return "";
  return std::string(what) + "\n  reference: " + expected + "\n  tested:    " + actual;
}

std::string Differ(const char* what, uint64_t expected, uint64_t actual) {
  return Differ(what, std::to_string(expected), std::to_string(actual));
}

std::vector<Change> ChangesOf(HolderIndex holder, const ChangeLog& log) {
  std::vector<Change> changes;
  log.ForEachBlock([&](SequenceHash block, Position position, TierMask before, TierMask after) {
    changes.push_back({holder, block, position, before, after});
  });
  return changes;
}

// Reads the compact answer back, and says what is wrong with its form.
std::string Expand(const OverlapSteps& steps, std::vector<Overlap>* overlaps) {
  if (steps.words.size() != steps.depths.size() * steps.words_per_step)
    return "steps: words do not fit the depths";
  for (size_t step = 0; step < steps.depths.size(); ++step) {
    if (steps.depths[step] <= (step == 0 ? 0 : steps.depths[step - 1]))
      return "steps: depths do not grow";
    for (uint32_t word = 0; word < steps.words_per_step; ++word) {
      for (uint64_t bits = steps.holders(step)[word]; bits != 0; bits &= bits - 1) {
        const uint32_t bit = static_cast<uint32_t>(__builtin_ctzll(bits));
        overlaps->push_back({.holder = HolderIndex{word * 64 + bit}, .blocks = steps.depths[step]});
      }
    }
  }
  Sort(overlaps);
  return "";
}

// Both structures side by side.
class Twins {
 public:
  Twins(const MakeTested& make, const RandomOptions& options)
      : options_(options), trie_(options.trie) {
    const IndexOptions index_options = {.holders_max = options.holders,
                                        .blocks_max = options.blocks_max,
                                        .keep_local_hashes = options.keep_local_hashes};
    reference_ = *MakeIndex("reference", index_options);
    tested_ = make(index_options);
  }

  // Plays the operation on both; returns the difference, or nothing.
  std::string Play(const Op& op);
  std::string CompareState() const;

 private:
  static constexpr size_t kDescendMax = 16;

  std::string AddHolder();
  std::string Store(const Op& op);
  std::string Apply(HolderIndex holder, const Event& event);
  std::string Sweep(const Op& op);

  std::string Find(const Op& op) const;
  std::string FindAround(const Op& op) const;
  std::string CompareFind(const OverlapQuery& query) const;
  std::string CompareTiers(const OverlapQuery& query) const;
  std::string CompareSteps(const OverlapQuery& query) const;
  std::vector<uint64_t> Only(uint32_t seed) const;

  const RandomOptions options_;
  const RandomTrie trie_;
  std::unique_ptr<Index> reference_;
  std::unique_ptr<Index> tested_;
};

std::string Twins::Play(const Op& op) {
  const HolderIndex holder{op.holder};
  std::string difference;
  switch (op.kind) {
    case Op::kAddHolder:
      return AddHolder();
    case Op::kRemoveHolder:
      reference_->RemoveHolder(holder);
      tested_->RemoveHolder(holder);
      return "";
    case Op::kMask:
    case Op::kUnmask:
      reference_->SetMasked(holder, op.kind == Op::kMask);
      tested_->SetMasked(holder, op.kind == Op::kMask);
      return "";
    case Op::kStore:
      difference = Store(op);
      return difference.empty() ? FindAround(op) : difference;
    case Op::kRemove:
      difference = Apply(
          holder, Removed{.tier = static_cast<Tier>(op.tiers), .blocks = trie_.hashes(op.blocks)});
      return difference.empty() ? FindAround(op) : difference;
    case Op::kClear:
      return Apply(holder, Cleared{.tiers = TierMask(static_cast<uint8_t>(op.tiers))});
    case Op::kSweep:
      return Sweep(op);
    case Op::kTend:
      tested_->Maintain(op.count);
      return "";
    default:
      return Find(op);
  }
}

std::string Twins::AddHolder() {
  const absl::StatusOr<HolderIndex> expected = reference_->AddHolder();
  const absl::StatusOr<HolderIndex> actual = tested_->AddHolder();
  const auto text = [](const absl::StatusOr<HolderIndex>& holder) {
    return holder.ok() ? std::to_string(Raw(*holder))
                       : absl::StatusCodeToString(holder.status().code());
  };
  return Differ("new holder", text(expected), text(actual));
}

// One event per stretch of consecutive blocks.
std::string Twins::Store(const Op& op) {
  for (size_t begin = 0, end = 0; begin < op.blocks.size(); begin = end) {
    const uint32_t first = op.blocks[begin];
    if (first >= trie_.size()) return "a foreign block is stored: not a test";
    end = begin + 1;
    while (end < op.blocks.size() && op.blocks[end] < trie_.size() &&
           trie_.parent(op.blocks[end]) == op.blocks[end - 1])
      ++end;
    const std::span<const uint32_t> run(op.blocks.data() + begin, end - begin);
    const std::string difference =
        Apply(HolderIndex{op.holder}, Stored{.tier = static_cast<Tier>(op.tiers),
                                             .position = trie_.position(first),
                                             .parent = trie_.parent_hash(first),
                                             .blocks = trie_.hashes(run),
                                             .local_hashes = trie_.locals(run)});
    if (!difference.empty()) return difference;
  }
  return "";
}

std::string Twins::Apply(HolderIndex holder, const Event& event) {
  ChangeLog expected_log, actual_log;
  const absl::Status expected_status = reference_->Apply(holder, event, &expected_log);
  const absl::Status actual_status = tested_->Apply(holder, event, &actual_log);
  const std::string difference = Differ("status", absl::StatusCodeToString(expected_status.code()),
                                        absl::StatusCodeToString(actual_status.code()));
  if (!difference.empty() || !options_.whole) return difference;
  // A block changes once in an event; which goes first is the structure's own.
  std::vector<Change> expected = ChangesOf(holder, expected_log);
  std::vector<Change> actual = ChangesOf(holder, actual_log);
  Sort(&expected);
  Sort(&actual);
  return Differ("changes {block holder position before after}", expected, actual);
}

// The order of a sweep is the structure's own: the reference removes the blocks that the tested one
// swept.
std::string Twins::Sweep(const Op& op) {
  const HolderIndex holder{op.holder};
  if (!options_.whole) {
    while (tested_->Sweep(holder, op.count, nullptr)) {
    }
    reference_->Apply(holder, Cleared{}, nullptr).IgnoreError();
    return "";
  }
  ChangeLog log;
  const bool more = tested_->Sweep(holder, op.count, &log);
  std::vector<Change> swept = ChangesOf(holder, log);
  if (more && swept.empty()) return "a sweep took nothing and says there is more";
  log.Clear();
  for (const Change& change : swept) {
    if (!change.after.empty()) return "a swept block is still in a tier: " + Text(change);
    for (int tier = 0; tier < kTiers; ++tier) {
      if (!change.before.Has(static_cast<Tier>(tier))) continue;
      const Removed removed = {.tier = static_cast<Tier>(tier), .blocks = {change.block}};
      reference_->Apply(holder, removed, &log).IgnoreError();
    }
  }
  // The reference took one tier at a time: join them.
  std::vector<Change> joined;
  for (const Change& change : ChangesOf(holder, log)) {
    if (!joined.empty() && joined.back().block == change.block) {
      joined.back().after = change.after;
    } else {
      joined.push_back(change);
    }
  }
  Sort(&joined);
  Sort(&swept);
  const std::string difference =
      Differ("swept {block holder position before after}", joined, swept);
  if (!difference.empty()) return difference;
  const bool is_left = !reference_->HoldingsOf(holder).empty();
  return Differ("more to sweep", more || !is_left ? "" : "blocks are left", "");
}

std::vector<uint64_t> Twins::Only(uint32_t seed) const {
  std::vector<uint64_t> words;
  if (seed == 0) return words;
  // Sometimes shorter than the holders are many, sometimes longer; thin, half or full.
  words.resize(1 + seed % (options_.holders / 64 + 2));
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = MixBits(seed * 1000 + i);
    if (seed % 3 == 1) words[i] &= MixBits(words[i]) & MixBits(words[i] + 1);
    if (seed % 3 == 2) words[i] = ~uint64_t{0};
  }
  return words;
}

std::string Twins::Find(const Op& op) const {
  const std::vector<SequenceHash> blocks = trie_.hashes(op.blocks);
  const std::vector<LocalHash> locals = trie_.locals(op.blocks);
  const std::vector<uint64_t> only = Only(op.count);
  const OverlapQuery query = {.blocks = blocks,
                              .tiers = TierMask(static_cast<uint8_t>(op.tiers)),
                              .only = only,
                              .local_hashes = locals};
  switch (op.kind) {
    case Op::kFindTiers:
      return CompareTiers(query);
    case Op::kFindSteps:
      return CompareSteps(query);
    default:
      return CompareFind(query);
  }
}

// The prompt through the deepest block of the call, and on.
std::string Twins::FindAround(const Op& op) const {
  std::optional<uint32_t> deepest;
  for (uint32_t block : op.blocks) {
    if (block >= trie_.size()) continue;
    if (!deepest.has_value() || trie_.position(block) >= trie_.position(*deepest)) deepest = block;
  }
  if (!deepest.has_value()) return "";
  std::vector<uint32_t> path = trie_.PathTo(*deepest);
  trie_.Descend(&path, kDescendMax);
  return Find({.kind = Op::kFind, .tiers = 15, .blocks = path});
}

std::string Twins::CompareFind(const OverlapQuery& query) const {
  std::vector<Overlap> expected, actual;
  reference_->FindOverlaps(query, &expected);
  tested_->FindOverlaps(query, &actual);
  Sort(&expected);
  Sort(&actual);
  return Differ("overlaps {holder blocks}", expected, actual);
}

std::string Twins::CompareTiers(const OverlapQuery& query) const {
  std::vector<TierOverlap> expected, actual;
  reference_->FindTierOverlaps(query, &expected);
  tested_->FindTierOverlaps(query, &actual);
  Sort(&expected);
  Sort(&actual);
  return Differ("tiers {holder blocks device host disk external}", expected, actual);
}

std::string Twins::CompareSteps(const OverlapQuery& query) const {
  OverlapSteps expected_steps, actual_steps;
  // Memory that is reused must not show through.
  actual_steps.depths.assign(3, 7);
  actual_steps.words.assign(5, ~uint64_t{0});
  reference_->FindSteps(query, &expected_steps);
  tested_->FindSteps(query, &actual_steps);
  std::vector<Overlap> expected, actual;
  Expand(expected_steps, &expected);
  const std::string wrong = Expand(actual_steps, &actual);
  return wrong.empty() ? Differ("steps {holder blocks}", expected, actual) : wrong;
}

// Everything that both can tell of their state. Numbers beyond the holders are asked for as well:
// they hold nothing.
std::string Twins::CompareState() const {
  const absl::Status check = tested_->Check();
  if (!check.ok()) return "check: " + check.ToString();
  if (!options_.whole) return "";
  const IndexStats expected = reference_->Stats(), actual = tested_->Stats();
  std::string difference = Differ("holders", expected.holders, actual.holders);
  if (difference.empty()) difference = Differ("blocks", expected.blocks, actual.blocks);
  if (difference.empty()) difference = Differ("holdings", expected.holdings, actual.holdings);
  if (difference.empty())
    difference = Differ("refused blocks", expected.refused_blocks, actual.refused_blocks);
  for (uint32_t number = 0; difference.empty() && number <= options_.holders; ++number) {
    const HolderIndex holder{number};
    std::vector<Holding> held = reference_->HoldingsOf(holder);
    std::vector<Holding> tested = tested_->HoldingsOf(holder);
    Sort(&held);
    Sort(&tested);
    difference = Differ("holdings {block position parent tiers local}", held, tested);
    if (difference.empty() && reference_->DigestOf(holder) != tested_->DigestOf(holder))
      difference = "digests";
    if (!difference.empty()) difference = "holder " + std::to_string(number) + ": " + difference;
  }
  return difference;
}

// Leaves out pieces of `length` where the rest still differs, until `tries` are used up.
template <typename Item, typename StillDiffers>
bool LeaveOut(std::vector<Item>* items, size_t length, const StillDiffers& still_differs,
              size_t* tries) {
  bool shorter = false;
  for (size_t at = 0; at + length <= items->size() && *tries > 0;) {
    std::vector<Item> rest = *items;
    rest.erase(rest.begin() + at, rest.begin() + at + length);
    std::swap(*items, rest);
    --*tries;
    if (still_differs()) {
      shorter = true;
    } else {
      std::swap(*items, rest);
      at += length;
    }
  }
  return shorter;
}

// Tries of one shrinking: each plays all operations that are left.
constexpr size_t kTriesMax = 20'000;

}  // namespace

std::string FirstDifference(const MakeTested& make, const std::vector<Op>& ops,
                            const RandomOptions& options) {
  Twins twins(make, options);
  for (size_t i = 0; i < ops.size(); ++i) {
    std::string difference = twins.Play(ops[i]);
    const bool is_pause = i % options.state_every == options.state_every - 1;
    if (difference.empty() && (is_pause || i + 1 == ops.size())) difference = twins.CompareState();
    if (!difference.empty()) return "op " + std::to_string(i) + ": " + difference;
  }
  return "";
}

// By halves, then single operations while that helps, then blocks of each operation, and operations
// once more.
std::vector<Op> Shrink(const MakeTested& make, std::vector<Op> ops, const RandomOptions& options) {
  size_t tries = kTriesMax;
  const auto still_differs = [&] { return !FirstDifference(make, ops, options).empty(); };
  for (size_t length = ops.size() / 2; length > 0; length /= 2) {
    LeaveOut(&ops, length, still_differs, &tries);
  }
  while (LeaveOut(&ops, 1, still_differs, &tries)) {
  }
  for (Op& op : ops) {
    for (size_t length = op.blocks.size(); length > 0; length /= 2)
      LeaveOut(&op.blocks, length, still_differs, &tries);
  }
  while (LeaveOut(&ops, 1, still_differs, &tries)) {
  }
  return ops;
}

std::string FirstDifferenceToPaste(const MakeTested& make, const std::vector<Op>& ops,
                                   const RandomOptions& options) {
  const std::string difference = FirstDifference(make, ops, options);
  if (difference.empty()) return "";
  // The state is compared after every call, so that the calls after the fault can go.
  RandomOptions every = options;
  every.state_every = 1;
  const std::vector<Op> few = Shrink(make, ops, every);
  return difference + "\nshortest, " + FirstDifference(make, few, every) +
         "\n  const RandomOptions options = " + ToCode(every) +
         ";\n  EXPECT_EQ(FirstDifference(make, " + ToCode(few) + ", options), \"\");\n";
}

}  // namespace kvatlas
