#include "frontend/gateway/http/forwarded_tokens.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace kvatlas {

// The member is put behind the last one, so that nothing else of the body changes. A body that was
// routed by its tokens is JSON: what is behind its last brace is white space. The names are looked
// for anywhere in the body: one that stands in a text costs the short cut, and nothing else.
std::shared_ptr<const std::string> BodyWithTokens(const std::string& body,
                                                  std::span<const TokenId> tokens) {
  for (const char* name : {"\"kv_transfer_params\"", "\"echo\"", "\"truncate_prompt_tokens\""}) {
    if (body.find(name) != std::string::npos) return nullptr;
  }
  const size_t end = body.find_last_not_of(" \t\r\n");
  if (tokens.empty() || end == std::string::npos || body[end] != '}') return nullptr;
  const size_t last = body.find_last_not_of(" \t\r\n", end - 1);
  if (end == 0 || last == std::string::npos || body[last] == '{') return nullptr;
  std::string with;
  with.reserve(body.size() + 8 * tokens.size() + 64);
  with.append(body, 0, end);
  with += ",\"kv_transfer_params\":{\"prompt_token_ids\":[";
  const char* separator = "";
  for (const TokenId token : tokens) absl::StrAppend(&with, std::exchange(separator, ","), token);
  with += "]}}";
  return std::make_shared<const std::string>(std::move(with));
}

}  // namespace kvatlas
