#include "indexer/base/shard_map.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

constexpr uint32_t kShallowMax = 1 << 16;
constexpr size_t kNameBytesMax = 256;

absl::Status Bad(absl::string_view element, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("'", element.substr(0, 256), "' ", why));
}

// HOST:PORT in form only; whether it can be an address is the caller's question.
bool IsAddress(absl::string_view text) {
  const size_t colon = text.rfind(':');
  return colon != absl::string_view::npos && colon > 0 && colon + 1 < text.size();
}

// Spreads 64 bits that are random already. Part of the agreement between processes: another mix
// would place waypoints on other shards.
uint64_t Mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return x ^ (x >> 32);
}

}  // namespace

// One shard without a name: the level is not split.
ShardMap::ShardMap(std::vector<std::string> addresses) {
  if (!addresses.empty()) shards_.push_back({.name = "", .addresses = std::move(addresses)});
}

ShardMap::ShardMap(std::initializer_list<std::string> addresses)
    : ShardMap(std::vector<std::string>(addresses)) {}

// Element by element. "shallow=N" is an option only in front and only if N is no address, so a
// shard may be named "shallow". Shards are sorted by name: their places, and the map as a value, do
// not depend on the order in the text.
absl::StatusOr<ShardMap> ShardMap::Parse(absl::string_view text) {
  ShardMap map;
  std::set<absl::string_view> seen;
  const auto shard_of = [&map](absl::string_view name) -> Shard& {
    for (Shard& shard : map.shards_)
      if (shard.name == name) return shard;
    return map.shards_.emplace_back(
        Shard{.name = std::string(name),
              .addresses = {},
              .seed = Xxh3(std::string_view(name.data(), name.size()), 0)});
  };
  if (text.empty()) return map;
  bool first = true;
  for (absl::string_view element : absl::StrSplit(text, ',')) {
    const size_t equals = element.find('=');
    const bool named = equals != absl::string_view::npos;
    const absl::string_view name = named ? element.substr(0, equals) : absl::string_view();
    const absl::string_view rest = named ? element.substr(equals + 1) : element;
    if (named && name.empty()) return Bad(element, "names no shard before '='");
    if (name.size() > kNameBytesMax) return Bad(element, "has too long a name");
    if (std::exchange(first, false) && name == "shallow" && !IsAddress(rest)) {
      if (!absl::SimpleAtoi(rest, &map.shallow_) || map.shallow_ < 1 || map.shallow_ > kShallowMax)
        return Bad(element, absl::StrCat("is not a number of 1 to ", kShallowMax));
      continue;
    }
    if (!map.shards_.empty() && map.split() != named)
      return Bad(element, "mixes shards and nodes that know everything");
    Shard& shard = shard_of(name);
    for (absl::string_view address : absl::StrSplit(rest, '|')) {
      if (!IsAddress(address)) return Bad(element, "is not [SHARD=]HOST:PORT[|HOST:PORT…]");
      if (!seen.insert(address).second) return Bad(element, "names an address again");
      shard.addresses.emplace_back(address);
    }
    if (shard.addresses.size() > kShardReplicasMax) return Bad(element, "is a replica too many");
    if (map.shards_.size() > kShardsMax) return Bad(element, "is a shard too many");
  }
  if (map.shards_.empty()) return Bad(text, "names no node");
  std::sort(map.shards_.begin(), map.shards_.end(),
            [](const Shard& a, const Shard& b) { return a.name < b.name; });
  return map;
}

std::vector<std::string> ShardMap::Addresses() const {
  std::vector<std::string> addresses;
  for (const Shard& shard : shards_)
    addresses.insert(addresses.end(), shard.addresses.begin(), shard.addresses.end());
  return addresses;
}

// Rendezvous hashing: the shard with the largest draw. A new shard takes only the waypoints for
// which its draw is the largest. Equal draws are not expected; the first by name would win.
size_t ShardMap::OwnerOf(SequenceHash waypoint) const {
  size_t owner = 0;
  uint64_t largest = 0;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const uint64_t draw = Mix(Raw(waypoint) ^ shards_[i].seed);
    if (i > 0 && draw <= largest) continue;
    owner = i;
    largest = draw;
  }
  return owner;
}

std::string ShardMap::ToString() const {
  std::vector<std::string> elements;
  if (split() && shallow_ != kShallowDefault)
    elements.push_back(absl::StrCat("shallow=", shallow_));
  for (const Shard& shard : shards_) {
    elements.push_back(shard.name.empty()
                           ? absl::StrJoin(shard.addresses, ",")
                           : absl::StrCat(shard.name, "=", absl::StrJoin(shard.addresses, "|")));
  }
  return absl::StrJoin(elements, ",");
}

}  // namespace kvatlas
