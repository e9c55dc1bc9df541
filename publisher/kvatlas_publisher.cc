// The C interface over `Publisher`: arguments are checked, exceptions end here, and a forked child
// touches nothing. Every call goes through `With`, which checks the handle; a call of the engine
// then goes through `Say`, which refuses wrong arguments in words (`kvatlas_publisher_last_error`).

#include "publisher/kvatlas_publisher.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/base/version.h"
#include "indexer/kv_events/engine_registration.h"
#include "indexer/process/c_api.h"
#include "indexer/process/fork_detector.h"
#include "publisher/publisher.h"
#include "publisher/zmq_publisher.h"

struct kvatlas_publisher {
  const kvatlas::ForkDetector* mark = nullptr;
  std::unique_ptr<kvatlas::Publisher> publisher;
  std::string lora_name, cache_salt;  // of calls that name no namespace
  uint32_t block_size = 0;
  // Set by `_stop`: the calls of the engine are refused from then on, statistics are not.
  std::atomic<bool> stopped{false};
};

namespace kvatlas {
namespace {

constexpr size_t kNameBytesMax = 256;
constexpr size_t kTextsMax = 1 << 16;  // leaves or labels that are looked at at all
// A year: longer times are cut, so that no duration overflows.
constexpr uint64_t kMsMax = 1000ull * 3600 * 24 * 365;

static_assert(static_cast<int>(absl::StatusCode::kInvalidArgument) == KVATLAS_INVALID_ARGUMENT);
static_assert(static_cast<int>(absl::StatusCode::kUnavailable) == KVATLAS_UNAVAILABLE);
static_assert(static_cast<int>(Tier::kExternal) == KVATLAS_TIER_EXTERNAL);
static_assert(TierMask::All().bits() == KVATLAS_TIERS_ALL);

std::string_view TextOf(const char* text) { return text == nullptr ? "" : text; }
std::string StringOf(const char* text) { return std::string(TextOf(text)); }

Duration Ms(uint64_t ms) { return std::chrono::milliseconds(std::min(ms, kMsMax)); }

// Runs `work` on a publisher that is there, is this process's own and, with `running`, was not
// stopped. Catches exceptions. A forked child only reads the mark: the parent's locks are not
// touched.
template <typename Work>
int32_t With(kvatlas_publisher* publisher, bool running, const Work& work) noexcept {
  if (publisher == nullptr) return KVATLAS_INVALID_ARGUMENT;
  if (publisher->mark->forked()) return KVATLAS_FAILED_PRECONDITION;
  if (running && publisher->stopped.load(std::memory_order_relaxed)) {
    return KVATLAS_FAILED_PRECONDITION;
  }
  return Guarded([&] { return work(*publisher->publisher); });
}

bool IsTier(int32_t tier) { return tier >= 0 && tier < kTiers; }

// A pointer that may be null only for nothing.
bool Fits(const void* values, size_t count) { return values != nullptr || count == 0; }

// INVALID_ARGUMENT, which `kvatlas_publisher_last_error` then has in words.
int32_t RefuseCall(Publisher& publisher, const std::string& why) {
  publisher.RefuseCall(absl::InvalidArgumentError(why));
  return KVATLAS_INVALID_ARGUMENT;
}

// Errors in words, for `kvatlas_publisher_last_error`: what was given, and what is expected.
absl::Status CheckTier(int32_t tier) {
  if (IsTier(tier)) return absl::OkStatus();
  return absl::InvalidArgumentError("tier " + std::to_string(tier) +
                                    ": expected a KVATLAS_TIER_ value, 0 to 3");
}

absl::Status CheckPointer(const char* name, const void* values, size_t count) {
  if (Fits(values, count)) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(name) + " is NULL, and its count is " +
                                    std::to_string(count));
}

absl::Status CheckNameBytes(size_t bytes, size_t bytes_min) {
  if (bytes >= bytes_min && bytes <= kNameBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError("name_bytes is " + std::to_string(bytes) + ": expected " +
                                    std::to_string(bytes_min) + " to " +
                                    std::to_string(kNameBytesMax));
}

// The call itself, unless what was checked before is wrong.
template <typename Call>
int32_t Say(Publisher& publisher, const absl::Status& fits, const Call& call) {
  if (!fits.ok()) return RefuseCall(publisher, std::string(fits.message()));
  return call() ? KVATLAS_OK : KVATLAS_INVALID_ARGUMENT;
}

// NULL: the namespace of the options. A namespace that is given replaces both of its parts.
CacheNamespace NamespaceOf(const kvatlas_publisher& publisher, const kvatlas_namespace* within) {
  if (within == nullptr) return {publisher.lora_name, publisher.cache_salt};
  return {TextOf(within->lora_name), TextOf(within->cache_salt)};
}

// The engine's name of a block as 64 bits: a number as it is (`bytes` 0), longer digests hashed.
// Two digests collide with a chance of 2^-64.
uint64_t NameOf(const void* digest, size_t bytes) {
  uint64_t number = 0;
  if (bytes == 0) return std::memcpy(&number, digest, sizeof(number)), number;
  return Xxh3({static_cast<const char*>(digest), bytes}, 0);
}

// Unaligned memory is allowed: `NameOf` copies.
std::vector<uint64_t> NamesOf(const void* digests, size_t bytes, size_t count) {
  std::vector<uint64_t> names(count);
  const auto* digest = static_cast<const char*>(digests);
  for (uint64_t& name : names) {
    name = NameOf(digest, bytes);
    digest += bytes == 0 ? sizeof(name) : bytes;
  }
  return names;
}

// ---- Options ----

// Only what C can get wrong (NULL, enums) is checked here; `Publisher::Create` checks the values.
absl::StatusOr<PublisherOptions> OptionsOf(const kvatlas_publisher_options& given) {
  const auto bad = [](const char* what) { return absl::InvalidArgumentError(what); };
  if (given.leaves_count > kTextsMax || given.labels_count > kTextsMax) {
    return bad("leaves_count, labels_count: too many");
  }
  if (!Fits(given.leaves, given.leaves_count)) return bad("leaves: NULL");
  if (!Fits(given.labels, given.labels_count)) return bad("labels: NULL");
  if (given.zmq_attach < KVATLAS_ZMQ_AUTO || given.zmq_attach > KVATLAS_ZMQ_CONNECT) {
    return bad("zmq_attach: not a KVATLAS_ZMQ_ value");
  }
  PublisherOptions options{
      .worker = StringOf(given.worker),
      .dp_rank = given.dp_rank,
      .domain = {.model = StringOf(given.model), .tenant = StringOf(given.tenant)},
      .block_size = given.block_size,
      .contract = {.seed = given.hash_seed},
      .lora_name = StringOf(given.within.lora_name),
      .cache_salt = StringOf(given.within.cache_salt),
      .batch_blocks = given.batch_blocks,
      .batch_age = std::min<Duration>(
          std::chrono::microseconds(std::min(given.batch_age_us, kMsMax)), std::chrono::hours(1)),
      .queue_bytes_max = given.queue_bytes_max};
  for (size_t i = 0; i < given.leaves_count; ++i) {
    if (TextOf(given.leaves[i]).empty()) return bad("leaves: an empty address");
    options.leaves.push_back(given.leaves[i]);
  }
  for (size_t i = 0; i < given.labels_count; ++i) {
    options.labels.emplace_back(StringOf(given.labels[i].name), StringOf(given.labels[i].value));
  }
  if (given.window_batches == 0) return bad("window_batches: at least 1");
  if (given.heartbeat_every_ms == 0) return bad("heartbeat_every_ms: at least 1");
  options.sender.window_batches = given.window_batches;
  options.sender.digest_every = Ms(given.digest_every_ms);
  options.sender.heartbeat_every = Ms(given.heartbeat_every_ms);
  options.zmq.endpoint = StringOf(given.zmq_endpoint);
  options.zmq.replay_endpoint = StringOf(given.zmq_replay_endpoint);
  options.zmq.topic = StringOf(given.zmq_topic);
  options.zmq.attach = static_cast<ZmqAttach>(given.zmq_attach);
  if (given.zmq_legacy_events != 0) options.zmq.form = ZmqEventForm::kLegacyArray;
  if (given.zmq_replay_without_topic != 0) {
    options.zmq.replay_layout = ZmqReplayLayout::kNoTopic;
  }
  options.redis.url = StringOf(given.redis_url);
  options.redis.cell = StringOf(given.redis_cell);
  options.redis.shards = given.redis_shards;
  options.cell = StringOf(given.cell);
  options.tls = {.certificate = StringOf(given.tls_cert),
                 .key = StringOf(given.tls_key),
                 .ca = StringOf(given.tls_ca)};
  auto drops_last = ParseEagleDrop(TextOf(given.eagle_drop));
  if (!drops_last.ok()) return drops_last.status();
  options.drops_last = *std::move(drops_last);
  options.chunk_tokens = given.chunk_tokens;
  options.window_tokens = given.window_tokens;
  options.hybrid = given.hybrid != 0;
  return options;
}

static_assert(static_cast<int>(ZmqAttach::kBind) == KVATLAS_ZMQ_BIND);
static_assert(static_cast<int>(ZmqAttach::kConnect) == KVATLAS_ZMQ_CONNECT);

// The threads of the publisher start with signals blocked, so that the program's handlers run on
// its own threads.
absl::StatusOr<std::unique_ptr<kvatlas_publisher>> Create(const kvatlas_publisher_options& given) {
  const absl::StatusOr<const ForkDetector*> mark = MarkOfThisProcess("publisher");
  if (!mark.ok()) return mark.status();
  absl::StatusOr<PublisherOptions> options =
      OptionsOf(Whole(given, &kvatlas_publisher_options_init));
  if (!options.ok()) return options.status();
  auto made = std::make_unique<kvatlas_publisher>();
  made->mark = *mark;
  made->lora_name = options->lora_name;
  made->cache_salt = options->cache_salt;
  made->block_size = options->block_size;
  const SignalsBlocked blocked;
  absl::StatusOr<std::unique_ptr<Publisher>> publisher = Publisher::Create(*std::move(options));
  if (!publisher.ok()) return publisher.status();
  made->publisher = *std::move(publisher);
  return made;
}

}  // namespace
}  // namespace kvatlas

