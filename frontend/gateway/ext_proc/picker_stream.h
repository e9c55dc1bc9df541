// Answers Envoy's messages about one HTTP request: the endpoint picker's side of an
// external-processing stream, as a state machine without gRPC.
//
//   request_headers ─┬─ no body to read ──▶ any endpoint, or 503 ──▶ answered at once, the body passes
//                    └─ a POST: nothing yet (full duplex), or "go on" (buffered)
//   request_body …   ─▶ collected ─▶ Picker ─▶ headers with the endpoint, then all of the body (full duplex);
//                                             body answer with the endpoint (buffered)
//   response_…       ─▶ passed on chunk by chunk; `usage` is read on the way ─▶ Frontend::Report
//
// The endpoint is in the header `x-gateway-destination-endpoint` and in dynamic metadata (envoy.lb,
// the same key). Where one worker prefills and another decodes it is the decoder's, and
// `x-prefiller-host-port` names the prefiller's. Of a worker with several data-parallel ranks
// `x-data-parallel-rank` names the one that was chosen, unless the client names one. Other headers
// of a client that would route its request (`kRoutingHeaders`) are removed, and no request goes on
// without an endpoint. A request that came without `traceparent` gets one, while tracing is on.
//
// *Truth*: a choice is reported `accepted` with the response's headers and `finished` with its end,
// with what the engine says it had cached; when the stream ends before that it is finished without
// figures, so nothing stays in flight. Who was not reached is avoided for a while; that is believed
// of attributes with which the proxy says why it answered by itself (`kReplyDetails`), or of
// Envoy's own words. With the last answer to a request and its response the stream ends.
// *Threads*: any; messages come one at a time. The wire is called under the stream's lock and never
// after `Closed`.
// *Bounds*: `body_bytes_max` of a request's body, then 413; `HeldBodies` of those of all streams,
// then 503; an answer to a body is cut into `kBodyChunkMax`.
// *Lifetime*: picker, stats and bodies outlive it; it is kept alive by a pick under way.

#ifndef KVATLAS_FRONTEND_GATEWAY_EXT_PROC_PICKER_STREAM_H_
#define KVATLAS_FRONTEND_GATEWAY_EXT_PROC_PICKER_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/gateway/ext_proc/envoy_messages.h"
#include "frontend/gateway/ext_proc/external_processor.pb.h"
#include "frontend/gateway/ext_proc/held_bodies.h"
#include "frontend/gateway/ext_proc/model_names.h"
#include "frontend/gateway/ext_proc/picker.h"
#include "frontend/gateway/http/response_makers.h"
#include "frontend/gateway/tenancy.h"
#include "frontend/prompt/openai/usage_reader.h"
#include "indexer/base/mutex.h"
#include "indexer/telemetry/tracing/tracer.h"

namespace kvatlas {

struct PickerStreamOptions {
  size_t body_bytes_max = 10 << 20;
  // The mode of proxies that do not say it in their first message.
  ext_proc::BodySendMode mode_unsaid = ext_proc::FULL_DUPLEX_STREAMED;
  // From the tenant that the header claims: the one that counts and the models it may use, or why
  // none; null: what is claimed, and any.
  struct Tenants {
    std::string tenant;
    std::string pool;  // of the domain
    Tenancy::MayUse may_use;
  };
  std::function<absl::StatusOr<Tenants>(const std::string& claimed, const std::string& method,
                                        const std::string& path)>
      tenant_of = nullptr;
};

// Counts the outcomes of streams.
class PickerStreamStats {
 public:
  virtual ~PickerStreamStats() = default;
  virtual void Picked(bool by_prompt) = 0;
  virtual void Refused(int http_status) = 0;
  virtual void EndedEarly() = 0;  // its choice was not finished
  virtual void NotReached() = 0;  // the worker that was picked
};

class PickerStream : public std::enable_shared_from_this<PickerStream> {
 public:
  class Wire {
   public:
    virtual ~Wire() = default;
    virtual void Send(ext_proc::ProcessingResponse response) = 0;
    // After what was sent. One of these is called, at most once.
    virtual void SendLast(ext_proc::ProcessingResponse response) = 0;  // and a good end
    virtual void End(const absl::Status& status) = 0;
  };

  PickerStream(const PickerStreamOptions& options, Picker* picker, PickerStreamStats* stats,
               HeldBodies* bodies, Wire* wire);

  void OnMessage(ext_proc::ProcessingRequest message);

  // Nothing more comes, and the other side no longer reads.
  void Closed();

 private:
  // kMeeting: no endpoint is known yet, and what comes waits in `early_`.
  enum class Request { kHeaders, kMeeting, kCollecting, kPicking, kPassing, kEnded };

