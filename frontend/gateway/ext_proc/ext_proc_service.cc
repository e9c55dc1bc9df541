#include "frontend/gateway/ext_proc/ext_proc_service.h"

#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "frontend/gateway/route_metrics.h"
#include "frontend/prompt/request/prompt_request.h"
#include "indexer/net/bounded_message.h"
#include "indexer/net/grpc_guard.h"
#include "indexer/net/grpc_status.h"

namespace kvatlas {
namespace {

using Incoming = BoundedMessage<ext_proc::ProcessingRequest>;
using Reactor = grpc::ServerBidiReactor<Incoming, ext_proc::ProcessingResponse>;

// Reads, writes and the end of one gRPC stream, driven by the state machine of `PickerStream`. One
// stream of gRPC and the state machine behind it. The call ends when an end is due, no write is
// under way and no answer waits; no operation is started after that. Its lock is taken inside that
// of the stream, never round it.
class Call : public Reactor, public PickerStream::Wire {
 public:
  // `peer` is for the log.
  Call(const PickerStreamOptions& options, Picker* picker, PickerStreamStats* stats,
       HeldBodies* bodies, std::string peer)
      : peer_(std::move(peer)),
        stream_(std::make_shared<PickerStream>(options, picker, stats, bodies, this)) {
    MutexLock lock(&mutex_);
    StartRead(&bounded_);
  }

  // ---- What the stream wants ----

  void Send(ext_proc::ProcessingResponse response) override {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    waiting_.push_back(std::move(response));
    Advance();
  }

  void SendLast(ext_proc::ProcessingResponse response) override {
    MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    waiting_.push_back(std::move(response));
    EndWith(absl::OkStatus());
  }

  void End(const absl::Status& status) override {
    MutexLock lock(&mutex_);
    EndWith(status);
  }

  // ---- What gRPC says ----

  void OnReadDone(bool ok) override {
    if (!ok) return Gone(absl::OkStatus());
    if (!bounded_.refused.ok()) {
      LogRefusedMessage("/envoy.service.ext_proc.v3.ExternalProcessor/Process", peer_,
                        bounded_.refused);
      return Gone(bounded_.refused);
    }
    // Outside of `mutex_`: the stream calls `Send` and `End` of this from inside. The next read
    // starts only afterwards, so messages come one at a time.
    stream_->OnMessage(std::exchange(incoming_, {}));
    bounded_.charge = {};  // bodies count with `HeldBodies` from here on
    MutexLock lock(&mutex_);
    read_due_ = true;
    Advance();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) Gone(absl::CancelledError("the proxy went away"));
    MutexLock lock(&mutex_);
    writing_ = false;
    Advance();
  }

  void OnCancel() override { Gone(absl::CancelledError("the proxy went away")); }

  // A thread that is in no reaction of gRPC (a pick's) may just have ended the call, and still hold
  // the lock.
  void OnDone() override {
    {
      MutexLock lock(&mutex_);
    }
    delete this;
  }

 private:
  // Before anything else, so that the stream calls no more.
  void Gone(const absl::Status& status) {
    stream_->Closed();
    MutexLock lock(&mutex_);
    EndWith(status);
  }

  // The first end counts. Answers that wait are still written before a good end (a refusal is one)
  // and dropped before a bad one.
  void EndWith(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!end_.has_value()) end_ = status;
    if (!status.ok()) waiting_.clear();
    Advance();
  }

  // Starts whatever is due, in this order: the next write (one at a time, as gRPC demands), with it
  // a good end that comes next, the end, the next read. No read starts while `kAnswersWaitingMax`
  // answers wait, which pushes back on a proxy that does not read. After the end nothing is
  // started, and `OnDone` deletes this.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    if (!writing_ && !waiting_.empty()) {
      outgoing_ = std::move(waiting_.front());
      waiting_.pop_front();
      if (waiting_.empty() && end_.has_value() && end_->ok()) {
        finished_ = true;
        return StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), grpc::Status::OK);
      }
      writing_ = true;
      StartWrite(&outgoing_);
    }
    if (end_.has_value() && !writing_) {
      finished_ = true;
      return Finish(ToGrpcStatus(*end_));
    }
    if (read_due_ && !end_.has_value() && waiting_.size() < kAnswersWaitingMax) {
      read_due_ = false;
      StartRead(&bounded_);
    }
  }

  const std::string peer_;
  const std::shared_ptr<PickerStream> stream_;
  ext_proc::ProcessingRequest incoming_;   // of the one read under way
  Incoming bounded_{&incoming_};           // likewise
  ext_proc::ProcessingResponse outgoing_;  // of the one write under way
  Mutex mutex_;
  std::deque<ext_proc::ProcessingResponse> waiting_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool read_due_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

