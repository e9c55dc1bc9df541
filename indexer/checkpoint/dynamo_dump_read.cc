// Reads a `/dump` in constant memory beside its names: `Pieces` feeds nlohmann's SAX parser from
// chunks of the text, `DumpHandler` turns its tokens into events, and `DumpLinker` gives each
// event's blocks their content, which needs the parent's, and tells the visitor.
// Nothing about the order of keys and events is assumed. Events that came too early wait, bounded
// by `DumpReadOptions::waiting_bytes_max`: for their parent in the linker, for their domain's block
// size in the handler.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/checkpoint/dynamo_dump.h"
#include "indexer/kv_events/engine_registration.h"

namespace kvatlas {
namespace {

// The text is another process's: bounds of what one token, event or domain may cost.
constexpr size_t kEventBlocksMax = 1 << 17;
constexpr size_t kNestingMax = 64;
constexpr size_t kNameBytesMax = 512;
constexpr size_t kNamespaceBytesMax = 256 << 10;
constexpr size_t kTokenBytesMax = 1 << 20;  // a key, a text, a number, or blanks between them
constexpr size_t kRanksMax = 1 << 16;       // of a domain

// One block of an event as it was read. Absent numbers are not 0, which is a possible hash.
struct Block {
  std::optional<uint64_t> block_hash, tokens_hash, sequence_hash;
  uint64_t copies = 1;
  uint32_t group = 0;
  std::string digest;  // decoded
};

// One event as it was read; `is_sound` is false once a value had a type that it cannot have.
struct DumpEvent {
  std::string instance;
  std::optional<Tier> tier = Tier::kDevice;  // nothing: an unknown one
  uint32_t rank = 0;
  bool is_store = false;
  bool is_sound = true;
  std::optional<uint64_t> parent, parent_sequence, start;
  std::string lora_name, cache_salt;
  uint32_t eagle = 0;
  std::vector<Block> blocks;
};

// Memory of a waiting event. The same function adds and subtracts, so the account ends at 0.
uint64_t BytesOf(const DumpEvent& event) {
  uint64_t bytes = sizeof event + event.instance.size() + event.lora_name.size() +
                   event.cache_salt.size() + event.blocks.size() * sizeof(Block);
  for (const Block& block : event.blocks) bytes += block.digest.size();
  return bytes;
}

// The block that a name stands for: what its children need of it.
struct Place {
  SequenceHash block{0};
  Position position = 0;
};

// One worker rank of the domain that is being read; gone with the domain (`EndDomain`).
struct RankNames {
  // By the engine's name (`block_hash`). The first of several blocks of one name counts. Grows with
  // the blocks told, hence `DumpReadOptions::blocks_max`.
  absl::flat_hash_map<uint64_t, Place> places;
  absl::flat_hash_map<uint64_t, std::vector<DumpEvent>> waiting;  // by the parent's name
};

// Links events to chains. Per worker rank, since a name means something within its rank alone.
// 1. `Take` an event whose parent is known, or which names none or its parent's sequence hash:
//    `Tell` it.
// 2. An event whose parent is unknown waits under the parent's name.
// 3. `Tell` moves events that waited for one of its blocks to `ready`; `Take` goes on until none is
//    left, without recursion.
class DumpLinker {
 public:
  DumpLinker(const DumpReadOptions& options, DumpVisitor* visitor)
      : options_(options), visitor_(visitor) {}

  absl::Status BeginDomain(const Domain& domain, uint32_t block_size) {
    domain_ = domain;
    ++stats_.domains;
    return visitor_->OnDomain(domain, block_size);
  }

  absl::Status Take(DumpEvent event) {
    std::vector<DumpEvent> ready;
    ready.push_back(std::move(event));
    while (!ready.empty()) {
      DumpEvent next = std::move(ready.back());
      ready.pop_back();
      if (absl::Status bad = TakeOne(std::move(next), &ready); !bad.ok()) return bad;
    }
    return absl::OkStatus();
  }

