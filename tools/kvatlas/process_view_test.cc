#include "tools/kvatlas/process_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvatlas {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Json = nlohmann::json;

const Address kAsked{"10.0.0.1", 8090};

TEST(ProcessViewTest, ALeafSaysWhatItHoldsAndWhatIsWrong) {
  const ProcessView view = ViewOf({ServiceRole::kLeaf, kAsked}, Json::parse(R"({
    "cell": "a", "replica": "b", "queries": "1204",
    "process": {"program": "kvatlas-leaf", "version": "0.1.0", "uptime_ms": "61000",
                "listens": {"grpc": "0.0.0.0:7410", "http": "0.0.0.0:8090"}},
    "memory": {"level": "tight", "used_bytes": "80", "budget_bytes": "100"},
    "domains": [{"domain": {"model": "m", "tenant": ""}, "blocks": "28", "holder_stats": [
      {"holder": {"name": "w0"}, "trust": "TRUST_EXACT", "state": "connected"},
      {"holder": {"name": "w1", "rank": 1}, "trust": "TRUST_DEGRADED", "state": "connected"},
      {"holder": {"name": "w2"}, "trust": "TRUST_STALE", "state": "unreachable",
       "reason": "tcp://h:1: Connection refused"}]}],
    "refused": [{"holder": {"name": "w3"}, "reason": "block size 32, the domain has 16"}],
    "parents": [{"address": "10.0.0.9:7420", "connected": false, "state": "unreachable",
                 "reason": "Connection refused"}]})"));
  EXPECT_EQ(view.program, "leaf");
  EXPECT_EQ(view.name, "a@b");
  EXPECT_EQ(view.version, "0.1.0");
  EXPECT_EQ(view.up_ms, 61000u);
  EXPECT_EQ(view.address, "10.0.0.1:7410 :8090");
  EXPECT_EQ(view.holds, "3 workers, 28 blocks of m");
  EXPECT_EQ(view.does, "1,204 queries");
  EXPECT_THAT(view.attention, ElementsAre("worker w1/1 degraded",
                                          "worker w2 unreachable: tcp://h:1: Connection refused",
                                          "stream of w3 refused: block size 32, the domain has 16",
                                          "parent 10.0.0.9:7420 unreachable: Connection refused",
                                          "memory tight: 80 of 100 bytes"));
}

TEST(ProcessViewTest, AFrontendSaysWhatItRouted) {
  const ProcessView view = ViewOf({ServiceRole::kFrontend, {"127.0.0.1", 8092}}, Json::parse(R"({
    "hierarchies": ["127.0.0.1:7420"], "leaves": ["a=127.0.0.1:7410"], "routes": 12, "failed": 1,
    "by_fallback": {"none": 9, "load_only": 3}, "in_flight": 2, "workers_remembered": 4})"));
  EXPECT_EQ(view.program, "frontend");
  EXPECT_EQ(view.does, "12 routes, 1 failed, fallback: 3 load_only");
  EXPECT_EQ(view.holds, "4 workers seen, 2 in flight");
  EXPECT_THAT(view.attention, IsEmpty());
}

TEST(ProcessViewTest, AnEngineThatIsGoneIsSomethingToLookAt) {
  const ProcessView view = ViewOf({ServiceRole::kFrontend, {"127.0.0.1", 8094}}, Json::parse(R"({
    "routes": 12, "failed": 0, "by_fallback": {"none": 12}, "truth": {"findings": [
    {"cause": "engine_unreachable", "confidence": 0.99, "domain": "m", "cell": "c", "worker": "a",
     "rank": 0, "evidence": ["it has not answered for 3.0 s: connection refused"]}]}})"));
  EXPECT_THAT(view.attention, ElementsAre("engine_unreachable of a for m: it has not answered for "
                                          "3.0 s: connection refused"));
}

TEST(ProcessViewTest, ANodeSaysHowManyCellsItHas) {
  const ProcessView view = ViewOf({ServiceRole::kHierarchy, {"127.0.0.1", 8091}}, Json::parse(R"({
    "cell": "top", "queries": "1", "domains": [{"domain": {"model": "m", "tenant": "t"},
    "blocks": "5", "holder_stats": [{"holder": {"name": "a"}, "state": "connected",
    "trust": "TRUST_EXACT", "address": "127.0.0.1:7410"}]}]})"));
  EXPECT_EQ(view.name, "top");
  EXPECT_EQ(view.holds, "1 cell, 5 waypoints of m/t");
  EXPECT_EQ(view.does, "1 query");
}

