#include "indexer/base/resolve_host.h"

#include <netdb.h>
#include <sys/socket.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvatlas {

// One entry per address: SOCK_STREAM keeps getaddrinfo from listing each once per socket type.
absl::StatusOr<std::vector<std::string>> ResolveHost(const std::string& name) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(name.c_str(), nullptr, &hints, &list); error != 0)
    return absl::UnavailableError(absl::StrCat(name, ": ", gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(list, freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(each->ai_addr, each->ai_addrlen, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) == 0)
      addresses.emplace_back(text);
  }
  if (addresses.empty()) return absl::UnavailableError(name + " has no address");
  return addresses;
}

}  // namespace kvatlas