  void EndDomain() {
    stats_.orphaned_blocks += waiting_blocks_;
    waiting_blocks_ = waiting_bytes_ = 0;
    ranks_.clear();
  }

  void CountSkipped() { ++stats_.skipped_events; }
  void CountFailedDomain() { ++stats_.failed_domains; }
  const DumpReadStats& stats() const { return stats_; }

 private:
  // Finds the parent, in this order: a name that was told; else the sequence hash that our own
  // writer adds; else it waits. Without any parent the event must be at the root.
  absl::Status TakeOne(DumpEvent event, std::vector<DumpEvent>* ready) {
    RankNames& rank = ranks_[{event.instance, event.rank}];
    if (ranks_.size() > kRanksMax)
      return absl::ResourceExhaustedError("a dump of more than " + std::to_string(kRanksMax) +
                                          " worker ranks");
    SequenceHash parent = kNoParent;
    uint64_t position = event.start.value_or(0);
    const auto place =
        event.parent.has_value() ? rank.places.find(*event.parent) : rank.places.end();
    if (place != rank.places.end()) {
      parent = place->second.block;
      position = uint64_t{place->second.position} + 1;
    } else if (event.parent_sequence.has_value()) {
      parent = SequenceHash{*event.parent_sequence};
    } else if (event.parent.has_value()) {
      waiting_blocks_ += event.blocks.size();
      waiting_bytes_ += BytesOf(event);
      if (waiting_bytes_ > options_.waiting_bytes_max)
        return absl::ResourceExhaustedError("too many blocks of a dump wait for their parents");
      rank.waiting[*event.parent].push_back(std::move(event));
      return absl::OkStatus();
    } else if (position != 0) {
      // A block at a position, of whose sequence nothing is said.
      stats_.orphaned_blocks += event.blocks.size();
      return absl::OkStatus();
    }
    return Tell(event, parent, position, &rank, ready);
  }

  // Tells the blocks one after another, each the parent of the next. All are suspect and lasting: a
  // dump has no stream position, so events must confirm them, and no timeout drops them before
  // (`EngineAlias`).
  absl::Status Tell(const DumpEvent& event, SequenceHash parent, uint64_t position, RankNames* rank,
                    std::vector<DumpEvent>* ready) {
    EngineAlias alias;
    alias.rank = event.rank;
    alias.suspect = alias.lasting = true;
    alias.eagle = event.eagle;
    alias.lora_name = event.lora_name;
    alias.cache_salt = event.cache_salt;
    for (const Block& block : event.blocks) {
      if (++stats_.blocks > options_.blocks_max)
        return absl::ResourceExhaustedError("a dump of too many blocks");
      alias.hash = {.value = *block.block_hash, .bytes = block.digest};
      alias.local = LocalHash{block.tokens_hash.value_or(0)};
      alias.group = block.group;
      alias.parent = parent;
      alias.position = static_cast<Position>(position);
      alias.block = SequenceOf(block, parent);
      alias.copies = {};
      alias.copies[static_cast<size_t>(*event.tier)] = static_cast<uint32_t>(block.copies);
      if (absl::Status bad = visitor_->OnBlock(domain_, event.instance, alias); !bad.ok())
        return bad;
      rank->places.try_emplace(*block.block_hash, Place{alias.block, alias.position});
      if (const auto it = rank->waiting.find(*block.block_hash); it != rank->waiting.end()) {
        for (DumpEvent& child : it->second) {
          waiting_blocks_ -= child.blocks.size();
          waiting_bytes_ -= BytesOf(child);
          ready->push_back(std::move(child));
        }
        rank->waiting.erase(it);
      }
      parent = alias.block;
      ++position;
    }
    return absl::OkStatus();
  }

