// Bytes of one name, rank and instance first (Put… and Take… mirror each other), then the writer,
// which pulls from a directory, and the reader, which tells a visitor.

#include "indexer/checkpoint/replica_snapshot.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/big_endian.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"

namespace kvatlas {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is written as it lies in memory");

constexpr std::string_view kMagic = "KVAREP07";
// Additions to the instance record, each behind its mark and in this order, written only where
// there is something to say. Readers of before stop at the first mark they do not know.
// Behind `kServerKeys`: the CURVE key of each listener. Behind `kFromFlags`: a byte for each.
constexpr std::string_view kServerKeys = "server_keys:";
constexpr std::string_view kFromFlags = "from_flags:";
constexpr std::string_view kOffload = "offload:";
constexpr std::string_view kFirstRank = "first_rank:";
constexpr std::string_view kStore = "store:";
constexpr std::string_view kSilent = "silent:";
// A url for each listener, where they are not all the instance's.
constexpr std::string_view kRankUrls = "rank_urls:";
constexpr size_t kNamesBytes = 256 << 10;  // of one record, about
constexpr size_t kPieceBytes = 256 << 10;
constexpr size_t kNamespaceBytesMax = 256 << 10;
constexpr Position kPositionMax = 1u << 30;  // no prompt has so many blocks
constexpr size_t kRecordHead = 1 + 4, kRecordTail = 8;

enum class Kind : uint8_t {
  kHeader = 1,
  kInstance = 2,
  kNames = 3,
  kPosition = 4,
  kEnd = 5,
  kRank = 6
};

enum NameFlag : uint8_t {
  kSuspect = 1,
  kEagle = 2,
  kDigest = 4,
  kNamespace = 8,
  kCopies = 16,
  kGroup = 32,
  kLasting = 64,
  kSideName = 128
};
// A name with `kEagle` has its position in so many low bits, and in the bits above how many tokens
// of look-ahead there are beyond the first (`kLookAheadMax` is 31: five bits).
constexpr int kEagleShift = 27;

enum RankFlag : uint8_t {
  kExtrasSeen = 1,
  kZeroNamed = 2,
  kGivenUp = 4,
  kWithoutMain = 8,
  kSideUnknown = 16
};

// ---- Bytes ----

template <typename Number>
void Put(std::string* to, Number number) {
  to->append(reinterpret_cast<const char*>(&number), sizeof number);
}

void PutText(std::string* to, std::string_view text) {
  Put(to, static_cast<uint32_t>(text.size()));
  to->append(text);
}

// Reads what was put; beyond the end everything is 0 and `ok` false.
class Taker {
 public:
  explicit Taker(std::string_view bytes) : bytes_(bytes) {}
  bool ok() const { return ok_; }
  bool empty() const { return bytes_.empty(); }
  void Check(bool holds) { ok_ = ok_ && holds; }
  // False, and nothing is taken: something else follows, or nothing.
  bool TakePrefix(std::string_view prefix) {
    if (!bytes_.starts_with(prefix)) return false;
    bytes_.remove_prefix(prefix.size());
    return true;
  }

  template <typename Number>
  Number Take() {
    Number number{};
    if (bytes_.size() < sizeof number) return Fail<Number>();
    std::memcpy(&number, bytes_.data(), sizeof number);
    bytes_.remove_prefix(sizeof number);
    return number;
  }

  std::string_view TakeText() {
    const auto size = Take<uint32_t>();
    if (bytes_.size() < size) return Fail<std::string_view>();
    const std::string_view text = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return text;
  }

