#include "frontend/accuracy/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "frontend/accuracy/evidence.h"
#include "frontend/accuracy/finding.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<Cause> CausesOf(const std::vector<Finding>& findings) {
  std::vector<Cause> causes;
  for (const Finding& finding : findings) causes.push_back(finding.cause);
  return causes;
}

// A worker whose leaf holds something, without a request yet.
WorkerEvidence Worker(const std::string& name = "w0") {
  WorkerEvidence evidence;
  evidence.domain = {"m", ""};
  evidence.cell = "c";
  evidence.worker = {.name = name, .rank = 0, .replica = {}};
  evidence.leaf.emplace();
  evidence.leaf->known = true;
  evidence.leaf->blocks = 100;
  evidence.leaf->batches = 10;
  evidence.now = seconds(1000);
  return evidence;
}

Comparison& Add(WorkerEvidence* to, uint32_t predicted, uint32_t served, uint32_t tokens = 400) {
  const auto n = static_cast<uint64_t>(to->comparisons.size());
  Comparison comparison;
  comparison.decision = n + 1;
  comparison.at = comparison.chosen = seconds(900 + n);
  comparison.form = PromptForm::kChat;
  comparison.blocks = tokens / 16;
  comparison.prompt_tokens = tokens;
  comparison.engine_tokens = tokens;
  comparison.predicted = predicted;
  comparison.served = served;
  to->comparisons.push_back(comparison);
  return to->comparisons.back();
}

void AddMissed(WorkerEvidence* to, int count) {
  for (int i = 0; i < count; ++i) {
    Check check;
    check.decision = static_cast<uint64_t>(i + 1);
    check.at = seconds(950 + i);
    check.form = PromptForm::kChat;
    check.asked = 25;
    check.settled = check.listed = true;
    to->checks.push_back(check);
  }
}

TEST(DiagnosisTest, NothingIsSaidWithoutEvidence) {
  EXPECT_THAT(Diagnose({}), IsEmpty());
  EXPECT_THAT(Diagnose(Worker()), IsEmpty());
  EXPECT_THAT(DiagnoseDomain({}), IsEmpty());
}

TEST(DiagnosisTest, ChatsAloneFitTemplateAndTokenizerAndBothSayWhatTells) {
  WorkerEvidence worker = Worker();
  for (uint32_t i = 0; i < 8; ++i) Add(&worker, 0, 160, 300 + i * 40).engine_tokens = 312 + i * 40;
  AddMissed(&worker, 3);
  const std::vector<Finding> findings = Diagnose(worker);
  ASSERT_THAT(CausesOf(findings), ElementsAre(Cause::kChatTemplate, Cause::kTokenizer));
  EXPECT_THAT(findings[0].or_else, ElementsAre(Cause::kTokenizer));
  EXPECT_THAT(findings[1].or_else, ElementsAre(Cause::kChatTemplate));
  EXPECT_THAT(std::string(CauseTest(findings[0].cause)), HasSubstr("completion"));
  EXPECT_THAT(findings[0].evidence, testing::Contains(HasSubstr("8 of 8 prompts: +12 to +12")));
}

TEST(DiagnosisTest, ADifferenceThatGrowsWithThePromptIsRatherTheTokenizer) {
  WorkerEvidence worker = Worker();
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t tokens = 200 + i * 100;
    Add(&worker, 0, 160, tokens).engine_tokens = tokens + tokens / 10;
  }
  AddMissed(&worker, 3);
  EXPECT_THAT(CausesOf(Diagnose(worker)), ElementsAre(Cause::kTokenizer, Cause::kChatTemplate));
}

TEST(DiagnosisTest, CompletionsThatAgreeLeaveOnlyTheTemplate) {
  WorkerEvidence worker = Worker();
  for (int i = 0; i < 6; ++i) {
    Add(&worker, 0, 160).engine_tokens = 412;
    Add(&worker, 160, 160).form = PromptForm::kCompletion;
  }
  AddMissed(&worker, 3);
  EXPECT_THAT(CausesOf(Diagnose(worker)), ElementsAre(Cause::kChatTemplate));
}

