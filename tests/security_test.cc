// What one tenant can learn of another: nothing, at a whole cluster, over gRPC and HTTP, by
// answers, sizes and times.

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "tests/security_test_util.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;

constexpr char kJson[] = "-H 'content-type: application/json' ";

// What another tenant has is as unknown as what does not exist.
TEST_F(SecurityTest, AForeignTenantIsAsUnknownAsNone) {
  StartCluster(1, 1);
  WritePolicy("[]");
  AwaitReloads(1);
  auto leaf = v1::Leaf::NewStub(
      MakeChannel(cluster_->leaf(0), {.security = As("leaf/cell-0/-"), .own_connection = true}));
  const auto ask = [&](const std::string& model, const std::string& tenant) {
    v1::FindOverlapsRequest request;
    request.mutable_domain()->set_model(model);
    request.mutable_domain()->set_tenant(tenant);
    request.add_sequence_hashes(7);
    v1::FindOverlapsResponse answer;
    grpc::ClientContext context;
    return leaf->FindOverlaps(&context, request, &answer);
  };
  // The cluster's domain is known once its worker said hello.
  EXPECT_TRUE(Await([&] { return ask("mock", "").ok(); }, kLong));
  const grpc::Status foreign = ask("mock", "foreign");
  const grpc::Status nowhere = ask("mocc", "foreign");
  EXPECT_EQ(foreign.error_code(), grpc::StatusCode::NOT_FOUND) << foreign.error_message();
  EXPECT_EQ(nowhere.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(foreign.error_message().size(), nowhere.error_message().size());
  const std::string http = cluster_->address("leaf-0", "http");
  const auto query = [&](const std::string& model, const std::string& group) {
    return Curl("leaf/cell-0/-", http, "/query_by_hash",
                absl::StrCat(kJson, "-d '{\"model_name\":\"", model, "\",\"routing_group\":\"",
                             group, "\",\"block_hashes\":[1]}'"));
  };
  EXPECT_EQ(query("mock", "foreign").size(), query("mocc", "foreign").size());
  EXPECT_THAT(query("mock", "foreign"), HasSubstr("404"));
}

// The probability that two samples of one distribution differ as much (Kolmogorov and Smirnov; the
// asymptotic form of Numerical Recipes, 14.3).
double SameDistribution(std::vector<double> a, std::vector<double> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  const double n = static_cast<double>(a.size());
  const double m = static_cast<double>(b.size());
  double largest = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const double at = std::min(a[i], b[j]);
    while (i < a.size() && a[i] <= at) ++i;
    while (j < b.size() && b[j] <= at) ++j;
    largest = std::max(largest, std::abs(static_cast<double>(i) / n - static_cast<double>(j) / m));
  }
  const double effective = std::sqrt(n * m / (n + m));
  const double lambda = (effective + 0.12 + 0.11 / effective) * largest;
  double p = 0;
  for (int k = 1; k <= 100; ++k) {
    p += 2 * (k % 2 == 1 ? 1 : -1) * std::exp(-2 * k * k * lambda * lambda);
  }
  return lambda < 0.2 ? 1 : std::clamp(p, 0.0, 1.0);
}

TEST(SameDistributionTest, TellsShiftedSamplesApartAndEqualOnesNot) {
  std::mt19937 random(1);
  std::exponential_distribution<double> draw(1);
  std::vector<double> a, b, shifted;
  for (int i = 0; i < 400; ++i) {
    a.push_back(draw(random));
    b.push_back(draw(random));
    shifted.push_back(draw(random) + 0.3);
  }
  EXPECT_GT(SameDistribution(a, b), 0.01);
  EXPECT_LT(SameDistribution(a, shifted), 0.001);
}

// Its bytes, but for numbers that grow or are times of this one answer.
double WithoutNumbers(v1::RouteResponse answer) {
  answer.clear_decision_id();
  answer.clear_cache_salt();  // 32 characters, another for each prompt
  v1::Receipt* const receipt = answer.mutable_receipt();
  receipt->clear_find_cells_us();
  receipt->clear_find_overlaps_us();
  receipt->clear_total_us();
  receipt->clear_queued_us();
  for (auto* const asked : {receipt->mutable_cells(), receipt->mutable_nodes()}) {
    for (v1::CellAsked& one : *asked) {
      one.clear_age_ms();
      one.clear_us();
    }
  }
  for (v1::Candidate& candidate : *receipt->mutable_candidates()) {
    candidate.clear_age_ms();
    // What else the engine does at that moment.
    candidate.clear_queue_cost();
    candidate.clear_decode_cost();
    candidate.clear_memory_cost();
    candidate.clear_siblings_cost();
    candidate.clear_crowding_cost();
  }
  return static_cast<double>(answer.ByteSizeLong());
}

