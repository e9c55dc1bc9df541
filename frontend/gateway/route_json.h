// The JSON bodies of /route and /report as the messages that they stand for. Any other body is
// INVALID_ARGUMENT, and the message says which field is wrong.
//
// *Threads*: pure functions.

#ifndef KVATLAS_FRONTEND_GATEWAY_ROUTE_JSON_H_
#define KVATLAS_FRONTEND_GATEWAY_ROUTE_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/kvatlas/v1/frontend.pb.h"

namespace kvatlas {

absl::StatusOr<v1::RouteRequest> RouteRequestFromJson(const std::string& body);
absl::StatusOr<v1::ReportRequest> ReportFromJson(const std::string& body);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_ROUTE_JSON_H_
