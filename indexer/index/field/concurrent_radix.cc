// A tree of blocks with a reader-writer lock at each: the field's "concurrent radix tree" (Flash
// Indexer §5).
//
//   root ──local hash──▶ node { sequence hash, holders × tiers, children by local hash } ──▶ node …
//                          ▲
//   holder ──▶ { sequence hash → node }      (its lookup table: who takes a block out never walks the tree)
//
// *Place*: kept to compare with, and as a second opinion in tests. One node a block, as in the
// original;
// runs of blocks share a node in its successors.
// *Truth*: never above what was true at some instant, holes included: a query takes the holders of
// every block on its way, not only where their number changes. It may be below in two cases. A
// store whose parent the holder does not have is dropped, as in the original, and counted in
// `Stats().shape` as "blocks_without_parent": after a hole the engine's next block is lost if it
// hangs directly below. A block that two senders name differently below one parent keeps its first
// name; the second sender's is dropped ("blocks_renamed"). A holder that loses blocks while it is
// asked for may count the first block only. What hangs below a hole stays where it is (the original
// forgets it when the last holder of the block above leaves), so that it counts again when the
// missing block is stored again.
// *Names*: the tree is keyed by local hash when stores have local hashes, and queries then need
// them too;
// by sequence hash when they have none. One index sees one kind of store.
// *Threads*: any. Reads run on the caller's thread, hand over hand with shared locks. Writes of one
// holder are serial: with `IndexOptions::executor` each event is a task on the lane of the holder's
// number, without one it is applied by the caller. With an executor
//   - `Apply` returns at once with OK, and an event refused is seen in `Stats().refused_blocks`
//     only; with a `ChangeLog` it waits for its task, because that is complete when it returns;
//   - overlaps are of the events whose tasks have run: they wait for nothing;
//   - everything else waits for the events applied before: `HoldingsOf`, `DigestOf`, `Sweep` and
//     `RemoveHolder` for those of the holder, `Stats`, `Check` and the destructor for all. Called
//     from a task of the executor they may wait for themselves.
// *Cost*: a query of D blocks takes D shared locks and D set intersections; a stored block one
// shared lock on the parent and one exclusive on the block (exclusive on both when it is new), a
// removed block one. About 290 bytes a distinct block and 30 a holding. `Stats` and `Check` walk
// the tree.
// *Bounds*: `IndexOptions` but `bytes_max`, which is not counted. Events that wait in the executor
// are not bounded here.

#include <algorithm>
#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "indexer/base/mutex.h"
#include "indexer/index/field/candidates.h"
#include "indexer/index/field/field.h"
#include "indexer/index/field/holder_table.h"
#include "indexer/index/holder_set.h"

namespace kvatlas {
namespace {

// What a child is found by: its local hash, or its sequence hash without local hashes.
using ChildKey = uint64_t;

struct Node;
using NodePtr = std::shared_ptr<Node>;

// Locks go from a parent to its child, two nodes at a time at most. A node in a holder's lookup
// table has that holder in its set, and a node with holders or children stays in the tree.
struct Node {
  Node(NodePtr parent_node, ChildKey child_key, SequenceHash name, SequenceHash parent_name,
       Position at)
      : key(child_key),
        sequence(name),
        parent_sequence(parent_name),
        position(at),
        parent(std::move(parent_node)) {}

  const ChildKey key;
  const SequenceHash sequence;
  const SequenceHash parent_sequence;
  const Position position;

  mutable SharedMutex mutex;
  // Null in the root, and in a node that was taken out of the tree.
  NodePtr parent ABSL_GUARDED_BY(mutex);
  HolderSet holders ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<ChildKey, NodePtr> children ABSL_GUARDED_BY(mutex);
};

struct RadixHolder {
  // Serialises the holder's events, and cuts of it with them. Taken before any node's.
  mutable Mutex mutex;
  absl::flat_hash_map<SequenceHash, NodePtr> held ABSL_GUARDED_BY(mutex);
  Digest digest ABSL_GUARDED_BY(mutex);

