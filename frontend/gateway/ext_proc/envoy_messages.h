// The keys and fields of Envoy's external processing that an endpoint picker reads and sets.
//
// *Threads*: pure functions.

#ifndef KVATLAS_FRONTEND_GATEWAY_EXT_PROC_ENVOY_MESSAGES_H_
#define KVATLAS_FRONTEND_GATEWAY_EXT_PROC_ENVOY_MESSAGES_H_

#include <google/protobuf/struct.pb.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/gateway/errors.h"
#include "frontend/gateway/ext_proc/endpoints.h"
#include "frontend/gateway/ext_proc/external_processor.pb.h"
#include "frontend/router/frontend.h"

namespace kvatlas {

namespace ext_proc = envoy::service::ext_proc::v3;

inline constexpr char kEndpointKey[] = "x-gateway-destination-endpoint";
// By which a gateway or a sidecar beside an engine sends a request somewhere: the picker's to set.
// `frontend.h` has those of ranks.
inline constexpr std::array<std::string_view, 6> kRoutingHeaders = {kEndpointKey,
                                                                    kPrefillerHeader,
                                                                    "x-prefiller-url",
                                                                    "x-encoder-hosts-ports",
                                                                    "x-data-parallel-host-port",
                                                                    "x-kv-cache-source-host-port"};
inline constexpr char kSubsetSpace[] = "envoy.lb.subset_hint";
inline constexpr char kSubsetKey[] = "x-gateway-destination-endpoint-subset";
inline constexpr char kEndpointSpace[] = "envoy.lb";
// Attributes of the response: why it is what it is ("via_upstream": as the engine gave it), and the
// endpoint that was asked last.
inline constexpr char kFilterName[] = "envoy.filters.http.ext_proc";
inline constexpr char kReplyDetails[] = "response.code_details";
inline constexpr char kUpstreamAddress[] = "upstream.address";
inline constexpr char kServedKey[] = "x-gateway-destination-endpoint-served";
// A request's header; the gateway in front removes it from clients that it does not trust.
inline constexpr char kTenantHeader[] = "x-kvatlas-tenant";

// Headers of requests, by both spellings, the newer one first (llm-d-router v0.11.0
// pkg/epp/metadata/consts.go): the model under which the engine is asked, the objective, and the
// name in which the request competes.
inline constexpr std::array<std::string_view, 2> kRewriteHeaders = {"x-llm-d-model-name-rewrite",
                                                                    "x-gateway-model-name-rewrite"};
inline constexpr std::array<std::string_view, 2> kObjectiveHeaders = {
    "x-llm-d-inference-objective", "x-gateway-inference-objective"};
inline constexpr std::array<std::string_view, 2> kFairnessHeaders = {
    "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"};
inline constexpr char kContentLength[] = "content-length";
// Why an answer is no engine's, in the words of llm-d's router (llm-d-router v0.11.0
// pkg/common/error/error.go): clients and gateways retry by it.
inline constexpr char kDroppedHeader[] = "x-llm-d-request-dropped-reason";
inline constexpr char kSaturated[] = "rejected-saturated";
inline constexpr char kNoEndpoints[] = "rejected-no-endpoints";
// Why the choice is by load alone, with the engine's answer; the proxy's has it too.
inline constexpr char kFallbackHeader[] = "x-kvatlas-fallback";

inline constexpr size_t kBodyChunkMax = 62000;  // Envoy takes 64 KiB

// ---- What it says ----

// Empty: there is no such header.
std::string ValueIn(const ext_proc::HeaderMap& headers, std::string_view key);

// The first of these names that is there; empty: none is.
std::string ValueIn(const ext_proc::HeaderMap& headers, std::span<const std::string_view> keys);

// The `kRoutingHeaders` that are there.
std::vector<std::string_view> RoutingHeadersIn(const ext_proc::HeaderMap& headers);

// Null: there is none.
const google::protobuf::Value* Find(const ext_proc::Metadata& metadata, const char* space,
                                    const char* key);

// From a list of "IP:PORT", or from all of them in one string.
EndpointSet EndpointsIn(const google::protobuf::Value& value);

// The proxy's last try ended before there was a connection: refused, or no answer in time.
// "local_connection_failure" is not among these, since the proxy gave up by itself; nor is a
// connection that broke later, since the engine may have had the request.
bool NeverConnected(const std::string& reply_details);

// The same of the text of a 503 that Envoy answers by itself, where no attribute says why:
// "upstream connect error or disconnect/reset before headers. … reset reason: remote connection
// failure, …" (source/common/router/router.cc, `onUpstreamReset`).
bool SaysNeverConnected(std::string_view reply);
inline constexpr size_t kReplyTextMax = 512;  // of which as much is looked at

// ---- What it is told ----

void SetHeader(const std::string& key, const std::string& value,
               ext_proc::HeaderMutation* mutation);

// "IP:PORT,…", the first choice first: in the header and in the metadata.
void SetEndpoints(const std::string& endpoints, ext_proc::CommonResponse* common,
                  ext_proc::ProcessingResponse* response);

// The piece of a body that goes on in the place of what came. Full duplex alone.
ext_proc::StreamedBodyResponse* StreamedBody(ext_proc::BodyResponse* answer);

// Passes a piece on unchanged.
void PassOn(ext_proc::HttpBody* body, ext_proc::StreamedBodyResponse* piece);

// An answer to the client in the engine's place. `dropped`: what the header `kDroppedHeader` says;
// empty: none.
ext_proc::ProcessingResponse ToImmediateResponse(const ClientError& error, ErrorShape shape,
                                                 std::string_view dropped);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_EXT_PROC_ENVOY_MESSAGES_H_
