// The engine's calls: each is checked on the engine's thread, so that a wrong one is refused at
// once, and then queued as a `Record`. Checks need no lock but for layouts; nothing is hashed here.

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "indexer/stream/validate.h"
#include "indexer/telemetry/log.h"
#include "publisher/publisher_impl.h"
#include "publisher/zmq_events.h"

namespace kvatlas {
namespace {

absl::Status CheckBlocks(size_t blocks) {
  if (blocks <= kCallBlocksMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a call names at most ", kCallBlocksMax, " blocks; got ", blocks));
}

// Both numbers in words, as this is the most common mistake of an integration.
absl::Status CheckTokens(size_t blocks, uint32_t block_size, size_t tokens) {
  if (tokens == blocks * block_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      blocks, blocks == 1 ? " block of " : " blocks of ", block_size, " tokens ",
      blocks == 1 ? "needs " : "need ", blocks * block_size, " token ids; got ", tokens));
}

absl::Status CheckNamespace(const CacheNamespace& of) {
  const size_t longest = std::max(of.lora_name.size(), of.cache_salt.size());
  if (longest <= kNamespaceBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("lora_name and cache_salt have at most ",
                                                 kNamespaceBytesMax, " bytes; got ", longest));
}

// An event without an adapter or a salt gets those of the options (the rules of `Publish`): a call
// of a group cannot say "none" against them.
absl::Status CheckGroupNamespace(const CacheNamespace& of, const PublisherOptions& options) {
  const auto lacks = [](std::string_view given, std::string_view own) {
    return given.empty() && !own.empty();
  };
  if (!lacks(of.lora_name, options.lora_name) && !lacks(of.cache_salt, options.cache_salt))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      "blocks of a group cannot go without the publisher's lora_name and cache_salt; expected "
      "others, "
      "or no namespace, which means the publisher's");
}

static_assert(sizeof(SequenceHash) == sizeof(uint64_t));
std::span<const uint64_t> RawOf(std::span<const SequenceHash> blocks) {
  return {reinterpret_cast<const uint64_t*>(blocks.data()), blocks.size()};
}

}  // namespace

// ---- Is it taken? ----

// Settles the engine's way of speaking by the first call that fits, once and for all: `Contents`
// counts copies by names for one way, `EngineBatches` for the other, and the two cannot be mixed.
// Concurrent first calls race by compare-exchange; the loser is judged by the winner's way.
bool Publisher::Impl::Takes(absl::Status fits, Way by) {
  uint8_t before = way.load(std::memory_order_relaxed);
  if (fits.ok() && before == kUnsettled &&
      way.compare_exchange_strong(before, by, std::memory_order_relaxed)) {
    return true;
  }
  if (fits.ok() && before == by) return true;
  if (fits.ok()) {
    fits = absl::InvalidArgumentError(
        before == kBatches
            ? "this engine has spoken by batches or groups before; from then on only "
              "those are taken, and a clear of all tiers"
            : "this engine has spoken by calls of blocks before; from then on no "
              "batches and no groups are taken");
  }
  return RefuseCall(fits);
}

// Takes `contents_mutex` for `last_error`: refused calls are rare, and may wait for a slice.
bool Publisher::Impl::RefuseCall(const absl::Status& why) {
  invalid_calls.fetch_add(1, std::memory_order_relaxed);
  static LogLimiter limiter{std::chrono::seconds(10)};
  LogEvery(limiter, options.worker, LogLevel::kError, "call refused",
           {{"worker", options.worker}, {"reason", why}});
  MutexLock lock(&contents_mutex);
  SetError(why);
  return false;
}

// A layout keeps the side classes of the one before and may add some behind them, since blocks name
// their class by its number. The lock is held while the layout is queued, so that layouts are
// queued in the order in which they are compared. The same layout again is no record.
bool Publisher::Impl::SetLayout(const CacheLayout& layout) {
  MutexLock lock(&layout_mutex);
  absl::Status fits = ValidateLayout(layout);
  if (layout.has_main && layout.main.block_size != options.block_size)
    fits.Update(absl::InvalidArgumentError(
        absl::StrCat("the layout's main class has blocks of ", layout.main.block_size,
                     " tokens, the publisher's have ", options.block_size)));
  bool goes_on = layout.sides.size() >= call_layout.sides.size();
  for (size_t i = 0; goes_on && i < call_layout.sides.size(); ++i)
    goes_on = SideTag(layout.sides[i]) == SideTag(call_layout.sides[i]);
  if (!goes_on)
    fits.Update(absl::InvalidArgumentError(
        "a layout keeps the side classes of the one before, and may add some behind them"));
  if (!Takes(std::move(fits), kCalls)) return false;
  if (layout == call_layout) return true;
  call_layout = layout;
  Enqueue({.kind = Record::kLayout, .payload = PackLayout(layout)});
  return true;
}