  // Tasks that the executor has yet to finish.
  mutable Mutex queue_mutex;
  mutable CondVar queue_empty;
  uint64_t queued ABSL_GUARDED_BY(queue_mutex) = 0;
};

class ConcurrentRadixIndex : public Index {
 public:
  explicit ConcurrentRadixIndex(const IndexOptions& options)
      : options_(options),
        root_(std::make_shared<Node>(nullptr, 0, kNoParent, kNoParent, 0)),
        holders_(options.holders_max),
        blocks_(options.blocks_max) {}
  ~ConcurrentRadixIndex() override;

  std::string_view Name() const override { return "concurrent_radix"; }
  absl::StatusOr<HolderIndex> AddHolder() override { return holders_.Add(); }
  void RemoveHolder(HolderIndex holder) override;
  void SetMasked(HolderIndex holder, bool masked) override { holders_.SetMasked(holder, masked); }
  absl::Status Apply(HolderIndex holder, const Event& event, ChangeLog* changes) override;
  bool Sweep(HolderIndex holder, size_t blocks_max, ChangeLog* changes) override;
  void FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const override;
  std::vector<Holding> HoldingsOf(HolderIndex holder) const override;
  Digest DigestOf(HolderIndex holder) const override;
  IndexStats Stats() const override;
  absl::Status Check() const override;

 private:
  // A write in progress: whose, and where it is told.
  struct Writer {
    HolderIndex holder;
    RadixHolder& state;
    ChangeLog* changes;
  };

  void Schedule(HolderIndex holder, RadixHolder* state, std::function<void()> task);
  static void WaitForQueue(const RadixHolder& state);
  absl::Status ApplyNow(const Writer& writer, const Event& event);
  absl::Status Store(const Writer& writer, const Stored& stored)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.state.mutex);
  absl::Status StoreBelow(const Writer& writer, const NodePtr& parent, const Stored& stored,
                          size_t i, NodePtr* stored_in)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.state.mutex);
  absl::Status Join(const Writer& writer, Tier tier, const NodePtr& node)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.state.mutex);
  void Remove(const Writer& writer, const Removed& removed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.state.mutex);
  void Clear(const Writer& writer, TierMask tiers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.state.mutex);
  bool SweepSome(const Writer& writer, TierMask tiers, size_t blocks_max)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.state.mutex);
  bool Leave(const Writer& writer, TierMask tiers, const NodePtr& node)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.state.mutex);
  void Notify(const Writer& writer, const Node& node, TierMask before, TierMask after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writer.state.mutex);

  static void Prune(NodePtr node);
  void Walk(std::span<const SequenceHash> names, std::span<const LocalHash> locals,
            const OverlapQuery& query, std::vector<Overlap>* overlaps) const;
  // Calls `visit(node)` with every node's lock held, parents first.
  template <typename Visit>
  void ForEachNode(Visit visit) const;

  const IndexOptions options_;
  const NodePtr root_;
  HolderTable<RadixHolder> holders_;
  // Set by the first store with local hashes, before anything of it is in the tree.
  std::atomic<bool> is_keyed_by_content_{false};
  BlockQuota blocks_;
  std::atomic<uint64_t> refused_blocks_{0};
  std::atomic<uint64_t> blocks_without_parent_{0};
  std::atomic<uint64_t> blocks_renamed_{0};
};

// ---- The queue ----

// Waits for all tasks; then unties the nodes one by one, because a deep tree would exhaust the
// stack.
ConcurrentRadixIndex::~ConcurrentRadixIndex() {
  holders_.ForEach([](HolderIndex, RadixHolder& state) {
    WaitForQueue(state);
    MutexLock lock(&state.mutex);
    state.held.clear();
  });
  std::vector<NodePtr> rest = {root_};
  while (!rest.empty()) {
    const NodePtr node = std::move(rest.back());
    rest.pop_back();
    WriterLock lock(&node->mutex);
    node->parent.reset();
    for (auto& [key, child] : node->children) rest.push_back(std::move(child));
    node->children.clear();
  }
}

