// Who may do what: every role, every verb, against what is its own, a foreign domain, holder, cell
// and address, over gRPC, HTTP and Redis, as one table. What the table does not allow is refused,
// and is in the audit log.

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/gateway/ext_proc/external_processor.grpc.pb.h"
#include "indexer/base/await.h"
#include "indexer/base/waypoints.h"
#include "indexer/net/redis_url.h"
#include "indexer/stream/messages.h"
#include "indexer/transport/redis/redis_log_options.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "proto/kvatlas/v1/truth.grpc.pb.h"
#include "tests/secure_redis_test_util.h"
#include "tests/security_callers_test_util.h"

namespace kvatlas {
namespace {

constexpr char kMatrixRules[] = R"(
  {"identity": "worker/*/*", "allow": ["publish"], "models": ["mock"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "leaf/*/*", "allow": ["report", "snapshot", "query"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "node/*", "allow": ["report", "query"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "frontend/*", "allow": ["query", "status"], "tenants": ["", "x"]},
  {"identity": "gateway/g", "allow": ["route", "feedback"], "tenants": ["x"]},
  {"identity": "operator/*", "allow": ["*"], "tenants": ["*"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "viewer/*", "allow": ["status", "metrics"]})";

// One cell of the table for each caller.
struct Row {
  std::string plane;
  std::string process;  // whose audit log it is in
  std::string verb;
  std::string what;
  std::set<std::string> may;
  std::function<Outcome(const std::string& identity)> ask;
  // Who is let in and shown nothing.
  std::set<std::string> sees_nothing = {};
};

class SecurityMatrixTest : public SecurityCallersTest {
 protected:
  void AddStreams(std::vector<Row>* rows);
  void AddGrpcCalls(std::vector<Row>* rows);
  void AddHttp(std::vector<Row>* rows);
  void Check(const Row& row);

  std::map<std::string, std::unique_ptr<envoy::service::ext_proc::v3::ExternalProcessor::Stub>>
      pickers_;
};

void SecurityMatrixTest::AddStreams(std::vector<Row>* rows) {
  const auto publish = [&](const std::string& what, std::set<std::string> may,
                           const std::function<void(Hello*)>& change) {
    Hello hello = WorkerHello();
    change(&hello);
    rows->push_back({"grpc", "leaf-cell-0--", "publish", what, std::move(may),
                     [this, hello](const std::string& identity) {
                       return SayHello(identity, cluster_->leaf(0), hello);
                     }});
  };
  publish("own", {"worker", "operator"}, [](Hello*) {});
  publish("foreign domain: model", {"operator"},
          [](Hello* hello) { hello->domain.model = "other"; });
  publish("foreign domain: tenant", {"operator"},
          [](Hello* hello) { hello->domain.tenant = "t2"; });
  publish("foreign holder", {"operator"}, [](Hello* hello) { hello->holder.name = "worker-0-0"; });
  publish("foreign address", {}, [](Hello* hello) { hello->labels = {{"url", "http://8.8.8.8"}}; });
  const auto report = [&](const std::string& what, std::set<std::string> may,
                          const std::function<void(Hello*)>& change) {
    Hello hello = LeafHello();
    change(&hello);
    rows->push_back({"grpc", "node-hierarchy", "report", what, std::move(may),
                     [this, hello](const std::string& identity) {
                       return SayHello(identity, cluster_->hierarchy(), hello);
                     }});
  };
  report("own", {"leaf", "operator"}, [](Hello*) {});
  report("own, of a node", {"node", "operator"},
         [](Hello* hello) { hello->holder = {"n", 0, ""}; });
  report("foreign domain", {"operator"}, [](Hello* hello) { hello->domain.tenant = "t2"; });
  report("foreign cell", {"leaf_of_9", "operator"},
         [](Hello* hello) { hello->holder.name = "cell-9"; });
  report("foreign replica", {"operator"}, [](Hello* hello) { hello->holder.replica = "other"; });
  report("foreign address", {}, [](Hello* hello) { hello->address = "8.8.8.8:1"; });
}

// The domain of tenant t2 is there: the operator's streams above announced it, and stay.
void SecurityMatrixTest::AddGrpcCalls(std::vector<Row>* rows) {
  const auto add = [&](const std::string& process, const std::string& verb, const std::string& what,
                       std::set<std::string> may, auto call,
                       std::set<std::string> sees_nothing = {}) {
    rows->push_back({"grpc", process, verb, what, std::move(may),
                     [call](const std::string& identity) {
                       grpc::ClientContext context;
                       Limit(&context);
                       return OutcomeOf(call(identity, &context));
                     },
                     std::move(sees_nothing)});
  };
  const std::set<std::string> askers = {"leaf", "leaf_of_9", "node", "frontend", "operator"};
  const std::set<std::string> blind = {"leaf", "leaf_of_9", "node", "frontend"};
  for (const std::string tenant : {"", "t2"}) {
    const bool own = tenant.empty();
    add(
        "leaf-cell-0--", "query", own ? "own" : "foreign domain",
        own ? askers : std::set<std::string>{"operator"},
        [this, tenant](const std::string& identity, grpc::ClientContext* context) {
          v1::FindOverlapsRequest request;
          request.mutable_domain()->set_model("mock");
          request.mutable_domain()->set_tenant(tenant);
          request.set_all_workers(true);
          v1::FindOverlapsResponse answer;
          return StubOf<v1::Leaf>(leaves_, identity, cluster_->leaf(0))
              .FindOverlaps(context, request, &answer);
        },
        own ? std::set<std::string>{} : blind);
    add(
        "node-hierarchy", "query", own ? "own" : "foreign domain",
        own ? askers : std::set<std::string>{"operator"},
        [this, tenant](const std::string& identity, grpc::ClientContext* context) {
          v1::FindCellsRequest request;
          request.set_schedule(WaypointSchedule::Standard().Name());
          request.mutable_domain()->set_model("mock");
          request.mutable_domain()->set_tenant(tenant);
          v1::FindCellsResponse answer;
          return StubOf<v1::Hierarchy>(nodes_, identity, cluster_->hierarchy())
              .FindCells(context, request, &answer);
        },
        own ? std::set<std::string>{} : blind);
  }
  add("leaf-cell-0--", "dump", "own", {"operator"},
      [this](const std::string& identity, grpc::ClientContext* context) {
        v1::DumpResponse piece;
        auto reader =
            StubOf<v1::Leaf>(leaves_, identity, cluster_->leaf(0)).Dump(context, v1::DumpRequest());
        while (reader->Read(&piece)) {
        }
        return reader->Finish();
      });
  add("leaf-cell-0--", "status", "own", {"frontend", "operator", "viewer"},
      [this](const std::string& identity, grpc::ClientContext* context) {
        v1::StatsResponse answer;
        return StubOf<v1::Leaf>(leaves_, identity, cluster_->leaf(0)).Stats(context, {}, &answer);
      });
  add("node-hierarchy", "status", "own", {"frontend", "operator", "viewer"},
      [this](const std::string& identity, grpc::ClientContext* context) {
        v1::StatsResponse answer;
        return StubOf<v1::Hierarchy>(nodes_, identity, cluster_->hierarchy())
            .Stats(context, {}, &answer);
      });
  for (const std::string tenant : {"x", "t2"}) {
    add("frontend-frontend", "route", tenant == "x" ? "own" : "foreign domain",
        tenant == "x" ? std::set<std::string>{"gateway", "operator"}
                      : std::set<std::string>{"operator"},
        [this, tenant](const std::string& identity, grpc::ClientContext* context) {
          v1::RouteRequest request;
          request.mutable_domain()->set_model("mock");
          request.mutable_domain()->set_tenant(tenant);
          v1::RouteResponse answer;
          return StubOf<v1::Frontend>(frontends_, identity, cluster_->frontend())
              .Route(context, request, &answer);
        });
  }
  // Not served at this port: who is let in hears so.
  add("frontend-frontend", "pick", "own", {"gateway", "operator"},
      [this](const std::string& identity, grpc::ClientContext* context) {
        return StubOf<envoy::service::ext_proc::v3::ExternalProcessor>(pickers_, identity,
                                                                       cluster_->frontend())
            .Process(context)
            ->Finish();
      });
  add("frontend-frontend", "feedback", "own", {"gateway", "operator"},
      [this](const std::string& identity, grpc::ClientContext* context) {
        v1::ReportResponse answer;
        return StubOf<v1::Frontend>(frontends_, identity, cluster_->frontend())
            .Report(context, v1::ReportRequest(), &answer);
      });
  add("frontend-frontend", "status", "own", {"frontend", "operator", "viewer"},
      [this](const std::string& identity, grpc::ClientContext* context) {
        v1::DiagnoseResponse answer;
        return StubOf<v1::Truth>(truths_, identity, cluster_->frontend())
            .Diagnose(context, v1::DiagnoseRequest(), &answer);
      });
}

void SecurityMatrixTest::AddHttp(std::vector<Row>* rows) {
  const auto add = [&](const std::string& process, const std::string& verb, const std::string& what,
                       std::set<std::string> may, const std::string& path,
                       const std::string& more = "", std::set<std::string> sees_nothing = {}) {
    const std::string audit = process == "hierarchy"  ? "node-hierarchy"
                              : process == "frontend" ? "frontend-frontend"
                                                      : "leaf-cell-0--";
    rows->push_back({"http", audit, verb, what, std::move(may),
                     [this, process, path, more](const std::string& identity) {
                       return OutcomeOfHttp(Curl(identity, cluster_->address(process, "http"), path,
                                                 "-H 'content-type: application/json' " + more));
                     },
                     std::move(sees_nothing)});
  };
  const auto registration = [](int instance, const std::string& model, const std::string& host) {
    return absl::StrCat("-d '{\"instance_id\":", instance, ",\"model_name\":\"", model,
                        "\",\"block_size\":16,\"endpoint\":\"tcp://", host, ":1\"}'");
  };
  add("leaf-0", "health", "own",
      {"anonymous", "stranger", "worker", "worker_of_9", "leaf", "leaf_of_9", "node", "frontend",
       "gateway", "operator", "viewer"},
      "/healthz");
  add("leaf-0", "dump", "own", {"operator"}, "/dump");
  add("leaf-0", "snapshot", "own cell, and a foreign one's", {"leaf", "operator"},
      "/snapshot?names=0");
  add("leaf-0", "query", "own", {"leaf", "leaf_of_9", "node", "frontend", "operator"}, "/query",
      R"(-d '{"model_name":"mock","token_ids":[1]}')");
  add("leaf-0", "query", "foreign domain", {"operator"}, "/query_by_hash",
      R"(-d '{"model_name":"mock","routing_group":"t2","block_hashes":[1]}')",
      {"leaf", "leaf_of_9", "node", "frontend"});
  add("leaf-0", "register", "own", {"operator"}, "/register", registration(5, "m", "127.0.0.1"));
  add("leaf-0", "register", "foreign address", {}, "/register", registration(6, "m", "8.8.8.8"));
  add("leaf-0", "register", "own", {"operator"}, "/unregister",
      R"(-d '{"instance_id":5,"model_name":"m"}')");
  add("leaf-0", "operate", "own", {"operator"}, "/reopen_logs", "-X POST");
  add("leaf-0", "status", "own", {"frontend", "operator", "viewer"}, "/workers");
  add("leaf-0", "metrics", "own", {"operator", "viewer"}, "/metrics");
  add("hierarchy", "status", "own", {"frontend", "operator", "viewer"}, "/status");
  add("hierarchy", "metrics", "own", {"operator", "viewer"}, "/metrics");
  add("frontend", "status", "own", {"frontend", "operator", "viewer"}, "/status");
  // The page: its files and what it shows, and where a prompt is cached.
  for (const char* process : {"leaf-0", "hierarchy", "frontend"}) {
    for (const char* path : {"/", "/ui", "/ui/", "/ui/fleet.json", "/ui/series.json"})
      add(process, "status", absl::StrCat("own, ", path), {"frontend", "operator", "viewer"}, path);
  }
  for (const char* process : {"leaf-0", "frontend"})
    add(process, "dump", "own, /ui/explain", {"operator"}, "/ui/explain",
        R"(-d '{"model":"mock","tokens":[1,2,3]}')");
  add("frontend", "feedback", "own", {"gateway", "operator"}, "/decisions");
  add("frontend", "route", "own", {"gateway", "operator"}, "/v1/models");
  add("frontend", "route", "own", {"gateway", "operator"}, "/route",
      R"(-d '{"model":"mock","tenant":"x","tokens":[1,2,3]}')");
  add("frontend", "route", "foreign domain", {"operator"}, "/route",
      R"(-d '{"model":"mock","tenant":"t2","tokens":[1,2,3]}')");
}

void SecurityMatrixTest::Check(const Row& row) {
  for (const auto& [caller, identity] : Callers()) {
    const std::string what = absl::StrCat(row.plane, " ", row.verb, " (", row.what, ") at ",
                                          row.process, " by ", caller);
    const size_t before = Refusals(AuditOf(row.process), caller, row.verb);
    const Outcome outcome = row.ask(identity);
    const bool may = row.may.contains(caller);
    const bool blind = row.sees_nothing.contains(caller);
    const Outcome expected = blind ? Outcome::kUnknown : Outcome::kRefused;
    if (may) {
      EXPECT_NE(outcome, Outcome::kRefused) << what;
      continue;
    }
    EXPECT_EQ(outcome, expected) << what;
    EXPECT_TRUE(
        Await([&] { return Refusals(AuditOf(row.process), caller, row.verb) > before; }, kLong))
        << what << " is not in the audit log";
  }
}

// ---- Redis ----

struct RedisRow {
  std::string what;
  std::string login;
  bool certificate;
  bool key;
  std::function<void(Hello*)> change;
  bool heard;
  std::string acl_log;    // what is in Redis' log of refusals
  std::string audit_log;  // what is in the leaf's
};

TEST_F(SecurityMatrixTest, WhoWritesToRedisIsHeardForItsOwnAlone) {
  SecureRedis redis;
  StartCluster(1, 1, 400, {},
               {"--redis=" + redis.FileWith(redis.Url("cell-0:cell-0", true, redis.KeyOf()))});
  WritePolicy("[]", kMatrixRules);
  AwaitReloads(1);
  const auto none = [](Hello*) {};
  const std::vector<RedisRow> rows = {
      {"own", "cell-0:cell-0", true, true, none, true, "",
       "\"allowed\":true,\"identity\":\"worker/cell-0/own\""},
      {"no-certificate", "cell-0:cell-0", false, true, none, false, "", ""},
      {"wrong-password", "cell-0:wrong", true, true, none, false, "auth", ""},
      {"foreign-cell", "cell-9:cell-9", true, true, none, false, "cell-9", ""},
      {"unsigned", "cell-0:cell-0", true, false, none, false, "", "not signed"},
      {"foreign-model", "cell-0:cell-0", true, true,
       [](Hello* hello) { hello->domain.model = "other"; }, false, "",
       "\"identity\":\"worker/cell-0/foreign-model\""},
      {"foreign-tenant", "cell-0:cell-0", true, true,
       [](Hello* hello) { hello->domain.tenant = "t2"; }, false, "",
       "\"identity\":\"worker/cell-0/foreign-tenant\""},
      {"foreign-address", "cell-0:cell-0", true, true,
       [](Hello* hello) { hello->labels = {{"url", "http://8.8.8.8"}}; }, false, "",
       "\"identity\":\"worker/cell-0/foreign-address\""},
  };
  std::vector<std::unique_ptr<HelloInLog>> announcements;
  // Among the leaf's workers, for who may see all tenants and models.
  const std::shared_ptr<grpc::Channel> channel = ChannelAs("operator/o", cluster_->leaf(0));
  const auto heard = [&](const std::string& name) {
    for (const auto& [model, tenant] : {std::pair("mock", ""), {"other", ""}, {"mock", "t2"}}) {
      v1::FindOverlapsRequest request;
      request.mutable_domain()->set_model(model);
      request.mutable_domain()->set_tenant(tenant);
      request.set_all_workers(true);
      v1::FindOverlapsResponse answer;
      grpc::ClientContext context;
      Limit(&context);
      if (!v1::Leaf::NewStub(channel)->FindOverlaps(&context, request, &answer).ok()) continue;
      for (const v1::WorkerOverlap& worker : answer.workers()) {
        if (worker.worker().name() == name) return true;
      }
    }
    return false;
  };
  for (const RedisRow& row : rows) {
    absl::StatusOr<RedisOptions> options =
        ParseRedisUrl(redis.Url(row.login, row.certificate, row.key ? redis.KeyOf() : ""));
    ASSERT_TRUE(options.ok()) << options.status();
    RedisLogOptions log;
    log.redis = *std::move(options);
    log.cell = "cell-0";
    Hello hello = WorkerHello();
    hello.holder.name = row.what;
    row.change(&hello);
    announcements.push_back(std::make_unique<HelloInLog>(log, hello));
    if (row.heard) {
      EXPECT_TRUE(Await([&] { return heard(row.what); }, kLong)) << row.what;
    } else if (row.audit_log.empty()) {
      EXPECT_TRUE(Await([&] { return announcements.back()->failed(); }, kLong)) << row.what;
    }
    if (!row.acl_log.empty()) {
      EXPECT_TRUE(
          Await([&] { return redis.AclLog().find(row.acl_log) != std::string::npos; }, kLong))
          << row.what << ": " << redis.AclLog();
    }
    if (!row.audit_log.empty()) {
      EXPECT_TRUE(Await(
          [&] { return AuditOf("leaf-cell-0--").find(row.audit_log) != std::string::npos; }, kLong))
          << row.what << ": " << AuditOf("leaf-cell-0--");
    }
  }
  for (const RedisRow& row : rows) EXPECT_FALSE(!row.heard && heard(row.what)) << row.what;
  // One that is revoked is heard no more.
  WritePolicy(R"(["worker/cell-0/own"])", kMatrixRules);
  EXPECT_TRUE(Await(
      [&] {
        return AuditOf("leaf-cell-0--")
                   .find(R"("identity":"worker/cell-0/own","peer":"redis","verb":"publish",)"
                         R"("reason":"the worker is revoked")") != std::string::npos;
      },
      kLong));
}

TEST_F(SecurityMatrixTest, WhatTheTableDoesNotAllowIsRefusedAndAudited) {
  StartCluster(1, 1);
  ASSERT_TRUE(
      cluster_->pki()->Issue({.identity = "", .common_name = "stranger", .name = "stranger"}).ok());
  files_["stranger"] =
      *cluster_->pki()->Issue({.identity = "", .common_name = "stranger", .name = "stranger"});
  WritePolicy("[]", kMatrixRules);
  AwaitReloads(1);
  std::vector<Row> rows;
  AddStreams(&rows);
  AddGrpcCalls(&rows);
  AddHttp(&rows);
  std::set<std::string> verbs;
  for (const Row& row : rows) {
    verbs.insert(row.verb);
    Check(row);
  }
  EXPECT_EQ(verbs.size(), static_cast<size_t>(kVerbs)) << "every verb has a row";
}

}  // namespace
}  // namespace kvatlas