 private:
  template <typename Value>
  Value Fail() {
    ok_ = false;
    bytes_ = {};
    return Value{};
  }
  std::string_view bytes_;
  bool ok_ = true;
};

// ---- One name ----

// Fixed fields first, then those that a flag announces, in the order of the flags' use below.
void PutName(std::string* to, const EngineAlias& alias) {
  uint8_t flags = 0;
  if (alias.suspect) flags |= kSuspect;
  if (alias.suspect && alias.lasting) flags |= kLasting;
  if (alias.eagle) flags |= kEagle;
  if (alias.group != 0) flags |= kGroup;
  if (alias.side) flags |= kSideName;
  if (!alias.hash.bytes.empty()) flags |= kDigest;
  if (!alias.lora_name.empty() || !alias.cache_salt.empty()) flags |= kNamespace;
  // Most blocks are held once, in the device tier.
  if (alias.copies != std::array<uint32_t, kTiers>{1}) flags |= kCopies;
  Put(to, flags);
  Put(to, alias.rank);
  Put(to, alias.hash.value);
  Put(to, Raw(alias.block));
  Put(to, Raw(alias.parent));
  Put(to, alias.position | (std::max<uint32_t>(1, alias.eagle) - 1) << kEagleShift);
  Put(to, Raw(alias.local));
  if (flags & kGroup) Put(to, alias.group);
  if (flags & kCopies)
    for (uint32_t copies : alias.copies) Put(to, copies);
  if (flags & kDigest) PutText(to, alias.hash.bytes);
  if (flags & kNamespace) {
    PutText(to, alias.lora_name);
    PutText(to, alias.cache_salt);
  }
}

// A digest; as an integer such a hash is the value of its last bytes.
EngineBlockHash TakeDigest(Taker* from) {
  const std::string_view bytes = from->TakeText();
  from->Check(!bytes.empty() && bytes.size() <= kEngineHashBytesMax);
  return {.value = FromBigEndian(bytes), .bytes = bytes};
}

EngineAlias TakeName(Taker* from) {
  EngineAlias alias;
  const auto flags = from->Take<uint8_t>();
  alias.suspect = flags & kSuspect;
  alias.lasting = flags & kLasting;
  alias.side = flags & kSideName;
  alias.rank = from->Take<uint32_t>();
  alias.hash.value = from->Take<uint64_t>();
  alias.block = SequenceHash{from->Take<uint64_t>()};
  alias.parent = SequenceHash{from->Take<uint64_t>()};
  alias.position = from->Take<uint32_t>();
  if (flags & kEagle) {
    alias.eagle = 1 + (alias.position >> kEagleShift);
    alias.position &= (1u << kEagleShift) - 1;
  }
  alias.local = LocalHash{from->Take<uint64_t>()};
  if (flags & kGroup) alias.group = from->Take<uint32_t>();
  alias.copies = {1};
  if (flags & kCopies)
    for (uint32_t& copies : alias.copies) copies = from->Take<uint32_t>();
  if (flags & kDigest) alias.hash = TakeDigest(from);
  if (flags & kNamespace) {
    alias.lora_name = from->TakeText();
    alias.cache_salt = from->TakeText();
  }
  from->Check(alias.position < kPositionMax &&
              alias.lora_name.size() + alias.cache_salt.size() <= kNamespaceBytesMax);
  return alias;
}

// ---- One rank ----

// Entries at the end of a rank's record, in any number. `kTiers` is no name: its group is
// `chunk_blocks`, and its hash has the bits of `silent`.
enum class RankEntry : uint8_t { kAmbiguous = 0, kSideLink = 1, kSharedSide = 2, kTiers = 3 };

void PutHash(std::string* to, const EngineBlockHash& name) {
  Put(to, static_cast<uint8_t>(name.bytes.empty() ? 0 : 1));
  if (name.bytes.empty()) {
    Put(to, name.value);
  } else {
    PutText(to, name.bytes);
  }
}

EngineBlockHash TakeHash(Taker* from) {
  if (from->Take<uint8_t>() != 0) return TakeDigest(from);
  EngineBlockHash name;
  name.value = from->Take<uint64_t>();
  return name;
}

void PutRank(std::string* to, const EngineRankMark& mark) {
  uint8_t flags = 0;
  if (mark.extras_seen) flags |= kExtrasSeen;
  if (mark.zero_named) flags |= kZeroNamed;
  if (mark.given_up) flags |= kGivenUp;
  if (!mark.has_main) flags |= kWithoutMain;
  if (mark.side_unknown) flags |= kSideUnknown;
  Put(to, mark.rank);
  Put(to, flags);
  Put(to, static_cast<uint8_t>(mark.sides.size()));
  for (const auto& [group, side] : mark.sides) {
    Put(to, group);
    Put(to, static_cast<uint8_t>(side.kind));
    Put(to, side.block_size);
    Put(to, side.window_tokens);
  }
  for (const std::vector<uint32_t>& groups : mark.required) {
    Put(to, static_cast<uint8_t>(groups.size()));
    for (uint32_t group : groups) Put(to, group);
  }
  const auto put = [&](RankEntry entry, uint32_t group, const EngineBlockHash& name) {
    Put(to, static_cast<uint8_t>(entry));
    Put(to, group);
    PutHash(to, name);
  };
  for (const auto& [group, name] : mark.ambiguous) put(RankEntry::kAmbiguous, group, name);
  if (mark.chunk_blocks != 0 || !mark.silent.empty())
    put(RankEntry::kTiers, mark.chunk_blocks, {.value = mark.silent.bits(), .bytes = {}});
  for (const EngineRankMark::SideLink& link : mark.side_links) {
    put(RankEntry::kSideLink, link.group, link.name);
    PutHash(to, link.before);
  }
  for (const EngineRankMark::SharedSide& shared : mark.shared_sides) {
    put(RankEntry::kSharedSide, shared.group, shared.name);
    Put(to, Raw(shared.side_name));
  }
}

EngineRankMark TakeRank(Taker* from) {
  EngineRankMark mark;
  mark.rank = from->Take<uint32_t>();
  const auto flags = from->Take<uint8_t>();
  mark.extras_seen = flags & kExtrasSeen;
  mark.zero_named = flags & kZeroNamed;
  mark.given_up = flags & kGivenUp;
  mark.has_main = (flags & kWithoutMain) == 0;
  mark.side_unknown = flags & kSideUnknown;
  for (auto left = from->Take<uint8_t>(); left > 0 && from->ok(); --left) {
    const auto group = from->Take<uint32_t>();
    CacheClass side;
    const auto kind = from->Take<uint8_t>();
    from->Check(kind < kCacheKinds);
    side.kind = static_cast<CacheKind>(kind);
    side.block_size = from->Take<uint32_t>();
    side.window_tokens = from->Take<uint32_t>();
    mark.sides.emplace_back(group, side);
  }
  for (std::vector<uint32_t>& groups : mark.required)
    for (auto left = from->Take<uint8_t>(); left > 0 && from->ok(); --left)
      groups.push_back(from->Take<uint32_t>());
  while (from->ok() && !from->empty()) {
    const auto entry = static_cast<RankEntry>(from->Take<uint8_t>());
    const auto group = from->Take<uint32_t>();
    const EngineBlockHash name = TakeHash(from);
    switch (entry) {
      case RankEntry::kAmbiguous:
        mark.ambiguous.emplace_back(group, name);
        break;
      case RankEntry::kSideLink:
        mark.side_links.push_back({.group = group, .name = name, .before = TakeHash(from)});
        break;
      case RankEntry::kSharedSide:
        mark.shared_sides.push_back(
            {.group = group, .name = name, .side_name = SequenceHash{from->Take<uint64_t>()}});
        break;
      case RankEntry::kTiers:
        mark.chunk_blocks = group;
        mark.silent = TierMask(static_cast<uint8_t>(name.value));
        break;
      default:
        from->Check(false);
    }
  }
  return mark;
}

// ---- One instance ----

std::string InstanceBytes(const EngineEntry& entry) {
  std::string bytes;
  PutText(&bytes, entry.instance);
  PutText(&bytes, entry.domain.model);
  PutText(&bytes, entry.domain.tenant);
  Put(&bytes, entry.block_size);
  PutText(&bytes, entry.source);
  PutText(&bytes, entry.engine_type);
  PutText(&bytes, entry.lora_name);
  PutText(&bytes, entry.additional_salt);
  PutText(&bytes, entry.url);
  Put(&bytes, static_cast<uint8_t>(entry.counts_copies));
  PutText(&bytes, entry.eagle_drop);
  Put(&bytes, entry.chunk_tokens);
  Put(&bytes, entry.window_tokens);
  Put(&bytes, static_cast<uint8_t>(entry.image_token.has_value()));
  Put(&bytes, entry.image_token.value_or(0));
  Put(&bytes, static_cast<uint32_t>(entry.listeners.size()));
  for (const EngineListener& listener : entry.listeners) {
    Put(&bytes, listener.rank);
    PutText(&bytes, listener.endpoint);
    PutText(&bytes, listener.replay_endpoint);
    PutText(&bytes, listener.topic);
    Put(&bytes, static_cast<uint8_t>(listener.bind));
  }
  Put(&bytes, static_cast<uint8_t>(entry.hybrid));
  const auto& listeners = entry.listeners;
  if (std::any_of(listeners.begin(), listeners.end(),
                  [](const EngineListener& one) { return !one.server_key.empty(); })) {
    bytes += kServerKeys;
    for (const EngineListener& listener : listeners) PutText(&bytes, listener.server_key);
  }
  bytes += kFromFlags;
  for (const EngineListener& listener : listeners)
    Put(&bytes, static_cast<uint8_t>(listener.from_flags));
  if (entry.offload_chunk_tokens != 0 || !entry.silent_tiers.empty()) {
    bytes += kOffload;
    Put(&bytes, entry.offload_chunk_tokens);
    PutText(&bytes, entry.silent_tiers);
  }
  if (entry.first_rank != 0) {
    bytes += kFirstRank;
    Put(&bytes, entry.first_rank);
  }
  if (!entry.store.empty()) {
    bytes += kStore;
    PutText(&bytes, entry.store);
    PutText(&bytes, entry.store_tiers);
  }
  if (entry.silent_blocks != 0 || entry.silent_seconds != 0) {
    bytes += kSilent;
    Put(&bytes, entry.silent_blocks);
    Put(&bytes, entry.silent_seconds);
  }
  if (std::any_of(listeners.begin(), listeners.end(), [&](const EngineListener& one) {
        return !one.url.empty() && one.url != entry.url;
      })) {
    bytes += kRankUrls;
    for (const EngineListener& listener : listeners) PutText(&bytes, listener.url);
  }
  return bytes;
}

std::string TakeRegistered(Taker* from) {
  const std::string_view text = from->TakeText();
  from->Check(text.size() <= kRegisteredTextBytesMax);
  return std::string(text);
}

// Refuses texts longer than a registration's, and listeners that are not in order of rank:
// `Listens` and the restorer rely on each rank being there once.
EngineEntry TakeInstance(Taker* from) {
  EngineEntry entry;
  entry.instance = TakeRegistered(from);
  entry.domain.model = TakeRegistered(from);
  entry.domain.tenant = TakeRegistered(from);
  entry.block_size = from->Take<uint32_t>();
  entry.source = TakeRegistered(from);
  entry.engine_type = TakeRegistered(from);
  entry.lora_name = TakeRegistered(from);
  entry.additional_salt = TakeRegistered(from);
  entry.url = TakeRegistered(from);
  entry.counts_copies = from->Take<uint8_t>() != 0;
  entry.eagle_drop = TakeRegistered(from);
  entry.chunk_tokens = from->Take<uint32_t>();
  entry.window_tokens = from->Take<uint32_t>();
  const bool sees_images = from->Take<uint8_t>() != 0;
  const auto image_token = from->Take<uint32_t>();
  if (sees_images) entry.image_token = image_token;
  auto left = from->Take<uint32_t>();
  from->Check(left <= kSnapshotListenersMax);
  for (; left > 0 && from->ok(); --left) {
    EngineListener listener;
    listener.rank = from->Take<uint32_t>();
    listener.endpoint = TakeRegistered(from);
    listener.replay_endpoint = TakeRegistered(from);
    listener.topic = TakeRegistered(from);
    listener.bind = from->Take<uint8_t>() != 0;
    // In order, each once.
    from->Check(entry.listeners.empty() || entry.listeners.back().rank < listener.rank);
    entry.listeners.push_back(std::move(listener));
  }
  // Writers from before `hybrid` end here, and those from before `kFromFlags` behind it or the
  // keys.
  if (!from->empty()) entry.hybrid = from->Take<uint8_t>() != 0;
  if (from->TakePrefix(kServerKeys))
    for (EngineListener& listener : entry.listeners) listener.server_key = TakeRegistered(from);
  if (from->TakePrefix(kFromFlags))
    for (EngineListener& listener : entry.listeners)
      listener.told_from_flags = from->Take<uint8_t>() != 0;
  if (from->TakePrefix(kOffload)) {
    entry.offload_chunk_tokens = from->Take<uint32_t>();
    entry.silent_tiers = TakeRegistered(from);
  }
  if (from->TakePrefix(kFirstRank)) entry.first_rank = from->Take<uint32_t>();
  if (from->TakePrefix(kStore)) {
    entry.store = TakeRegistered(from);
    entry.store_tiers = TakeRegistered(from);
  }
  if (from->TakePrefix(kSilent)) {
    entry.silent_blocks = from->Take<uint32_t>();
    entry.silent_seconds = from->Take<uint32_t>();
  }
  if (from->TakePrefix(kRankUrls))
    for (EngineListener& listener : entry.listeners) listener.url = TakeRegistered(from);
  return entry;
}

// Whether the instance has a stream of that rank.
bool Listens(const EngineEntry& entry, uint32_t rank) {
  return std::any_of(entry.listeners.begin(), entry.listeners.end(),
                     [&](const EngineListener& of) { return of.rank == rank; });
}

// ---- Writing ----

// A name as it was copied: where its bytes lie in `StreamNames::bytes`, and what `ChainOrder`
// needs.
struct CopiedName {
  uint32_t rank = 0;
  SequenceHash block{0};
  SequenceHash parent{0};
  size_t start = 0;
  size_t size = 0;
};

// One stream's names at its position, copied under its locks (`CopyNames`), ordered and sent
// without.
struct StreamNames {
  uint32_t rank = 0;
  std::optional<StreamPosition> position;
  std::vector<std::string> marks;
  std::vector<CopiedName> names;
  std::string bytes;
  std::vector<size_t> order;  // of the names, once `begun`
  size_t next = 0;            // of that
  bool begun = false;
};

// An order in which each name comes behind the first name of its parent's block: a walk in depth
// from the names without a known parent, with child and sibling lists and no recursion. Names on a
// cycle would be reached from no root and left out.
std::vector<size_t> ChainOrder(const std::vector<CopiedName>& names) {
  constexpr size_t kNone = SIZE_MAX;
  absl::flat_hash_map<std::pair<uint32_t, SequenceHash>, size_t> first;
  first.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i) first.try_emplace({names[i].rank, names[i].block}, i);
  std::vector<size_t> child(names.size(), kNone), sibling(names.size(), kNone), open, order;
  order.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const auto parent =
        names[i].parent == kNoParent ? first.end() : first.find({names[i].rank, names[i].parent});
    if (parent == first.end()) {
      open.push_back(i);
    } else {
      sibling[i] = std::exchange(child[parent->second], i);
    }
  }
  while (!open.empty()) {
    const size_t i = open.back();
    open.pop_back();
    order.push_back(i);
    for (size_t next = child[i]; next != kNone; next = sibling[next]) open.push_back(next);
  }
  return order;
}

