// Many questions on one stream of gRPC: which answer is whose, how many may be open, and what a
// broken stream leaves.

#include "frontend/gateway/grpc/route_stream.h"

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <vector>

#include "frontend/gateway/grpc/route_prompts_test_util.h"
#include "indexer/base/await.h"
#include "indexer/net/message_account.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"

namespace kvatlas {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;
using Json = nlohmann::json;

class RouteStreamTest : public RoutePromptsTest {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::RouteStreamRequest, v1::RouteStreamResponse>;

  void SetUp() override {
    RoutePromptsTest::SetUp();
    stream_ = stub_->RouteStream(&context_);
  }
  // Tokens are asked about in the order in which they were sent.
  static v1::RouteStreamRequest Tokens(uint64_t id) {
    v1::RouteStreamRequest request;
    request.set_id(id);
    request.mutable_route()->mutable_domain()->set_model("m");
    for (uint32_t i = 0; i < kTestBlockSize; ++i)
      request.mutable_route()->mutable_tokens()->add_ids(static_cast<uint32_t>(id));
    return request;
  }
  static v1::RouteStreamRequest Chats(uint64_t id, const Json& body) {
    v1::RouteStreamRequest request;
    request.set_id(id);
    *request.mutable_chat() = Body(body);
    return request;
  }
  v1::RouteStreamResponse Read() {
    v1::RouteStreamResponse response;
    EXPECT_TRUE(stream_->Read(&response));
    return response;
  }
  // Written by another thread, since the server may not read on.
  std::thread Write(uint64_t from, uint64_t to) {
    return std::thread([this, from, to] {
      for (uint64_t id = from; id < to; ++id) stream_->Write(Tokens(id));
    });
  }

  static uint64_t RefusedForParts() {
    return MessageAccount::OfProcess().refused(MessageAccount::Refused::kTooLarge);
  }

