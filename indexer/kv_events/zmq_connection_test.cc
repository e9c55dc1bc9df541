// The state of a connection to an engine, with real sockets: an absent engine is unreachable, with
// the reason.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "indexer/base/await.h"
#include "indexer/kv_events/stream_tracker.h"
#include "indexer/kv_events/stream_worker.h"
#include "indexer/kv_events/zmq_ingest.h"
#include "indexer/kv_events/zmq_source.h"
#include "indexer/net/connection_watch.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(60);

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::unique_ptr<StreamWorker> NoWorker() {
  return std::make_unique<StreamWorker>([](StreamTracker::Action::Kind, std::string_view) {});
}

// A port that is taken; it answers every connection with `greeting`, or not at all.
class Stranger {
 public:
  explicit Stranger(std::string greeting) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    if (greeting.empty()) return;
    EXPECT_EQ(listen(fd_, 64), 0);
    thread_ = std::thread([this, greeting = std::move(greeting)] {
      for (int taken; (taken = accept(fd_, nullptr, nullptr)) >= 0; close(taken))
        (void)!send(taken, greeting.data(), greeting.size(), MSG_NOSIGNAL);
    });
  }
  ~Stranger() {
    shutdown(fd_, SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    close(fd_);
  }
  std::string endpoint() const { return "tcp://127.0.0.1:" + std::to_string(port_); }

 private:
  const int fd_;
  uint16_t port_ = 0;
  std::thread thread_;
};

class ZmqConnectionTest : public ::testing::Test {
 protected:
  ZmqConnectionTest() : ingest_(Options()) { ingest_.OpenGate(); }

  static ZmqIngestOptions Options() {
    ZmqIngestOptions options;
    options.reconnect_min = std::chrono::milliseconds(10);
    options.reconnect_max = std::chrono::milliseconds(50);
    return options;
  }

  ZmqStreamId Add(const ZmqSource& source) {
    const absl::StatusOr<ZmqStreamId> id = ingest_.Add(source, this, NoWorker());
    EXPECT_TRUE(id.ok()) << id.status();
    return id.ok() ? *id : 0;
  }
  ConnectionStatus Connection(ZmqStreamId stream) {
    return ingest_.Stats(stream).value_or(ZmqStreamStats()).connection;
  }
  ConnectionStatus Await(ZmqStreamId stream, ConnectionState state) {
    EXPECT_TRUE(kvatlas::Await([&] { return Connection(stream).state == state; }, kLong))
        << Connection(stream).ToString();
    return Connection(stream);
  }

  ZmqIngest ingest_;
};

TEST_F(ZmqConnectionTest, APortWhereNobodyListensIsUnreachable) {
  const Stranger closed("");
  const ZmqStreamId stream = Add({.worker_name = "w", .endpoint = closed.endpoint()});
  const ConnectionStatus status = Await(stream, ConnectionState::kUnreachable);
  EXPECT_EQ(status.ToString(), "unreachable: " + closed.endpoint() + ": Connection refused");
  EXPECT_FALSE(status.ever);
}

// vLLM at tcp://0.0.0.0:PORT: it connects its publisher there, and binds its replay socket.
TEST_F(ZmqConnectionTest, AnEngineThatOnlyReplaysIsSaidToDialOut) {
  ZmqTestEngine replays({.replay = true});
  const Stranger closed("");
  const ZmqStreamId stream = Add({.worker_name = "w",
                                  .endpoint = closed.endpoint(),
                                  .replay_endpoint = replays.replay_endpoint()});
  EXPECT_THAT(Await(stream, ConnectionState::kUnreachable).reason,
              AllOf(HasSubstr("Connection refused, while its replay endpoint accepts connections"),
                    HasSubstr("\"endpoint\": \"tcp://*:PORT\"")));
}

TEST_F(ZmqConnectionTest, ANameWithoutAnAddressIsUnreachable) {
  const ZmqStreamId stream =
      Add({.worker_name = "w", .endpoint = "tcp://nowhere.invalid:5557", .from_flags = true});
  EXPECT_THAT(Await(stream, ConnectionState::kUnreachable).reason,
              AllOf(StartsWith("tcp://nowhere.invalid:5557: "), HasSubstr("nowhere.invalid")));
}

TEST_F(ZmqConnectionTest, AnotherProtocolIsSaidToBeOne) {
  const Stranger http("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
  const ZmqStreamId stream = Add({.worker_name = "w", .endpoint = http.endpoint()});
  EXPECT_THAT(Await(stream, ConnectionState::kUnreachable).reason, HasSubstr("ZeroMQ"));
}

TEST_F(ZmqConnectionTest, AnEngineThatComesGoesAndComesAgain) {
  ZmqTestEngine engine({});
  const ZmqStreamId stream = Add({.worker_name = "w", .endpoint = engine.endpoint()});
  EXPECT_EQ(Await(stream, ConnectionState::kConnected).reason, "");
  engine.Stop();
  EXPECT_TRUE(Await(stream, ConnectionState::kUnreachable).ever);
  engine.Start();
  Await(stream, ConnectionState::kConnected);
}

TEST_F(ZmqConnectionTest, AReplaySocketThatIsNotThereIsUnreachable) {
  ZmqTestEngine engine({});
  const Stranger closed("");
  const ZmqStreamId stream = Add(
      {.worker_name = "w", .endpoint = engine.endpoint(), .replay_endpoint = closed.endpoint()});
  Await(stream, ConnectionState::kConnected);
  std::optional<ConnectionStatus> replay;
  ASSERT_TRUE(kvatlas::Await(
      [&] {
        replay = ingest_.Stats(stream)->replay;
        return replay.has_value();
      },
      kLong));
  EXPECT_EQ(replay->ToString(), "unreachable: " + closed.endpoint() + ": Connection refused");
}

TEST_F(ZmqConnectionTest, AReplaySocketThatAnswersIsConnected) {
  ZmqTestEngine engine({.replay = true});
  const ZmqStreamId stream = Add({.worker_name = "w",
                                  .endpoint = engine.endpoint(),
                                  .replay_endpoint = engine.replay_endpoint()});
  const auto replay = [&] { return ingest_.Stats(stream)->replay.value_or(ConnectionStatus()); };
  EXPECT_TRUE(kvatlas::Await([&] { return replay().state == ConnectionState::kConnected; }, kLong))
      << replay().ToString();
}

}  // namespace
}  // namespace kvatlas
