// The text of an answer, written into a buffer that is large enough for the worst case, with no
// check per piece. Holders get numbers at their first sight (`Learn`), with their JSON keys ready,
// so that a later answer copies texts and formats numbers only.
// Ranks of one instance are a list through `entries_`, in the order of `Add`; instances are in the
// order of their first rank.

#include "indexer/compat/dynamo/scores_answer.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "indexer/telemetry/text_escape.h"

namespace kvatlas {
namespace {

// Upper bound of an instance's text without its keys: five numbers of at most 14 digits (2^32
// blocks of 2^16 tokens), and the words.
constexpr size_t kGroupBytes = 160;
// The same for a rank, which stands in "scores" and in "dp".
constexpr size_t kEntryBytes = 2 * 24;
// The words around both lists.
constexpr size_t kFrameBytes = 64;
constexpr size_t kNumberBytesMax = 20;

// Copies a literal without its final 0; returns the end.
template <size_t kSize>
char* Put(const char (&text)[kSize], char* to) {
  std::memcpy(to, text, kSize - 1);
  return to + kSize - 1;
}

// Formats blocks as tokens. Neighbours are often equal, so the last text is kept: up to eight
// digits in a register, since memory that was just written byte by byte is slow to read as a whole.
// Longer numbers are in `long_`.
class Tokens {
 public:
  explicit Tokens(uint32_t block_size) : block_size_(block_size) { Format(0); }

  // May write up to `kNumberBytesMax` bytes.
  char* Put(uint32_t blocks, char* to) {
    if (blocks != blocks_) Format(blocks);
    if (size_ > sizeof(packed_)) return std::copy_n(long_, size_, to);
    std::memcpy(to, &packed_, sizeof(packed_));
    return to + size_;
  }

 private:
  void Format(uint32_t blocks) {
    blocks_ = blocks;
    uint64_t tokens = uint64_t{blocks} * block_size_;
    if (tokens < 100'000'000 && std::endian::native == std::endian::little) {
      packed_ = 0;
      size_ = 0;
      auto rest = static_cast<uint32_t>(tokens);
      do {
        packed_ = packed_ << 8 | ('0' + rest % 10);
        rest /= 10;
        ++size_;
      } while (rest != 0);
      return;
    }
    size_ = static_cast<size_t>(std::to_chars(long_, long_ + sizeof(long_), tokens).ptr - long_);
    std::memcpy(&packed_, long_, sizeof(packed_));
  }

