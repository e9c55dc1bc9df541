#include "frontend/gateway/ext_proc/model_names.h"

#include <algorithm>
#include <utility>

#include "frontend/prompt/json_fields.h"

namespace kvatlas {
namespace {

constexpr std::string_view kKey = "\"model\"";
constexpr size_t kBlanksMax = 16;

// Behind the blanks at `at`, of which `kBlanksMax` count.
size_t Behind(std::string_view text, size_t at) {
  const size_t end = std::min(text.size(), at + kBlanksMax);
  while (at < end && (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r'))
    ++at;
  return at;
}

// Where an end of `text` begins that may be a beginning of `what`; the size: nowhere.
size_t BeginningOf(std::string_view text, std::string_view what) {
  size_t at = text.size() - std::min(text.size(), what.size() - 1);
  while (at < text.size() && !what.starts_with(text.substr(at))) ++at;
  return at;
}

}  // namespace

ModelNames::ModelNames(const std::string& engines, const std::string& clients)
    : engines_(Quoted(engines)), clients_(Quoted(clients)) {}

std::string ModelNames::Add(std::string_view piece, bool last) {
  const std::string text = std::exchange(held_, {}).append(piece);
  const std::string_view all = text;
  std::string out;
  out.reserve(text.size() + clients_.size());
  size_t from = 0;           // what is not in `out` yet
  size_t hold = all.size();  // what is held back
  for (size_t key = all.find(kKey); key != std::string_view::npos; key = all.find(kKey, from)) {
    const size_t colon = Behind(all, key + kKey.size());
    const size_t value = colon < all.size() && all[colon] == ':' ? Behind(all, colon + 1) : colon;
    const bool is_field = value > colon;
    if (value == all.size() || (is_field && engines_.starts_with(all.substr(value)) &&
                                all.size() - value < engines_.size())) {
      hold = key;
      break;
    }
    out.append(all, from, value - from);
    from = value;
    if (!is_field || !all.substr(value).starts_with(engines_)) continue;
    out += clients_;
    from += engines_.size();
  }
  if (hold == all.size()) hold = std::max(from, BeginningOf(all, kKey));
  if (last) hold = all.size();
  out.append(all, from, hold - from);
  held_ = all.substr(hold);
  return out;
}

}  // namespace kvatlas
