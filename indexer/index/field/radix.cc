// How far down a tree of blocks is a worker at every node? A tree with a node per distinct block,
// children by content, and a table per worker to find its nodes by name.
//
//   root ── a ── b ── c            node: key, name, position, parent, children by key, holders × tiers, uses
//           │    └─── d            holder → { sequence hash → node }
//           └─── e
//
// *From*: "Flash Indexer" §4, and the single-threaded tree that Dynamo first shipped. Every node
// counts the queries that came through it, as the source does for its hot prefixes; the sum is
// "uses" in `IndexStats::shape`. *Truth* of `radix`: never over-counts, may under-count:
//
//   A store after a block that the holder does not have is refused: FAILED_PRECONDITION, counted in
//   `refused_blocks`. So a holder whose event was lost loses the rest of that sequence.
//       [a b]; store c after x                       the answer for [a b x c] is 2, then and later
//   A node without holders is cut off with everything below, as though that could have no holder
//   either. Its blocks are still the holder's, are found by name for removal and for a store after
//   them, but no query reaches them, and storing the missing block again does not bring them back.
//   What is stored again with it does come back.
//       [a b c d e], remove c, store c               3, the truth is 5
//       [a b c d e], remove c, store [c d e]         5
//   While another holder keeps the node, nothing is forgotten:
//       both have [a b c], one removes and stores b  3 for both
//
// A holder that gives one place two names (equal content after equal content) gets
// INVALID_ARGUMENT. *Truth* of `radix_exact`: as `index.h` among senders that keep to *Names*
// there. Three changes: a node without holders stays as long as something hangs below; a parent
// without holders is put into the tree as an empty node, which is joined to the rest when it is
// stored; and children are found by sequence hash, so that a name has one node, for all holders.
// The first who stores a block decides where it hangs: a wrong parent hides the block from all
// overlaps until it has no holder.
// *Threads*: one mutex (`serial_index.h`).
// *Cost*: a query is D probes and a set intersection at each of them, D·W at most; a block of an
// event one or two probes in the holder's table and one in the parent's children. Three tables per
// distinct block.

#include "indexer/index/field/field.h"
#include "indexer/index/field/serial_index.h"

namespace kvatlas {
namespace {

struct Node {
  // As the first who stored it named it; kNoParent for the root.
  SequenceHash name = kNoParent;
  SequenceHash parent_name = kNoParent;
  // Where it hangs: null for the root and for what was cut off or has not been joined yet.
  Node* parent = nullptr;
  LocalHash key{0};
  LocalHash local{0};
  Position position = 0;
  uint64_t uses = 0;
  absl::flat_hash_map<LocalHash, Node*> children;
  absl::flat_hash_map<HolderIndex, TierMask> holders;
};

// One more is position 0.
constexpr Position kRootPosition = ~Position{0};

// What both trees share: everything but where a stored block goes and what happens to a node
// without holders.
class RadixTree : public SerialIndex {
 protected:
  RadixTree(const IndexOptions& options, Asked asked) : SerialIndex(options, asked) {
    root_.position = kRootPosition;
  }
  ~RadixTree() override {
    for (Node* node : nodes_to_delete_) delete node;
  }

