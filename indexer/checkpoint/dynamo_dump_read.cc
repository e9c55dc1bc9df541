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

constexpr size_t kEventBlocksMax = 1 << 17;
constexpr size_t kNestingMax = 64;
constexpr size_t kNameBytesMax = 512;
constexpr size_t kNamespaceBytesMax = 256 << 10;
constexpr size_t kTokenBytesMax = 1 << 20;  // a key, a text, a number, or blanks between them
constexpr size_t kRanksMax = 1 << 16;       // of a domain

struct Block {
  std::optional<uint64_t> block_hash, tokens_hash, sequence_hash;
  uint64_t copies = 1;
  uint32_t group = 0;
  std::string digest;  // decoded
};

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

// What it takes in memory while it waits.
uint64_t BytesOf(const DumpEvent& event) {
  uint64_t bytes = sizeof event + event.instance.size() + event.lora_name.size() +
                   event.cache_salt.size() + event.blocks.size() * sizeof(Block);
  for (const Block& block : event.blocks) bytes += block.digest.size();
  return bytes;
}

// Where a name stands: enough to go on from it.
struct Place {
  SequenceHash block{0};
  Position position = 0;
};

// One worker rank's names so far, and the events that wait for one.
struct RankNames {
  absl::flat_hash_map<uint64_t, Place> places;
  absl::flat_hash_map<uint64_t, std::vector<DumpEvent>> waiting;  // by the parent's name
};

// Gives each event's blocks their content, which needs the parent's, and tells them.
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

// Where in the text we are. Whatever is not here is skipped whole.
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

// What nlohmann's parser tells, value by value.
class DumpHandler {
 public:
  DumpHandler(const DumpReadOptions& options, DumpVisitor* visitor)
      : options_(options), linker_(options, visitor) {}

  const absl::Status& status() const { return status_; }
  // So many keys, values and brackets were told.
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

  bool Push(At at) {
    ++tokens_;
    if (stack_.empty() && at != At::kTop) return Fail("not a dump: no object");
    if (stack_.size() >= kNestingMax) return Fail("a dump that is nested too deep");
    if (event_.blocks.size() > kEventBlocksMax) return Fail("an event of too many blocks");
    stack_.push_back(at);
    return true;
  }

  bool Pop() {
    ++tokens_;
    const At at = stack_.back();
    stack_.pop_back();
    if (at == At::kEvent) return EndEvent();
    if (at == At::kDomain) return EndDomain();
    return true;
  }

  // A number, a text, or neither: null. `negative` is set of a number below zero.
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
        // What a cache of another owner holds is not this worker's.
        if (key_ == "residency_domain") event_.is_sound &= text != nullptr && *text == "worker";
        if (key_ == "eagle" && number != nullptr && negative == nullptr)
          event_.eagle = static_cast<uint32_t>(std::min<uint64_t>(*number, kLookAheadMax + 1));
        if (key_ == "lora_name" && text != nullptr) event_.lora_name = std::move(*text);
        if (key_ == "cache_salt" && text != nullptr) event_.cache_salt = std::move(*text);
        return true;
      case At::kInner:
        if (key_ == "dp_rank" && number != nullptr) event_.rank = static_cast<uint32_t>(*number);
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
    if (key_ == "group" && number != nullptr) block.group = static_cast<uint32_t>(*number);
    if (key_ == "digest" && text != nullptr && text->size() <= kNameBytesMax * 2)
      block.digest = FromHex(*text);
  }

  // A number where only an integer makes sense.
  bool Bad() {
    ++tokens_;
    if (stack_.empty()) return Fail("not a dump: no object");
    if (At_() == At::kEvent || At_() == At::kInner || At_() == At::kStored || At_() == At::kBlock)
      event_.is_sound = false;
    return true;
  }

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

  bool IsSound(const DumpEvent& event) const {
    return event.is_store && event.is_sound && event.tier.has_value() && !event.instance.empty() &&
           event.instance.size() <= kNameBytesMax &&
           event.lora_name.size() + event.cache_salt.size() <= kNamespaceBytesMax &&
           !event.blocks.empty() && event.start.value_or(0) + event.blocks.size() < UINT32_MAX &&
           std::all_of(
               event.blocks.begin(), event.blocks.end(),
               [](const Block& block) {
                 return block.block_hash.has_value() &&
                        (block.tokens_hash.has_value() || block.sequence_hash.has_value());
               });
  }

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

  // The domain, once its block size is known.
  bool Begin() {
    if (begun_) return true;
    begun_ = true;
    if (!Take(linker_.BeginDomain(DomainOf(model_, group_), *block_size_))) return false;
    for (DumpEvent& event : early_)
      if (!Take(linker_.Take(std::move(event)))) return false;
    early_.clear();
    return true;
  }

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

// The text as nlohmann reads it: character by character, from pieces. It keeps a key, text or
// number until it is whole; what is too long for one is known by the pieces that pass without
// another token.
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
  const bool whole = nlohmann::json::sax_parse(PieceIterator(&pieces), PieceIterator(nullptr),
                                               &handler, nlohmann::json::input_format_t::json,
                                               /*strict=*/false);
  if (!pieces.status().ok()) return pieces.status();
  if (!handler.status().ok()) return handler.status();
  if (!whole) return absl::InvalidArgumentError("not a dump");
  return handler.stats();
}

}  // namespace kvatlas