// Pulled by `Next`, a piece at a time. Copies one instance when all streams of the one before are
// sent, so memory is that of one instance's names.
class SnapshotWriter {
 public:
  SnapshotWriter(const HashContract& contract, const EngineDirectory* directory, bool names)
      : contract_id_(contract.Id()),
        directory_(directory),
        with_names_(names),
        entries_(directory->Registrations()) {
    // Adopted instances without a stream: nothing confirms what they hold.
    std::erase_if(entries_, [](const EngineEntry& entry) { return entry.listeners.empty(); });
  }

  const SnapshotStats& written() const { return written_; }

  // Appends records to `piece` until it is long enough; false: the end record was the last.
  bool Next(std::string* piece) {
    to_ = piece;
    if (records_ == 0) Header();
    const size_t before = piece->size();
    while (piece->size() < before + kPieceBytes) {
      if (!streams_.empty()) {
        if (!NamesOf(streams_.front())) streams_.pop_front();
      } else if (at_ < entries_.size()) {
        Instance(entries_[at_++]);
        ++written_.instances;
      } else {
        break;
      }
    }
    if (!streams_.empty() || at_ < entries_.size()) return true;
    std::string payload;
    Put(&payload, records_);
    Record(Kind::kEnd, payload);
    return false;
  }

 private:
  void Header() {
    *to_ += kMagic;
    std::string payload;
    PutText(&payload, contract_id_);
    Record(Kind::kHeader, payload);
  }