  grpc::ClientContext context_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(RouteStreamTest, AnswersComeAsTheyAreReadyWithTheIdsOfTheirQuestions) {
  constexpr uint64_t kQuestions = 300;
  cell_.Wait();
  std::thread writer = Write(0, kQuestions);
  cell_.WaitUntilAsked(kQuestions);
  writer.join();
  cell_.GoOn(/*backwards=*/true);
  std::set<uint64_t> decisions;
  for (uint64_t id = kQuestions; id-- > 0;) {
    const v1::RouteStreamResponse answer = Read();
    EXPECT_EQ(answer.id(), id);
    EXPECT_TRUE(answer.has_route()) << answer.message();
    decisions.insert(answer.route().decision_id());
  }
  EXPECT_EQ(decisions.size(), kQuestions);
}

TEST_F(RouteStreamTest, ChatsAndTokensAndMistakesAreAnsweredEachByItsId) {
  constexpr uint64_t kEach = 100;
  for (uint64_t id = 0; id < kEach; ++id) {
    stream_->Write(Chats(3 * id, Chat(absl::StrCat("chat ", id))));
    stream_->Write(Tokens(3 * id + 1));
    Json other = Chat("x");
    if (id % 2 == 0) other["model"] = absl::StrCat("other-", id);
    v1::RouteStreamRequest wrong = Chats(3 * id + 2, other);
    if (id % 2 == 1) wrong.clear_chat();
    stream_->Write(wrong);
  }
  stream_->WritesDone();
  std::set<uint64_t> seen;
  v1::RouteStreamResponse answer;
  while (stream_->Read(&answer)) {
    const uint64_t id = answer.id() / 3;
    seen.insert(answer.id());
    if (answer.id() % 3 == 0) {
      EXPECT_THAT(answer.route().tokens(),
                  ElementsAreArray(BytesAsTokens(absl::StrCat("chat ", id, ">"))));
    } else if (answer.id() % 3 == 1) {
      EXPECT_EQ(answer.route().prompt_tokens(), kTestBlockSize);
    } else {
      EXPECT_FALSE(answer.has_route());
      EXPECT_EQ(answer.code(), id % 2 == 0 ? grpc::NOT_FOUND : grpc::INVALID_ARGUMENT);
      EXPECT_THAT(answer.message(),
                  HasSubstr(id % 2 == 0 ? absl::StrCat("other-", id) : "no question"));
    }
  }
  EXPECT_TRUE(stream_->Finish().ok());
  EXPECT_EQ(seen.size(), 3 * kEach);
  EXPECT_EQ(frontend_->stats().in_flight, 2 * kEach) << "who ends a stream keeps its choices";
  EXPECT_EQ(decisions_.abandoned(), 0u);
}

TEST_F(RouteStreamTest, NoMoreThanTheBoundAreUnanswered) {
  constexpr uint64_t kQuestions = kStreamOutstandingMax + 500;
  cell_.Wait();
  std::thread writer = Write(0, kQuestions);
  cell_.WaitUntilAsked(kStreamOutstandingMax);
  WaitUntilTheServerKnows();
  EXPECT_EQ(cell_.asked(), kStreamOutstandingMax) << "the rest is not read";
  cell_.GoOn();
  std::set<uint64_t> answered;
  for (uint64_t i = 0; i < kQuestions; ++i) answered.insert(Read().id());
  writer.join();
  EXPECT_EQ(answered.size(), kQuestions);
}

TEST_F(RouteStreamTest, ABrokenStreamLeavesOnlyWhatWasReportedOn) {
  for (uint64_t id = 0; id < 50; ++id) stream_->Write(Tokens(id));
  std::vector<uint64_t> decisions;
  for (uint64_t id = 0; id < 50; ++id) decisions.push_back(Read().route().decision_id());
  for (uint64_t i = 0; i < 10; ++i) {
    v1::RouteStreamRequest report;
    report.mutable_report()->set_decision_id(decisions[3 * i]);
    report.mutable_report()->set_accepted(true);
    stream_->Write(report);
  }
  decisions_.WaitForReports(10);
  EXPECT_EQ(frontend_->stats().in_flight, 40u);
  EXPECT_THAT(metrics_.Text(), HasSubstr("kvatlas_frontend_reports_total 10\n"));
  cell_.Wait();
  for (uint64_t id = 50; id < 70; ++id) stream_->Write(Tokens(id));
  cell_.WaitUntilAsked(70);
  context_.TryCancel();
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  WaitUntilTheServerKnows();
  cell_.GoOn();
  decisions_.WaitForAbandoned(60);
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

TEST_F(RouteStreamTest, AQuestionOfTooManyPartsIsNotReadAndEndsTheStreamBehindTheAnswers) {
  cell_.Wait();
  stream_->Write(Tokens(1));
  cell_.WaitUntilAsked(1);
  v1::RouteStreamRequest parts = Tokens(2);
  // Each counts for sixteen bytes.
  parts.mutable_route()->mutable_tokens()->mutable_ids()->Resize(kParsedBytesMax / 16, 1);
  stream_->Write(parts);
  ASSERT_TRUE(Await([] { return RefusedForParts() == 1; }, std::chrono::seconds(60)));
  cell_.GoOn();
  EXPECT_EQ(Read().id(), 1u);
  v1::RouteStreamResponse none;
  EXPECT_FALSE(stream_->Read(&none));
  const grpc::Status ended = stream_->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(ended.error_message(), HasSubstr("too many parts"));
  EXPECT_EQ(cell_.asked(), 1u);
  EXPECT_EQ(frontend_->stats().in_flight, 1u) << "the answer was sent";
}

TEST_F(RouteStreamTest, ALongQuestionCountsAsMemoryUntilItIsAnswered) {
  const MessageAccount& account = MessageAccount::OfProcess();
  v1::RouteStreamRequest longer = Tokens(1);
  longer.mutable_route()->mutable_tokens()->mutable_ids()->Resize(20'000, 1);
  cell_.Wait();
  for (uint64_t id = 1; id <= 3; ++id) {
    longer.set_id(id);
    stream_->Write(longer);
  }
  cell_.WaitUntilAsked(3);
  EXPECT_GT(account.bytes(), 3 * longer.SpaceUsedLong());
  cell_.GoOn();
  for (int i = 0; i < 3; ++i) Read();
  EXPECT_TRUE(Await([&] { return account.bytes() == 0; }, std::chrono::seconds(60)));
}

}  // namespace
}  // namespace kvatlas
