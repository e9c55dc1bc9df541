// One look of a query at an atlas: the runs that a prompt passes, and the holders that drop out at
// each. Steps R2–R6 of `atlas_index.h`; `Walk` passes the runs, `Pass` the holders of one run.
//
// *Invariant*: a candidate is in exactly one place: in `Candidates::words` while it has every block
// so far, or emitted once, at the depth where it dropped out. Only depths above 0 are emitted.
//
// *Threads*: one thread's; under an `EpochGuard`. The working sets are the thread's own and are
// kept.
// *Cost*: an entry of the table, and some cache lines, for every run; a word for 64 holders while
// they are still in.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_WALKER_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_WALKER_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "indexer/index/atlas/atlas_index.h"
#include "indexer/index/atlas/members.h"
#include "indexer/index/atlas/pause.h"
#include "indexer/index/atlas/run.h"
#include "indexer/index/atlas/tsan.h"

namespace kvatlas::atlas {

// Holders that have every block so far, for one mask of tiers: a bit each.
struct Candidates {
  TierMask tiers;
  std::vector<uint64_t> words;
  uint32_t first = 0;  // words before it and from `end` on are 0
  uint32_t end = 0;

  bool any() const { return first < end; }
  void Shrink() {
    while (first < end && words[first] == 0) ++first;
    while (first < end && words[end - 1] == 0) --end;
  }
};

// Working memory of a thread, kept between its queries. `kept`: candidates that pass the present
// run. `versions`: runs passed and their versions, for R3. `removals`: by holder, for R5.
struct WalkMemory {
  Candidates candidates[1 + kTiers];
  std::vector<uint64_t> kept;
  std::vector<std::pair<const Run*, uint32_t>> versions;
  std::vector<uint32_t> removals;
};

// `Emit` is called as emit->Word(mask, depth, i, bits): holders `bits` of word i drop out at
// `depth`.
template <typename Emit>
class AtlasIndex::Walker {
 public:
  Walker(const AtlasIndex& index, const OverlapQuery& query, std::span<const TierMask> masks,
         WalkMemory* memory, Emit* emit)
      : index_(index),
        query_(query),
        blocks_(query.blocks),
        masks_(masks),
        memory_(*memory),
        emit_(*emit) {}

  // R2 and R3. False when something was taken away meanwhile: what was emitted is worth nothing.
  bool WalkByVersion() {
    Start();
    memory_.versions.clear();
    if (!Walk(/*by_version=*/true)) return false;
    std::atomic_thread_fence(std::memory_order_acquire);
    for (const auto& [run, version] : memory_.versions) {
      if (run->version.load(std::memory_order_relaxed) != version) return false;
    }
    return true;
  }

