// Refuses a body with a field that the call does not know: a misspelt field would otherwise be
// ignored in silence.
//
// *Threads*: pure functions.

#ifndef KVATLAS_FRONTEND_GATEWAY_STRICT_JSON_H_
#define KVATLAS_FRONTEND_GATEWAY_STRICT_JSON_H_

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "absl/status/status.h"

namespace kvatlas {

// INVALID_ARGUMENT: "tokns is no field of /route; did you mean tokens? Fields are: …". REQUIRES:
// `body` is an object.
absl::Status CheckFields(const nlohmann::json& body, std::string_view call,
                         std::span<const std::string_view> fields);

// Sets `to`, unless the field is missing or null. INVALID_ARGUMENT: "accepted is neither true nor
// false: \"yes\"".
absl::Status ReadBool(const nlohmann::json& body, const char* name, bool* to);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_STRICT_JSON_H_