TEST(DiagnosisTest, OneTokenMoreIsADoubledOrMissingBos) {
  WorkerEvidence worker = Worker();
  for (int i = 0; i < 6; ++i) Add(&worker, 0, 160).engine_tokens = 401;
  AddMissed(&worker, 3);
  EXPECT_THAT(CausesOf(Diagnose(worker)), ElementsAre(Cause::kBosDoubled, Cause::kBosMissing));
  for (Comparison& comparison : worker.comparisons) comparison.begins_with_bos = false;
  EXPECT_THAT(CausesOf(Diagnose(worker)), ElementsAre(Cause::kBosMissing));
  for (Comparison& comparison : worker.comparisons) comparison.begins_with_bos = true;
  EXPECT_THAT(CausesOf(Diagnose(worker)), ElementsAre(Cause::kBosDoubled));
}

TEST(DiagnosisTest, CachedTokensTellTheBlockSize) {
  WorkerEvidence worker = Worker();
  for (uint32_t i = 1; i < 7; ++i) Add(&worker, 0, i * 24);
  EXPECT_THAT(CausesOf(Diagnose(worker)), ElementsAre(Cause::kWrongBlockSize));
}

TEST(DiagnosisTest, CallersHashesTellTheirBlockSize) {
  WorkerEvidence worker = Worker();
  for (uint32_t i = 1; i < 7; ++i) {
    Comparison& comparison = Add(&worker, 0, i * 64);
    comparison.prompt_tokens = 0;
    comparison.blocks = 10;
    comparison.engine_tokens = 650;
  }
  EXPECT_THAT(CausesOf(Diagnose(worker)), ElementsAre(Cause::kWrongBlockSize));
}

TEST(DiagnosisTest, ALeafOfAnotherContractIsEnough) {
  WorkerEvidence worker = Worker();
  Add(&worker, 0, 0);
  worker.own_contract = "xxh3-chain-1:1337";
  worker.leaf->contract = "xxh3-chain-1:7";
  EXPECT_THAT(CausesOf(Diagnose(worker)), ElementsAre(Cause::kHashContract));
}

TEST(DiagnosisTest, NoUsageAndNoEventsFitTwoCauses) {
  WorkerEvidence worker = Worker();
  worker.leaf->blocks = worker.leaf->batches = 0;
  for (int i = 0; i < 6; ++i) Add(&worker, 0, 0).served.reset();
  AddMissed(&worker, 3);
  EXPECT_THAT(CausesOf(Diagnose(worker)), ElementsAre(Cause::kEventsOff, Cause::kPrefixCachingOff));
}

TEST(DiagnosisTest, BlocksWithoutParentsAndRefusalsAreNamed) {
  WorkerEvidence worker = Worker();
  worker.leaf->blocks = 0;
  worker.leaf->engine.emplace();
  worker.leaf->engine->parked = 40;
  for (int i = 0; i < 4; ++i) Add(&worker, 0, 160);
  EXPECT_THAT(CausesOf(Diagnose(worker)), ElementsAre(Cause::kBlocksOrphaned));
  worker.leaf->engine->parked = 0;
  worker.leaf->engine->refused["opaque_tokens"] = 12;
  EXPECT_THAT(CausesOf(Diagnose(worker)), ElementsAre(Cause::kEventsRefused));
}

TEST(DiagnosisTest, AStreamThatStandsStillWhileRequestsFinishIsDead) {
  WorkerEvidence worker = Worker();
  for (int i = 0; i < 6; ++i) Add(&worker, 160, 160);
  worker.no_batch_since = seconds(920);
  AddMissed(&worker, 3);
  for (Check& check : worker.checks) check.held = 10;
  EXPECT_THAT(CausesOf(Diagnose(worker)), ElementsAre(Cause::kPublisherDead));
}

