// Questions of an I/O loop's thread, over connections of its own.

#include "frontend/cluster_client/loop_questions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "frontend/cluster_client/grpc_questions.h"
#include "frontend/cluster_client/peer_questions.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/base/mutex.h"
#include "indexer/net/answer_stream.h"
#include "indexer/net/grpc_server.h"
#include "indexer/net/io_loop.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "tools/testing/servers/reserved_test_ports.h"

namespace kvatlas {
namespace {

using Questions = GrpcQuestions<CellQuestions>;

constexpr Duration kLong = std::chrono::minutes(5);
constexpr Duration kAwait = std::chrono::seconds(60);

// A thread that runs a loop, as an HttpServer's do.
class Loop {
 public:
  Loop()
      : thread_([this] {
          loop_.Enter();
          io_.run();
        }) {}
  ~Loop() { Stop(); }

  // On its thread, and back when it has been done.
  void Do(const std::function<void()>& job) {
    std::atomic<bool> done = false;
    boost::asio::post(io_, [&] {
      job();
      done = true;
    });
    EXPECT_TRUE(Await([&] { return done.load(); }, kAwait));
  }
  void Stop() {
    if (!thread_.joinable()) return;
    Do([this] { loop_.CloseTenants(); });
    work_.reset();
    thread_.join();
  }
  std::thread::id id() const { return thread_.get_id(); }

 private:
  boost::asio::io_context io_{1};
  IoLoop loop_{&io_};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  std::thread thread_;
};

// Answers how many blocks it was asked about; not while it is held.
class Node : public v1::Hierarchy::WithCallbackMethod_FindCells<v1::Hierarchy::Service> {
 public:
  using Streams = AnswerStreams<v1::FindCellsStreamRequest, v1::FindCellsStreamResponse>;

  explicit Node(uint16_t port = 0) : server_(GrpcServerOptions{.listen = {"127.0.0.1", port}}) {
    MarkMethodCallback(1, Streams::MethodHandler([this](auto*) { return streams_.Open(); }));
    server_.Register(this);
    const absl::Status status = server_.Start();
    EXPECT_TRUE(status.ok()) << status;
  }
  ~Node() override {
    held = false;
    streams_.Stop();
    server_.Stop(Duration(0));
  }

  grpc::ServerUnaryReactor* FindCells(grpc::CallbackServerContext* context,
                                      const v1::FindCellsRequest* request,
                                      v1::FindCellsResponse* response) override {
    response->set_block_size(request->blocks());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  std::string address() const { return server_.address().ToString(); }
  Streams& streams() { return streams_; }

  std::atomic<bool> held = false;
  std::atomic<int> streamed = 0;

 private:
  Streams streams_{
      [this](const v1::FindCellsRequest& request, v1::FindCellsResponse* response) -> absl::Status {
        ++streamed;
        if (!Await([this] { return !held.load(); }, kAwait)) return absl::AbortedError("held");
        if (request.blocks() == 0) return absl::FailedPreconditionError("no blocks");
        response->set_block_size(request.blocks());
        return absl::OkStatus();
      }};
  GrpcServer server_;
};

struct Ended {
  absl::Status status;
  uint32_t blocks = 0;
  std::thread::id thread = {};
};

class LoopQuestionsTest : public testing::Test {
 protected:
  // From the loop's thread.
  std::shared_ptr<std::atomic<bool>> Ask(const std::string& address, uint32_t blocks,
                                         Duration deadline, Ended* ended) {
    auto done = std::make_shared<std::atomic<bool>>(false);
    loop_.Do([&] {
      questions_->Ask(
          address, 64, [&](v1::FindCellsRequest* request) { request->set_blocks(blocks); },
          deadline,
          [ended, done](const absl::Status& status, const v1::FindCellsResponse& response) {
            *ended = {status, response.block_size(), std::this_thread::get_id()};
            *done = true;
          });
    });
    return done;
  }
  Ended AskAndWait(const std::string& address, uint32_t blocks, Duration deadline = kLong) {
    Ended ended;
    const auto done = Ask(address, blocks, deadline, &ended);
    EXPECT_TRUE(Await([&] { return done->load(); }, kAwait));
    return ended;
  }
  // Until answers come back on the loop's thread.
  void Settle(const std::string& address) {
    EXPECT_TRUE(Await([&] { return AskAndWait(address, 1).thread == loop_.id(); }, kAwait));
  }

