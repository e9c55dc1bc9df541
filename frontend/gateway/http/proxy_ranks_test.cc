// Which data-parallel rank serves a request? The one that was chosen, as long as the engine has it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "frontend/gateway/http/proxy_test_util.h"
#include "frontend/gateway/http/socket_test_util.h"

namespace kvatlas {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr char kRefused[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\nbad";

// An engine that says `answer` to what names a rank, else `kOk`, and what it was asked.
class RankEngine {
 public:
  explicit RankEngine(std::string answer)
      : answer_(std::move(answer)), engine_([this](TestSocket& connection) {
          for (;;) {
            const std::string message = connection.ReadMessage();
            if (message.empty()) return;
            {
              MutexLock lock(&mutex_);
              asked_.push_back(message);
            }
            connection.Send(message.find("x-data-parallel-rank: ") != std::string::npos ? answer_
                                                                                        : kOk);
          }
        }) {}

  std::string url() const { return engine_.url(); }
  std::vector<std::string> asked() {
    MutexLock lock(&mutex_);
    return asked_;
  }

 private:
  const std::string answer_;
  Mutex mutex_;
  std::vector<std::string> asked_ ABSL_GUARDED_BY(mutex_);
  TestEngine engine_;
};

class ProxyRanksTest : public ProxyTest {
 protected:
  // Ranks of one worker behind `engine`; the first has the prompt.
  void StartRanks(const RankEngine& engine, std::vector<uint32_t> ranks) {
    cell_.ranks = std::move(ranks);
    Start(std::vector<std::string>(cell_.ranks.size(), engine.url()));
  }
};

TEST_F(ProxyRanksTest, TheEngineIsToldWhichRankWasChosen) {
  for (const uint32_t rank : {1u, 0u}) {
    RankEngine engine(kOk);
    StartRanks(engine, {rank, 1 - rank});
    const std::string number = std::to_string(rank);
    EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
                AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("ok"),
                      HasSubstr("x-kvatlas-rank: " + number + "\r\n")));
    ASSERT_EQ(engine.asked().size(), 1u);
    EXPECT_THAT(engine.asked()[0], HasSubstr("x-data-parallel-rank: " + number + "\r\n"));
    proxy_->Stop();
  }
}

// vLLM's hybrid load balancing: a server has ranks 2 and 3 of four, and takes requests for 0 and 1.
TEST_F(ProxyRanksTest, AnEngineOfLaterRanksIsToldItsOwnNumber) {
  RankEngine engine(kOk);
  cell_.first_rank = 2;
  StartRanks(engine, {3, 2});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
              AllOf(EndsWith("ok"), HasSubstr("x-kvatlas-rank: 3\r\n")));
  ASSERT_EQ(engine.asked().size(), 1u);
  EXPECT_THAT(engine.asked()[0], HasSubstr("x-data-parallel-rank: 1\r\n"));
  // A rank that a client names is the engine's own number, too.
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat, "X-Data-Parallel-Rank: 0\r\n")),
              AllOf(EndsWith("ok"), HasSubstr("x-kvatlas-rank: 2\r\n")));
}

// External load balancing: a server for each rank.
TEST_F(ProxyRanksTest, AnEngineOfOneLaterRankIsToldOfNone) {
  RankEngine engine(kRefused);
  cell_.first_rank = 3;
  StartRanks(engine, {3});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)), EndsWith("ok"));
  ASSERT_EQ(engine.asked().size(), 1u);
  EXPECT_THAT(engine.asked()[0], Not(HasSubstr("x-data-parallel-rank")));
}

TEST_F(ProxyRanksTest, AWorkerOfOneRankIsToldOfNone) {
  RankEngine engine(kOk);
  StartRanks(engine, {0});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
              AllOf(EndsWith("ok"), Not(HasSubstr("x-kvatlas-rank"))));
  EXPECT_THAT(engine.asked()[0], Not(HasSubstr("x-data-parallel-rank")));
}

TEST_F(ProxyRanksTest, WhatTheClientSaysOfItStays) {
  RankEngine engine(kRefused);
  StartRanks(engine, {1, 0});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat, "x-data-parallel-rank: 7\r\n")),
              StartsWith("HTTP/1.1 400 "));
  ASSERT_EQ(engine.asked().size(), 1u);
  EXPECT_THAT(engine.asked()[0], AllOf(HasSubstr("x-data-parallel-rank: 7\r\n"),
                                       Not(HasSubstr("x-data-parallel-rank: 1\r\n"))));
}

TEST_F(ProxyRanksTest, TheRankThatTheClientNamesIsChosenAndPromised) {
  RankEngine engine(kOk);
  StartRanks(engine, {0, 1});
  const std::string chat = R"({"messages":[{"role":"user","content":"hello"}],"model":"m",)";
  for (const std::string& request :
       {Post("/v1/chat/completions", kChat, "X-Data-Parallel-Rank: 1\r\n"),
        Post("/v1/chat/completions", chat + R"("routed_dp_rank":1})"),
        Post("/v1/chat/completions", chat + R"("data_parallel_rank":1})"),
        Post("/v1/chat/completions", chat + R"("data_parallel_rank":0})",
             "X-Data-Parallel-Rank: 1\r\n")}) {
    EXPECT_THAT(Ask(request), AllOf(EndsWith("ok"), HasSubstr("x-kvatlas-rank: 1\r\n"),
                                    HasSubstr("x-kvatlas-overlap-blocks: 0\r\n")));
    EXPECT_THAT(engine.asked().back(), Not(HasSubstr("x-data-parallel-rank: "))) << "of ours";
  }
  EXPECT_THAT(
      Ask(Post("/v1/chat/completions", chat + R"("data_parallel_rank":0})")),
      AllOf(HasSubstr("x-kvatlas-rank: 0\r\n"), Not(HasSubstr("x-kvatlas-overlap-blocks: 0\r\n"))));
}

// As one does that was started again with fewer: whichever it has takes the request.
TEST_F(ProxyRanksTest, AnEngineWithoutTheRankIsAskedOnceMoreWithoutIt) {
  RankEngine engine(kRefused);
  StartRanks(engine, {1, 0});
  EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)),
              AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("ok"), Not(HasSubstr("x-kvatlas-rank")),
                    HasSubstr("x-kvatlas-worker: w0\r\n")));
  ASSERT_EQ(engine.asked().size(), 2u);
  EXPECT_THAT(engine.asked()[1], AllOf(Not(HasSubstr("x-data-parallel-rank")), EndsWith(kChat)));
  const RouteReport report = reports_.WaitForEnd();
  EXPECT_TRUE(report.finished);
  EXPECT_EQ(report.error, "");
  // Another rank than the one that was chosen.
  ASSERT_TRUE(report.served_by.has_value());
  EXPECT_EQ(report.served_by->name, "");
}

}  // namespace
}  // namespace kvatlas
