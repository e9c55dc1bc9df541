// `Connection` is one call: it reads and checks messages and feeds its session. `Outbox` is the
// other direction, written from any thread. The call ends in one place only, `Outbox::Advance`.
//
// Order of ends: `Finish` is started, gRPC calls `OnDone`, the session is destroyed, the connection
// deletes itself. The outbox may live longer, with the receiver.

#include "indexer/transport/grpc_acceptor.h"

#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <deque>
#include <optional>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/mutex.h"
#include "indexer/net/bounded_message.h"
#include "indexer/net/grpc_guard.h"
#include "indexer/net/grpc_status.h"
#include "indexer/transport/peer_address.h"
#include "indexer/transport/peer_policy.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/stream.grpc.pb.h"

namespace kvatlas {
namespace {

using Incoming = BoundedMessage<v1::SenderMessage>;
using Reactor = grpc::ServerBidiReactor<Incoming, v1::ReceiverMessage>;

// Replies that wait to be sent on one connection. It outlives the connection: replies come from any
// thread and at any time, and are dropped once it is over.
//
// The call ends (`Finish`) when an end is due, nothing is being written and nothing waits. The
// thread that finds that so under the lock does it; `reactor_` is null from then on.
class Outbox {
 public:
  explicit Outbox(size_t replies_max) : replies_max_(replies_max) {}

  // Replies that were pushed before the call was ready go out now.
  void Open(Reactor* reactor) {
    {
      MutexLock lock(&mutex_);
      reactor_ = reactor;
    }
    Advance();
  }

  void Push(const ReceiverMessage& message) {
    {
      MutexLock lock(&mutex_);
      if (end_) return;
      Enqueue(message);
    }
    Advance();
  }

  // Ends the call once what waits is sent; the first status counts.
  void End(absl::Status status) {
    {
      MutexLock lock(&mutex_);
      if (!end_) end_ = std::move(status);
    }
    Advance();
  }

  // Ends the call without sending what waits.
  void Abandon(absl::Status status) {
    {
      MutexLock lock(&mutex_);
      if (!end_) end_ = std::move(status);
      waiting_.clear();
    }
    Advance();
  }

  bool ending() {
    MutexLock lock(&mutex_);
    return end_.has_value();
  }

  void OnWriteDone(bool ok) {
    {
      MutexLock lock(&mutex_);
      writing_ = false;
      if (!ok) {
        waiting_.clear();
        if (!end_) end_ = absl::CancelledError("the sender went away");
      }
    }
    Advance();
  }

 private:
  // An acknowledgement replaces one that waits just before it: the newest says it all. A refusal is
  // the last reply and decides the status of the call.
  void Enqueue(const ReceiverMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const bool ack = std::holds_alternative<Ack>(message);
    if (ack && !waiting_.empty() && std::holds_alternative<Ack>(waiting_.back())) {
      waiting_.back() = message;
      return;
    }
    if (waiting_.size() >= replies_max_) {
      waiting_.clear();
      end_ = absl::ResourceExhaustedError("the sender does not read its replies");
      return;
    }
    waiting_.push_back(message);
    if (const Refuse* refuse = std::get_if<Refuse>(&message)) {
      const bool error = refuse->code != absl::StatusCode::kOk;
      end_ = absl::Status(error ? refuse->code : absl::StatusCode::kUnknown, refuse->reason);
    }
  }

  // Starts the next write or the end, whichever is due.
  void Advance() {
    Reactor* reactor = nullptr;
    std::optional<absl::Status> end;
    {
      MutexLock lock(&mutex_);
      if (reactor_ == nullptr || writing_) return;
      if (!waiting_.empty()) {
        ToProto(waiting_.front(), &outgoing_);
        waiting_.pop_front();
        writing_ = true;
        reactor = reactor_;
      } else if (end_) {
        reactor = std::exchange(reactor_, nullptr);
        end = end_;
      } else {
        return;
      }
    }
    // No other thread starts an operation now: `writing_` or the missing reactor keep them off.
    if (end) {
      reactor->Finish(ToGrpcStatus(*end));
    } else {
      reactor->StartWrite(&outgoing_);
    }
  }

  const size_t replies_max_;
  v1::ReceiverMessage outgoing_;  // of the one write under way
  Mutex mutex_;
  Reactor* reactor_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::deque<ReceiverMessage> waiting_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

struct GrpcAcceptor::Core {
  Core(StreamAcceptor* acceptor, const GrpcAcceptorOptions& options)
      : acceptor(acceptor),
        options(options),
        security(options.security != nullptr ? options.security : Security::OfProcess()) {}

