// Questions to a peer that is silent, goes, comes back, or takes no more.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "frontend/cluster_client/grpc_questions.h"
#include "frontend/cluster_client/peer_questions.h"
#include "frontend/cluster_client/questions_test_util.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/base/mutex.h"
#include "indexer/net/answer_stream.h"
#include "indexer/net/grpc_server.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "tools/testing/servers/reserved_test_ports.h"

namespace kvatlas {
namespace {

using Questions = GrpcQuestions<CellQuestions>;

constexpr Duration kLong = std::chrono::minutes(5);

// Says that it takes questions, and answers none. It reads at most `reads` messages of a stream.
class Silent : public CountingPeer {
 public:
  explicit Silent(int reads = 1 << 30, uint16_t port = 0)
      : CountingPeer(Echo, port), reads_(reads) {}
  ~Silent() override { server().Stop(Duration(0)); }

  int read() const { return read_; }

 private:
  class Reactor : public CountingPeer::StreamReactor {
   public:
    explicit Reactor(Silent* peer) : peer_(peer) {
      StartWrite(&taking_);
      StartRead(&bounded_);
    }
    void OnReadDone(bool ok) override {
      if (!ok) return;
      ++peer_->read_;
      if (++read_ < peer_->reads_) StartRead(&bounded_);
    }
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }

   private:
    Silent* const peer_;
    const v1::FindCellsStreamResponse taking_;
    v1::FindCellsStreamRequest request_;
    CountingPeer::Streams::Incoming bounded_{.into = &request_};
    int read_ = 0;
  };
  StreamReactor* OpenStream() override { return new Reactor(this); }

  const int reads_;
  std::atomic<int> read_{0};
};

// From then on questions go over a stream.
void AskUntilRead(Questions* questions, const Silent& peer) {
  while (peer.read() == 0) {
    CellAnswers answers;
    Ask(questions, peer.address(), 1, &answers, std::chrono::milliseconds(20));
    answers.Wait();
  }
}

TEST(GrpcQuestionsTest, EachHasItsOwnDeadlineWhateverWasAskedBefore) {
  Silent peer;
  CellAnswers late, later;
  Questions questions(/*streams=*/true);
  AskUntilRead(&questions, peer);
  Ask(&questions, peer.address(), 1, &later);
  for (int i = 0; i < 50; ++i)
    Ask(&questions, peer.address(), 1, &late, std::chrono::milliseconds(50 - i));
  for (const auto& answer : late.Wait())
    EXPECT_TRUE(absl::IsDeadlineExceeded(answer.status())) << answer.status();
  peer.server().Stop(Duration(0));
  EXPECT_FALSE(absl::IsDeadlineExceeded(later.Wait()[0].status()));
}

TEST(GrpcQuestionsTest, WhoWaitsIsToldWhenThePeerGoesAndAsksAgainWhenItIsBack) {
  ReservedTestPorts held;
  const Address at = held.HoldAny();
  auto peer = std::make_unique<Silent>(/*reads=*/1 << 30, at.port);
  const std::string address = peer->address();
  Questions questions(/*streams=*/true);
  AskUntilRead(&questions, *peer);
  CellAnswers pending;
  for (int i = 0; i < 100; ++i) Ask(&questions, address, 1, &pending);
  peer = nullptr;
  for (const auto& answer : pending.Wait()) EXPECT_FALSE(answer.ok());
  CellAnswers gone;
  Ask(&questions, address, 1, &gone);
  EXPECT_TRUE(absl::IsUnavailable(gone.Wait()[0].status()));
  CountingPeer back(Echo, at.port);
  for (bool answered = false; !answered;) {
    CellAnswers answers;
    Ask(&questions, address, 7, &answers);
    answered = answers.Wait()[0].ok();
  }
}

TEST(GrpcQuestionsTest, AStreamIsOpenedAgainWhenItsPeerCameBack) {
  ReservedTestPorts held;
  const Address at = held.HoldAny();
  auto peer = std::make_unique<CountingPeer>(Echo, at.port);
  Questions questions(/*streams=*/true);
  AskUntilStreamed(&questions, peer.get());
  peer->streams().Stop();
  peer = nullptr;
  CountingPeer back(Echo, at.port);
  AskUntilStreamed(&questions, &back);
  EXPECT_EQ(back.opened(), 1);
}

// The states that `kvatlas doctor` reads are true of an idle fleet too.
TEST(GrpcQuestionsTest, APeerThatCameBackIsConnectedBeforeItIsAskedAgain) {
  ReservedTestPorts held;
  const Address at = held.HoldAny();
  auto peer = std::make_unique<CountingPeer>(Echo, at.port);
  Questions questions(/*streams=*/true);
  AskUntilStreamed(&questions, peer.get());
  peer = nullptr;
  CellAnswers gone;
  Ask(&questions, at.ToString(), 1, &gone);
  gone.Wait();
  const auto state = [&] { return questions.States()[0].state; };
  EXPECT_EQ(state(), "unreachable");
  questions.LookForTheLost();
  EXPECT_EQ(state(), "unreachable");
  CountingPeer back(Echo, at.port);
  EXPECT_TRUE(Await(
      [&] {
        questions.LookForTheLost();
        return state() == "connected";
      },
      kLong));
}

TEST(GrpcQuestionsTest, WhoWaitsWhenTheQuestionsEndIsTold) {
  Silent peer;
  CellAnswers pending;
  {
    Questions questions(/*streams=*/true);
    AskUntilRead(&questions, peer);
    for (int i = 0; i < 10; ++i) Ask(&questions, peer.address(), 1, &pending);
  }
  for (const auto& answer : pending.Wait())
    EXPECT_TRUE(absl::IsCancelled(answer.status())) << answer.status();
}

TEST(GrpcQuestionsTest, APeerThatReadsNothingIsAskedByCallsWhenTooMuchIsUnread) {
  Silent peer(/*reads=*/1);
  CellAnswers answers;
  Questions questions(/*streams=*/true);
  AskUntilRead(&questions, peer);
  const int before = peer.calls();
  const std::string much(20'000, 'x');
  while (peer.calls() == before) {
    questions.Ask(
        peer.address(), much.size(),
        [&](v1::FindCellsRequest* request) { request->set_schedule(much); }, kLong, answers.Take());
  }
  EXPECT_LE(peer.opened(), static_cast<int>(kStreamsMax));
}

// Sixteen answers of 2 MB are more than a message may have.
TEST(GrpcQuestionsTest, LargeAnswersOfOneRequestComeInSeveralResponses) {
  const std::string large(2 << 20, 'x');
  CountingPeer peer([&](const v1::FindCellsRequest& request, v1::FindCellsResponse* response) {
    response->set_block_size(request.blocks());
    response->add_cells()->set_address(large);
    return absl::OkStatus();
  });
  Questions questions(/*streams=*/true);
  AskUntilStreamed(&questions, &peer);
  CellAnswers answers;
  for (uint32_t i = 1; i <= 64; ++i) Ask(&questions, peer.address(), i, &answers);
  for (const auto& answer : answers.Wait()) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->cells(0).address().size(), large.size());
  }
}

