// What a connection to a gRPC port sends and nothing comes of: how much of it, and what becomes of
// the connection? Frames that HTTP/2 has everybody ignore, headers and messages that do not end;
// all of it small, as the limits are.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <string_view>

#include "indexer/base/await.h"
#include "indexer/net/connection_account.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_server.h"
#include "indexer/telemetry/process_memory.h"
#include "tests/hostile/raw_socket.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(60);
constexpr uint8_t kUnknownType = 0x55;
constexpr uint8_t kHeaders = 1, kContinuation = 9, kSettings = 4;
constexpr size_t kPiece = 10'000;

std::string Ignored() { return H2Frame(kUnknownType, 0, 0, std::string(kPiece, '.')); }

// Sends so many bytes in such frames, or until the connection ends.
void SendIgnored(RawSocket& socket, size_t bytes) {
  for (size_t sent = 0; sent < bytes && socket.Send(Ignored()); sent += kPiece) {
  }
}

grpc::Status CallWith(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                      size_t bytes) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + kLong);
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  const grpc::Slice slice(std::string(bytes, '\0'));
  const auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&slice, 1), &queue);
  call->StartCall();
  grpc::Status status;
  grpc::ByteBuffer answer;
  call->Finish(&answer, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

class GrpcBytesTest : public testing::Test {
 protected:
  GrpcBytesTest() {
    const absl::Status started = server_.Start();
    EXPECT_TRUE(started.ok()) << started.ToString();
  }
  ~GrpcBytesTest() override { SetMemoryCritical(false); }

  RawSocket Connect() {
    RawSocket socket(server_.address());
    socket.Send(H2Hello());
    return socket;
  }
  // Until the server has read all that was sent before: it acknowledges settings in their turn.
  void AwaitRead(RawSocket& socket) {
    socket.Send(H2Frame(kSettings, 0, 0, ""));
    std::string answer;
    bool ended = false;
    size_t acknowledged = 0;
    // The second one: H2Hello has the first.
    while (!ended && acknowledged < 2) {
      answer += socket.ReadSome(kLong, &ended);
      acknowledged = 0;
      for (size_t at = 0; (at = answer.find(H2Acknowledge(), at)) != answer.npos; ++at)
        ++acknowledged;
    }
    EXPECT_FALSE(ended);
  }
  uint64_t Ended() const { return ConnectionsEnded(EndedFor::kBytes) - ended_before_; }
  void ExpectEnds(RawSocket& socket) {
    EXPECT_TRUE(socket.WaitEnd(kLong));
    EXPECT_TRUE(Await([&] { return Ended() == 1u; }, kLong)) << "it is counted once it is closed";
  }

  const uint64_t ended_before_ = ConnectionsEnded(EndedFor::kBytes);
  GrpcServer server_{
      {.listen = {"127.0.0.1", 0}, .message_bytes_max = 500'000, .unasked_bytes_max = 200'000}};
};

TEST_F(GrpcBytesTest, ManyBytesBeforeACallEndTheConnection) {
  RawSocket socket = Connect();
  SendIgnored(socket, 1'000'000);
  ExpectEnds(socket);
}

TEST_F(GrpcBytesTest, HeadersThatDoNotEndEndTheConnection) {
  RawSocket socket = Connect();
  const std::string field = std::string("\x10\x04name\x64", 7) + std::string(100, 'v');
  std::string fields;
  while (fields.size() < kPiece) fields += field;
  socket.Send(H2Frame(kHeaders, 0, 1, field));
  // A call began: what is sent from the next look on is held against it, four messages and a bit.
  bool ended = false;
  for (size_t sent = 0; sent < 20'000'000 && !ended; sent += fields.size()) {
    socket.Send(H2Frame(kContinuation, 0, 1, fields));
    if (sent % 200'000 < fields.size()) ended = socket.WaitEnd(std::chrono::milliseconds(100));
  }
  ExpectEnds(socket);
}

TEST_F(GrpcBytesTest, FewBytesWithoutACallEndTheConnectionWhileMemoryIsCritical) {
  RawSocket socket = Connect();
  SendIgnored(socket, 100'000);
  AwaitRead(socket);
  EXPECT_EQ(Ended(), 0u);
  SetMemoryCritical(true);
  ExpectEnds(socket);
}

TEST_F(GrpcBytesTest, ConnectionsWithCallsMaySendMuch) {
  const auto channel = MakeChannel(server_.address().ToString(), {.own_connection = true});
  for (int call = 0; call < 30; ++call) {
    // Zeros are no request: read as a whole, and refused.
    EXPECT_EQ(CallWith(channel, "/grpc.health.v1.Health/Check", 400'000).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
    // Refused while it comes.
    EXPECT_EQ(CallWith(channel, "/kvatlas.test/Nothing", 400'000).error_code(),
              grpc::StatusCode::UNIMPLEMENTED);
  }
  EXPECT_EQ(Ended(), 0u);
}

}  // namespace
}  // namespace kvatlas
