// The table of SGLang's page names and the hashing behind it. Names and digests are sharded alike,
// with a lock per shard.
//
//   heads_    what a reader needs first: version and mask of each shard, packed together
//   slots_    one reservation, `slots_a_shard_` slots for each shard; open addressing, linear probing
//   shards_   lock and counters of writers
//   digests_  block ─▶ digest of its page, where names are computed here
//
// Reader and writer:
//
// 1. A writer that adds a name stores the name, then the block (release). A reader that loads a
//    block (acquire) sees its name.
// 2. A writer that moves slots (`Shard::Move`) makes the version odd before and even afterwards.
// 3. A reader (`Lookup`) loads the version (acquire), probes, and loads it again behind an acquire
//    fence: an odd or changed version means that it may have missed a slot, and it looks again,
//    `kLooks` times, then under the lock.

#include "indexer/kv_events/sglang_block_hash.h"

#include <openssl/evp.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

// 256 shards; one call of `Sweep` visits up to `kShardsPerSweep` of them.
constexpr int kShardBits = 8;
constexpr size_t kShards = size_t{1} << kShardBits;
constexpr size_t kShardsPerSweep = 8;
constexpr size_t kSlotsMin = 16;
constexpr size_t kAhead = 16;  // names whose slots are loaded ahead
constexpr int kLooks = 64;     // at a shard that changes, before it is locked

// Names are digests, but a number that an engine sends need not be one: mixed, so that no engine's
// numbers pile up. The first bits choose the shard, others the slot.
uint64_t Mix(uint64_t value) {
  value *= 0x9e3779b97f4a7c15;
  return (value ^ value >> 32) * 0xd6e8feb86659fd93;
}
size_t ShardOf(uint64_t mixed) { return mixed >> (64 - kShardBits); }
size_t HomeOf(uint64_t mixed, size_t mask) { return mixed >> 16 & mask; }

}  // namespace

// ---- Hashing ----

uint64_t PageNameOf(const PageDigest& digest) {
  uint64_t name = 0;
  for (size_t i = 0; i < sizeof(name); ++i) name = name << 8 | digest[i];
  return name;
}

struct PageHasher::Impl {
  // Fetched once: looking an algorithm up costs more than a page.
  EVP_MD* const sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  EVP_MD_CTX* const context = EVP_MD_CTX_new();
};

PageHasher::PageHasher() : impl_(std::make_unique<Impl>()) {}

PageHasher::~PageHasher() {
  EVP_MD_CTX_free(impl_->context);
  EVP_MD_free(impl_->sha256);
}

std::optional<PageDigest> PageHasher::Hash(const PageDigest* prior, std::span<const TokenId> tokens,
                                           bool bigrams) {
  static_assert(std::endian::native == std::endian::little, "tokens are hashed as they lie");
  if (bigrams) {
    pairs_.clear();
    for (size_t i = 0; i + 1 < tokens.size(); ++i)
      pairs_.insert(pairs_.end(), {tokens[i], tokens[i + 1]});
    tokens = pairs_;
  }
  PageDigest digest;
  const bool done =
      impl_->sha256 != nullptr && impl_->context != nullptr &&
      EVP_DigestInit_ex2(impl_->context, impl_->sha256, nullptr) == 1 &&
      (prior == nullptr || EVP_DigestUpdate(impl_->context, prior->data(), prior->size()) == 1) &&
      EVP_DigestUpdate(impl_->context, tokens.data(), tokens.size_bytes()) == 1 &&
      EVP_DigestFinal_ex(impl_->context, digest.data(), nullptr) == 1;
  if (!done) return std::nullopt;
  return digest;
}

// ---- Names ----

// Writers' part of a shard, in cache lines of its own, so that writers of different shards do not
// contend.
struct alignas(64) SglangBlockHashes::Shard {
  Head* head = nullptr;  // immutable
  mutable Mutex mutex;
  uint64_t size ABSL_GUARDED_BY(mutex) = 0;
  uint64_t refused ABSL_GUARDED_BY(mutex) = 0;
  uint64_t conflicts ABSL_GUARDED_BY(mutex) = 0;
  uint64_t swept ABSL_GUARDED_BY(mutex) = 0;
  // Names whose block nothing held at the last visit, and that no event named since: the next visit
  // erases them.
  absl::flat_hash_set<uint64_t> suspects ABSL_GUARDED_BY(mutex);