// By the layout that the calls have set, which may still wait in the queue in front of this call.
absl::Status Publisher::Impl::CheckSide(SideClass side) {
  MutexLock lock(&layout_mutex);
  if (side == 0 || side > call_layout.sides.size())
    return absl::InvalidArgumentError(
        absl::StrCat("side class ", side, ": the layout has ", call_layout.sides.size()));
  const uint32_t block_size = call_layout.sides[side - 1].block_size;
  if (block_size % options.block_size == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("side class ", side, " has blocks of ", block_size,
                                                 " tokens, no multiple of ", options.block_size));
}

// Removals of any length are taken, in records of at most `kCallBlocksMax`.
void Publisher::Impl::EnqueueRemoved(Record::Kind kind, Tier tier, std::span<const uint64_t> blocks,
                                     SideClass side) {
  for (; !blocks.empty(); blocks = blocks.subspan(std::min(blocks.size(), kCallBlocksMax))) {
    Enqueue({.kind = kind,
             .tier = tier,
             .side = side,
             .hashes = blocks.first(std::min(blocks.size(), kCallBlocksMax))});
  }
}

// ---- The calls ----

bool Publisher::Stored(Tier tier, std::span<const EngineHash> blocks,
                       std::optional<EngineHash> parent, std::span<const TokenId> tokens) {
  return Stored(tier, blocks, parent, tokens,
                {.lora_name = impl_->options.lora_name, .cache_salt = impl_->options.cache_salt});
}

bool Publisher::Stored(Tier tier, std::span<const EngineHash> blocks,
                       std::optional<EngineHash> parent, std::span<const TokenId> tokens,
                       const CacheNamespace& cache_namespace) {
  if (blocks.empty() && tokens.empty()) return true;
  absl::Status fits = CheckBlocks(blocks.size());
  if (!tokens.empty())
    fits.Update(CheckTokens(blocks.size(), impl_->options.block_size, tokens.size()));
  fits.Update(CheckNamespace(cache_namespace));
  if (!impl_->Takes(std::move(fits), Impl::kCalls)) return false;
  impl_->Enqueue({.kind = Record::kStored,
                  .tier = tier,
                  .has_parent = parent.has_value(),
                  .parent = parent.value_or(0),
                  .hashes = blocks,
                  .tokens = tokens,
                  .lora_name = cache_namespace.lora_name,
                  .cache_salt = cache_namespace.cache_salt});
  return true;
}

// No bound on the number of blocks: an engine that resets removes all of them by one call.
bool Publisher::Removed(Tier tier, std::span<const EngineHash> blocks) {
  if (blocks.empty()) return true;
  if (!impl_->Takes(absl::OkStatus(), Impl::kCalls)) return false;
  impl_->EnqueueRemoved(Record::kRemoved, tier, blocks);
  return true;
}

// `kNoParent` marks the start of a sequence, hence the check of position against parent.
bool Publisher::StoredHashed(Tier tier, Position position, SequenceHash parent,
                             std::span<const SequenceHash> blocks) {
  if (blocks.empty()) return true;
  absl::Status fits = CheckBlocks(blocks.size());
  if ((position == 0) != (parent == kNoParent))
    fits.Update(absl::InvalidArgumentError(
        absl::StrCat("parent is 0 at position 0 and nowhere else; got parent ", Raw(parent),
                     " at position ", position)));
  if (fits.ok() && position > ~Position{0} - static_cast<Position>(blocks.size()))
    fits = absl::InvalidArgumentError(absl::StrCat("position ", position, " and ", blocks.size(),
                                                   " blocks: positions have 32 bits"));
  if (!impl_->Takes(std::move(fits), Impl::kCalls)) return false;
  impl_->Enqueue({.kind = Record::kStoredHashed,
                  .tier = tier,
                  .position = position,
                  .parent = Raw(parent),
                  .hashes = RawOf(blocks)});
  return true;
}

bool Publisher::RemovedHashed(Tier tier, std::span<const SequenceHash> blocks) {
  if (blocks.empty()) return true;
  if (!impl_->Takes(absl::OkStatus(), Impl::kCalls)) return false;
  impl_->EnqueueRemoved(Record::kRemovedHashed, tier, RawOf(blocks));
  return true;
}

bool Publisher::SetLayout(const CacheLayout& layout) { return impl_->SetLayout(layout); }

bool Publisher::StoredSideHashed(SideClass side, Tier tier, std::span<const SequenceHash> blocks) {
  if (blocks.empty()) return true;
  absl::Status fits = CheckBlocks(blocks.size());
  fits.Update(impl_->CheckSide(side));
  if (!impl_->Takes(std::move(fits), Impl::kCalls)) return false;
  impl_->Enqueue(
      {.kind = Record::kStoredSide, .tier = tier, .side = side, .hashes = RawOf(blocks)});
  return true;
}