// Its leaf has heard nothing of it for 20 s, since before its last requests were finished.
WorkerEvidence Masked() {
  WorkerEvidence worker = Worker();
  for (int i = 0; i < 6; ++i) Add(&worker, 160, 160);
  worker.leaf->masked = true;
  worker.leaf->engine.emplace();
  worker.leaf->at = seconds(922);
  worker.leaf->age = seconds(20);
  worker.now = seconds(922);
  return worker;
}

TEST(DiagnosisTest, AnEngineThatEndedIsNoDeadPublisherOfALivingOne) {
  WorkerEvidence worker = Masked();
  // Its last request was finished 17 s ago: nothing says that it lives.
  std::vector<Finding> findings = Diagnose(worker);
  ASSERT_THAT(CausesOf(findings), ElementsAre(Cause::kPublisherDead));
  EXPECT_THAT(findings[0].evidence, testing::Not(testing::Contains(HasSubstr("it lives"))));
  EXPECT_THAT(findings[0].evidence, testing::Contains(HasSubstr("is not known")));
  // A request failed to reach it.
  worker.unreachable = UnreachableWorker{.domain = worker.domain,
                                         .cell = worker.cell,
                                         .worker = worker.worker,
                                         .since = seconds(910),
                                         .last = seconds(910),
                                         .why = "connection refused"};
  findings = Diagnose(worker);
  ASSERT_THAT(CausesOf(findings), ElementsAre(Cause::kEngineUnreachable));
  EXPECT_THAT(findings[0].evidence,
              ElementsAre("it has not answered for 12.0 s: connection refused"));
  // A process that asks engines itself has named it already.
  worker.asked_engine = true;
  EXPECT_THAT(Diagnose(worker), IsEmpty());
  worker.unreachable.reset();
  findings = Diagnose(worker);
  ASSERT_THAT(CausesOf(findings), ElementsAre(Cause::kPublisherDead));
  EXPECT_THAT(findings[0].evidence, testing::Contains(HasSubstr("it lives")));
}

TEST(DiagnosisTest, AnEngineThatWasStartedWithoutEventsHasNoDeadPublisher) {
  WorkerEvidence worker = Masked();
  worker.leaf->blocks = worker.leaf->batches = 0;
  worker.leaf->at = worker.now = seconds(930);
  const std::vector<Finding> findings = Diagnose(worker);
  ASSERT_THAT(CausesOf(findings), ElementsAre(Cause::kEventsOff));
  EXPECT_THAT(findings[0].evidence, testing::Contains(HasSubstr("does not answer")));
  // Neither does one that reports no usage.
  for (Comparison& comparison : worker.comparisons) comparison.served.reset();
  EXPECT_THAT(CausesOf(Diagnose(worker)), ElementsAre(Cause::kEventsOff));
}

TEST(DiagnosisTest, TokensThatTheEngineMadeAreNotToBeMadeByIt) {
  WorkerEvidence worker = Worker();
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t tokens = 200 + i * 100;
    Add(&worker, 0, 160, tokens).engine_tokens = tokens + tokens / 10;
  }
  AddMissed(&worker, 3);
  std::vector<Finding> findings = Diagnose(worker);
  ASSERT_EQ(findings[0].cause, Cause::kTokenizer);
  EXPECT_THAT(RemedyOf(findings[0]), HasSubstr("--tokenize=engine"));
  for (Comparison& comparison : worker.comparisons)
    comparison.tokenizer = "http://10.0.0.7:8000/tokenize";
  findings = Diagnose(worker);
  ASSERT_THAT(CausesOf(findings), ElementsAre(Cause::kPromptDiffers));
  EXPECT_THAT(findings[0].evidence, testing::Contains(HasSubstr("10.0.0.7:8000/tokenize")));
  EXPECT_THAT(RemedyOf(findings[0]), testing::Not(HasSubstr("--tokenize=engine")));
  EXPECT_THAT(RemedyOf(findings[0]), HasSubstr("--tokenize=render"));
}

