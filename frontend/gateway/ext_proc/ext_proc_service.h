// The endpoint picker behind gRPC: Envoy's external-processing service, one stream per HTTP
// request.
//
// *Threads*: gRPC's; none waits.
// *Bounds*: a stream that does not read its answers is not read from either (`kAnswersWaitingMax`).
// A message that would take too much memory (`message_account.h`) ends its stream with
// RESOURCE_EXHAUSTED.
// *Lifetime*: picker and metrics outlive the service, which outlives its server.
//
// Example:
//   ExtProcService ext_proc({}, &picker, &metrics);
//   grpc.Register(&ext_proc, "envoy.service.ext_proc.v3.ExternalProcessor");

#ifndef KVATLAS_FRONTEND_GATEWAY_EXT_PROC_EXT_PROC_SERVICE_H_
#define KVATLAS_FRONTEND_GATEWAY_EXT_PROC_EXT_PROC_SERVICE_H_

#include <grpcpp/support/server_callback.h>

#include <cstddef>

#include "absl/base/thread_annotations.h"
#include "frontend/gateway/ext_proc/external_processor.grpc.pb.h"
#include "frontend/gateway/ext_proc/held_bodies.h"
#include "frontend/gateway/ext_proc/picker.h"
#include "frontend/gateway/ext_proc/picker_stream.h"
#include "frontend/gateway/tenancy.h"
#include "indexer/base/mutex.h"
#include "indexer/net/bounded_message.h"
#include "indexer/security/security.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

inline constexpr char kExtProcServiceName[] = "envoy.service.ext_proc.v3.ExternalProcessor";
inline constexpr size_t kAnswersWaitingMax = 16;  // of one stream; those to one message may be more

// `Process` is not of the generated interface: its requests are `BoundedMessage`s.
class ExtProcService : public ext_proc::ExternalProcessor::Service, private PickerStreamStats {
 public:
  // `bodies_bytes_max`: of requests, of all streams together.
  ExtProcService(PickerStreamOptions options, Picker* picker, Metrics* metrics,
                 uint64_t bodies_bytes_max);
  ~ExtProcService() override;  // waits for picks of streams that are gone

  // The bytes of requests' bodies that are held.
  uint64_t bodies_bytes() const { return bodies_.bytes(); }

 private:
  using Reactor = grpc::ServerBidiReactor<BoundedMessage<ext_proc::ProcessingRequest>,
                                          ext_proc::ProcessingResponse>;

  Reactor* OpenStream(grpc::CallbackServerContext* context);
  void Picked(bool by_prompt) override;
  void Refused(int http_status) override;
  void EndedEarly() override;
  void NotReached() override;

  const PickerStreamOptions options_;
  const Tenancy tenancy_{Security::OfProcess(), Verb::kPick};
  Picker* const picker_;
  HeldBodies bodies_;
  Metrics* const metrics_;
  Counter streams_;
  Counter by_prompt_;
  Counter by_turns_;
  Counter ended_early_;
  Counter not_reached_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_EXT_PROC_EXT_PROC_SERVICE_H_
