// Which header fields are between two neighbours only, and never passed on (RFC 9110, 7.6.1)?

#ifndef KVATLAS_FRONTEND_ENGINE_CLIENT_HOP_BY_HOP_H_
#define KVATLAS_FRONTEND_ENGINE_CLIENT_HOP_BY_HOP_H_

#include <string>
#include <string_view>
#include <vector>

#include "indexer/net/http_server.h"

namespace kvatlas {

// The values of the fields `connection`.
std::vector<std::string> HopsOf(const HttpHeaders& headers);
// A header field that is between two neighbours only: by its name, or by `HopsOf` its message.
bool IsHopByHop(std::string_view name, const std::vector<std::string>& hops);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ENGINE_CLIENT_HOP_BY_HOP_H_
