// Leaves of a list, merged from given addresses and what a directory finds. The directory calls
// `Found::Take` on its threads; the owner's thread picks the latest result up in `Changed`.

#include "indexer/discovery/found_leaves.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "indexer/base/mutex.h"
#include "indexer/discovery/service_record.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

bool IsLeases(std::string_view entry) {
  return entry.starts_with("redis:/") || entry.starts_with("rediss:/");
}

bool Contains(const std::vector<std::string>& addresses, const std::string& address) {
  return std::find(addresses.begin(), addresses.end(), address) != addresses.end();
}

}  // namespace

struct FoundLeaves::Found {
  // Called by the directory, one call at a time. Keeps only the latest list: changes in between are
  // of no interest.
  void Take(const std::vector<ServiceRecord>& leaves) {
    std::vector<std::string> addresses;
    for (const ServiceRecord& leaf : leaves)
      if (!leaf.grpc.empty()) addresses.push_back(leaf.grpc);
    MutexLock lock(&mutex);
    latest = std::move(addresses);
  }
  // The list that came since the last call; nothing: none did.
  std::optional<std::vector<std::string>> Latest() {
    MutexLock lock(&mutex);
    return std::exchange(latest, std::nullopt);
  }

  Mutex mutex;
  std::optional<std::vector<std::string>> latest ABSL_GUARDED_BY(mutex);
  std::unique_ptr<Directory> directory;  // last: it calls `Take` until it is gone
};

FoundLeaves::FoundLeaves() = default;
FoundLeaves::~FoundLeaves() = default;

// Given addresses are not parsed here: they are texts for the sender.
absl::Status FoundLeaves::Check(const std::vector<std::string>& entries, const std::string& cell) {
  if (entries.size() > kFoundLeavesMax)
    return absl::InvalidArgumentError("at most " + std::to_string(kFoundLeavesMax));
  for (const std::string& entry : entries) {
    if (!IsPlaceToLook(entry)) continue;
    if (absl::Status bad = CheckDirectoryEntry(entry); !bad.ok()) return bad;
    if (IsLeases(entry) && cell.empty())
      return absl::InvalidArgumentError(
          "leaves that announce themselves need the name of the cell");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FoundLeaves>> FoundLeaves::Open(
    const std::vector<std::string>& entries, const std::string& cell, DirectoryOptions options) {
  if (absl::Status bad = Check(entries, cell); !bad.ok()) return bad;
  std::unique_ptr<FoundLeaves> leaves(new FoundLeaves());
  options.entries.clear();
  for (const std::string& entry : entries)
    (IsPlaceToLook(entry) ? options.entries : leaves->given_).push_back(entry);
  leaves->addresses_ = leaves->given_;
  if (options.entries.empty()) return leaves;
  options.kind = ServiceKind::kLeaf;
  options.name = cell;
  leaves->found_ = std::make_unique<Found>();
  auto directory = Directory::Open(
      std::move(options),
      [found = leaves->found_.get()](const auto& records) { found->Take(records); });
  if (!directory.ok()) return directory.status();
  leaves->found_->directory = *std::move(directory);
  leaves->Changed();
  return leaves;
}

// Given ones, then known ones that are still found, then new ones: a change never reorders leaves
// that stay, so the sender's streams to them stay, and the bound cuts off new ones first.
std::vector<std::string> FoundLeaves::Merged(const std::vector<std::string>& found) const {
  std::vector<std::string> merged = given_;
  for (const std::string& known : addresses_)
    if (Contains(found, known) && !Contains(merged, known)) merged.push_back(known);
  for (const std::string& address : found)
    if (!Contains(merged, address)) merged.push_back(address);
  return merged;
}

// An empty result never replaces what is known.
std::optional<std::vector<std::string>> FoundLeaves::Changed() {
  if (found_ == nullptr) return std::nullopt;
  const std::optional<std::vector<std::string>> found = found_->Latest();
  if (!found.has_value()) return std::nullopt;
  std::vector<std::string> now = Merged(*found);
  if (now.size() > kFoundLeavesMax) {
    Log(LogLevel::kWarning, "more leaves than are told",
        {{"found", now.size()}, {"told", kFoundLeavesMax}});
    now.resize(kFoundLeavesMax);
  }
  if (now.empty() || now == addresses_) return std::nullopt;
  addresses_ = now;
  Log(LogLevel::kInfo, "other leaves", {{"leaves", absl::StrJoin(now, ",")}});
  return now;
}

}  // namespace kvatlas
