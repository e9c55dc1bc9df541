// The frontend's values as messages and back, in one place; values that do not fit are refused
// here.

#ifndef KVATLAS_FRONTEND_CLUSTER_CLIENT_WIRE_H_
#define KVATLAS_FRONTEND_CLUSTER_CLIENT_WIRE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "proto/kvatlas/v1/frontend.pb.h"
#include "proto/kvatlas/v1/hierarchy.pb.h"
#include "proto/kvatlas/v1/leaf.pb.h"

namespace kvatlas {

inline constexpr size_t kRouteNamesMax = 4096;  // of workers in one request
inline constexpr size_t kRouteLabelsMax = 64;

void ToProto(const CellQuestion& question, v1::FindCellsRequest* to);
CellsAnswer FromProto(const v1::FindCellsResponse& response);

// Labels are wanted, unless their version is the one given.
void ToProto(const OverlapQuestion& question, uint64_t labels_version, v1::FindOverlapsRequest* to);
WorkersAnswer FromProto(const v1::FindOverlapsResponse& response);  // without labels
// The last of `told` if it is of this domain and frontend, else a new one.
v1::Told* ToldOf(const Domain& domain, uint64_t frontend,
                 google::protobuf::RepeatedPtrField<v1::Told>* told);
void ToProto(const Routed& routed, v1::Routed* to);
std::shared_ptr<const LabelsByWorker> LabelsFromProto(const v1::FindOverlapsResponse& response);

// INVALID_ARGUMENT names the field that is missing or too long. Of several prompts: RouteCalls.
absl::StatusOr<RouteInput> FromProto(const v1::RouteRequest& request);
// Reads which workers may be chosen for a chat, and what else the choice goes by; the rest of
// `input` stays.
absl::Status ChoiceFromProto(const v1::RouteChatRequest& request, RouteInput* input);
v1::RouteResponse ToProto(const RouteResult& result);
RouteReport FromProto(const v1::ReportRequest& request);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_CLUSTER_CLIENT_WIRE_H_
