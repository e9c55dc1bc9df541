// Which cells there were (`kept_`, the file) and which have reported by now (`CellsOf`). Both are
// sets of lines "CELL<tab>DOMAIN", so that comparing them is comparing texts.
// `Look` and `Keep` run on the node's main thread; only `readiness_` is read by others.

#include "hierarchy/cells_gate.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "indexer/base/domain.h"
#include "indexer/base/overlap.h"
#include "indexer/security/secret_file.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

// More than `kCellsKeptMax` lines of ordinary names take; a larger file is not read.
constexpr size_t kFileBytesMax = size_t{64} << 20;
constexpr size_t kNamedMax = 8;  // of those that are missing, in a reason
// Cells of the file that have not reported since the start stay in it for so long.
constexpr Duration kUnheardKept = std::chrono::hours(1);

// The line of a cell in a domain; empty for names that would not be read back as they are. Such
// cells are not waited for.
std::string LineOf(const std::string& cell, const Domain& domain) {
  std::string line = absl::StrCat(cell, "\t", ToString(domain));
  const bool plain = std::count(line.begin(), line.end(), '\t') == 1 &&
                     line.find('\n') == std::string::npos && !cell.empty();
  return plain ? line : "";
}

// The lines that can be lines, at most `kCellsKeptMax`. A missing or unreadable file is the same as
// none, and logged: at the first start there is none.
std::set<std::string> ReadLines(const std::string& path) {
  std::set<std::string> lines;
  const absl::StatusOr<std::string> text = ReadFileUpTo(path, kFileBytesMax);
  if (!text.ok()) {
    Log(LogLevel::kInfo, "starts without the cells of before", {{"reason", text.status()}});
    return lines;
  }
  for (std::string& line : std::vector<std::string>(absl::StrSplit(*text, '\n'))) {
    const bool whole = std::count(line.begin(), line.end(), '\t') == 1 && line[0] != '\t';
    if (whole && lines.size() < kCellsKeptMax) lines.insert(std::move(line));
  }
  return lines;
}

// Every cell in every domain it has a holder in, masked ones included; true where a live replica of
// it is exact, so its stream has caught up. One lock per holder.
std::map<std::string, bool> CellsOf(const HolderRegistry& registry) {
  std::map<std::string, bool> cells;
  for (const Domain& domain : registry.Domains()) {
    for (const HolderId& id : registry.HoldersOf(domain)) {
      if (std::string line = LineOf(id.name, domain); !line.empty()) cells.emplace(line, false);
    }
    const absl::StatusOr<OverlapAnswer> live =
        registry.FindOverlaps(domain, {}, /*all_holders=*/true);
    if (!live.ok()) continue;  // forgotten since
    for (const HolderOverlap& holder : live->holders) {
      if (holder.trust != Trust::kExact) continue;
      const auto cell = cells.find(LineOf(holder.holder->id.name, domain));
      if (cell != cells.end()) cell->second = true;
    }
  }
  return cells;
}

std::string CellOfLine(const std::string& line) { return line.substr(0, line.find('\t')); }

}  // namespace

CellsGate::CellsGate(CellsGateOptions options)
    : options_(std::move(options)),
      started_at_(options_.clock->Now()),
      kept_(options_.file.empty() ? std::set<std::string>() : ReadLines(options_.file)),
      unheard_(kept_),
      readiness_{.ready = false, .reason = "starting"} {}

// Why the node is not ready; empty: it is.
// 1. Lines of now and of the file together. 2. A cell has reported when all of its lines are exact:
//    one of two models is not enough. 3. So many cells must have reported as are known, or as are
//    expected if those are more.
std::string CellsGate::Missing(const HolderRegistry& registry) {
  if (kept_.empty() && options_.cells_expected == 0) return "";
  std::map<std::string, bool> cells = CellsOf(registry);
  for (const auto& [line, is_exact] : cells) unheard_.erase(line);
  for (const std::string& line : kept_) cells.emplace(line, false);
  std::map<std::string, bool> reported;  // by name, in all of its domains
  for (const auto& [line, is_exact] : cells) {
    bool& all = reported.emplace(CellOfLine(line), true).first->second;
    all = all && is_exact;
  }
  std::vector<std::string> missing;
  size_t there = 0;
  for (const auto& [cell, all] : reported) {
    if (all) {
      ++there;
    } else if (missing.size() < kNamedMax) {
      missing.push_back(cell);
    }
  }
  const size_t wanted = std::max<size_t>(options_.cells_expected, reported.size());
  if (there >= wanted) return "";
  std::string reason = absl::StrCat(there, " of ", wanted, " cells have reported");
  if (!missing.empty()) absl::StrAppend(&reason, ", not ", absl::StrJoin(missing, ", "));
  return reason;
}

// Once ready, always ready: later losses of cells are no reason to send questions elsewhere. After
// `ready_after` the node is ready with what it has, and says once which cells are missing.
void CellsGate::Look(const HolderRegistry& registry) {
  if (Get().ready) return;
  std::string missing = Missing(registry);
  const bool late = options_.clock->Now() - started_at_ >= options_.ready_after;
  if (late && !missing.empty())
    Log(LogLevel::kWarning, "ready after --ready_after", {{"reason", missing}});
  MutexLock lock(&mutex_);
  readiness_ = {.ready = late || missing.empty(), .reason = std::move(missing)};
}

Readiness CellsGate::Get() const {
  MutexLock lock(&mutex_);
  return readiness_;
}

// Not before ready: the file would lose cells that are still to report. For the same reason cells
// without which the node became ready (`ready_after`) stay for `kUnheardKept`: it may start again
// before they report. Written by rename, so a crash leaves the old or the new file; on an error it
// is tried again at the next call. A cell that was heard and left (goodbye, or swept after its
// lease) leaves the file too.
void CellsGate::Keep(const HolderRegistry& registry) {
  if (options_.file.empty() || !Get().ready) return;
  std::set<std::string> now;
  for (const auto& [line, is_exact] : CellsOf(registry)) {
    if (now.size() < kCellsKeptMax) now.insert(line);
    unheard_.erase(line);
  }
  if (options_.clock->Now() - started_at_ >= kUnheardKept) unheard_.clear();
  for (const std::string& line : unheard_) {
    if (now.size() < kCellsKeptMax) now.insert(line);
  }
  if (now == kept_) return;
  const absl::Status status =
      WriteFileByRename(options_.file, absl::StrCat(absl::StrJoin(now, "\n"), "\n"), 0644);
  if (!status.ok()) {
    Log(LogLevel::kWarning, "cells are not written down", {{"reason", status}});
    return;
  }
  kept_ = std::move(now);
}

}  // namespace kvatlas
