// Real servers and channels over loopback. Messages are raw bytes, so that no .proto is needed: the
// health request is `{1: service}`, its answer `{1: 1}` for SERVING and `{1: 2}` for NOT_SERVING.

#include "indexer/net/grpc_server.h"
#include "indexer/base/await.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/method_handler.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <thread>

#include "indexer/base/address.h"
#include "indexer/net/grpc_channel.h"
#include "tools/testing/servers/reserved_test_ports.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;

const Address kAnyPort{"127.0.0.1", 0};
constexpr std::chrono::minutes kPatience(1);  // never reached unless something is broken

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string ToBytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return "dump failed";
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

struct Reply {
  grpc::Status status;
  std::string bytes;
};

// One unary call that waits for the connection.
Reply Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
           const std::string& request, bool wait_for_ready = true,
           grpc_compression_algorithm compression = GRPC_COMPRESS_NONE) {
  grpc::ClientContext context;
  if (compression != GRPC_COMPRESS_NONE) context.set_compression_algorithm(compression);
  context.set_wait_for_ready(wait_for_ready);
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(channel);
  const auto call = stub.PrepareUnaryCall(&context, method, ToBuffer(request), &queue);
  call->StartCall();
  Reply reply;
  grpc::ByteBuffer response;
  call->Finish(&response, &reply.status, nullptr);
  void* tag;
  bool ok;
  queue.Next(&tag, &ok);
  if (reply.status.ok()) reply.bytes = ToBytes(response);
  return reply;
}

Reply CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service = "",
                  bool wait_for_ready = true) {
  std::string request;
  if (!service.empty()) request = '\x0a' + std::string(1, char(service.size())) + service;
  return Call(channel, "/grpc.health.v1.Health/Check", request, wait_for_ready);
}

std::string HealthOf(const std::shared_ptr<grpc::Channel>& channel,
                     const std::string& service = "") {
  const Reply reply = CheckHealth(channel, service);
  if (!reply.status.ok()) return reply.status.error_message();
  if (reply.bytes == "\x08\x01") return "serving";
  return reply.bytes == "\x08\x02" ? "not serving" : "what? " + reply.bytes;
}

// /kvatlas.test.Echo/Echo runs a function over raw bytes, in a thread of gRPC's.
class EchoService : public grpc::Service {
 public:
  using Function = std::function<grpc::Status(grpc::ServerContext*, const std::string&)>;

  explicit EchoService(Function function = [](auto*, auto&) { return grpc::Status::OK; })
      : function_(std::move(function)) {
    using Handler =
        grpc::internal::RpcMethodHandler<EchoService, grpc::ByteBuffer, grpc::ByteBuffer>;
    AddMethod(new grpc::internal::RpcServiceMethod(
        "/kvatlas.test.Echo/Echo", grpc::internal::RpcMethod::NORMAL_RPC,
        new Handler(
            [](EchoService* self, grpc::ServerContext* context, const grpc::ByteBuffer* request,
               grpc::ByteBuffer* response) {
              *response = *request;
              return self->function_(context, ToBytes(*request));
            },
            this)));
  }

 private:
  const Function function_;
};

Reply Echo(const std::shared_ptr<grpc::Channel>& channel, const std::string& bytes) {
  return Call(channel, "/kvatlas.test.Echo/Echo", bytes);
}

std::shared_ptr<grpc::Channel> ChannelTo(const GrpcServer& server) {
  return MakeChannel(server.address().ToString(), {.own_connection = true});
}

TEST(GrpcServerTest, ServesOnAFreePort) {
  EchoService echo;
  GrpcServer server({.listen = kAnyPort});
  server.Register(&echo);
  ASSERT_TRUE(server.Start().ok());
  EXPECT_EQ(server.address().host, "127.0.0.1");
  EXPECT_NE(server.address().port, 0);
  const Reply reply = Echo(ChannelTo(server), "hello");
  EXPECT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.bytes, "hello");
}