using kvatlas::Guarded;
using kvatlas::Publisher;
using kvatlas::With;

// The defaults of `PublisherOptions`, so that C and C++ have the same.
void kvatlas_publisher_options_init(kvatlas_publisher_options* options, size_t struct_size) {
  kvatlas_publisher_options whole = {};
  const kvatlas::PublisherOptions defaults;
  whole.struct_size = struct_size;
  whole.block_size = defaults.block_size;
  whole.hash_seed = defaults.contract.seed;
  whole.batch_blocks = defaults.batch_blocks;
  whole.batch_age_us = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(defaults.batch_age).count());
  whole.queue_bytes_max = defaults.queue_bytes_max;
  const auto ms = [](kvatlas::Duration duration) {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
  };
  whole.window_batches = defaults.sender.window_batches;
  whole.digest_every_ms = ms(defaults.sender.digest_every);
  whole.heartbeat_every_ms = ms(defaults.sender.heartbeat_every);
  whole.redis_shards = defaults.redis.shards;
  kvatlas::InitStruct(whole, options, struct_size);
}

const char* kvatlas_publisher_version(void) { return kvatlas::kVersion; }

uint32_t kvatlas_publisher_abi(void) { return KVATLAS_PUBLISHER_ABI; }

const char* kvatlas_code_name(int32_t code) { return kvatlas::CodeName(code); }

