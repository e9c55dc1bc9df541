// Headers of HTTP by their names, and text that is fit to be one.
//
// *Threads*: pure functions.

#ifndef KVATLAS_FRONTEND_GATEWAY_HTTP_HEADER_TEXT_H_
#define KVATLAS_FRONTEND_GATEWAY_HTTP_HEADER_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "indexer/net/http_server.h"

namespace kvatlas {

inline bool SameHeader(std::string_view a, std::string_view b) {
  return absl::EqualsIgnoreCase(absl::string_view(a.data(), a.size()),
                                absl::string_view(b.data(), b.size()));
}

// The first of that name; empty: none.
inline std::string HeaderOf(const HttpHeaders& headers, std::string_view name) {
  for (const auto& [other, value] : headers) {
    if (SameHeader(other, name)) return value;
  }
  return "";
}

// A header's value of at most `kHeaderTextMax` bytes: without line ends and what else is no
// printable text.
inline constexpr size_t kHeaderTextMax = 200;
inline std::string HeaderText(std::string text) {
  if (text.size() > kHeaderTextMax) text.resize(kHeaderTextMax);
  for (char& c : text) {
    if (c < ' ' || c > '~') c = ' ';
  }
  return text;
}

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_HTTP_HEADER_TEXT_H_
