#include "frontend/accuracy/truth.h"

#include <gmock/gmock.h>
#include <grpcpp/support/status.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "frontend/accuracy/truth_http.h"
#include "frontend/accuracy/truth_report.h"
#include "frontend/accuracy/truth_service.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "indexer/base/clock.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

const Domain kModel{"m", ""};

// Two workers; the first has `has` blocks of any prompt.
class Leaf : public CellFinder, public OverlapFinder {
 public:
  void FindCells(const std::string&, const CellQuestion&, Duration,
                 CellFinder::Callback callback) override {
    callback(absl::UnavailableError("none here"));
  }
  void FindOverlaps(const std::string&, const OverlapQuestion& question, Duration,
                    OverlapFinder::Callback callback) override {
    ++questions;
    WorkersAnswer answer{.workers = {}, .block_size = 16};
    const auto blocks = std::min<uint32_t>(has, static_cast<uint32_t>(question.sequence.size()));
    answer.workers.push_back({.worker = {"w0", 0, ""}, .blocks = blocks});
    answer.workers.push_back({.worker = {"w1", 0, ""}});
    callback(std::move(answer));
  }
  uint32_t has = 4;
  int questions = 0;
};

class TruthTest : public testing::Test {
 protected:
  void Start(TruthOptions options = {}) {
    clock_.Advance(seconds(100));
    truth_ = std::make_unique<Truth>(std::move(options), &leaf_, nullptr, &clock_);
    FrontendOptions frontend;
    frontend.leaves = {{.cell = "c", .address = "leaf"}};
    frontend.observer = truth_.get();
    frontend_ = std::make_unique<Frontend>(std::move(frontend), &leaf_, &leaf_, &clock_);
  }
  RouteResult Route(size_t tokens = 100) {
    RouteInput input;
    input.domain = kModel;
    input.tokens.assign(tokens, 7);
    const absl::StatusOr<RouteResult> route = frontend_->Route(std::move(input));
    EXPECT_TRUE(route.ok()) << route.status();
    return *route;
  }
  void Report(uint64_t id, uint32_t cached, uint32_t tokens = 100) {
    frontend_->Report(id, {.finished = true, .cached_tokens = cached, .prompt_tokens = tokens});
  }

  ManualClock clock_;
  Leaf leaf_;
  std::unique_ptr<Truth> truth_;
  std::unique_ptr<Frontend> frontend_;
};

TEST_F(TruthTest, ADecisionIsFoundByItsIdWithWhatBecameOfIt) {
  Start();
  const RouteResult route = Route();
  clock_.Advance(seconds(2));
  frontend_->Report(route.decision_id, {.accepted = true});
  Report(route.decision_id, 64);
  const std::optional<DecisionRecord> record = truth_->Find(route.decision_id);
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->result.worker.name, "w0");
  EXPECT_EQ(record->result.receipt.candidates.size(), 2u);
  EXPECT_TRUE(record->report.accepted);
  EXPECT_EQ(record->report.cached_tokens, 64u);
  const auto json = nlohmann::json::parse(DecisionJson(*record, clock_.Now()));
  EXPECT_EQ(json["decision_id"], std::to_string(route.decision_id));
  EXPECT_EQ(json["predicted_tokens"], 64);
  EXPECT_EQ(json["report"]["cached_tokens"], 64);
  EXPECT_EQ(json["receipt"]["candidates"][0]["worker"], "w0");
  EXPECT_FALSE(truth_->Find(route.decision_id + 1).has_value());
  EXPECT_THAT(truth_->LatestDecisions(10), ElementsAre(route.decision_id));
}

TEST_F(TruthTest, ARequestThatWasRoutedWithoutItsPromptIsComparedWithNothing) {
  Start();
  const absl::StatusOr<RouteResult> route =
      frontend_->Route({.domain = kModel, .unknown_prompt = true});
  ASSERT_TRUE(route.ok()) << route.status();
  Report(route->decision_id, 64);
  EXPECT_TRUE(truth_->Find(route->decision_id)->report.finished);
  const TruthStats stats = truth_->stats();
  EXPECT_EQ(stats.lengths_differ, 0u);
  EXPECT_EQ(stats.exact + stats.less + stats.more + stats.without_figures, 0u);
}

