#include "frontend/cluster_client/grpc_questions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "frontend/cluster_client/peer_questions.h"
#include "frontend/cluster_client/questions_test_util.h"
#include "indexer/base/await.h"
#include "indexer/base/mutex.h"
#include "indexer/net/answer_stream.h"
#include "indexer/net/grpc_server.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"

namespace kvatlas {
namespace {

using Questions = GrpcQuestions<CellQuestions>;

constexpr Duration kLong = std::chrono::minutes(5);

TEST(GrpcQuestionsTest, TheFirstIsACallAndSoonAllGoOverOneStream) {
  CountingPeer peer;
  Questions questions(/*streams=*/true);
  AskUntilStreamed(&questions, &peer);
  const int calls = peer.calls();
  EXPECT_GE(calls, 1);
  for (uint32_t blocks = 1; blocks <= 100; ++blocks) {
    CellAnswers answers;
    Ask(&questions, peer.address(), blocks, &answers);
    const auto answer = answers.Wait()[0];
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->block_size(), blocks);
    EXPECT_EQ(answer->cells(0).address(), absl::StrCat("of ", blocks));
  }
  EXPECT_EQ(peer.calls(), calls);
  EXPECT_EQ(peer.opened(), 1);
}

TEST(GrpcQuestionsTest, EachIsAnsweredItsOwnOfThousandsAtOnce) {
  CountingPeer peer;
  Questions questions(/*streams=*/true);
  AskUntilStreamed(&questions, &peer);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      CellAnswers all;
      for (uint32_t i = 0; i < 2000; ++i) {
        const uint32_t blocks = i % 7 == 0 ? 0 : t * 10'000 + i;
        questions.Ask(
            peer.address(), 100,
            [&](v1::FindCellsRequest* request) { request->set_blocks(blocks); }, kLong,
            [&, blocks, counted = all.Take()](const absl::Status& status,
                                              const v1::FindCellsResponse& response) {
              const absl::Status expected =
                  blocks == 0 ? absl::FailedPreconditionError("no blocks") : absl::OkStatus();
              if (status != expected || response.block_size() != blocks) ++wrong;
              counted(status, response);
            });
      }
      EXPECT_EQ(all.Wait().size(), 2000u);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(peer.opened(), static_cast<int>(kStreamsMax));
  EXPECT_GT(peer.streamed(), 4000);
}

TEST(GrpcQuestionsTest, WithoutStreamsAndOverTheBoundAllAreCalls) {
  CountingPeer peer;
  Questions calls(/*streams=*/false);
  for (int i = 0; i < 20; ++i) {
    CellAnswers answers;
    Ask(&calls, peer.address(), 5, &answers);
    EXPECT_TRUE(answers.Wait()[0].ok());
  }
  EXPECT_EQ(peer.opened(), 0);
  Questions questions(/*streams=*/true);
  AskUntilStreamed(&questions, &peer);
  const int streamed = peer.streamed();
  CellAnswers answers;
  questions.Ask(
      peer.address(), kStreamedBytesMax + 1,
      [](v1::FindCellsRequest* request) { request->set_blocks(9); }, kLong, answers.Take());
  EXPECT_EQ(answers.Wait()[0]->block_size(), 9u);
  EXPECT_EQ(peer.streamed(), streamed);
}

// A peer of before there were streams.
TEST(GrpcQuestionsTest, APeerWithoutTheMethodIsAskedByCallsAndOnceForAStream) {
  class Old : public v1::Hierarchy::WithCallbackMethod_FindCells<v1::Hierarchy::Service> {
   public:
    grpc::ServerUnaryReactor* FindCells(grpc::CallbackServerContext* context,
                                        const v1::FindCellsRequest* request,
                                        v1::FindCellsResponse* response) override {
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(ToGrpcStatus(Echo(*request, response)));
      return reactor;
    }
    grpc::Status FindCellsStream(grpc::ServerContext*,
                                 grpc::ServerReaderWriter<v1::FindCellsStreamResponse,
                                                          v1::FindCellsStreamRequest>*) override {
      ++opened;
      return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
    }
    std::atomic<int> opened{0};
  };
  Old old;
  GrpcServer server({.listen = {"127.0.0.1", 0}});
  server.Register(&old);
  ASSERT_TRUE(server.Start().ok());
  {
    Questions questions(/*streams=*/true);
    for (uint32_t i = 1; i < 200; ++i) {
      CellAnswers answers;
      Ask(&questions, server.address().ToString(), i, &answers);
      const auto answer = answers.Wait()[0];
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_EQ(answer->block_size(), i);
    }
  }
  EXPECT_EQ(old.opened, 1);
  server.Stop(Duration(0));
}

}  // namespace
}  // namespace kvatlas
