// Who may do what at the processes of a whole cluster: every role, over gRPC and HTTP, against one table; and certificates and
// policies that change while requests are routed.

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "indexer/service/grpc_channel.h"
#include "indexer/service/security/pki.h"
#include "indexer/service/security/security.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "proto/kvatlas/v1/truth.grpc.pb.h"
#include "tools/cluster/client.h"
#include "tools/cluster/cluster.h"
#include "tools/cluster/replay.h"
#include "tools/cluster/report.h"
#include "tools/trace/trace.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::seconds kLong(60);
constexpr uint32_t kSplit = 4;

constexpr char kRules[] = R"(
  {"identity": "worker/*/*", "allow": ["publish"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "leaf/*/*", "allow": ["report", "snapshot", "query"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "node/*", "allow": ["report", "query"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "frontend/*", "allow": ["query", "status"], "tenants": ["", "x"]},
  {"identity": "gateway/g", "allow": ["route", "feedback"], "tenants": ["x"]},
  {"identity": "operator/*", "allow": ["*"], "tenants": ["*"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "viewer/*", "allow": ["status", "metrics"]})";

// The same as a table of its own: what a role may do.
const std::map<std::string, std::set<std::string>>& MayDo() {
  static const auto* const may = new std::map<std::string, std::set<std::string>>{
      {"", {}},
      {"worker/cell-0/worker-0-0", {"publish"}},
      {"leaf/cell-0/-", {"report", "snapshot", "query"}},
      {"leaf/cell-9/-", {"report", "query"}},  // of another cell
      {"node/n", {"report", "query"}},
      {"frontend/f", {"query", "status"}},
      {"gateway/g", {"route", "feedback"}},
      {"operator/o",
       {"publish", "report", "snapshot", "query", "route", "feedback", "dump", "register",
        "operate", "status", "metrics"}},
      {"viewer/v", {"status", "metrics"}}};
  return *may;
}

class SecurityTest : public testing::Test {
 protected:
  void StartCluster(uint32_t cells, uint32_t workers, uint64_t capacity = 400,
                    std::vector<std::string> engine_args = {}) {
    ClusterOptions options;
    options.cells = cells;
    options.workers = workers;
    options.capacity = capacity;
    options.engine_args = std::move(engine_args);
    options.block_size = kTokensPerHashId / kSplit;
    options.secure = true;
    absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
  }

  ~SecurityTest() override { Security::SetOfProcess(Security::Open()); }

  void WritePolicy(const std::string& revoked, const std::string& rules = kRules,
                   const std::string& more = "") {
    const std::string path = cluster_->pki()->policy_path();
    {
      std::ofstream file(path + ".new");
      file << R"({"version": 1, "trust_domain": ")" << cluster_->pki()->trust_domain()
           << R"(", "rules": [)" << rules << R"(], "revoked": )" << revoked << more << "}";
    }
    ASSERT_EQ(rename((path + ".new").c_str(), path.c_str()), 0);
  }

  // Every process has read the policy again so many times.
  void AwaitReloads(int times) {
    for (const char* process : {"leaf-0", "hierarchy", "frontend"}) {
      EXPECT_TRUE(Await(
          [&] {
            const std::string text =
                Curl("operator/o", cluster_->address(process, "http"), "/metrics");
            const std::string name = "\nkvatlas_security_reloads_total ";
            const size_t at = text.find(name);
            return at != std::string::npos && std::stoi(text.substr(at + name.size())) >= times;
          },
          kLong))
          << process;
    }
  }

  const TlsPaths& FilesOf(const std::string& identity) {
    TlsPaths& paths = files_[identity];
    if (paths.ca.empty()) {
      absl::StatusOr<TlsPaths> issued = cluster_->pki()->Issue(
          {.identity = identity, .name = "test-" + std::to_string(files_.size())});
      EXPECT_TRUE(issued.ok()) << issued.status();
      if (issued.ok()) paths = *std::move(issued);
    }
    return paths;
  }

  // The body, and the status as its last three characters.
  std::string Curl(const std::string& identity, const std::string& address, const std::string& path,
                   const std::string& more = "") {
    std::string command = absl::StrCat("curl -sS -m 20 -o - -w '%{http_code}' --cacert ",
                                       cluster_->pki()->ca_path(), " ", more);
    if (!identity.empty()) {
      const TlsPaths& files = FilesOf(identity);
      absl::StrAppend(&command, " --cert ", files.certificate, " --key ", files.key);
    }
    absl::StrAppend(&command, " 'https://", address, path, "' 2>&1");
    FILE* const pipe = popen(command.c_str(), "r");
    std::string out;
    char bytes[4096];
    for (size_t got; (got = fread(bytes, 1, sizeof(bytes), pipe)) > 0;) out.append(bytes, got);
    pclose(pipe);
    return out;
  }

  std::shared_ptr<Security> As(const std::string& identity) {
    SecurityOptions options;
    options.process = "test";
    if (identity.empty()) {
      options.tls.ca = cluster_->pki()->ca_path();
    } else {
      options.tls = FilesOf(identity);
    }
    absl::StatusOr<std::shared_ptr<Security>> security = Security::Start(std::move(options));
    EXPECT_TRUE(security.ok()) << security.status();
    return *security;
  }

  std::string AuditOf(const std::string& name) const {
    std::stringstream text;
    text << std::ifstream(cluster_->logs() + "/" + name + ".audit").rdbuf();
    return text.str();
  }

  std::unique_ptr<Cluster> cluster_;
  std::map<std::string, TlsPaths> files_;
};

