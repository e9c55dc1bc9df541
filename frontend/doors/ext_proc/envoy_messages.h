// What do the proxy's messages say, and what is it told? The keys and fields of external processing that an endpoint picker reads and sets.
//
// *Threads*: pure functions.

#ifndef KVATLAS_FRONTEND_DOORS_EXT_PROC_ENVOY_MESSAGES_H_
#define KVATLAS_FRONTEND_DOORS_EXT_PROC_ENVOY_MESSAGES_H_

#include <google/protobuf/struct.pb.h>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/doors/errors.h"
#include "frontend/doors/ext_proc/external_processor.pb.h"
#include "frontend/route/frontend.h"

namespace kvatlas {

namespace ext_proc = envoy::service::ext_proc::v3;

inline constexpr char kEndpointKey[] = "x-gateway-destination-endpoint";
// By which a gateway or a sidecar beside an engine sends a request somewhere: the picker's to set. `frontend.h` has those of ranks.
inline constexpr std::array<std::string_view, 6> kRoutingHeaders = {kEndpointKey,
                                                                    kPrefillerHeader,
                                                                    "x-prefiller-url",
                                                                    "x-encoder-hosts-ports",
                                                                    "x-data-parallel-host-port",
                                                                    "x-kv-cache-source-host-port"};
inline constexpr char kSubsetSpace[] = "envoy.lb.subset_hint";
inline constexpr char kSubsetKey[] = "x-gateway-destination-endpoint-subset";
inline constexpr char kEndpointSpace[] = "envoy.lb";
// Attributes of the response: why it is what it is ("via_upstream": as the engine gave it), and who was asked last.
inline constexpr char kFilterName[] = "envoy.filters.http.ext_proc";
inline constexpr char kReplyDetails[] = "response.code_details";
inline constexpr char kUpstreamAddress[] = "upstream.address";
inline constexpr char kServedKey[] = "x-gateway-destination-endpoint-served";
// Of requests; the gateway in front removes them from what it does not trust.
inline constexpr char kTenantHeader[] = "x-kvatlas-tenant";
inline constexpr char kSessionHeader[] = "x-kvatlas-session";

inline constexpr size_t kBodyChunkMax = 62000;  // Envoy takes 64 KiB
inline constexpr size_t kSubsetMax = 65536;     // endpoints; those beyond are not looked at

// ---- What it says ----

// Empty: there is no such header.
std::string ValueIn(const ext_proc::HeaderMap& headers, std::string_view key);

// Of `kRoutingHeaders`, those that are there.
std::vector<std::string_view> RoutingHeadersIn(const ext_proc::HeaderMap& headers);

// Null: there is none.
const google::protobuf::Value* Find(const ext_proc::Metadata& metadata, const char* space,
                                    const char* key);

// Of a list of "IP:PORT", or all of them in one string.
std::vector<std::string> EndpointsIn(const google::protobuf::Value& value);

// The proxy's last try ended before there was a connection: refused, or no answer in time. Of "local_connection_failure" nothing is
// known, there the proxy gave up by itself; of a connection that broke later neither, the engine may have had the request.
bool NeverConnected(const std::string& reply_details);

// ---- What it is told ----

void SetHeader(const std::string& key, const std::string& value,
               ext_proc::HeaderMutation* mutation);

// "IP:PORT,…", the first choice first: in the header and in the metadata.
void SetEndpoints(const std::string& endpoints, ext_proc::CommonResponse* common,
                  ext_proc::ProcessingResponse* response);

// The piece of a body that goes on in the place of what came. Full duplex alone.
ext_proc::StreamedBodyResponse* StreamedBody(ext_proc::BodyResponse* answer);

// What came, as it is.
void PassOn(ext_proc::HttpBody* body, ext_proc::StreamedBodyResponse* piece);

// An answer to the client in the engine's place.
ext_proc::ProcessingResponse ToImmediateResponse(const ClientError& error, ErrorShape shape);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_DOORS_EXT_PROC_ENVOY_MESSAGES_H_
