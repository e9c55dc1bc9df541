// How do runs change their shape? They are split where many holders end, rewritten when they shrink or outgrow
// their words, and merged when what divided them is gone. All of it replaces runs by new ones (W6).

#include <algorithm>
#include <new>

#include "indexer/index/atlas/atlas_index.h"
#include "indexer/index/atlas/epoch.h"

namespace kvatlas::atlas {
namespace {

// From this many partial holders on a split is looked for.
constexpr uint32_t kPartialsMin = 4;
// From this many on it is made somewhere even if no two of them end at the same block.
constexpr uint32_t kPartialsMany = 16;
// A run that more hold is not moved for a few blocks more: the list of every holder would grow.
constexpr uint32_t kHoldersToMove = 16;

}  // namespace

// ---- A run's memory ----

uint32_t AtlasIndex::CapacityFor(uint32_t blocks) const {
  const size_t bytes =
      Heap::RoundUp(WordBytes((blocks + kLineWords - 1) / kLineWords * kLineWords));
  const size_t capacity = bytes / WordBytes(1) / kLineWords * kLineWords;
  return static_cast<uint32_t>(std::min<size_t>(capacity, kRunBlocksMax));
}

// A locked run that nobody can find yet.
Ref AtlasIndex::NewRun(uint32_t capacity, Position start, uint64_t parent) {
  const Ref words = heap_->Allocate(WordBytes(capacity));
  if (words == 0) return 0;
  const Ref ref = heap_->Allocate(sizeof(Run));
  if (ref == 0) {
    heap_->Free(words, WordBytes(capacity));
    return 0;
  }
  Run* const run = new (heap_->At<void>(ref)) Run;
  run->parent = parent;
  run->start = start;
  run->base = words;
  run->capacity = static_cast<uint16_t>(capacity);
  LockRun(run);
  runs_.fetch_add(1, std::memory_order_relaxed);
  return ref;
}

// What nobody has seen.
void AtlasIndex::DiscardRun(Ref ref) {
  Run* const run = RunAt(ref);
  for (int tier = 0; tier < kTiers; ++tier)
    MembersOf(run, static_cast<Tier>(tier)).Discard(/*seen=*/false);
  heap_->Free(run->base, WordBytes(run->capacity));
  heap_->Free(ref, sizeof(Run));
  runs_.fetch_sub(1, std::memory_order_relaxed);
}

void AtlasIndex::Retire(Ref ref, bool words) {
  Run* const run = RunAt(ref);
  for (int tier = 0; tier < kTiers; ++tier)
    MembersOf(run, static_cast<Tier>(tier)).Discard(/*seen=*/true);
  if (words) heap_->Retire(run->base, WordBytes(run->capacity));
  heap_->Retire(ref, sizeof(Run));
  runs_.fetch_sub(1, std::memory_order_relaxed);
}

// The line map leads from the run's words to `ref`, or, 0, to no run.
void AtlasIndex::Direct(const Run& run, Ref ref) {
  for (uint32_t i = 0; i < run.capacity; i += kLineWords)
    heap_->run_of(run.base + i).store(ref, std::memory_order_release);
}

// Unlocks a run that is not used any more. Its words may be another's now.
void AtlasIndex::Abandon(Ref ref, bool words) {
  Run* const run = RunAt(ref);
  if (words) Direct(*run, 0);
  run->dead = true;
  UnlockRun(run);
  Retire(ref, words);
}

// ---- Replacing ----

// What somebody has of the run when `instead` is true.
Offsets AtlasIndex::HeldAfter(Run* run, const Instead* instead) const {
  if (instead == nullptr) return UnionOf(run);
  const uint32_t len = run->len.load(std::memory_order_relaxed);
  Offsets held = instead->offsets;
  for (int i = 0; i < kTiers; ++i) {
    const Tier tier = static_cast<Tier>(i);
    held =
        held | MembersOf(run, tier).Union(tier == instead->tier ? instead->holder : kNobody, len);
  }
  return held;
}

// A new run of the piece's blocks and holders; it is locked and nobody can find it.
bool AtlasIndex::Build(Run* old, Piece* piece, const Instead* instead) {
  const uint32_t len = piece->to - piece->from;
  const uint64_t parent =
      piece->from == 0 ? old->parent : NameAt(*old, piece->from - 1, HeldAfter(old, instead));
  piece->keeps_words = !piece->moves && piece->from == 0 && piece->capacity == old->capacity;
  if (piece->keeps_words) {
    piece->ref = heap_->Allocate(sizeof(Run));
    if (piece->ref == 0) return false;
    Run* const run = new (heap_->At<void>(piece->ref)) Run;
    run->parent = parent;
    run->start = old->start;
    run->base = old->base;
    run->capacity = old->capacity;
    LockRun(run);
    runs_.fetch_add(1, std::memory_order_relaxed);
  } else {
    piece->ref = NewRun(piece->capacity, old->start + piece->from, parent);
    if (piece->ref == 0) return false;
  }
  Run* const run = RunAt(piece->ref);
  for (uint32_t i = 0; i < len && !piece->keeps_words; ++i) {
    heap_->word(run->base + i).store(HashAt(*old, piece->from + i), std::memory_order_relaxed);
    if (options_.keep_local_hashes)
      LocalAt(*run, i).store(LocalAt(*old, piece->from + i).load(std::memory_order_relaxed),
                             std::memory_order_relaxed);
  }
  const Offsets all = Offsets::Range(0, len);
  bool built = true;
  for (int i = 0; i < kTiers; ++i) {
    const Tier tier = static_cast<Tier>(i);
    if (old->tiers[i].load(std::memory_order_relaxed) == 0) continue;
    Members members = MembersOf(run, tier);
    const auto add = [&](uint32_t holder, const Offsets& offsets) {
      const Offsets mine = offsets.Slice(piece->from, piece->to);
      if (!built || !mine.Any()) return;
      built = mine == all ? members.AddAll(holder) : members.SetPart(holder, mine);
    };
    MembersOf(old, tier).ForEach(
        old->len.load(std::memory_order_relaxed), [&](uint32_t holder, const Offsets& offsets) {
          const bool replaced =
              instead != nullptr && instead->holder == holder && instead->tier == tier;
          if (!replaced) add(holder, offsets);
        });
    if (instead != nullptr && instead->tier == tier) add(instead->holder, instead->offsets);
  }
  run->len.store(static_cast<uint16_t>(len), std::memory_order_relaxed);
  if (built) run->holes.store(!(UnionOf(run) == all), std::memory_order_relaxed);
  return built;
}

// The run is in the lists of all its holders.
bool AtlasIndex::List(Ref ref) {
  Run* const run = RunAt(ref);
  bool listed = true;
  for (int tier = 0; tier < kTiers; ++tier) {
    MembersOf(run, static_cast<Tier>(tier))
        .ForEach(run->len.load(std::memory_order_relaxed), [&](uint32_t holder, const Offsets&) {
          HolderState* const state = holders_[holder].load(std::memory_order_acquire);
          listed = listed && AddToList(state, LineOf(*run));
        });
  }
  return listed;
}

// The table leads to the piece's words.
void AtlasIndex::Redirect(Run* old, const Piece& piece) {
  constexpr uint32_t kAhead = 16;
  Run* const run = RunAt(piece.ref);
  const uint32_t len = piece.to - piece.from;
  const Offsets live = UnionOf(run);
  for (uint32_t i = 0; i < len + kAhead; ++i) {
    if (i < len) table_->Prefetch(SequenceHash{HashAt(*run, i)});
    if (i >= kAhead && live.Has(i - kAhead))
      table_->Move(SequenceHash{HashAt(*run, i - kAhead)}, old->base + piece.from + i - kAhead,
                   run->base + i - kAhead);
  }
}

// W6. On success the first piece's run is at `*at`, locked, the others are unlocked; else nothing changed. Blocks that
// no piece's holders have must be out of the table.
bool AtlasIndex::Replace(Place* at, std::span<Piece> pieces, const Instead* instead) {
  Run* const old = at->run;
  bool ready = true;
  for (Piece& piece : pieces) ready = ready && Build(old, &piece, instead);
  // The line map first: whoever finds the run in his list waits for it.
  for (Piece& piece : pieces) {
    if (!ready || piece.keeps_words) continue;
    Direct(*RunAt(piece.ref), piece.ref);
    ready = List(piece.ref);
  }
  if (!ready) {
    for (Piece& piece : pieces) {
      if (piece.ref == 0) continue;
      Abandon(piece.ref, /*words=*/!piece.keeps_words);
    }
    return false;
  }
  for (const Piece& piece : pieces) {
    if (!piece.keeps_words) Redirect(old, piece);
  }
  BeginTaking(old);
  const bool keeps_words = pieces[0].keeps_words;
  if (keeps_words) Direct(*old, pieces[0].ref);
  Abandon(at->ref, /*words=*/!keeps_words);
  for (const Piece& piece : pieces.subspan(1)) UnlockRun(RunAt(piece.ref));
  at->ref = pieces[0].ref;
  at->run = RunAt(at->ref);
  rewrites_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// ---- Growing ----

bool AtlasIndex::Regrow(Place* at, uint32_t capacity) {
  if (HoldersIn(at->run, kHoldersToMove + 1) > kHoldersToMove) return false;
  Piece piece{.from = 0,
              .to = at->run->len.load(std::memory_order_relaxed),
              .capacity = CapacityFor(capacity)};
  if (piece.capacity <= at->run->capacity) return false;
  return Replace(at, std::span(&piece, 1), nullptr);
}

// ---- Splitting ----

// Where to cut so that most partial holders have all of the first piece or nothing of the second; 0: nowhere.
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
  // Every holder of the second piece gets it into his list: that must not cost more than is won.
  uint32_t behind = members.CountAll(2 * clean + 1);
  for (uint32_t i = cut + 1; i < len; ++i) behind += ends[i];
  return behind <= 2 * clean ? cut : 0;
}

void AtlasIndex::MaybeSplit(Place* at, Tier tier) {
  const uint32_t partials = MembersOf(at->run, tier).CountPartials();
  // Looked at when there are 4, 6, 8, 12, 16, 24 …: the cost of looking is shared by those who came since.
  const bool due =
      partials >= kPartialsMin && ((partials & (partials - 1)) == 0 ||
                                   (partials % 3 == 0 && (partials / 3 & (partials / 3 - 1)) == 0));
  if (!due) return;
  const uint32_t cut = ChooseCut(at->run, tier);
  if (cut == 0) return;
  const uint32_t len = at->run->len.load(std::memory_order_relaxed);
  const uint32_t capacity = at->run->capacity;
  Piece pieces[2] = {
      {.from = 0, .to = cut, .capacity = cut * 2 <= capacity ? CapacityFor(cut) : capacity},
      {.from = cut, .to = len, .capacity = CapacityFor(len - cut)}};
  if (!Replace(at, pieces, nullptr)) return;
  splits_.fetch_add(1, std::memory_order_relaxed);
  // The caller's block may be in the other piece: it is looked for by name.
  if (at->offset > cut) Release(at);
}

// ---- Merging ----

bool AtlasIndex::SameHolders(Run* a, Run* b) const {
  for (int i = 0; i < kTiers; ++i) {
    const Members first = MembersOf(a, static_cast<Tier>(i));
    const Members second = MembersOf(b, static_cast<Tier>(i));
    if (first.CountPartials() + second.CountPartials() != 0) return false;
    const uint32_t count = first.CountAll(kNobody);
    if (count != second.CountAll(kNobody)) return false;
    bool same = true;
    first.ForEach(0,
                  [&](uint32_t holder, const Offsets&) { same = same && second.HasAll(holder); });
    if (!same) return false;
  }
  return true;
}

// Joins the run that begins at `word` to the one before it, and that to the one before, as long as the same holders have
// all of both.
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
  Place second;
  const Ref ref = heap_->run_of(word).load(std::memory_order_acquire);
  if (ref == 0 || RunAt(ref)->base != word) return 0;
  const uint64_t parent = RunAt(ref)->parent;
  if (RunAt(ref)->start == 0 || parent == 0) return 0;
  Place first;
  if (!LockBlock(SequenceHash{parent}, &first)) return 0;
  second = {.ref = ref, .run = RunAt(ref), .offset = 0};
  if (second.run == first.run || !TryLockRun(second.run)) {
    Release(&first);
    return 0;
  }
  const uint32_t len = first.run->len.load(std::memory_order_relaxed);
  const uint32_t more = second.run->len.load(std::memory_order_relaxed);
  const bool fit = !second.run->dead && second.run->base == word && first.offset + 1 == len &&
                   len + more <= kRunBlocksMax && first.run->start + len == second.run->start &&
                   !first.run->holes && !second.run->holes && SameHolders(first.run, second.run);
  if (fit) {
    return Merge(&first, &second);
  }
  Release(&first);
  Release(&second);
  return 0;
}