  StreamAcceptor* const acceptor;
  const GrpcAcceptorOptions options;
  const std::shared_ptr<Security> security;
  std::atomic<uint64_t> hellos_refused{0};
  std::atomic<uint64_t> connections_total{0};
  std::atomic<uint64_t> messages_received{0};
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint64_t> messages_refused{0};

  Mutex mutex;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  std::unordered_set<Connection*> connections ABSL_GUARDED_BY(mutex);
};

// One call. It deletes itself when gRPC is done with it.
class GrpcAcceptor::Connection : public Reactor {
 public:
  // 1. Entered among the connections, so that `Stop` finds it; `stopping` is read under the same
  //    lock, so none slips through.
  // 2. Under a policy the call is registered: a later policy may cut it (`Cut`).
  // 3. The headers go out at once, a session is made, and reading begins.
  Connection(std::shared_ptr<Core> core, grpc::CallbackServerContext* context)
      : core_(std::move(core)),
        context_(context),
        enforces_(core_->security->enforces()),
        identity_(IdentityOf(core_->security.get(), *context)),
        outbox_(std::make_shared<Outbox>(core_->options.replies_max)) {
    bool stopping = false;
    {
      MutexLock lock(&core_->mutex);
      core_->connections.insert(this);
      stopping = core_->stopping;
    }
    core_->connections_total.fetch_add(1, std::memory_order_relaxed);
    if (enforces_) {
      CallCredentials credentials = CredentialsOf(*context);
      call_ = core_->security->AddCall(identity_, std::move(credentials.chain_pem),
                                       std::move(credentials.bearer), core_->options.verb,
                                       context->peer(), [this] { Cut(); });
    }
    StartSendInitialMetadata();  // tells the sender that it is connected
    Begin(stopping);
    outbox_->Open(this);
  }

  // Any thread that keeps this from being deleted.
  void Stop() {
    outbox_->Abandon(absl::UnavailableError("stopping"));
    context_->TryCancel();  // a write that the sender does not read would never end
  }

 private:
  // A later policy does not allow what the call was allowed. From any thread, until `call_` is
  // null.
  void Cut() {
    outbox_->Abandon(
        absl::PermissionDeniedError(absl::string_view(kNotAllowed.data(), kNotAllowed.size())));
    context_->TryCancel();
  }

  // Peer and allowance reach the session before its first message.
  void Begin(bool stopping) {
    if (stopping) return outbox_->End(absl::UnavailableError("stopping"));
    session_ = core_->acceptor->Accept(
        [outbox = outbox_](ReceiverMessage message) { outbox->Push(message); });
    if (session_ == nullptr) return outbox_->End(absl::UnavailableError("not accepted"));
    session_->OnPeer(PeerAddress(context_->peer()));
    if (enforces_) {
      session_->OnAllowance(AllowanceOf(core_->security, {.identity = identity_,
                                                          .verb = core_->options.verb,
                                                          .cell = core_->options.cell,
                                                          .peer = context_->peer()}));
    }
    StartRead(&bounded_);
  }

  // The next message is read when the session has taken this one: a slow session slows its sender
  // down. After a half-close the call ends with OK once all replies are sent.
  void OnReadDone(bool ok) override {
    if (!ok) return outbox_->End(absl::OkStatus());
    if (outbox_->ending()) return;
    absl::Status status = Handle();
    bounded_.Free();
    if (!status.ok()) return outbox_->End(std::move(status));
    if (!outbox_->ending()) StartRead(&bounded_);
  }

  // 1. A message of too many parts was not read (`BoundedMessage`): read, it would take many times
  //    its bytes.
  // 2. Bounds (`FromProto`), a hello's claims (`CheckHello`), the quota of blocks.
  // 3. The session.
  absl::Status Handle() {
    if (!bounded_.refused.ok()) {
      core_->messages_refused.fetch_add(1, std::memory_order_relaxed);
      LogRefusedMessage("/kvatlas.v1.Holdings/Stream", context_->peer(), bounded_.refused);
      return bounded_.refused;
    }
    const size_t bytes = incoming_.ByteSizeLong();
    core_->messages_received.fetch_add(1, std::memory_order_relaxed);
    core_->bytes_received.fetch_add(bytes, std::memory_order_relaxed);
    SenderMessage message;
    if (absl::Status status = FromProto(incoming_, &message); !status.ok()) {
      core_->messages_refused.fetch_add(1, std::memory_order_relaxed);
      return status;
    }
    if (const Hello* hello = std::get_if<Hello>(&message)) {
      if (absl::Status status = CheckHello(*hello); !status.ok()) {
        core_->hellos_refused.fetch_add(1, std::memory_order_relaxed);
        return status;
      }
    }
    if (const Batch* batch = std::get_if<Batch>(&message); batch != nullptr && enforces_) {
      if (absl::Status status = core_->security->Take(
              *identity_, QuotaKind::kBlocks, static_cast<double>(BlockCount(*batch)), tenant_);
          !status.ok()) {
        return status;
      }
    }
    session_->OnWireBytes(bytes);
    return session_->OnMessage(std::move(message));
  }

