// The session that a request belongs to, by its headers: our own header, or one that agents and
// engines' clients send anyway.
//
//   x-kvatlas-session            ours
//   x-session-id                 read by vLLM (0.33, entrypoints/generate/base/serving.py, SESSION_ID_HEADER)
//   x-claude-code-session-id     Claude Code
//   session_id, session-id       Codex; with dots and dashes as gateways rewrite them
//   x-codex-session-id
//   x-dynamo-session-id          Dynamo's clients
//   x-smg-routing-key            SGLang's model gateway
//
// Without any of these a body may name one (`PromptRequest::session`).
//
// *Truth*: a hint: requests of one session go where the last one went unless that is dearer. The
// first that is there counts, in this order; one that is too long for a session is none, unless it
// is ours, which is then refused.

#ifndef KVATLAS_FRONTEND_GATEWAY_SESSION_HEADER_H_
#define KVATLAS_FRONTEND_GATEWAY_SESSION_HEADER_H_

#include <string>
#include <string_view>

#include "absl/strings/match.h"
#include "frontend/router/frontend.h"

namespace kvatlas {

inline constexpr std::string_view kSessionHeaders[] = {
    "x-kvatlas-session", "x-session-id",       "x-claude-code-session-id", "session_id",
    "session-id",        "x-codex-session-id", "x-dynamo-session-id",      "x-smg-routing-key"};

// `value_of(name)`: of a header, named in lower case; empty: there is none.
template <typename ValueOf>
std::string SessionBy(const ValueOf& value_of) {
  for (const std::string_view wanted : kSessionHeaders) {
    std::string value(value_of(wanted));
    if (value.empty()) continue;
    if (wanted == kSessionHeaders[0] || value.size() <= kSessionIdBytesMax) return value;
  }
  return "";
}

// `headers`: pairs of name and value.
template <typename Headers>
std::string SessionOfHeaders(const Headers& headers) {
  return SessionBy([&](std::string_view wanted) -> std::string_view {
    for (const auto& [name, value] : headers)
      if (absl::EqualsIgnoreCase(absl::string_view(name.data(), name.size()),
                                 absl::string_view(wanted.data(), wanted.size())) &&
          !value.empty())
        return std::string_view(value.data(), value.size());
    return "";
  });
}

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_SESSION_HEADER_H_
