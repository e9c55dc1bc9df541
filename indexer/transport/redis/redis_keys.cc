#include "indexer/transport/redis/redis_keys.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cctype>
#include <charconv>

namespace kvatlas {
namespace {

// Every byte that could end a part of a key, or is not printable, as %XX. Letters beyond ASCII
// stay.
std::string Escape(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || c == '-' || c == '_' || c == '.' || byte >= 0x80) {
      escaped.push_back(c);
    } else {
      escaped.push_back('%');
      escaped.push_back(kHex[byte >> 4]);
      escaped.push_back(kHex[byte & 15]);
    }
  }
  return escaped;
}

// The inverse of `Escape`.
std::string Unescape(std::string_view escaped) {
  std::string text;
  for (size_t i = 0; i < escaped.size(); ++i) {
    const auto byte = escaped[i] == '%' ? ParseUint64(escaped.substr(i + 1, 2), 16) : std::nullopt;
    text.push_back(byte.has_value() ? static_cast<char>(*byte) : escaped[i]);
    if (byte.has_value()) i += 2;
  }
  return text;
}

}  // namespace

std::optional<uint64_t> ParseUint64(std::string_view text, int base) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

std::optional<RedisEntryId> RedisEntryId::Parse(std::string_view text) {
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto epoch = ParseUint64(text.substr(0, dash));
  const auto seq = ParseUint64(text.substr(dash + 1));
  if (!epoch.has_value() || !seq.has_value()) return std::nullopt;
  return RedisEntryId{*epoch, *seq};
}

// "/", "@" and "|" are escaped in the parts, so the name is one to one. The tenant comes last and
// may be empty.
std::string RedisStreamName(const HolderId& holder, const Domain& domain) {
  std::string name = Escape(holder.name) + "/" + std::to_string(holder.rank);
  if (!holder.replica.empty()) name += "@" + Escape(holder.replica);
  return name + "|" + Escape(domain.model) + "|" + Escape(domain.tenant);
}

std::string RedisWorkerOf(std::string_view stream_name) {
  return Unescape(stream_name.substr(0, stream_name.find('/')));
}

uint32_t RedisShardOf(std::string_view stream_name, uint32_t shards) {
  return static_cast<uint32_t>(XXH3_64bits(stream_name.data(), stream_name.size()) % shards);
}

// The braces are Redis Cluster's hash tag: keys with equal tags lie in one slot, as scripts need
// it.
std::string RedisTag(std::string_view cell, uint32_t shard) {
  return "{kvatlas:" + Escape(cell) + ":" + std::to_string(shard) + "}";
}

std::string RedisShardsKey(std::string_view cell) { return "kvatlas:" + Escape(cell) + ":shards"; }

RedisStreamKeys::RedisStreamKeys(std::string_view tag, std::string_view stream_name)
    : streams(std::string(tag) + ":streams"),
      news(std::string(tag) + ":news"),
      log(std::string(tag) + ":log:" + std::string(stream_name)),
      snap(std::string(tag) + ":snap:" + std::string(stream_name)),
      back(std::string(tag) + ":back:" + std::string(stream_name)) {}

std::string RedisPadded(uint64_t number) {
  const std::string digits = std::to_string(number);
  return std::string(20 - digits.size(), '0') + digits;
}

std::string RedisHex(uint64_t number) {
  char digits[16];
  const auto [end, error] = std::to_chars(digits, digits + sizeof(digits), number, 16);
  const auto size = static_cast<size_t>(end - digits);
  return std::string(16 - size, '0') + std::string(digits, size);
}

}  // namespace kvatlas
