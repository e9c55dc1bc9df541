#include "indexer/kv_events/decoder_test_util.h"

#include <bit>
#include <charconv>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvatlas {
namespace {

std::string Quoted(std::string_view text) {
  return absl::StrCat("\"", absl::CHexEscape({text.data(), text.size()}), "\"");
}

std::string ToText(const EngineBlockHash& hash) {
  std::string text = absl::StrFormat("%016x", hash.value);
  if (!hash.bytes.empty()) {
    absl::StrAppend(&text, "=", absl::BytesToHexString({hash.bytes.data(), hash.bytes.size()}));
  }
  return text;
}

std::string ToText(const ExtraKey& key) {
  return absl::StrCat(static_cast<int>(key.kind), Quoted(key.text), "@", key.offset);
}

std::string ToText(uint64_t number) { return absl::StrCat(number); }
std::string ToText(uint32_t number) { return absl::StrCat(number); }

template <typename T>
std::string ToText(std::span<const T> values) {
  std::string text = "[";
  for (const T& value : values) absl::StrAppend(&text, ToText(value), " ");
  return text + "]";
}

void Append(std::string* text, std::string_view name, std::string_view value) {
  absl::StrAppend(text, " ", absl::string_view(name.data(), name.size()), "=",
                  absl::string_view(value.data(), value.size()));
}

void AppendText(std::string* text, std::string_view name, std::string_view value) {
  if (!value.empty()) Append(text, name, Quoted(value));
}

template <typename T>
void AppendNumber(std::string* text, std::string_view name, const std::optional<T>& value) {
  if (value.has_value()) Append(text, name, absl::StrCat(*value));
}

template <typename T>
void AppendList(std::string* text, std::string_view name, std::span<const T> values) {
  if (!values.empty()) Append(text, name, ToText(values));
}

}  // namespace

std::string ToText(const EngineEvent& event) {
  static constexpr std::string_view kKinds[] = {"stored", "removed", "cleared", "ignored"};
  std::string text(kKinds[static_cast<size_t>(event.kind)]);
  if (event.envelope) Append(&text, "envelope", "yes");
  AppendList(&text, "hashes", event.hashes);
  if (event.component_form != ComponentForm::kNone) {
    Append(&text, event.component_form == ComponentForm::kOne ? "component" : "components",
           absl::StrCat(event.components));
  }
  if (event.parent.has_value()) Append(&text, "parent", ToText(*event.parent));
  AppendList(&text, "tokens", event.tokens);
  if (event.look_ahead != 0) Append(&text, "look_ahead", std::to_string(event.look_ahead));
  if (event.tokens_opaque) Append(&text, "opaque", "yes");
  if (event.block_size != 0) Append(&text, "block_size", absl::StrCat(event.block_size));
  AppendList(&text, "block_offsets", event.block_offsets);
  AppendText(&text, "medium", event.medium);
  AppendText(&text, "locality", event.locality);
  AppendText(&text, "ownership", event.ownership);
  AppendNumber(&text, "group", event.group);
  AppendText(&text, "spec_kind", event.spec_kind);
  AppendNumber(&text, "window", event.sliding_window);
  AppendText(&text, "lora_name", event.lora_name);
  AppendNumber(&text, "lora_id", event.lora_id);
  if (event.cache_salt.has_value()) Append(&text, "cache_salt", Quoted(*event.cache_salt));
  AppendList(&text, "extra_keys", event.extra_keys);
  AppendList(&text, "multimodal", event.multimodal);
  AppendText(&text, "session", event.session_id);
  AppendText(&text, "model", event.model_name);
  AppendText(&text, "tenant", event.tenant_id);
  AppendText(&text, "backend", event.backend_id);
  AppendText(&text, "additional_salt", event.additional_salt);
  AppendNumber(&text, "base_block", event.base_block);
  AppendNumber(&text, "rank", event.rank);
  return text;
}

