#include "indexer/process/shard_map_flag.h"

#include <fstream>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "indexer/base/address.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;

// At most `kFileBytesMax`; one byte more is read to tell a longer file.
absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad() || !file.is_open()) return absl::InvalidArgumentError(path + " cannot be read");
  if (text.size() > kFileBytesMax) return absl::InvalidArgumentError(path + " is too long");
  absl::StripAsciiWhitespace(&text);
  return text;
}

// ShardMap itself takes any text as an address; here each must be HOST:PORT.
absl::StatusOr<ShardMap> ParseMap(const std::string& text) {
  absl::StatusOr<ShardMap> map = ShardMap::Parse(text);
  if (!map.ok()) return map;
  for (const std::string& address : map->Addresses())
    if (absl::Status bad = Address::Parse(address).status(); !bad.ok()) return bad;
  return map;
}

absl::Status Named(const std::string& flag, const absl::Status& bad) {
  return absl::InvalidArgumentError(flag + ": " + std::string(bad.message()));
}

}  // namespace

// At the start an empty or bad file is an error; an empty value of the flag itself is a map without
// nodes.
absl::StatusOr<ShardMapFlag> ShardMapFlag::Read(std::string flag, const std::string& value) {
  ShardMapFlag read;
  read.flag_ = std::move(flag);
  read.seen_ = value;
  if (value.starts_with('@')) {
    read.path_ = value.substr(1);
    absl::StatusOr<std::string> text = ReadFile(read.path_);
    if (!text.ok()) return Named(read.flag_, text.status());
    if (text->empty())
      return Named(read.flag_, absl::InvalidArgumentError(read.path_ + " is empty"));
    read.seen_ = *std::move(text);
  }
  absl::StatusOr<ShardMap> map = ParseMap(read.seen_);
  if (!map.ok()) return Named(read.flag_, map.status());
  read.map_ = *std::move(map);
  return read;
}

// `seen_` is the content, or the error, of the last look: each is handled, and logged, once. A bad
// content keeps the map. A content that spells the same map otherwise changes nothing.
std::optional<ShardMap> ShardMapFlag::Changed() {
  if (path_.empty()) return std::nullopt;
  const absl::StatusOr<std::string> text = ReadFile(path_);
  std::string seen = text.ok() ? *text : std::string(text.status().message());
  if (seen == seen_) return std::nullopt;
  seen_ = std::move(seen);
  absl::StatusOr<ShardMap> map = text.ok() ? ParseMap(*text) : text.status();
  if (map.ok() && map->empty()) map = absl::InvalidArgumentError("names no node");
  if (!map.ok()) {
    Log(LogLevel::kWarning, "nodes stay as they were",
        {{"flag", flag_}, {"file", path_}, {"reason", map.status()}});
    return std::nullopt;
  }
  if (*map == map_) return std::nullopt;
  map_ = *map;
  Log(LogLevel::kInfo, "other nodes", {{"flag", flag_}, {"nodes", map_.ToString()}});
  return *std::move(map);
}

}  // namespace kvatlas
