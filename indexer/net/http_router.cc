// Routes by path and method, the table of verbs by path, and the decoding of queries.

#include "indexer/net/http_router.h"

#include <utility>

namespace kvatlas {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

// In queries a '+' is a blank, in paths it is itself.
std::optional<std::string> PercentDecode(std::string_view text, bool plus_is_blank) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = HexDigit(text[i + 1]);
      const int low = HexDigit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      out.push_back(static_cast<char>(high * 16 + low));
      i += 2;
    } else {
      out.push_back(plus_is_blank && text[i] == '+' ? ' ' : text[i]);
    }
  }
  return out;
}

Verb HttpVerbOf(std::string_view path) {
  struct PathVerb {
    std::string_view prefix;
    Verb verb;
  };
  // The first entry whose prefix is the path or a parent of it decides. Paths that are not in the
  // table are for operators: a new route is closed until it is put here.
  constexpr PathVerb kVerbs[] = {
      {"/healthz", Verb::kHealth},        {"/livez", Verb::kHealth},
      {"/ready", Verb::kHealth},          {"/health", Verb::kHealth},
      {"/metrics", Verb::kMetrics},       {"/version", Verb::kStatus},
      {"/status", Verb::kStatus},         {"/peers", Verb::kStatus},
      {"/workers", Verb::kStatus},        {"/v1", Verb::kRoute},
      {"/route", Verb::kRoute},           {"/report", Verb::kFeedback},
      {"/decisions", Verb::kFeedback},    {"/diagnosis", Verb::kStatus},
      {"/query", Verb::kQuery},           {"/query_by_hash", Verb::kQuery},
      {"/explain", Verb::kDump},          {"/dump", Verb::kDump},
      {"/global_view", Verb::kDump},      {"/snapshot", Verb::kSnapshot},
      {"/register", Verb::kRegister},     {"/unregister", Verb::kRegister},
      {"/register_peer", Verb::kOperate}, {"/ui/explain", Verb::kDump},
      {"/ui/sessions.json", Verb::kDump}, {"/ui", Verb::kStatus}};
  if (path == "/") return Verb::kStatus;  // sends on to the page
  for (const PathVerb& one : kVerbs) {
    if (path == one.prefix) return one.verb;
    if (path.starts_with(one.prefix) && path[one.prefix.size()] == '/') return one.verb;
  }
  return Verb::kOperate;
}

// The verb is fixed here, so that `HttpRoute::verb` always has a value in a running server.
void HttpRouter::Add(HttpRoute route) {
  if (!route.verb.has_value()) route.verb = HttpVerbOf(route.path);
  Methods& methods = routes_[route.path];
  if (route.method == "GET") {
    if (route.vital) {
      vital_.insert(route.path);
    } else {
      vital_.erase(route.path);
    }
  }
  std::string method = route.method;
  methods.insert_or_assign(std::move(method), std::move(route));
}

// The exact path, else "/*" below each of its parents, nearest first: one look-up per segment.
const HttpRouter::Methods* HttpRouter::Find(std::string_view path) const {
  if (const auto route = routes_.find(path); route != routes_.end()) return &route->second;
  for (size_t slash; (slash = path.rfind('/')) != std::string_view::npos;) {
    path = path.substr(0, slash);
    if (const auto route = routes_.find(std::string(path) + "/*"); route != routes_.end()) {
      return &route->second;
    }
  }
  return nullptr;
}

std::string HttpRouter::Allow(const Methods& methods) {
  std::string allow;
  for (const auto& [method, route] : methods) {
    if (!allow.empty()) allow += ',';
    allow += method;
    if (method == "GET") allow += ",HEAD";
  }
  return allow;
}

// Names are compared decoded. A name without '=' has an empty value.
std::optional<std::string> HttpRequest::Param(std::string_view name) const {
  for (std::string_view rest = query; !rest.empty();) {
    const size_t end = rest.find('&');
    const std::string_view pair = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    const size_t equals = pair.find('=');
    if (PercentDecode(pair.substr(0, equals), true) != name) continue;
    if (equals == std::string_view::npos) return "";
    return PercentDecode(pair.substr(equals + 1), true);
  }
  return std::nullopt;
}

}  // namespace kvatlas