std::string ToText(const EngineBatch& batch) {
  std::string text = absl::StrFormat("time=%.17g", batch.time_s);
  AppendNumber(&text, "rank", batch.rank);
  for (const EngineEvent& event : batch.events) absl::StrAppend(&text, "\n", ToText(event));
  for (const Refusal refusal : batch.refused) {
    const std::string_view name = RefusalName(refusal);
    absl::StrAppend(&text, "\nrefused ", absl::string_view(name.data(), name.size()));
  }
  AppendNumber(&text, "lost_before", batch.lost_before);
  AppendNumber(&text, "unknown_before", batch.unknown_before);
  return text;
}

std::string FromHex(std::string_view digits) {
  std::string packed;
  for (const char digit : digits) {
    if (digit != ' ' && digit != '\n') packed.push_back(digit);
  }
  return absl::HexStringToBytes(packed);
}

MsgpackWriter& MsgpackWriter::Byte(uint8_t byte) {
  bytes_.push_back(static_cast<char>(byte));
  return *this;
}

MsgpackWriter& MsgpackWriter::BigEndian(uint64_t value, size_t size) {
  while (size-- > 0) Byte(static_cast<uint8_t>(value >> (8 * size)));
  return *this;
}

MsgpackWriter& MsgpackWriter::Wide(uint8_t code, uint64_t value) {
  return Byte(code).BigEndian(value, size_t{1} << (code & 3));
}

MsgpackWriter& MsgpackWriter::Unsigned(uint64_t value) {
  if (value < 0x80) return Byte(static_cast<uint8_t>(value));
  if (value <= 0xff) return Wide(0xcc, value);
  if (value <= 0xffff) return Wide(0xcd, value);
  return Wide(value <= 0xffffffff ? 0xce : 0xcf, value);
}

MsgpackWriter& MsgpackWriter::Signed(int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  if (value >= 0) return Unsigned(bits);
  if (value >= -32) return Byte(static_cast<uint8_t>(bits));
  if (value >= INT8_MIN) return Wide(0xd0, bits);
  if (value >= INT16_MIN) return Wide(0xd1, bits);
  return Wide(value >= INT32_MIN ? 0xd2 : 0xd3, bits);
}

MsgpackWriter& MsgpackWriter::Float(double value) {
  return Byte(0xcb).BigEndian(std::bit_cast<uint64_t>(value), 8);
}

MsgpackWriter& MsgpackWriter::Header(uint8_t code, size_t length, size_t size) {
  return Byte(code).BigEndian(length, size);
}

MsgpackWriter& MsgpackWriter::Text(std::string_view text) {
  if (text.size() < 32) {
    Byte(static_cast<uint8_t>(0xa0 | text.size()));
  } else if (text.size() <= 0xff) {
    Header(0xd9, text.size(), 1);
  } else {
    Header(0xda, text.size(), 2);
  }
  return Raw(text);
}

MsgpackWriter& MsgpackWriter::Bytes(std::string_view bytes) {
  const bool is_short = bytes.size() <= 0xff;
  return Header(is_short ? 0xc4 : 0xc5, bytes.size(), is_short ? 1 : 2).Raw(bytes);
}

MsgpackWriter& MsgpackWriter::Array(size_t count) {
  if (count < 16) return Byte(static_cast<uint8_t>(0x90 | count));
  const bool is_short = count <= 0xffff;
  return Header(is_short ? 0xdc : 0xdd, count, is_short ? 2 : 4);
}

MsgpackWriter& MsgpackWriter::Map(size_t pairs) {
  if (pairs < 16) return Byte(static_cast<uint8_t>(0x80 | pairs));
  return Header(0xde, pairs, 2);
}

MsgpackWriter& MsgpackWriter::Extension(uint8_t type, std::string_view bytes) {
  return Header(0xc7, bytes.size(), 1).Byte(type).Raw(bytes);
}

MsgpackWriter& MsgpackWriter::Raw(std::string_view bytes) {
  bytes_.append(bytes);
  return *this;
}

std::string BatchOf(size_t events, std::string_view bytes) {
  return MsgpackWriter().Array(3).Float(1.5).Array(events).Raw(bytes).Unsigned(0).bytes();
}

}  // namespace kvatlas