// As with prompt_logprobs: the engine computes it anew, and serves nothing of what it has.
TEST_F(TruthTest, WhatIsNotReadFromTheCacheIsNoBrokenPromise) {
  Start();
  for (const bool not_read : {true, false}) {
    for (int i = 0; i < 12; ++i) {
      const absl::StatusOr<RouteResult> route = frontend_->Route(
          {.domain = kModel, .tokens = std::vector<TokenId>(100, 7), .cache_not_read = not_read});
      ASSERT_TRUE(route.ok()) << route.status();
      EXPECT_EQ(route->overlap_blocks, not_read ? 0u : 4u);
      Report(route->decision_id, 0);
      clock_.Advance(seconds(1));
      truth_->Tick();
    }
    const TruthStats stats = truth_->stats();
    EXPECT_EQ(stats.less, not_read ? 0u : 12u);
    EXPECT_EQ(stats.exact + stats.more + stats.predicted_tokens, not_read ? 0u : 12u * 64);
    EXPECT_EQ(truth_->Diagnose().empty(), not_read);
  }
}

TEST_F(TruthTest, RequestsWithoutTokensAreAFindingWithTheFirstReason) {
  Start();
  for (int i = 0; i < 9; ++i) {
    RouteInput input = {.domain = kModel, .unknown_prompt = true};
    if (i % 3 != 0) input.no_tokens = "the template refuses: string and undefined";
    ASSERT_TRUE(frontend_->Route(input).ok());
  }
  Route();
  std::vector<KnownFinding> findings = truth_->Diagnose();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].finding.cause, Cause::kNoTokens);
  // Requests without a prompt to make tokens of, such as embeddings, are not among them.
  EXPECT_THAT(findings[0].finding.evidence,
              ElementsAre(HasSubstr("6 of 7 requests for m"),
                          "the first reason: the template refuses: string and undefined"));
  EXPECT_THAT(PageText({.findings = findings, .workers = {}, .stats = {}}),
              HasSubstr("--tokenize=engine"));
  clock_.Advance(TruthOptions().window);
  EXPECT_TRUE(truth_->Diagnose().empty());
}

TEST_F(TruthTest, AnEngineThatDoesNotAnswerIsToldOfByWhoAsksItOrByItsRequests) {
  Start();
  const UnreachableWorker gone{.domain = kModel,
                               .cell = "c",
                               .worker = {"w9", 0, ""},
                               .since = clock_.Now(),
                               .last = clock_.Now(),
                               .why = "connection refused"};
  truth_->SetUnreachable({gone});
  clock_.Advance(seconds(3));
  std::vector<KnownFinding> findings = truth_->Diagnose();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].finding.cause, Cause::kEngineUnreachable);
  EXPECT_EQ(findings[0].finding.worker.name, "w9");
  EXPECT_THAT(TruthStatusJson(*truth_), HasSubstr("for 3.0 s: connection refused"));
  // Requests that fail add nothing to what is known.
  for (int i = 0; i < 3; ++i)
    frontend_->Report(Route().decision_id, {.error = "reset", .unreachable = true});
  truth_->SetUnreachable({});
  EXPECT_TRUE(truth_->Diagnose().empty());

  Start();
  for (int i = 0; i < 3; ++i)
    frontend_->Report(Route().decision_id, {.error = "reset", .unreachable = true});
  findings = truth_->Diagnose();
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].finding.cause, Cause::kEngineUnreachable);
  EXPECT_THAT(findings[0].finding.evidence, ElementsAre(HasSubstr("reset")));
  // It took one.
  for (const std::string worker : {"w0", "w1"}) {
    const absl::StatusOr<RouteResult> route = frontend_->Route(
        {.domain = kModel, .tokens = std::vector<TokenId>(100, 7), .allowed_workers = {worker}});
    ASSERT_TRUE(route.ok()) << route.status();
    Report(route->decision_id, 64);
  }
  EXPECT_TRUE(truth_->Diagnose().empty());
}