// Blocks that nobody has here and somebody has elsewhere never come back to this run: it is cut around them, so that
// its parts can be merged with what is between them.
bool AtlasIndex::MaybeCut(Ref word) {
  const Ref ref = heap_->run_of(word).load(std::memory_order_acquire);
  if (ref == 0 || !RunAt(ref)->holes.load(std::memory_order_relaxed)) return false;
  Place at;
  if (!LockLine(LineOf(*RunAt(ref)), &at)) return false;
  const uint32_t len = at.run->len.load(std::memory_order_relaxed);
  const Offsets held = UnionOf(at.run);
  // Once a run, not once a block of it.
  if (word - at.run->base != held.First()) {
    Release(&at);
    return false;
  }
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
    if (part.Any())
      pieces.push_back({.from = part.First(),
                        .to = part.End(),
                        .capacity = CapacityFor(part.End() - part.First()),
                        .moves = true});
    from = offset + 1;
  }
  if (beside.empty() || !Replace(&at, pieces, nullptr)) {
    Release(&at);
    return false;
  }
  for (const Piece& piece : pieces) beside.push_back(RunAt(piece.ref)->base);
  Release(&at);
  for (Ref each : beside) {
    const Ref run = heap_->run_of(each).load(std::memory_order_acquire);
    if (run != 0) MaybeMerge(RunAt(run)->base);
  }
  return true;
}