  // Runs `change`, which moves slots, between an odd and an even version. The release fence keeps
  // its stores behind the odd version; the release store puts the even one behind them. Partner:
  // the acquire load and fence in `Lookup`.
  template <typename Change>
  void Move(Change change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const uint32_t before = head->version.load(std::memory_order_relaxed);
    head->version.store(before + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    change();
    head->version.store(before + 2, std::memory_order_release);
  }

  // Moves everything that is in use into a table of `count` slots, a power of two.
  void Resize(Slot* slots, size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Erase(Slot* slots, size_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

// Digests by block, with suspects as above. Readers of prefixes never look here: a plain map under
// its lock.
struct alignas(64) SglangBlockHashes::DigestShard {
  mutable Mutex mutex;
  absl::flat_hash_map<SequenceHash, PageDigest> digests ABSL_GUARDED_BY(mutex);
  absl::flat_hash_set<SequenceHash> suspects ABSL_GUARDED_BY(mutex);
  uint64_t refused ABSL_GUARDED_BY(mutex) = 0;
};

// A shard reserves room for its share of names at a load of three quarters, rounded up to a power
// of two.
SglangBlockHashes::SglangBlockHashes(uint64_t names_a_shard)
    : names_a_shard_(names_a_shard),
      slots_a_shard_(std::bit_ceil(std::max<size_t>(kSlotsMin, names_a_shard / 3 * 4 + 4))),
      heads_(std::make_unique<Head[]>(kShards)),
      shards_(std::make_unique<Shard[]>(kShards)),
      digests_(std::make_unique<DigestShard[]>(kShards)) {
  for (size_t i = 0; i < kShards; ++i) shards_[i].head = &heads_[i];
}

std::unique_ptr<SglangBlockHashes> SglangBlockHashes::Create(const PageNamesOptions& options) {
  if (options.names_max > std::numeric_limits<uint32_t>::max()) return nullptr;
  std::unique_ptr<SglangBlockHashes> names(
      new SglangBlockHashes(std::max<uint64_t>(1, (options.names_max + kShards - 1) / kShards)));
  return names->Reserve() ? std::move(names) : nullptr;
}

// Reserves addresses, not memory: pages come with their first use (MAP_NORESERVE), read as zeros,
// which are empty slots. The address never changes, so that readers need no protection against it.
bool SglangBlockHashes::Reserve() {
  void* const memory = mmap(nullptr, kShards * slots_a_shard_ * sizeof(Slot),
                            PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                            /*fd=*/-1, /*offset=*/0);
  if (memory == MAP_FAILED) return false;
  slots_ = static_cast<Slot*>(memory);
  return true;
}

SglangBlockHashes::~SglangBlockHashes() {
  if (slots_ != nullptr) munmap(slots_, kShards * slots_a_shard_ * sizeof(Slot));
}

SglangBlockHashes::Slot* SglangBlockHashes::SlotsOf(size_t shard) const {
  return slots_ + shard * slots_a_shard_;
}

void SglangBlockHashes::Shard::Resize(Slot* slots, size_t count) {
  std::vector<std::pair<uint64_t, uint64_t>> kept;
  kept.reserve(size);
  const size_t before = head->mask.load(std::memory_order_relaxed) + size_t{1};
  for (size_t i = 0; i < before; ++i) {
    const uint64_t block = slots[i].block.load(std::memory_order_relaxed);
    if (block != 0) kept.emplace_back(slots[i].name.load(std::memory_order_relaxed), block);
  }
  Move([&] {
    for (size_t i = 0; i < before; ++i) slots[i].block.store(0, std::memory_order_relaxed);
    head->mask.store(static_cast<uint32_t>(count - 1), std::memory_order_relaxed);
    for (const auto& [name, block] : kept) {
      size_t at = HomeOf(Mix(name), count - 1);
      while (slots[at].block.load(std::memory_order_relaxed) != 0) at = (at + 1) & (count - 1);
      slots[at].name.store(name, std::memory_order_relaxed);
      slots[at].block.store(block, std::memory_order_relaxed);
    }
    // After shrinking, memory of whole pages behind the table goes back to the system. A reader
    // that still probes there finds zeros.
    constexpr size_t kPage = 4096 / sizeof(Slot);
    const size_t from = (count + kPage - 1) / kPage * kPage;
    if (before > from) madvise(slots + from, (before - from) * sizeof(Slot), MADV_DONTNEED);
  });
}

// Erases a slot by moving up those behind it that would not be found over the hole. No tombstones:
// probes stay short however many names come and go.
void SglangBlockHashes::Shard::Erase(Slot* slots, size_t at) {
  const size_t slot_mask = head->mask.load(std::memory_order_relaxed);
  --size;
  Move([&] {
    size_t hole = at;
    for (size_t next = (hole + 1) & slot_mask;; next = (next + 1) & slot_mask) {
      const uint64_t block = slots[next].block.load(std::memory_order_relaxed);
      if (block == 0) break;
      const uint64_t name = slots[next].name.load(std::memory_order_relaxed);
      const size_t home = HomeOf(Mix(name), slot_mask);
      // Its home lies behind the hole: it stays.
      if (((next - home) & slot_mask) < ((next - hole) & slot_mask)) continue;
      slots[hole].name.store(name, std::memory_order_relaxed);
      slots[hole].block.store(block, std::memory_order_relaxed);
      hole = next;
    }
    slots[hole].block.store(0, std::memory_order_relaxed);
  });
}

// A name that stands for another block keeps it, unless the new block is plain: a router computes
// names of plain blocks alone. Such a slot changes in place with one store: a reader finds either
// block.
void SglangBlockHashes::Name(uint64_t name, SequenceHash block, bool plain) {
  if (Raw(block) == 0) return;
  const uint64_t mixed = Mix(name);
  Shard& shard = shards_[ShardOf(mixed)];
  Slot* const slots = SlotsOf(ShardOf(mixed));
  MutexLock lock(&shard.mutex);
  if (!shard.suspects.empty()) shard.suspects.erase(name);
  size_t mask = shard.head->mask.load(std::memory_order_relaxed);
  size_t at = HomeOf(mixed, mask);
  for (; mask != 0; at = (at + 1) & mask) {
    const uint64_t there = slots[at].block.load(std::memory_order_relaxed);
    if (there == 0) break;
    if (slots[at].name.load(std::memory_order_relaxed) != name) continue;
    if (there == Raw(block)) return;
    ++shard.conflicts;
    if (plain) slots[at].block.store(Raw(block), std::memory_order_release);
    return;
  }
  if (shard.size >= names_a_shard_) {
    ++shard.refused;
    return;
  }
  // Load stays below three quarters.
  if (mask == 0 || (shard.size + 1) * 4 > (mask + 1) * 3) {
    shard.Resize(slots, mask == 0 ? kSlotsMin : (mask + 1) * 2);
    mask = shard.head->mask.load(std::memory_order_relaxed);
    at = HomeOf(mixed, mask);
    while (slots[at].block.load(std::memory_order_relaxed) != 0) at = (at + 1) & mask;
  }
  ++shard.size;
  slots[at].name.store(name, std::memory_order_relaxed);
  slots[at].block.store(Raw(block), std::memory_order_release);
}

// The block of a name, 0 if it is not there. May be wrong while slots are moved: `Lookup` checks
// the version.
uint64_t SglangBlockHashes::Probe(const Head& head, const Slot* slots, uint64_t mixed,
                                  uint64_t name) const {
  const size_t mask = head.mask.load(std::memory_order_relaxed);
  size_t at = HomeOf(mixed, mask);
  // Bounded: while slots are being moved there need not be an empty one.
  for (size_t looked = 0; looked <= mask; ++looked, at = (at + 1) & mask) {
    const uint64_t block = slots[at].block.load(std::memory_order_acquire);
    if (block == 0) return 0;
    if (slots[at].name.load(std::memory_order_relaxed) == name) return block;
  }
  return 0;
}

// Step 3 above. Under the lock no writer moves slots.
uint64_t SglangBlockHashes::Lookup(uint64_t mixed, uint64_t name) const {
  const Head& head = heads_[ShardOf(mixed)];
  const Slot* const slots = SlotsOf(ShardOf(mixed));
  for (int look = 0; look < kLooks; ++look) {
    const uint32_t version = head.version.load(std::memory_order_acquire);
    if (version % 2 != 0) continue;
    const uint64_t block = Probe(head, slots, mixed, name);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (head.version.load(std::memory_order_relaxed) == version) return block;
  }
  MutexLock lock(&shards_[ShardOf(mixed)].mutex);
  return Probe(head, slots, mixed, name);
}

// Stops at the first name that is not known. Slots are fetched `kAhead` names before they are
// looked at, since each look-up would wait for memory.
void SglangBlockHashes::FindPrefix(std::span<const uint64_t> names,
                                   std::vector<SequenceHash>* blocks) const {
  blocks->clear();
  uint64_t mixed[kAhead];
  const auto fetch = [&](size_t i) {
    const uint64_t of = mixed[i % kAhead] = Mix(names[i]);
    const size_t number = ShardOf(of);
    const size_t mask = heads_[number].mask.load(std::memory_order_relaxed);
    __builtin_prefetch(SlotsOf(number) + HomeOf(of, mask));
  };
  for (size_t i = 0; i < std::min(kAhead, names.size()); ++i) fetch(i);
  for (size_t i = 0; i < names.size(); ++i) {
    const uint64_t block = Lookup(mixed[i % kAhead], names[i]);
    if (block == 0) return;
    blocks->push_back(SequenceHash{block});
    if (i + kAhead < names.size()) fetch(i + kAhead);
  }
}

std::optional<SequenceHash> SglangBlockHashes::Find(uint64_t name) const {
  const uint64_t block = Lookup(Mix(name), name);
  if (block == 0) return std::nullopt;
  return SequenceHash{block};
}

// ---- Digests ----

void SglangBlockHashes::PutDigest(SequenceHash block, const PageDigest& digest) {
  DigestShard& shard = digests_[ShardOf(Mix(Raw(block)))];
  MutexLock lock(&shard.mutex);
  if (!shard.suspects.empty()) shard.suspects.erase(block);
  if (shard.digests.size() >= names_a_shard_ && !shard.digests.contains(block)) {
    ++shard.refused;
    return;
  }
  shard.digests.try_emplace(block, digest);
}

// A digest that is asked for is in use: it is no suspect any more.
std::optional<PageDigest> SglangBlockHashes::FindDigest(SequenceHash block) {
  DigestShard& shard = digests_[ShardOf(Mix(Raw(block)))];
  MutexLock lock(&shard.mutex);
  const auto found = shard.digests.find(block);
  if (found == shard.digests.end()) return std::nullopt;
  if (!shard.suspects.empty()) shard.suspects.erase(block);
  return found->second;
}

// ---- Upkeep ----

void SglangBlockHashes::Sweep(size_t names, const std::function<bool(SequenceHash)>& may_hold) {
  size_t looked = 0;
  for (size_t i = 0; i < kShardsPerSweep && looked < names; ++i) {
    const size_t number = sweep_at_++ % kShards;
    {
      MutexLock lock(&shards_[number].mutex);
      looked += shards_[number].size;
    }
    {
      MutexLock lock(&digests_[number].mutex);
      looked += digests_[number].digests.size();
    }
    SweepNames(number, may_hold);
    SweepDigests(number, may_hold);
  }
}

// One visit of a shard:
//
// 1. Copy its names under the lock.
// 2. Ask without the lock which of their blocks something may hold, so that no writer waits.
// 3. Under the lock again: a name that was a suspect already, and was not named since, is erased if
//    it still stands for that block. The other names without a holder are the new suspects.
// 4. Shrink a table that is less than a fifth full.
//
// Two visits are needed since a block may be named before the index knows it.
void SglangBlockHashes::SweepNames(size_t number,
                                   const std::function<bool(SequenceHash)>& may_hold) {
  Shard& shard = shards_[number];
  Slot* const slots = SlotsOf(number);
  std::vector<std::pair<uint64_t, uint64_t>> unheld;
  {
    MutexLock lock(&shard.mutex);
    unheld.reserve(shard.size);
    const size_t mask = shard.head->mask.load(std::memory_order_relaxed);
    for (size_t at = 0; mask != 0 && at <= mask; ++at) {
      const uint64_t block = slots[at].block.load(std::memory_order_relaxed);
      if (block != 0) unheld.emplace_back(slots[at].name.load(std::memory_order_relaxed), block);
    }
  }
  std::erase_if(unheld, [&](const auto& each) { return may_hold(SequenceHash{each.second}); });
  MutexLock lock(&shard.mutex);
  if (unheld.empty() && shard.suspects.empty()) return;
  absl::flat_hash_set<uint64_t> suspects;
  for (const auto& [name, block] : unheld) {
    if (!shard.suspects.contains(name)) {
      suspects.insert(name);
      continue;
    }
    const size_t mask = shard.head->mask.load(std::memory_order_relaxed);
    size_t at = HomeOf(Mix(name), mask);
    while (slots[at].block.load(std::memory_order_relaxed) != 0 &&
           slots[at].name.load(std::memory_order_relaxed) != name)
      at = (at + 1) & mask;
    if (slots[at].block.load(std::memory_order_relaxed) != block) continue;
    shard.Erase(slots, at);
    ++shard.swept;
  }
  shard.suspects.swap(suspects);
  size_t count = shard.head->mask.load(std::memory_order_relaxed) + size_t{1};
  while (count > kSlotsMin && shard.size * 5 < count) count /= 2;
  if (count <= shard.head->mask.load(std::memory_order_relaxed)) shard.Resize(slots, count);
}

// As `SweepNames`.
void SglangBlockHashes::SweepDigests(size_t number,
                                     const std::function<bool(SequenceHash)>& may_hold) {
  DigestShard& shard = digests_[number];
  std::vector<SequenceHash> unheld;
  {
    MutexLock lock(&shard.mutex);
    unheld.reserve(shard.digests.size());
    for (const auto& [block, digest] : shard.digests) unheld.push_back(block);
  }
  std::erase_if(unheld, may_hold);
  MutexLock lock(&shard.mutex);
  if (unheld.empty() && shard.suspects.empty()) return;
  absl::flat_hash_set<SequenceHash> suspects;
  for (SequenceHash block : unheld) {
    if (shard.suspects.contains(block)) {
      shard.digests.erase(block);
    } else {
      suspects.insert(block);
    }
  }
  shard.suspects.swap(suspects);
  if (shard.digests.size() * 8 < shard.digests.capacity()) shard.digests.rehash(0);
}

PageNamesStats SglangBlockHashes::Stats() const {
  PageNamesStats stats;
  stats.bytes = kShards * (sizeof(Head) + sizeof(Shard) + sizeof(DigestShard));
  for (size_t number = 0; number < kShards; ++number) {
    {
      const Shard& shard = shards_[number];
      MutexLock lock(&shard.mutex);
      const size_t mask = shard.head->mask.load(std::memory_order_relaxed);
      stats.names += shard.size;
      stats.refused += shard.refused;
      stats.conflicts += shard.conflicts;
      stats.swept += shard.swept;
      stats.bytes += (mask == 0 ? 0 : mask + 1) * sizeof(Slot) + shard.suspects.capacity() * 9;
    }
    const DigestShard& shard = digests_[number];
    MutexLock lock(&shard.mutex);
    stats.digests += shard.digests.size();
    stats.refused += shard.refused;
    stats.bytes += shard.digests.capacity() * 41 + shard.suspects.capacity() * 9;
  }
  return stats;
}

// ---- One rank ----

// Made with the first block that needs it: a rank that is registered as SGLang never hashes.
PageHasher* PageNamer::hasher() {
  if (hasher_ == nullptr) hasher_ = std::make_unique<PageHasher>();
  return hasher_.get();
}

// The digest of a block's page, computed from that of its parent. Nothing: a block before it has
// none, or SHA-256 cannot be had. `last_` saves the look-up of the parent while a chain is placed
// in order.
std::optional<PageDigest> PageNamer::DigestOf(const Block& block) {
  std::optional<PageDigest> digest = names_->FindDigest(block.block);
  if (!digest.has_value()) {
    std::optional<PageDigest> prior;
    if (block.parent != kNoParent) {
      prior = block.parent == last_ ? last_digest_ : names_->FindDigest(block.parent);
      if (!prior.has_value()) return std::nullopt;
    }
    digest = hasher()->Hash(prior.has_value() ? &*prior : nullptr, block.tokens, block.bigrams);
    if (!digest.has_value()) return std::nullopt;
    names_->PutDigest(block.block, *digest);
  }
  last_ = block.block;
  last_digest_ = *digest;
  return digest;
}

// 1. An engine that is known to be SGLang: the block's own number is its page's name. At the first
//    plain block of a chain that is verified by computing the name, unless the registration says
//    so.
// 2. Else only plain blocks have a name that a router can compute: from the parent's digest and the
//    tokens.
// 3. An engine whose number equals the computed name is taken for SGLang from then on.
void PageNamer::Placed(const Block& block) {
  if (names_ == nullptr) return;
  const bool is_number = block.name.bytes.empty();
  if (is_sglang_ && is_number) {
    bool is_own = true;
    if (!registered_ && block.plain && block.parent == kNoParent) {
      const std::optional<PageDigest> digest = hasher()->Hash(nullptr, block.tokens, block.bigrams);
      is_own = !digest.has_value() || PageNameOf(*digest) == block.name.value;
    }
    if (is_own) return names_->Name(block.name.value, block.block, block.plain);
    is_sglang_ = false;
  }
  if (!block.plain) return;
  const std::optional<PageDigest> digest = DigestOf(block);
  if (!digest.has_value()) return;
  const uint64_t name = PageNameOf(*digest);
  names_->Name(name, block.block, /*plain=*/true);
  if (is_number) is_sglang_ = block.name.value == name;
}

void PageNamer::Restored(const EngineBlockHash& name, SequenceHash block, bool plain) {
  if (names_ != nullptr && is_sglang_ && name.bytes.empty()) names_->Name(name.value, block, plain);
}

}  // namespace kvatlas
