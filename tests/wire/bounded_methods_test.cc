// Requests that would take too much memory once they are parsed: `indexer/net/bounded_methods.h`,
// at a server with a method of each kind.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/await.h"
#include "indexer/base/mutex.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_server.h"
#include "indexer/net/message_account.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"

namespace kvatlas {
namespace {

using testing::HasSubstr;

constexpr std::chrono::seconds kLong(60);

// Groups of a number that no message has: four bytes each on the wire, and far more in memory.
std::string Groups(size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += "\xa3\x06\xa4\x06";
  return bytes;
}
// More than one message may have, and what one alone may have.
const std::string& TooMany() {
  static const std::string bytes = Groups(kParsedBytesMax / 64);
  return bytes;
}
const std::string& Large() {
  static const std::string bytes = Groups(10'000);
  return bytes;
}

// A method of each kind that reads one message. `FindCells` waits until it is let go.
class Node : public v1::Hierarchy::WithCallbackMethod_FindCells<v1::Hierarchy::Service> {
 public:
  grpc::ServerUnaryReactor* FindCells(grpc::CallbackServerContext* context,
                                      const v1::FindCellsRequest*,
                                      v1::FindCellsResponse*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    MutexLock lock(&mutex_);
    ++called_;
    waiting_.push_back(reactor);
    if (!wait_) Finish();
    return reactor;
  }
  grpc::Status Dump(grpc::ServerContext*, const v1::DumpRequest*,
                    grpc::ServerWriter<v1::DumpResponse>* writer) override {
    MutexLock lock(&mutex_);
    ++called_;
    writer->Write(v1::DumpResponse());
    return grpc::Status::OK;
  }
  grpc::Status Stats(grpc::ServerContext*, const v1::StatsRequest* request,
                     v1::StatsResponse* response) override {
    MutexLock lock(&mutex_);
    ++called_;
    charged_ = MessageAccount::OfProcess().bytes();
    response->set_cell(request->domain().model());
    return grpc::Status::OK;
  }

  void Wait(bool wait) {
    MutexLock lock(&mutex_);
    wait_ = wait;
    if (!wait) Finish();
  }
  int called() {
    MutexLock lock(&mutex_);
    return called_;
  }
  // What messages were charged while `Stats` ran.
  uint64_t charged() {
    MutexLock lock(&mutex_);
    return charged_;
  }

 private:
  void Finish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (grpc::ServerUnaryReactor* reactor : std::exchange(waiting_, {}))
      reactor->Finish(grpc::Status::OK);
  }

  Mutex mutex_;
  bool wait_ ABSL_GUARDED_BY(mutex_) = false;
  int called_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t charged_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<grpc::ServerUnaryReactor*> waiting_ ABSL_GUARDED_BY(mutex_);
};

class BoundedMethodsTest : public testing::Test {
 protected:
  BoundedMethodsTest() {
    server_.Register(&node_, "kvatlas.v1.Hierarchy");
    const absl::Status started = server_.Start();
    EXPECT_TRUE(started.ok()) << started.ToString();
    channel_ = MakeChannel(server_.address().ToString(), {.own_connection = true});
  }
  ~BoundedMethodsTest() override {
    node_.Wait(false);
    MessageAccount::OfProcess().SetBudget(uint64_t{8} << 30);
  }

  // One call with these bytes as its request, and with whatever it answers.
  class Call {
   public:
    Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
         const std::string& bytes)
        : stub_(channel) {
      context_.set_wait_for_ready(true);
      context_.set_deadline(std::chrono::system_clock::now() + kLong);
      call_ = stub_.PrepareCall(&context_, "/kvatlas.v1.Hierarchy/" + method, &queue_);
      call_->StartCall(this);
      Next();
      const grpc::Slice slice(bytes);
      call_->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), this);
      Next();
    }
    grpc::Status Finish() {
      do call_->Read(&answer_, this);
      while (Next());
      grpc::Status status;
      call_->Finish(&status, this);
      Next();
      return status;
    }

   private:
    bool Next() {
      void* tag = nullptr;
      bool ok = false;
      return queue_.Next(&tag, &ok) && ok;
    }

    grpc::GenericStub stub_;
    grpc::ClientContext context_;
    grpc::CompletionQueue queue_;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
    grpc::ByteBuffer answer_;
  };
  grpc::Status Ask(const std::string& method, const std::string& bytes) {
    return Call(channel_, method, bytes).Finish();
  }

  Node node_;
  GrpcServer server_{{.listen = {"127.0.0.1", 0}}};
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(BoundedMethodsTest, AMessageOfTooManyPartsReachesNoMethod) {
  for (const char* method : {"FindCells", "Dump", "Stats"}) {
    const grpc::Status status = Ask(method, TooMany());
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("too many parts")) << method;
  }
  EXPECT_EQ(node_.called(), 0);
  EXPECT_EQ(MessageAccount::OfProcess().bytes(), 0u);
  for (const char* method : {"FindCells", "Dump", "Stats"})
    EXPECT_TRUE(Ask(method, "").ok()) << method;
  EXPECT_EQ(node_.called(), 3);
}

TEST_F(BoundedMethodsTest, ARequestIsChargedUntilItsCallIsOver) {
  EXPECT_TRUE(Ask("Stats", Large()).ok());
  EXPECT_GT(node_.charged(), Large().size());
  EXPECT_TRUE(Await([] { return MessageAccount::OfProcess().bytes() == 0; }, kLong));
  node_.Wait(true);
  Call call(channel_, "FindCells", Large());
  EXPECT_TRUE(Await([&] { return node_.called() == 2; }, kLong));
  EXPECT_GT(MessageAccount::OfProcess().bytes(), Large().size());
  node_.Wait(false);
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_TRUE(Await([] { return MessageAccount::OfProcess().bytes() == 0; }, kLong));
}

TEST_F(BoundedMethodsTest, OfManyLargeRequestsAtOnceSomeAreRefusedAndSmallOnesAreNot) {
  MessageAccount::OfProcess().SetBudget(1);  // 16 MiB for messages
  const std::string most = Groups(150'000);
  node_.Wait(true);
  Call first(channel_, "FindCells", most);
  EXPECT_TRUE(Await([&] { return node_.called() == 1; }, kLong));
  for (const char* method : {"FindCells", "Dump", "Stats"}) {
    const grpc::Status status = Ask(method, most);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("--memory_budget")) << method;
  }
  EXPECT_TRUE(Ask("Stats", Groups(100)).ok());
  node_.Wait(false);
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(Await([] { return MessageAccount::OfProcess().bytes() == 0; }, kLong));
  EXPECT_TRUE(Ask("FindCells", most).ok());
}

TEST_F(BoundedMethodsTest, AMalformedRequestFailsAsItDidAndACallWithoutOneToo) {
  for (const char* method : {"FindCells", "Dump", "Stats"})
    EXPECT_FALSE(Ask(method, "\x0a\x05tex").ok()) << method;
  EXPECT_EQ(node_.called(), 0);
}

TEST_F(BoundedMethodsTest, AServiceMayBeServedTwice) {
  GrpcServer again({.listen = {"127.0.0.1", 0}});
  again.Register(&node_, "kvatlas.v1.Hierarchy");
  ASSERT_TRUE(again.Start().ok());
  channel_ = MakeChannel(again.address().ToString(), {.own_connection = true});
  EXPECT_TRUE(Ask("Stats", Large()).ok());
  EXPECT_GT(node_.charged(), Large().size());
}

}  // namespace
}  // namespace kvatlas
