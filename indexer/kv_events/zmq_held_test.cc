// Bytes that libzmq holds of an engine's connection, with real sockets and an engine that writes
// ZeroMQ's bytes itself: small frames, small limits.

#include "indexer/kv_events/zmq_held.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "indexer/base/await.h"
#include "indexer/kv_events/stream_tracker.h"
#include "indexer/kv_events/stream_worker.h"
#include "indexer/kv_events/zmq_ingest.h"
#include "indexer/kv_events/zmq_source.h"
#include "indexer/kv_events/zmq_stream.h"
#include "indexer/net/connection_account.h"
#include "indexer/telemetry/process_memory.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::seconds kLong(60);
constexpr int kPatienceMs = 10'000;
constexpr size_t kMessageBytesMax = 100'000;
// A frame of a message, and that others follow it.
constexpr char kMore = 1;

std::string Frame(char flags, std::string_view body) {
  return std::string{flags, static_cast<char>(body.size())} + std::string(body);
}

// Greets as ZMTP 3.0 says (rfc.zeromq.org/spec/23), and then sends what it was given on each
// connection until that ends.
class RawEngine {
 public:
  using Speak =
      std::function<std::string(size_t piece)>;  // empty: no more, and the connection stays

  RawEngine(const std::string& socket_type, Speak speak)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
        type_(socket_type),
        speak_(std::move(speak)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    EXPECT_EQ(listen(fd_, 64), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~RawEngine() {
    stopping_.store(true);
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  std::string endpoint() const { return "tcp://127.0.0.1:" + std::to_string(port_); }

 private:
  void Run() {
    for (int fd; (fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; close(fd)) {
      std::string greeting("\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL", 16);
      greeting.resize(64);
      const std::string value("\0\0\0", 3);
      const std::string ready =
          std::string("\x05READY\x0bSocket-Type") + value + static_cast<char>(type_.size()) + type_;
      // The other side says as much before it hears more.
      bool open = Send(fd, greeting) && Drop(fd, kPatienceMs) && Send(fd, Frame(4, ready)) &&
                  Drop(fd, kPatienceMs);
      for (size_t piece = 0; open; ++piece) {
        const std::string bytes = speak_(piece);
        if (bytes.empty()) break;
        open = Send(fd, bytes);
      }
      while (open && !stopping_.load()) open = Drop(fd, 100);
    }
  }
  // Whatever the other side says is dropped; false: it has ended the connection.
  static bool Drop(int fd, int wait_ms) {
    pollfd ready = {fd, POLLIN, 0};
    char bytes[4096];
    return poll(&ready, 1, wait_ms) == 0 || recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0;
  }
  bool Send(int fd, std::string_view bytes) {
    while (!bytes.empty() && !stopping_.load()) {
      const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EAGAIN) return false;
      bytes.remove_prefix(sent < 0 ? 0 : static_cast<size_t>(sent));
      if (!Drop(fd, sent < 0 ? 10 : 0)) return false;
    }
    return !stopping_.load();
  }

  const int fd_;
  const std::string type_;
  const Speak speak_;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

class ZmqHeldTest : public ::testing::Test {
 protected:
  ~ZmqHeldTest() override { SetMemoryCritical(false); }

  ZmqStreamId Add(const ZmqSource& source, size_t message_bytes_max = kMessageBytesMax) {
    ZmqIngestOptions options;
    options.message_bytes_max = message_bytes_max;
    ingest_ = std::make_unique<ZmqIngest>(options);
    ingest_->OpenGate();
    const absl::StatusOr<ZmqStreamId> id = ingest_->Add(
        source, this, std::make_unique<StreamWorker>([this](auto kind, std::string_view) {
          applied_ += kind == StreamTracker::Action::Kind::kApply;
        }));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(0);
  }
  uint64_t Ended() const { return ConnectionsEnded(EndedFor::kEngine) - ended_before_; }
  void ExpectEnded() {
    EXPECT_TRUE(Await([&] { return Ended() > 0; }, kLong));
  }
  // A frame after the other, none of them the last: three times what may be held.
  static std::string Unfinished(size_t piece) {
    std::string frames;
    for (int i = 0; i < 100; ++i) frames += Frame(kMore, std::string(100, '.'));
    return piece < 3 * (ZmqStream::kHeldSlack + kMessageBytesMax) / frames.size() ? frames : "";
  }

  const uint64_t ended_before_ = ConnectionsEnded(EndedFor::kEngine);
  std::atomic<size_t> applied_{0};
  std::unique_ptr<ZmqIngest> ingest_;
};

TEST_F(ZmqHeldTest, AMessageThatDoesNotEndEndsItsConnectionWhichIsMadeAgain) {
  const RawEngine engine("PUB", Unfinished);
  const ZmqStreamId stream = Add({.worker_name = "w", .endpoint = engine.endpoint()});
  EXPECT_TRUE(Await([&] { return Ended() > 1; }, kLong));
  EXPECT_FALSE(ingest_->Stats(stream)->status == ListenerStatus::kFailed);
}

TEST_F(ZmqHeldTest, AReplayThatDoesNotEndIsLikeNone) {
  ZmqTestEngine live({});
  const RawEngine replay("ROUTER", Unfinished);
  Add({.worker_name = "w", .endpoint = live.endpoint(), .replay_endpoint = replay.endpoint()});
  live.WaitForSubscribers();
  live.Publish("0");
  live.Drop("1");
  live.Publish("2");
  ExpectEnded();
}

TEST_F(ZmqHeldTest, AListenersConnectionsAreEnded) {
  const ZmqStreamId stream =
      Add({.worker_name = "w", .endpoint = "tcp://127.0.0.1:0", .bind = true, .from_flags = true});
  const absl::StatusOr<std::string> bound = ingest_->BoundEndpoint(stream);
  ASSERT_TRUE(bound.ok()) << bound.status();
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(bound->substr(bound->rfind(':') + 1))));
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  std::string bytes("\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL", 16);
  bytes.resize(64);
  const std::string ready("\x05READY\x0bSocket-Type\0\0\0\x03PUB", 25);
  char heard[64];
  send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  ASSERT_EQ(recv(fd, heard, sizeof(heard), MSG_WAITALL), 64);  // its greeting
  bytes = Frame(4, ready);
  send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  ASSERT_GT(recv(fd, heard, sizeof(heard), 0), 0);
  for (size_t piece = 0; !(bytes = Unfinished(piece)).empty(); ++piece) {
    if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) break;
  }
  ExpectEnded();
  close(fd);
}

TEST_F(ZmqHeldTest, LessIsHeldWhileMemoryIsCritical) {
  const RawEngine engine("PUB", Unfinished);
  const ZmqStreamId stream =
      Add({.worker_name = "w", .endpoint = engine.endpoint()}, /*message_bytes_max=*/64 << 20);
  EXPECT_TRUE(Await([&] { return ingest_->Stats(stream)->connected; }, kLong));
  EXPECT_EQ(Ended(), 0u);
  SetMemoryCritical(true);
  ExpectEnded();
}

TEST_F(ZmqHeldTest, WholeMessagesThatNobodyTakesEndTheConnection) {
  const std::string number(8, '\0');
  const std::string message = Frame(kMore, "") + Frame(kMore, number) +
                              std::string("\x02\0\0\0\0\0\0\xc3\x50", 9) + std::string(50'000, '.');
  const RawEngine engine("PUB", [&](size_t piece) { return piece < 100 ? message : ""; });
  const ZmqStreamId stream = Add({.worker_name = "w", .endpoint = engine.endpoint()});
  ASSERT_TRUE(ingest_->Pause(stream).ok());
  ExpectEnded();
}

TEST_F(ZmqHeldTest, WhatIsTakenMayBeMuch) {
  ZmqTestEngine engine({});
  Add({.worker_name = "w", .endpoint = engine.endpoint()});
  engine.WaitForSubscribers();
  const std::string large(kMessageBytesMax / 2, '.');
  size_t published = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 20; ++i) engine.Publish(i % 2 == 0 ? large : "small");
    published += 20;
    ASSERT_TRUE(Await([&] { return applied_.load() == published; }, kLong));
  }
  EXPECT_EQ(Ended(), 0u);
}

}  // namespace
}  // namespace kvatlas
