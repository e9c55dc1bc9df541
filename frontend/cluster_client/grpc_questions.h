// Asks a peer over a stream that is open, or by a call of its own.
//
//   call, answered ─▶ a stream is opened ─▶ the peer takes questions there ─▶ questions go over it
//        ▲                    │ UNIMPLEMENTED                                  │ it ends
//        ╰────────────────────┴──────────────────────────◀─────────────────────╯
//
// A question over a stream costs both sides two thirds of what a call costs. A peer that has no
// such method, or something between that does not let streams through, is asked by calls.
//
// *Truth*: the same answers and errors either way; nothing is asked twice. After a stream went with
// its peer the next is opened as soon as a call is answered again; `kStreamSoon` later when it
// never took a question, `kStreamAgain` when it failed otherwise.
// *Threads*: any. Callbacks run in gRPC's threads; no thread waits for an answer. A question of an
// I/O loop's thread goes over a connection of that loop (`loop_questions.h`), once that stands, and
// is called back there; not where connections are encrypted.
// *Bounds*: `kPeersMax` peers; beyond, the one asked longest ago is given up. `kStreamsMax` streams
// to one, the next when `kStreamBusy` questions wait on each; questions over `kStreamedBytesMax`
// are calls, so that no small question waits behind them.
// *Lifetime*: the destructor ends the streams and waits for what is under way, calls at most until
// their deadlines.

#ifndef KVATLAS_FRONTEND_CLUSTER_CLIENT_GRPC_QUESTIONS_H_
#define KVATLAS_FRONTEND_CLUSTER_CLIENT_GRPC_QUESTIONS_H_

#include <grpcpp/channel.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "frontend/cluster_client/loop_questions.h"
#include "frontend/cluster_client/peer_watch.h"
#include "frontend/cluster_client/peers_by_address.h"
#include "frontend/cluster_client/pending_calls.h"
#include "frontend/cluster_client/question_stream.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_deadline.h"
#include "indexer/net/grpc_status.h"
#include "indexer/net/io_loop.h"
#include "indexer/security/security.h"

namespace kvatlas {

inline constexpr size_t kStreamsMax = 4;
inline constexpr size_t kStreamBusy = 8;
inline constexpr size_t kStreamedBytesMax = 32 << 10;
inline constexpr Duration kStreamSoon = std::chrono::seconds(1);
inline constexpr Duration kStreamAgain = std::chrono::seconds(10);

// `Asked` names the messages of a service's question, as for `QuestionStream`, its Service, and how
// it is called:
//   static constexpr char kPeer[] = "leaf", in logs;
//   static constexpr char kStreamMethod[] = "/kvatlas.v1.Leaf/…", of its stream;
//   static void Call(Stub*, grpc::ClientContext*, const Request*, Response*,
//   std::function<void(grpc::Status)>);
//   static void Open(Stub*, grpc::ClientContext*, grpc::ClientBidiReactor<StreamRequest,
//   StreamResponse>*);
template <typename Asked>
class GrpcQuestions {
 public:
  using Request = typename Asked::Request;
  using Response = typename Asked::Response;
  using Stream = QuestionStream<Asked>;
  using Callback = typename Stream::Callback;

  // Without streams: by calls alone.
  explicit GrpcQuestions(bool streams)
      : streams_(streams), peers_([this](const std::string& address) {
          return std::make_shared<Peer>(&under_way_, address);
        }) {}
  // No question may be asked any more. Streams are cancelled first, since they would stay open;
  // calls are left to their deadlines.
  ~GrpcQuestions() {
    const std::vector<std::shared_ptr<Peer>> peers = peers_.TakeAll();
    for (const std::shared_ptr<Peer>& peer : peers) peer->Close();
    under_way_.WaitForNone();
  }

  GrpcQuestions(const GrpcQuestions&) = delete;
  GrpcQuestions& operator=(const GrpcQuestions&) = delete;

  // Starts connecting, so that the first question need not wait for it.
  void Connect(const std::string& address) {
    PeerOf(address)->channel->GetState(/*try_to_connect=*/true);
  }

  // The states of all peers that are known, by address.
  std::vector<PeerState> States() const {
    std::vector<PeerState> states;
    for (const std::shared_ptr<Peer>& peer : peers_.All()) states.push_back(peer->watch.Get());
    std::sort(states.begin(), states.end(),
              [](const PeerState& a, const PeerState& b) { return a.address < b.address; });
    return states;
  }

