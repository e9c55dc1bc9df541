#include "indexer/kv_events/decoder_twin.h"

#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <msgpack.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

using Object = msgpack::object;
using Type = msgpack::type::object_type;

// Why a field has no value.
enum class Failure { kMalformed, kTooLarge };

bool IsInteger(const Object& object) {
  return object.type == Type::POSITIVE_INTEGER || object.type == Type::NEGATIVE_INTEGER;
}

uint64_t BitsOf(const Object& integer) {
  return integer.type == Type::POSITIVE_INTEGER ? integer.via.u64
                                                : static_cast<uint64_t>(integer.via.i64);
}

bool IsU32(const Object& object) {
  return object.type == Type::POSITIVE_INTEGER && object.via.u64 <= 0xffffffff;
}

std::string_view TextOf(const Object& text) { return {text.via.str.ptr, text.via.str.size}; }

std::string KeyOf(const Object& key) {
  return key.type == Type::STR ? std::string(TextOf(key)) : std::string();
}

std::vector<Object> ElementsOf(const Object& array) {
  return {array.via.array.ptr, array.via.array.ptr + array.via.array.size};
}

std::vector<std::pair<std::string, Object>> PairsOf(const Object& map) {
  std::vector<std::pair<std::string, Object>> pairs;
  for (uint32_t i = 0; i < map.via.map.size; ++i) {
    pairs.emplace_back(KeyOf(map.via.map.ptr[i].key), map.via.map.ptr[i].val);
  }
  return pairs;
}

}  // namespace

struct DecoderTwin::State {
  // ---- What the batch's views point to ----
  std::deque<msgpack::object_handle> trees;
  std::deque<std::string> strings;
  std::deque<std::vector<EngineBlockHash>> hash_lists;
  std::deque<std::vector<TokenId>> token_lists;
  std::deque<std::vector<ExtraKey>> key_lists;
  std::deque<std::vector<std::span<const ExtraKey>>> key_spans;
  std::deque<std::vector<uint64_t>> number_lists;
  std::deque<std::vector<std::span<const uint64_t>>> number_spans;
  std::deque<std::vector<uint32_t>> offset_lists;

  // ---- Of the event that is being built ----
  EngineEvent event;
  bool may_remove = true;  // the event that was refused
  bool unknown = false;    // its kind
  std::map<std::string, Failure> failures;
  std::optional<std::string> type, event_type;
  std::optional<std::span<const EngineBlockHash>> block_hashes, seq_hashes;
  std::optional<EngineBlockHash> parent_block_hash, parent_hash;
  std::span<const std::span<const uint64_t>> block_mm_infos, mm_keys;
  std::optional<uint32_t> block_size;
  std::vector<std::vector<TokenId>> lookahead;
  std::optional<std::vector<uint32_t>> block_offsets;
  std::optional<uint8_t> component_types, component_type;

  // The value that starts at `*at`; null where there is none.
  const Object* Unpack(std::string_view payload, size_t* at) {
    try {
      const size_t size = payload.size();
      trees.push_back(msgpack::unpack(payload.data(), size, *at, nullptr, nullptr,
                                      msgpack::unpack_limit(size, size, size, size, size)));
      return &trees.back().get();
    } catch (const msgpack::unpack_error&) {
      return nullptr;
    }
  }

  std::optional<Failure> Hash(const Object& object, EngineBlockHash* hash);
  std::optional<Failure> Hashes(const Object& object,
                                std::optional<std::span<const EngineBlockHash>>* hashes);
  std::optional<Failure> Tokens(const Object& object);
  void Lookahead(const Object& object);
  std::optional<Failure> Offsets(const Object& object);
  std::optional<Failure> Components(const Object& object);
  std::optional<Failure> TokenList(const std::vector<Object>& values);
  std::optional<Failure> Key(const Object& object, ExtraKey* key);
  std::optional<Failure> ExtraKeys(const Object& object);
  std::optional<Failure> Multimodal(const Object& object,
                                    std::span<const std::span<const uint64_t>>* multimodal);
  std::optional<Failure> Field(const std::string& key, const Object& value);
  void SetField(const std::string& key, const Object& value);
  void Map(const Object& map);
  void Tuple(const Object& tuple);
  void Tail(const std::vector<Object>& tail);
  std::optional<Refusal> Finish();
  std::optional<Refusal> Event(const Object& object);
};