  void Record(Kind kind, std::string_view payload) {
    const size_t start = to_->size();
    Put(to_, kind);
    Put(to_, static_cast<uint32_t>(payload.size()));
    *to_ += payload;
    Put(to_, Xxh3(std::string_view(*to_).substr(start), 0));
    ++records_;
  }

  // `Cut` visits each stream while nothing of it is applied; the work there is copying alone. An
  // instance that was unregistered meanwhile has fewer streams, or none.
  void Instance(const EngineEntry& entry) {
    Record(Kind::kInstance, InstanceBytes(entry));
    if (!with_names_) return;
    // An engine that went meanwhile is told as far as it was seen.
    (void)directory_->Cut(entry.instance,
                          [&](std::optional<uint32_t> rank, std::optional<StreamPosition> position,
                              const EngineWorker& worker) {
                            // One that came since is for the next snapshot.
                            if (!rank.has_value() || !Listens(entry, *rank)) return;
                            StreamNames& stream = streams_.emplace_back();
                            stream.rank = *rank;
                            stream.position = position;
                            CopyNames(entry, worker, &stream);
                          });
  }

  // Names of the ranks that this stream publishes; ranks of no registered stream go with the first
  // stream. A rank that several streams publish has no position of its own: its names are told as
  // suspect, so that the reader lets events confirm them.
  static void CopyNames(const EngineEntry& entry, const EngineWorker& worker, StreamNames* stream) {
    std::map<uint32_t, bool> in_doubt;  // ranks; several streams publish it
    for (const EngineRankStats& rank : worker.Stats().ranks) {
      const uint32_t of =
          Listens(entry, rank.stream_rank) ? rank.stream_rank : entry.listeners.front().rank;
      if (of == stream->rank) in_doubt[rank.rank] = rank.streams > 1;
    }
    worker.ForEachRank([&](const EngineRankMark& mark) {
      if (in_doubt.contains(mark.rank)) PutRank(&stream->marks.emplace_back(), mark);
    });
    worker.ForEachAlias([&](const EngineAlias& told) {
      const auto rank = in_doubt.find(told.rank);
      if (rank == in_doubt.end()) return;
      if (told.lora_name.size() + told.cache_salt.size() > kNamespaceBytesMax) return;
      EngineAlias alias = told;
      if (rank->second) {
        alias.suspect = true;
        alias.lasting = false;
      }
      const size_t start = stream->bytes.size();
      PutName(&stream->bytes, alias);
      stream->names.push_back(
          {.rank = alias.rank,
           .block = alias.block,
           .parent = alias.side || alias.position == 0 ? kNoParent : alias.parent,
           .start = start,
           .size = stream->bytes.size() - start});
    });
  }