  // Whether some peer is there: one that answered last, or whose connection stands.
  // `GetState(true)` makes an idle channel connect, so asking this repeatedly brings peers up.
  bool Reached() {
    bool reached = false;
    for (const std::shared_ptr<Peer>& peer : peers_.All()) {
      const grpc_connectivity_state state = peer->channel->GetState(/*try_to_connect=*/true);
      if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) peer->watch.NotConnected();
      reached = reached || state == GRPC_CHANNEL_READY || peer->watch.reached();
    }
    return reached;
  }

  // Asks peers that are away for a connection: one that came back is reached before the next
  // question goes there.
  void LookForTheLost() {
    for (const std::shared_ptr<Peer>& peer : peers_.All()) {
      if (peer->watch.reached() || peer->watch.Get().state != "unreachable") continue;
      if (peer->channel->GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_READY)
        peer->watch.ConnectionStands();
    }
  }

  // Tells over a stream that is open anyway, and else not at all; there is no answer. A frontend
  // that only tells would never get a stream by answered calls, so one is opened here for the next
  // time.
  void Tell(const std::string& address, size_t bytes,
            absl::FunctionRef<void(typename Asked::StreamRequest*)> fill) {
    if (!streams_) return;
    if (LoopQuestions<Asked>* const loop = OnLoop(address); loop != nullptr && loop->Takes(bytes))
      return loop->Tell(bytes, fill);
    const std::shared_ptr<Peer> peer = PeerOf(address);
    const std::shared_ptr<Stream> stream = peer->Pick();
    if (stream == nullptr || !stream->Tell(bytes, fill)) peer->WantStream();
  }

  // `fill` makes the question, of about so many bytes, before this returns. Three ways, in this
  // order:
  //   1. On an I/O loop's thread: the loop's own connection, if that takes questions now.
  //   2. A stream of the peer, the least busy one; `Ask` of it may still refuse.
  //   3. A call. When the peer answers it, a stream is opened for later questions.
  // In each, `under_way_` counts until the callback has returned and all that it held is gone.
  void Ask(const std::string& address, size_t bytes, absl::FunctionRef<void(Request*)> fill,
           Duration deadline, Callback callback) {
    const std::shared_ptr<Peer> peer = PeerOf(address);
    callback = [peer, callback = std::move(callback)](const absl::Status& status,
                                                      const Response& response) {
      peer->watch.Ended(status);
      callback(status, response);
    };
    if (streams_ && bytes <= kStreamedBytesMax) {
      if (LoopQuestions<Asked>* const loop = OnLoop(address);
          loop != nullptr && loop->Takes(bytes)) {
        under_way_.Begin();
        return loop->Ask(bytes, fill, deadline, Tracked(std::move(callback)));
      }
      const std::shared_ptr<Stream> stream = peer->Pick();
      if (stream != nullptr && stream->Ask(bytes, fill, deadline, &callback)) return;
    }
    under_way_.Begin();
    // The deleter ends the count after the call's peer, and maybe its channel, were let go
    // (`pending_calls.h`).
    const std::shared_ptr<Call> call(new Call(peer), [this](Call* gone) {
      delete gone;
      under_way_.End();
    });
    fill(call->request);
    call->context.set_deadline(DeadlineIn(deadline));
    Asked::Call(peer->stub.get(), &call->context, call->request, call->response,
                [this, call, callback = std::move(callback)](const grpc::Status& status) {
                  if (streams_ && CameFromPeer(status)) call->peer->WantStream();
                  callback(FromGrpcStatus(status), *call->response);
                });
  }

 private:
  // One address: its channel, its streams and how it is watched. Given up, it lives until its
  // questions are over.
  class Peer : public std::enable_shared_from_this<Peer> {
   public:
    Peer(PendingCalls* under_way, const std::string& address)
        : watch(Asked::kPeer, address),
          channel(MakeChannel(address)),
          stub(Asked::Service::NewStub(channel)),
          under_way_(under_way) {}

    PeerWatch watch;
    const std::shared_ptr<grpc::Channel> channel;
    const std::shared_ptr<typename Asked::Service::Stub>
        stub;  // making one registers all its methods

    // The stream with the fewest questions that wait. Null: none takes questions. Opens another one
    // when even that one is busy and none is being opened, so that streams grow one by one.
    std::shared_ptr<Stream> Pick() {
      MutexLock lock(&mutex_);
      std::shared_ptr<Stream> least;
      size_t pending = 0;
      bool opening = false;
      for (const std::shared_ptr<Stream>& stream : streams_) {
        const std::optional<size_t> of_this = stream->pending();
        opening = opening || !of_this.has_value();
        if (!of_this.has_value() || (least != nullptr && *of_this >= pending)) continue;
        least = stream;
        pending = *of_this;
      }
      if (least != nullptr && pending >= kStreamBusy && !opening && streams_.size() < kStreamsMax)
        Open();
      return least;
    }

