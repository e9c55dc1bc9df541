#include "frontend/cluster_client/http2_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/cluster_client/peer_questions.h"
#include "indexer/base/address.h"
#include "indexer/net/answer_stream.h"
#include "indexer/net/grpc_server.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "tools/testing/servers/reserved_test_ports.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A loop, a stream on it, and what came of that.
class Client {
 public:
  explicit Client(const Address& peer, const char* method = CellQuestions::kStreamMethod)
      : stream_(std::make_shared<Http2Stream>(
            &io_, peer, method,
            Http2Stream::Events{
                .on_message = [this](std::string_view text) { messages.emplace_back(text); },
                .on_over = [this](const absl::Status& why) { over.push_back(why); }})) {}
  ~Client() {
    stream_->Close();
    io_.run_for(std::chrono::seconds(60));
  }

  void RunUntil(const std::function<bool()>& done) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done() && std::chrono::steady_clock::now() < until) {
      io_.restart();
      io_.run_one_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(done());
  }
  std::string WhyOver() {
    RunUntil([&] { return !over.empty(); });
    return over.empty() ? "" : std::string(over[0].message());
  }

  Http2Stream& stream() { return *stream_; }
  asio::io_context& io() { return io_; }

  std::vector<std::string> messages;
  std::vector<absl::Status> over;

 private:
  asio::io_context io_;
  const std::shared_ptr<Http2Stream> stream_;
};

// ---- Beside gRPC's server ----

class Node : public v1::Hierarchy::Service {
 public:
  using Streams = AnswerStreams<v1::FindCellsStreamRequest, v1::FindCellsStreamResponse>;

  Node() {
    MarkMethodCallback(1, Streams::MethodHandler([this](auto*) { return streams_.Open(); }));
    server_.Register(this);
    const absl::Status status = server_.Start();
    EXPECT_TRUE(status.ok()) << status;
  }
  ~Node() override {
    streams_.Stop();
    server_.Stop(Duration(0));
  }
  Address address() const { return server_.address(); }
  void StopStreams() { streams_.Stop(); }

 private:
  // Answers with the schedule's name, and as many waypoints as bytes of it are asked for.
  Streams streams_{[](const v1::FindCellsRequest& request, v1::FindCellsResponse* response) {
    response->add_cells()->set_address(request.schedule());
    return absl::OkStatus();
  }};
  GrpcServer server_{GrpcServerOptions{.listen = {"127.0.0.1", 0}}};
};

std::string Question(uint64_t id, const std::string& schedule) {
  v1::FindCellsStreamRequest request;
  auto* const question = request.add_questions();
  question->set_id(id);
  question->mutable_request()->set_schedule(schedule);
  return request.SerializeAsString();
}

std::string AnswerOf(const std::string& message) {
  v1::FindCellsStreamResponse response;
  EXPECT_TRUE(response.ParseFromString(message));
  if (response.answers_size() != 1) return "answers: " + std::to_string(response.answers_size());
  return response.answers(0).response().cells(0).address();
}

TEST(Http2StreamTest, AGrpcServerAnswersWhatWasSentBeforeTheConnectionStood) {
  Node node;
  Client client(node.address());
  client.stream().Open();
  client.stream().Send(Question(1, "first"));
  client.stream().Send(Question(2, "second"));
  client.RunUntil([&] { return client.messages.size() >= 3; });
  ASSERT_EQ(client.messages.size(), 3u);
  EXPECT_EQ(client.messages[0], "") << "the stream's greeting";
  EXPECT_EQ(AnswerOf(client.messages[1]), "first");
  EXPECT_EQ(AnswerOf(client.messages[2]), "second");
  EXPECT_THAT(client.over, IsEmpty());
  EXPECT_GT(client.stream().heard(), Time(0));
}

// More than any window at the beginning, of either side, and more in sum than ours.
TEST(Http2StreamTest, LargeMessagesPassInFramesAsWindowsAllow) {
  Node node;
  Client client(node.address());
  client.stream().Open();
  const std::string large(3 << 20, 'x');
  for (uint64_t i = 1; i <= 5; ++i) client.stream().Send(Question(i, large));
  EXPECT_GT(client.stream().unsent(), large.size());
  client.RunUntil([&] { return client.messages.size() >= 6; });
  ASSERT_EQ(client.messages.size(), 6u);
  for (int i = 1; i <= 5; ++i) EXPECT_TRUE(AnswerOf(client.messages[i]) == large) << i;
  EXPECT_EQ(client.stream().unsent(), 0u);
}

TEST(Http2StreamTest, AStreamThatTheServerEndsIsOver) {
  Node node;
  Client client(node.address());
  client.stream().Open();
  client.RunUntil([&] { return !client.messages.empty(); });
  node.StopStreams();
  EXPECT_THAT(client.WhyOver(), HasSubstr("ended the stream"));
}

TEST(Http2StreamTest, AMethodThatTheServerLacksIsOver) {
  Node node;
  Client client(node.address(), "/kvatlas.v1.Hierarchy/None");
  client.stream().Open();
  EXPECT_THAT(client.WhyOver(), HasSubstr("ended the stream"));
}

TEST(Http2StreamTest, NothingListens) {
  ReservedTestPorts held;
  const Address address = held.HoldAny();
  Client client(address);
  client.stream().Open();
  EXPECT_THAT(client.WhyOver(), HasSubstr("refused"));
  EXPECT_EQ(client.stream().heard(), Time(0));
}

// ---- Beside a server that sends scripted bytes ----

std::string FrameOf(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame += static_cast<char>(payload.size() >> shift);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift);
  return frame + payload;
}

std::string Prefixed(const std::string& message) {
  std::string prefix = {0, 0, 0, 0, static_cast<char>(message.size())};
  return prefix + message;
}