// Nothing needs to be reachable. The handle is released only when everything has started.
int32_t kvatlas_publisher_create(const kvatlas_publisher_options* options,
                                 kvatlas_publisher** publisher, char* error, size_t error_size) {
  kvatlas::PutText("", error, error_size);
  if (publisher == nullptr) return KVATLAS_INVALID_ARGUMENT;
  *publisher = nullptr;
  const int32_t code = Guarded([&] {
    if (!kvatlas::IsInitialized(options)) {
      return kvatlas::PutStatus(absl::InvalidArgumentError("options: not from _options_init"),
                                error, error_size);
    }
    absl::StatusOr<std::unique_ptr<kvatlas_publisher>> made = kvatlas::Create(*options);
    if (!made.ok()) return kvatlas::PutStatus(made.status(), error, error_size);
    *publisher = made->release();
    return int32_t{KVATLAS_OK};
  });
  if (code == KVATLAS_RESOURCE_EXHAUSTED) kvatlas::PutText("no memory", error, error_size);
  return code;
}

// In a forked child nothing is freed: the threads that the destructor would join are the parent's.
void kvatlas_publisher_destroy(kvatlas_publisher* publisher) {
  if (publisher == nullptr || publisher->mark->forked()) return;
  Guarded([&] {
    delete publisher;
    return int32_t{KVATLAS_OK};
  });
}