void ConcurrentRadixIndex::Schedule(HolderIndex holder, RadixHolder* state,
                                    std::function<void()> task) {
  {
    MutexLock lock(&state->queue_mutex);
    ++state->queued;
  }
  options_.executor->Schedule(Raw(holder), [state, task = std::move(task)] {
    task();
    // The signal is sent under the lock: afterwards the destructor may go on.
    MutexLock lock(&state->queue_mutex);
    if (--state->queued == 0) state->queue_empty.SignalAll();
  });
}

void ConcurrentRadixIndex::WaitForQueue(const RadixHolder& state) {
  MutexLock lock(&state.queue_mutex);
  while (state.queued != 0) state.queue_empty.Wait(&state.queue_mutex);
}

absl::Status ConcurrentRadixIndex::Apply(HolderIndex holder, const Event& event,
                                         ChangeLog* changes) {
  if (!holders_.Exists(holder)) return absl::NotFoundError("no such holder");
  RadixHolder* const state = holders_.Find(holder);
  if (options_.executor == nullptr) return ApplyNow({holder, *state, changes}, event);
  if (changes == nullptr) {
    Schedule(holder, state, [this, holder, state, event] {
      ApplyNow({holder, *state, nullptr}, event).IgnoreError();
    });
    return absl::OkStatus();
  }
  absl::Status status;
  Schedule(holder, state, [this, holder, state, changes, &event, &status] {
    status = ApplyNow({holder, *state, changes}, event);
  });
  WaitForQueue(*state);
  return status;
}

void ConcurrentRadixIndex::RemoveHolder(HolderIndex holder) {
  if (!holders_.Hide(holder)) return;
  RadixHolder* const state = holders_.Find(holder);
  WaitForQueue(*state);
  ApplyNow({holder, *state, nullptr}, Cleared{}).IgnoreError();
  holders_.Release(holder);
}

bool ConcurrentRadixIndex::Sweep(HolderIndex holder, size_t blocks_max, ChangeLog* changes) {
  if (!holders_.Exists(holder)) return false;
  const Writer writer{holder, *holders_.Find(holder), changes};
  WaitForQueue(writer.state);
  MutexLock lock(&writer.state.mutex);
  return SweepSome(writer, TierMask::All(), std::max<size_t>(blocks_max, 1));
}

absl::Status ConcurrentRadixIndex::ApplyNow(const Writer& writer, const Event& event) {
  MutexLock lock(&writer.state.mutex);
  if (const Stored* stored = std::get_if<Stored>(&event)) return Store(writer, *stored);
  if (const Removed* removed = std::get_if<Removed>(&event)) {
    Remove(writer, *removed);
  } else {
    Clear(writer, std::get<Cleared>(event).tiers);
  }
  return absl::OkStatus();
}

// ---- Stores ----