class ScriptTest : public testing::Test {
 protected:
  ScriptTest()
      : acceptor_(io_, {asio::ip::make_address("127.0.0.1"), 0}),
        client_({"127.0.0.1", acceptor_.local_endpoint().port()}) {
    client_.stream().Open();
    acceptor_.async_accept([this](boost::system::error_code error, tcp::socket socket) {
      EXPECT_FALSE(error);
      socket_ = std::make_unique<tcp::socket>(std::move(socket));
    });
    client_.RunUntil([this] {
      io_.restart();
      io_.poll();
      return socket_ != nullptr && client_.stream().heard() > Time(0);
    });
  }
  void Say(const std::string& bytes) { asio::write(*socket_, asio::buffer(bytes)); }
  // All that the client has written, up to those bytes.
  std::string HearUntil(const std::string& bytes) {
    std::string heard;
    client_.RunUntil([&] {
      char some[64 << 10];
      boost::system::error_code error;
      socket_->non_blocking(true, error);
      const size_t got = socket_->read_some(asio::buffer(some), error);
      heard.append(some, got);
      return heard.find(bytes) != std::string::npos;
    });
    return heard;
  }
  std::string WhyOver(const std::string& bytes) {
    Say(bytes);
    return client_.WhyOver();
  }

  asio::io_context io_;
  tcp::acceptor acceptor_;
  std::unique_ptr<tcp::socket> socket_;
  Client client_;
};

TEST_F(ScriptTest, AMessageMayComeInAnyFramesPaddedAndByteByByte) {
  const std::string message = Prefixed("hello") + Prefixed("") + Prefixed("there");
  std::string bytes = FrameOf(4, 0, 0, "") + FrameOf(1, 4, 1, "?");
  bytes += FrameOf(0, 0, 1, message.substr(0, 3));
  bytes += FrameOf(0, 8, 1, std::string("\2", 1) + message.substr(3, 6) + "..");
  bytes += FrameOf(99, 1, 7, "unknown") + FrameOf(0, 0, 1, message.substr(9));
  for (const char byte : bytes) {
    Say(std::string(1, byte));
    client_.io().poll();
  }
  client_.RunUntil([&] { return client_.messages.size() >= 3; });
  EXPECT_THAT(client_.messages, ElementsAre("hello", "", "there"));
}

TEST_F(ScriptTest, PingsAndSettingsAreAcknowledged) {
  Say(FrameOf(6, 0, 0, "12345678"));
  HearUntil(FrameOf(6, 1, 0, "12345678"));
  Say(FrameOf(4, 0, 0, std::string("\0\4\0\1\0\0", 6)));
  HearUntil(FrameOf(4, 1, 0, ""));
}

TEST_F(ScriptTest, NothingIsSentBeyondTheWindows) {
  client_.stream().Send(std::string(70'000, 'a'));
  const size_t beyond = 70'005 - 65'535;
  EXPECT_GE(client_.stream().unsent(), beyond);
  Say(FrameOf(8, 0, 1, std::string("\0\1\0\0", 4)));  // of the stream alone
  Say(FrameOf(6, 0, 0, "12345678"));
  HearUntil(FrameOf(6, 1, 0, "12345678"));
  EXPECT_EQ(client_.stream().unsent(), beyond);
  Say(FrameOf(8, 0, 0, std::string("\0\1\0\0", 4)));
  HearUntil(std::string(beyond, 'a'));
  EXPECT_EQ(client_.stream().unsent(), 0u);
}

TEST_F(ScriptTest, APeerThatLeavesIsKeptUntilItEnds) {
  Say(FrameOf(7, 0, 0, std::string(8, '\0')) + FrameOf(0, 0, 1, Prefixed("last")));
  client_.RunUntil([&] { return !client_.messages.empty(); });
  EXPECT_TRUE(client_.stream().is_leaving());
  EXPECT_THAT(client_.over, IsEmpty());
  socket_->shutdown(tcp::socket::shutdown_send);
  EXPECT_THAT(client_.WhyOver(), HasSubstr("closed"));
}

TEST_F(ScriptTest, AFrameThatIsTooLargeEndsIt) {
  EXPECT_THAT(WhyOver(FrameOf(0, 0, 1, std::string(16385, 'x'))), HasSubstr("16385 bytes"));
}
TEST_F(ScriptTest, PaddingBeyondTheFrameEndsIt) {
  EXPECT_THAT(WhyOver(FrameOf(0, 8, 1, std::string("\7", 1) + "short")), HasSubstr("padding"));
}
TEST_F(ScriptTest, ACompressedMessageEndsIt) {
  EXPECT_THAT(WhyOver(FrameOf(0, 0, 1, std::string("\1\0\0\0\0", 5))), HasSubstr("compressed"));
}
TEST_F(ScriptTest, AMessageThatIsTooLargeEndsIt) {
  EXPECT_THAT(WhyOver(FrameOf(0, 0, 1, std::string("\0\x7f\xff\xff\xff", 5))),
              HasSubstr("too large"));
}
TEST_F(ScriptTest, AResetEndsIt) {
  EXPECT_THAT(WhyOver(FrameOf(3, 0, 1, std::string(4, '\0'))), HasSubstr("reset"));
}
TEST_F(ScriptTest, MalformedSettingsEndIt) {
  EXPECT_THAT(WhyOver(FrameOf(4, 0, 0, "12345")), HasSubstr("SETTINGS"));
}
TEST_F(ScriptTest, AMalformedWindowEndsIt) {
  EXPECT_THAT(WhyOver(FrameOf(8, 0, 0, "123")), HasSubstr("WINDOW_UPDATE"));
}

}  // namespace
}  // namespace kvatlas