// A NULL `parent` is the start of a sequence; NULL tokens with a count of 0 mean blocks that are
// held in another tier.
int32_t kvatlas_publisher_stored(kvatlas_publisher* publisher, int32_t tier, const uint64_t* blocks,
                                 size_t blocks_count, const uint64_t* parent,
                                 const uint32_t* tokens, size_t tokens_count,
                                 const kvatlas_namespace* within) {
  return With(publisher, true, [&](Publisher& to) -> int32_t {
    absl::Status fits = kvatlas::CheckTier(tier);
    fits.Update(kvatlas::CheckPointer("blocks", blocks, blocks_count));
    fits.Update(kvatlas::CheckPointer("tokens", tokens, tokens_count));
    return kvatlas::Say(to, fits, [&] {
      const std::optional<uint64_t> after =
          parent == nullptr ? std::nullopt : std::optional<uint64_t>(*parent);
      return to.Stored(static_cast<kvatlas::Tier>(tier), {blocks, blocks_count}, after,
                       {tokens, tokens_count}, kvatlas::NamespaceOf(*publisher, within));
    });
  });
}

int32_t kvatlas_publisher_removed(kvatlas_publisher* publisher, int32_t tier,
                                  const uint64_t* blocks, size_t blocks_count) {
  return With(publisher, true, [&](Publisher& to) -> int32_t {
    absl::Status fits = kvatlas::CheckTier(tier);
    fits.Update(kvatlas::CheckPointer("blocks", blocks, blocks_count));
    return kvatlas::Say(to, fits, [&] {
      return to.Removed(static_cast<kvatlas::Tier>(tier), std::span(blocks, blocks_count));
    });
  });
}

// Turns digests into numbers and goes on as the call for numbers; tier and tokens are checked
// there.
int32_t kvatlas_publisher_stored_bytes(kvatlas_publisher* publisher, int32_t tier,
                                       const void* blocks, size_t name_bytes, size_t blocks_count,
                                       const void* parent, const uint32_t* tokens,
                                       size_t tokens_count, const kvatlas_namespace* within) {
  return With(publisher, true, [&](Publisher& to) -> int32_t {
    absl::Status fits = kvatlas::CheckNameBytes(name_bytes, 1);
    fits.Update(kvatlas::CheckPointer("blocks", blocks, blocks_count));
    if (!fits.ok()) return kvatlas::RefuseCall(to, std::string(fits.message()));
    const std::vector<uint64_t> names = kvatlas::NamesOf(blocks, name_bytes, blocks_count);
    const uint64_t after = parent == nullptr ? 0 : kvatlas::NameOf(parent, name_bytes);
    return kvatlas_publisher_stored(publisher, tier, names.data(), names.size(),
                                    parent == nullptr ? nullptr : &after, tokens, tokens_count,
                                    within);
  });
}