DecoderTwin::DecoderTwin() = default;
DecoderTwin::~DecoderTwin() = default;

std::optional<Failure> DecoderTwin::State::Hash(const Object& object, EngineBlockHash* hash) {
  if (IsInteger(object)) {
    *hash = {.value = BitsOf(object), .bytes = {}};
    return std::nullopt;
  }
  std::string bytes;
  if (object.type == Type::BIN) {
    bytes.assign(object.via.bin.ptr, object.via.bin.size);
  } else if (object.type == Type::STR) {
    std::string digits(TextOf(object));
    if (digits.starts_with("0x") || digits.starts_with("0X")) digits.erase(0, 2);
    if (digits.size() > 512) return Failure::kTooLarge;
    if (digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
      return Failure::kMalformed;
    }
    if (digits.size() % 2 == 1) digits.insert(0, "0");
    for (size_t i = 0; i < digits.size(); i += 2) {
      bytes.push_back(static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
    }
  }
  if (bytes.empty()) return Failure::kMalformed;
  if (bytes.size() > 256) return Failure::kTooLarge;
  uint64_t value = 0;
  for (const char byte : bytes) value = value * 256 + static_cast<uint8_t>(byte);
  *hash = {.value = value, .bytes = strings.emplace_back(bytes)};
  return std::nullopt;
}

std::optional<Failure> DecoderTwin::State::Hashes(
    const Object& object, std::optional<std::span<const EngineBlockHash>>* hashes) {
  hashes->reset();
  if (object.type == Type::NIL) return std::nullopt;
  if (object.type != Type::ARRAY) return Failure::kMalformed;
  std::vector<EngineBlockHash>& list = hash_lists.emplace_back();
  for (const Object& element : ElementsOf(object)) {
    EngineBlockHash hash;
    if (const auto failure = Hash(element, &hash)) return failure;
    list.push_back(hash);
  }
  *hashes = list;
  return std::nullopt;
}

std::optional<Failure> DecoderTwin::State::TokenList(const std::vector<Object>& values) {
  std::vector<TokenId> tokens;
  for (const Object& value : values) {
    if (IsU32(value)) {
      tokens.push_back(static_cast<TokenId>(value.via.u64));
    } else if (IsInteger(value) || value.type == Type::STR || value.type == Type::BIN) {
      event.tokens_opaque = true;
      tokens.push_back(0);
    } else {
      return Failure::kMalformed;
    }
  }
  event.tokens = token_lists.emplace_back(std::move(tokens));
  return std::nullopt;
}

std::optional<Failure> DecoderTwin::State::Tokens(const Object& object) {
  event.tokens = {};
  event.look_ahead = 0;
  event.tokens_opaque = false;
  if (object.type == Type::NIL) return std::nullopt;
  if (object.type != Type::ARRAY) return Failure::kMalformed;
  const std::vector<Object> elements = ElementsOf(object);
  if (elements.empty()) return std::nullopt;
  if (elements[0].type != Type::ARRAY) {
    if (const auto failure = TokenList(elements)) return failure;
  } else {
    // The pairs one behind the other, then every second once.
    std::vector<Object> both;
    for (const Object& pair : elements) {
      if (pair.type != Type::ARRAY || pair.via.array.size != 2) return Failure::kMalformed;
      both.push_back(pair.via.array.ptr[0]);
      both.push_back(pair.via.array.ptr[1]);
    }
    if (const auto failure = TokenList(both)) return failure;
    std::vector<TokenId> flat = {event.tokens[0]};
    for (size_t i = 0; i < both.size(); i += 2) {
      if (event.tokens[i] != flat.back()) event.tokens_opaque = true;
      flat.push_back(event.tokens[i + 1]);
    }
    event.tokens = token_lists.emplace_back(std::move(flat));
    event.look_ahead = 1;
  }
  if (event.tokens_opaque) event.tokens = {};
  return std::nullopt;
}

std::optional<Failure> DecoderTwin::State::Key(const Object& object, ExtraKey* key) {
  switch (object.type) {
    case Type::STR:
      *key = {ExtraKey::Kind::kText, TextOf(object), 0};
      return std::nullopt;
    case Type::BIN:
      *key = {ExtraKey::Kind::kBytes, {object.via.bin.ptr, object.via.bin.size}, 0};
      return std::nullopt;
    case Type::POSITIVE_INTEGER:
    case Type::NEGATIVE_INTEGER:
      *key = {ExtraKey::Kind::kNumber, {}, static_cast<int64_t>(BitsOf(object))};
      return std::nullopt;
    case Type::FLOAT32:
    case Type::FLOAT64:
    case Type::BOOLEAN:
      *key = {ExtraKey::Kind::kNumber, {}, 0};
      return std::nullopt;
    case Type::ARRAY: {
      const std::vector<Object> at = ElementsOf(object);
      if (at.size() < 2 || at[0].type != Type::STR || !IsInteger(at[1])) return Failure::kMalformed;
      *key = {ExtraKey::Kind::kTextAt, TextOf(at[0]), static_cast<int64_t>(BitsOf(at[1]))};
      return std::nullopt;
    }
    default:
      return Failure::kMalformed;
  }
}

std::optional<Failure> DecoderTwin::State::ExtraKeys(const Object& object) {
  event.extra_keys = {};
  if (object.type == Type::NIL) return std::nullopt;
  if (object.type != Type::ARRAY) return Failure::kMalformed;
  std::vector<std::span<const ExtraKey>>& blocks = key_spans.emplace_back();
  bool some = false;
  for (const Object& block : ElementsOf(object)) {
    std::vector<ExtraKey>& keys = key_lists.emplace_back();
    if (block.type != Type::NIL && block.type != Type::ARRAY) return Failure::kMalformed;
    if (block.type == Type::ARRAY) {
      for (const Object& element : ElementsOf(block)) {
        if (const auto failure = Key(element, &keys.emplace_back())) return failure;
      }
    }
    some = some || !keys.empty();
    blocks.emplace_back(keys);
  }
  if (some) event.extra_keys = blocks;
  return std::nullopt;
}

namespace {

// The objects of a block, as numbers; nothing where one is malformed.
std::optional<std::vector<uint64_t>> MultimodalOf(const Object& block) {
  std::vector<uint64_t> hashes;
  if (block.type == Type::NIL) return hashes;
  if (block.type == Type::MAP) {
    for (const auto& [key, value] : PairsOf(block)) {
      if (key != "mm_objects") continue;
      if (value.type != Type::ARRAY) return std::nullopt;
      const auto of_value = MultimodalOf(value);
      if (!of_value.has_value()) return std::nullopt;
      hashes = *of_value;
    }
    return hashes;
  }
  if (block.type != Type::ARRAY) return std::nullopt;
  for (const Object& object : ElementsOf(block)) {
    if (object.type != Type::MAP) return std::nullopt;
    std::optional<uint64_t> hash;
    for (const auto& [key, value] : PairsOf(object)) {
      if (key != "mm_hash" && key != "hash") continue;
      if (IsInteger(value)) {
        hash = BitsOf(value);
      } else if (value.type == Type::STR && value.via.str.size > 0) {
        hash = MultimodalHash(TextOf(value));
      } else {
        return std::nullopt;
      }
    }
    if (!hash.has_value()) return std::nullopt;
    hashes.push_back(*hash);
  }
  return hashes;
}

}  // namespace

std::optional<Failure> DecoderTwin::State::Multimodal(
    const Object& object, std::span<const std::span<const uint64_t>>* multimodal) {
  *multimodal = {};
  if (object.type == Type::NIL) return std::nullopt;
  if (object.type != Type::ARRAY) return Failure::kMalformed;
  std::vector<std::span<const uint64_t>>& blocks = number_spans.emplace_back();
  bool some = false;
  for (const Object& block : ElementsOf(object)) {
    const std::optional<std::vector<uint64_t>> hashes = MultimodalOf(block);
    if (!hashes.has_value()) return Failure::kMalformed;
    some = some || !hashes->empty();
    blocks.emplace_back(number_lists.emplace_back(*hashes));
  }
  if (some) *multimodal = blocks;
  return std::nullopt;
}

void DecoderTwin::State::Lookahead(const Object& object) {
  lookahead.clear();
  if (object.type != Type::ARRAY) return;
  for (const Object& tokens : ElementsOf(object)) {
    if (tokens.type != Type::ARRAY || tokens.via.array.size == 0 ||
        tokens.via.array.size > kLookAheadMax ||
        (!lookahead.empty() && lookahead.back().size() != tokens.via.array.size)) {
      return lookahead.clear();
    }
    std::vector<TokenId> of_block;
    for (const Object& token : ElementsOf(tokens)) {
      if (!IsU32(token)) return lookahead.clear();
      of_block.push_back(static_cast<TokenId>(token.via.u64));
    }
    lookahead.push_back(std::move(of_block));
  }
}

std::optional<Failure> DecoderTwin::State::Offsets(const Object& object) {
  block_offsets.reset();
  if (object.type == Type::NIL) return std::nullopt;
  if (object.type != Type::ARRAY) return Failure::kMalformed;
  std::vector<uint32_t> offsets;
  for (const Object& offset : ElementsOf(object)) {
    if (!IsU32(offset)) return Failure::kMalformed;
    offsets.push_back(static_cast<uint32_t>(offset.via.u64));
  }
  block_offsets = std::move(offsets);
  return std::nullopt;
}

namespace {

const std::map<std::string_view, uint8_t>& Labels() {
  static const std::map<std::string_view, uint8_t> labels = {
      {"full", uint8_t{1}}, {"swa", uint8_t{2}}, {"mamba", uint8_t{4}}};
  return labels;
}

bool IsLabel(const Object& object) {
  return object.type == Type::STR && Labels().contains(TextOf(object));
}

// Nothing where it is no text.
std::optional<uint8_t> ComponentOf(const Object& object) {
  if (object.type != Type::STR) return std::nullopt;
  return IsLabel(object) ? Labels().at(TextOf(object)) : uint8_t{128};
}

}  // namespace

std::optional<Failure> DecoderTwin::State::Components(const Object& object) {
  component_types.reset();
  if (object.type == Type::NIL) return std::nullopt;
  if (object.type != Type::ARRAY) return Failure::kMalformed;
  int all = 0;
  for (const Object& label : ElementsOf(object)) {
    const std::optional<uint8_t> component = ComponentOf(label);
    if (!component.has_value()) return Failure::kMalformed;
    all |= *component;
  }
  component_types = static_cast<uint8_t>(all);
  return std::nullopt;
}

std::optional<Failure> DecoderTwin::State::Field(const std::string& key, const Object& value) {
  const bool nil = value.type == Type::NIL;
  const std::map<std::string, std::string_view*> texts = {
      {"medium", &event.medium},
      {"lora_name", &event.lora_name},
      {"kv_cache_spec_kind", &event.spec_kind},
      {"locality", &event.locality},
      {"ownership", &event.ownership},
      {"session_id", &event.session_id},
      {"model_name", &event.model_name},
      {"tenant_id", &event.tenant_id},
      {"backend_id", &event.backend_id},
      {"additional_salt", &event.additional_salt},
  };
  if (const auto text = texts.find(key); text != texts.end()) {
    *text->second = value.type == Type::STR ? TextOf(value) : std::string_view();
    return nil || value.type == Type::STR ? std::nullopt : std::optional(Failure::kMalformed);
  }
  const std::map<std::string, std::optional<uint32_t>*> numbers = {
      {"block_size", &block_size},
      {"group_idx", &event.group},
      {"kv_cache_spec_sliding_window", &event.sliding_window},
      {"base_block_idx", &event.base_block},
  };
  if (const auto number = numbers.find(key); number != numbers.end()) {
    number->second->reset();
    if (IsU32(value)) *number->second = static_cast<uint32_t>(value.via.u64);
    return nil || IsU32(value) ? std::nullopt : std::optional(Failure::kMalformed);
  }
  if (key == "lora_id" || key == "dp_rank") {
    std::optional<int64_t>& number = key == "lora_id" ? event.lora_id : event.rank;
    number.reset();
    if (IsInteger(value)) number = static_cast<int64_t>(BitsOf(value));
    return nil || IsInteger(value) ? std::nullopt : std::optional(Failure::kMalformed);
  }
  if (key == "cache_salt") {
    event.cache_salt.reset();
    if (value.type == Type::STR) event.cache_salt = TextOf(value);
    return nil || value.type == Type::STR ? std::nullopt : std::optional(Failure::kMalformed);
  }
  if (key == "type" || key == "event_type") {
    std::optional<std::string>& tag = key == "type" ? type : event_type;
    tag.reset();
    if (value.type == Type::STR) tag = TextOf(value);
    return std::nullopt;
  }
  if (key == "parent_block_hash" || key == "parent_hash") {
    std::optional<EngineBlockHash>& parent = key == "parent_hash" ? parent_hash : parent_block_hash;
    parent.reset();
    if (nil) return std::nullopt;
    EngineBlockHash hash;
    const std::optional<Failure> failure = Hash(value, &hash);
    if (!failure.has_value()) parent = hash;
    return failure;
  }
  if (key == "block_hashes") return Hashes(value, &block_hashes);
  if (key == "seq_hashes") return Hashes(value, &seq_hashes);
  if (key == "extra_keys") return ExtraKeys(value);
  if (key == "block_mm_infos") return Multimodal(value, &block_mm_infos);
  if (key == "mm_keys") return Multimodal(value, &mm_keys);
  if (key == "block_offsets") return Offsets(value);
  if (key == "component_types") return Components(value);
  if (key == "component_type") {
    component_type = ComponentOf(value);
    return nil || component_type.has_value() ? std::nullopt : std::optional(Failure::kMalformed);
  }
  if (key == "lookahead_token_ids") Lookahead(value);
  if (key != "token_ids") return std::nullopt;
  const std::optional<Failure> failure = Tokens(value);
  if (failure.has_value()) {
    event.tokens = {};
    event.look_ahead = 0;
    event.tokens_opaque = false;
  }
  return failure;
}

void DecoderTwin::State::SetField(const std::string& key, const Object& value) {
  const std::optional<Failure> failure = Field(key, value);
  if (!failure.has_value()) return;
  if (failures.contains(key) && failures[key] == Failure::kTooLarge) return;
  failures[key] = *failure;
}

void DecoderTwin::State::Map(const Object& map) {
  for (const auto& [key, value] : PairsOf(map)) SetField(key, value);
}

void DecoderTwin::State::Tuple(const Object& tuple) {
  std::vector<Object> values = ElementsOf(tuple);
  if (values.empty() || values[0].type != Type::STR) return;
  type = TextOf(values[0]);
  std::vector<std::string> places;
  bool has_tail = true;
  if (*type == "BlockStored" || *type == "stored") {
    places = {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id",
              "medium",       "lora_name",         "extra_keys"};
  } else if (*type == "BlockRemoved" || *type == "removed") {
    places = {"block_hashes", "medium"};
  } else {
    has_tail = false;
    if (*type == "AllBlocksCleared" || *type == "cleared") places = {"ownership"};
  }
  size_t at = 1;
  for (const std::string& place : places) {
    if (at >= values.size()) return;
    const Object& value = values[at++];
    if (place == "lora_name" && value.type == Type::MAP) {
      for (const auto& [key, metadata] : PairsOf(value)) {
        if (key == "cache_salt" || key == "lora_name" || key == "session_id" ||
            key == "component_types" || key == "component_type") {
          SetField(key, metadata);
        }
      }
    } else if (place == "lora_name" && value.type == Type::ARRAY) {
      SetField("component_types", value);
    } else if (place == "lora_name" && IsLabel(value) && !event.lora_id.has_value()) {
      SetField("component_type", value);
    } else {
      SetField(place, value);
    }
  }
  const bool removed = *type == "BlockRemoved" || *type == "removed";
  if (removed && at < values.size() && IsLabel(values[at])) {
    SetField("component_type", values[at++]);
  }
  if (has_tail) Tail({values.begin() + static_cast<ptrdiff_t>(at), values.end()});
}

void DecoderTwin::State::Tail(const std::vector<Object>& tail) {
  const std::vector<std::string> places = {"group_idx", "kv_cache_spec_kind",
                                           "kv_cache_spec_sliding_window", "locality", "ownership"};
  bool fixed = true;
  for (size_t i = 0; i < tail.size() && i < places.size(); ++i) {
    const bool fits = i == 0 || i == 2 ? IsU32(tail[i]) : tail[i].type == Type::STR;
    fixed = fixed && (fits || tail[i].type == Type::NIL);
  }
  if (fixed) {
    for (size_t i = 0; i < tail.size() && i < places.size(); ++i) SetField(places[i], tail[i]);
    return;
  }
  std::deque<std::string> integers = {"group_idx", "kv_cache_spec_sliding_window"};
  std::deque<std::string> texts = {"kv_cache_spec_kind", "locality", "ownership"};
  std::deque<std::string> arrays = {"block_mm_infos"};
  for (size_t i = 0; i < tail.size() && i < 8; ++i) {
    std::deque<std::string>* places_left = nullptr;
    if (IsU32(tail[i])) places_left = &integers;
    if (tail[i].type == Type::STR) places_left = &texts;
    if (tail[i].type == Type::ARRAY) places_left = &arrays;
    if (places_left == nullptr || places_left->empty()) continue;
    SetField(places_left->front(), tail[i]);
    places_left->pop_front();
  }
}

std::optional<Refusal> DecoderTwin::State::Finish() {
  if (!type.has_value() && !event_type.has_value()) return Refusal::kMalformed;
  event.envelope = event_type.has_value();
  const std::string tag = event_type.has_value() ? *event_type : *type;
  std::set<std::string> needed;
  if (tag == "BlockStored" || tag == "stored") {
    event.kind = EngineEvent::Kind::kStored;
  } else if (tag == "BlockRemoved" || tag == "removed") {
    event.kind = EngineEvent::Kind::kRemoved;
  } else if (tag == "AllBlocksCleared" || tag == "cleared") {
    event.kind = EngineEvent::Kind::kCleared;
  } else if (tag == "Ignored") {
    event.kind = EngineEvent::Kind::kIgnored;
  } else {
    unknown = tag != "BlockInactive" && tag != "created" && tag.rfind("BlockStored", 0) != 0;
    may_remove = false;
    return Refusal::kUnknownTag;
  }
  may_remove = event.kind == EngineEvent::Kind::kRemoved;
  const bool stored = event.kind == EngineEvent::Kind::kStored;
  const bool names_blocks = stored || event.kind == EngineEvent::Kind::kRemoved;
  if (names_blocks) {
    needed = {
        "block_hashes",       "seq_hashes",      "medium",        "locality",        "ownership",
        "group_idx",          "model_name",      "tenant_id",     "additional_salt", "dp_rank",
        "kv_cache_spec_kind", "component_types", "component_type"};
  }
  if (stored) {
    needed.insert({"parent_block_hash", "parent_hash", "token_ids", "block_size", "lora_id",
                   "lora_name", "cache_salt", "extra_keys", "kv_cache_spec_sliding_window",
                   "block_mm_infos", "mm_keys", "base_block_idx", "block_offsets"});
  }
  bool malformed = false;
  for (const auto& [key, failure] : failures) {
    if (!needed.contains(key)) continue;
    if (failure == Failure::kTooLarge) return Refusal::kTooLarge;
    malformed = true;
  }
  if (malformed) return Refusal::kMalformed;
  if (names_blocks && !block_hashes.has_value() && !seq_hashes.has_value()) {
    return Refusal::kMissingField;
  }
  if (stored && !block_size.has_value() && !event.envelope) return Refusal::kMissingField;
  if (block_hashes.has_value() && !block_hashes->empty()) {
    event.hashes = *block_hashes;
  } else if (seq_hashes.has_value()) {
    event.hashes = *seq_hashes;
  }
  event.parent = parent_block_hash.has_value() ? parent_block_hash : parent_hash;
  event.multimodal = block_mm_infos.empty() ? mm_keys : block_mm_infos;
  event.block_size = block_size.value_or(0);
  if (stored && block_offsets.has_value()) {
    if (block_offsets->size() != event.hashes.size()) return Refusal::kMalformed;
    event.block_offsets = offset_lists.emplace_back(*block_offsets);
  }
  if (names_blocks && component_types.has_value()) {
    event.component_form = ComponentForm::kSnapshot;
    event.components = *component_types;
  }
  if (names_blocks && component_type.has_value()) {
    event.component_form = ComponentForm::kOne;
    event.components = *component_type;
  }
  if (stored && event.look_ahead == 0 && !event.tokens.empty() && !lookahead.empty() &&
      lookahead.size() == event.hashes.size()) {
    std::vector<TokenId>& longer =
        token_lists.emplace_back(event.tokens.begin(), event.tokens.end());
    longer.insert(longer.end(), lookahead.back().begin(), lookahead.back().end());
    event.tokens = longer;
    event.look_ahead = static_cast<uint32_t>(lookahead.back().size());
  }
  return std::nullopt;
}

std::optional<Refusal> DecoderTwin::State::Event(const Object& object) {
  event = {};
  may_remove = true;  // until it is known what it is
  unknown = false;
  failures.clear();
  type = event_type = std::nullopt;
  block_hashes = seq_hashes = std::nullopt;
  parent_block_hash = parent_hash = std::nullopt;
  block_mm_infos = mm_keys = {};
  block_size = std::nullopt;
  lookahead.clear();
  block_offsets.reset();
  component_types = component_type = std::nullopt;
  if (object.type == Type::MAP) {
    Map(object);
  } else if (object.type == Type::ARRAY) {
    Tuple(object);
  } else {
    return Refusal::kMalformed;
  }
  return Finish();
}

namespace {

// The count of an array or map, whose header is read here so that each of its values can be
// unpacked alone.
struct Header {
  bool is_array = false;
  bool is_map = false;
  bool whole = true;
  uint64_t count = 0;
};

Header ReadHeader(std::string_view payload, size_t* at) {
  Header header;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(payload[i]); };
  if (*at >= payload.size()) return header;
  const uint8_t first = byte((*at)++);
  header.is_array = (first >= 0x90 && first <= 0x9f) || first == 0xdc || first == 0xdd;
  header.is_map = (first >= 0x80 && first <= 0x8f) || first == 0xde || first == 0xdf;
  size_t size = 0;
  if (first == 0xdc || first == 0xde) size = 2;
  if (first == 0xdd || first == 0xdf) size = 4;
  if (size == 0) header.count = first & 0x0f;
  if (*at + size > payload.size()) {
    header.whole = false;
    return header;
  }
  for (; size > 0; --size) header.count = header.count * 256 + byte((*at)++);
  return header;
}

double TimeOf(const Object& object) {
  if (object.type == Type::FLOAT32 || object.type == Type::FLOAT64) {
    return std::isfinite(object.via.f64) ? object.via.f64 : 0;
  }
  if (object.type == Type::NEGATIVE_INTEGER) return static_cast<double>(object.via.i64);
  if (object.type != Type::POSITIVE_INTEGER) return 0;
  const auto number = static_cast<double>(object.via.u64);
  return number >= 1e11 ? number / 1000 : number;
}

bool IsRank(const Object& object) { return IsInteger(object) || object.type == Type::NIL; }

std::optional<int64_t> RankOf(const Object& object) {
  if (!IsInteger(object)) return std::nullopt;
  return static_cast<int64_t>(BitsOf(object));
}

}  // namespace