  std::optional<Questions> questions_{std::in_place, /*streams=*/true};
  Loop loop_;
};

TEST_F(LoopQuestionsTest, OnceItsConnectionStandsALoopIsAnsweredOnItsOwnThread) {
  Node node;
  Settle(node.address());
  const Ended ended = AskAndWait(node.address(), 7);
  EXPECT_TRUE(ended.status.ok()) << ended.status;
  EXPECT_EQ(ended.blocks, 7u);
  EXPECT_EQ(ended.thread, loop_.id());
  EXPECT_EQ(AskAndWait(node.address(), 0).status.code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(questions_->States().size(), 1u);
  EXPECT_EQ(questions_->States()[0].state, "connected");
}

TEST_F(LoopQuestionsTest, QuestionsOfOneTurnGoTogetherAndEachHasItsOwnAnswer) {
  Node node;
  Settle(node.address());
  std::atomic<int> right = 0;
  loop_.Do([&] {
    for (uint32_t i = 1; i <= 100; ++i) {
      questions_->Ask(
          node.address(), 64, [&](v1::FindCellsRequest* request) { request->set_blocks(i); }, kLong,
          [&right, i](const absl::Status& status, const v1::FindCellsResponse& response) {
            right += status.ok() && response.block_size() == i;
          });
    }
  });
  EXPECT_TRUE(Await([&] { return right == 100; }, kAwait)) << right;
}

TEST_F(LoopQuestionsTest, ALateQuestionEndsAndTheNextOneIsAnswered) {
  Node node;
  Settle(node.address());
  node.held = true;
  const Ended late = AskAndWait(node.address(), 7, std::chrono::milliseconds(5));
  EXPECT_EQ(late.status.code(), absl::StatusCode::kDeadlineExceeded);
  node.held = false;
  EXPECT_TRUE(AskAndWait(node.address(), 8).status.ok());
}

TEST_F(LoopQuestionsTest, AStreamThatEndsFailsWhatIsPendingAndIsOpenedAgain) {
  ReservedTestPorts held;
  const Address at = held.HoldAny();
  auto node = std::make_unique<Node>(at.port);
  const std::string address = node->address();
  Settle(address);
  node = nullptr;
  EXPECT_FALSE(AskAndWait(address, 7, std::chrono::seconds(1)).status.ok());
  node = std::make_unique<Node>(at.port);
  Settle(address);
}

TEST_F(LoopQuestionsTest, ALoopThatStopsEndsItsQuestions) {
  Node node;
  Settle(node.address());
  node.held = true;
  Ended ended;
  const auto done = Ask(node.address(), 7, kLong, &ended);
  loop_.Stop();
  EXPECT_TRUE(done->load());
  EXPECT_EQ(ended.status.code(), absl::StatusCode::kCancelled);
}

TEST_F(LoopQuestionsTest, TheEndOfTheQuestionsWaitsForTheirAnswers) {
  Node node;
  Settle(node.address());
  node.held = true;
  Ended ended;
  const auto done = Ask(node.address(), 7, std::chrono::milliseconds(50), &ended);
  questions_.reset();
  EXPECT_TRUE(done->load());
  EXPECT_FALSE(ended.status.ok());
  node.held = false;
  questions_.emplace(/*streams=*/true);  // of another key
  Settle(node.address());
}

TEST_F(LoopQuestionsTest, WhatIsNoHostAndPortIsAskedByGrpc) {
  Node node;
  const std::string address = "dns:///" + node.address();
  EXPECT_TRUE(AskAndWait(address, 7).status.ok());
  EXPECT_NE(AskAndWait(address, 7).thread, loop_.id());
}

}  // namespace
}  // namespace kvatlas