int32_t kvatlas_publisher_removed_bytes(kvatlas_publisher* publisher, int32_t tier,
                                        const void* blocks, size_t name_bytes,
                                        size_t blocks_count) {
  return With(publisher, true, [&](Publisher& to) -> int32_t {
    absl::Status fits = kvatlas::CheckNameBytes(name_bytes, 1);
    fits.Update(kvatlas::CheckPointer("blocks", blocks, blocks_count));
    if (!fits.ok()) return kvatlas::RefuseCall(to, std::string(fits.message()));
    const std::vector<uint64_t> names = kvatlas::NamesOf(blocks, name_bytes, blocks_count);
    return kvatlas_publisher_removed(publisher, tier, names.data(), names.size());
  });
}

namespace {

static_assert(sizeof(kvatlas::SequenceHash) == sizeof(uint64_t));
std::span<const kvatlas::SequenceHash> HashesOf(const uint64_t* blocks, size_t count) {
  return {reinterpret_cast<const kvatlas::SequenceHash*>(blocks), count};
}

}  // namespace

int32_t kvatlas_publisher_stored_hashed(kvatlas_publisher* publisher, int32_t tier,
                                        uint32_t position, uint64_t parent, const uint64_t* blocks,
                                        size_t blocks_count) {
  return With(publisher, true, [&](Publisher& to) -> int32_t {
    absl::Status fits = kvatlas::CheckTier(tier);
    fits.Update(kvatlas::CheckPointer("blocks", blocks, blocks_count));
    return kvatlas::Say(to, fits, [&] {
      return to.StoredHashed(static_cast<kvatlas::Tier>(tier), position,
                             kvatlas::SequenceHash{parent}, HashesOf(blocks, blocks_count));
    });
  });
}

int32_t kvatlas_publisher_removed_hashed(kvatlas_publisher* publisher, int32_t tier,
                                         const uint64_t* blocks, size_t blocks_count) {
  return With(publisher, true, [&](Publisher& to) -> int32_t {
    absl::Status fits = kvatlas::CheckTier(tier);
    fits.Update(kvatlas::CheckPointer("blocks", blocks, blocks_count));
    return kvatlas::Say(to, fits, [&] {
      return to.RemovedHashed(static_cast<kvatlas::Tier>(tier), HashesOf(blocks, blocks_count));
    });
  });
}

int32_t kvatlas_publisher_stored_in_group(kvatlas_publisher* publisher, const kvatlas_group* group,
                                          int32_t tier, const void* blocks, size_t name_bytes,
                                          size_t blocks_count, const void* parent,
                                          const uint32_t* tokens, size_t tokens_count,
                                          const kvatlas_namespace* within) {
  return With(publisher, true, [&](Publisher& to) -> int32_t {
    if (group == nullptr || group->struct_size < sizeof(size_t))
      return kvatlas::RefuseCall(to, "group is NULL, or its struct_size is not set");
    absl::Status fits = kvatlas::CheckTier(tier);
    fits.Update(kvatlas::CheckNameBytes(name_bytes, 0));
    fits.Update(kvatlas::CheckPointer("blocks", blocks, blocks_count));
    fits.Update(kvatlas::CheckPointer("tokens", tokens, tokens_count));
    if (!fits.ok()) return kvatlas::RefuseCall(to, std::string(fits.message()));
    // Fields that an older header does not have stay 0, their default.
    kvatlas_group whole = {};
    std::memcpy(&whole, group, std::min(group->struct_size, sizeof(whole)));
    if (whole.kind >= kvatlas::kCacheKinds)
      return kvatlas::RefuseCall(
          to, "kind " + std::to_string(whole.kind) + ": expected a KVATLAS_GROUP_ value, 0 to 3");
    const std::vector<uint64_t> names = kvatlas::NamesOf(blocks, name_bytes, blocks_count);
    std::optional<uint64_t> after;
    if (parent != nullptr) after = kvatlas::NameOf(parent, name_bytes);
    return to.StoredInGroup({.number = whole.number,
                             .kind = static_cast<kvatlas::CacheKind>(whole.kind),
                             .block_size = whole.block_size,
                             .window_tokens = whole.window_tokens},
                            static_cast<kvatlas::Tier>(tier), names, after, {tokens, tokens_count},
                            kvatlas::NamespaceOf(*publisher, within))
               ? KVATLAS_OK
               : KVATLAS_INVALID_ARGUMENT;
  });
}

