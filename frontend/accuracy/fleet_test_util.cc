#include "frontend/accuracy/fleet_test_util.h"

#include <algorithm>
#include <iterator>

namespace kvatlas {
namespace {

struct FaultRow {
  Fault fault;
  const char* name;
  Cause cause;  // that it must be named as
};

constexpr FaultRow kFaults[] = {
    {Fault::kNone, "none", Cause::kUnexplained},
    {Fault::kBlockSize, "block_size", Cause::kWrongBlockSize},
    {Fault::kSeed, "seed", Cause::kHashContract},
    {Fault::kTokenizer, "tokenizer", Cause::kTokenizer},
    {Fault::kTemplate, "template", Cause::kChatTemplate},
    {Fault::kEffort, "effort", Cause::kPromptDiffers},
    {Fault::kReasoning, "reasoning", Cause::kPromptDiffers},
    {Fault::kBosTwice, "bos_twice", Cause::kBosDoubled},
    {Fault::kBosTwiceHere, "bos_twice_here", Cause::kBosDoubled},
    {Fault::kNoBos, "no_bos", Cause::kBosMissing},
    {Fault::kNoBosHere, "no_bos_here", Cause::kBosMissing},
    {Fault::kSaltUnsaid, "salt_unsaid", Cause::kCacheSalt},
    {Fault::kLoraUnsaid, "lora_unsaid", Cause::kLoraNamespace},
    {Fault::kEventsOff, "events_off", Cause::kEventsOff},
    {Fault::kPublisherDead, "publisher_dead", Cause::kPublisherDead},
    {Fault::kLateEvents, "late_events", Cause::kStaleIndex},
    {Fault::kLostRemovals, "lost_removals", Cause::kStaleIndex},
    {Fault::kRanksSwapped, "ranks_swapped", Cause::kRankMixedUp},
    {Fault::kWorkersSwapped, "workers_swapped", Cause::kWorkerMixedUp},
    {Fault::kCachingOff, "caching_off", Cause::kPrefixCachingOff},
    {Fault::kUsageMissing, "usage_missing", Cause::kUsageNotReported},
    {Fault::kRestarted, "restarted", Cause::kEngineRestarted},
};
static_assert(std::size(kFaults) == static_cast<size_t>(Fault::kRestarted) + 1);

const FaultRow* RowOf(Fault fault) {
  return std::find_if(std::begin(kFaults), std::end(kFaults),
                      [fault](const FaultRow& row) { return row.fault == fault; });
}

// A template's tokens before a conversation, and before each turn.
constexpr TokenId kHead[] = {50, 51, 52, 53, 54, 55};
constexpr TokenId kTurn[] = {60, 61, 62};
constexpr TokenId kOtherHead[] = {50, 51, 70, 71, 72, 73, 74, 75, 76, 77, 55};
constexpr TokenId kOtherTurn[] = {60, 63, 64, 62};
constexpr TokenId kReasoningRead[] = {80, 81, 82};
constexpr TokenId kOtherEffort = 85;
constexpr size_t kEffortAt = 30;

void Append(std::span<const TokenId> tokens, std::vector<TokenId>* to) {
  to->insert(to->end(), tokens.begin(), tokens.end());
}

std::vector<TokenId> Split(const std::vector<TokenId>& tokens) {
  std::vector<TokenId> split;
  for (TokenId token : tokens) {
    split.push_back(token);
    if (token % 11 == 0) split.push_back(90000 + token);
  }
  return split;
}

// One of the requests that an engine with this fault reads otherwise than the frontend.
bool IsReadOtherwise(const Prompt& prompt, Fault fault, bool here, Fault which) {
  if (fault != which || here || prompt.form != PromptForm::kChat || prompt.turns.size() < 2)
    return false;
  const bool is_second = prompt.turns[1][0] % 2 == 0;
  return is_second && prompt.turns.size() != (which == Fault::kEffort ? 3 : 2);
}

}  // namespace

std::string ToString(Fault fault) { return RowOf(fault)->name; }

const std::vector<Fault>& AllFaults() {
  static const std::vector<Fault>& all = *[] {
    auto* faults = new std::vector<Fault>;
    for (const FaultRow& row : kFaults)
      if (row.fault != Fault::kNone) faults->push_back(row.fault);
    return faults;
  }();
  return all;
}

Cause CauseOf(Fault fault) { return RowOf(fault)->cause; }

std::set<Cause> AlsoFits(Fault fault) {
  switch (fault) {
    case Fault::kTokenizer:
      return {Cause::kChatTemplate};
    case Fault::kTemplate:
      return {Cause::kTokenizer};
    case Fault::kEffort:
      return {Cause::kUnexplained};
    case Fault::kUsageMissing:
      return {Cause::kPrefixCachingOff};
    case Fault::kCachingOff:
      return {Cause::kUsageNotReported};
    case Fault::kLostRemovals:
      return {Cause::kEngineRestarted};
    case Fault::kRestarted:
      return {Cause::kStaleIndex};
    default:
      return {};
  }
}

std::vector<TokenId> TokensOf(const Prompt& prompt, Fault fault, bool here) {
  const bool other_template = fault == Fault::kTemplate && !here;
  std::vector<TokenId> tokens;
  if (prompt.form == PromptForm::kChat)
    Append(other_template ? std::span<const TokenId>(kOtherHead) : kHead, &tokens);
  for (const std::vector<TokenId>& turn : prompt.turns) {
    if (prompt.form == PromptForm::kChat)
      Append(other_template ? std::span<const TokenId>(kOtherTurn) : kTurn, &tokens);
    Append(turn, &tokens);
    if (IsReadOtherwise(prompt, fault, here, Fault::kReasoning) && &turn == &prompt.turns[1])
      Append(kReasoningRead, &tokens);
  }
  if (IsReadOtherwise(prompt, fault, here, Fault::kEffort) && tokens.size() > kEffortAt)
    tokens[kEffortAt] = kOtherEffort;
  if (fault == Fault::kTokenizer && !here) tokens = Split(tokens);
  size_t bos = 1;
  if (fault == (here ? Fault::kBosTwiceHere : Fault::kBosTwice)) bos = 2;
  if (fault == (here ? Fault::kNoBosHere : Fault::kNoBos)) bos = 0;
  tokens.insert(tokens.begin(), bos, kBos);
  return tokens;
}

// ---- Traffic ----

FleetTraffic::FleetTraffic(const Options& options) : options_(options), random_(options.seed) {
  for (int i = 0; i < 4; ++i) heads_.push_back(Text(40 + Random(60)));
  for (size_t i = 0; i < options_.conversations; ++i) conversations_.push_back(Begin());
}

std::vector<TokenId> FleetTraffic::Text(uint32_t tokens) {
  std::vector<TokenId> text;
  for (uint32_t i = 0; i < tokens; ++i) text.push_back(100 + Random(30000));
  return text;
}

Prompt FleetTraffic::Begin() {
  Prompt prompt;
  prompt.form = Chance(options_.chats) ? PromptForm::kChat : PromptForm::kCompletion;
  prompt.turns.push_back(heads_[Random(static_cast<uint32_t>(heads_.size()))]);
  if (Chance(options_.salted)) prompt.cache_salt = "salt-" + std::to_string(Random(3));
  if (prompt.cache_salt.empty() && Chance(options_.with_lora))
    prompt.lora_name = "lora-" + std::to_string(Random(3));
  return prompt;
}

Prompt FleetTraffic::Next() {
  Prompt& prompt = conversations_[Random(static_cast<uint32_t>(conversations_.size()))];
  if (prompt.turns.size() >= options_.turns_max || Chance(0.05)) prompt = Begin();
  prompt.turns.push_back(Text(20 + Random(60)));
  return prompt;
}

// ---- Engines ----

Usage FaultyEngine::Serve(const Prompt& prompt) {
  const std::vector<TokenId> tokens = TokensOf(prompt, options_.fault, /*here=*/false);
  Usage usage{.prompt_tokens = static_cast<uint32_t>(tokens.size())};
  if (options_.fault == Fault::kCachingOff) return usage;
  const uint32_t size = options_.block_size;
  const uint64_t seed = BlockSeed({.lora_name = prompt.lora_name, .cache_salt = prompt.cache_salt});
  const std::vector<SequenceHash> blocks =
      SequenceHashes(LocalHashes(tokens, {.block_size = size}, seed));
  size_t known = 0;
  while (known < blocks.size() && cache_.contains(blocks[known])) ++known;
  // The last token is always computed.
  const size_t servable = std::min(known, (tokens.size() - 1) / size);
  usage.cached_tokens = static_cast<uint32_t>(servable) * size;
  if (options_.fault == Fault::kUsageMissing) usage.cached_tokens = 0;
  ++uses_;
  Announcement stored{.kind = Announcement::Kind::kStored, .block_size = size};
  if (options_.fault != Fault::kLoraUnsaid) stored.lora_name = prompt.lora_name;
  if (options_.fault != Fault::kSaltUnsaid) stored.cache_salt = prompt.cache_salt;
  for (size_t i = 0; i < blocks.size(); ++i) {
    Cached& cached = cache_[blocks[i]];
    // Tails before heads.
    cached.used = uses_ * 100000 - i;
    if (i >= known) {
      cached.name = ++names_ * 1000003 + options_.worker.rank;
      stored.names.push_back(cached.name);
    } else {
      stored.parent = cached.name;
    }
  }
  stored.tokens.assign(tokens.begin() + static_cast<ptrdiff_t>(known * size),
                       tokens.begin() + static_cast<ptrdiff_t>(blocks.size() * size));
  if (options_.fault == Fault::kEventsOff) return usage;
  if (!stored.names.empty()) sink_->Announce(options_.worker, stored);
  Evict();
  return usage;
}

void FaultyEngine::Forget() { cache_.clear(); }

void FaultyEngine::Evict() {
  Announcement removed{.kind = Announcement::Kind::kRemoved};
  while (cache_.size() > options_.blocks_max) {
    const auto oldest = std::min_element(
        cache_.begin(), cache_.end(),
        [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    removed.names.push_back(oldest->second.name);
    cache_.erase(oldest);
  }
  if (!removed.names.empty() && options_.fault != Fault::kLostRemovals)
    sink_->Announce(options_.worker, removed);
}

}  // namespace kvatlas
