// A perfect hash over the keys that engines write, built by the compiler. `FindFactor` looks for a
// factor with which no two keys share a slot; a new key that makes that impossible fails the build.

#include "indexer/kv_events/decoder_fields.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

namespace kvatlas {
namespace {

struct Name {
  std::string_view key;
  EventField field = EventField::kUnknown;
};

// Every key, once. Its place here has no meaning.
constexpr Name kNames[] = {
    {"type", EventField::kType},
    {"event_type", EventField::kEventType},
    {"block_hashes", EventField::kBlockHashes},
    {"seq_hashes", EventField::kSeqHashes},
    {"parent_block_hash", EventField::kParentBlockHash},
    {"parent_hash", EventField::kParentHash},
    {"token_ids", EventField::kTokenIds},
    {"block_size", EventField::kBlockSize},
    {"lora_id", EventField::kLoraId},
    {"medium", EventField::kMedium},
    {"lora_name", EventField::kLoraName},
    {"cache_salt", EventField::kCacheSalt},
    {"extra_keys", EventField::kExtraKeys},
    {"group_idx", EventField::kGroupIdx},
    {"kv_cache_spec_kind", EventField::kSpecKind},
    {"kv_cache_spec_sliding_window", EventField::kSlidingWindow},
    {"locality", EventField::kLocality},
    {"ownership", EventField::kOwnership},
    {"session_id", EventField::kSessionId},
    {"block_mm_infos", EventField::kBlockMmInfos},
    {"mm_keys", EventField::kMmKeys},
    {"model_name", EventField::kModelName},
    {"tenant_id", EventField::kTenantId},
    {"backend_id", EventField::kBackendId},
    {"additional_salt", EventField::kAdditionalSalt},
    {"base_block_idx", EventField::kBaseBlockIdx},
    {"dp_rank", EventField::kDpRank},
    {"lookahead_token_ids", EventField::kLookahead},
    {"block_offsets", EventField::kBlockOffsets},
    {"component_types", EventField::kComponentTypes},
    {"component_type", EventField::kComponentType},
};

// The comparison below reads 4 bytes at once: no key is shorter.
constexpr size_t kShortest = 4;
constexpr size_t kSlots = 128;

// REQUIRES: not empty.
constexpr size_t SlotOf(std::string_view key, size_t factor) {
  const size_t first = static_cast<uint8_t>(key.front());
  const size_t last = static_cast<uint8_t>(key.back());
  return (key.size() * factor + first * 3 + last) % kSlots;
}

constexpr bool IsPerfect(size_t factor) {
  std::array<bool, kSlots> taken{};
  for (const Name& name : kNames) {
    bool& slot = taken[SlotOf(name.key, factor)];
    if (slot) return false;
    slot = true;
  }
  return true;
}

constexpr size_t FindFactor() {
  for (size_t factor = 1; factor < kSlots; ++factor) {
    if (IsPerfect(factor)) return factor;
  }
  return 0;
}

constexpr size_t kFactor = FindFactor();
static_assert(kFactor != 0, "two keys share a slot: hash them otherwise");

// Empty slots have an empty key, which equals no key of `kShortest` bytes or more.
constexpr std::array<Name, kSlots> kTable = [] {
  std::array<Name, kSlots> table{};
  for (const Name& name : kNames) table[SlotOf(name.key, kFactor)] = name;
  return table;
}();
static_assert(std::all_of(std::begin(kNames), std::end(kNames),
                          [](const Name& name) { return name.key.size() >= kShortest; }));

// Loads without alignment.
template <typename Word>
bool WordsDiffer(const char* a, const char* b) {
  Word x, y;
  std::memcpy(&x, a, sizeof(x));
  std::memcpy(&y, b, sizeof(y));
  return x != y;
}

// Compares word by word, the last one overlapping. REQUIRES: `size` >= kShortest.
bool Equal(const char* a, const char* b, size_t size) {
  if (size < sizeof(uint64_t)) {
    return !WordsDiffer<uint32_t>(a, b) && !WordsDiffer<uint32_t>(a + size - 4, b + size - 4);
  }
  for (size_t at = 0; at + sizeof(uint64_t) < size; at += sizeof(uint64_t)) {
    if (WordsDiffer<uint64_t>(a + at, b + at)) return false;
  }
  return !WordsDiffer<uint64_t>(a + size - 8, b + size - 8);
}

static_assert(std::all_of(std::begin(kNames), std::end(kNames),
                          [](const Name& name) { return name.key.size() < RawKey::kBytes; }));
static_assert(std::size(kNames) + 1 == kEventFields);

}  // namespace

// A key as msgpack's fixstr: one header byte with the length, then the text. All keys are shorter
// than 32 bytes, so that this is the form that encoders write. Another form is read by `ReadAny`.
std::array<RawKey, kEventFields> KeyReader::MakeRawKeys() {
  std::array<RawKey, kEventFields> keys;
  for (const Name& name : kNames) {
    std::array<uint8_t, RawKey::kBytes> bytes{};
    std::array<uint8_t, RawKey::kBytes> mask{};
    RawKey& key = keys[static_cast<size_t>(name.field)];
    key.size = 1 + name.key.size();
    bytes[0] = static_cast<uint8_t>(0xa0 | name.key.size());
    std::copy(name.key.begin(), name.key.end(), bytes.begin() + 1);
    std::fill_n(mask.begin(), key.size, uint8_t{0xff});
    std::memcpy(key.bytes, bytes.data(), bytes.size());
    std::memcpy(key.mask, mask.data(), mask.size());
  }
  return keys;
}

const std::array<RawKey, kEventFields> KeyReader::kRawKeys = KeyReader::MakeRawKeys();

// Any key. A key that is no text is skipped, and is `kUnknown`.
bool KeyReader::ReadAny(MsgpackReader* in, EventField* field) {
  std::string_view key;
  const bool is_text = in->Peek() == MsgpackType::kText;
  if (!(is_text ? in->ReadText(&key) : in->Skip())) return false;
  *field = EventFieldOf(key);
  return true;
}

// One slot and one comparison: a key that is not in its slot is not known.
EventField EventFieldOf(std::string_view key) {
  if (key.size() < kShortest) return EventField::kUnknown;
  const Name& name = kTable[SlotOf(key, kFactor)];
  if (name.key.size() != key.size() || !Equal(name.key.data(), key.data(), key.size())) {
    return EventField::kUnknown;
  }
  return name.field;
}

}  // namespace kvatlas