bool Publisher::RemovedSideHashed(SideClass side, Tier tier, std::span<const SequenceHash> blocks) {
  if (blocks.empty()) return true;
  if (!impl_->Takes(impl_->CheckSide(side), Impl::kCalls)) return false;
  impl_->EnqueueRemoved(Record::kRemovedSide, tier, RawOf(blocks), side);
  return true;
}

bool Publisher::StoredInGroup(const EngineGroup& group, Tier tier,
                              std::span<const EngineHash> blocks, std::optional<EngineHash> parent,
                              std::span<const TokenId> tokens) {
  return StoredInGroup(
      group, tier, blocks, parent, tokens,
      {.lora_name = impl_->options.lora_name, .cache_salt = impl_->options.cache_salt});
}

bool Publisher::StoredInGroup(const EngineGroup& group, Tier tier,
                              std::span<const EngineHash> blocks, std::optional<EngineHash> parent,
                              std::span<const TokenId> tokens,
                              const CacheNamespace& cache_namespace) {
  if (blocks.empty() && tokens.empty()) return true;
  const uint32_t block_size = group.block_size == 0 ? impl_->options.block_size : group.block_size;
  absl::Status fits = CheckBlocks(blocks.size());
  if (block_size > kBlockSizeMax)
    fits.Update(absl::InvalidArgumentError(
        absl::StrCat("a group's block size is 1 to ", kBlockSizeMax, " tokens; got ", block_size)));
  fits.Update(CheckTokens(blocks.size(), block_size, tokens.size()));
  if (group.kind != CacheKind::kWindow && group.window_tokens != 0)
    fits.Update(absl::InvalidArgumentError(
        absl::StrCat("window_tokens is of sliding windows alone; got ", group.window_tokens)));
  fits.Update(CheckNamespace(cache_namespace));
  fits.Update(CheckGroupNamespace(cache_namespace, impl_->options));
  std::string batch;
  if (fits.ok()) {
    // The call becomes a batch of one event, as the engine itself would send it: groups then have
    // one implementation, `EngineBatches`.
    ZmqEventEncoder encoder(ZmqEventForm::kMap, block_size, impl_->options.dp_rank);
    encoder.Stored({.tier = tier,
                    .hashes = blocks,
                    .parent = parent,
                    .tokens = tokens,
                    .lora_name = cache_namespace.lora_name,
                    .cache_salt = cache_namespace.cache_salt,
                    .group = group.number,
                    .spec_kind = ZmqEventEncoder::SpecKindOf(group.kind),
                    .sliding_window = group.window_tokens == 0
                                          ? std::nullopt
                                          : std::optional<uint32_t>(group.window_tokens)});
    batch = encoder.Finish(/*time_s=*/0);
  }
  if (batch.size() > kPayloadBytesMax)
    fits = absl::InvalidArgumentError(
        absl::StrCat("a call has at most ", kPayloadBytesMax, " bytes; got ", batch.size()));
  if (!impl_->Takes(std::move(fits), Impl::kBatches)) return false;
  impl_->Enqueue({.kind = Record::kEngineBatch, .payload = batch});
  return true;
}

bool Publisher::RemovedInGroup(uint32_t group, Tier tier, std::span<const EngineHash> blocks) {
  if (blocks.empty()) return true;
  if (!impl_->Takes(CheckBlocks(blocks.size()), Impl::kBatches)) return false;
  ZmqEventEncoder encoder(ZmqEventForm::kMap, impl_->options.block_size, impl_->options.dp_rank);
  encoder.Removed(tier, blocks, group);
  impl_->Enqueue({.kind = Record::kEngineBatch, .payload = encoder.Finish(/*time_s=*/0)});
  return true;
}

bool Publisher::Cleared(TierMask tiers) {
  if (tiers.empty()) return true;
  // A clear of all tiers goes with either way of speaking, one of some tiers only with calls.
  if (tiers != TierMask::All() && !impl_->Takes(absl::OkStatus(), Impl::kCalls)) return false;
  impl_->Enqueue({.kind = Record::kCleared, .tiers = tiers});
  if (impl_->zmq != nullptr) Flush();  // an idle engine's reset does not wait for its next event
  return true;
}

bool Publisher::Publish(std::string_view engine_batch) {
  if (!impl_->Takes(absl::OkStatus(), Impl::kBatches)) return false;
  // A batch that is too large becomes an empty one, which cannot be read: that counts as a loss, as
  // the events in it may have removed something.
  if (engine_batch.size() > kPayloadBytesMax) engine_batch = {};
  impl_->Enqueue({.kind = Record::kEngineBatch, .payload = engine_batch});
  return true;
}

// Goes with either way of speaking.
bool Publisher::SetLoad(const Load& load) {
  if (absl::Status fits = ValidateLoad(load); !fits.ok()) return impl_->RefuseCall(fits);
  impl_->Enqueue({.kind = Record::kLoad, .load = load});
  return true;
}

bool Publisher::RefuseCall(const absl::Status& why) { return impl_->RefuseCall(why); }

}  // namespace kvatlas