  // One record of names more; before the first, what is to be known of the stream. False: all are
  // told.
  bool NamesOf(StreamNames& stream) {
    if (!stream.begun) BeginStream(&stream);
    std::string names;
    while (stream.next < stream.order.size() && names.size() < kNamesBytes) {
      const CopiedName& name = stream.names[stream.order[stream.next++]];
      names.append(stream.bytes, name.start, name.size);
      ++written_.names;
    }
    if (!names.empty()) Record(Kind::kNames, names);
    return stream.next < stream.order.size();
  }

  // The position, then the ranks, then names: a reader needs them in this order.
  void BeginStream(StreamNames* stream) {
    stream->begun = true;
    std::string payload;
    Put(&payload, stream->rank);
    Put(&payload, static_cast<uint8_t>(stream->position.has_value()));
    Put(&payload, stream->position.value_or(StreamPosition{}).last);
    Put(&payload, stream->position.value_or(StreamPosition{}).fingerprint);
    Record(Kind::kPosition, payload);
    ++written_.positions;
    for (const std::string& mark : stream->marks) Record(Kind::kRank, mark);
    stream->order = ChainOrder(stream->names);
  }

  const std::string contract_id_;
  const EngineDirectory* const directory_;
  const bool with_names_;
  std::vector<EngineEntry> entries_;
  size_t at_ = 0;
  std::deque<StreamNames> streams_;  // of the last instance, those that are not told yet
  uint64_t records_ = 0;
  SnapshotStats written_;
  std::string* to_ = nullptr;
};

