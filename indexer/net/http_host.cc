#include "indexer/net/http_host.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "indexer/base/engine_addresses.h"

namespace kvatlas {
namespace {

// Written before servers start, read without a lock afterwards.
std::vector<std::string>& Names() {
  static auto* const names = new std::vector<std::string>;
  return *names;
}

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

bool Same(std::string_view a, std::string_view b) {
  return absl::EqualsIgnoreCase(Absl(a), Absl(b));
}

// Without port, brackets and the root's dot.
std::string_view NameIn(std::string_view host) {
  if (host.starts_with('[')) {
    host = host.substr(1, host.find(']') - 1);
  } else {
    host = host.substr(0, host.find(':'));
  }
  if (host.ends_with('.')) host.remove_suffix(1);
  return host;
}

}  // namespace

void SetHttpNames(std::vector<std::string> names) { Names() = std::move(names); }

// Names that only the local network resolves (one label, "localhost", addresses) cannot belong to a
// foreign site, so no page of one can use them for DNS rebinding. Other names have to be ours.
bool IsOwnHost(std::string_view host, std::string_view listen_host) {
  const std::string_view name = NameIn(host);
  if (name.find_first_of(".:") == std::string_view::npos) return true;  // one label, or none
  if (IsNumericHost(std::string(name))) return true;
  if (absl::EndsWithIgnoreCase(Absl(name), ".localhost") || Same(name, listen_host)) return true;
  return std::any_of(Names().begin(), Names().end(),
                     [&](const std::string& own) { return own == "*" || Same(own, name); });
}

std::string NotOwnHost(std::string_view host) {
  const std::string_view name = NameIn(host);
  return absl::StrCat(
      "this process asks for no credential, and listens on loopback alone; it does not answer "
      "for the host name \"",
      Absl(name),
      "\", by which a browser may have been sent here: ask for 127.0.0.1 or localhost, or start "
      "it with --http_names=",
      Absl(name));
}

}  // namespace kvatlas