    // Opens a stream where there is none: the peer answers calls, or is to be told something.
    void WantStream() {
      MutexLock lock(&mutex_);
      if (streams_.empty()) Open();
    }

    void Close() {
      MutexLock lock(&mutex_);
      closed_ = true;
      for (const std::shared_ptr<Stream>& stream : streams_) stream->Close();
    }

   private:
    // Lock order: `mutex_`, then that of a stream. The stream's callbacks come later, on other
    // threads, so `OnOver` can take `mutex_`.
    void Open() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (closed_ || Clock::Real().Now() < not_before_) return;
      under_way_->Begin();
      streams_.push_back(Stream::Open(
          [this](grpc::ClientContext* context, typename Stream::Reactor* reactor) {
            Asked::Open(stub.get(), context, reactor);
          },
          [self = this->shared_from_this()](const Stream* stream, const absl::Status& why,
                                            bool took) { self->OnOver(stream, why, took); },
          [under_way = under_way_] { under_way->End(); }));
    }

    // A peer that took questions and went away may be back at once: a call will tell. A peer that
    // never took any is asked for a stream again only after a while, so that not each answered call
    // opens one in vain.
    void OnOver(const Stream* over, const absl::Status& why, bool took) {
      MutexLock lock(&mutex_);
      std::erase_if(streams_, [&](const auto& stream) { return stream.get() == over; });
      const bool peer_went = absl::IsUnavailable(why);
      if (peer_went && took) return;
      not_before_ = Clock::Real().Now() + (peer_went ? kStreamSoon : kStreamAgain);
    }

    PendingCalls* const under_way_;
    Mutex mutex_;  // outside of those of streams
    std::vector<std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
    Time not_before_ ABSL_GUARDED_BY(mutex_){0};
    bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  };

  // Everything that lives as long as one call. Both messages lie in an arena, because an answer has
  // a few small ones per worker.
  struct Call {
    static constexpr size_t kBytes = 8 << 10;

    explicit Call(std::shared_ptr<Peer> of) : peer(std::move(of)) {}

    const std::shared_ptr<Peer> peer;
    grpc::ClientContext context;
    char bytes[kBytes];
    google::protobuf::Arena arena{bytes, kBytes};
    Request* const request = google::protobuf::Arena::CreateMessage<Request>(&arena);
    Response* const response = google::protobuf::Arena::CreateMessage<Response>(&arena);
  };

  // The questions to `address` of this thread's loop, made at first use. Null: the thread runs no
  // loop, or connections are encrypted, which only gRPC's client does.
  LoopQuestions<Asked>* OnLoop(const std::string& address) {
    IoLoop* const loop = IoLoop::Current();
    if (loop == nullptr || loop->closed() || encrypted_) return nullptr;
    IoLoop::Tenant* peers = loop->Find(key_);
    if (peers == nullptr) {
      loop->Add(key_, std::make_unique<LoopPeers<Asked>>(&loop->io()));
      peers = loop->Find(key_);
    }
    return static_cast<LoopPeers<Asked>*>(peers)->Of(address);
  }

  // Ends the count of a question over a loop. The callback holds the peer and is let go first, so
  // that nothing of the peer is left when the count says so.
  Callback Tracked(Callback callback) {
    return [under_way = &under_way_, callback = std::move(callback)](
               const absl::Status& status, const Response& response) mutable {
      {
        const Callback last = std::move(callback);
        last(status, response);
      }
      under_way->End();
    };
  }

  // UNAVAILABLE, DEADLINE_EXCEEDED and CANCELLED are made by this side when no answer comes.
  static bool CameFromPeer(const grpc::Status& status) {
    return status.error_code() != grpc::StatusCode::UNAVAILABLE &&
           status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED &&
           status.error_code() != grpc::StatusCode::CANCELLED;
  }

  std::shared_ptr<Peer> PeerOf(const std::string& address) {
    std::shared_ptr<Peer> given_up;
    std::shared_ptr<Peer> peer = peers_.Get(address, &given_up);
    if (given_up != nullptr) given_up->Close();
    return peer;
  }

  const bool streams_;
  const bool encrypted_ = Security::OfProcess()->tls() != nullptr;
  const uint64_t key_ = IoLoop::NewKey();  // of what it keeps on loops
  PendingCalls under_way_;
  PeersByAddress<Peer> peers_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_CLUSTER_CLIENT_GRPC_QUESTIONS_H_
