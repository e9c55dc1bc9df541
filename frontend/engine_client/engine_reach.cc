// Parsing of engine urls, and the two questions about an engine: may it be called, and does it get
// the key.

#include "frontend/engine_client/engine_reach.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "indexer/process/flags.h"
#include "indexer/security/secret_file.h"

namespace kvatlas {

// HOST may be an IPv6 address in brackets, so the port is looked for behind the bracket. A user
// name ('@'), blanks and anything outside of ASCII are refused: the text goes into a request's
// head.
absl::StatusOr<EngineUrl> EngineUrl::Parse(std::string_view text) {
  constexpr std::string_view kHttp = "http://";
  const auto bad = [&](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat("'", absl::string_view(text.data(), text.size()),
                                                   "': ", why,
                                                   "; wanted is http://HOST[:PORT][/PATH]"));
  };
  if (!text.starts_with(kHttp)) return bad("not http");
  std::string_view rest = text.substr(kHttp.size());
  EngineUrl url;
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    url.prefix = rest.substr(slash);
    while (url.prefix.ends_with('/')) url.prefix.pop_back();
    rest = rest.substr(0, slash);
  }
  const size_t bracket = rest.find(']');
  const size_t colon = rest.find(':', bracket == std::string_view::npos ? 0 : bracket);
  url.port = colon == std::string_view::npos ? "80" : std::string(rest.substr(colon + 1));
  url.host = rest.substr(0, colon);
  if (url.host.size() > 1 && url.host.front() == '[' && url.host.back() == ']')
    url.host = url.host.substr(1, url.host.size() - 2);
  const bool digits = !url.port.empty() && url.port.size() <= 5 &&
                      std::all_of(url.port.begin(), url.port.end(),
                                  [](unsigned char c) { return absl::ascii_isdigit(c); });
  if (!digits) return bad("no port");
  // The resolver would take the last 16 bits of a larger one, and another port be called.
  if (uint32_t port = 0; !absl::SimpleAtoi(url.port, &port) || port > 65535)
    return bad("the port is above 65535");
  const bool printable = std::all_of(
      text.begin(), text.end(), [](unsigned char c) { return c > ' ' && c < 127 && c != '@'; });
  if (url.host.empty() || !printable) return bad("no host");
  return url;
}

// With the port in any case, so that two spellings of one engine are one key.
std::string EngineUrl::authority() const {
  const bool six = host.find(':') != std::string::npos;
  return absl::StrCat(six ? "[" : "", host, six ? "]:" : ":", port);
}

// The key becomes a header's value, so it must be one printable word.
absl::StatusOr<std::string> ReadEngineApiKey(const std::string& path) {
  if (path.empty()) return "";
  absl::StatusOr<std::string> key = ReadSecretFile(path);
  if (!key.ok()) return OfFlag(kEngineApiKeyFileFlag, key.status());
  const bool is_token = !key->empty() && std::all_of(key->begin(), key->end(), [](unsigned char c) {
    return absl::ascii_isgraph(c);
  });
  if (is_token) return key;
  return OfFlag(
      kEngineApiKeyFileFlag,
      absl::InvalidArgumentError(path + ": expected one line with the key, without blanks"));
}

// Never for an engine that only its worker names: a worker could name any host.
std::string GivenEngines::AuthorizationFor(const EngineUrl& url) const {
  MutexLock lock(&mutex_);
  return api_key_.empty() || !authorities_.contains(url.authority()) ? "" : "Bearer " + api_key_;
}

// A client's own authorization is left as it is.
void EngineReach::Authorize(const EngineUrl& url, HttpHeaders* headers) const {
  const bool has = std::any_of(headers->begin(), headers->end(), [](const auto& field) {
    return absl::EqualsIgnoreCase(field.first, "authorization");
  });
  std::string ours = has ? "" : given->AuthorizationFor(url);
  if (!ours.empty()) headers->emplace_back("authorization", std::move(ours));
}

absl::Status EngineReach::Check(const EngineUrl& url) const {
  return given->Contains(url.authority()) ? absl::OkStatus() : addresses.CheckHost(url.host);
}

}  // namespace kvatlas