struct HttpCase {
  const char* process;
  const char* path;
  const char* verb;
  const char* more = "";
};

constexpr char kJson[] = "-H 'content-type: application/json' ";

TEST_F(SecurityTest, EveryRoleOverHttpDoesWhatTheTableSays) {
  StartCluster(1, 1);
  WritePolicy("[]");
  AwaitReloads(1);
  const std::vector<HttpCase> cases = {
      {"leaf-0", "/healthz", "health"},
      {"leaf-0", "/ready", "health"},
      {"leaf-0", "/status", "status"},
      {"leaf-0", "/metrics", "metrics"},
      {"leaf-0", "/workers", "status"},
      {"leaf-0", "/dump", "dump"},
      {"leaf-0", "/snapshot?names=0", "snapshot"},
      {"leaf-0", "/query", "query", "-d '{\"model_name\":\"mock\",\"token_ids\":[1]}'"},
      {"leaf-0", "/register", "register",
       "-d "
       "'{\"instance_id\":5,\"model_name\":\"m\",\"block_size\":16,\"endpoint\":\"tcp://"
       "127.0.0.1:1\"}'"},
      {"leaf-0", "/checkpoint", "operate", "-X POST"},
      {"leaf-0", "/no_such_path", "none"},
      {"hierarchy", "/status", "status"},
      {"hierarchy", "/metrics", "metrics"},
      {"frontend", "/status", "status"},
      {"frontend", "/decisions", "feedback"},
      {"frontend", "/v1/models", "route"},
      {"frontend", "/route", "route", "-d '{}'"},
  };
  for (const auto& [identity, may] : MayDo()) {
    for (const HttpCase& one : cases) {
      const std::string out = Curl(identity, cluster_->address(one.process, "http"), one.path,
                                   kJson + std::string(one.more));
      const std::string status = out.substr(out.size() - 3);
      const std::string what =
          absl::StrCat("\"", identity, "\" ", one.process, " ", one.path, ": ", out);
      const bool open = std::string(one.verb) == "health" || std::string(one.verb) == "none";
      if (open || may.contains(one.verb)) {
        EXPECT_NE(status, "401") << what;
        EXPECT_NE(status, "403") << what;
        EXPECT_NE(status, "000") << what;
      } else {
        EXPECT_EQ(status, identity.empty() ? "401" : "403") << what;
        EXPECT_EQ(out.find("rules["), std::string::npos) << what;
      }
    }
  }
  // What a body names is checked too.
  const std::string elsewhere = Curl("operator/o", cluster_->address("leaf-0", "http"), "/register",
                                     std::string(kJson) +
                                         "-d "
                                         "'{\"instance_id\":6,\"model_name\":\"m\",\"block_size\":"
                                         "16,\"endpoint\":\"tcp://8.8.8.8:1\"}'");
  EXPECT_THAT(elsewhere, HasSubstr("403"));
  // Refusals are in the audit log, with their reasons, and no token.
  ASSERT_TRUE(
      Await([&] { return AuditOf("leaf-cell-0--").find("8.8.8.8") != std::string::npos; }, kLong));
  const std::string audit = AuditOf("leaf-cell-0--");
  for (const auto& [identity, may] : MayDo()) {
    if (identity.starts_with("operator")) continue;
    const std::string who = identity.empty() ? "anonymous" : identity;
    EXPECT_THAT(audit, HasSubstr("\"allowed\":false,\"identity\":\"" + who + "\""));
  }
}