// ---- Reading ----

// Reads record by record; only `record_` is kept. Order is enforced: a header first, names and
// ranks only behind a position, a position only behind its instance.
class SnapshotReader {
 public:
  SnapshotReader(const HashContract& contract, const ReadChunk& read, SnapshotVisitor* visitor)
      : contract_(contract), read_(read), visitor_(visitor) {}

  absl::StatusOr<SnapshotStats> Run() {
    std::string magic(kMagic.size(), '\0');
    if (absl::Status bad = Fill(magic.data(), magic.size()); !bad.ok()) return bad;
    if (magic.substr(0, 6) != kMagic.substr(0, 6))
      return absl::InvalidArgumentError("not a snapshot of a replica");
    if (magic != kMagic)
      return absl::FailedPreconditionError("a snapshot of another version: " + magic);
    for (uint64_t records = 0;; ++records) {
      Kind kind{};
      if (absl::Status bad = ReadRecord(&kind); !bad.ok()) return bad;
      Taker payload(std::string_view(record_).substr(kRecordHead,
                                                     record_.size() - kRecordHead - kRecordTail));
      if ((kind == Kind::kHeader) != (records == 0)) return Broken("no header");
      if (kind == Kind::kEnd) {
        if (payload.Take<uint64_t>() != records || !payload.ok())
          return Broken("records are missing");
        return stats_;
      }
      if (absl::Status bad = Take(kind, &payload); !bad.ok()) return bad;
    }
  }