absl::Status DecoderTwin::Decode(std::string_view payload, EngineBatch* batch) {
  *batch = {};
  state_ = std::make_unique<State>();
  size_t at = 0;
  const absl::Status none = absl::InvalidArgumentError("no batch");
  const Header outer = ReadHeader(payload, &at);
  const uint64_t least = outer.is_map ? 2 * outer.count : outer.count;
  if ((!outer.is_array && !outer.is_map) || !outer.whole || least > payload.size() - at) {
    return none;
  }
  bool has_events = false;
  bool lost = false;
  const auto events = [&]() -> absl::Status {
    const Header header = ReadHeader(payload, &at);
    if (!header.is_array || !header.whole) return none;
    if (header.count > (1 << 17)) return absl::ResourceExhaustedError("events");
    has_events = true;
    for (uint64_t i = 0; i < header.count && !lost; ++i) {
      const Object* const object = state_->Unpack(payload, &at);
      lost = object == nullptr;
      const std::optional<Refusal> refusal = lost ? Refusal::kMalformed : state_->Event(*object);
      if (refusal.has_value()) {
        batch->refused.push_back(*refusal);
        if (lost || state_->may_remove) batch->lost_before = batch->events.size();
        if (!lost && state_->unknown) batch->unknown_before = batch->events.size();
      } else {
        batch->events.push_back(state_->event);
      }
    }
    return absl::OkStatus();
  };

  const auto refuse_rest = [&] {
    batch->refused.push_back(Refusal::kMalformed);
    batch->lost_before = batch->events.size();
  };

  if (outer.is_array) {
    if (outer.count < 2) return none;
    const Object* const time = state_->Unpack(payload, &at);
    if (time == nullptr) return none;
    batch->time_s = TimeOf(*time);
    if (absl::Status status = events(); !status.ok() || lost) return status;
    if (outer.count == 2) return absl::OkStatus();
    const Object* const rank = state_->Unpack(payload, &at);
    if (rank == nullptr || !IsRank(*rank)) refuse_rest();
    if (rank != nullptr) batch->rank = RankOf(*rank);
    return absl::OkStatus();
  }

  for (uint64_t i = 0; i < outer.count; ++i) {
    const Object* const key = state_->Unpack(payload, &at);
    const std::string name = key == nullptr ? "" : KeyOf(*key);
    if (key != nullptr && name == "events" && !has_events) {
      if (absl::Status status = events(); !status.ok() || lost) return status;
      continue;
    }
    const Object* const value = key == nullptr ? nullptr : state_->Unpack(payload, &at);
    const bool is_rank = name == "data_parallel_rank";
    if (is_rank && value != nullptr) batch->rank = RankOf(*value);
    if (value == nullptr || (is_rank && !IsRank(*value))) {
      if (has_events) refuse_rest();
      break;
    }
    if (name == "ts") batch->time_s = TimeOf(*value);
  }
  return has_events ? absl::OkStatus() : none;
}

}  // namespace kvatlas