// A call that the policy refuses.
class RefusedCall : public Reactor {
 public:
  explicit RefusedCall(const absl::Status& why) { Finish(ToGrpcStatus(why)); }
  void OnDone() override { delete this; }
};

}  // namespace

ExtProcService::ExtProcService(PickerStreamOptions options, Picker* picker, Metrics* metrics,
                               uint64_t bodies_bytes_max)
    : options_(options),
      picker_(picker),
      bodies_(bodies_bytes_max),
      metrics_(metrics),
      streams_(metrics->AddCounter("kvatlas_ext_proc_streams_total",
                                   "HTTP requests that a proxy asked about.")),
      by_prompt_(metrics->AddCounter("kvatlas_ext_proc_picks_total", "Endpoints named.",
                                     {{"by", "prompt"}})),
      by_turns_(metrics->AddCounter("kvatlas_ext_proc_picks_total", "Endpoints named.",
                                    {{"by", "turns"}})),
      ended_early_(metrics->AddCounter("kvatlas_ext_proc_ended_early_total",
                                       "Requests whose stream ended before the response.")),
      not_reached_(
          metrics->AddCounter("kvatlas_ext_proc_not_reached_total",
                              "Requests whose proxy could not reach a worker's endpoint.")) {
  MarkMethodCallback(
      0, new grpc::internal::CallbackBidiHandler<Incoming, ext_proc::ProcessingResponse>(
             [this](grpc::CallbackServerContext* context) { return OpenStream(context); }));
  picker_->ObserveRoutes([times = std::make_shared<RouteMetrics>(metrics)](
                             const RouteResult& route) { times->Observe(route); });
}

// Picks hold streams, and streams hold `this` as their stats and `bodies_`.
ExtProcService::~ExtProcService() { picker_->WaitIdle(); }

// With a policy, the caller's identity is read once per stream and each request asks for its tenant
// by it (`tenant_of`). A salt cannot be put into a body that Envoy passes on, hence `kNoSalt`.
ExtProcService::Reactor* ExtProcService::OpenStream(grpc::CallbackServerContext* context) {
  streams_.Increment();
  if (!tenancy_.enforces()) return new Call(options_, picker_, this, &bodies_, context->peer());
  const std::shared_ptr<const Identity> asker = IdentityOf(&tenancy_.security(), *context);
  // A port in clear has no guard of gRPC's.
  const absl::Status may = tenancy_.security().CheckMethod(*asker, Verb::kPick, context->peer());
  PickerStreamOptions options = options_;
  if (!may.ok()) return new RefusedCall(may);
  options.tenant_of = [this, asker](
                          const std::string& claimed, const std::string& method,
                          const std::string& path) -> absl::StatusOr<PickerStreamOptions::Tenants> {
    constexpr std::string_view kNoSalt =
        "a salt cannot be put into a body that Envoy passes on; send them through kvatlas's proxy, "
        "or route by its gRPC and HTTP interfaces";
    absl::StatusOr<std::string> tenant = tenancy_.Admit(
        *asker, {.tenant = claimed,
                 .no_salt = LeavesNoBlocks(method, path) ? std::string_view() : kNoSalt});
    if (!tenant.ok()) return tenant.status();
    std::string pool = tenancy_.PoolOf(*tenant);
    Tenancy::MayUse may_use = tenancy_.MayUseOf(asker, *tenant);
    return PickerStreamOptions::Tenants{*std::move(tenant), std::move(pool), std::move(may_use)};
  };
  return new Call(options, picker_, this, &bodies_, context->peer());
}

void ExtProcService::Picked(bool by_prompt) { (by_prompt ? by_prompt_ : by_turns_).Increment(); }

void ExtProcService::Refused(int http_status) {
  metrics_
      // Adding a counter that is there returns it: one series for each status that occurs.
      ->AddCounter("kvatlas_ext_proc_refused_total",
                   "Requests answered without an engine, by HTTP status.",
                   {{"status", std::to_string(http_status)}})
      .Increment();
}

void ExtProcService::EndedEarly() { ended_early_.Increment(); }

void ExtProcService::NotReached() { not_reached_.Increment(); }

}  // namespace kvatlas
