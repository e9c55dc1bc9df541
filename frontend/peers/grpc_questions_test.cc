#include "frontend/peers/grpc_questions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "frontend/peers/peer_questions.h"
#include "indexer/base/await.h"
#include "indexer/base/mutex.h"
#include "indexer/service/answer_stream.h"
#include "indexer/service/grpc_server.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"

namespace kvatlas {
namespace {

using Streams = AnswerStreams<v1::FindCellsStreamRequest, v1::FindCellsStreamResponse>;
using StreamReactor =
    grpc::ServerBidiReactor<v1::FindCellsStreamRequest, v1::FindCellsStreamResponse>;

using Questions = GrpcQuestions<CellQuestions>;

constexpr Duration kLong = std::chrono::minutes(5);

// Answers how many blocks it was asked about, in a cell named by the schedule.
absl::Status Echo(const v1::FindCellsRequest& request, v1::FindCellsResponse* response) {
  if (request.blocks() == 0) return absl::FailedPreconditionError("no blocks");
  response->set_block_size(request.blocks());
  response->add_cells()->set_address(request.schedule());
  return absl::OkStatus();
}

// A peer with calls and streams, which counts both.
class Peer : public v1::Hierarchy::WithCallbackMethod_FindCells<
                 v1::Hierarchy::WithCallbackMethod_FindCellsStream<v1::Hierarchy::Service>> {
 public:
  explicit Peer(Streams::Handler handler = Echo, uint16_t port = 0)
      : handler_(std::move(handler)),
        streams_([this](const v1::FindCellsRequest& request, v1::FindCellsResponse* response) {
          ++streamed_;
          return handler_(request, response);
        }),
        server_(GrpcServerOptions{.listen = {"127.0.0.1", port}}) {
    server_.Register(this);
    const absl::Status status = server_.Start();
    EXPECT_TRUE(status.ok()) << status;
  }
  ~Peer() override { server_.Stop(Duration(0)); }

  grpc::ServerUnaryReactor* FindCells(grpc::CallbackServerContext* context,
                                      const v1::FindCellsRequest* request,
                                      v1::FindCellsResponse* response) override {
    ++calls_;
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(Echo(*request, response)));
    return reactor;
  }
  StreamReactor* FindCellsStream(grpc::CallbackServerContext*) override {
    ++opened_;
    return OpenStream();
  }

  std::string address() const { return server_.address().ToString(); }
  uint16_t port() const { return server_.address().port; }
  int calls() const { return calls_; }
  int opened() const { return opened_; }
  int streamed() const { return streamed_; }
  size_t open() const { return streams_.open(); }
  Streams& streams() { return streams_; }
  GrpcServer& server() { return server_; }

 protected:
  virtual StreamReactor* OpenStream() { return streams_.Open(); }

 private:
  const Streams::Handler handler_;
  std::atomic<int> calls_{0};
  std::atomic<int> opened_{0};
  std::atomic<int> streamed_{0};
  Streams streams_;
  GrpcServer server_;
};

// Answers, as they come.
class Answers {
 public:
  Questions::Callback Take() {
    {
      MutexLock lock(&mutex_);
      ++asked_;
    }
    return [this](const absl::Status& status, const v1::FindCellsResponse& response) {
      MutexLock lock(&mutex_);
      if (status.ok()) {
        answers_.push_back(response);
      } else {
        answers_.push_back(status);
      }
      changed_.SignalAll();
    };
  }
  // As many as were asked for.
  std::vector<absl::StatusOr<v1::FindCellsResponse>> Wait() {
    MutexLock lock(&mutex_);
    while (answers_.size() < asked_) changed_.Wait(&mutex_);
    asked_ = 0;
    return std::exchange(answers_, {});
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  size_t asked_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<absl::StatusOr<v1::FindCellsResponse>> answers_ ABSL_GUARDED_BY(mutex_);
};

void Ask(Questions* questions, const std::string& address, uint32_t blocks, Answers* answers,
         Duration deadline = kLong) {
  questions->Ask(
      address, /*bytes=*/100,
      [&](v1::FindCellsRequest* request) {
        request->set_blocks(blocks);
        request->set_schedule(absl::StrCat("of ", blocks));
      },
      deadline, answers->Take());
}

// Asks until a question has gone over a stream.
void AskUntilStreamed(Questions* questions, Peer* peer) {
  const int before = peer->streamed();
  while (peer->streamed() == before) {
    Answers answers;
    Ask(questions, peer->address(), 1, &answers);
    ASSERT_EQ(answers.Wait().size(), 1u);
  }
}

TEST(GrpcQuestionsTest, TheFirstIsACallAndSoonAllGoOverOneStream) {
  Peer peer;
  Questions questions(/*streams=*/true);
  AskUntilStreamed(&questions, &peer);
  const int calls = peer.calls();
  EXPECT_GE(calls, 1);
  for (uint32_t blocks = 1; blocks <= 100; ++blocks) {
    Answers answers;
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
  Peer peer;
  Questions questions(/*streams=*/true);
  AskUntilStreamed(&questions, &peer);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Answers all;
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
  Peer peer;
  Questions calls(/*streams=*/false);
  for (int i = 0; i < 20; ++i) {
    Answers answers;
    Ask(&calls, peer.address(), 5, &answers);
    EXPECT_TRUE(answers.Wait()[0].ok());
  }
  EXPECT_EQ(peer.opened(), 0);
  Questions questions(/*streams=*/true);
  AskUntilStreamed(&questions, &peer);
  const int streamed = peer.streamed();
  Answers answers;
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
      Answers answers;
      Ask(&questions, server.address().ToString(), i, &answers);
      const auto answer = answers.Wait()[0];
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_EQ(answer->block_size(), i);
    }
  }
  EXPECT_EQ(old.opened, 1);
  server.Stop(Duration(0));
}

// Says that it takes questions, and answers none. Of a stream it reads so many messages.
class Silent : public Peer {
 public:
  explicit Silent(int reads = 1 << 30) : reads_(reads) {}
  ~Silent() override { server().Stop(Duration(0)); }