int32_t kvatlas_publisher_removed_in_group(kvatlas_publisher* publisher, uint32_t group,
                                           int32_t tier, const void* blocks, size_t name_bytes,
                                           size_t blocks_count) {
  return With(publisher, true, [&](Publisher& to) -> int32_t {
    absl::Status fits = kvatlas::CheckTier(tier);
    fits.Update(kvatlas::CheckNameBytes(name_bytes, 0));
    fits.Update(kvatlas::CheckPointer("blocks", blocks, blocks_count));
    return kvatlas::Say(to, fits, [&] {
      return to.RemovedInGroup(group, static_cast<kvatlas::Tier>(tier),
                               kvatlas::NamesOf(blocks, name_bytes, blocks_count));
    });
  });
}

int32_t kvatlas_publisher_cleared(kvatlas_publisher* publisher, uint32_t tiers) {
  return With(publisher, true, [&](Publisher& to) -> int32_t {
    if (tiers == 0 || tiers > KVATLAS_TIERS_ALL)
      return kvatlas::RefuseCall(
          to, "tiers is " + std::to_string(tiers) + ": expected bits 1 << KVATLAS_TIER_, 1 to 15");
    return to.Cleared(kvatlas::TierMask(static_cast<uint8_t>(tiers))) ? KVATLAS_OK
                                                                      : KVATLAS_INVALID_ARGUMENT;
  });
}

// The engine's own batch, as bytes; it is read by the publisher's thread.
int32_t kvatlas_publisher_publish(kvatlas_publisher* publisher, const void* engine_batch,
                                  size_t size) {
  return With(publisher, true, [&](Publisher& to) -> int32_t {
    return kvatlas::Say(to, kvatlas::CheckPointer("engine_batch", engine_batch, size),
                        [&] { return to.Publish({static_cast<const char*>(engine_batch), size}); });
  });
}

int32_t kvatlas_publisher_set_load(kvatlas_publisher* publisher, const kvatlas_load* load) {
  return With(publisher, true, [&](Publisher& to) -> int32_t {
    if (load == nullptr || load->struct_size < sizeof(size_t))
      return kvatlas::RefuseCall(to, "load is NULL, or its struct_size is not set");
    kvatlas_load whole = {};
    std::memcpy(&whole, load, std::min(load->struct_size, sizeof(whole)));
    const bool said = to.SetLoad({.running_requests = whole.running_requests,
                                  .waiting_requests = whole.waiting_requests,
                                  .used_blocks = whole.used_blocks,
                                  .free_blocks = whole.free_blocks,
                                  .waiting_prefill_blocks = whole.waiting_prefill_blocks,
                                  .tokens_per_s = whole.tokens_per_s});
    return said ? KVATLAS_OK : KVATLAS_INVALID_ARGUMENT;
  });
}

int32_t kvatlas_publisher_flush(kvatlas_publisher* publisher) {
  return With(publisher, true, [](Publisher& to) -> int32_t {
    to.Flush();
    return KVATLAS_OK;
  });
}

// A stop from another thread ends the wait as well, hence the two codes.
int32_t kvatlas_publisher_wait_acknowledged(kvatlas_publisher* publisher, uint64_t timeout_ms) {
  return With(publisher, true, [&](Publisher& to) -> int32_t {
    if (to.WaitAcknowledged(kvatlas::Ms(timeout_ms))) return KVATLAS_OK;
    return publisher->stopped.load(std::memory_order_relaxed) ? KVATLAS_FAILED_PRECONDITION
                                                              : KVATLAS_DEADLINE_EXCEEDED;
  });
}