  // R5 and R6: the walk that always ends. Each look begins anew: removal numbers first, then the
  // walk, then the numbers again. A look that `Walk` gives up is repeated; from `kLooksByHolder` on
  // the prompt is cut before the run that would not stay the same. Calls changed(i, bits) for
  // holders of word i of which nothing that was emitted counts.
  template <typename Changed>
  void WalkByHolder(Changed changed) {
    uint32_t holders;
    for (int look = 1;; ++look) {
      emit_.Reset();
      holders = index_.holders_end();
      memory_.removals.resize(holders);
      for (uint32_t i = 0; i < holders; ++i)
        memory_.removals[i] = index_.removals_[i].load(std::memory_order_acquire);
      Start();
      if (Walk(/*by_version=*/false)) break;
      if (look >= kLooksByHolder) blocks_ = blocks_.first(unsteady_at_);
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    for (uint32_t i = 0; i < holders; ++i) {
      const uint32_t before = memory_.removals[i];
      if (before % 2 != 0 || index_.removals_[i].load(std::memory_order_relaxed) != before)
        changed(i / 64, uint64_t{1} << (i % 64));
    }
    // Numbers that were given out since then are not in the answer.
    for (uint32_t i = holders; i % 64 != 0; ++i) changed(i / 64, uint64_t{1} << (i % 64));
  }

 private:
  // R6. Writers that are as fast as they can be cost a walk a few of these.
  static constexpr int kLooksByHolder = 128;
  static constexpr int kMovesByWalk = 128;

  // Candidates at the beginning: live holders among those asked for.
  void Start() {
    const uint32_t words = (index_.holders_end() + 63) / 64;
    for (size_t i = 0; i < masks_.size(); ++i) {
      Candidates& in = memory_.candidates[i];
      in.tiers = masks_[i];
      in.words.resize(words);
      in.first = 0;
      in.end = words;
      for (uint32_t word = 0; word < words; ++word) {
        uint64_t bits = index_.alive_[word].load(std::memory_order_acquire);
        if (!query_.only.empty()) bits &= word < query_.only.size() ? query_.only[word] : 0;
        in.words[word] = bits;
      }
      in.Shrink();
    }
    memory_.kept.resize(words);
  }

  bool AnyLeft() const {
    for (size_t i = 0; i < masks_.size(); ++i) {
      if (memory_.candidates[i].any()) return true;
    }
    return false;
  }

  // 1. The block at `depth` is looked up; its run, version and length are read (R2).
  // 2. A word that is not the block's, or is beyond the run's length: the table is asked again, and
  //    the block has no holder only if that says the same (`IsStill`).
  // 3. The run is compared with the prompt as far as both go (`Match`), while the next block's
  //    bucket is on its way.
  // 4. Holders are asked after the hashes (`Pass`), and by holder the run must be as it was (R5).
  // 5. On from behind the matched blocks. At the end the candidates that are left have all of it.
  // False: a version was odd (by version), a run had changed while it was looked at (by holder), or
  // a block had moved `kMovesByWalk` times; `unsteady_at_` says where.
  bool Walk(bool by_version) {
    const std::span<const SequenceHash> blocks = blocks_;
    uint32_t depth = 0;
    int moved = 0;
    BlockTable::Lookup lookup;  // of block `fetched`, if it is the next one
    size_t fetched = 0;
    if (!blocks.empty()) index_.table_->StartLookup(blocks[0], &lookup);
    while (depth < blocks.size() && AnyLeft()) {
      if (depth != fetched) index_.table_->StartLookup(blocks[depth], &lookup);
      const Ref word = index_.table_->Find(blocks[depth], &lookup);
      fetched = blocks.size();
      if (word == 0) break;
      Pause();
      const Ref ref = index_.heap_->RunOf(word);
      Run* const run = index_.RunAt(ref);
      const uint32_t version = run->version.load(std::memory_order_acquire);
      if (by_version) {
        if (version % 2 != 0) return false;
        memory_.versions.emplace_back(run, version);
      }
      FetchHolders(*run);
      Pause();
      const uint32_t len = run->len.load(std::memory_order_acquire);
      Pause();
      const uint32_t from = index_.OffsetOf(ref, word);
      if (from >= len) {  // not part of the run yet, or no more
        if (IsStill(blocks[depth], word)) break;
        if (++moved == kMovesByWalk) return Unsteady(depth);
        continue;
      }
      // Most likely the run matches as a whole: its successor is fetched while it is compared.
      if (blocks.size() - depth > len - from) {
        fetched = depth + len - from;
        index_.table_->Prefetch(blocks[fetched], &lookup);
      }
      const uint32_t matched = Match(*run, from, len, blocks.subspan(depth));
      if (matched == 0) {
        if (IsStill(blocks[depth], word)) break;
        if (++moved == kMovesByWalk) return Unsteady(depth);
        continue;
      }
      Pause();
      // Partner: the release stores of hashes that come back, behind those of the holders.
      std::atomic_thread_fence(std::memory_order_acquire);
      for (size_t i = 0; i < masks_.size(); ++i) {
        if (memory_.candidates[i].any())
          Pass(i, run, from, matched, depth, /*half_way=*/version % 2 != 0);
      }
      Pause();
      if (!by_version && !StillSo(*run, version, from, matched, blocks.subspan(depth)))
        return Unsteady(depth);
      depth += matched;
    }
    for (size_t i = 0; i < masks_.size(); ++i) {
      const Candidates& in = memory_.candidates[i];
      for (uint32_t word = in.first; word < in.end && depth > 0; ++word) {
        if (in.words[word] != 0) emit_.Word(i, depth, word, in.words[word]);
      }
    }
    return true;
  }

  bool Unsteady(uint32_t depth) {
    unsteady_at_ = depth;
    return false;
  }

  // Fetches the run's section, which is needed once the run was compared.
  void FetchHolders(const Run& run) const {
    const Ref section = SectionOf(run.holders[0].load(std::memory_order_relaxed));
    __builtin_prefetch(index_.heap_->template At<char>(section));
  }

  // R2: the table still says the same place, or none.
  bool IsStill(SequenceHash block, Ref word) const {
    std::atomic_thread_fence(std::memory_order_acquire);
    const Ref now = index_.table_->Find(block);
    return now == word || now == 0;
  }

  // R5: what was found in the run was so at one moment.
  bool StillSo(const Run& run, uint32_t version, uint32_t from, uint32_t matched,
               std::span<const SequenceHash> blocks) const {
    std::atomic_thread_fence(std::memory_order_acquire);
    if (version % 2 != 0) {
      const uint32_t len = run.len.load(std::memory_order_acquire);
      if (from + matched > len || Match(run, from, len, blocks) < matched) return false;
      std::atomic_thread_fence(std::memory_order_acquire);
    }
    return run.version.load(std::memory_order_relaxed) == version;
  }

  // How many blocks of the run from `from` on the prompt goes on with. Every word is compared:
  // equal names mean equal prefixes, but the sender that stored the run first may have lied about
  // what lies between.
  uint32_t Match(const Run& run, uint32_t from, uint32_t len,
                 std::span<const SequenceHash> blocks) const {
    constexpr uint32_t kAtOnce = 32;
    const uint32_t most = static_cast<uint32_t>(std::min<size_t>(len - from, blocks.size()));
    const std::atomic<uint64_t>* const words = run.words() + from;
    for (uint32_t i = 0; i < most; i += kAtOnce) {
      const uint32_t count = std::min(kAtOnce, most - i);
      if (!EqualWords(words + i, &blocks[i], count)) {
        while (i < most && words[i].load(std::memory_order_relaxed) == Raw(blocks[i])) ++i;
        return i;
      }
    }
    return most;
  }

  static bool EqualWords(const std::atomic<uint64_t>* words, const SequenceHash* blocks,
                         uint32_t count) {
#if KVATLAS_THREAD_SANITIZER
    for (uint32_t i = 0; i < count; ++i) {
      if (words[i].load(std::memory_order_relaxed) != Raw(blocks[i])) return false;
    }
    return true;
#else
    // Words change one by one and are never torn; which of them is seen while it changes does not
    // matter (R3, R5).
    return std::memcmp(static_cast<const void*>(words), blocks, count * sizeof(*blocks)) == 0;
#endif
  }

  // The places where a run names its holders: sections of the tiers asked for, or the run itself.
  struct Sources {
    Section* sections[kTiers];
    uint32_t count = 0;
    Holders few[kInlineHolders] = {kFree, kFree, kFree};

    std::span<Section* const> all() const { return {sections, count}; }
  };

  // `holders[0]` decides which of both, so it is read once: a run that gets its sections meanwhile
  // is read in one form or the other, never in a mixture that could miss a holder.
  Sources SourcesOf(const Run& run, TierMask tiers) const {
    Sources sources;
    Holders link = run.holders[0].load(std::memory_order_acquire);
    if ((link & kSectionBit) == 0) {
      for (uint32_t slot = 0; slot < kInlineHolders; ++slot) {
        const Holders one = slot == 0 ? link : run.holders[slot].load(std::memory_order_acquire);
        if (one != kFree && tiers.Has(TierOf(one))) sources.few[slot] = HolderOf(one);
      }
      return sources;
    }
    for (; (link & kSectionBit) != 0;) {
      Section* const section = index_.heap_->template At<Section>(link & ~kSectionBit);
      if (tiers.Has(section->tier)) sources.sections[sources.count++] = section;
      link = section->next.load(std::memory_order_acquire);
    }
    return sources;
  }

  // The candidates of mask i pass blocks [from, from + matched) of a run, at `depth` of the prompt:
  // holders of all first, then partial ones, each at its own depth. `half_way` (an odd version): a
  // holder may be on its way from part to all, so all are asked once more afterwards: in this order
  // it is found in one of the places (R5).
  void Pass(size_t i, Run* run, uint32_t from, uint32_t matched, uint32_t depth, bool half_way) {
    Candidates& in = memory_.candidates[i];
    const Sources sources = SourcesOf(*run, in.tiers);
    Section* const only = sources.count == 1 ? sources.sections[0] : nullptr;
    if (only != nullptr && !half_way && only->words != 0 &&
        only->partials.load(std::memory_order_acquire) == 0) {
      PassBits(i, only, depth);
    } else {
      for (uint32_t word = in.first; word < in.end; ++word) memory_.kept[word] = 0;
      Pause();
      KeepAll(in, sources);
      Pause();
      PassParts(i, sources.all(), from, matched, depth);
      Pause();
      if (half_way) KeepAll(in, SourcesOf(*run, in.tiers));
      for (uint32_t word = in.first; word < in.end; ++word) {
        const uint64_t gone = in.words[word] & ~memory_.kept[word];
        if (gone != 0 && depth > 0) emit_.Word(i, depth, word, gone);
        in.words[word] &= memory_.kept[word];
      }
    }
    in.Shrink();
  }

  // One tier, no partial holder, a bit a holder.
  void PassBits(size_t i, Section* section, uint32_t depth) {
    Candidates& in = memory_.candidates[i];
    const std::atomic<uint64_t>* bits = section->bits();
    const uint32_t words = section->words;
    for (uint32_t word = in.first; word < in.end; ++word) {
      const uint64_t all = word < words ? bits[word].load(std::memory_order_relaxed) : 0;
      const uint64_t gone = in.words[word] & ~all;
      if (gone != 0 && depth > 0) emit_.Word(i, depth, word, gone);
      in.words[word] &= all;
    }
  }

  // Partial holders: those with all matched blocks are kept, the others drop out at their first
  // missing block. A holder's parts in several tiers count together, so a block may be in either.
  // Candidates that are kept already are skipped.
  void PassParts(size_t i, std::span<Section* const> sections, uint32_t from, uint32_t matched,
                 uint32_t depth) {
    Candidates& in = memory_.candidates[i];
    std::vector<uint64_t>& kept = memory_.kept;
    for (size_t s = 0; s < sections.size(); ++s) {
      Partials* const part = PartialsOf(sections[s]);
      for (uint32_t entry = 0; part != nullptr && entry < part->capacity; ++entry) {
        const uint32_t holder = part->names()[entry].load(std::memory_order_acquire);
        const uint32_t word = holder / 64;
        if (holder >= kGone || word < in.first || word >= in.end) continue;
        const uint64_t bit = uint64_t{1} << (holder % 64);
        if ((in.words[word] & ~kept[word] & bit) == 0) continue;
        Offsets offsets = LoadPart(part, entry);
        for (size_t other = 0; other < sections.size(); ++other) {
          if (other != s) offsets = offsets | PartOf(sections[other], holder);
        }
        const uint32_t reach = offsets.FirstMissing(from) - from;
        if (reach >= matched) {
          kept[word] |= bit;
        } else {
          in.words[word] &= ~bit;
          if (depth + reach > 0) emit_.Word(i, depth + reach, word, bit);
        }
      }
    }
  }

  // Keeps holders that have all of the run.
  void KeepAll(const Candidates& in, const Sources& sources) {
    for (const Holders holder : sources.few) Keep(in, holder);
    for (Section* section : sources.all()) KeepAllOf(in, section);
  }

  void Keep(const Candidates& in, uint32_t holder) {
    if (holder / 64 >= in.first && holder / 64 < in.end)
      memory_.kept[holder / 64] |= uint64_t{1} << (holder % 64);
  }

  void KeepAllOf(const Candidates& in, Section* section) {
    std::vector<uint64_t>& kept = memory_.kept;
    const uint32_t end = std::min<uint32_t>(in.end, section->words);
    for (uint32_t word = in.first; word < end; ++word)
      kept[word] |= section->bits()[word].load(std::memory_order_relaxed);
    for (uint32_t entry = 0; entry < section->listed_max; ++entry) {
      Keep(in, section->listed()[entry].load(std::memory_order_relaxed));
    }
  }

  Partials* PartialsOf(Section* section) const {
    const Ref ref = section->partials.load(std::memory_order_acquire);
    return ref == 0 ? nullptr : index_.heap_->template At<Partials>(ref);
  }

  static Offsets LoadPart(Partials* part, uint32_t entry) {
    Offsets offsets;
    for (uint32_t i = 0; i < part->words; ++i)
      offsets.words[i] = part->offsets(entry)[i].load(std::memory_order_relaxed);
    return offsets;
  }

  Offsets PartOf(Section* section, uint32_t holder) const {
    Partials* const part = PartialsOf(section);
    const int entry = part == nullptr ? -1 : Members::FindPart(part, holder);
    return entry < 0 ? Offsets{} : LoadPart(part, static_cast<uint32_t>(entry));
  }

  const AtlasIndex& index_;
  const OverlapQuery& query_;
  std::span<const SequenceHash> blocks_;  // of the query, those that are still looked for
  uint32_t unsteady_at_ = 0;              // index into them
  const std::span<const TierMask> masks_;
  WalkMemory& memory_;
  Emit& emit_;
};

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_WALKER_H_
