// Both ends over real connections on loopback: `GrpcLink` and `GrpcAcceptor`.

#include "indexer/transport/grpc_link.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/net/grpc_server.h"
#include "indexer/stream/messages.h"
#include "indexer/transport/grpc_acceptor.h"
#include "indexer/transport/hello_test_util.h"
#include "tools/testing/servers/reserved_test_ports.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(60);

// A bag of values that one thread fills and another waits on.
template <typename T>
class Inbox {
 public:
  void Put(T value) {
    MutexLock lock(&mutex_);
    values_.push_back(std::move(value));
    changed_.SignalAll();
  }
  // The next one; fails the test after `kLong`.
  T Take() {
    MutexLock lock(&mutex_);
    const Time until = Clock::Real().Now() + kLong;
    while (values_.empty()) {
      if (!changed_.WaitFor(&mutex_, until - Clock::Real().Now()) && values_.empty()) {
        ADD_FAILURE() << "nothing came";
        return T();
      }
    }
    T value = std::move(values_.front());
    values_.pop_front();
    return value;
  }
  size_t size() {
    MutexLock lock(&mutex_);
    return values_.size();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<T> values_ ABSL_GUARDED_BY(mutex_);
};

// The callbacks of a link, in order, as text with the message beside it.
struct Notice {
  enum Kind { kNone, kConnected, kDisconnected, kMessage, kWritable } kind = kNone;
  absl::Status why;
  ReceiverMessage message;
};

class Recorder : public SenderLinkObserver {
 public:
  void OnConnected() override {
    notices.Put({.kind = Notice::kConnected, .why = {}, .message = {}});
  }
  void OnDisconnected(const absl::Status& why) override {
    notices.Put({.kind = Notice::kDisconnected, .why = why, .message = {}});
  }
  void OnMessage(ReceiverMessage message) override {
    notices.Put({.kind = Notice::kMessage, .why = {}, .message = std::move(message)});
  }
  void OnWritable() override { notices.Put({.kind = Notice::kWritable, .why = {}, .message = {}}); }

  Inbox<Notice> notices;
};

// The same; messages stay in delivery until the release.
class BlockingRecorder : public Recorder {
 public:
  void OnMessage(ReceiverMessage message) override {
    Recorder::OnMessage(std::move(message));
    MutexLock lock(&mutex_);
    while (!released_) changed_.Wait(&mutex_);
  }
  void Release() {
    MutexLock lock(&mutex_);
    released_ = true;
    changed_.SignalAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
};

// Records what sessions receive; answers as the test says.
class FakeAcceptor : public StreamAcceptor {
 public:
  using Handler = std::function<absl::Status(const SenderMessage&, const ReplyFn&)>;

  explicit FakeAcceptor(Handler handler = nullptr) : handler_(std::move(handler)) {}
  ~FakeAcceptor() override { EXPECT_EQ(open.load(), 0); }

  std::unique_ptr<ReceiverSession> Accept(ReplyFn reply) override {
    replies.Put(reply);
    return std::make_unique<Session>(this, std::move(reply));
  }

  Inbox<SenderMessage> received;
  Inbox<ReplyFn> replies;
  Inbox<int> ended;
  std::atomic<int> open{0};
  std::atomic<size_t> wire_bytes{0};

 private:
  class Session : public ReceiverSession {
   public:
    Session(FakeAcceptor* owner, ReplyFn reply) : owner_(owner), reply_(std::move(reply)) {
      ++owner_->open;
    }
    ~Session() override {
      --owner_->open;
      owner_->ended.Put(1);
    }
    absl::Status OnMessage(SenderMessage message) override {
      const absl::Status status =
          owner_->handler_ ? owner_->handler_(message, reply_) : absl::OkStatus();
      owner_->received.Put(std::move(message));
      return status;
    }
    void OnWireBytes(size_t bytes) override { owner_->wire_bytes += bytes; }

   private:
    FakeAcceptor* const owner_;
    const ReplyFn reply_;
  };