// The mark comes first: calls of the engine are refused while the queue is emptied.
int32_t kvatlas_publisher_stop(kvatlas_publisher* publisher, int32_t goodbye,
                               uint64_t flush_for_ms) {
  return With(publisher, false, [&](Publisher& to) -> int32_t {
    publisher->stopped.store(true, std::memory_order_relaxed);
    to.Stop(goodbye != 0, kvatlas::Ms(flush_for_ms));
    return KVATLAS_OK;
  });
}

int32_t kvatlas_publisher_get_stats(kvatlas_publisher* publisher, kvatlas_publisher_stats* stats) {
  return With(publisher, false, [&](Publisher& of) -> int32_t {
    if (stats == nullptr || stats->struct_size < sizeof(size_t)) return KVATLAS_INVALID_ARGUMENT;
    const kvatlas::PublisherStats now = of.Stats();
    kvatlas::PutStruct({.struct_size = 0,
                        .blocks_stored = now.blocks_stored,
                        .blocks_removed = now.blocks_removed,
                        .clears = now.clears,
                        .blocks_stored_passed = now.blocks_stored_passed,
                        .blocks_removed_passed = now.blocks_removed_passed,
                        .batches = now.batches,
                        .blocks_held = now.blocks_held,
                        .unknown_parents = now.unknown_parents,
                        .unknown_removed = now.unknown_removed,
                        .renamed = now.renamed,
                        .invalid_calls = now.invalid_calls,
                        .engine_batches = now.engine_batches,
                        .engine_unreadable = now.engine_unreadable,
                        .engine_refused = now.engine_refused,
                        .engine_parked = now.engine_parked,
                        .inline_records = now.inline_records,
                        .queue_bytes = now.queue_bytes,
                        .replicas = now.replicas.size()},
                       stats);
    return KVATLAS_OK;
  });
}

int32_t kvatlas_publisher_last_error(kvatlas_publisher* publisher, char* text, size_t text_size) {
  kvatlas::PutText("", text, text_size);
  return With(publisher, false, [&](Publisher& of) {
    return kvatlas::PutStatus(of.Stats().last_error, text, text_size);
  });
}

// By index in `kvatlas_publisher_stats.replicas`; a replica may come or go between the two calls,
// hence NOT_FOUND.
int32_t kvatlas_publisher_get_replica(kvatlas_publisher* publisher, size_t replica,
                                      kvatlas_replica_stats* stats, char* text, size_t text_size) {
  kvatlas::PutText("", text, text_size);
  return With(publisher, false, [&](Publisher& of) -> int32_t {
    if (stats == nullptr || stats->struct_size < sizeof(size_t)) return KVATLAS_INVALID_ARGUMENT;
    const kvatlas::PublisherStats now = of.Stats();
    if (replica >= now.replicas.size()) return KVATLAS_NOT_FOUND;
    const kvatlas::ReplicaStats& at = now.replicas[replica];
    kvatlas::PutStruct({.struct_size = 0,
                        .connected = at.connected,
                        .welcomed = at.welcomed,
                        .at_rest = at.at_rest,
                        .status = kvatlas::PutStatus(at.status, text, text_size),
                        .last_number = at.last_number,
                        .acknowledged = at.acknowledged,
                        .bytes_sent = at.bytes_sent,
                        .snapshots_sent = at.sender.snapshots_sent,
                        .batches_dropped = at.sender.batches_dropped},
                       stats);
    return KVATLAS_OK;
  });
}

// With the port that was taken where the options left it free. NOT_FOUND: there is no endpoint.
int32_t kvatlas_publisher_zmq_endpoint(kvatlas_publisher* publisher, char* text, size_t text_size) {
  kvatlas::PutText("", text, text_size);
  return With(publisher, false, [&](Publisher& of) -> int32_t {
    const kvatlas::PublisherStats now = of.Stats();
    if (!now.zmq.has_value()) return KVATLAS_NOT_FOUND;
    kvatlas::PutText(now.zmq->endpoint, text, text_size);
    return KVATLAS_OK;
  });
}