  const uint64_t block_size_;
  uint32_t blocks_ = 0;
  uint64_t packed_ = 0;  // the first digit lowest
  size_t size_ = 0;
  char long_[kNumberBytesMax] = {};
};
static_assert(sizeof(uint64_t) <= kNumberBytesMax);

// A holder asked under several kinds of hashes, and an instance of several ranks, count with the
// deepest.
void TakeLarger(const TierReach& reach, TierReach* best) {
  best->device = std::max(best->device, reach.device);
  best->device_host = std::max(best->device_host, reach.device_host);
  best->any = std::max(best->any, reach.any);
}

}  // namespace

void ScoresAnswer::Key::Set(const std::string& key) {
  size = static_cast<uint32_t>(key.size());
  if (key.size() <= kShortMax) {
    std::memcpy(text, key.data(), key.size());
  } else {
    spilled = key;
  }
}

// Copies a fixed number of bytes where it can, which is faster than the exact number: up to
// `kShortMax` bytes beyond the end are written. `Write` keeps so much room behind the text.
inline char* ScoresAnswer::Key::Put(char* to) const {
  if (size <= kShortMax) {
    std::memcpy(to, text, kShortMax);
  } else {
    std::memcpy(to, spilled.data(), size);
  }
  return to + size;
}

// Begins another answer. Numbers of holders stay valid: entries of earlier answers are told apart
// by `query_`, so nothing need be reset per holder. All is forgotten when too many holders were
// seen, since they come and go.
void ScoresAnswer::Clear() {
  if (known_.size() > kHoldersRemembered) {
    known_.clear();
    instances_.clear();
    by_info_.clear();
    by_name_.clear();
  }
  ++query_;
  entries_.clear();
  groups_.clear();
  key_bytes_ = 0;
}

// The holder's number. The address of its info is only a hint: it may be another holder's by now,
// so name and rank are compared, and a mismatch learns it anew.
uint32_t ScoresAnswer::Find(const HolderInfo& holder) {
  const auto found = by_info_.find(&holder);
  if (found == by_info_.end()) return Learn(holder);
  const Known& known = known_[found->second];
  if (known.rank == holder.id.rank && known.name == holder.id.name) return found->second;
  return Learn(holder);
}

uint32_t ScoresAnswer::Learn(const HolderInfo& holder) {
  const auto [instance, is_new] =
      by_name_.try_emplace(holder.id.name, static_cast<uint32_t>(instances_.size()));
  if (is_new) {
    std::string key = "\"";
    AppendJsonEscaped(&key, holder.id.name);
    instances_.emplace_back().key.Set(key + "\":");
  }
  const auto known = static_cast<uint32_t>(known_.size());
  Known& added = known_.emplace_back();
  added.rank_key.Set("\"" + std::to_string(holder.id.rank) + "\":");
  added.rank = holder.id.rank;
  added.instance = instance->second;
  added.name = holder.id.name;
  by_info_.insert_or_assign(&holder, known);
  return known;
}

// Constant time. `group` and `entry` of an instance or a holder count only if their `query` is this
// one. `key_bytes_` sums up the keys as `Write` will copy them, twice each: in "scores" and
// "instances".
void ScoresAnswer::Add(const HolderInfo& holder, const TierReach& reach) {
  const uint32_t number = Find(holder);
  Known& known = known_[number];
  Instance& instance = instances_[known.instance];
  if (instance.query != query_) {
    instance.query = query_;
    instance.group = static_cast<uint32_t>(groups_.size());
    groups_.push_back({.instance = known.instance});
    key_bytes_ += 2 * instance.key.size;
  }
  Group& group = groups_[instance.group];
  TakeLarger(reach, &group.best);
  if (known.query == query_) return TakeLarger(reach, &entries_[known.entry].reach);
  known.query = query_;
  known.entry = static_cast<uint32_t>(entries_.size());
  key_bytes_ += 2 * known.rank_key.size;
  entries_.push_back({.known = number, .reach = reach});
  (group.first == kNone ? group.first : entries_[group.last].next) = known.entry;
  group.last = known.entry;
}

// Instances without anything on the device are left out, and so are such ranks. An instance that is
// not left out has a rank to write, so the last comma is there to be replaced.
char* ScoresAnswer::WriteScores(uint32_t block_size, char* to) const {
  Tokens tokens(block_size);
  char* const begin = to;
  for (const Group& group : groups_) {
    if (group.best.device == 0) continue;
    to = instances_[group.instance].key.Put(to);
    *to++ = '{';
    for (uint32_t i = group.first; i != kNone; i = entries_[i].next) {
      if (entries_[i].reach.device == 0) continue;
      to = known_[entries_[i].known].rank_key.Put(to);
      to = tokens.Put(entries_[i].reach.device, to);
      *to++ = ',';
    }
    to[-1] = '}';
    *to++ = ',';
  }
  return to == begin ? to : to - 1;
}

// All instances; each has at least one rank, whose comma becomes the brace.
char* ScoresAnswer::WriteInstances(uint32_t block_size, char* to) const {
  Tokens tokens(block_size);
  for (const Group& group : groups_) {
    to = instances_[group.instance].key.Put(to);
    to = Put("{\"longest_matched\":", to);
    to = tokens.Put(group.best.any, to);
    to = Put(",\"gpu\":", to);
    to = tokens.Put(group.best.device, to);
    to = Put(",\"dp\":{", to);
    for (uint32_t i = group.first; i != kNone; i = entries_[i].next) {
      to = known_[entries_[i].known].rank_key.Put(to);
      to = tokens.Put(entries_[i].reach.device, to);
      *to++ = ',';
    }
    to[-1] = '}';
    to = Put(",\"cpu\":", to);
    to = tokens.Put(group.best.device_host, to);
    to = Put(",\"disk\":", to);
    to = tokens.Put(group.best.any, to);
    to = Put("},", to);
  }
  return groups_.empty() ? to : to - 1;
}

// Makes room for the worst case, writes, and cuts the text to its length. The slack covers what
// `Key::Put` and `Tokens::Put` may write beyond the end.
void ScoresAnswer::Write(uint32_t block_size, bool open, std::string* out) const {
  const size_t before = out->size();
  out->resize(before + kFrameBytes + Key::kShortMax + kNumberBytesMax + key_bytes_ +
              kGroupBytes * groups_.size() + kEntryBytes * entries_.size());
  char* to = out->data() + before;
  to = Put("{\"scores\":{", to);
  to = WriteScores(block_size, to);
  to = Put("},\"frequencies\":[],\"instances\":{", to);
  to = WriteInstances(block_size, to);
  *to++ = '}';
  if (!open) *to++ = '}';
  out->resize(static_cast<size_t>(to - out->data()));
}

}  // namespace kvatlas