// Blocks behind the kept head are looked at too.
TEST_F(TruthTest, FinishedPromptsAreAskedAboutToTheirEnd) {
  Start();
  leaf_.has = 200;
  Report(Route(5000).decision_id, 0, 5000);
  clock_.Advance(seconds(2));
  truth_->Tick();
  const std::vector<WorkerEvidence> evidence = truth_->evidence();
  ASSERT_EQ(evidence.size(), 1u);
  ASSERT_EQ(evidence[0].checks.size(), 1u);
  EXPECT_EQ(evidence[0].checks[0].asked, 5000u / 16);
  EXPECT_EQ(evidence[0].checks[0].held, 200u);
  EXPECT_FALSE(evidence[0].checks[0].whole());
  EXPECT_EQ(truth_->Find(truth_->LatestDecisions(1)[0])->leading.size(),
            DecisionLogOptions().leading_blocks);
}

TEST_F(TruthTest, DecisionsAreForgottenByCountByBytesAndByAge) {
  TruthOptions options;
  options.decisions.count_max = 3;
  Start(options);
  std::vector<uint64_t> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(Route().decision_id);
  EXPECT_THAT(truth_->LatestDecisions(10), ElementsAre(ids[4], ids[3], ids[2]));
  clock_.Advance(options.decisions.age_max);
  truth_->Tick();
  EXPECT_EQ(truth_->stats().decisions_kept, 0u);
  EXPECT_EQ(truth_->stats().decision_bytes, 0u);

  options.decisions.count_max = 1000;
  options.decisions.bytes_max = 20000;
  Start(options);
  for (int i = 0; i < 100; ++i) Route(5000);
  EXPECT_LE(truth_->stats().decision_bytes, 20000u);
  EXPECT_GT(truth_->stats().decisions_kept, 1u);
}

TEST_F(TruthTest, ServedIsComparedWithPredicted) {
  Start();
  Report(Route().decision_id, 64);
  Report(Route().decision_id, 0);
  Report(Route().decision_id, 96, 104);
  frontend_->Report(Route().decision_id, {.finished = true});
  frontend_->Report(Route().decision_id, {.error = "broke"});
  Report(12345, 64);
  const TruthStats stats = truth_->stats();
  EXPECT_EQ(stats.exact, 1u);
  EXPECT_EQ(stats.less, 1u);
  EXPECT_EQ(stats.more, 1u);
  EXPECT_EQ(stats.without_figures, 1u);
  EXPECT_EQ(stats.errors, 1u);
  EXPECT_EQ(stats.reports_unknown, 1u);
  EXPECT_EQ(stats.lengths_differ, 1u);
  EXPECT_EQ(stats.predicted_tokens, 3u * 64);
  EXPECT_EQ(stats.served_tokens, 160u);
  EXPECT_EQ(stats.cached_blocks, 160u / 16);
  EXPECT_GT(stats.reported_blocks, stats.cached_blocks);
  const std::vector<WorkerTruth> workers = truth_->workers(10);
  ASSERT_EQ(workers.size(), 1u);
  EXPECT_DOUBLE_EQ(workers[0].figures.requests, 3);
  clock_.Advance(std::chrono::minutes(5));
  EXPECT_NEAR(truth_->workers(10)[0].figures.requests, 1.5, 1e-9);
}

TEST_F(TruthTest, ASecondReportIsNotComparedAgain) {
  Start();
  const uint64_t id = Route().decision_id;
  Report(id, 64);
  Report(id, 0);
  EXPECT_EQ(truth_->stats().exact + truth_->stats().less, 1u);
}

TEST_F(TruthTest, FinishedPromptsAreAskedAboutOnlyAsOftenAsAllowed) {
  TruthOptions options;
  options.checks_burst = 3;
  options.checks_per_s = 0;
  Start(options);
  for (int i = 0; i < 10; ++i) Report(Route().decision_id, 0);
  const int asked = leaf_.questions;
  leaf_.has = 6;  // all of it
  clock_.Advance(seconds(2));
  truth_->Tick();
  EXPECT_EQ(leaf_.questions, asked + 3);
  EXPECT_EQ(truth_->stats().checks, 3u);
  EXPECT_EQ(truth_->stats().checks_dropped, 7u);
  const auto evidence = truth_->evidence();
  ASSERT_EQ(evidence.size(), 1u);
  for (const Check& check : evidence[0].checks) EXPECT_TRUE(check.prompt());
}