  // All nodes but the root.
  virtual std::vector<Node*> AllNodes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // The last holder has left.
  virtual void Emptied(Node* node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;

  void Remove(HolderIndex holder, std::span<const SequenceHash> blocks, TierMask tiers,
              ChangeLog* changes) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Find(const OverlapQuery& query, std::vector<Overlap>* overlaps) const override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<SequenceHash> SomeBlocks(HolderIndex holder, size_t blocks_max) const override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Holding> Holdings(HolderIndex holder) const override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Describe(IndexStats* stats) const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckTables() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The holder has the node in these tiers too, under this name.
  void Hold(Node* node, HolderIndex holder, SequenceHash name, TierMask tiers, ChangeLog* changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(Node* node, HolderIndex holder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KeepLocal(const Stored& stored, size_t i, Node* node) const;

  static Node* ChildOf(const Node& node, LocalHash key);
  static void Link(Node* parent, LocalHash key, Node* node);
  static void Unlink(Node* node);
  void Delete(Node* node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // For destructors, where AllNodes() is still the right one.
  void DeleteAllAtTheEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { nodes_to_delete_ = AllNodes(); }

  Node root_ ABSL_GUARDED_BY(mutex_);
  // By the holder's number: its blocks by name. A node is in it once at most.
  std::vector<absl::flat_hash_map<SequenceHash, Node*>> lookup_ ABSL_GUARDED_BY(mutex_);
  // Nodes with a holder.
  uint64_t blocks_ ABSL_GUARDED_BY(mutex_) = 0;

 private:
  std::vector<Node*> nodes_to_delete_;
  // Of all nodes together, those that are gone excepted.
  mutable uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
};

// ---- The tree ----

Node* RadixTree::ChildOf(const Node& node, LocalHash key) {
  const auto child = node.children.find(key);
  return child == node.children.end() ? nullptr : child->second;
}

void RadixTree::Link(Node* parent, LocalHash key, Node* node) {
  parent->children[key] = node;
  node->parent = parent;
  node->key = key;
}

void RadixTree::Unlink(Node* node) {
  node->parent->children.erase(node->key);
  ShrinkTable(&node->parent->children);
  node->parent = nullptr;
}

void RadixTree::Delete(Node* node) {
  uses_ -= node->uses;
  delete node;
}

void RadixTree::KeepLocal(const Stored& stored, size_t i, Node* node) const {
  if (options_.keep_local_hashes && HasLocals(stored)) node->local = stored.local_hashes[i];
}

void RadixTree::Hold(Node* node, HolderIndex holder, SequenceHash name, TierMask tiers,
                     ChangeLog* changes) {
  if (node->holders.empty()) ++blocks_;
  TierMask& held = node->holders[holder];
  const TierMask before = held;
  held = before | tiers;
  if (before.empty()) lookup_[Raw(holder)][name] = node;
  Change(holder, name, node->position, before, held, changes);
}

void RadixTree::Release(Node* node, HolderIndex holder) {
  node->holders.erase(holder);
  ShrinkTable(&node->holders);
  if (!node->holders.empty()) return;
  --blocks_;
  Emptied(node);
}

void RadixTree::Remove(HolderIndex holder, std::span<const SequenceHash> blocks, TierMask tiers,
                       ChangeLog* changes) {
  if (Raw(holder) >= lookup_.size()) return;
  auto& lookup = lookup_[Raw(holder)];
  for (SequenceHash name : blocks) {
    const auto found = lookup.find(name);
    if (found == lookup.end()) continue;
    Node* const node = found->second;
    const Position position = node->position;
    TierMask& held = node->holders.find(holder)->second;
    const TierMask before = held;
    const TierMask after = before & ~tiers;
    held = after;
    if (after.empty()) {
      lookup.erase(found);
      Release(node, holder);
    }
    Change(holder, name, position, before, after, changes);
  }
  ShrinkTable(&lookup);
}

// ---- Questions ----

void RadixTree::Find(const OverlapQuery& query, std::vector<Overlap>* overlaps) const {
  Descent descent(overlaps);
  const Node* node = &root_;
  for (size_t i = 0; i < query.blocks.size(); ++i) {
    Node* const child = ChildOf(*node, KeyAt(query, i));
    if (child == nullptr) break;
    if (i == 0) {
      descent.Begin(Answering(child->holders, query));
    } else {
      descent.Step([&](HolderIndex holder) { return Has(child->holders, holder, query.tiers); });
    }
    if (descent.empty()) break;
    ++child->uses;
    ++uses_;
    node = child;
  }
  descent.End();
}

// ---- Contents ----

std::vector<SequenceHash> RadixTree::SomeBlocks(HolderIndex holder, size_t blocks_max) const {
  if (Raw(holder) >= lookup_.size()) return {};
  return SomeKeys(lookup_[Raw(holder)], blocks_max);
}

std::vector<Holding> RadixTree::Holdings(HolderIndex holder) const {
  std::vector<Holding> holdings;
  if (Raw(holder) >= lookup_.size()) return holdings;
  for (const auto& [name, node] : lookup_[Raw(holder)]) {
    holdings.push_back({.block = name,
                        .position = node->position,
                        .parent = node->parent_name,
                        .tiers = node->holders.find(holder)->second,
                        .local = node->local});
  }
  return holdings;
}

void RadixTree::Describe(IndexStats* stats) const {
  uint64_t nodes = 0, unlinked = 0;
  stats->blocks = blocks_;
  stats->bytes += TableBytes(root_.children);
  for (const auto& lookup : lookup_) stats->bytes += TableBytes(lookup);
  for (const Node* node : AllNodes()) {
    ++nodes;
    if (node->parent == nullptr) ++unlinked;
    stats->bytes += sizeof(Node) + TableBytes(node->children) + TableBytes(node->holders);
  }
  stats->shape.emplace_back("nodes", nodes);
  stats->shape.emplace_back("cut_off", unlinked);
  stats->shape.emplace_back("uses", uses_);
}

absl::Status RadixTree::CheckTables() const {
  uint64_t blocks = 0, holdings = 0, held = 0;
  for (const Node* node : AllNodes()) {
    if (!node->holders.empty()) ++blocks;
    if (node->holders.empty() && node->children.empty())
      return absl::InternalError("a node for nothing");
    if (node->parent != nullptr && ChildOf(*node->parent, node->key) != node)
      return absl::InternalError("a node that its parent does not know");
    for (const auto& [key, child] : node->children) {
      if (child->parent != node || child->position != node->position + 1)
        return absl::InternalError("a child at a wrong place");
    }
    holdings += node->holders.size();
  }
  for (uint32_t number = 0; number < lookup_.size(); ++number) {
    for (const auto& [name, node] : lookup_[number]) {
      if (!node->holders.contains(HolderIndex{number}))
        return absl::InternalError("a name for a node that is not held");
    }
    held += lookup_[number].size();
  }
  if (blocks == blocks_ && holdings == held) return absl::OkStatus();
  return absl::InternalError("the tree and the tables of names differ");
}

// ---- As its source: what loses its last holder is forgotten with everything below ----

class RadixIndex final : public RadixTree {
 public:
  explicit RadixIndex(const IndexOptions& options) : RadixTree(options, Asked::kByContent) {}
  ~RadixIndex() override {
    MutexLock lock(&mutex_);
    DeleteAllAtTheEnd();
  }

  std::string_view Name() const override { return "radix"; }

 private:
  absl::Status Store(HolderIndex holder, const Stored& stored, ChangeLog* changes) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Node*> AllNodes() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Emptied(Node* node) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Node* NodeOf(HolderIndex holder, SequenceHash name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Node*> PlaceOf(const Stored& stored, size_t i, HolderIndex holder, Node* parent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Node*> AddChild(const Stored& stored, size_t i, Node* parent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Move(HolderIndex holder, SequenceHash name, Node* from, Node* to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
};

absl::Status RadixIndex::Store(HolderIndex holder, const Stored& stored, ChangeLog* changes) {
  if (lookup_.size() < holder_numbers()) lookup_.resize(holder_numbers());
  Node* parent = stored.position == 0 ? &root_ : NodeOf(holder, stored.parent);
  if (parent == nullptr) {
    Refuse(stored, 0);
    return absl::FailedPreconditionError("the holder does not have the parent");
  }
  for (size_t i = 0; i < stored.blocks.size(); ++i) {
    const absl::StatusOr<Node*> node = PlaceOf(stored, i, holder, parent);
    if (!node.ok()) {
      Refuse(stored, i);
      return node.status();
    }
    KeepLocal(stored, i, *node);
    Hold(*node, holder, stored.blocks[i], stored.tier, changes);
    parent = *node;
  }
  return absl::OkStatus();
}

Node* RadixIndex::NodeOf(HolderIndex holder, SequenceHash name) const {
  const auto found = lookup_[Raw(holder)].find(name);
  return found == lookup_[Raw(holder)].end() ? nullptr : found->second;
}

// The node of block number i below `parent`: the one that is there, the holder's own that was cut
// off from here, or a new one.
absl::StatusOr<Node*> RadixIndex::PlaceOf(const Stored& stored, size_t i, HolderIndex holder,
                                          Node* parent) {
  const SequenceHash name = stored.blocks[i];
  const LocalHash key = KeyAt(stored, i);
  Node* const own = NodeOf(holder, name);
  if (own != nullptr) {
    const bool is_here = own->parent == parent;
    const bool was_here = own->position == parent->position + 1 && own->parent_name == parent->name;
    // A name keeps its place, whatever a sender says of it later.
    if (is_here || !was_here) return own;
  }
  Node* child = ChildOf(*parent, key);
  if (child != nullptr && child->holders.contains(holder))
    return absl::InvalidArgumentError("two names for one block");
  if (child == nullptr && own != nullptr && own->parent == nullptr && own->key == key) {
    Link(parent, key, own);
    return own;
  }
  if (child == nullptr) {
    const absl::StatusOr<Node*> added = AddChild(stored, i, parent);
    if (!added.ok()) return added;
    child = *added;
  }
  if (own != nullptr) Move(holder, name, own, child);
  return child;
}

absl::StatusOr<Node*> RadixIndex::AddChild(const Stored& stored, size_t i, Node* parent) {
  const absl::Status room = RoomFor(blocks_);
  if (!room.ok()) return room;
  Node* const node = new Node();
  node->name = stored.blocks[i];
  node->parent_name = parent->name;
  node->position = parent->position + 1;
  Link(parent, KeyAt(stored, i), node);
  return node;
}

// Its block is below a node that was cut off, while others have grown the same place anew.
void RadixIndex::Move(HolderIndex holder, SequenceHash name, Node* from, Node* to) {
  if (to->holders.empty()) ++blocks_;
  to->holders[holder] = from->holders.find(holder)->second;
  lookup_[Raw(holder)][name] = to;
  Release(from, holder);
}

void RadixIndex::Emptied(Node* node) {
  for (const auto& [key, child] : node->children) child->parent = nullptr;
  if (node->parent != nullptr) Unlink(node);
  Delete(node);
}

// Each has a holder: it is found with the first of them.
std::vector<Node*> RadixIndex::AllNodes() const {
  std::vector<Node*> nodes;
  for (uint32_t number = 0; number < lookup_.size(); ++number) {
    for (const auto& [name, node] : lookup_[number]) {
      if (node->holders.begin()->first == HolderIndex{number}) nodes.push_back(node);
    }
  }
  return nodes;
}

// ---- Exact: nodes without holders stay while something hangs below; parents may come later ----

class ExactRadixIndex final : public RadixTree {
 public:
  explicit ExactRadixIndex(const IndexOptions& options) : RadixTree(options, Asked::kBySequence) {}
  ~ExactRadixIndex() override {
    MutexLock lock(&mutex_);
    DeleteAllAtTheEnd();
  }

  std::string_view Name() const override { return "radix_exact"; }

 private:
  absl::Status Store(HolderIndex holder, const Stored& stored, ChangeLog* changes) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Node*> AllNodes() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Emptied(Node* node) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Describe(IndexStats* stats) const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Node* NodeNamed(SequenceHash name, Position position) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Node* ParentOf(const Stored& stored) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Join(Node* parent, Node* node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status RoomForBlock(SequenceHash name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::flat_hash_map<SequenceHash, Node*> nodes_ ABSL_GUARDED_BY(mutex_);
};

absl::Status ExactRadixIndex::Store(HolderIndex holder, const Stored& stored, ChangeLog* changes) {
  if (stored.blocks.empty()) return absl::OkStatus();
  if (lookup_.size() < holder_numbers()) lookup_.resize(holder_numbers());
  Node* const first_parent = ParentOf(stored);
  Node* parent = first_parent;
  absl::Status status;
  for (size_t i = 0; i < stored.blocks.size(); ++i) {
    const SequenceHash name = stored.blocks[i];
    status = RoomForBlock(name);
    if (!status.ok()) {
      Refuse(stored, i);
      break;
    }
    Node* const node = NodeNamed(name, stored.position + static_cast<Position>(i));
    if (node->holders.empty()) node->parent_name = ParentAt(stored, i);
    Join(parent, node);
    KeepLocal(stored, i, node);
    Hold(node, holder, name, stored.tier, changes);
    parent = node;
  }
  // It was made for a child that was refused, or that hangs elsewhere.
  Emptied(first_parent);
  return status;
}

Node* ExactRadixIndex::ParentOf(const Stored& stored) {
  return stored.position == 0 ? &root_ : NodeNamed(stored.parent, stored.position - 1);
}

// A node stays where it was hung first, unless that was below a parent without a name: a tail of
// which no one said what it follows.
void ExactRadixIndex::Join(Node* parent, Node* node) {
  Node* const before = node->parent;
  if (before == parent || parent->position + 1 != node->position) return;
  if (before != nullptr && before->name != kNoParent) return;
  if (before != nullptr) Unlink(node);
  Link(parent, LocalHash{Raw(node->name)}, node);
  if (before != nullptr) Emptied(before);
}

Node* ExactRadixIndex::NodeNamed(SequenceHash name, Position position) {
  Node*& node = nodes_[name];
  if (node == nullptr) {
    node = new Node();
    node->name = name;
    node->position = position;
  }
  return node;
}

absl::Status ExactRadixIndex::RoomForBlock(SequenceHash name) const {
  const auto known = nodes_.find(name);
  if (known != nodes_.end() && !known->second->holders.empty()) return absl::OkStatus();
  return RoomFor(blocks_);
}

// Upward, as far as nodes are there for nothing.
void ExactRadixIndex::Emptied(Node* node) {
  while (node != nullptr && node != &root_ && node->holders.empty() && node->children.empty()) {
    Node* const parent = node->parent;
    if (parent != nullptr) Unlink(node);
    nodes_.erase(node->name);
    Delete(node);
    node = parent;
  }
  ShrinkTable(&nodes_);
}

std::vector<Node*> ExactRadixIndex::AllNodes() const {
  std::vector<Node*> nodes;
  for (const auto& [name, node] : nodes_) nodes.push_back(node);
  return nodes;
}

void ExactRadixIndex::Describe(IndexStats* stats) const {
  RadixTree::Describe(stats);
  stats->bytes += TableBytes(nodes_);
  stats->shape.emplace_back("empty_nodes", nodes_.size() - blocks_);
}

}  // namespace

std::unique_ptr<Index> MakeRadixIndex(const IndexOptions& options) {
  return std::make_unique<RadixIndex>(options);
}

std::unique_ptr<Index> MakeExactRadixIndex(const IndexOptions& options) {
  return std::make_unique<ExactRadixIndex>(options);
}

}  // namespace kvatlas
