// Nodes of the hierarchy that a flag names: a shard map as text or file (`given_`), or what a
// directory finds (`found_`); never both.

#include "indexer/discovery/found_nodes.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_split.h"
#include "indexer/base/mutex.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// Whether a directory is needed: some entry is a place to look. "a=k8s:…" is not one here: a name
// before an address is a shard's.
bool IsFound(std::string_view value) {
  for (const absl::string_view entry :
       absl::StrSplit(absl::string_view(value.data(), value.size()), ',')) {
    const std::string_view one(entry.data(), entry.size());
    if (IsPlaceToLook(one) && one.find(':') < one.find('=')) return true;
  }
  return false;
}

std::string ShardOf(const ServiceRecord& node) {
  for (const auto& [name, value] : node.labels) {
    if (name == kShardLabel) return value;
  }
  return "";
}

}  // namespace

// Found nodes as the text of a shard map, which is then parsed as a flag's would be: with shards if
// all have the label, without if none has.
absl::StatusOr<ShardMap> LevelOf(const std::vector<ServiceRecord>& nodes) {
  std::string text;
  size_t shards = 0;
  for (const ServiceRecord& node : nodes) {
    const std::string shard = ShardOf(node);
    shards += !shard.empty();
    text += (text.empty() ? "" : ",") + (shard.empty() ? "" : shard + "=") + node.grpc;
  }
  if (shards != 0 && shards != nodes.size()) {
    return absl::InvalidArgumentError("of " + std::to_string(nodes.size()) + " nodes only " +
                                      std::to_string(shards) + " have a label \"shard\"");
  }
  return ShardMap::Parse(text);
}

struct FoundNodes::Found {
  // Called by the directory, on its threads, one call at a time.
  void Take(const std::vector<ServiceRecord>& nodes) {
    MutexLock lock(&mutex);
    latest = nodes;
  }

  // The map of the latest nodes, once per change. Nothing: no change, no nodes, or nodes that make
  // no level, which is logged; the caller keeps its map.
  std::optional<ShardMap> Look() {
    std::optional<std::vector<ServiceRecord>> nodes;
    {
      MutexLock lock(&mutex);
      nodes.swap(latest);
    }
    if (!nodes.has_value() || nodes->empty()) return std::nullopt;
    absl::StatusOr<ShardMap> map = LevelOf(*nodes);
    if (map.ok()) return *std::move(map);
    Log(LogLevel::kWarning, "nodes stay as they were", {{"flag", flag}, {"reason", map.status()}});
    return std::nullopt;
  }

  std::string flag;
  Mutex mutex;
  std::optional<std::vector<ServiceRecord>> latest ABSL_GUARDED_BY(mutex);
  std::unique_ptr<Directory> directory;  // last: it calls `Take` until it is gone
};

FoundNodes::FoundNodes() = default;
FoundNodes::FoundNodes(FoundNodes&&) noexcept = default;
FoundNodes& FoundNodes::operator=(FoundNodes&&) noexcept = default;
FoundNodes::~FoundNodes() = default;

absl::Status FoundNodes::Check(const std::string& flag, const std::string& value) {
  if (!IsFound(value)) return ShardMapFlag::Read(flag, value).status();
  for (const std::string& entry : std::vector<std::string>(absl::StrSplit(value, ','))) {
    const absl::Status bad = CheckDirectoryEntry(entry);
    if (!bad.ok()) return absl::InvalidArgumentError(flag + ": " + std::string(bad.message()));
  }
  return absl::OkStatus();
}

// With a directory, `Open` has waited for the first answers when it returns, and has called `Take`:
// `Look` may have a map already.
absl::StatusOr<FoundNodes> FoundNodes::Read(std::string flag, const std::string& value,
                                            DirectoryOptions options) {
  FoundNodes nodes;
  if (!IsFound(value)) {
    absl::StatusOr<ShardMapFlag> given = ShardMapFlag::Read(std::move(flag), value);
    if (!given.ok()) return given.status();
    nodes.map_ = given->map();
    nodes.given_ = *std::move(given);
    return nodes;
  }
  options.entries = absl::StrSplit(value, ',');
  options.kind = ServiceKind::kHierarchy;
  auto found = std::make_unique<Found>();
  found->flag = flag;
  auto directory = Directory::Open(
      std::move(options), [raw = found.get()](const auto& records) { raw->Take(records); });
  if (!directory.ok()) {
    return absl::InvalidArgumentError(flag + ": " + std::string(directory.status().message()));
  }
  found->directory = *std::move(directory);
  if (std::optional<ShardMap> map = found->Look(); map.has_value()) nodes.map_ = *std::move(map);
  nodes.found_ = std::move(found);
  return nodes;
}

std::optional<ShardMap> FoundNodes::Changed() {
  if (given_.has_value()) return given_->Changed();
  std::optional<ShardMap> map = found_->Look();
  if (!map.has_value() || *map == map_) return std::nullopt;
  map_ = *map;
  Log(LogLevel::kInfo, "other nodes", {{"flag", found_->flag}, {"nodes", map_.ToString()}});
  return map;
}

}  // namespace kvatlas
