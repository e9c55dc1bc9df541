// From SGLang's name of a page to the block. SGLang's router asks by page: the first 8 bytes of
// SHA-256(digest of the page before it || token ids), one name for the whole prefix up to there. An
// index knows blocks by sequence hash.
//
//   SGLang's events: the name itself ──────────────────────────╮
//   others' (vLLM's …): tokens ─▶ PageHasher ─▶ digest, its head ┴▶ SglangBlockHashes ◀── a router's names
//
// *Place*: one of one domain, written by the `PageNamer` of every rank, read by the service that is
// asked.
// *Truth*: where one name comes for two blocks the first stays, unless the second is a plain one: a
// block without adapter, salt and objects, whose name every router computes from tokens alone. A
// name that it does not have is no overlap, never a wrong one; a name of a block that is gone leads
// to a block that nothing holds.
// *Threads*: any. `FindPrefix` takes no lock, unless a shard grows or shrinks at that moment;
// writers lock one of 256 shards.
// *Cost*: a name is one probe of 16 bytes, fetched 16 names ahead. 21–43 bytes a name; where names
// are computed, the digest that the next page's name is made from besides: 47–94 bytes a block. A
// computed name costs one SHA-256 of 32 + 4 bytes a token.
// *Bounds*: `PageNamesOptions::names_max`, in names and, apart from that, in digests; each shard
// has its share. Beyond it new ones are refused and counted. `Sweep` drops names and digests of
// blocks that the index no longer has: when two visits of their shard in a row found nothing that
// holds them, and no event named them in between.
//
// How a reader meets a writer: a slot is empty while its block is 0. A new name is written before
// its block (release), so that a reader that sees the block (acquire) sees the name. A writer that
// moves slots (erasing, growing, shrinking) makes the shard's version odd before and even after; a
// reader that sees an odd one, or another one afterwards, looks again, and under the lock when that
// goes on. Memory of slots is reserved once for the bound and never moves.

#ifndef KVATLAS_INDEXER_KV_EVENTS_SGLANG_BLOCK_HASH_H_
#define KVATLAS_INDEXER_KV_EVENTS_SGLANG_BLOCK_HASH_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/kv_events/engine_event.h"

namespace kvatlas {

using PageDigest = std::array<uint8_t, 32>;

// Its first 8 bytes, big-endian: the bits of the signed number that SGLang says.
uint64_t PageNameOf(const PageDigest& digest);

// *Threads*: one at a time. *Cost*: no allocation after the first.
class PageHasher {
 public:
  PageHasher();
  ~PageHasher();
  PageHasher(const PageHasher&) = delete;
  PageHasher& operator=(const PageHasher&) = delete;

  // The digest of a page behind `prior` (null: the root's). `bigrams`: the tokens are one more than
  // the page has bigrams, and both tokens of each are hashed. Nothing: the library cannot (SHA-256
  // is switched off).
  std::optional<PageDigest> Hash(const PageDigest* prior, std::span<const TokenId> tokens,
                                 bool bigrams);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
  std::vector<TokenId> pairs_;
};

struct PageNamesOptions {
  uint64_t names_max = 1 << 24;  // rounded up to a multiple of 256
};

struct PageNamesStats {
  uint64_t names = 0;
  uint64_t digests = 0;
  uint64_t bytes = 0;      // memory in use
  uint64_t refused = 0;    // at the bound
  uint64_t conflicts = 0;  // names that came for another block
  uint64_t swept = 0;      // names
};

class SglangBlockHashes {
 public:
  // Null: the address space cannot be had, 21–43 bytes for every name of the bound.
  static std::unique_ptr<SglangBlockHashes> Create(const PageNamesOptions& options = {});
  ~SglangBlockHashes();

  SglangBlockHashes(const SglangBlockHashes&) = delete;
  SglangBlockHashes& operator=(const SglangBlockHashes&) = delete;

  // ---- Writers ----

  // The block is called that. REQUIRES: it is not block 0.
  void Name(uint64_t name, SequenceHash block, bool plain);
  void PutDigest(SequenceHash block, const PageDigest& digest);
  // Counts as being named.
  std::optional<PageDigest> FindDigest(SequenceHash block);

  // Some shards' worth of upkeep, about `names` names and digests and at most 8 shards of each: 32
  // calls are one visit of everything. `may_hold`: false only if nothing holds that block; called
  // without locks. One call at a time.
  void Sweep(size_t names, const std::function<bool(SequenceHash)>& may_hold);

  // ---- Readers ----

  // The blocks of the leading names that are known; `blocks` is overwritten, its memory used again.
  void FindPrefix(std::span<const uint64_t> names, std::vector<SequenceHash>* blocks) const;
  std::optional<SequenceHash> Find(uint64_t name) const;

  PageNamesStats Stats() const;

 private:
  // A reader looks here first: 2 KiB for all shards together. Changes when slots move, not with
  // every name.
  struct Head {
    std::atomic<uint32_t> version{0};  // odd: slots are being moved
    std::atomic<uint32_t> mask{0};     // slots in use, less one; 0: none yet
  };
  struct Shard;
  struct DigestShard;
  struct Slot {
    std::atomic<uint64_t> name;
    std::atomic<uint64_t> block;  // 0: empty
  };

  explicit SglangBlockHashes(uint64_t names_a_shard);
  bool Reserve();
  Slot* SlotsOf(size_t shard) const;
  uint64_t Lookup(uint64_t mixed, uint64_t name) const;
  uint64_t Probe(const Head& head, const Slot* slots, uint64_t mixed, uint64_t name) const;
  void SweepNames(size_t number, const std::function<bool(SequenceHash)>& may_hold);
  void SweepDigests(size_t number, const std::function<bool(SequenceHash)>& may_hold);

  const uint64_t names_a_shard_;
  const size_t slots_a_shard_;  // reserved
  Slot* slots_ = nullptr;
  const std::unique_ptr<Head[]> heads_;
  const std::unique_ptr<Shard[]> shards_;
  const std::unique_ptr<DigestShard[]> digests_;
  size_t sweep_at_ = 0;
};

// Enters the names of one rank's blocks. Where the engine is known to be SGLang, each block's own
// name is its page's. For any other engine the name is computed where that can be done: the block
// and all before it are plain, and their tokens were told since this process started. An engine
// whose own names turn out to be the computed ones is taken for SGLang from then on, until a
// chain's first block says otherwise.
//
// *Threads*: one at a time. Without a table it does nothing.
class PageNamer {
 public:
  PageNamer(SglangBlockHashes* names, bool is_sglang)
      : names_(names), registered_(is_sglang), is_sglang_(is_sglang) {}

  bool on() const { return names_ != nullptr; }

  struct Block {
    EngineBlockHash name;
    SequenceHash block{0};
    SequenceHash parent = kNoParent;  // `kNoParent` at the root alone
    std::span<const TokenId> tokens;  // of a window of bigrams one more
    bool bigrams = false;
    bool plain = false;  // no adapter, no salt, no objects
  };
  void Placed(const Block& block);
  // A block that comes back without its tokens.
  void Restored(const EngineBlockHash& name, SequenceHash block, bool plain);
  // The engine is another one now.
  void Restarted() { is_sglang_ = registered_; }

 private:
  PageHasher* hasher();
  std::optional<PageDigest> DigestOf(const Block& block);

  SglangBlockHashes* const names_;
  const bool registered_;
  bool is_sglang_;
  std::unique_ptr<PageHasher> hasher_;
  SequenceHash last_{0};  // block that has `last_digest_`
  PageDigest last_digest_ = {};
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_SGLANG_BLOCK_HASH_H_