  // The sequence hash as the writer gave it, or derived: the root's is its local hash, a child's
  // the contract's fold of the parent's and its own.
  SequenceHash SequenceOf(const Block& block, SequenceHash parent) const {
    if (block.sequence_hash.has_value()) return SequenceHash{*block.sequence_hash};
    const LocalHash local{block.tokens_hash.value_or(0)};
    return parent == kNoParent ? SequenceHash{Raw(local)}
                               : NextSequenceHash(parent, local, options_.contract);
  }

  const DumpReadOptions& options_;
  DumpVisitor* const visitor_;
  Domain domain_;
  absl::flat_hash_map<std::pair<std::string, uint32_t>, RankNames> ranks_;
  uint64_t waiting_blocks_ = 0;
  uint64_t waiting_bytes_ = 0;
  DumpReadStats stats_;
};

std::optional<Tier> TierOf(std::string_view name) {
  if (name == "device") return Tier::kDevice;
  if (name == "host_pinned") return Tier::kHost;
  if (name == "disk") return Tier::kDisk;
  if (name == "external") return Tier::kExternal;
  return std::nullopt;
}

// Pairs of lower case digits, as the writer has them; empty: another text. An odd last digit is
// ignored.
std::string FromHex(std::string_view digits) {
  const auto value = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    const int high = value(digits[i]), low = value(digits[i + 1]);
    if (high < 0 || low < 0) return "";
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

// Where in the text the parser is, the innermost on top of `stack_`. Objects and arrays that are
// not listed here, or stand elsewhere, are `kSkip`, and so is all within them.
enum class At : uint8_t {
  kTop,
  kDomain,
  kKvatlas,
  kEvents,
  kEvent,
  kInner,
  kData,
  kStored,
  kBlocks,
  kBlock,
  kSkip
};

// The SAX handler: what nlohmann's parser calls, value by value. Returning false ends the parsing;
// `status_` then says why. A domain begins (`Begin`) with its first event after the block size is
// known, or at its end.
class DumpHandler {
 public:
  DumpHandler(const DumpReadOptions& options, DumpVisitor* visitor)
      : options_(options), linker_(options, visitor) {}

  const absl::Status& status() const { return status_; }
  // Keys, values and brackets so far; `Pieces` sees by it that tokens end.
  const uint64_t& tokens() const { return tokens_; }
  const DumpReadStats& stats() const { return linker_.stats(); }

  // ---- nlohmann's names ----

  bool null() { return Value(nullptr, nullptr, nullptr); }
  bool boolean(bool value) {
    ++tokens_;
    if (stack_.empty()) return Fail("not a dump: no object");
    if (At_() == At::kEvent && key_ == "eagle") event_.eagle = value;
    return true;
  }
  bool number_integer(int64_t value) {
    const auto bits = static_cast<uint64_t>(value);
    return Value(&bits, nullptr, &value);
  }
  bool number_unsigned(uint64_t value) { return Value(&value, nullptr, nullptr); }
  bool number_float(double, const std::string&) { return Bad(); }
  bool string(std::string& value) { return Value(nullptr, &value, nullptr); }
  bool binary(nlohmann::json::binary_t&) { return true; }
  bool key(std::string& key) {
    ++tokens_;
    key_ = key;
    if (At_() == At::kTop) return SplitKey();
    return true;
  }
  bool start_object(size_t) { return Push(Object()); }
  bool start_array(size_t) { return Push(Array()); }
  bool end_object() { return Pop(); }
  bool end_array() { return Pop(); }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& error) {
    if (status_.ok())
      status_ = absl::InvalidArgumentError("not a dump, at byte " + std::to_string(at) + ": " +
                                           error.what());
    return false;
  }

 private:
  At At_() const { return stack_.empty() ? At::kSkip : stack_.back(); }

  // Where an object that begins here is: by the place around it and the key before it.
  At Object() {
    if (stack_.empty()) return At::kTop;
    switch (stack_.back()) {
      case At::kTop:
        block_size_.reset();
        begun_ = false;
        early_.clear();
        return At::kDomain;
      case At::kDomain:
        return key_ == "kvatlas" ? At::kKvatlas : At::kSkip;
      case At::kEvents:
        event_ = {};
        return At::kEvent;
      case At::kEvent:
        return key_ == "event" ? At::kInner : At::kSkip;
      case At::kInner:
        return key_ == "data" ? At::kData : At::kSkip;
      case At::kData:
        if (key_ != "stored") return At::kSkip;
        event_.is_store = true;
        return At::kStored;
      case At::kBlocks:
        event_.blocks.emplace_back();
        return At::kBlock;
      default:
        return At::kSkip;
    }
  }

  At Array() {
    if (stack_.empty()) return At::kSkip;
    const At at = stack_.back();
    if ((at == At::kDomain || at == At::kKvatlas) && key_ == "events") return At::kEvents;
    if (at == At::kStored && key_ == "blocks") return At::kBlocks;
    return At::kSkip;
  }

  // Bounds are checked at each bracket: every block is an object of its own.
  bool Push(At at) {
    ++tokens_;
    if (stack_.empty() && at != At::kTop) return Fail("not a dump: no object");
    if (stack_.size() >= kNestingMax) return Fail("a dump that is nested too deep");
    if (event_.blocks.size() > kEventBlocksMax) return Fail("an event of too many blocks");
    stack_.push_back(at);
    return true;
  }

  // The parser's brackets match, so `stack_` is not empty here.
  bool Pop() {
    ++tokens_;
    const At at = stack_.back();
    stack_.pop_back();
    if (at == At::kEvent) return EndEvent();
    if (at == At::kDomain) return EndDomain();
    return true;
  }

  // A scalar: a number, a text, or, with both null, neither. `negative` is set for a number below
  // zero, whose bits `number` then has: hashes may be written as signed.
  bool Value(const uint64_t* number, std::string* text, const int64_t* negative) {
    ++tokens_;
    if (stack_.empty()) return Fail("not a dump: no object");
    switch (At_()) {
      case At::kDomain:
        return DomainValue(number, text);
      case At::kEvent:
        if (key_ == "worker_id") {
          if (number != nullptr && negative == nullptr) event_.instance = std::to_string(*number);
          if (text != nullptr) event_.instance = std::move(*text);
        }
        if (key_ == "storage_tier" && text != nullptr) event_.tier = TierOf(*text);
        // Blocks in a cache of another owner are not this worker's.
        if (key_ == "residency_domain") event_.is_sound &= text != nullptr && *text == "worker";
        if (key_ == "eagle" && number != nullptr && negative == nullptr)
          event_.eagle = static_cast<uint32_t>(std::min<uint64_t>(*number, kLookAheadMax + 1));
        if (key_ == "lora_name" && text != nullptr) event_.lora_name = std::move(*text);
        if (key_ == "cache_salt" && text != nullptr) event_.cache_salt = std::move(*text);
        return true;
      case At::kInner:
        if (key_ == "dp_rank" && number != nullptr) {
          event_.rank = static_cast<uint32_t>(*number);
          event_.is_sound &= *number <= UINT32_MAX;
        }
        return true;
      case At::kStored:
        if (key_ == "parent_hash") event_.parent = Maybe(number);
        if (key_ == "parent_sequence_hash") event_.parent_sequence = Maybe(number);
        if (key_ == "start_position") event_.start = Maybe(number);
        return true;
      case At::kBlock:
        BlockValue(number, text);
        return true;
      default:
        return true;
    }
  }

  // Null and texts are no number.
  static std::optional<uint64_t> Maybe(const uint64_t* number) {
    return number == nullptr ? std::nullopt : std::optional<uint64_t>(*number);
  }

  bool DomainValue(const uint64_t* number, std::string* text) {
    if (key_ == "block_size" && number != nullptr && *number <= kBlockSizeMax)
      block_size_ = static_cast<uint32_t>(*number);
    if (key_ == "model" && text != nullptr) model_ = std::move(*text);
    if (key_ == "routing_group" && text != nullptr) group_ = std::move(*text);
    if (key_ == "error") linker_.CountFailedDomain();
    return HasDomainsSize();
  }

  void BlockValue(const uint64_t* number, std::string* text) {
    Block& block = event_.blocks.back();
    if (key_ == "block_hash") block.block_hash = Maybe(number);
    if (key_ == "tokens_hash") block.tokens_hash = Maybe(number);
    if (key_ == "sequence_hash") block.sequence_hash = Maybe(number);
    if (key_ == "copies" && number != nullptr) block.copies = std::min<uint64_t>(*number, 1 << 20);
    if (key_ == "group" && number != nullptr) {
      block.group = static_cast<uint32_t>(*number);
      event_.is_sound &= *number <= UINT32_MAX;
    }
    if (key_ == "digest" && text != nullptr && text->size() <= kNameBytesMax * 2)
      block.digest = FromHex(*text);
  }

  // A fraction where only an integer makes sense: the event around it is skipped.
  bool Bad() {
    ++tokens_;
    if (stack_.empty()) return Fail("not a dump: no object");
    if (At_() == At::kEvent || At_() == At::kInner || At_() == At::kStored || At_() == At::kBlock)
      event_.is_sound = false;
    return true;
  }

  // The key of a domain is MODEL:GROUP; models may have colons, so the last one separates. Groups
  // with a colon are said in full by keys that come later (`DomainValue`).
  bool SplitKey() {
    const size_t colon = key_.rfind(':');
    model_ = key_.substr(0, colon);
    group_ = colon == std::string::npos ? "" : key_.substr(colon + 1);
    return HasDomainsSize();
  }

  bool HasDomainsSize() {
    return (model_.size() <= kRegisteredTextBytesMax && group_.size() <= kRegisteredTextBytesMax) ||
           Fail("a domain's name is too long");
  }

  // Whether an event can be told; others are counted as skipped. Dynamo writes removals and clears
  // as events too.
  bool IsSound(const DumpEvent& event) const {
    return event.is_store && event.is_sound && event.tier.has_value() && !event.instance.empty() &&
           event.instance.size() <= kNameBytesMax &&
           event.lora_name.size() + event.cache_salt.size() <= kNamespaceBytesMax &&
           !event.blocks.empty() && event.start.value_or(0) < UINT32_MAX &&
           event.start.value_or(0) + event.blocks.size() < UINT32_MAX &&
           std::all_of(
               event.blocks.begin(), event.blocks.end(),
               [](const Block& block) {
                 return block.block_hash.has_value() &&
                        (block.tokens_hash.has_value() || block.sequence_hash.has_value());
               });
  }

  // Once the block size is known events go to the linker at once; before, they wait in `early_`.
  bool EndEvent() {
    if (!IsSound(event_)) {
      linker_.CountSkipped();
      event_ = {};
      return true;
    }
    if (block_size_.has_value()) return Begin() && Take(linker_.Take(std::move(event_)));
    early_bytes_ += BytesOf(event_);
    if (early_bytes_ > options_.waiting_bytes_max)
      return Take(absl::ResourceExhaustedError("too many blocks of a dump wait for a block size"));
    early_.push_back(std::move(event_));
    return true;
  }

  // Tells the domain, once its block size is known, then the events that waited for it. Names of
  // the domain that come after its first event are too late.
  bool Begin() {
    if (begun_) return true;
    begun_ = true;
    if (!Take(linker_.BeginDomain(DomainOf(model_, group_), *block_size_))) return false;
    for (DumpEvent& event : early_)
      if (!Take(linker_.Take(std::move(event)))) return false;
    early_.clear();
    return true;
  }

  // Without a block size nothing of the domain is told, and its early events are dropped.
  bool EndDomain() {
    if (block_size_.has_value() && !Begin()) return false;
    early_bytes_ = 0;
    linker_.EndDomain();
    return true;
  }

  bool Take(absl::Status status) {
    if (status.ok()) return true;
    status_ = std::move(status);
    return false;
  }
  bool Fail(const char* why) { return Take(absl::InvalidArgumentError(why)); }

  const DumpReadOptions& options_;
  DumpLinker linker_;
  absl::Status status_;
  uint64_t tokens_ = 0;
  std::vector<At> stack_;
  std::string key_;
  std::string model_, group_;
  std::optional<uint32_t> block_size_;
  bool begun_ = false;
  std::vector<DumpEvent> early_;  // before the block size
  uint64_t early_bytes_ = 0;
  DumpEvent event_;
};

// The text as nlohmann reads it: character by character, from pieces of 64 KiB. The parser keeps a
// key, text or number until it is whole, in memory that it does not bound. `Fill` therefore counts
// the bytes of pieces that began since the last token was seen: more than `kTokenBytesMax` of them
// (and a piece, as a token may begin anywhere in one) end the reading.
class Pieces {
 public:
  Pieces(const ReadChunk& read, const uint64_t* tokens)
      : read_(read), tokens_(*tokens), piece_(64 << 10) {
    Fill();
  }