TEST_F(SecurityTest, EveryRoleOverGrpcDoesWhatTheTableSays) {
  StartCluster(1, 1);
  WritePolicy("[]");
  AwaitReloads(1);
  for (const auto& [identity, may] : MayDo()) {
    const std::shared_ptr<Security> as = As(identity);
    const auto channel = [&](const std::string& address) {
      return MakeChannel(address, {.security = as, .own_connection = true});
    };
    auto leaf = v1::Leaf::NewStub(channel(cluster_->leaf(0)));
    auto node = v1::Hierarchy::NewStub(channel(cluster_->hierarchy()));
    auto frontend = v1::Frontend::NewStub(channel(cluster_->frontend()));
    auto truth = v1::Truth::NewStub(channel(cluster_->frontend()));
    std::vector<std::pair<std::string, std::function<grpc::Status(grpc::ClientContext*)>>> calls = {
        {"status",
         [&](grpc::ClientContext* context) {
           v1::StatsResponse answer;
           return leaf->Stats(context, {}, &answer);
         }},
        {"query",
         [&](grpc::ClientContext* context) {
           v1::FindOverlapsRequest request;
           request.mutable_domain()->set_model("mock");
           request.set_all_workers(true);
           v1::FindOverlapsResponse answer;
           return leaf->FindOverlaps(context, request, &answer);
         }},
        {"dump",
         [&](grpc::ClientContext* context) {
           v1::DumpResponse piece;
           auto reader = leaf->Dump(context, {});
           while (reader->Read(&piece)) {
           }
           return reader->Finish();
         }},
        {"query",
         [&](grpc::ClientContext* context) {
           v1::FindCellsResponse answer;
           return node->FindCells(context, {}, &answer);
         }},
        {"status",
         [&](grpc::ClientContext* context) {
           v1::StatsResponse answer;
           return node->Stats(context, {}, &answer);
         }},
        {"route",
         [&](grpc::ClientContext* context) {
           v1::RouteRequest request;
           request.mutable_domain()->set_model("mock");
           request.mutable_domain()->set_tenant("x");
           v1::RouteResponse answer;
           return frontend->Route(context, request, &answer);
         }},
        {"feedback",
         [&](grpc::ClientContext* context) {
           v1::ReportResponse answer;
           return frontend->Report(context, {}, &answer);
         }},
        {"feedback",
         [&](grpc::ClientContext* context) {
           v1::Decision answer;
           return truth->GetDecision(context, {}, &answer);
         }},
        {"status",
         [&](grpc::ClientContext* context) {
           v1::DiagnoseResponse answer;
           return truth->Diagnose(context, {}, &answer);
         }},
    };
    for (size_t i = 0; i < calls.size(); ++i) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
      const grpc::Status status = calls[i].second(&context);
      const std::string what = absl::StrCat("\"", identity, "\" call ", i, " (", calls[i].first,
                                            "): ", status.error_message());
      const bool refused = status.error_code() == grpc::StatusCode::PERMISSION_DENIED ||
                           status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
      EXPECT_EQ(refused, !may.contains(calls[i].first)) << what;
      EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << what;
      EXPECT_NE(status.error_code(), grpc::StatusCode::UNAVAILABLE) << what;
    }
  }
}

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

// The probability that two samples of one distribution differ as much (Kolmogorov and Smirnov; the asymptotic form of Numerical
// Recipes, 14.3).
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

// Two tenants share an engine. One has prompts in its cache; the other guesses them. Guesses in all: TEST_GUESSES, 400 unless said.
TEST_F(SecurityTest, GuessesAtAnotherTenantsPromptsLearnNothing) {
  StartCluster(1, 1, /*capacity=*/1 << 16, {"--http=127.0.0.1:0"});
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
  // A test that tells equal distributions apart at 0.01 errs once in a hundred times: three tries, each with other prompts.
  double p = 0;
  for (int attempt = 0; attempt < 3 && p <= 0.01; ++attempt) {
    std::vector<double> guessed, unseen;
    for (int i = 0; i < guesses; ++i) {
      const v1::RouteRequest other = prompt();
      for (const bool guess : {i % 2 == 0, i % 2 != 0}) {
        const auto [answer, took] = route(*y, guess ? cached[static_cast<size_t>(i)] : other);
        (guess ? guessed : unseen).push_back(took);
        ASSERT_EQ(answer.overlap_blocks(), 0);
      }
    }
    p = SameDistribution(std::move(guessed), std::move(unseen));
  }
  EXPECT_GT(p, 0.01);
}

TEST_F(SecurityTest, CertificatesAndPoliciesRotateWhileATraceIsRouted) {
  StartCluster(2, 2);
  absl::StatusOr<std::vector<TraceRequest>> trace =
      ReadTrace("tests/data/conversation_excerpt.jsonl");
  ASSERT_TRUE(trace.ok()) << trace.status();
  std::atomic<bool> over{false};
  std::atomic<int> rotations{0};
  std::thread rotates([&] {
    const Pki& pki = *cluster_->pki();
    while (!over || rotations < 20) {
      for (const std::string identity :
           {"leaf/cell-0/-", "leaf/cell-1/-", "node/hierarchy", "frontend/frontend",
            "worker/cell-0/worker-0-0", "worker/cell-1/worker-1-1"}) {
        EXPECT_TRUE(pki.Issue({.identity = identity}).ok());
      }
      WritePolicy("[\"worker/cell-0/none\"]");
      ++rotations;
      if (over) continue;
      Await([&] { return over.load(); }, std::chrono::milliseconds(200));
    }
  });
  ReplayOptions options;
  options.split = kSplit;
  const absl::StatusOr<ReplayReport> report = Replay(*cluster_, *trace, options);
  over = true;
  rotates.join();
  ASSERT_TRUE(report.ok()) << report.status();
  SCOPED_TRACE(ToTable(*report));
  EXPECT_EQ(report->errors, 0u);
  EXPECT_EQ(report->promised_over, 0u);
  EXPECT_GE(rotations.load(), 20);
}

}  // namespace
}  // namespace kvatlas