// Half of the requests have an effort, which the engine writes at token 30, and we do not.
WorkerEvidence WithEffort() {
  WorkerEvidence worker = Worker();
  for (uint32_t i = 0; i < 6; ++i) {
    Add(&worker, 320, 320);
    Comparison& effort = Add(&worker, 320, 16);
    effort.traits = {"tools", "reasoning_effort"};
    effort.tokenizer = "http://10.0.0.7:8000/tokenize";
    worker.comparisons[worker.comparisons.size() - 2].traits = {"tools"};
    Check check;
    check.decision = effort.decision;
    check.at = effort.at + seconds(2);
    check.after = seconds(2);
    check.asked = check.held = check.first_held = 25;
    check.settled = check.listed = true;
    worker.checks.push_back(check);
  }
  return worker;
}

TEST(DiagnosisTest, BrokenPromisesOfRequestsWithSomethingInCommonAreNoStaleIndex) {
  WorkerEvidence worker = WithEffort();
  const std::vector<Finding> findings = Diagnose(worker);
  ASSERT_THAT(CausesOf(findings), ElementsAre(Cause::kPromptDiffers));
  EXPECT_THAT(
      findings[0].evidence,
      testing::Contains("of these 6 have reasoning_effort in the request, of the other 6 0"));
  EXPECT_THAT(findings[0].evidence,
              testing::Contains(HasSubstr("block 1 (tokens 16 to 31) of decision 12")));
  for (Comparison& comparison : worker.comparisons) comparison.traits.clear();
  EXPECT_THAT(CausesOf(Diagnose(worker)), testing::Contains(Cause::kStaleIndex));
}

TEST(DiagnosisTest, TheFirstBlockThatDiffersIsNamedWhereFinishedPromptsAreThereInPart) {
  WorkerEvidence worker = Worker();
  for (uint32_t i = 0; i < 12; ++i) {
    Comparison& comparison = Add(&worker, 160, i % 3 == 0 ? 288 : 160);
    Check check;
    check.decision = comparison.decision;
    check.at = comparison.at + seconds(20);
    check.after = seconds(20);
    check.asked = 25;
    check.held = check.first_held = i % 2 == 0 ? 25 : 10 + i;
    check.settled = check.listed = true;
    if (i == 1) check.missing_tokens = {7, 8, 9};
    worker.checks.push_back(check);
  }
  worker.no_batch_since = seconds(990);
  std::vector<Finding> findings = Diagnose(worker);
  ASSERT_THAT(CausesOf(findings), ElementsAre(Cause::kPromptDiffers));
  EXPECT_THAT(
      findings[0].evidence,
      testing::Contains("they differ from block 11 (tokens 176 to 191) on at the latest, in "
                        "decision 2, where we have 7 8 9"));
  // Hybrid models keep what they can go on from, and lost events leave gaps.
  worker.leaf->hybrid = true;
  EXPECT_THAT(CausesOf(Diagnose(worker)), testing::Not(testing::Contains(Cause::kPromptDiffers)));
  worker.leaf->hybrid = false;
  worker.leaf->trust = Trust::kDegraded;
  EXPECT_THAT(CausesOf(Diagnose(worker)), testing::Not(testing::Contains(Cause::kPromptDiffers)));
}

TEST(DiagnosisTest, LengthsThatDifferInSomePromptsAreTold) {
  WorkerEvidence worker = Worker();
  for (uint32_t i = 0; i < 16; ++i)
    if (Comparison& comparison = Add(&worker, 160, 160); i % 4 == 0) comparison.engine_tokens = 413;
  const std::vector<Finding> findings = Diagnose(worker);
  ASSERT_THAT(CausesOf(findings), ElementsAre(Cause::kPromptDiffers));
  EXPECT_THAT(findings[0].evidence, testing::Contains(HasSubstr("4 of 16 prompts: 0 to +13")));
}