// Moves a run whose words lie in a page that is mostly free.
bool AtlasIndex::MaybeMove(Ref word) {
  const Ref ref = heap_->run_of(word).load(std::memory_order_acquire);
  if (ref == 0 || RunAt(ref)->base != word) return false;
  if (!heap_->BetterElsewhere(word, WordBytes(RunAt(ref)->capacity))) return false;
  Place at;
  if (!LockLine(word / kLineWords, &at)) return false;
  const uint32_t len = at.run->len.load(std::memory_order_relaxed);
  Piece piece{.from = 0, .to = len, .capacity = CapacityFor(len), .moves = true};
  const bool moved = Replace(&at, std::span(&piece, 1), nullptr);
  Release(&at);
  return moved;
}

Ref AtlasIndex::Merge(Place* first, Place* second) {
  Run* const runs[2] = {first->run, second->run};
  const uint32_t lens[2] = {runs[0]->len.load(std::memory_order_relaxed),
                            runs[1]->len.load(std::memory_order_relaxed)};
  const uint32_t len = lens[0] + lens[1];
  const Ref ref = NewRun(CapacityFor(len), runs[0]->start, runs[0]->parent);
  bool ready = ref != 0;
  if (ready) {
    Run* const run = RunAt(ref);
    uint32_t next = 0;
    for (int i = 0; i < 2; ++i) {
      for (uint32_t offset = 0; offset < lens[i]; ++offset, ++next) {
        heap_->word(run->base + next).store(HashAt(*runs[i], offset), std::memory_order_relaxed);
        if (options_.keep_local_hashes)
          LocalAt(*run, next)
              .store(LocalAt(*runs[i], offset).load(std::memory_order_relaxed),
                     std::memory_order_relaxed);
      }
    }
    for (int i = 0; i < kTiers; ++i) {
      Members members = MembersOf(run, static_cast<Tier>(i));
      MembersOf(runs[0], static_cast<Tier>(i)).ForEach(0, [&](uint32_t holder, const Offsets&) {
        ready = ready && members.AddAll(holder);
      });
    }
    run->len.store(static_cast<uint16_t>(len), std::memory_order_relaxed);
    Direct(*run, ref);
    ready = ready && List(ref);
    if (ready) {
      Redirect(runs[0], {.from = 0, .to = lens[0], .capacity = 0, .ref = ref});
      for (uint32_t i = 0; i < lens[1]; ++i)
        table_->Move(SequenceHash{HashAt(*runs[1], i)}, runs[1]->base + i, run->base + lens[0] + i);
      FreeRun(first);
      FreeRun(second);
      merges_.fetch_add(1, std::memory_order_relaxed);
      const Ref base = run->base;
      UnlockRun(run);
      return base;
    }
    Abandon(ref, /*words=*/true);
  }
  Release(first);
  Release(second);
  return 0;
}

