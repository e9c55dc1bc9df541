// A bounded map with the oldest id dropped first, and a scanner for ids in a stream of JSON.

#include "frontend/gateway/http/response_makers.h"

#include <algorithm>
#include <utility>

namespace kvatlas {

// A known id gets its new maker but keeps its age: `ids_` has each id once, and stays as long as
// `makers_`.
void ResponseMakers::Note(const std::string& id, KnownEngine engine) {
  MutexLock lock(&mutex_);
  if (!makers_.insert_or_assign(id, std::move(engine)).second) return;
  ids_.push_back(id);
  if (ids_.size() <= kResponsesMax) return;
  makers_.erase(ids_.front());
  ids_.pop_front();
}

std::optional<KnownEngine> ResponseMakers::Of(const std::string& id) const {
  MutexLock lock(&mutex_);
  const auto found = makers_.find(id);
  if (found == makers_.end()) return std::nullopt;
  return found->second;
}

// Scans for `"id"`, blanks or a colon, and a quoted value. `rest_` holds what may go on in the next
// piece: the last bytes that may begin the name, or an id whose closing quote is not there yet, up
// to `kResponseIdMax` bytes. A longer value is no id of ours and is skipped; so is a value that is
// no text. O(bytes) in all.
std::vector<std::string> ResponseIds::Add(std::string_view piece) {
  constexpr std::string_view kName = "\"id\"";
  rest_ += piece;
  std::string_view text = rest_;
  std::vector<std::string> ids;
  while (true) {
    const size_t name = text.find(kName);
    if (name == std::string_view::npos) {
      // The last bytes may be the beginning of the next name.
      text.remove_prefix(text.size() - std::min(text.size(), kName.size() - 1));
      break;
    }
    text.remove_prefix(name);
    const size_t from = text.find_first_not_of(" \t\r\n:", kName.size());
    const size_t end = from == std::string_view::npos ? from : text.find('"', from + 1);
    const bool is_text = from == std::string_view::npos || text[from] == '"';
    if (is_text && end == std::string_view::npos && text.size() <= kName.size() + kResponseIdMax)
      break;  // the rest is to come
    if (is_text && end != std::string_view::npos && end - from - 1 <= kResponseIdMax)
      ids.emplace_back(text.substr(from + 1, end - from - 1));
    text.remove_prefix(kName.size());
  }
  rest_.erase(0, rest_.size() - text.size());
  return ids;
}

}  // namespace kvatlas
