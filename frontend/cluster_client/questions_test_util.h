// A peer that counts how it is asked about cells, and those that ask it.

#ifndef KVATLAS_FRONTEND_CLUSTER_CLIENT_QUESTIONS_TEST_UTIL_H_
#define KVATLAS_FRONTEND_CLUSTER_CLIENT_QUESTIONS_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "frontend/cluster_client/grpc_questions.h"
#include "frontend/cluster_client/peer_questions.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/net/answer_stream.h"
#include "indexer/net/grpc_server.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"

namespace kvatlas {

// CellAnswers how many blocks it was asked about, in a cell named by the schedule.
inline absl::Status Echo(const v1::FindCellsRequest& request, v1::FindCellsResponse* response) {
  if (request.blocks() == 0) return absl::FailedPreconditionError("no blocks");
  response->set_block_size(request.blocks());
  response->add_cells()->set_address(request.schedule());
  return absl::OkStatus();
}

// A peer with calls and streams, which counts both.
class CountingPeer : public v1::Hierarchy::WithCallbackMethod_FindCells<v1::Hierarchy::Service> {
 public:
  using Streams = AnswerStreams<v1::FindCellsStreamRequest, v1::FindCellsStreamResponse>;
  using StreamReactor = Streams::Reactor;

  explicit CountingPeer(Streams::Handler handler = Echo, uint16_t port = 0)
      : handler_(std::move(handler)),
        streams_([this](const v1::FindCellsRequest& request, v1::FindCellsResponse* response) {
          ++streamed_;
          return handler_(request, response);
        }),
        server_(GrpcServerOptions{.listen = {"127.0.0.1", port}}) {
    MarkMethodCallback(1, Streams::MethodHandler([this](auto*) {
                         ++opened_;
                         return OpenStream();
                       }));
    server_.Register(this);
    const absl::Status status = server_.Start();
    EXPECT_TRUE(status.ok()) << status;
  }
  ~CountingPeer() override { server_.Stop(Duration(0)); }

  grpc::ServerUnaryReactor* FindCells(grpc::CallbackServerContext* context,
                                      const v1::FindCellsRequest* request,
                                      v1::FindCellsResponse* response) override {
    ++calls_;
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(Echo(*request, response)));
    return reactor;
  }

  std::string address() const { return server_.address().ToString(); }
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

// CellAnswers, as they come.
class CellAnswers {
 public:
  GrpcQuestions<CellQuestions>::Callback Take() {
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

inline void Ask(GrpcQuestions<CellQuestions>* questions, const std::string& address,
                uint32_t blocks, CellAnswers* answers,
                Duration deadline = std::chrono::minutes(5)) {
  questions->Ask(
      address, /*bytes=*/100,
      [&](v1::FindCellsRequest* request) {
        request->set_blocks(blocks);
        request->set_schedule(absl::StrCat("of ", blocks));
      },
      deadline, answers->Take());
}

// Asks until a question has gone over a stream.
inline void AskUntilStreamed(GrpcQuestions<CellQuestions>* questions, CountingPeer* peer) {
  const int before = peer->streamed();
  while (peer->streamed() == before) {
    CellAnswers answers;
    Ask(questions, peer->address(), 1, &answers);
    ASSERT_EQ(answers.Wait().size(), 1u);
  }
}

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_CLUSTER_CLIENT_QUESTIONS_TEST_UTIL_H_
