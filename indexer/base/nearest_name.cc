#include "indexer/base/nearest_name.h"

#include <algorithm>
#include <cstddef>

namespace kvatlas {
namespace {

constexpr size_t kNameBytesMax = 128;  // of a longer one only the beginning is compared
constexpr size_t kDistanceMax = 4;
constexpr size_t kPrefixBytesMin = 3;

// Optimal string alignment (Damerau-Levenshtein without a second edit of a swapped pair). Three
// rows of the table are enough: a swap looks back two.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

// The nearest by distance wins; of equal ones the first. Only if there is none, a single candidate
// that extends the name, or that the name extends, by a common beginning of `kPrefixBytesMin`.
std::optional<std::string> NearestName(std::string_view name,
                                       const std::vector<std::string>& candidates) {
  name = name.substr(0, kNameBytesMax);
  const size_t near = std::min(kDistanceMax, std::max<size_t>(1, (name.size() + 2) / 3));
  const std::string* best = nullptr;
  size_t best_distance = near + 1;
  const std::string* extended = nullptr;
  size_t extensions = 0;
  for (const std::string& candidate : candidates) {
    const size_t distance = Distance(name, std::string_view(candidate).substr(0, kNameBytesMax));
    if (distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
    const bool extends =
        std::string_view(candidate).starts_with(name) || name.starts_with(candidate);
    if (extends && std::min(name.size(), candidate.size()) >= kPrefixBytesMin) {
      extended = &candidate;
      ++extensions;
    }
  }
  if (best != nullptr) return *best;
  if (extensions == 1) return *extended;
  return std::nullopt;
}

std::string DidYouMean(std::string_view name, const std::vector<std::string>& candidates,
                       std::string_view prefix) {
  const std::optional<std::string> nearest = NearestName(name, candidates);
  if (!nearest.has_value()) return "";
  return "; did you mean " + std::string(prefix) + *nearest + "?";
}

}  // namespace kvatlas
