// Changes of runs' shapes. They are split where many holders end, rewritten when they shrink or
// outgrow their words, and merged when what divided them is gone. All of it replaces runs by new
// ones (W5): `Prepare` builds them, `Redirect` turns the table, `DropRun` retires the old one.

#include <algorithm>
#include <new>

#include "indexer/base/assert.h"
#include "indexer/index/atlas/atlas_index.h"
#include "indexer/index/atlas/pause.h"

namespace kvatlas::atlas {
namespace {

// From this many partial holders on a split is looked for.
constexpr uint32_t kPartialsMin = 4;
// From this many on it is made somewhere even if no two of them end at the same block.
constexpr uint32_t kPartialsMany = 16;
// A run with more holders is not moved for a few blocks more: the list of every holder would grow.
constexpr uint32_t kHoldersToMove = 16;
// A smaller run is never too large for what is left in it.
constexpr uint32_t kCapacityToFit = 8;
// So many dead blocks in a row are worth two runs instead of one.
constexpr uint32_t kGapToCut = 8;

}  // namespace

// ---- A run's memory ----

// As many blocks as fit into the size class that `blocks` need, with the bits of dead ones, whose
// number grows with the capacity.
uint32_t AtlasIndex::CapacityFor(uint32_t blocks) const {
  const size_t bytes = Heap::RoundUpRun(RunBytes(blocks));
  uint32_t capacity = static_cast<uint32_t>(std::min<size_t>(
      (bytes - sizeof(Run)) / (options_.keep_local_hashes ? 16 : 8), kRunBlocksMax));
  while (RunBytes(capacity) > bytes) --capacity;
  return capacity;
}

// A run with room for `blocks` that no reader can find yet.
Ref AtlasIndex::NewRun(uint32_t blocks, Position start, uint64_t parent) {
  const uint32_t capacity = CapacityFor(blocks);
  const Ref ref = heap_->AllocateRun(RunBytes(capacity));
  if (ref == 0) return 0;
  Run* const run = RunAt(ref);
  run->version.store((run->version.load(std::memory_order_relaxed) + 1) & ~1u,
                     std::memory_order_relaxed);
  run->len.store(0, std::memory_order_relaxed);
  run->parent = parent;
  run->start = start;
  run->capacity = static_cast<uint16_t>(capacity);
  run->died = 0;
  run->SetDead({});
  for (std::atomic<Holders>& slot : run->holders) slot.store(kFree, std::memory_order_relaxed);
  run->alive = true;
  Count(&runs_, 1);
  return ref;
}

// Not alive first, so that lists that still name the run find nothing (`LocateListed`).
void AtlasIndex::DropRun(Ref ref, bool seen) {
  Run* const run = RunAt(ref);
  KVATLAS_ASSERT(run->alive);
  run->alive = false;
  Members::Discard(heap_.get(), run, seen);
  seen ? heap_->RetireRun(ref) : heap_->FreeRun(ref);
  Count(&runs_, -uint64_t{1});
}

// ---- Replacing ----

// The words of `count` blocks, dead ones included, and their local hashes.
void AtlasIndex::CopyBlocks(Run* from, uint32_t first, uint32_t count, Run* to,
                            uint32_t offset) const {
  for (uint32_t i = 0; i < count; ++i) {
    to->words()[offset + i].store(HashAt(*from, first + i), std::memory_order_relaxed);
    if (options_.keep_local_hashes)
      to->locals()[offset + i].store(from->locals()[first + i].load(std::memory_order_relaxed),
                                     std::memory_order_relaxed);
  }
}

// A new run of the piece's blocks and holders; no reader can find it.
bool AtlasIndex::Build(Run* old, Piece* piece) {
  const uint32_t len = piece->to - piece->from;
  const Offsets dead = old->Dead();
  uint64_t parent = old->parent;
  if (piece->from != 0) {
    parent = HashAt(*old, piece->from - 1);
    if (dead.Has(piece->from - 1)) parent = ~parent;
  }
  piece->ref = NewRun(std::max(len, piece->room), old->start + piece->from, parent);
  if (piece->ref == 0) return false;
  Run* const run = RunAt(piece->ref);
  CopyBlocks(old, piece->from, len, run, 0);
  run->len.store(static_cast<uint16_t>(len), std::memory_order_relaxed);
  run->SetDead(dead.Slice(piece->from, piece->to));
  const Offsets live = run->Live();
  const TierMask tiers = Members::TiersOf(heap_.get(), *old);
  bool built = true;
  for (int i = 0; i < kTiers; ++i) {
    const Tier tier = static_cast<Tier>(i);
    if (!tiers.Has(tier)) continue;
    Members members = MembersOf(run, tier);
    MembersOf(old, tier).ForEach(old->Live(), [&](uint32_t holder, const Offsets& offsets) {
      const Offsets mine = offsets.Slice(piece->from, piece->to);
      if (!built || !mine.Any()) return;
      built = mine == live ? members.AddAll(holder) : members.SetPart(holder, mine);
    });
  }
  return built;
}

// The run is in the lists of all its holders.
bool AtlasIndex::List(Ref ref) {
  Run* const run = RunAt(ref);
  const TierMask tiers = Members::TiersOf(heap_.get(), *run);
  bool listed = true;
  for (int i = 0; i < kTiers; ++i) {
    if (!tiers.Has(static_cast<Tier>(i))) continue;
    MembersOf(run, static_cast<Tier>(i)).ForEach(run->Live(), [&](uint32_t holder, const Offsets&) {
      HolderState* const state = holders_[holder].load(std::memory_order_acquire);
      listed = listed && state->runs.Add(ref);
    });
  }
  return listed;
}

// The table leads to the piece's words.
void AtlasIndex::Redirect(Ref old, const Piece& piece) {
  constexpr uint32_t kAhead = 16;
  Run* const run = RunAt(piece.ref);
  const uint32_t len = piece.to - piece.from;
  const Offsets live = run->Live();
  for (uint32_t i = 0; i < len + kAhead; ++i) {
    if (i < len && live.Has(i)) table_->Prefetch(SequenceHash{HashAt(*run, i)});
    if (i >= kAhead && live.Has(i - kAhead))
      table_->Move(SequenceHash{HashAt(*run, i - kAhead)}, WordOf(old, piece.from + i - kAhead),
                   WordOf(piece.ref, i - kAhead));
  }
}

// The pieces' runs are there and listed, or nothing changed.
bool AtlasIndex::Prepare(const Place& at, std::span<Piece> pieces) {
  bool ready = true;
  for (Piece& piece : pieces) ready = ready && Build(at.run, &piece);
  for (Piece& piece : pieces) ready = ready && List(piece.ref);
  if (ready) return true;
  for (const Piece& piece : pieces) {
    if (piece.ref != 0) DropRun(piece.ref, /*seen=*/false);
  }
  return false;
}

// W5. On success the first piece's run is at `*at`; else nothing changed. REQUIRES: blocks in no
// piece are dead.
bool AtlasIndex::Replace(Place* at, std::span<Piece> pieces) {
  if (!Prepare(*at, pieces)) return false;
  for (const Piece& piece : pieces) Redirect(at->ref, piece);
  Pause();
  BeginShrink(at->run);
  DropRun(at->ref, /*seen=*/true);
  at->ref = pieces[0].ref;
  at->run = RunAt(at->ref);
  Count(&rewrites_, 1);
  return true;
}

// ---- Growing and shrinking ----

bool AtlasIndex::Regrow(Place* at, uint32_t capacity) {
  if (HoldersIn(at->run, kHoldersToMove + 1) > kHoldersToMove) return false;
  if (CapacityFor(capacity) <= at->run->capacity) return false;
  Piece piece{.from = 0, .to = at->run->len.load(std::memory_order_relaxed), .room = capacity};
  return Replace(at, std::span(&piece, 1));
}

// A run that uses a quarter of its room goes where it fits; one that is mostly dead falls apart, if
// there is less of it then: what lies between may come back, and is a run of its own then. Looked
// at when something has died now and then: the cost of looking is shared.
void AtlasIndex::MaybeFit(Place* at) {
  Run* const run = at->run;
  if (run == nullptr || run->capacity < kCapacityToFit) return;
  const uint32_t len = run->len.load(std::memory_order_relaxed);
  const bool look = run->died >= kDeadToLook;
  if (look) run->died = 0;
  const bool shrunk = len * 4 <= run->capacity;
  if (!shrunk && !look) return;
  const Offsets dead = run->Dead();
  if (!shrunk && dead.Count() * 2 < len) return;
  Piece pieces[kRunBlocksMax / kGapToCut + 1];
  size_t next = 0;
  size_t bytes = 0;
  for (uint32_t from = dead.FirstMissing(0); from < len;) {
    uint32_t to = from;
    uint32_t gap = from;
    // Up to a gap that is worth a cut, or the end.
    do {
      to = (dead.Next(gap));
      gap = std::min(dead.FirstMissing(std::min(to, len)), len);
    } while (to < len && gap < len && gap - to < kGapToCut);
    to = std::min(to, len);
    pieces[next++] = {.from = from, .to = to};
    bytes += Heap::RoundUpRun(RunBytes(to - from)) + sizeof(Ref);
    from = gap;
  }
  if (bytes * 4 > Heap::RoundUpRun(RunBytes(run->capacity)) * 3) return;
  if (HoldersIn(at->run, kHoldersToMove + 1) > kHoldersToMove) return;
  if (Replace(at, std::span(pieces, next))) Count(&cuts_, 1);
}

// ---- Splitting ----

// Where to cut so that most partial holders have all of the first piece or nothing of the second;
// 0: nowhere.
uint32_t AtlasIndex::ChooseCut(Run* run, Tier tier) const {
  const Members members = MembersOf(run, tier);
  const uint32_t len = run->len.load(std::memory_order_relaxed);
  uint16_t ends[kRunBlocksMax + 1] = {};
  uint32_t clean = 0;
  members.ForEachPart([&](uint32_t, const Offsets& offsets) {
    const uint32_t end = offsets.FirstMissing(0);
    if (end == 0 || end >= len || offsets.End() != end) return;
    if (ends[end] < UINT16_MAX) ++ends[end];
    ++clean;
  });
  if (clean < kPartialsMin - 1) return 0;
  uint32_t cut = 0;
  uint32_t below = 0;
  uint32_t median = 0;
  for (uint32_t i = 1; i < len; ++i) {
    if (ends[i] > ends[cut]) cut = i;
    if (below * 2 < clean) median = i;
    below += ends[i];
  }
  if (ends[cut] < kPartialsMin - 1) {
    if (clean < kPartialsMany) return 0;
    cut = median;
  }
  // Every holder of the second piece gets it into its list: that must not cost more than is won.
  uint32_t behind = members.CountAll(2 * clean + 1);
  for (uint32_t i = cut + 1; i < len; ++i) behind += ends[i];
  return behind <= 2 * clean ? cut : 0;
}

void AtlasIndex::MaybeSplit(Place* at, Tier tier) {
  const uint32_t partials = MembersOf(at->run, tier).CountPartials();
  // Looked at when there are 4, 6, 8, 12, 16, 24 …: the cost of looking is shared by the holders
  // that came since.
  const bool due =
      partials >= kPartialsMin && ((partials & (partials - 1)) == 0 ||
                                   (partials % 3 == 0 && (partials / 3 & (partials / 3 - 1)) == 0));
  if (!due) return;
  const uint32_t cut = ChooseCut(at->run, tier);
  if (cut == 0) return;
  if (!CutBehind(at, cut)) return;
  Count(&splits_, 1);
  // The caller's block may be in the other piece: it is looked for by name.
  if (at->offset > cut) *at = {};
}

// Blocks from `cut` on become a run of their own; those before stay where they are, unless there is
// much less room to be had. REQUIRES: the block before the cut is not dead.
bool AtlasIndex::CutBehind(Place* at, uint32_t cut) {
  Run* const run = at->run;
  Piece pieces[2] = {{.from = 0, .to = cut},
                     {.from = cut, .to = run->len.load(std::memory_order_relaxed)}};
  if (cut * 2 <= run->capacity) return Replace(at, pieces);
  if (!Prepare(*at, std::span(&pieces[1], 1))) return false;
  Redirect(at->ref, pieces[1]);
  const Offsets first = Offsets::Range(0, cut);
  const TierMask tiers = Members::TiersOf(heap_.get(), *run);
  // W4: its holders have the second piece already.
  BeginShrink(run);
  run->len.store(static_cast<uint16_t>(cut), std::memory_order_release);
  Pause();
  run->SetDead(run->Dead() & first);
  const Offsets live = run->Live();
  for (int i = 0; i < kTiers; ++i) {
    const Tier tier = static_cast<Tier>(i);
    if (!tiers.Has(tier)) continue;
    Members members = MembersOf(run, tier);
    members.ForEachPart([&](uint32_t holder, const Offsets& offsets) {
      const Offsets mine = offsets & first;
      if (mine.Any()) {
        members.SetPart(holder, mine);
      } else {
        members.RemovePart(holder);
      }
    });
    Promote(run, tier, live);
  }
  EndShrink(run);
  return true;
}

// ---- Merging ----

// The same holders have all of both, and none has part of one.
bool AtlasIndex::SameHolders(Run* a, Run* b) const {
  const TierMask tiers = Members::TiersOf(heap_.get(), *a) | Members::TiersOf(heap_.get(), *b);
  for (int i = 0; i < kTiers; ++i) {
    if (!tiers.Has(static_cast<Tier>(i))) continue;
    const Members first = MembersOf(a, static_cast<Tier>(i));
    const Members second = MembersOf(b, static_cast<Tier>(i));
    if (first.CountPartials() + second.CountPartials() != 0) return false;
    if (first.CountAll(kNoHolder) != second.CountAll(kNoHolder)) return false;
    bool same = true;
    first.ForEachAll([&](uint32_t holder) { same = same && second.HasAll(holder); });
    if (!same) return false;
  }
  return true;
}

// Joins the run that begins at `word` to the one before it, and that to the one before, as long as
// the same holders have all of both.
bool AtlasIndex::MaybeMerge(Ref word) {
  bool merged = false;
  while (word != 0) {
    word = MergeOnce(word);
    merged = merged || word != 0;
  }
  return merged;
}

// Returns where the merged run begins, or 0.
Ref AtlasIndex::MergeOnce(Ref word) {
  Place first;
  Place second;
  if (!LocateListed(heap_->RunOf(word), &second) || WordOf(second.ref, 0) != word) return 0;
  const uint64_t parent = second.run->parent;
  if (second.run->start == 0 || parent == 0 || !Locate(SequenceHash{parent}, &first)) return 0;
  const uint32_t len = first.run->len.load(std::memory_order_relaxed);
  const uint32_t more = second.run->len.load(std::memory_order_relaxed);
  const bool fit = second.run != first.run && first.offset + 1 == len &&
                   len + more <= kRunBlocksMax && first.run->start + len == second.run->start &&
                   SameHolders(first.run, second.run);
  return fit ? Merge(first, second) : 0;
}

// Blocks that are dead here and live elsewhere never come back to this run: it is cut around them,
// so that its parts can be merged with what is between them.
bool AtlasIndex::MaybeCut(Ref word) {
  const Ref ref = heap_->RunOf(word);
  Place at;
  if (!LocateListed(ref, &at) || !at.run->holes) return false;
  const uint32_t len = at.run->len.load(std::memory_order_relaxed);
  const Offsets held = at.run->Live();
  // Once a run, not once a block of it.
  if (OffsetOf(ref, word) != held.First()) return false;
  std::vector<Piece> pieces;
  std::vector<Ref> beside;
  uint32_t from = 0;
  for (uint32_t offset = 0; offset <= len; ++offset) {
    Ref elsewhere = 0;
    if (offset < len) {
      if (held.Has(offset)) continue;
      elsewhere = table_->Find(SequenceHash{~HashAt(*at.run, offset)});
      if (elsewhere == 0) continue;
      beside.push_back(elsewhere);
    }
    // Without the dead blocks at its ends.
    const Offsets part = held & Offsets::Range(from, offset);
    if (part.Any()) pieces.push_back({.from = part.First(), .to = part.End()});
    from = offset + 1;
  }
  if (beside.empty() || !Replace(&at, pieces)) return false;
  for (const Piece& piece : pieces) beside.push_back(WordOf(piece.ref, 0));
  for (Ref each : beside) MaybeMerge(WordOf(heap_->RunOf(each), 0));
  return true;
}

// Moves a run that lies in a page that is mostly free, or has more room than it needs.
bool AtlasIndex::MaybeMove(Ref word) {
  const Ref ref = heap_->RunOf(word);
  Place at;
  if (!LocateListed(ref, &at) || WordOf(ref, 0) != word) return false;
  const uint32_t used = at.run->len.load(std::memory_order_relaxed);
  const bool roomy = used != 0 && CapacityFor(used) < at.run->capacity;
  if (!roomy && !heap_->RunIsOnSparsePage(ref)) return false;
  Piece piece{.from = 0, .to = used};
  return Replace(&at, std::span(&piece, 1));
}

Ref AtlasIndex::Merge(const Place& first, const Place& second) {
  const uint32_t lens[2] = {first.run->len.load(std::memory_order_relaxed),
                            second.run->len.load(std::memory_order_relaxed)};
  const Ref ref = NewRun(lens[0] + lens[1], first.run->start, first.run->parent);
  if (ref == 0) return 0;
  Run* const run = RunAt(ref);
  CopyBlocks(first.run, 0, lens[0], run, 0);
  CopyBlocks(second.run, 0, lens[1], run, lens[0]);
  run->len.store(static_cast<uint16_t>(lens[0] + lens[1]), std::memory_order_relaxed);
  Offsets dead = first.run->Dead();
  second.run->Dead().ForEach([&](uint32_t offset) { dead.Add(lens[0] + offset); });
  run->SetDead(dead);
  bool ready = true;
  const TierMask tiers = Members::TiersOf(heap_.get(), *first.run);
  for (int i = 0; i < kTiers; ++i) {
    if (!tiers.Has(static_cast<Tier>(i))) continue;
    Members members = MembersOf(run, static_cast<Tier>(i));
    MembersOf(first.run, static_cast<Tier>(i)).ForEachAll([&](uint32_t holder) {
      ready = ready && members.AddAll(holder);
    });
  }
  if (!ready || !List(ref)) {
    DropRun(ref, /*seen=*/false);
    return 0;
  }
  Redirect(first.ref, {.from = 0, .to = lens[0], .ref = ref});
  second.run->Live().ForEach([&](uint32_t i) {
    table_->Move(SequenceHash{HashAt(*second.run, i)}, WordOf(second.ref, i),
                 WordOf(ref, lens[0] + i));
  });
  for (const Place& place : {first, second}) {
    BeginShrink(place.run);
    DropRun(place.ref, /*seen=*/true);
  }
  Count(&merges_, 1);
  return WordOf(ref, 0);
}

// Round after round while there is something to do: what one of them moves makes room for the next.
void AtlasIndex::Maintain(size_t steps) {
  constexpr int kRounds = 4;
  bool changed = true;
  for (int round = 0; round < kRounds && steps > 0 && changed; ++round) {
    std::vector<Ref> words;
    {
      WriterLock lock(&writer_);
      steps -= std::min(steps, table_->Maintain(&cursor_, steps, &words));
      heap_->Reclaim();
    }
    changed = MaintainRuns(words);
  }
}

// In pieces, so that what one of them frees is there for the next. The words are hints: runs go
// meanwhile.
bool AtlasIndex::MaintainRuns(std::span<const Ref> words) {
  bool changed = false;
  for (size_t i = 0; i < words.size(); i += kStepBlocks, writer_.Yield()) {
    WriterLock lock(&writer_);
    for (Ref word : words.subspan(i, std::min(kStepBlocks, words.size() - i)))
      changed |= MaybeMerge(word) || MaybeCut(word) || MaybeMove(word);
    heap_->Reclaim();
  }
  return changed;
}

// ---- Lists ----

// Drops what no longer holds from a holder's list when it has grown.
void AtlasIndex::MaybeTidy(HolderState* holder) {
  if (holder->runs.size() < holder->tidy_at) return;
  holder->runs.Tidy([&](Ref ref) {
    Place at;
    return LocateListed(ref, &at) && HasAnything(at.run, holder->number);
  });
  holder->tidy_at = holder->runs.size() * 2 + HolderState::kTidyAt;
}

}  // namespace kvatlas::atlas
