// Checks of JSON bodies with errors that help to correct them.

#include "frontend/gateway/strict_json.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

// The bytes of a client's text that an error repeats.
constexpr size_t kShownMax = 64;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// The edit distance: letters to be added, removed or changed. One row of the usual table, O(a * b);
// `a` has at most `kShownMax` bytes.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// The field with the least distance; empty: none is within half of the name's length, or two
// letters.
std::string_view Nearest(std::string_view name, std::span<const std::string_view> fields) {
  std::string_view nearest;
  size_t least = std::max<size_t>(2, name.size() / 2) + 1;
  for (const std::string_view field : fields) {
    const size_t distance = Distance(name, field);
    if (distance < least) {
      least = distance;
      nearest = field;
    }
  }
  return nearest;
}

}  // namespace

absl::Status CheckFields(const nlohmann::json& body, std::string_view call,
                         std::span<const std::string_view> fields) {
  for (const auto& [name, value] : body.items()) {
    if (std::find(fields.begin(), fields.end(), name) != fields.end()) continue;
    const std::string shown = name.substr(0, kShownMax);
    const std::string_view nearest = Nearest(shown, fields);
    std::string message = absl::StrCat(shown, " is no field of ", View(call));
    if (!nearest.empty()) absl::StrAppend(&message, "; did you mean ", View(nearest), "?");
    absl::StrAppend(&message, nearest.empty() ? ". " : " ", "Fields are:");
    for (const std::string_view field : fields) absl::StrAppend(&message, " ", View(field));
    return absl::InvalidArgumentError(message);
  }
  return absl::OkStatus();
}

absl::Status ReadBool(const nlohmann::json& body, const char* name, bool* to) {
  const auto found = body.find(name);
  if (found == body.end() || found->is_null()) return absl::OkStatus();
  if (!found->is_boolean())
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is neither true nor false: ",
                     found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                         .substr(0, kShownMax)));
  *to = found->get<bool>();
  return absl::OkStatus();
}

}  // namespace kvatlas