  bool at_end() const { return at_ == end_; }
  char current() const { return piece_[at_]; }
  void Next() {
    if (++at_ == end_) Fill();
  }
  const absl::Status& status() const { return status_; }

 private:
  void Fill() {
    const absl::StatusOr<size_t> size = read_(piece_.data(), piece_.size());
    if (!size.ok()) status_ = size.status();
    at_ = 0;
    end_ = size.ok() ? std::min(*size, piece_.size()) : 0;
    if (tokens_ != tokens_seen_) token_bytes_ = 0;
    tokens_seen_ = tokens_;
    token_bytes_ += end_;
    if (token_bytes_ <= kTokenBytesMax + piece_.size()) return;
    status_ = absl::ResourceExhaustedError("a dump with a key, text or number of over " +
                                           std::to_string(kTokenBytesMax) + " bytes");
    end_ = 0;
  }

  const ReadChunk& read_;
  const uint64_t& tokens_;
  uint64_t tokens_seen_ = 0;
  size_t token_bytes_ = 0;  // of pieces that began since the last token
  std::vector<char> piece_;
  size_t at_ = 0, end_ = 0;
  absl::Status status_;
};

// An input iterator over `Pieces`, as nlohmann takes it: copies share the position, and a null one
// is the end.
class PieceIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  explicit PieceIterator(Pieces* pieces) : pieces_(pieces) {}
  char operator*() const { return pieces_->current(); }
  PieceIterator& operator++() {
    pieces_->Next();
    return *this;
  }
  PieceIterator operator++(int) {
    PieceIterator before = *this;
    pieces_->Next();
    return before;
  }
  // Equal when both are at the end.
  friend bool operator==(const PieceIterator& a, const PieceIterator& b) {
    return a.IsEnd() == b.IsEnd();
  }
  friend bool operator!=(const PieceIterator& a, const PieceIterator& b) { return !(a == b); }

 private:
  bool IsEnd() const { return pieces_ == nullptr || pieces_->at_end(); }
  Pieces* pieces_;
};

}  // namespace

absl::StatusOr<DumpReadStats> ReadDump(const DumpReadOptions& options, const ReadChunk& read,
                                       DumpVisitor* visitor) {
  DumpHandler handler(options, visitor);
  Pieces pieces(read, &handler.tokens());
  // Not strict: text behind the object is ignored. An error of the connection is told before that
  // of the parser, which only saw the text end.
  const bool whole = nlohmann::json::sax_parse(PieceIterator(&pieces), PieceIterator(nullptr),
                                               &handler, nlohmann::json::input_format_t::json,
                                               /*strict=*/false);
  if (!pieces.status().ok()) return pieces.status();
  if (!handler.status().ok()) return handler.status();
  if (!whole) return absl::InvalidArgumentError("not a dump");
  return handler.stats();
}

}  // namespace kvatlas