TEST(GrpcServerTest, HealthFollowsTheProcessForEveryName) {
  EchoService echo;
  GrpcServer server({.listen = kAnyPort});
  server.Register(&echo, "kvatlas.test.Echo");
  ASSERT_TRUE(server.Start().ok());
  const auto channel = ChannelTo(server);
  for (const std::string name : {"", "readiness", "kvatlas.test.Echo"}) {
    server.SetHealth(Health::kLoading);
    EXPECT_EQ(HealthOf(channel, name), "not serving");
    EXPECT_EQ(HealthOf(channel, "liveness"), "serving");
    server.SetHealth(Health::kServing);
    EXPECT_EQ(HealthOf(channel, name), "serving");
  }
  server.SetHealth(Health::kStopping);
  server.SetHealth(Health::kServing);  // too late
  for (const std::string name : {"", "readiness", "kvatlas.test.Echo"})
    EXPECT_EQ(HealthOf(channel, name), "not serving");
  EXPECT_EQ(HealthOf(channel, "liveness"), "serving");
  EXPECT_EQ(CheckHealth(channel, "kvatlas.test.Other").status.error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST(GrpcServerTest, HealthIsNotServingAfterStart) {
  GrpcServer server({.listen = kAnyPort});
  ASSERT_TRUE(server.Start().ok());
  EXPECT_EQ(HealthOf(ChannelTo(server)), "not serving");
}

// By itself gRPC would share it with the other one (findings/grpc_two_servers_one_port.sh).
TEST(GrpcServerTest, PortInUseIsNamed) {
  GrpcServer first({.listen = kAnyPort});
  ASSERT_TRUE(first.Start().ok());
  GrpcServer second({.listen = first.address()});
  const absl::Status status = second.Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(first.address().ToString()));
  second.SetHealth(Health::kServing);  // harmless
  second.Stop(Duration::zero());
}

TEST(GrpcServerTest, AddressThatIsNotOursIsNamed) {
  GrpcServer server({.listen = {"192.0.2.1", 0}});
  EXPECT_THAT(std::string(server.Start().message()), HasSubstr("192.0.2.1:0"));
}

// Questions to a server's reflection on one stream, and the end of that.
struct Reflected {
  std::vector<std::string> answers;
  grpc::Status end;
};
Reflected Reflect(const GrpcServer& server, const std::vector<std::string>& questions,
                  const std::string& version = "v1alpha") {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(ChannelTo(server));
  const auto call = stub.PrepareCall(
      &context, "/grpc.reflection." + version + ".ServerReflection/ServerReflectionInfo", &queue);
  void* tag;
  bool ok = false;
  const auto next = [&] { return queue.Next(&tag, &ok) && ok; };
  call->StartCall(nullptr);
  EXPECT_TRUE(next());
  Reflected reflected;
  for (const std::string& question : questions) {
    call->Write(ToBuffer(question), nullptr);
    next();
    grpc::ByteBuffer answer;
    call->Read(&answer, nullptr);
    if (next()) reflected.answers.push_back(ToBytes(answer));
  }
  call->WritesDone(nullptr);
  next();
  call->Finish(&reflected.end, nullptr);
  next();
  return reflected;
}
// A field of a ServerReflectionRequest.
std::string Question(int field, const std::string& text) {
  return std::string{static_cast<char>(field << 3 | 2), static_cast<char>(text.size())} + text;
}

TEST(GrpcServerTest, ReflectionNamesAllServices) {
  EchoService echo;
  GrpcServer server({.listen = kAnyPort});
  server.Register(&echo);
  ASSERT_TRUE(server.Start().ok());
  for (const char* version : {"v1", "v1alpha"}) {
    const Reflected list = Reflect(server, {Question(7, "")}, version);
    EXPECT_TRUE(list.end.ok()) << list.end.error_message();
    ASSERT_EQ(list.answers.size(), 1u);
    for (const char* name :
         {"kvatlas.test.Echo", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"})
      EXPECT_THAT(list.answers[0], HasSubstr(name));
  }
}

TEST(GrpcServerTest, ReflectionHasFilesWithWhatTheyImportOnce) {
  GrpcServer server({.listen = kAnyPort});
  ASSERT_TRUE(server.Start().ok());
  const std::string file = "google/protobuf/descriptor.proto";
  const Reflected told =
      Reflect(server, {Question(3, file), Question(4, "google.protobuf.FileDescriptorSet"),
                       Question(4, "kvatlas.Nothing"), Question(6, "google.protobuf.FieldOptions"),
                       Question(5, ""), "", "\x08\x01"});
  EXPECT_TRUE(told.end.ok());
  ASSERT_EQ(told.answers.size(), 7u);
  EXPECT_THAT(told.answers[0], HasSubstr("FileDescriptorProto"));
  EXPECT_THAT(told.answers[1], HasSubstr("FileDescriptorProto"));
  EXPECT_THAT(told.answers[2], HasSubstr("not found: kvatlas.Nothing"));
  EXPECT_THAT(told.answers[3], Not(HasSubstr("not found")));
  EXPECT_THAT(told.answers[4], HasSubstr("not found"));
  EXPECT_THAT(told.answers[5], HasSubstr("no question"));
  EXPECT_THAT(told.answers[6], HasSubstr("no question"));
}

// gRPC's own would take thirty times these bytes.
TEST(GrpcServerTest, ReflectionReadsNoLongQuestions) {
  GrpcServer server({.listen = kAnyPort});
  ASSERT_TRUE(server.Start().ok());
  std::string unknown;
  while (unknown.size() <= 4096) unknown += std::string("\x78\x00", 2);
  const Reflected longer = Reflect(server, {unknown});
  EXPECT_TRUE(longer.answers.empty());
  EXPECT_EQ(longer.end.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const Reflected malformed = Reflect(server, {std::string("\x3a\x05", 2)});
  EXPECT_EQ(malformed.end.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(GrpcServerTest, MessageAboveTheBoundFailsItsCall) {
  EchoService echo;
  GrpcServer server({.listen = kAnyPort, .message_bytes_max = 1000});
  server.Register(&echo);
  ASSERT_TRUE(server.Start().ok());
  const auto channel = ChannelTo(server);
  EXPECT_TRUE(Echo(channel, std::string(1000, 'x')).status.ok());
  EXPECT_EQ(Echo(channel, std::string(1001, 'x')).status.error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Echo(channel, "x").status.ok());
}

// A small message may stand for any number of bytes.
TEST(GrpcServerTest, ACompressedMessageIsNotInflated) {
  std::atomic<int> runs{0};
  EchoService echo([&](auto*, auto&) {
    ++runs;
    return grpc::Status::OK;
  });
  GrpcServer server({.listen = kAnyPort});
  server.Register(&echo);
  ASSERT_TRUE(server.Start().ok());
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    // Not ours, which would not ask for it.
    const auto channel =
        grpc::CreateChannel(server.address().ToString(), grpc::InsecureChannelCredentials());
    const Reply reply =
        Call(channel, "/kvatlas.test.Echo/Echo", std::string(10'000, '.'), true, algorithm);
    EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::UNIMPLEMENTED)
        << reply.status.error_message();
    EXPECT_THAT(reply.status.error_message(), HasSubstr("Compression")) << algorithm;
  }
  EXPECT_EQ(runs, 0);
  EXPECT_TRUE(Echo(ChannelTo(server), "plain").status.ok());
}

TEST(GrpcChannelTest, ACompressedAnswerIsNotInflated) {
  EchoService echo([&](grpc::ServerContext* context, auto&) {
    context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
    return grpc::Status::OK;
  });
  int port = 0;
  grpc::ServerBuilder builder;  // not ours
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&echo);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto channel = MakeChannel(Address{"127.0.0.1", static_cast<uint16_t>(port)}.ToString());
  const std::string bytes(10'000, '.');
  EXPECT_FALSE(Echo(channel, bytes).bytes == bytes);
}

TEST(GrpcServerTest, StopLetsRunningCallsFinish) {
  std::promise<void> entered;
  std::promise<void> released;
  EchoService echo([&](auto*, auto&) {
    entered.set_value();
    released.get_future().wait();
    return grpc::Status::OK;
  });
  GrpcServer server({.listen = kAnyPort});
  server.Register(&echo);
  ASSERT_TRUE(server.Start().ok());
  const auto channel = ChannelTo(server);
  auto reply = std::async(std::launch::async, [&] { return Echo(channel, "late"); });
  entered.get_future().wait();
  std::thread stop([&] { server.Stop(kPatience); });
  // New connections are refused once it is stopping.
  while (CheckHealth(ChannelTo(server), "", /*wait_for_ready=*/false).status.ok()) {
  }
  released.set_value();
  EXPECT_EQ(reply.get().bytes, "late");
  stop.join();
  server.Stop(kPatience);  // idempotent
}

TEST(GrpcServerTest, StopCancelsWhatIsLeft) {
  std::promise<void> entered;
  EchoService echo([&](grpc::ServerContext* context, auto&) {
    entered.set_value();
    EXPECT_TRUE(Await([&] { return context->IsCancelled(); }, std::chrono::seconds(60)));
    return grpc::Status::OK;
  });
  GrpcServer server({.listen = kAnyPort});
  server.Register(&echo);
  ASSERT_TRUE(server.Start().ok());
  const auto channel = ChannelTo(server);
  auto reply = std::async(std::launch::async, [&] { return Echo(channel, "never"); });
  entered.get_future().wait();
  server.Stop(Duration::zero());
  EXPECT_FALSE(reply.get().status.ok());
}

TEST(GrpcChannelTest, ComesBackAfterARestartOnTheSamePort) {
  ReservedTestPorts held;
  const Address address = held.HoldAny();
  auto server = std::make_unique<GrpcServer>(GrpcServerOptions{.listen = address});
  ASSERT_TRUE(server->Start().ok());
  const auto channel = MakeChannel(address.ToString());
  EXPECT_EQ(HealthOf(channel), "not serving");
  for (int restart = 0; restart < 3; ++restart) {
    server = nullptr;
    EXPECT_EQ(CheckHealth(channel, "", /*wait_for_ready=*/false).status.error_code(),
              grpc::StatusCode::UNAVAILABLE);
    server = std::make_unique<GrpcServer>(GrpcServerOptions{.listen = address});
    ASSERT_TRUE(server->Start().ok());
    server->SetHealth(Health::kServing);
    EXPECT_EQ(HealthOf(channel), "serving");
  }
}

TEST(GrpcChannelTest, TargetThatIsNotThereFailsItsCalls) {
  GrpcServer server({.listen = kAnyPort});
  ASSERT_TRUE(server.Start().ok());
  const auto channel = ChannelTo(server);
  server.Stop(Duration::zero());
  EXPECT_EQ(CheckHealth(channel, "", /*wait_for_ready=*/false).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST(GrpcChannelTest, EnvironmentProxyIsNotUsed) {
  setenv("http_proxy", "http://127.0.0.1:1", 1);
  setenv("grpc_proxy", "http://127.0.0.1:1", 1);
  GrpcServer server({.listen = kAnyPort});
  ASSERT_TRUE(server.Start().ok());
  EXPECT_EQ(HealthOf(ChannelTo(server)), "not serving");
  unsetenv("http_proxy");
  unsetenv("grpc_proxy");
}

}  // namespace
}  // namespace kvatlas