  void OnFirst(const ext_proc::ProcessingRequest& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadMetadata(const ext_proc::Metadata& metadata) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadAttributes(const ext_proc::ProcessingRequest& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool duplex() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return request_mode_ == ext_proc::FULL_DUPLEX_STREAMED;
  }

  // ---- The request ----
  void OnRequestHeaders(const ext_proc::HttpHeaders& headers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginSpan(const ext_proc::HeaderMap& headers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PassWithoutPrompt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnMet();
  void KeepEarly(ext_proc::ProcessingRequest message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True: the body is whole.
  bool OnRequestBody(ext_proc::HttpBody* body) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool OnRequestTrailers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  PickInput TakeInput() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RewriteModel() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnPicked(PickResult result);
  void SendPicked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetOtherHeaders(ext_proc::CommonResponse* common) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendBody() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `dropped`: what `kDroppedHeader` says; by default what the status means.
  void Refuse(const ClientError& refusal, std::string_view dropped = {})
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For the last call to the wire, which is then let go.
  Wire* TakeWire() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // ---- The response ----
  void OnResponseHeaders(const ext_proc::HttpHeaders& headers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnResponseBody(ext_proc::HttpBody* body) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnResponseTrailers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `ends`: the response has no more.
  void SendOfResponse(ext_proc::ProcessingResponse response, bool ends)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportAccepted(int http_status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const PickedEndpoint* NotReached() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Avoid(const PickedEndpoint& endpoint) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LookAtReply(const std::string& piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportFinished() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteStored(const std::vector<std::string>& ids) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const PickerStreamOptions options_;
  Picker* const picker_;
  PickerStreamStats* const stats_;

  Mutex mutex_;
  Wire* wire_ ABSL_GUARDED_BY(mutex_);  // null: ended or closed
  bool first_ ABSL_GUARDED_BY(mutex_) = true;
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;  // a proxy that wants no answers
  ext_proc::BodySendMode request_mode_ ABSL_GUARDED_BY(mutex_);
  ext_proc::BodySendMode response_mode_ ABSL_GUARDED_BY(mutex_);

  Request state_ ABSL_GUARDED_BY(mutex_) = Request::kHeaders;
  PickInput input_ ABSL_GUARDED_BY(mutex_);
  std::string body_ ABSL_GUARDED_BY(mutex_);  // as far as it has come
  // The whole body, if it is to be sent back; the pick reads the same one.
  std::shared_ptr<const std::string> whole_ ABSL_GUARDED_BY(mutex_);
  HeldBodies::Part held_ ABSL_GUARDED_BY(mutex_);  // of it, until the engine answers
  std::vector<ext_proc::ProcessingRequest> early_ ABSL_GUARDED_BY(mutex_);
  size_t early_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool met_ ABSL_GUARDED_BY(mutex_) = false;
  std::string rewrite_ ABSL_GUARDED_BY(mutex_);  // the model that the engine is to be asked for
  std::optional<size_t> body_length_ ABSL_GUARDED_BY(mutex_);  // as it goes on, with `rewrite_`
  std::optional<ModelNames> names_ ABSL_GUARDED_BY(mutex_);    // the body was changed so
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;               // or otherwise
  bool trailers_ ABSL_GUARDED_BY(mutex_) = false;
  bool body_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool request_ended_ ABSL_GUARDED_BY(mutex_) = false;  // nothing of it comes any more
  std::vector<std::string_view> said_routes_
      ABSL_GUARDED_BY(mutex_);  // `kRoutingHeaders` of the client
  ErrorShape error_shape_ ABSL_GUARDED_BY(mutex_) = ErrorShape::kOpenAi;  // of the path
  bool says_rank_ ABSL_GUARDED_BY(mutex_) = false;                        // the client
  Span span_ ABSL_GUARDED_BY(mutex_);                // from the headers to the answer
  std::string traceparent_ ABSL_GUARDED_BY(mutex_);  // for the engine; empty: as it came

  Picked picked_ ABSL_GUARDED_BY(mutex_);
  std::string served_ ABSL_GUARDED_BY(mutex_);         // the endpoint that answered, by the proxy
  std::string reply_details_ ABSL_GUARDED_BY(mutex_);  // empty: the proxy does not say
  std::string upstream_ ABSL_GUARDED_BY(mutex_);       // the endpoint asked last, by the proxy
  bool reads_reply_ ABSL_GUARDED_BY(mutex_) = false;   // a 503 without attributes
  std::string reply_ ABSL_GUARDED_BY(mutex_);
  std::optional<UsageReader> usage_ ABSL_GUARDED_BY(mutex_);
  bool makes_response_ ABSL_GUARDED_BY(mutex_) = false;  // a POST of /v1/responses
  std::optional<ResponseIds> ids_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_EXT_PROC_PICKER_STREAM_H_