 private:
  static absl::Status Broken(const char* how) {
    return absl::DataLossError("a replica's snapshot is broken: " + std::string(how));
  }

  absl::Status Fill(char* to, size_t size) {
    while (size > 0) {
      const absl::StatusOr<size_t> got = read_(to, size);
      if (!got.ok()) return got.status();
      if (*got == 0) return Broken("it ends early");
      to += *got;
      size -= *got;
    }
    return absl::OkStatus();
  }

  // The length is bounded before memory is taken for it; the checksum covers head and payload.
  absl::Status ReadRecord(Kind* kind) {
    record_.resize(kRecordHead);
    if (absl::Status bad = Fill(record_.data(), kRecordHead); !bad.ok()) return bad;
    Taker head(record_);
    *kind = Kind{head.Take<uint8_t>()};
    const auto size = head.Take<uint32_t>();
    if (size > kSnapshotRecordBytesMax) return Broken("a record is too long");
    record_.resize(kRecordHead + size + kRecordTail);
    if (absl::Status bad = Fill(record_.data() + kRecordHead, size + kRecordTail); !bad.ok())
      return bad;
    const std::string_view signed_bytes = std::string_view(record_).substr(0, kRecordHead + size);
    Taker tail(std::string_view(record_).substr(kRecordHead + size));
    return tail.Take<uint64_t>() == Xxh3(signed_bytes, 0) ? absl::OkStatus()
                                                          : Broken("a checksum is wrong");
  }

