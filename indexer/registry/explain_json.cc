// Two layers: `AddRankDetails` and `Explanation::Read` ask the registry; the `Append` functions
// write JSON text. A rank may have several holders (replicas): the deepest counts.

#include "indexer/registry/explain_json.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/cache_class_text.h"
#include "indexer/base/durations.h"
#include "indexer/telemetry/text_escape.h"

namespace kvatlas {
namespace {

constexpr std::array<std::string_view, kTiers> kTierNames = {"device", "host", "disk", "external"};

// The comma between what a loop appends.
class Commas {
 public:
  explicit Commas(std::string* out) : out_(out) {}
  void Next() {
    if (!first_) *out_ += ',';
    first_ = false;
  }

 private:
  std::string* const out_;
  bool first_ = true;
};

void AppendLoad(const Load& load, std::string* out) {
  absl::StrAppend(out, "{\"running_requests\":", load.running_requests,
                  ",\"waiting_requests\":", load.waiting_requests,
                  ",\"used_blocks\":", load.used_blocks, ",\"free_blocks\":", load.free_blocks,
                  ",\"waiting_prefill_blocks\":", load.waiting_prefill_blocks);
  absl::StrAppend(out, ",\"tokens_per_s\":", load.tokens_per_s, "}");
}

// The fields of an object that is open, without its braces. `block_size` turns blocks into tokens;
// 1 leaves them blocks.
void AppendDetailFields(const RankDetail& detail, uint64_t block_size, std::string* out) {
  for (int tier = 0; tier < kTiers; ++tier) {
    *out += '"';
    *out += kTierNames[static_cast<size_t>(tier)];
    absl::StrAppend(out, "\":", detail.tiers[static_cast<size_t>(tier)] * block_size, ",");
  }
  absl::StrAppend(out, "\"any\":", detail.any * block_size, ",\"held\":", detail.held * block_size,
                  ",\"trust\":\"");
  *out += TrustName(detail.trust);
  absl::StrAppend(out, "\",\"age_ms\":", Milliseconds<int64_t>(detail.age));
  if (detail.loadable > detail.any) {
    absl::StrAppend(out, ",\"loadable\":", detail.loadable * block_size, ",\"loadable_trust\":\"");
    *out += TrustName(detail.loadable_trust);
    *out += '"';
  }
  if (detail.load.has_value()) {
    *out += ",\"load\":";
    AppendLoad(*detail.load, out);
  }
}

}  // namespace

void AppendJsonText(std::string_view text, std::string* out) {
  *out += '"';
  AppendJsonEscaped(out, text);
  *out += '"';
}

void AppendJsonError(std::string_view text, std::string* out) {
  *out += "{\"error\":";
  AppendJsonText(text, out);
  *out += '}';
}

std::string_view TrustName(Trust trust) {
  switch (trust) {
    case Trust::kExact:
      return "exact";
    case Trust::kDegraded:
      return "degraded";
    case Trust::kStale:
      return "stale";
    case Trust::kGuessed:
      return "guessed";
  }
  return "unknown";
}

std::string_view TierName(Tier tier) { return kTierNames[static_cast<size_t>(tier)]; }

// One question for each tier, and one for all together: five in all, each of another instant.
// Trust, age and load are those of the last question in which the holder was found.
void AddRankDetails(const HolderRegistry& registry, const Domain& domain,
                    std::span<const SequenceHash> blocks, RankDetails* ranks) {
  const auto ask = [&](TierMask tiers, const auto& place) {
    absl::StatusOr<OverlapAnswer> answer =
        registry.FindOverlaps(domain, {.blocks = blocks, .tiers = tiers});
    if (!answer.ok()) return;  // a domain that went meanwhile had no holders left
    for (const HolderOverlap& overlap : answer->holders) {
      RankDetail& detail = (*ranks)[overlap.holder->id.name][overlap.holder->id.rank];
      uint32_t& depth = place(&detail);
      depth = std::max(depth, overlap.blocks);
      detail.held = std::max(detail.held, overlap.held);
      if (overlap.loadable > detail.loadable) {
        detail.loadable = overlap.loadable;
        detail.loadable_trust = overlap.loadable_trust;
      }
      detail.trust = overlap.trust;
      detail.age = overlap.age;
      detail.load = overlap.load;
    }
  };
  for (size_t tier = 0; tier < kTiers; ++tier) {
    ask(TierMask(static_cast<Tier>(tier)),
        [tier](RankDetail* detail) -> uint32_t& { return detail->tiers[tier]; });
  }
  // Not the maximum over the tiers: with chunks one tier alone may load blocks that it does not
  // load behind a part that is on the device.
  ask(TierMask::All(), [](RankDetail* detail) -> uint32_t& { return detail->any; });
}

void AppendRankDetails(const RankDetails& ranks, uint32_t block_size, std::string* out) {
  *out += '{';
  Commas instances(out);
  for (const auto& [instance, by_rank] : ranks) {
    instances.Next();
    AppendJsonText(instance, out);
    *out += ":{";
    Commas commas(out);
    for (const auto& [rank, detail] : by_rank) {
      commas.Next();
      absl::StrAppend(out, "\"", rank, "\":{");
      AppendDetailFields(detail, block_size, out);
      *out += '}';
    }
    *out += '}';
  }
  *out += '}';
}

namespace {

// Appends nothing for ranks with full attention alone.
void AppendClasses(const Explanation::Rank& rank, std::string* out) {
  if (rank.classes.strips().empty()) return;
  const std::string ended = rank.classes.EndedBy(rank.detail.any);
  *out += ",\"ended_by\":";
  if (ended.empty()) {
    *out += "null";
  } else {
    AppendJsonText(ended, out);
  }
  *out += ",\"classes\":[";
  Commas commas(out);
  for (const BlockPresenceMap::Strip& strip : rank.classes.strips()) {
    commas.Next();
    *out += "{\"class\":";
    AppendJsonText(ToString(strip.of), out);
    absl::StrAppend(out, ",\"block_size\":", strip.of.block_size, ",\"held\":\"", strip.held,
                    "\",\"accepts\":", strip.accepts, "}");
  }
  *out += ']';
}

}  // namespace

// All ranks by depth, deepest first; the holdings of the first `ranks_max` alone are read, since
// each costs a dump of its holder.
void Explanation::Read(const HolderRegistry& registry, const Domain& domain, uint32_t block_size,
                       uint32_t ranks_max) {
  RankDetails details;
  AddRankDetails(registry, domain, blocks, &details);
  for (auto& [instance, by_rank] : details) {
    for (auto& [rank, detail] : by_rank) {
      ranks.push_back({.instance = instance,
                       .rank = rank,
                       .detail = std::move(detail),
                       .held = {},
                       .first_hole = std::nullopt,
                       .classes = {}});
    }
  }
  std::stable_sort(ranks.begin(), ranks.end(), [](const Rank& a, const Rank& b) {
    return std::pair(a.detail.any, a.detail.held) > std::pair(b.detail.any, b.detail.held);
  });
  for (size_t i = 0; i < ranks.size() && i < ranks_max; ++i) {
    ReadHoldings(registry, domain, block_size, &ranks[i]);
  }
}

// The dump is turned around: its blocks are looked up among the prompt's, which are few. A hole is
// a missing block with held ones behind it; without any behind, the sequence just ends. A holder
// that went meanwhile leaves the rank unread.
void Explanation::ReadHoldings(const HolderRegistry& registry, const Domain& domain,
                               uint32_t block_size, Rank* rank) const {
  const absl::StatusOr<HolderDump> dump =
      registry.Dump(domain, {.name = rank->instance, .rank = rank->rank, .replica = {}});
  if (!dump.ok()) return;
  absl::flat_hash_map<SequenceHash, uint32_t> positions;
  for (size_t i = 0; i < blocks.size(); ++i) positions[blocks[i]] = static_cast<uint32_t>(i);
  rank->read = true;
  rank->classes = BlockPresenceMap(*dump, blocks, block_size);
  rank->held.assign(blocks.size(), TierMask());
  for (const Stored& run : dump->runs) {
    if (run.side != 0) continue;
    for (const SequenceHash block : run.blocks) {
      const auto position = positions.find(block);
      if (position == positions.end()) continue;
      TierMask& held = rank->held[position->second];
      held = held | TierMask(run.tier);
    }
  }
  for (uint32_t i = 0; i < rank->held.size(); ++i) {
    if (rank->held[i].empty()) {
      if (!rank->first_hole.has_value()) rank->first_hole = i;
    } else if (rank->first_hole.has_value()) {
      ++rank->behind_hole;
    }
  }
  if (rank->behind_hole == 0) rank->first_hole.reset();  // it just ends there
}

void Explanation::Append(const ExplanationHead& head, std::string* out) const {
  *out += "{\"model_name\":";
  AppendJsonText(head.model, out);
  *out += ",\"routing_group\":";
  AppendJsonText(head.group, out);
  absl::StrAppend(out, ",\"block_size\":", head.block_size, ",\"tokens\":", head.tokens,
                  ",\"blocks\":", blocks.size(), ",\"namespace\":{\"lora_name\":");
  AppendJsonText(head.lora_name, out);
  *out += ",\"cache_salt\":";
  AppendJsonText(head.cache_salt, out);
  *out += "},\"contract\":";
  AppendJsonText(head.contract, out);
  absl::StrAppend(out, ",\"look_ahead\":", eagle ? "true" : "false", ",\"diverges_at\":");
  absl::StrAppend(out, deepest() < blocks.size() ? std::to_string(deepest()) : "null");
  *out += ",\"path\":";
  AppendPath(head.blocks_max, out);
  *out += ",\"ranks\":";
  AppendRanks(out);
  *out += '}';
}

// Block by block up to the deepest held one, and one more: the first without a holder. Hybrid
// models may hold more than they can reuse, so `held` counts and not `any`.
void Explanation::AppendPath(uint32_t blocks_max, std::string* out) const {
  *out += '[';
  Commas positions(out);
  uint32_t deepest_held = deepest();
  for (const Rank& rank : ranks) deepest_held = std::max(deepest_held, rank.detail.held);
  const size_t end = std::min<size_t>({blocks.size(), size_t{deepest_held} + 1, blocks_max});
  for (size_t i = 0; i < end; ++i) {
    positions.Next();
    // As texts: a browser rounds numbers of 64 bits.
    absl::StrAppend(out, "{\"position\":", i, ",\"local_hash\":\"", Raw(locals[i]),
                    "\",\"sequence_hash\":\"", Raw(blocks[i]), "\",\"holders\":[");
    Commas holders(out);
    for (const Rank& rank : ranks) {
      if (!rank.read || rank.held[i].empty()) continue;
      holders.Next();
      *out += "{\"instance\":";
      AppendJsonText(rank.instance, out);
      absl::StrAppend(out, ",\"rank\":", rank.rank, ",\"tiers\":[");
      Commas tiers(out);
      for (size_t tier = 0; tier < kTiers; ++tier) {
        if (!rank.held[i].Has(static_cast<Tier>(tier))) continue;
        tiers.Next();
        AppendJsonText(kTierNames[tier], out);
      }
      *out += "]}";
    }
    *out += "]}";
  }
  *out += ']';
}

void Explanation::AppendRanks(std::string* out) const {
  *out += '[';
  Commas commas(out);
  for (const Rank& rank : ranks) {
    commas.Next();
    *out += "{\"instance\":";
    AppendJsonText(rank.instance, out);
    absl::StrAppend(out, ",\"rank\":", rank.rank, ",\"blocks\":{");
    AppendDetailFields(rank.detail, /*block_size=*/1, out);
    *out += '}';
    if (rank.read) {
      absl::StrAppend(out, ",\"first_hole\":",
                      rank.first_hole.has_value() ? std::to_string(*rank.first_hole) : "null",
                      ",\"blocks_behind_hole\":", rank.behind_hole);
      AppendClasses(rank, out);
    }
    *out += '}';
  }
  *out += ']';
}

}  // namespace kvatlas