TEST_F(TruthTest, APageIsReadableWithAndWithoutAnything) {
  Start();
  EXPECT_THAT(PageText({.findings = {}, .workers = {}, .stats = {}}),
              HasSubstr("nothing to judge"));
  for (int i = 0; i < 20; ++i) {
    Report(Route().decision_id, 0);
    clock_.Advance(seconds(1));
    truth_->Tick();
  }
  const TruthPage page{
      .findings = truth_->Diagnose(), .workers = truth_->workers(9), .stats = truth_->stats()};
  ASSERT_EQ(page.findings.size(), 2u);
  const std::string text = PageText(page);
  EXPECT_THAT(text, HasSubstr("prefix_caching_off"));
  EXPECT_THAT(text, HasSubstr("or else   usage_not_reported"));
  EXPECT_THAT(text, HasSubstr("Send one long prompt twice"));
  EXPECT_THAT(text, HasSubstr("c     w0/0"));
  const auto json = nlohmann::json::parse(PageJson(page));
  EXPECT_EQ(json["findings"][0]["cause"], "prefix_caching_off");
  EXPECT_EQ(json["findings"][0]["or_else"][0]["cause"], "usage_not_reported");
  EXPECT_FALSE(json["findings"][0]["decisions"].empty());
  EXPECT_EQ(nlohmann::json::parse(TruthStatusJson(*truth_))["findings"][0]["worker"], "w0");
  Metrics metrics;
  AddTruthMetrics(truth_.get(), &metrics);
  const std::string scraped = metrics.Text();
  EXPECT_THAT(scraped,
              HasSubstr("kvatlas_frontend_finding{cause=\"prefix_caching_off\",domain=\"m"));
  EXPECT_THAT(scraped, HasSubstr("kvatlas_frontend_served_total{result=\"less\"} 20"));
}

// Each test behind the cause that it is of, once.
TEST(TruthPageTest, AFindingWithAlternativesSaysHowToTellEachOfThem) {
  KnownFinding known;
  known.finding.cause = Cause::kTokenizer;
  known.finding.or_else = {Cause::kChatTemplate, Cause::kBosMissing};
  const std::string text = PageText({.findings = {known}, .workers = {}, .stats = {}});
  size_t at = 0;
  for (const Cause cause : {Cause::kTokenizer, Cause::kChatTemplate, Cause::kBosMissing}) {
    const std::string test = "to tell   " + std::string(CauseTest(cause));
    const size_t next = text.find(test, at);
    ASSERT_NE(next, std::string::npos) << CauseName(cause) << " in:\n" << text;
    EXPECT_EQ(text.find(test, next + 1), std::string::npos) << text;
    at = next;
  }
}

TEST_F(TruthTest, TheServiceTellsTheSame) {
  Start();
  const RouteResult route = Route();
  Report(route.decision_id, 64);
  TruthService service(truth_.get(), &clock_);
  v1::GetDecisionRequest request;
  request.set_decision_id(route.decision_id);
  v1::Decision decision;
  ASSERT_TRUE(service.GetDecision(nullptr, &request, &decision).ok());
  EXPECT_EQ(decision.route().worker().name(), "w0");
  EXPECT_EQ(decision.report().cached_tokens(), 64u);
  EXPECT_EQ(decision.prompt_tokens(), 100u);
  request.set_decision_id(1);
  EXPECT_EQ(service.GetDecision(nullptr, &request, &decision).error_code(),
            grpc::StatusCode::NOT_FOUND);
  for (int i = 0; i < 20; ++i) {
    clock_.Advance(seconds(1));
    Report(Route().decision_id, 0);
  }
  v1::DiagnoseResponse findings;
  ASSERT_TRUE(service.Diagnose(nullptr, nullptr, &findings).ok());
  ASSERT_GE(findings.findings_size(), 1);
  EXPECT_NE(findings.findings(0).remedy(), "");
}

}  // namespace
}  // namespace kvatlas