  absl::Status Take(Kind kind, Taker* payload) {
    switch (kind) {
      case Kind::kHeader: {
        const std::string_view id = payload->TakeText();
        if (id == contract_.Id()) return absl::OkStatus();
        return absl::FailedPreconditionError("hash contract \"" + std::string(id) +
                                             "\" is not ours, \"" + contract_.Id() + "\"");
      }
      case Kind::kInstance:
        stream_rank_.reset();
        entry_ = TakeInstance(payload);
        if (!payload->ok()) return Broken("an instance that cannot have been registered");
        if (++stats_.instances > kSnapshotInstancesMax) return Broken("too many instances");
        return visitor_->OnInstance(*entry_);
      case Kind::kRank:
        return TakeRankMark(payload);
      case Kind::kNames:
        return TakeNames(payload);
      case Kind::kPosition:
        return TakePosition(payload);
      default:
        return absl::OkStatus();
    }
  }

  absl::Status TakeNames(Taker* payload) {
    if (!stream_rank_.has_value()) return Broken("names of no stream");
    while (!payload->empty()) {
      EngineAlias alias = TakeName(payload);
      if (!payload->ok()) return Broken("a name that no block can have");
      if (++stats_.names > kSnapshotNamesMax) return Broken("too many names");
      alias.stream_rank = *stream_rank_;
      if (absl::Status bad = visitor_->OnName(*entry_, alias); !bad.ok()) return bad;
    }
    return absl::OkStatus();
  }

  absl::Status TakeRankMark(Taker* payload) {
    if (!stream_rank_.has_value()) return Broken("a rank of no stream");
    EngineRankMark mark = TakeRank(payload);
    if (!payload->ok()) return Broken("a rank");
    mark.stream_rank = *stream_rank_;
    return visitor_->OnRank(*entry_, mark);
  }

  // Names and ranks that follow are this stream's, until the next position or instance.
  absl::Status TakePosition(Taker* payload) {
    const auto rank = payload->Take<uint32_t>();
    const bool is_known = payload->Take<uint8_t>() != 0;
    StreamPosition position;
    position.last = payload->Take<uint64_t>();
    position.fingerprint = payload->Take<uint64_t>();
    if (!payload->ok() || !entry_.has_value() || !Listens(*entry_, rank))
      return Broken("a position of no stream");
    stream_rank_ = rank;
    ++stats_.positions;
    return visitor_->OnPosition(*entry_, rank, is_known ? std::optional(position) : std::nullopt);
  }

  const HashContract& contract_;
  const ReadChunk& read_;
  SnapshotVisitor* const visitor_;
  std::string record_;
  std::optional<EngineEntry> entry_;
  std::optional<uint32_t> stream_rank_;  // one of `entry_`
  SnapshotStats stats_;
};

}  // namespace

TextSource ReplicaSnapshotSource(const HashContract& contract, const EngineDirectory* directory,
                                 bool names, SnapshotStats* written) {
  return [writer = std::make_shared<SnapshotWriter>(contract, directory, names),
          written](std::string* piece) {
    const bool more = writer->Next(piece);
    if (written != nullptr) *written = writer->written();
    return more;
  };
}

absl::StatusOr<SnapshotStats> ReadReplicaSnapshot(const HashContract& contract,
                                                  const ReadChunk& read, SnapshotVisitor* visitor) {
  return SnapshotReader(contract, read, visitor).Run();
}

}  // namespace kvatlas