  // Without a policy everything is allowed. Else the claims, then the rate of hellos, and with the
  // first hello the places for a connection and a stream, held until the call ends. `Allowed`
  // remembers the claims for later policies.
  absl::Status CheckHello(const Hello& hello) {
    if (!enforces_) return absl::OkStatus();
    const PolicyTarget target = TargetOf(hello, core_->options.verb, core_->options.cell);
    const std::string peer = context_->peer();
    if (absl::Status bad = core_->security->Check(*identity_, core_->options.verb, target, peer,
                                                  "hello", /*audit_allowed=*/true);
        !bad.ok()) {
      return bad;
    }
    tenant_ = hello.domain.tenant;
    if (absl::Status bad = core_->security->Take(*identity_, QuotaKind::kHellos, 1, peer, tenant_);
        !bad.ok()) {
      return bad;
    }
    if (stream_ == nullptr) {
      absl::StatusOr<Security::Held> connection = core_->security->HoldConnection(*identity_, peer);
      if (!connection.ok()) return connection.status();
      absl::StatusOr<Security::Held> stream =
          core_->security->Hold(*identity_, {{QuotaKind::kStreams, 1}}, peer, tenant_);
      if (!stream.ok()) return stream.status();
      connection_ = *std::move(connection);
      stream_ = *std::move(stream);
    }
    call_->Allowed(core_->options.verb, target);
    return absl::OkStatus();
  }

  void OnWriteDone(bool ok) override { outbox_->OnWriteDone(ok); }

  void OnCancel() override { outbox_->Abandon(absl::CancelledError("the sender went away")); }

  // `call_` first: `Cut` is not called once it is destroyed.
  void OnDone() override {
    call_ = nullptr;  // from now on it is not cut
    session_ = nullptr;
    {
      MutexLock lock(&core_->mutex);
      core_->connections.erase(this);
    }
    delete this;
  }

  const std::shared_ptr<Core> core_;
  grpc::CallbackServerContext* const context_;
  const bool enforces_;
  std::shared_ptr<const Identity> identity_;  // anonymous unless `enforces_`
  std::unique_ptr<Security::OpenCall> call_;  // null unless `enforces_`
  std::string tenant_;                        // of the hello
  Security::Held connection_;                 // from the hello on
  Security::Held stream_;
  const std::shared_ptr<Outbox> outbox_;
  std::unique_ptr<ReceiverSession> session_;
  v1::SenderMessage incoming_;  // of the one read under way
  // Handled and freed at once, a batch counts by itself alone: what other clients send must not end
  // the stream of a publisher.
  Incoming bounded_{.into = &incoming_, .charged = false};
};

// The generated service with another request type, `Incoming`, by which messages of too many parts
// are not read. Method 0 is `Stream`, the only one.
class GrpcAcceptor::Service : public v1::Holdings::Service {
 public:
  explicit Service(std::shared_ptr<Core> core) {
    MarkMethodCallback(0, new grpc::internal::CallbackBidiHandler<Incoming, v1::ReceiverMessage>(
                              [core = std::move(core)](grpc::CallbackServerContext* context) {
                                return new Connection(core, context);
                              }));
  }
};

GrpcAcceptor::GrpcAcceptor(StreamAcceptor* acceptor, const GrpcAcceptorOptions& options)
    : core_(std::make_shared<Core>(acceptor, options)),
      service_(std::make_unique<Service>(core_)) {}

GrpcAcceptor::~GrpcAcceptor() = default;

grpc::Service* GrpcAcceptor::service() { return service_.get(); }

GrpcAcceptorStats GrpcAcceptor::Stats() const {
  GrpcAcceptorStats stats;
  stats.connections_total = core_->connections_total.load(std::memory_order_relaxed);
  stats.messages_received = core_->messages_received.load(std::memory_order_relaxed);
  stats.bytes_received = core_->bytes_received.load(std::memory_order_relaxed);
  stats.hellos_refused = core_->hellos_refused.load(std::memory_order_relaxed);
  stats.messages_refused = core_->messages_refused.load(std::memory_order_relaxed);
  MutexLock lock(&core_->mutex);
  stats.connections = core_->connections.size();
  return stats;
}

// Connections cannot be deleted meanwhile: `OnDone` waits for the lock. Neither call below waits
// for `OnDone`.
void GrpcAcceptor::Stop() {
  MutexLock lock(&core_->mutex);
  core_->stopping = true;
  for (Connection* connection : core_->connections) connection->Stop();
}

}  // namespace kvatlas