// Round after round while there is something to do: what one of them moves makes room for the next.
void AtlasIndex::Tend(size_t steps) {
  constexpr int kRounds = 4;
  bool changed = true;
  for (int round = 0; round < kRounds && steps > 0 && changed; ++round) {
    std::vector<Ref> words;
    {
      EpochGuard guard;
      MutexLock lock(&admin_mutex_);
      steps -= std::min(steps, table_->Tend(&tend_cursor_, steps, &words));
    }
    heap_->Reclaim();
    changed = TendRuns(words);
  }
}

// In pieces, so that what one of them frees is there for the next.
bool AtlasIndex::TendRuns(std::span<const Ref> words) {
  constexpr size_t kAtOnce = 1024;
  bool changed = false;
  for (size_t i = 0; i < words.size(); i += kAtOnce) {
    {
      EpochGuard guard;
      for (Ref word : words.subspan(i, std::min(kAtOnce, words.size() - i)))
        changed |= MaybeMerge(word) || MaybeCut(word) || MaybeMove(word);
    }
    heap_->Reclaim();
  }
  return changed;
}

// ---- Lists ----

// Drops what no longer holds from a holder's list when it has grown.
void AtlasIndex::MaybeTidy(HolderState* holder) {
  SpinLockHolder lock(&holder->runs_lock);
  if (holder->runs.size() < holder->tidy_at) return;
  holder->runs.Tidy([&](uint32_t line) {
    const Ref ref = heap_->run_of(line * kLineWords).load(std::memory_order_acquire);
    return ref != 0 && LineOf(*RunAt(ref)) == line && HasAnything(RunAt(ref), holder->number);
  });
  holder->tidy_at = holder->runs.size() * 2 + 64;
}

}  // namespace kvatlas::atlas