absl::Status ConcurrentRadixIndex::Store(const Writer& writer, const Stored& stored) {
  if (HasLocals(stored)) is_keyed_by_content_.store(true, std::memory_order_release);
  NodePtr at = root_;
  if (stored.position != 0) {
    const auto parent = writer.state.held.find(stored.parent);
    if (parent == writer.state.held.end()) {
      blocks_without_parent_.fetch_add(stored.blocks.size(), std::memory_order_relaxed);
      return absl::OkStatus();
    }
    at = parent->second;
  }
  for (size_t i = 0; i < stored.blocks.size(); ++i) {
    const auto held = writer.state.held.find(stored.blocks[i]);
    absl::Status status;
    if (held != writer.state.held.end()) {
      at = held->second;
      status = Join(writer, stored.tier, at);
    } else {
      NodePtr child;
      status = StoreBelow(writer, at, stored, i, &child);
      at = std::move(child);
    }
    if (!status.ok()) {
      refused_blocks_.fetch_add(stored.blocks.size() - i, std::memory_order_relaxed);
      return status;
    }
    if (at == nullptr) {
      blocks_renamed_.fetch_add(stored.blocks.size() - i, std::memory_order_relaxed);
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

// Finds or makes the child for block i; `*stored_in` stays null when its place has another name.
// Most children exist already, so the parent is locked exclusively in a second try only. The holder
// has the parent, or the parent is the root: no other thread takes it out of the tree meanwhile.
absl::Status ConcurrentRadixIndex::StoreBelow(const Writer& writer, const NodePtr& parent,
                                              const Stored& stored, size_t i, NodePtr* stored_in) {
  const SequenceHash name = stored.blocks[i];
  const ChildKey key = HasLocals(stored) ? Raw(stored.local_hashes[i]) : Raw(name);
  {
    ReaderLock lock(&parent->mutex);
    const auto found = parent->children.find(key);
    if (found != parent->children.end()) {
      if (found->second->sequence != name) return absl::OkStatus();
      *stored_in = found->second;
      return Join(writer, stored.tier, *stored_in);
    }
  }
  WriterLock lock(&parent->mutex);
  const auto [place, is_new] = parent->children.try_emplace(key);
  if (!is_new && place->second->sequence != name) return absl::OkStatus();
  if (is_new) {
    const Position position = parent == root_ ? 0 : parent->position + 1;
    place->second = std::make_shared<Node>(parent, key, name, parent->sequence, position);
  }
  *stored_in = place->second;
  const absl::Status status = Join(writer, stored.tier, *stored_in);
  if (!status.ok() && is_new) parent->children.erase(place);
  return status;
}

// The holder has the block in `tier`.
absl::Status ConcurrentRadixIndex::Join(const Writer& writer, Tier tier, const NodePtr& node) {
  TierMask before;
  {
    WriterLock lock(&node->mutex);
    if (node->holders.empty() && !blocks_.Take())
      return absl::ResourceExhaustedError("blocks_max reached");
    before = node->holders.Get(writer.holder);
    if (before.Has(tier)) return absl::OkStatus();
    node->holders.Set(writer.holder, before | tier);
  }
  if (before.empty()) writer.state.held.try_emplace(node->sequence, node);
  Notify(writer, *node, before, before | tier);
  return absl::OkStatus();
}

void ConcurrentRadixIndex::Notify(const Writer& writer, const Node& node, TierMask before,
                                  TierMask after) {
  ChangeDigest(node.sequence, before, after, &writer.state.digest);
  if (writer.changes != nullptr) writer.changes->Add(node.sequence, node.position, before, after);
}

// ---- Removals ----

void ConcurrentRadixIndex::Remove(const Writer& writer, const Removed& removed) {
  const HolderTableBase::Removing removing(holders_, writer.holder);
  for (SequenceHash name : removed.blocks) {
    const auto held = writer.state.held.find(name);
    if (held == writer.state.held.end()) continue;
    const NodePtr node = held->second;
    if (Leave(writer, removed.tier, node)) writer.state.held.erase(held);
  }
  ShrinkTable(&writer.state.held);
}

void ConcurrentRadixIndex::Clear(const Writer& writer, TierMask tiers) {
  SweepSome(writer, tiers, writer.state.held.size());
}

// Takes `tiers` of up to `blocks_max` blocks away; false when nothing is left.
bool ConcurrentRadixIndex::SweepSome(const Writer& writer, TierMask tiers, size_t blocks_max) {
  const HolderTableBase::Removing removing(holders_, writer.holder);
  auto& held = writer.state.held;
  for (auto next = held.begin(); next != held.end() && blocks_max > 0; --blocks_max) {
    const auto each = next++;
    const NodePtr node = each->second;
    if (Leave(writer, tiers, node)) held.erase(each);
  }
  ShrinkTable(&held);
  return !held.empty();
}

// The holder no longer has the block in `tiers`; true when it has it in no tier.
bool ConcurrentRadixIndex::Leave(const Writer& writer, TierMask tiers, const NodePtr& node) {
  TierMask before;
  bool is_unused = false;
  {
    WriterLock lock(&node->mutex);
    before = node->holders.Get(writer.holder);
    if (!before.Intersects(tiers)) return false;
    node->holders.Set(writer.holder, before & ~tiers);
    if (node->holders.empty()) {
      blocks_.Release();
      is_unused = node->children.empty();
    }
  }
  Notify(writer, *node, before, before & ~tiers);
  if (is_unused) Prune(node);
  return (before & ~tiers).empty();
}

// Takes a node without holders and children out of the tree, then the one above if it became one.
void ConcurrentRadixIndex::Prune(NodePtr node) {
  for (;;) {
    NodePtr parent;
    {
      ReaderLock lock(&node->mutex);
      parent = node->parent;
    }
    if (parent == nullptr) return;  // The root, or another thread was here.
    WriterLock parent_lock(&parent->mutex);
    {
      WriterLock lock(&node->mutex);
      if (node->parent == nullptr || !node->holders.empty() || !node->children.empty()) return;
      node->parent.reset();
    }
    parent->children.erase(node->key);
    ShrinkTable(&parent->children);
    if (!parent->holders.empty() || !parent->children.empty()) return;
    node = parent;
  }
}

// ---- Questions ----

void ConcurrentRadixIndex::FindOverlaps(const OverlapQuery& query,
                                        std::vector<Overlap>* overlaps) const {
  if (query.blocks.empty()) return;
  const bool by_content =
      !query.local_hashes.empty() && is_keyed_by_content_.load(std::memory_order_acquire);
  Walk(query.blocks, by_content ? query.local_hashes : std::span<const LocalHash>(), query,
       overlaps);
}

// Goes down hand over hand: a child is locked before its parent is let go, so it cannot leave the
// tree in between. `locals` may be empty: names take their place.
// clang cannot follow a lock that moves.
void ConcurrentRadixIndex::Walk(std::span<const SequenceHash> names,
                                std::span<const LocalHash> locals, const OverlapQuery& query,
                                std::vector<Overlap>* overlaps) const
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const size_t depth_max = locals.empty() ? names.size() : std::min(names.size(), locals.size());
  Candidates candidates(holders_, query, overlaps);
  const Node* node = root_.get();
  node->mutex.ReaderLock();
  uint32_t depth = 0;
  for (; depth < depth_max; ++depth) {
    const auto found = node->children.find(locals.empty() ? Raw(names[depth]) : Raw(locals[depth]));
    if (found == node->children.end()) break;
    const Node* const child = found->second.get();
    if (child->sequence != names[depth]) break;
    child->mutex.ReaderLock();
    node->mutex.ReaderUnlock();
    node = child;
    if (depth == 0) {
      candidates.Start(node->holders);
    } else {
      candidates.Keep(node->holders, depth);
    }
    if (candidates.empty()) break;
  }
  node->mutex.ReaderUnlock();
  candidates.DropAll(depth);
}

// ---- Contents ----

std::vector<Holding> ConcurrentRadixIndex::HoldingsOf(HolderIndex holder) const {
  std::vector<Holding> holdings;
  if (!holders_.Exists(holder)) return holdings;
  const bool with_local =
      options_.keep_local_hashes && is_keyed_by_content_.load(std::memory_order_acquire);
  const RadixHolder& state = *holders_.Find(holder);
  WaitForQueue(state);
  MutexLock lock(&state.mutex);
  for (const auto& [name, node] : state.held) {
    ReaderLock node_lock(&node->mutex);
    holdings.push_back({.block = name,
                        .position = node->position,
                        .parent = node->parent_sequence,
                        .tiers = node->holders.Get(holder),
                        .local = LocalHash{with_local ? node->key : 0}});
  }
  return holdings;
}

Digest ConcurrentRadixIndex::DigestOf(HolderIndex holder) const {
  if (!holders_.Exists(holder)) return {};
  const RadixHolder& state = *holders_.Find(holder);
  WaitForQueue(state);
  MutexLock lock(&state.mutex);
  return state.digest;
}

template <typename Visit>
void ConcurrentRadixIndex::ForEachNode(Visit visit) const {
  std::vector<NodePtr> rest = {root_};
  while (!rest.empty()) {
    const NodePtr node = std::move(rest.back());
    rest.pop_back();
    ReaderLock lock(&node->mutex);
    for (const auto& [key, child] : node->children) rest.push_back(child);
    visit(node);
  }
}

IndexStats ConcurrentRadixIndex::Stats() const {
  holders_.ForEach([](HolderIndex, const RadixHolder& state) { WaitForQueue(state); });
  // A shared node has a control block of two words and its own bytes in one allocation.
  constexpr uint64_t kNodeBytes = sizeof(Node) + 3 * sizeof(void*);
  IndexStats stats;
  stats.holders = holders_.Count();
  stats.blocks = blocks_.value();
  stats.refused_blocks = refused_blocks_.load(std::memory_order_relaxed);
  stats.bytes = sizeof(*this) + holders_.Bytes();
  uint64_t nodes = 0;
  ForEachNode([&](const NodePtr& node) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    ++nodes;
    stats.bytes += kNodeBytes + node->holders.HeapBytes() + TableBytes(node->children);
  });
  holders_.ForEach([&](HolderIndex, const RadixHolder& state) {
    MutexLock lock(&state.mutex);
    stats.holdings += state.held.size();
    stats.bytes += TableBytes(state.held);
  });
  stats.shape = {{"nodes", nodes},
                 {"blocks_without_parent", blocks_without_parent_.load(std::memory_order_relaxed)},
                 {"blocks_renamed", blocks_renamed_.load(std::memory_order_relaxed)}};
  return stats;
}

absl::Status ConcurrentRadixIndex::Check() const {
  holders_.ForEach([](HolderIndex, const RadixHolder& state) { WaitForQueue(state); });
  absl::Status status;
  const auto fail = [&](std::string_view what) {
    status = absl::InternalError("concurrent_radix: " + std::string(what));
  };
  uint64_t in_tree = 0, in_tables = 0, blocks = 0;
  ForEachNode([&](const NodePtr& node) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    in_tree += node->holders.size();
    blocks += !node->holders.empty();
    if (const absl::Status set = node->holders.Check(); !set.ok()) status = set;
    if (node != root_ && node->holders.empty() && node->children.empty()) fail("an unused node");
    for (const auto& [key, child] : node->children) {
      if (child->parent != node || child->key != key) fail("a child of another parent");
    }
  });
  holders_.ForEach([&](HolderIndex holder, const RadixHolder& state) {
    MutexLock lock(&state.mutex);
    Digest digest;
    for (const auto& [name, node] : state.held) {
      ++in_tables;
      ReaderLock node_lock(&node->mutex);
      const TierMask tiers = node->holders.Get(holder);
      if (tiers.empty()) fail("a holder that is not in its node");
      if (node->parent == nullptr || node->sequence != name) fail("a node that is not in the tree");
      ChangeDigest(name, TierMask(), tiers, &digest);
    }
    if (digest != state.digest) fail("a wrong digest");
  });
  if (in_tree != in_tables) fail("a node with a holder that does not know it");
  if (blocks != blocks_.value()) fail("a wrong number of blocks");
  return status;
}

}  // namespace

std::unique_ptr<Index> MakeConcurrentRadixIndex(const IndexOptions& options) {
  return std::make_unique<ConcurrentRadixIndex>(options);
}

}  // namespace kvatlas