  const Handler handler_;
};

// A server on loopback that can be started again on its port.
class TestServer {
 public:
  explicit TestServer(StreamAcceptor* acceptor, uint16_t port = 0)
      : streams(acceptor), server_({.listen = {"127.0.0.1", port}}) {
    server_.Register(streams.service(), "kvatlas.v1.Holdings");
    const absl::Status status = server_.Start();
    EXPECT_TRUE(status.ok()) << status;
  }
  // As if killed: no connection gets a goodbye.
  void Kill() { server_.Stop(Duration(0)); }
  std::string target() const { return server_.address().ToString(); }

  GrpcAcceptor streams;

 private:
  GrpcServer server_;
};

Batch ABatch(BatchNumber number, size_t blocks = 1) {
  Batch batch{.number = number, .events = {Stored{}}, .load = {}, .digest = {}};
  std::get<Stored>(batch.events[0]).blocks.assign(blocks, SequenceHash{number});
  return batch;
}

// Acknowledges every batch.
absl::Status AckAll(const SenderMessage& message, const ReplyFn& reply) {
  if (const Batch* batch = std::get_if<Batch>(&message))
    reply(Ack{.applied = batch->number, .credit = 64});
  return absl::OkStatus();
}

TEST(GrpcLinkTest, CarriesMessagesBothWays) {
  FakeAcceptor acceptor(AckAll);
  TestServer server(&acceptor);
  Recorder recorder;
  GrpcLink link(server.target());
  EXPECT_FALSE(link.Write(HelloOf("w")));
  link.Start(&recorder);
  ASSERT_EQ(recorder.notices.Take().kind, Notice::kConnected);
  ASSERT_TRUE(link.Write(HelloOf("w")));
  ASSERT_TRUE(link.Write(ABatch(1)));
  EXPECT_TRUE(acceptor.received.Take() == SenderMessage(HelloOf("w")));
  EXPECT_TRUE(acceptor.received.Take() == SenderMessage(ABatch(1)));
  EXPECT_TRUE(recorder.notices.Take().message == ReceiverMessage(Ack{.applied = 1, .credit = 64}));
  acceptor.replies.Take()(Need{.next = 1, .snapshot = true});
  EXPECT_TRUE(recorder.notices.Take().message ==
              ReceiverMessage(Need{.next = 1, .snapshot = true}));
  EXPECT_EQ(link.messages_written(), 2);
  EXPECT_EQ(server.streams.Stats().bytes_received, link.bytes_written());
  EXPECT_EQ(acceptor.wire_bytes.load(), link.bytes_written());
  link.Stop(Duration(0));
  acceptor.ended.Take();
}

TEST(GrpcLinkTest, StopFlushesWhatWasWritten) {
  FakeAcceptor acceptor;
  TestServer server(&acceptor);
  Recorder recorder;
  GrpcLink link(server.target());
  link.Start(&recorder);
  recorder.notices.Take();
  ASSERT_TRUE(link.Write(HelloOf("w")));
  for (int i = 1; i <= 20; ++i) ASSERT_TRUE(link.Write(ABatch(i, 1000)));
  ASSERT_TRUE(link.Write(Goodbye{}));
  link.Stop(kLong);
  EXPECT_EQ(acceptor.received.size(), 22);
  EXPECT_FALSE(link.Write(Goodbye{}));
}

// Without a server in the process the link has its only channel. It used to end on the thread of
// gRPC's that ended the call, which then tried to join itself and went on with a queue that was
// gone.
TEST(GrpcLinkTest, TheLastChannelOfAProcessEndsWithItsLink) {
  for (int i = 0; i < 300; ++i) {
    Recorder recorder;
    GrpcLink link("127.0.0.1:1");
    link.Start(&recorder);
    link.Stop(Duration(0));
  }
}

TEST(GrpcLinkTest, StopsWhileNobodyListens) {
  Recorder recorder;
  GrpcLink link("127.0.0.1:1");
  link.Start(&recorder);
  link.Reset();
  link.Stop(kLong);
  EXPECT_EQ(recorder.notices.size(), 0);
  GrpcLink never_started("127.0.0.1:1");
}

TEST(GrpcLinkTest, ReconnectsToARestartedServer) {
  FakeAcceptor acceptor(AckAll);
  ReservedTestPorts held;
  const Address address = held.HoldAny();
  auto server = std::make_unique<TestServer>(&acceptor, address.port);
  Recorder recorder;
  GrpcLink link(server->target());
  link.Start(&recorder);
  for (int round = 1; round <= 3; ++round) {
    ASSERT_EQ(recorder.notices.Take().kind, Notice::kConnected);
    ASSERT_TRUE(link.Write(ABatch(round)));
    ASSERT_EQ(recorder.notices.Take().kind, Notice::kMessage);
    server->Kill();
    const Notice end = recorder.notices.Take();
    ASSERT_EQ(end.kind, Notice::kDisconnected);
    EXPECT_FALSE(end.why.ok());
    EXPECT_FALSE(link.Write(ABatch(round)));
    server = nullptr;
    server = std::make_unique<TestServer>(&acceptor, address.port);
  }
}

TEST(GrpcLinkTest, ResetConnectsAgain) {
  FakeAcceptor acceptor;
  TestServer server(&acceptor);
  Recorder recorder;
  GrpcLink link(server.target());
  link.Start(&recorder);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(recorder.notices.Take().kind, Notice::kConnected);
    link.Reset();
    ASSERT_EQ(recorder.notices.Take().kind, Notice::kDisconnected);
    acceptor.ended.Take();
  }
}

TEST(GrpcLinkTest, ARefusalArrivesAndThenTheCallEndsWithItsStatus) {
  FakeAcceptor acceptor([](const SenderMessage&, const ReplyFn& reply) {
    reply(Refuse{.code = absl::StatusCode::kFailedPrecondition,
                 .reason = "older",
                 .epoch = 9,
                 .instance_id = 0});
    return absl::OkStatus();
  });
  TestServer server(&acceptor);
  Recorder recorder;
  GrpcLink link(server.target());
  link.Start(&recorder);
  recorder.notices.Take();
  ASSERT_TRUE(link.Write(HelloOf("w")));
  const Notice refused = recorder.notices.Take();
  ASSERT_EQ(refused.kind, Notice::kMessage);
  EXPECT_EQ(std::get<Refuse>(refused.message).epoch, 9u);
  const Notice end = recorder.notices.Take();
  ASSERT_EQ(end.kind, Notice::kDisconnected);
  EXPECT_EQ(end.why, absl::FailedPreconditionError("older"));
  EXPECT_EQ(recorder.notices.Take().kind, Notice::kConnected);
}

TEST(GrpcLinkTest, ASessionsStatusEndsTheCallAfterItsReplies) {
  FakeAcceptor acceptor([](const SenderMessage&, const ReplyFn& reply) {
    reply(Ack{.applied = 3, .credit = 1});
    return absl::InvalidArgumentError("no");
  });
  TestServer server(&acceptor);
  Recorder recorder;
  GrpcLink link(server.target());
  link.Start(&recorder);
  recorder.notices.Take();
  ASSERT_TRUE(link.Write(HelloOf("w")));
  EXPECT_EQ(recorder.notices.Take().kind, Notice::kMessage);
  EXPECT_EQ(recorder.notices.Take().why, absl::InvalidArgumentError("no"));
}

// gRPC holds a call's status back while messages of it are unread.
TEST(GrpcLinkTest, ACallThatAFailedWriteClosedBeforeItsRepliesWereReadEnds) {
  FakeAcceptor acceptor([](const SenderMessage&, const ReplyFn& reply) {
    for (BatchNumber number = 1; number <= 4; ++number) {
      reply(Ack{.applied = number, .credit = 1});
      reply(Need{.next = number, .snapshot = false});  // two acks in a row would be one
    }
    return absl::InvalidArgumentError("no");
  });
  TestServer server(&acceptor);
  BlockingRecorder recorder;
  GrpcLink link(server.target());
  link.Start(&recorder);
  EXPECT_EQ(recorder.notices.Take().kind, Notice::kConnected);
  ASSERT_TRUE(link.Write(HelloOf("w")));
  EXPECT_EQ(recorder.notices.Take().kind, Notice::kMessage);
  // The first reply is being delivered, the others wait, and the server has ended the stream:
  // writing fails.
  EXPECT_TRUE(Await([&] { return !link.Write(ABatch(1)); }, kLong));
  recorder.Release();
  Notice end = recorder.notices.Take();
  while (end.kind == Notice::kMessage || end.kind == Notice::kWritable)
    end = recorder.notices.Take();
  ASSERT_EQ(end.kind, Notice::kDisconnected);
  EXPECT_EQ(end.why, absl::InvalidArgumentError("no"));
}

TEST(GrpcLinkTest, WhatTheWireRefusesEndsTheCallAndNamesTheField) {
  FakeAcceptor acceptor;
  TestServer server(&acceptor);
  Recorder recorder;
  GrpcLink link(server.target());
  link.Start(&recorder);
  recorder.notices.Take();
  Hello hello = HelloOf("w");
  hello.block_size = 0;
  ASSERT_TRUE(link.Write(hello));
  const Notice end = recorder.notices.Take();
  EXPECT_EQ(end.why.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(end.why.message().find("hello.block_size"), absl::string_view::npos);
  EXPECT_EQ(server.streams.Stats().messages_refused, 1);
}

TEST(GrpcLinkTest, StopOfTheAcceptorEndsConnections) {
  FakeAcceptor acceptor;
  TestServer server(&acceptor);
  Recorder recorder;
  GrpcLink link(server.target());
  link.Start(&recorder);
  recorder.notices.Take();
  server.streams.Stop();
  EXPECT_EQ(recorder.notices.Take().kind, Notice::kDisconnected);
  acceptor.ended.Take();
}

// The receiver's thread is held up; the buffer fills, then drains.
TEST(GrpcLinkTest, AFullBufferRefusesAndSaysWhenThereIsRoom) {
  Mutex gate;
  gate.Lock();
  FakeAcceptor acceptor([&gate](const SenderMessage&, const ReplyFn&) {
    MutexLock lock(&gate);
    return absl::OkStatus();
  });
  TestServer server(&acceptor);
  Recorder recorder;
  GrpcLink link(server.target(), {.buffer_messages_max = 8});
  link.Start(&recorder);
  recorder.notices.Take();
  int taken = 0;
  while (link.Write(ABatch(taken + 1, kBatchBlocksMax))) ++taken;
  EXPECT_GE(taken, 8);
  gate.Unlock();
  EXPECT_EQ(recorder.notices.Take().kind, Notice::kWritable);
  while (!link.Write(ABatch(taken + 1))) recorder.notices.Take();
  for (int i = 1; i <= taken + 1; ++i) {
    EXPECT_EQ(std::get<Batch>(acceptor.received.Take()).number, static_cast<BatchNumber>(i));
  }
}

// Writers, resets and restarts at once: nothing hangs, nothing is delivered out of order.
TEST(GrpcLinkTest, SurvivesWritersResetsAndStopsAtOnce) {
  FakeAcceptor acceptor(AckAll);
  TestServer server(&acceptor);
  for (int round = 0; round < 20; ++round) {
    Recorder recorder;
    GrpcLink link(server.target());
    link.Start(&recorder);
    std::vector<std::thread> threads;
    std::atomic<bool> done{false};
    for (int writer = 0; writer < 3; ++writer) {
      threads.emplace_back([&] {
        for (BatchNumber i = 1; !done.load(); ++i) {
          if (!link.Write(ABatch(i, 10))) std::this_thread::yield();
        }
      });
    }
    for (int reset = 0; reset < 2; ++reset) {
      while (recorder.notices.Take().kind != Notice::kConnected) {
      }
      link.Reset();
    }
    link.Stop(round % 2 == 0 ? Duration(0) : Duration(std::chrono::milliseconds(1)));
    done = true;
    for (std::thread& thread : threads) thread.join();
  }
}

// Replies from many threads while the connection comes and goes.
TEST(GrpcAcceptorTest, RepliesAfterTheEndAreDropped) {
  FakeAcceptor acceptor;
  TestServer server(&acceptor);
  Recorder recorder;
  GrpcLink link(server.target(), {.backoff_max = std::chrono::milliseconds(50)});
  link.Start(&recorder);
  std::vector<std::thread> threads;
  for (int round = 0; round < 10; ++round) {
    ReplyFn reply = acceptor.replies.Take();
    threads.emplace_back([reply] {
      for (uint64_t i = 0; i < 1000; ++i) reply(Ack{.applied = i, .credit = 1});
    });
    link.Reset();
  }
  for (std::thread& thread : threads) thread.join();
  link.Stop(Duration(0));
}

}  // namespace
}  // namespace kvatlas