TEST(DiagnosisTest, PromptsWithoutTokensAreADomainsFinding) {
  std::vector<TokensMade> made;
  for (uint64_t i = 0; i < 54; ++i)
    made.push_back({.decision = i,
                    .at = seconds(i),
                    .no_tokens = i % 6 == 0 ? "" : "the template refuses: string and undefined"});
  const std::optional<Finding> finding = DiagnoseTokens({"m", ""}, made);
  ASSERT_TRUE(finding.has_value());
  EXPECT_EQ(finding->cause, Cause::kNoTokens);
  EXPECT_EQ(finding->worker.name, "");
  EXPECT_THAT(finding->evidence,
              ElementsAre(HasSubstr("45 of 54 requests for m"),
                          "the first reason: the template refuses: string and undefined"));
  EXPECT_EQ(finding->decisions.front(), 53u);
  made.resize(4);
  EXPECT_FALSE(DiagnoseTokens({"m", ""}, made).has_value());
}

TEST(DiagnosisTest, ServedByIsBelieved) {
  WorkerEvidence worker = Worker();
  for (int i = 0; i < 5; ++i) {
    Comparison& comparison = Add(&worker, 160, 0);
    comparison.served_by = {.name = "w0", .rank = 3, .replica = {}};
    comparison.other_rank_served = true;
  }
  const std::vector<Finding> findings = Diagnose(worker);
  ASSERT_THAT(CausesOf(findings), ElementsAre(Cause::kRankMixedUp));
  EXPECT_THAT(findings[0].evidence[0], HasSubstr("served by rank 3"));
  EXPECT_THAT(findings[0].decisions, ElementsAre(5, 4, 3, 2, 1));
}

TEST(DiagnosisTest, WhatAllWorkersShowIsTheDomains) {
  std::vector<WorkerEvidence> workers = {Worker("w0"), Worker("w1"), Worker("w2")};
  for (WorkerEvidence& worker : workers) {
    for (int i = 0; i < 6; ++i) Add(&worker, 0, 160);
    AddMissed(&worker, 3);
  }
  const std::vector<Finding> all = DiagnoseDomain(workers);
  ASSERT_THAT(CausesOf(all), ElementsAre(Cause::kHashContract));
  EXPECT_EQ(all[0].worker.name, "");
  EXPECT_EQ(all[0].workers.size(), 3u);
  // With one that is well it is theirs.
  WorkerEvidence well = Worker("w3");
  for (int i = 0; i < 6; ++i) Add(&well, 160, 160);
  workers.push_back(well);
  const std::vector<Finding> some = DiagnoseDomain(workers);
  ASSERT_EQ(some.size(), 3u);
  for (const Finding& finding : some) EXPECT_NE(finding.worker.name, "");
}

TEST(DiagnosisTest, WhatEachWorkerShowsTooLittleOfAllShowTogether) {
  std::vector<WorkerEvidence> workers;
  for (uint32_t i = 0; i < 4; ++i) {
    workers.push_back(Worker("w" + std::to_string(i)));
    for (uint32_t j = 0; j < 2; ++j) {
      Comparison& comparison = Add(&workers.back(), 0, 160);
      comparison.decision += i * 100;
      comparison.engine_tokens = 401;
      comparison.begins_with_bos = true;
    }
    EXPECT_THAT(Diagnose(workers.back()), IsEmpty());
  }
  const std::vector<Finding> findings = DiagnoseDomain(workers);
  ASSERT_THAT(CausesOf(findings), ElementsAre(Cause::kBosDoubled));
  EXPECT_GE(findings[0].workers.size(), 2u);
}

TEST(DiagnosisTest, EveryCauseHasItsWords) {
  for (int i = 0; i < kCauses; ++i) {
    const auto cause = static_cast<Cause>(i);
    EXPECT_NE(CauseName(cause), "");
    EXPECT_NE(CauseMeaning(cause), "");
    EXPECT_TRUE(CauseRemedy(cause).ends_with('.')) << CauseName(cause);
    EXPECT_TRUE(CauseTest(cause).ends_with('.')) << CauseName(cause);
  }
}

}  // namespace
}  // namespace kvatlas
