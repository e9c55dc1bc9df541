// The table of paths, the matching of patterns, and the little of MIME that a form's field `model`
// needs. Lookups are linear in the table, some sixty entries.

#include "frontend/gateway/http/proxied_paths.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kvatlas {
namespace {

// Calls that go to an engine of the model that their body names.
constexpr std::string_view kInference[] = {
    "POST /v1/chat/completions", "POST /v1/completions", "POST /v1/responses",
    "POST /v1/responses/*/cancel", "GET /v1/responses/*", "DELETE /v1/responses/*",
    "GET /v1/responses/*/input_items", "POST /v1/messages", "POST /v1/messages/count_tokens",
    "POST /v1/embeddings", "POST /v1/rerank", "POST /v1/score", "POST /v1/classify",
    "POST /v1/pooling", "POST /v1/moderations", "POST /v1/audio/transcriptions",
    "POST /v1/audio/translations", "POST /v1/audio/speech", "POST /v1/images/generations",
    "POST /v1/images/edits", "GET /v1/models", "GET /v1/models/*",
    // vLLM 0.33.0 (entrypoints/*/api_router.py)
    "POST /v1/chat/completions/batch", "POST /v1/chat/completions/render",
    "POST /v1/chat/completions/derender", "POST /v1/completions/render",
    "POST /v1/completions/derender", "POST /v1/responses/render", "POST /v1/messages/render",
    "POST /v1/decisions", "POST /v1/systemone", "POST /inference/v1/generate",
    "POST /generative_scoring", "POST /cohere/v2/chat", "POST /cohere/v2/chat/render",
    "POST /v2/embed", "POST /v2/rerank", "POST /rerank", "POST /score", "POST /classify",
    "POST /pooling", "POST /invocations", "POST /tokenize", "POST /detokenize",
    // SGLang 0.5.23 (entrypoints/http_server.py)
    "POST /v1/classify", "POST /v1/tokenize", "POST /v1/detokenize", "POST /generate",
    "POST /encode", "POST /parse_function_call", "POST /separate_reasoning"};

// Calls to which any engine gives the same answer, or speaks for itself alone without an address, a
// setting or a key.
constexpr std::string_view kOfAnyEngine[] = {
    "GET /version",        "GET /ping",           "POST /ping",     "GET /load",
    "GET /tokenizer_info", "GET /get_model_info", "GET /model_info"};

// Paths that `proxy.cc` and `process_health.h` answer.
constexpr std::string_view kOwn[] = {"/health", "/healthz", "/livez", "/ready", "/metrics"};

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// The first segment with its leading slash, which is taken off. REQUIRES: `*path` is not empty.
std::string_view NextSegment(std::string_view* path) {
  const size_t end = std::min(path->find('/', 1), path->size());
  const std::string_view segment = path->substr(0, end);
  path->remove_prefix(end);
  return segment;
}

// Segment by segment; `/*` matches one segment that is not empty, so "/" at the end never does.
bool Matches(std::string_view pattern, std::string_view path) {
  while (!pattern.empty() && !path.empty()) {
    const std::string_view wanted = NextSegment(&pattern), found = NextSegment(&path);
    if (wanted == "/*" ? found.size() < 2 : wanted != found) return false;
  }
  return pattern.empty() && path.empty();
}

// The value at the beginning of `rest`, a token or a quoted string (RFC 9110 §5.6.4), which is
// taken off.
std::string TakeValue(std::string_view* rest) {
  if (!rest->starts_with('"')) {
    const std::string_view token = rest->substr(0, rest->find_first_of("; \t\r\n"));
    rest->remove_prefix(token.size());
    return std::string(token);
  }
  std::string value;
  size_t at = 1;
  for (; at < rest->size() && (*rest)[at] != '"'; ++at) {
    if ((*rest)[at] == '\\' && at + 1 < rest->size()) ++at;
    value += (*rest)[at];
  }
  rest->remove_prefix(std::min(at + 1, rest->size()));
  return value;
}

// The value of the first parameter of that name, `; NAME=VALUE` or `; NAME="VALUE"`; a quoted value
// may hold anything, `;` too. Empty: there is none.
std::string Parameter(std::string_view header, std::string_view name) {
  std::string_view rest = header.substr(std::min(header.find(';'), header.size()));
  while (!rest.empty()) {
    rest.remove_prefix(std::min(rest.find_first_not_of("; \t"), rest.size()));
    const size_t end = std::min(rest.find_first_of("=;"), rest.size());
    const std::string_view found = rest.substr(0, end);
    rest.remove_prefix(end);
    if (!rest.starts_with('=')) continue;
    rest.remove_prefix(1);
    std::string value = TakeValue(&rest);
    if (absl::EqualsIgnoreCase(View(found), View(name))) return value;
    rest.remove_prefix(std::min(rest.find(';'), rest.size()));
  }
  return {};
}

}  // namespace

