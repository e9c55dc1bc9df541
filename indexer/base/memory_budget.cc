#include "indexer/base/memory_budget.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

// A level ends this many percent below its beginning, so that it does not flicker at the edge.
constexpr uint64_t kHysteresisPercent = 2;

MemoryLevel LevelAt(uint64_t percent) {
  if (percent >= MemoryBudget::kCriticalPercent) return MemoryLevel::kCritical;
  if (percent >= MemoryBudget::kFullPercent) return MemoryLevel::kFull;
  return percent >= MemoryBudget::kTightPercent ? MemoryLevel::kTight : MemoryLevel::kAmple;
}

// Rounded down. In floating point: 100 * bytes could overflow.
uint64_t Percent(uint64_t bytes, uint64_t of) {
  return static_cast<uint64_t>(100.0 * static_cast<double>(bytes) / static_cast<double>(of));
}

}  // namespace

std::string_view MemoryLevelName(MemoryLevel level) {
  switch (level) {
    case MemoryLevel::kAmple:
      return "ample";
    case MemoryLevel::kTight:
      return "tight";
    case MemoryLevel::kFull:
      return "full";
    case MemoryLevel::kCritical:
      return "critical";
  }
  return "unknown";
}

// A number, then nothing, '%' or one of K, M, G, T. The bound of 2^20 keeps the shift by 40 bits
// within 64.
absl::StatusOr<uint64_t> MemoryBudget::Parse(std::string_view text, uint64_t limit_bytes) {
  uint64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(parsed.ptr,
                              static_cast<size_t>(text.data() + text.size() - parsed.ptr));
  if (parsed.ec == std::errc()) {
    if (unit.empty()) return number;
    if (unit == "%" && number <= 100) return limit_bytes / 100 * number;
    const size_t power = std::string_view("KMGT").find(unit);
    if (unit.size() == 1 && power != std::string_view::npos && number < (uint64_t{1} << 20))
      return number << (10 * (power + 1));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::string_view(text.data(), text.size()),
                   "\" is not a number of bytes (8000000000, 8G) or a part of the limit (70%)"));
}

// Up at once; down only when the level would still be lower with `kHysteresisPercent` more.
std::pair<MemoryLevel, MemoryLevel> MemoryBudget::Measure() {
  const uint64_t used = meter_();
  used_bytes_.store(used, std::memory_order_relaxed);
  const MemoryLevel before = level();
  if (bytes_max_ == 0) return {before, before};
  const uint64_t percent = Percent(used, bytes_max_);
  const MemoryLevel now =
      std::max(LevelAt(percent), std::min(before, LevelAt(percent + kHysteresisPercent)));
  level_.store(now, std::memory_order_relaxed);
  return {before, now};
}

// Two atomics are read one after the other: the percentage in the message may be of a later
// measurement than the level.
absl::Status MemoryBudget::Check(MemoryLevel from, std::string_view what) const {
  if (level() < from) return absl::OkStatus();
  const std::string_view name = MemoryLevelName(level());
  return absl::ResourceExhaustedError(
      absl::StrCat("memory is ", absl::string_view(name.data(), name.size()), " (",
                   Percent(used_bytes(), bytes_max_), " % of --memory_budget): no ",
                   absl::string_view(what.data(), what.size())));
}

// Parts are measured one after the other and may exceed the last measurement of the whole; the rest
// is then 0.
std::vector<std::pair<std::string, uint64_t>> MemoryBudget::Parts() const {
  std::vector<std::pair<std::string, uint64_t>> parts;
  uint64_t rest = used_bytes();
  for (const auto& [name, bytes] : parts_) {
    parts.emplace_back(name, bytes());
    rest -= std::min(rest, parts.back().second);
  }
  parts.emplace_back("rest", rest);
  return parts;
}

}  // namespace kvatlas
