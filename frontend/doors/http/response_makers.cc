#include "frontend/doors/http/response_makers.h"

#include <algorithm>
#include <utility>

namespace kvatlas {

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

std::optional<std::string> ResponseIdIn(std::string_view text) {
  constexpr std::string_view kName = "\"id\"";
  const auto skip = [&](const char* what) {
    text.remove_prefix(std::min(text.find_first_not_of(what), text.size()));
  };
  text.remove_prefix(std::min(text.find(kName), text.size()));
  if (text.empty()) return std::nullopt;
  text.remove_prefix(kName.size());
  skip(" \t\r\n:");
  const size_t end = text.find('"', 1);
  if (!text.starts_with('"') || end == std::string_view::npos || end > kResponseIdMax)
    return std::nullopt;
  return std::string(text.substr(1, end - 1));
}

}  // namespace kvatlas
