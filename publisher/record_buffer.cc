// A growing array of 64-bit words, written at its end and read from `read_` on. Hashes, the bulk of
// a record, are aligned and are read in place; nothing is allocated per record.

#include "publisher/record_buffer.h"

#include <cstring>
#include <type_traits>

namespace kvatlas {
namespace {

// Memory that is there from the beginning, its pages included, and that `Clear` never gives back: 1
// MiB.
constexpr size_t kWordsKept = 1 << 17;

// An estimate for engines' batches: a block of one-block events takes 250 bytes, of longer ones 80.
constexpr size_t kPayloadBytesPerBlock = 128;

// Stands in front of every record; behind it hashes, tokens, texts or the load, each from a full
// word on. A payload's size stands in the parent's place.
struct Header {
  Record::Kind kind;
  Tier tier;
  uint8_t tiers;
  uint8_t has_parent : 1;
  uint8_t side : 7;
  Position position;
  uint64_t parent;
  uint32_t hashes;
  uint32_t tokens;
  uint32_t lora_bytes;
  uint32_t salt_bytes;
};
static_assert(sizeof(Header) == 32 && std::is_trivially_copyable_v<Header>);
static_assert(kSideClassesMax < 1 << 7);
static_assert(std::is_trivially_copyable_v<Load>);
static_assert(std::is_trivially_copyable_v<CacheClass>);

bool HasPayload(Record::Kind kind) {
  return kind == Record::kEngineBatch || kind == Record::kLayout;
}

constexpr size_t WordsFor(size_t bytes) {
  return (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t);
}
constexpr size_t kHeaderWords = WordsFor(sizeof(Header));

// The words that `Append` writes for the record, header included.
size_t WordsOf(const Record& record) {
  return kHeaderWords + record.hashes.size() + WordsFor(record.tokens.size_bytes()) +
         WordsFor(record.lora_name.size()) + WordsFor(record.cache_salt.size()) +
         WordsFor(record.payload.size()) +
         (record.kind == Record::kLoad ? WordsFor(sizeof(Load)) : 0);
}

// Copies bytes to `*to` and moves it on by full words.
void Put(const void* bytes, size_t size, uint64_t** to) {
  if (size != 0) std::memcpy(*to, bytes, size);
  *to += WordsFor(size);
}

// The counterpart of `Put`: the place of the bytes, and `*from` behind them.
const uint64_t* Take(size_t bytes, const uint64_t** from) {
  const uint64_t* const at = *from;
  *from += WordsFor(bytes);
  return at;
}

}  // namespace

// A byte for `has_main`, the main class, then the sides, as they lie in memory: the payload never
// leaves this process.
std::string PackLayout(const CacheLayout& layout) {
  std::string payload(1, layout.has_main ? '\1' : '\0');
  const auto put = [&](const CacheClass& of) {
    payload.append(reinterpret_cast<const char*>(&of), sizeof(of));
  };
  put(layout.main);
  for (const CacheClass& side : layout.sides) put(side);
  return payload;
}

CacheLayout UnpackLayout(std::string_view payload) {
  CacheLayout layout;
  layout.has_main = payload[0] != '\0';
  const auto take = [&](size_t i) {
    CacheClass of;
    std::memcpy(static_cast<void*>(&of), payload.data() + 1 + i * sizeof(of), sizeof(of));
    return of;
  };
  layout.main = take(0);
  for (size_t i = 1; i < payload.size() / sizeof(CacheClass); ++i) layout.sides.push_back(take(i));
  return layout;
}

RecordBuffer::RecordBuffer() {
  Reserve();
  Clear();
}

size_t RecordBuffer::BytesOf(const Record& record) { return WordsOf(record) * sizeof(uint64_t); }

size_t RecordBuffer::BlocksOf(const Record& record) {
  const size_t size = record.payload.size();
  return record.hashes.size() + (size == 0 ? 0 : 1 + size / kPayloadBytesPerBlock);
}

// Amortized O(size). Views that `Next` returned are invalid from here on, as the array may move.
void RecordBuffer::Append(const Record& record) {
  const size_t at = words_.size();
  words_.resize(at + WordsOf(record));
  uint64_t* to = words_.data() + at;
  const Header header{.kind = record.kind,
                      .tier = record.tier,
                      .tiers = record.tiers.bits(),
                      .has_parent = record.has_parent,
                      .side = static_cast<uint8_t>(record.side & 0x7f),
                      .position = record.position,
                      .parent = HasPayload(record.kind)
                                    ? static_cast<uint64_t>(record.payload.size())
                                    : record.parent,
                      .hashes = static_cast<uint32_t>(record.hashes.size()),
                      .tokens = static_cast<uint32_t>(record.tokens.size()),
                      .lora_bytes = static_cast<uint32_t>(record.lora_name.size()),
                      .salt_bytes = static_cast<uint32_t>(record.cache_salt.size())};
  Put(&header, sizeof(header), &to);
  Put(record.hashes.data(), record.hashes.size_bytes(), &to);
  Put(record.tokens.data(), record.tokens.size_bytes(), &to);
  Put(record.lora_name.data(), record.lora_name.size(), &to);
  Put(record.cache_salt.data(), record.cache_salt.size(), &to);
  Put(record.payload.data(), record.payload.size(), &to);
  if (record.kind == Record::kLoad) Put(&record.load, sizeof(Load), &to);
  blocks_ += BlocksOf(record);
  ++records_;
}

// Views into the array, in the order and sizes in which `Append` put the parts.
bool RecordBuffer::Next(Record* record) {
  if (records_ == 0) return false;
  const uint64_t* from = words_.data() + read_;
  Header header;
  std::memcpy(&header, Take(sizeof(header), &from), sizeof(header));
  record->kind = header.kind;
  record->tier = header.tier;
  record->tiers = TierMask(header.tiers);
  record->has_parent = header.has_parent != 0;
  record->side = header.side;
  record->position = header.position;
  record->parent = header.parent;
  record->hashes = {Take(header.hashes * sizeof(uint64_t), &from), header.hashes};
  record->tokens = {reinterpret_cast<const TokenId*>(Take(header.tokens * sizeof(TokenId), &from)),
                    header.tokens};
  record->lora_name = {reinterpret_cast<const char*>(Take(header.lora_bytes, &from)),
                       header.lora_bytes};
  record->cache_salt = {reinterpret_cast<const char*>(Take(header.salt_bytes, &from)),
                        header.salt_bytes};
  const size_t payload_bytes = HasPayload(header.kind) ? static_cast<size_t>(header.parent) : 0;
  record->payload = {reinterpret_cast<const char*>(Take(payload_bytes, &from)), payload_bytes};
  if (header.kind == Record::kLoad) {
    std::memcpy(static_cast<void*>(&record->load), Take(sizeof(Load), &from), sizeof(Load));
  }
  read_ = static_cast<size_t>(from - words_.data());
  blocks_ -= BlocksOf(*record);
  --records_;
  return true;
}

// A buffer that once grew large is given back when it was used to less than a quarter.
void RecordBuffer::Clear() {
  const bool keep = words_.capacity() <= kWordsKept || words_.size() >= words_.capacity() / 4;
  if (!keep) Reserve();
  words_.clear();
  read_ = blocks_ = records_ = 0;
}

// The constructor of the vector writes every word, so that the pages are there.
void RecordBuffer::Reserve() {
  std::vector<uint64_t> words(kWordsKept);
  words_.swap(words);
}

}  // namespace kvatlas
