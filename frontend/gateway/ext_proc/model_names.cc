// A streaming search and replace: finds `"model"`, blanks, a colon, blanks and the engine's name
// across the boundaries of pieces. Only the end of a piece that may be the beginning of such a
// field is held back, so a stream of tokens is not delayed.

#include "frontend/gateway/ext_proc/model_names.h"

#include <algorithm>
#include <utility>

#include "frontend/prompt/json_fields.h"

namespace kvatlas {
namespace {

constexpr std::string_view kKey = "\"model\"";
// Blanks on either side of the colon. It bounds the bytes held back: key, twice the blanks, name.
constexpr size_t kBlanksMax = 16;

// The position behind the blanks at `at`; at most `kBlanksMax` are skipped.
size_t Behind(std::string_view text, size_t at) {
  const size_t end = std::min(text.size(), at + kBlanksMax);
  while (at < end && (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r'))
    ++at;
  return at;
}

// The start of the longest end of `text` that is a proper beginning of `what`; `text.size()`: none.
size_t BeginningOf(std::string_view text, std::string_view what) {
  size_t at = text.size() - std::min(text.size(), what.size() - 1);
  while (at < text.size() && !what.starts_with(text.substr(at))) ++at;
  return at;
}

}  // namespace

ModelNames::ModelNames(const std::string& engines, const std::string& clients)
    : engines_(Quoted(engines)), clients_(Quoted(clients)) {}

// For each key in held text and piece together:
// 1. `value` is where the field's value begins, or `colon` if no colon follows.
// 2. If the text ends before the value can be compared, everything from the key on is held back.
// 3. Otherwise the text up to the value goes out; a value that is the engine's name is replaced.
// Without an open key, an end that may be the beginning of the key itself is held back. The names
// are quoted JSON strings, so a value is compared with both of its quotes.
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