TEST(GrpcQuestionsTest, WhatWasAnsweredBeforeAServerStoppedGoesOut) {
  std::atomic<int> asked{0};
  CountingPeer peer([&](const v1::FindCellsRequest&, v1::FindCellsResponse* response) {
    response->add_cells()->set_address(std::string(4 << 20, 'x'));
    ++asked;
    return absl::OkStatus();
  });
  const auto stub = v1::Hierarchy::NewStub(MakeChannel(peer.address()));
  grpc::ClientContext context;
  const auto stream = stub->FindCellsStream(&context);
  for (int i = 0; i < 3; ++i) {
    v1::FindCellsStreamRequest request;
    request.add_questions();
    ASSERT_TRUE(stream->Write(request));
  }
  // The first is being written, the second is queued.
  ASSERT_TRUE(Await([&] { return asked >= 3; }, std::chrono::seconds(60)));
  peer.streams().Stop();
  v1::FindCellsStreamResponse response;
  int answered = 0;
  while (stream->Read(&response)) answered += response.answers_size();
  EXPECT_GE(answered, 2);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(GrpcQuestionsTest, ARequestOfTooManyQuestionsEndsItsStreamAlone) {
  CountingPeer peer;
  const auto stub = v1::Hierarchy::NewStub(MakeChannel(peer.address()));
  v1::FindCellsStreamRequest request;
  for (int i = 0; i < kQuestionsMax; ++i) request.add_questions();
  for (const bool too_many : {false, true}) {
    if (too_many) request.add_questions();
    grpc::ClientContext context;
    const auto stream = stub->FindCellsStream(&context);
    ASSERT_TRUE(stream->Write(request));
    stream->WritesDone();
    v1::FindCellsStreamResponse response;
    int answered = 0;
    while (stream->Read(&response)) answered += response.answers_size();
    EXPECT_EQ(answered, too_many ? 0 : kQuestionsMax);
    EXPECT_EQ(stream->Finish().error_code(),
              too_many ? grpc::StatusCode::RESOURCE_EXHAUSTED : grpc::StatusCode::OK);
  }
}

TEST(GrpcQuestionsTest, AServerThatStopsDoesNotWaitForStreams) {
  CountingPeer peer;
  Questions questions(/*streams=*/true);
  AskUntilStreamed(&questions, &peer);
  EXPECT_EQ(peer.open(), 1u);
  peer.streams().Stop();
  peer.server().Stop(std::chrono::hours(24));
  EXPECT_EQ(peer.open(), 0u);
}

}  // namespace
}  // namespace kvatlas