// "METHOD /path" of the tables above.
ProxiedPaths::ProxiedPaths() {
  const auto add = [this](std::string_view call, bool inference) {
    const size_t space = call.find(' ');
    patterns_.push_back({.method = std::string(call.substr(0, space)),
                         .path = std::string(call.substr(space + 1)),
                         .inference = inference});
  };
  for (const std::string_view call : kInference) add(call, true);
  for (const std::string_view call : kOfAnyEngine) add(call, false);
}

absl::StatusOr<ProxiedPaths> ProxiedPaths::With(const std::vector<std::string>& more) {
  ProxiedPaths paths;
  for (const std::string& call : more) {
    const size_t space = call.find(' ');
    const std::string method = call.substr(0, space);
    const std::string path = space == std::string::npos ? "" : call.substr(space + 1);
    const bool token = !method.empty() && std::all_of(method.begin(), method.end(), [](char c) {
      return absl::ascii_isupper(static_cast<unsigned char>(c));
    });
    if (!token || !path.starts_with('/') || path.find(' ') != std::string::npos)
      return absl::InvalidArgumentError(
          absl::StrCat("'", call, "': wanted is 'METHOD /PATH', such as 'GET /server_info'"));
    if (std::find(std::begin(kOwn), std::end(kOwn), path) != std::end(kOwn))
      return absl::InvalidArgumentError(absl::StrCat("'", call, "': the proxy answers it itself"));
    // Not inference: with a body the model is still read from it, without one any engine takes it
    // (`ProxiedRequest::ReadHead`).
    paths.patterns_.push_back({.method = method, .path = path, .inference = false});
  }
  return paths;
}

bool ProxiedPaths::Allows(std::string_view method, std::string_view path) const {
  if (method == "HEAD") method = "GET";
  return std::any_of(patterns_.begin(), patterns_.end(), [&](const Pattern& pattern) {
    return pattern.method == method && Matches(pattern.path, path);
  });
}

bool ProxiedPaths::IsInference(std::string_view method, std::string_view path) const {
  return std::any_of(patterns_.begin(), patterns_.end(), [&](const Pattern& pattern) {
    return pattern.inference && pattern.method == method && Matches(pattern.path, path);
  });
}

std::string ProxiedPaths::MethodsOf(std::string_view path) const {
  std::string methods;
  for (const Pattern& pattern : patterns_) {
    if (!Matches(pattern.path, path)) continue;
    absl::StrAppend(&methods, methods.empty() ? "" : ", ", pattern.method,
                    pattern.method == "GET" ? ", HEAD" : "");
  }
  return methods;
}

std::string ProxiedPaths::ToString() const {
  std::string text;
  for (const Pattern& pattern : patterns_)
    absl::StrAppend(&text, text.empty() ? "" : ", ", pattern.method, " ", pattern.path);
  return text;
}

// RFC 2046: each part begins with "--" and the boundary, then headers, an empty line, and its
// content up to the next line with the boundary. The search continues at the boundary that ended
// the content, so each byte is looked at once. A part that is cut off ends the search.
std::optional<std::string> MultipartModel(std::string_view content_type, std::string_view body) {
  constexpr std::string_view kForm = "multipart/form-data";
  if (!absl::StartsWithIgnoreCase(View(content_type), View(kForm))) return std::nullopt;
  const std::string boundary = Parameter(content_type, "boundary");
  if (boundary.empty()) return std::nullopt;
  const std::string delimiter = absl::StrCat("--", boundary);
  std::optional<std::string> model;
  size_t at = body.find(delimiter);
  while (at != std::string_view::npos) {
    const size_t headers = at + delimiter.size();
    const size_t end_of_headers = body.find("\r\n\r\n", headers);
    if (end_of_headers == std::string_view::npos) break;
    const size_t content = end_of_headers + 4;
    const size_t next = body.find("\r\n" + delimiter, content);
    if (next == std::string_view::npos) break;
    std::string_view lines = body.substr(headers, end_of_headers - headers);
    while (!lines.empty()) {
      const size_t end = std::min(lines.find("\r\n"), lines.size());
      const std::string_view line = lines.substr(0, end);
      lines.remove_prefix(std::min(lines.size(), end + 2));
      if (absl::StartsWithIgnoreCase(View(line), "content-disposition:") &&
          Parameter(line, "name") == "model")
        model = std::string(body.substr(content, next - content));
    }
    at = next + 2;
  }
  return model;
}

}  // namespace kvatlas
