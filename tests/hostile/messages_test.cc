// gRPC messages that take many times their bytes once they are parsed: at every method of every
// service, what do they cost, and who notices?

#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frontend/gateway/ext_proc/external_processor.pb.h"
#include "indexer/base/address.h"
#include "indexer/net/grpc_channel.h"
#include "proto/kv_indexer/v1/kv_indexer.pb.h"
#include "proto/kvatlas/v1/frontend.pb.h"
#include "proto/kvatlas/v1/hierarchy.pb.h"
#include "proto/kvatlas/v1/leaf.pb.h"
#include "proto/kvatlas/v1/sessions.pb.h"
#include "proto/kvatlas/v1/stream.pb.h"
#include "proto/kvatlas/v1/truth.pb.h"
#include "tests/hostile/siege.h"

namespace kvatlas {
namespace {

using google::protobuf::FileDescriptor;
using google::protobuf::ServiceDescriptor;

constexpr std::chrono::seconds kLong(60);
// What is sent, and what gRPC and the allocator keep of it. Parsed, one message would be more.
constexpr uint64_t kGrowthMax = uint64_t{96} << 20;

// Groups of a number that no message has: seven megabytes that would take more than a hundred.
const std::string& Groups() {
  static const std::string bytes = [] {
    std::string groups;
    while (groups.size() < 7'000'000) groups += "\xa3\x06\xa4\x06";
    return groups;
  }();
  return bytes;
}

// What becomes of a call whose first message is `bytes`.
grpc::Status Say(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                 const std::string& bytes) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + kLong);
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  grpc::GenericStub stub(channel);
  const auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  next();
  const grpc::Slice slice(bytes);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  next();
  grpc::ByteBuffer answer;
  do call->Read(&answer, nullptr);
  while (next());
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  return status;
}

void ExpectAllRefused(const Address& at, const std::vector<const FileDescriptor*>& files) {
  const auto channel = MakeChannel(at.ToString(), {.own_connection = true});
  for (const FileDescriptor* file : files) {
    for (int i = 0; i < file->service_count(); ++i) {
      const ServiceDescriptor& service = *file->service(i);
      for (int k = 0; k < service.method_count(); ++k) {
        const std::string method = "/" + service.full_name() + "/" + service.method(k)->name();
        EXPECT_EQ(Say(channel, method, Groups()).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
            << method;
      }
    }
  }
  for (const char* version : {"v1", "v1alpha"}) {
    const std::string method =
        std::string("/grpc.reflection.") + version + ".ServerReflection/ServerReflectionInfo";
    EXPECT_EQ(Say(channel, method, Groups()).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
        << method;
  }
  // gRPC's own, which keeps what it does not know as bytes: it counts in memory alone.
  EXPECT_TRUE(Say(channel, "/grpc.health.v1.Health/Check", Groups()).ok());
}

void ExpectUnharmed(Siege& siege) {
  EXPECT_LE(siege.RssPeakBytes(), siege.rss_before() + kGrowthMax);
  siege.Watch(5);
  siege.ExpectUnharmed();
}

TEST(MessagesTest, EveryMethodOfALeafRefusesMessagesOfVeryManyParts) {
  Siege siege({.program = kLeaf});
  ASSERT_TRUE(siege.ok());
  ExpectAllRefused(siege.grpc(), {v1::FindOverlapsRequest::descriptor()->file(),
                                  v1::SenderMessage::descriptor()->file(),
                                  v1::FindSessionsRequest::descriptor()->file(),
                                  kv_indexer::v1::MatchExternalKvRequest::descriptor()->file()});
  ExpectUnharmed(siege);
}

TEST(MessagesTest, EveryMethodOfANodeRefusesMessagesOfVeryManyParts) {
  Siege siege({.program = kHierarchy});
  ASSERT_TRUE(siege.ok());
  ExpectAllRefused(siege.grpc(), {v1::FindCellsRequest::descriptor()->file(),
                                  v1::SenderMessage::descriptor()->file()});
  ExpectUnharmed(siege);
}

TEST(MessagesTest, EveryMethodOfAFrontendRefusesMessagesOfVeryManyParts) {
  Siege siege({.program = kFrontend, .args = {"--ext_proc=127.0.0.1:0", "--ext_proc_tls=none"}});
  ASSERT_TRUE(siege.ok());
  ExpectAllRefused(siege.grpc(),
                   {v1::RouteRequest::descriptor()->file(), v1::Decision::descriptor()->file()});
  ExpectAllRefused(siege.Of("ext_proc"),
                   {envoy::service::ext_proc::v3::ProcessingRequest::descriptor()->file()});
  ExpectUnharmed(siege);
}

}  // namespace
}  // namespace kvatlas