  int read() const { return read_; }

 private:
  class Reactor : public StreamReactor {
   public:
    explicit Reactor(Silent* peer) : peer_(peer) {
      StartWrite(&taking_);
      StartRead(&request_);
    }
    void OnReadDone(bool ok) override {
      if (!ok) return;
      ++peer_->read_;
      if (++read_ < peer_->reads_) StartRead(&request_);
    }
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }

   private:
    Silent* const peer_;
    const v1::FindCellsStreamResponse taking_;
    v1::FindCellsStreamRequest request_;
    int read_ = 0;
  };
  StreamReactor* OpenStream() override { return new Reactor(this); }

  const int reads_;
  std::atomic<int> read_{0};
};

// From then on questions go over a stream.
void AskUntilRead(Questions* questions, const Silent& peer) {
  while (peer.read() == 0) {
    Answers answers;
    Ask(questions, peer.address(), 1, &answers, std::chrono::milliseconds(20));
    answers.Wait();
  }
}

TEST(GrpcQuestionsTest, EachHasItsOwnDeadlineWhateverWasAskedBefore) {
  Silent peer;
  Answers late, later;
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
  auto peer = std::make_unique<Silent>();
  const uint16_t port = peer->port();
  const std::string address = peer->address();
  Questions questions(/*streams=*/true);
  AskUntilRead(&questions, *peer);
  Answers pending;
  for (int i = 0; i < 100; ++i) Ask(&questions, address, 1, &pending);
  peer = nullptr;
  for (const auto& answer : pending.Wait()) EXPECT_FALSE(answer.ok());
  Answers gone;
  Ask(&questions, address, 1, &gone);
  EXPECT_TRUE(absl::IsUnavailable(gone.Wait()[0].status()));
  Peer back(Echo, port);
  for (bool answered = false; !answered;) {
    Answers answers;
    Ask(&questions, address, 7, &answers);
    answered = answers.Wait()[0].ok();
  }
}

TEST(GrpcQuestionsTest, AStreamIsOpenedAgainWhenItsPeerCameBack) {
  auto peer = std::make_unique<Peer>();
  const uint16_t port = peer->port();
  Questions questions(/*streams=*/true);
  AskUntilStreamed(&questions, peer.get());
  peer->streams().Stop();
  peer = nullptr;
  Peer back(Echo, port);
  AskUntilStreamed(&questions, &back);
  EXPECT_EQ(back.opened(), 1);
}

TEST(GrpcQuestionsTest, WhoWaitsWhenTheQuestionsEndIsTold) {
  Silent peer;
  Answers pending;
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
  Answers answers;
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
  Peer peer([&](const v1::FindCellsRequest& request, v1::FindCellsResponse* response) {
    response->set_block_size(request.blocks());
    response->add_cells()->set_address(large);
    return absl::OkStatus();
  });
  Questions questions(/*streams=*/true);
  AskUntilStreamed(&questions, &peer);
  Answers answers;
  for (uint32_t i = 1; i <= 64; ++i) Ask(&questions, peer.address(), i, &answers);
  for (const auto& answer : answers.Wait()) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->cells(0).address().size(), large.size());
  }
}

TEST(GrpcQuestionsTest, WhatWasAnsweredBeforeAServerStoppedGoesOut) {
  std::atomic<int> asked{0};
  Peer peer([&](const v1::FindCellsRequest&, v1::FindCellsResponse* response) {
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
  Peer peer;
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
  Peer peer;
  Questions questions(/*streams=*/true);
  AskUntilStreamed(&questions, &peer);
  EXPECT_EQ(peer.open(), 1u);
  peer.streams().Stop();
  peer.server().Stop(std::chrono::hours(24));
  EXPECT_EQ(peer.open(), 0u);
}

}  // namespace
}  // namespace kvatlas