// Two tenants share an engine. One has prompts in its cache; the other guesses them. Guesses in
// all: TEST_GUESSES, 400 unless said.
TEST_F(SecurityTest, GuessesAtAnotherTenantsPromptsLearnNothing) {
  ClusterOptions options;
  options.cells = options.workers = 1;
  options.capacity = 1 << 16;
  options.engine_args = {"--http=127.0.0.1:0"};
  // What is answered late, by load alone, has another size.
  options.frontend_args = {"--deadline=60s"};
  StartCluster(std::move(options));
  const std::string salt = cluster_->logs() + "/salt";
  std::ofstream(salt) << "a secret of thirty characters..";
  ASSERT_EQ(chmod(salt.c_str(), 0600), 0);
  const std::string tenant = R"({"salt": "@)" + salt + R"(", "pool": ""})";
  WritePolicy(
      "[]",
      std::string(kRules) +
          R"(, {"identity": "gateway/y", "allow": ["route", "feedback"], "tenants": ["y"]})",
      R"(, "tenants": {"x": )" + tenant + R"(, "y": )" + tenant + "}");
  AwaitReloads(1);
  const char* const told = std::getenv("TEST_GUESSES");
  const int guesses = told == nullptr ? 400 : std::stoi(told);
  auto x = v1::Frontend::NewStub(
      MakeChannel(cluster_->frontend(), {.security = As("gateway/g"), .own_connection = true}));
  auto y = v1::Frontend::NewStub(
      MakeChannel(cluster_->frontend(), {.security = As("gateway/y"), .own_connection = true}));
  std::mt19937 random(20261124);
  const uint32_t tokens = 2 * kTokensPerHashId / kSplit + 1;
  const auto prompt = [&] {
    v1::RouteRequest request;
    request.mutable_domain()->set_model("mock");
    for (uint32_t i = 0; i < tokens; ++i) request.mutable_tokens()->add_ids(random() % 50000);
    return request;
  };
  // The answer, with the seconds it took; the choice is given back at once.
  const auto route = [&](v1::Frontend::Stub& as, const v1::RouteRequest& request) {
    v1::RouteResponse answer;
    grpc::ClientContext context;
    const Time asked = Clock::Real().Now();
    const grpc::Status status = as.Route(&context, request, &answer);
    const double took = std::chrono::duration<double>(Clock::Real().Now() - asked).count();
    EXPECT_TRUE(status.ok()) << status.error_message();
    v1::ReportRequest over;
    over.set_decision_id(answer.decision_id());
    over.set_finished(true);
    v1::ReportResponse none;
    grpc::ClientContext reporting;
    as.Report(&reporting, over, &none);
    return std::pair(std::move(answer), took);
  };
  std::vector<v1::RouteRequest> cached;
  const std::string engine = cluster_->address("worker-0-0", "http");
  std::string bodies = cluster_->logs() + "/bodies";
  for (int i = 0; i < guesses; ++i) {
    cached.push_back(prompt());
    const v1::RouteResponse answer = route(*x, cached.back()).first;
    ASSERT_EQ(answer.cache_salt().size(), 32);
    std::string ids;
    for (uint32_t id : cached.back().tokens().ids())
      absl::StrAppend(&ids, ids.empty() ? "" : ",", id);
    std::ofstream(bodies + std::to_string(i))
        << R"({"model":"mock","max_tokens":1,"cache_salt":")" << answer.cache_salt()
        << R"(","prompt":[)" << ids << "]}";
  }
  // The engine serves them, all over a few connections.
  std::string command = "for i in $(seq 0 " + std::to_string(guesses - 1) +
                        "); do printf 'next\\nurl = \"http://" + engine +
                        "/v1/completions\"\\noutput = \"/dev/null\"\\nheader = \"content-type: "
                        "application/json\"\\ndata = \"@" +
                        bodies + "%d\"\\n' $i; done | tail -n +2 | curl -sS -K -";
  ASSERT_EQ(system(command.c_str()), 0);
  EXPECT_TRUE(Await([&] { return route(*x, cached.back()).first.overlap_blocks() > 0; }, kLong));
  int hits = 0;
  for (const v1::RouteRequest& one : cached) hits += route(*x, one).first.overlap_blocks() > 0;
  EXPECT_EQ(hits, guesses);
  // A test that tells equal distributions apart at 0.01 errs once in a hundred times: three tries,
  // each with other prompts.
  double p = 0;
  std::vector<double> guessed_bytes, unseen_bytes;
  for (int attempt = 0; attempt < 3 && p <= 0.01; ++attempt) {
    std::vector<double> guessed, unseen;
    for (int i = 0; i < guesses; ++i) {
      const v1::RouteRequest other = prompt();
      for (const bool guess : {i % 2 == 0, i % 2 != 0}) {
        const auto [answer, took] = route(*y, guess ? cached[static_cast<size_t>(i)] : other);
        (guess ? guessed : unseen).push_back(took);
        (guess ? guessed_bytes : unseen_bytes).push_back(WithoutNumbers(answer));
        ASSERT_EQ(answer.overlap_blocks(), 0);
      }
    }
    p = SameDistribution(std::move(guessed), std::move(unseen));
  }
  EXPECT_GT(p, 0.01);
  // Every answer has the same status and the same size.
  EXPECT_EQ(guessed_bytes, unseen_bytes);
  EXPECT_EQ(std::set<double>(guessed_bytes.begin(), guessed_bytes.end()).size(), 1u);
}

}  // namespace
}  // namespace kvatlas
