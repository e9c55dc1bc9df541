// Findings from prepared answers: mistakes that are hard to make with real processes, and states
// that are no mistake. Mistakes of real processes are in tests/doctor_test.cc.

#include "tools/kvatlas/findings.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tools/kvatlas/survey.h"

namespace kvatlas {
namespace {

constexpr int64_t kNowMs = 1'900'000'000'000;

// Two leaves and a node that agree.
Survey Healthy() {
  Survey survey;
  const auto add = [&](ServiceRole role, const std::string& address, const std::string& cell) {
    SurveyedNode node{.role = role, .addresses = {address}, .stats = {}, .asked = {}};
    node.asked = {kNowMs - 5, kNowMs + 5};
    node.stats.set_cell(cell);
    node.stats.set_contract("xxh3-chain-1:1337");
    node.stats.set_schedule("standard");
    v1::ProcessStats* process = node.stats.mutable_process();
    process->set_version("0.1.0");
    process->set_pid(survey.nodes.size() + 1);
    process->set_now_unix_ms(kNowMs);
    v1::DomainStats* domain = node.stats.add_domains();
    domain->mutable_domain()->set_model("m");
    domain->set_block_size(16);
    domain->set_digests_equal(10);
    v1::HolderStats* holder = domain->add_holder_stats();
    holder->mutable_holder()->set_name(role == ServiceRole::kLeaf ? "w-" + cell : "a");
    holder->set_trust(v1::TRUST_EXACT);
    holder->set_connected(true);
    holder->set_state("connected");
    if (role == ServiceRole::kHierarchy) {
      holder->set_address("10.0.0.1:7410");
    } else {
      v1::FlagStats* parents = process->add_flags();
      parents->set_name("parents");
      parents->set_value("10.0.0.9:7420");
    }
    survey.node_at[address] = survey.nodes.size();
    survey.nodes.push_back(std::move(node));
  };
  add(ServiceRole::kHierarchy, "10.0.0.9:7420", "top");
  add(ServiceRole::kLeaf, "10.0.0.1:7410", "a");
  add(ServiceRole::kLeaf, "10.0.0.2:7410", "b");
  return survey;
}

std::vector<FleetFinding> Check(const Survey& survey) {
  return FindingsOf(survey, {.now_unix_s = kNowMs / 1000});
}

// The one finding; its id is empty where there is none or another.
FleetFinding Only(const Survey& survey) {
  const std::vector<FleetFinding> findings = Check(survey);
  EXPECT_EQ(findings.size(), 1u);
  for (const FleetFinding& finding : findings)
    if (findings.size() > 1) ADD_FAILURE() << finding.id << " " << finding.what;
  return findings.size() == 1 ? findings.front() : FleetFinding();
}

TEST(FindingsTest, AHealthyFleetHasNone) {
  for (const FleetFinding& finding : Check(Healthy()))
    ADD_FAILURE() << finding.id << " " << finding.where << " " << finding.what;
}

TEST(FindingsTest, VersionsThatDiffer) {
  Survey survey = Healthy();
  survey.nodes[2].stats.mutable_process()->set_version("0.2.0");
  const FleetFinding finding = Only(survey);
  EXPECT_EQ(finding.id, "version_skew");
  EXPECT_EQ(finding.severity, Severity::kWarning);
  EXPECT_NE(finding.what.find("0.2.0 at leaf 10.0.0.2:7410 (cell b)"), std::string::npos)
      << finding.what;
}

TEST(FindingsTest, AClockThatIsAheadIsTheServicesNotOurs) {
  Survey survey = Healthy();
  survey.nodes[1].stats.mutable_process()->set_now_unix_ms(kNowMs + 10'000);
  const FleetFinding finding = Only(survey);
  EXPECT_EQ(finding.id, "clock_skew");
  EXPECT_EQ(finding.severity, Severity::kWarning);
  EXPECT_EQ(finding.where, "leaf 10.0.0.1:7410 (cell a)");
  survey.nodes[1].stats.mutable_process()->set_now_unix_ms(kNowMs - 3'600'000);
  EXPECT_EQ(Only(survey).severity, Severity::kError);
}

TEST(FindingsTest, AClockThatAllOthersDisagreeWithIsOurs) {
  Survey survey = Healthy();
  for (SurveyedNode& node : survey.nodes)
    node.stats.mutable_process()->set_now_unix_ms(kNowMs + 30'000);
  const FleetFinding finding = Only(survey);
  EXPECT_EQ(finding.id, "clock_skew");
  EXPECT_EQ(finding.where, "this host");
  EXPECT_NE(finding.what.find("behind"), std::string::npos) << finding.what;
}

TEST(FindingsTest, ASlowAnswerIsNoClockThatDiffers) {
  Survey survey = Healthy();
  survey.nodes[1].asked = {kNowMs - 20'000, kNowMs + 10};
  EXPECT_TRUE(Check(survey).empty());
}

TEST(FindingsTest, DigestsThatDiffered) {
  Survey survey = Healthy();
  survey.nodes[1].stats.mutable_domains(0)->set_digests_different(2);
  const FleetFinding finding = Only(survey);
  EXPECT_EQ(finding.id, "digests_differ");
  EXPECT_NE(finding.what.find("2 of 12 digests"), std::string::npos) << finding.what;
}

TEST(FindingsTest, CellsThatTellALoopbackAddressToAnotherHost) {
  Survey survey = Healthy();
  survey.nodes[0].stats.mutable_domains(0)->mutable_holder_stats(0)->set_address("127.0.0.1:7410");
  EXPECT_EQ(Only(survey).id, "address");
  // On one host it is an address like another.
  survey.nodes[0].addresses = {"127.0.0.1:7420"};
  EXPECT_TRUE(Check(survey).empty());
}

TEST(FindingsTest, DisksThatHoldNoFurtherCheckpoint) {
  Survey survey = Healthy();
  v1::CheckpointStats* checkpoint = survey.nodes[1].stats.mutable_checkpoint();
  checkpoint->set_directory("/var/lib/kvatlas");
  checkpoint->set_bytes(100 << 20);
  checkpoint->set_free_bytes(1 << 30);
  EXPECT_TRUE(Check(survey).empty());
  checkpoint->set_free_bytes(50 << 20);
  EXPECT_EQ(Only(survey).severity, Severity::kWarning);
  checkpoint->set_last_error("RESOURCE_EXHAUSTED: No space left on device");
  const FleetFinding finding = Only(survey);
  EXPECT_EQ(finding.id, "checkpoint");
  EXPECT_EQ(finding.severity, Severity::kError);
}

TEST(FindingsTest, ALeafThatCouldReadNoneOfItsCheckpoints) {
  Survey survey = Healthy();
  survey.nodes[1].stats.mutable_checkpoint()->set_restore_error("none can be read");
  const FleetFinding finding = Only(survey);
  EXPECT_EQ(finding.id, "checkpoint");
  EXPECT_EQ(finding.severity, Severity::kWarning);
}

// The workers that publish through it are all well.
TEST(FindingsTest, ARedisThatIsAwayIsNamedAndNotTheWorkers) {
  Survey survey = Healthy();
  v1::StatsResponse& leaf = survey.nodes[1].stats;
  leaf.mutable_redis()->set_connected(true);
  EXPECT_TRUE(Check(survey).empty());
  leaf.mutable_redis()->set_connected(false);
  leaf.mutable_redis()->set_reason("Connection refused");
  v1::HolderStats* holder = leaf.mutable_domains(0)->mutable_holder_stats(0);
  holder->set_trust(v1::TRUST_STALE);
  holder->set_connected(false);
  holder->set_masked(true);
  SurveyedPage frontend{
      .kind = "frontend", .address = "10.0.0.3:8092", .status = {}, .diagnosis = {}, .asked = {}};
  frontend.status = {{"hierarchies", {"10.0.0.9:7420"}},
                     {"leaves", nlohmann::json::array()},
                     {"schedule", "standard"},
                     {"contract", "xxh3-chain-1:1337"},
                     {"routes", 0}};
  frontend.diagnosis = {
      {"findings", {{{"cause", "publisher_dead"}, {"worker", "w-a"}, {"cell", "a"}}}}};
  survey.pages.push_back(frontend);
  FleetFinding finding = Only(survey);
  EXPECT_EQ(finding.id, "redis_unreachable");
  EXPECT_EQ(finding.where, "leaf 10.0.0.1:7410 (cell a)");
  EXPECT_NE(finding.what.find("Connection refused"), std::string::npos) << finding.what;
  // A full Redis is reached, and takes nothing.
  survey.pages.clear();
  leaf.mutable_redis()->set_connected(true);
  leaf.mutable_redis()->clear_reason();
  leaf.mutable_redis()->set_writes_refused("OOM command not allowed");
  finding = Only(survey);
  EXPECT_EQ(finding.id, "redis_unreachable");
  EXPECT_NE(finding.what.find("OOM"), std::string::npos) << finding.what;
}

TEST(FindingsTest, CertificatesByTheirEnd) {
  const auto with = [](int64_t ends_in_s, const std::string& chain_error = "") {
    Survey survey = Healthy();
    Certificate certificate{.service = survey.nodes[1].Name(),
                            .address = "10.0.0.1:7410",
                            .tls = {.connected = absl::OkStatus(),
                                    .speaks_tls = true,
                                    .names = {},
                                    .chain_error = chain_error,
                                    .name = absl::OkStatus()}};
    certificate.tls.names.not_after_unix_s = kNowMs / 1000 + ends_in_s;
    survey.certificates.push_back(std::move(certificate));
    return survey;
  };
  EXPECT_TRUE(Check(with(30 * 24 * 3600)).empty());
  EXPECT_EQ(Only(with(3 * 24 * 3600)).id, "certificate_ends");
  EXPECT_EQ(Only(with(-60)).id, "certificate_invalid");
  EXPECT_EQ(Only(with(30 * 24 * 3600, "self-signed certificate")).id, "certificate_invalid");
}

TEST(FindingsTest, AReplicaOfTheHierarchyThatALeafDoesNotReportTo) {
  Survey survey = Healthy();
  SurveyedNode other = survey.nodes[0];
  other.addresses = {"10.0.0.10:7420"};
  other.stats.mutable_process()->set_pid(99);
  survey.node_at["10.0.0.10:7420"] = survey.nodes.size();
  survey.nodes.push_back(other);
  SurveyedPage frontend{
      .kind = "frontend", .address = "10.0.0.3:8092", .status = {}, .diagnosis = {}, .asked = {}};
  frontend.status = {{"hierarchies", {"10.0.0.9:7420", "10.0.0.10:7420"}},
                     {"leaves", nlohmann::json::array()},
                     {"schedule", "standard"},
                     {"contract", "xxh3-chain-1:1337"},
                     {"routes", 0}};
  survey.pages.push_back(frontend);
  std::set<std::string> where;
  for (const FleetFinding& finding : Check(survey)) {
    EXPECT_EQ(finding.id, "parent_missing");
    EXPECT_NE(finding.remedy.find("10.0.0.10:7420"), std::string::npos) << finding.remedy;
    where.insert(finding.where);
  }
  EXPECT_EQ(where.size(), 2u);
}

TEST(FindingsTest, TheWorstComeFirst) {
  Survey survey = Healthy();
  survey.nodes[0].stats.mutable_process()->set_version("0.2.0");
  survey.nodes[2].stats.set_contract("xxh3-chain-1:7");
  const std::vector<FleetFinding> findings = Check(survey);
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].id, "seed_mismatch");
  EXPECT_EQ(findings[0].remedy, "start it with --contract_seed=1337");
  EXPECT_EQ(findings[1].id, "version_skew");
}

TEST(FindingsTest, MessagesOfAnEngineThatWereLost) {
  Survey survey = Healthy();
  v1::HolderStats* holder = survey.nodes[1].stats.mutable_domains(0)->mutable_holder_stats(0);
  holder->mutable_engine()->set_replay("connected");
  EXPECT_TRUE(Check(survey).empty());
  holder->mutable_engine()->set_messages_lost(3);
  const FleetFinding finding = Only(survey);
  EXPECT_EQ(finding.id, "messages_lost");
  EXPECT_NE(finding.what.find("3 messages"), std::string::npos) << finding.what;
}

TEST(FindingsTest, AWorkerWhoseEventsDoNotShowWhatWasSentThere) {
  Survey survey = Healthy();
  v1::PendingStats* pending =
      survey.nodes[1].stats.mutable_domains(0)->mutable_holder_stats(0)->mutable_pending();
  pending->set_told(200);
  pending->set_confirmed(60);
  pending->set_contradicted(20);
  pending->set_failed(120);  // says nothing of events
  EXPECT_TRUE(Check(survey).empty()) << "most were confirmed";
  pending->set_confirmed(4);
  EXPECT_TRUE(Check(survey).empty()) << "too few to say";
  pending->set_contradicted(60);
  const FleetFinding finding = Only(survey);
  EXPECT_EQ(finding.id, "prompts_unconfirmed");
  EXPECT_NE(finding.what.find("of 64 prompts"), std::string::npos) << finding.what;
  EXPECT_NE(finding.what.find("60 were not followed"), std::string::npos) << finding.what;
}

TEST(FindingsTest, AnEngineOfWhichSomeEventsHaveBlocksOfAnotherSize) {
  Survey survey = Healthy();
  v1::HolderStats* holder = survey.nodes[1].stats.mutable_domains(0)->mutable_holder_stats(0);
  holder->mutable_engine()->set_replay("connected");
  (*holder->mutable_engine()->mutable_refused())["block_size"] = 2;
  holder->mutable_engine()->set_last_refusal("an event's block size is 32, the domain's 16");
  const FleetFinding finding = Only(survey);
  EXPECT_EQ(finding.id, "block_size_mismatch");
  EXPECT_NE(finding.what.find("2 of its events"), std::string::npos) << finding.what;
  EXPECT_NE(finding.what.find("32, the domain's 16"), std::string::npos) << finding.what;
}

// The effects of its silence are no findings then.
TEST(FindingsTest, AnEngineThatIsNotReachedIsOneFindingThatNamesTheFlagOfItsProgram) {
  for (const auto& [program, flag] :
       {std::pair("kvatlas-leaf", "mend its endpoint in --workers"),
        std::pair("kvatlas-serve", "mend its endpoint in --engine")}) {
    Survey survey = Healthy();
    v1::StatsResponse& stats = survey.nodes[1].stats;
    stats.mutable_process()->set_program(program);
    v1::HolderStats* holder = stats.mutable_domains(0)->mutable_holder_stats(0);
    holder->mutable_engine()->set_replay("connected");
    holder->set_masked(true);
    holder->set_state("unreachable");
    holder->set_reason("tcp://10.0.0.5:5557: Connection refused");
    const FleetFinding finding = Only(survey);
    EXPECT_EQ(finding.id, "engine_stream");
    EXPECT_NE(finding.remedy.find(flag), std::string::npos) << finding.remedy;
  }
}

// A leaf's engine with blocks of 64 tokens, as its own metrics have it.
Survey WithEngineOf64(const std::string& program, uint32_t learned) {
  Survey survey = Healthy();
  v1::StatsResponse& stats = survey.nodes[1].stats;
  stats.mutable_process()->set_program(program);
  v1::HolderStats* holder = stats.mutable_domains(0)->mutable_holder_stats(0);
  holder->mutable_engine()->set_replay("connected");
  holder->mutable_engine()->set_block_size(learned);
  (*holder->mutable_labels())["url"] = "http://10.0.0.5:8000";
  survey.engines = EnginesNamedIn(survey);
  for (SurveyedEngine& engine : survey.engines)
    engine.facts = EngineFacts{.kind = kVllm, .block_size = 64};
  return survey;
}

// Until then its domain has a size that only stands in for it.
TEST(FindingsTest, AHealthyEngineBeforeItsFirstEventHasNoOtherBlockSize) {
  Survey survey = WithEngineOf64("kvatlas-serve", 0);
  ASSERT_EQ(survey.engines.size(), 1u);
  EXPECT_TRUE(Check(survey).empty()) << Check(survey)[0].what;
  // An engine that computes and announces nothing is a finding as before.
  survey.engines[0].facts->prompt_tokens = 500;
  EXPECT_EQ(Only(survey).id, "engine_no_events");
}

// Both ports go up by the rank.
TEST(FindingsTest, TheEventsThatAnEngineIsToldToHaveLeaveRoomForRanks) {
  Survey survey = WithEngineOf64("kvatlas-serve", 0);
  survey.engines[0].facts->kv_events = false;
  const std::string remedy = Only(survey).remedy;
  EXPECT_NE(remedy.find("tcp://*:5557"), std::string::npos) << remedy;
  EXPECT_NE(remedy.find("tcp://*:5657"), std::string::npos) << remedy;
}

TEST(FindingsTest, ARemedyNamesFlagsThatTheProgramHas) {
  for (const auto& [program, registers] :
       {std::pair("kvatlas-leaf", true), std::pair("kvatlas-serve", false)}) {
    Survey survey = WithEngineOf64(program, 16);
    const FleetFinding by_metrics = Only(survey);
    EXPECT_EQ(by_metrics.id, "block_size_mismatch");
    EXPECT_EQ(by_metrics.remedy.find("block_size=auto") != std::string::npos, registers)
        << by_metrics.remedy;
    survey.engines.clear();
    v1::EngineStats* engine =
        survey.nodes[1].stats.mutable_domains(0)->mutable_holder_stats(0)->mutable_engine();
    (*engine->mutable_refused())["block_size"] = 2;
    const FleetFinding by_events = Only(survey);
    EXPECT_EQ(by_events.id, "block_size_mismatch");
    EXPECT_EQ(by_events.remedy.find("block_size=auto") != std::string::npos, registers)
        << by_events.remedy;
    EXPECT_NE(by_events.remedy.find("--block-size"), std::string::npos) << by_events.remedy;
  }
}

TEST(FindingsTest, AnEngineWithAnApiKeyIsNoEngineThatIsAway) {
  Survey survey = Healthy();
  SurveyedEngine engine;
  engine.url = "http://10.0.0.5:8000";
  engine.facts = absl::PermissionDeniedError("GET /v1/models answered 401");
  survey.engines.push_back(engine);
  const FleetFinding finding = Only(survey);
  EXPECT_EQ(finding.id, "engine_asks_for_key");
  EXPECT_EQ(finding.severity, Severity::kWarning);
}

}  // namespace
}  // namespace kvatlas