TEST(ProcessViewTest, ReplicasOfACellAreOneCell) {
  const ProcessView view = ViewOf({ServiceRole::kHierarchy, {"127.0.0.1", 8091}}, Json::parse(R"({
    "cell": "top", "domains": [{"domain": {"model": "m"}, "blocks": "5", "holder_stats": [
    {"holder": {"name": "a", "replica": "x"}, "state": "connected", "trust": "TRUST_EXACT"},
    {"holder": {"name": "a", "replica": "y"}, "state": "connected", "trust": "TRUST_STALE"}]}]})"));
  EXPECT_EQ(view.holds, "1 cell, 5 waypoints of m");
  EXPECT_THAT(view.attention, ElementsAre("cell a@y stale")) << "each replica for itself";
}

TEST(ProcessViewTest, ARelayThatIsNotReadySaysWhy) {
  const ProcessView view = ViewOf({ServiceRole::kRelay, {"127.0.0.1", 8093}}, Json::parse(R"({
    "program": "kvatlas-relay", "version": "0.1.0", "ready": false, "reason": "no worker yet",
    "leaves": ["127.0.0.1:7410"], "blocks": 4, "workers": [{"worker": "e1", "streams": [
    {"state": "unreachable", "reason": "tcp://h:5557: Connection refused"}], "ranks": [
    {"trust": "degraded", "doubt": "a gap", "leaves": [{"leaf": "127.0.0.1:7410",
    "state": "connected"}]}]}]})"));
  EXPECT_EQ(view.state, "not ready: no worker yet");
  EXPECT_EQ(view.holds, "1 worker, 4 blocks");
  EXPECT_THAT(view.attention, ElementsAre("engine e1 unreachable: tcp://h:5557: Connection refused",
                                          "worker e1 degraded: a gap"));
}

TEST(ProcessViewTest, ALongListIsCut) {
  Json status = {{"cell", "a"}, {"domains", Json::array()}};
  Json domain = {{"domain", {{"model", "m"}}}, {"holder_stats", Json::array()}};
  for (int i = 0; i < 20; ++i)
    domain["holder_stats"].push_back(
        {{"holder", {{"name", "w" + std::to_string(i)}}}, {"masked", true}});
  status["domains"].push_back(domain);
  const ProcessView view = ViewOf({ServiceRole::kLeaf, kAsked}, status);
  ASSERT_EQ(view.attention.size(), 9u);
  EXPECT_EQ(view.attention.back(), "and 12 more");
}

TEST(ProcessViewTest, ASurveyIsSeenByProgramAndSaysWhatIsMissing) {
  Survey survey;
  SurveyedNode node{
      .role = ServiceRole::kLeaf, .addresses = {"127.0.0.1:7410"}, .stats = {}, .asked = {}};
  node.stats.set_cell("a");
  node.readiness = "not ready: restoring a checkpoint";
  survey.nodes.push_back(node);
  survey.unreached.push_back({.kind = "hierarchy",
                              .address = "127.0.0.1:7420",
                              .told_by = "leaf 127.0.0.1:7410 (cell a)",
                              .cell = "",
                              .why = absl::UnavailableError("hierarchy 127.0.0.1:7420: refused"),
                              .tls = {}});
  const std::vector<ProcessView> views = ViewsOf(survey);
  ASSERT_EQ(views.size(), 2u);
  EXPECT_EQ(views[0].program, "hierarchy");
  EXPECT_FALSE(views[0].reached);
  EXPECT_EQ(views[0].state, "unreachable: refused");
  EXPECT_THAT(views[0].attention, ElementsAre("named by leaf 127.0.0.1:7410 (cell a)"));
  EXPECT_EQ(views[1].program, "leaf");
  EXPECT_EQ(views[1].state, "not ready: restoring a checkpoint");
}

}  // namespace
}  // namespace kvatlas
