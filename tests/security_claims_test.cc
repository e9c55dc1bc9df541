// What is another's: its name, its url, its epoch, its cell, its replica, its address. Each claim
// is refused and audited, over gRPC and HTTP and through Redis, and the other has everything that
// it had: its blocks, its registration, its stream.

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/base/waypoints.h"
#include "indexer/net/redis_url.h"
#include "indexer/stream/messages.h"
#include "indexer/transport/redis/redis_log_options.h"
#include "proto/kvatlas/v1/hierarchy.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "publisher/publisher.h"
#include "tests/secure_redis_test_util.h"
#include "tests/security_callers_test_util.h"

namespace kvatlas {
namespace {

// Every worker and leaf has an address of its own.
constexpr char kOwnHosts[] = R"(
  {"identity": "worker/cell-0/b", "allow": ["publish"], "url_hosts": ["127.0.0.2"]},
  {"identity": "worker/*/*", "allow": ["publish"], "url_hosts": ["127.0.0.3"]},
  {"identity": "leaf/cell-0/-", "allow": ["report", "snapshot", "query"], "url_hosts": ["127.0.0.1"]},
  {"identity": "leaf/*/*", "allow": ["report", "snapshot", "query"], "url_hosts": ["127.0.0.4"]},
  {"identity": "node/*", "allow": ["report", "query"], "url_hosts": ["127.0.0.5"]},
  {"identity": "frontend/*", "allow": ["query", "status"], "tenants": ["", "x"]},
  {"identity": "gateway/g", "allow": ["route", "feedback"], "tenants": ["x"]},
  {"identity": "operator/*", "allow": ["*"], "tenants": ["*"], "url_hosts": ["127.0.0.0/8"]},
  {"identity": "viewer/*", "allow": ["status", "metrics"]})";

constexpr uint64_t kHourNs = uint64_t{3600} * 1'000'000'000;
constexpr char kUrlOfB[] = "http://127.0.0.2:7";
constexpr size_t kBlocks = 64;

// What is known of the other, by field; what changes by itself, such as ages, is left out.
using Facts = std::map<std::string, std::string>;

class SecurityClaimsTest : public SecurityCallersTest {
 protected:
  // B publishes `kBlocks` blocks to the leaf of cell-0, by gRPC or through Redis, and the cell
  // reports them.
  void StartB(RedisPublisherOptions redis = {}) {
    PublisherOptions options;
    if (redis.url.empty()) {
      options.leaves = {cluster_->leaf(0)};
      const TlsPaths& files = FilesOf("worker/cell-0/b");
      options.tls = {.certificate = files.certificate, .key = files.key, .ca = files.ca};
    }
    options.redis = std::move(redis);
    options.worker = "b";
    options.domain = {"mock", ""};
    options.block_size = kTokensPerHashId / kSplit;
    options.labels = {{"url", kUrlOfB}};
    absl::StatusOr<std::unique_ptr<Publisher>> publisher = Publisher::Create(std::move(options));
    ASSERT_TRUE(publisher.ok()) << publisher.status();
    b_ = *std::move(publisher);
    for (uint64_t i = 0; i < kBlocks; ++i) blocks_.push_back(SequenceHash{0xb10c'0000 + i});
    b_->StoredHashed(Tier::kDevice, 0, kNoParent, blocks_);
    const std::string all = std::to_string(kBlocks);
    EXPECT_TRUE(Await([&] { return FactsOfB()["overlap of b"] == all; }, kLong));
    EXPECT_TRUE(Await([&] { return FactsOfCell()["coverage of cell-0"] == "48"; }, kLong));
    EXPECT_TRUE(Await([&] { return b_->WaitAcknowledged(std::chrono::seconds(1)); }, kLong));
  }

  v1::Leaf::Stub& Leaf() { return StubOf<v1::Leaf>(leaves_, "operator/o", cluster_->leaf(0)); }
  v1::Hierarchy::Stub& Node() {
    return StubOf<v1::Hierarchy>(nodes_, "operator/o", cluster_->hierarchy());
  }

  static void AddHolder(const v1::HolderStats& holder, Facts* facts) {
    const std::string of = absl::StrCat(" of ", holder.holder().name(), "@",
                                        holder.holder().replica(), "/", holder.holder().rank());
    const auto add = [&](const char* name, const auto& value) {
      (*facts)[name + of] = absl::StrCat(value);
    };
    add("epoch", holder.epoch());
    add("trust", v1::Trust_Name(holder.trust()));
    add("masked", holder.masked());
    add("connected", holder.connected());
    add("state", holder.state());
    add("blocks", holder.blocks());
    add("address", holder.address());
    for (const auto& [name, value] : holder.labels()) add(name.c_str(), value);
    add("gaps", holder.gaps());
    add("snapshots", holder.snapshots());
    add("digests_different", holder.digests_different());
    add("refusals", holder.refusals());
  }

  // At its leaf, and as it sees itself.
  Facts FactsOfB() {
    Facts facts;
    v1::FindOverlapsRequest question;
    question.mutable_domain()->set_model("mock");
    for (const SequenceHash block : blocks_) question.add_sequence_hashes(Raw(block));
    v1::FindOverlapsResponse overlaps;
    grpc::ClientContext asking;
    Limit(&asking);
    if (!Leaf().FindOverlaps(&asking, question, &overlaps).ok()) return facts;
    for (const v1::WorkerOverlap& one : overlaps.workers()) {
      facts["overlap of " + one.worker().name()] = std::to_string(one.blocks());
      facts["trust in the answer of " + one.worker().name()] = v1::Trust_Name(one.trust());
    }
    v1::StatsResponse stats;
    grpc::ClientContext looking;
    Limit(&looking);
    if (!Leaf().Stats(&looking, {}, &stats).ok()) return facts;
    for (const v1::DomainStats& domain : stats.domains()) {
      for (const v1::HolderStats& holder : domain.holder_stats()) {
        if (holder.holder().name() == "b") AddHolder(holder, &facts);
      }
    }
    const PublisherStats own = b_->Stats();
    facts["b's own blocks"] = std::to_string(own.blocks_held);
    for (const ReplicaStats& replica : own.replicas) {
      facts["b is connected"] = absl::StrCat(replica.connected, replica.welcomed);
      facts["b's hellos"] = std::to_string(replica.sender.hellos_sent);
      facts["b's refusals"] = std::to_string(replica.sender.refused);
      facts["b was replaced"] = std::to_string(replica.sender.replaced);
      facts["b's status"] = replica.status.ToString();
    }
    // Engines that were registered over HTTP.
    const std::string workers = Curl("operator/o", cluster_->address("leaf-0", "http"), "/workers");
    const nlohmann::json listed =
        nlohmann::json::parse(workers.substr(0, workers.size() - 3), nullptr, false);
    for (const nlohmann::json& one : listed)
      facts["registered " + one.at("instance_id").dump()] = one.at("endpoints").dump();
    return facts;
  }

  // At the hierarchy, and as its leaf sees the way there.
  Facts FactsOfCell() {
    Facts facts;
    v1::FindCellsRequest question;
    question.mutable_domain()->set_model("mock");
    question.set_schedule(WaypointSchedule::Standard().Name());
    question.set_blocks(static_cast<uint32_t>(blocks_.size()));
    for (const SequenceHash block : WaypointSchedule::Standard().Select(blocks_))
      question.add_waypoint_hashes(Raw(block));
    v1::FindCellsResponse cells;
    grpc::ClientContext asking;
    Limit(&asking);
    if (!Node().FindCells(&asking, question, &cells).ok()) return facts;
    for (const v1::CellCoverage& cell : cells.cells())
      facts["coverage of " + cell.cell().name()] = std::to_string(cell.blocks_at_least());
    v1::StatsResponse stats;
    grpc::ClientContext looking;
    Limit(&looking);
    if (!Node().Stats(&looking, {}, &stats).ok()) return facts;
    for (const v1::DomainStats& domain : stats.domains()) {
      for (const v1::HolderStats& holder : domain.holder_stats()) AddHolder(holder, &facts);
    }
    v1::StatsResponse leaf;
    grpc::ClientContext last;
    Limit(&last);
    if (!Leaf().Stats(&last, {}, &leaf).ok()) return facts;
    for (const v1::ParentStats& parent : leaf.parents())
      facts["reports to " + parent.address()] = parent.state() + parent.refused();
    return facts;
  }

  struct Claim {
    std::string plane;
    std::string what;
    std::string caller;   // of `Callers`, or an identity
    std::string process;  // whose audit log it is in
    std::string audited;  // of the line that says so
    std::function<Outcome(const std::string& identity)> make;
    Outcome expected = Outcome::kRefused;
  };

  // Lines of the audit log with all of this, of what was not allowed.
  size_t Audited(const Claim& claim, const std::string& identity) const {
    size_t found = 0;
    std::istringstream lines(AuditOf(claim.process));
    for (std::string line; std::getline(lines, line);) {
      found += line.find("\"allowed\":false") != std::string::npos &&
               line.find(claim.audited) != std::string::npos &&
               line.find(absl::StrCat("\"identity\":\"", identity, "\"")) != std::string::npos;
    }
    return found;
  }

  void Check(const Claim& claim, const std::function<Facts()>& facts) {
    const auto known = Callers().find(claim.caller);
    const std::string identity = known == Callers().end() ? claim.caller : known->second;
    const std::string audited_as = claim.caller == "stranger" ? ""
                                   : identity.empty()         ? "anonymous"
                                                              : identity;
    const std::string what = absl::StrCat(claim.plane, ": ", claim.what, " by ", claim.caller);
    const Facts before = facts();
    const size_t lines = Audited(claim, audited_as);
    EXPECT_EQ(claim.make(identity), claim.expected) << what;
    EXPECT_TRUE(Await([&] { return Audited(claim, audited_as) > lines; }, kLong))
        << what << " is not in the audit log: " << AuditOf(claim.process);
    // What was lost and came back has left a trace in the counts.
    EXPECT_TRUE(Await([&] { return facts() == before; }, kLong)) << what;
    EXPECT_EQ(facts(), before) << what;
  }

  std::unique_ptr<Publisher> b_;
  std::vector<SequenceHash> blocks_;
};

// How a hello lies about its epoch, beside that of the one that it claims to be.
std::vector<std::pair<std::string, Epoch>> EpochsBeside(Epoch epoch) {
  return {{"older epoch", epoch - 1},
          {"the same epoch", epoch},
          {"younger epoch", epoch + 1},
          {"epoch in a year", epoch + 365 * 24 * kHourNs}};
}

TEST_F(SecurityClaimsTest, WhatAWorkerClaimsOfAnotherIsRefusedAndTheOtherIsUnaffected) {
  StartCluster(1, 1);
  files_["stranger"] =
      *cluster_->pki()->Issue({.identity = "", .common_name = "stranger", .name = "stranger"});
  WritePolicy("[]", kOwnHosts);
  AwaitReloads(1);
  ASSERT_NO_FATAL_FAILURE(StartB());
  const std::string json = "-H 'content-type: application/json' ";
  const std::string http = cluster_->address("leaf-0", "http");
  const std::string engine =
      json + R"(-d '{"instance_id":42,"model_name":"m","block_size":16,"endpoint":"tcp://)";
  EXPECT_EQ(OutcomeOfHttp(Curl("operator/o", http, "/register", engine + "127.0.0.2:1\"}'")),
            Outcome::kPasses);
  ASSERT_EQ(FactsOfB()["registered 42"], R"({"0":"tcp://127.0.0.2:1"})");
  const Epoch epoch = std::stoull(FactsOfB().at("epoch of b@/0"));
  const std::string leaf = "leaf-cell-0--";
  std::vector<Claim> claims;
  const auto hello = [&](const std::string& what, const std::string& caller,
                         const std::string& audited, const std::function<void(Hello*)>& change,
                         Outcome expected = Outcome::kRefused) {
    Hello said = WorkerHello();
    said.epoch = Clock::Real().WallNs();
    change(&said);
    claims.push_back({"grpc", what, caller, leaf, audited,
                      [this, said](const std::string& identity) {
                        return SayHello(identity, cluster_->leaf(0), said);
                      },
                      expected});
  };
  // Its name, with every epoch. The same name in another cell is another worker.
  for (const auto& [which, claimed] : EpochsBeside(epoch)) {
    for (const char* const caller :
         {"worker", "worker_of_9", "worker/cell-9/b", "leaf", "leaf_of_9", "node", "frontend",
          "gateway", "viewer", "stranger", "anonymous"}) {
      hello("name of b, " + which, caller, "\"verb\":\"", [claimed = claimed](Hello* said) {
        said->holder.name = "b";
        said->epoch = claimed;
      });
    }
  }
  hello("name of b at another rank", "worker", "holder=b",
        [](Hello* said) { said->holder = {"b", 1, ""}; });
  hello("name of b as another replica", "worker", "holder=b",
        [](Hello* said) { said->holder = {"b", 0, "x"}; });
  hello("url of b", "worker", "host=127.0.0.2",
        [](Hello* said) { said->labels = {{"url", kUrlOfB}}; });
  hello("url of b behind one of its own", "worker", "host=127.0.0.2",
        [](Hello* said) { said->labels = {{"url", "http://127.0.0.3:1"}, {"url", kUrlOfB}}; });
  hello("url of b with a name before it", "worker", "host=127.0.0.2",
        [](Hello* said) { said->labels = {{"url", "http://127.0.0.3@127.0.0.2:7"}}; });
  hello("address of b", "worker", "host=127.0.0.2",
        [](Hello* said) { said->address = "127.0.0.2:7"; });
  // With its own certificate: only its epochs of the time to come, and those of the past, are
  // refused.
  hello(
      "own epoch in a year", "worker/cell-0/b", "hours ahead of the receiver's clock",
      [&](Hello* said) {
        said->holder.name = "b";
        said->epoch = epoch + 365 * 24 * kHourNs;
      },
      Outcome::kPasses);
  const auto over_http = [&](const std::string& what, const std::string& caller,
                             const std::string& verb, const std::string& path,
                             const std::string& more, Outcome expected = Outcome::kRefused) {
    claims.push_back({"http", what, caller, leaf, "\"verb\":\"" + verb + "\"",
                      [this, http, path, more](const std::string& identity) {
                        return OutcomeOfHttp(Curl(identity, http, path, more));
                      },
                      expected});
  };
  for (const char* const caller : {"worker", "worker/cell-0/b", "leaf", "leaf_of_9", "node",
                                   "frontend", "gateway", "viewer", "stranger", "anonymous"}) {
    over_http("another engine in the place of one", caller, "register", "/register",
              engine + "127.0.0.3:1\"}'");
    over_http("that an engine has gone", caller, "register", "/unregister",
              json + R"(-d '{"instance_id":42,"model_name":"m"}')");
  }
  over_http("an engine at an address that is not to be dialled", "operator", "register",
            "/register", engine + "8.8.8.8:1\"}'");
  over_http("contents of b's cell", "leaf_of_9", "snapshot", "/snapshot", "");
  for (const Claim& claim : claims) Check(claim, [this] { return FactsOfB(); });
  // Its own stream an instance may take over from another, with a younger epoch: the log says so.
  Hello own = WorkerHello();
  own.epoch = epoch;
  EXPECT_EQ(SayHello("worker/cell-0/w", cluster_->leaf(0), own), Outcome::kPasses);
  own.epoch = epoch + 1;
  own.instance_id = 8;
  EXPECT_EQ(SayHello("worker/cell-0/w", cluster_->leaf(0), own), Outcome::kPasses);
  own.epoch = epoch;
  SayHello("worker/cell-0/w", cluster_->leaf(0), own);
  for (const std::string& line :
       {absl::StrCat("epoch=", epoch + 1,
                     "\",\"reason\":\"it takes the stream over from another "
                     "instance, of epoch ",
                     epoch),
        absl::StrCat("found the older epoch ", epoch)}) {
    EXPECT_TRUE(Await([&] { return AuditOf(leaf).find(line) != std::string::npos; }, kLong))
        << line << " is not in " << AuditOf(leaf);
  }
}

TEST_F(SecurityClaimsTest, WhatALeafClaimsOfAnotherCellIsRefusedAndTheCellIsUnaffected) {
  StartCluster(1, 1);
  files_["stranger"] =
      *cluster_->pki()->Issue({.identity = "", .common_name = "stranger", .name = "stranger"});
  WritePolicy("[]", kOwnHosts);
  AwaitReloads(1);
  ASSERT_NO_FATAL_FAILURE(StartB());
  const Facts at_first = FactsOfCell();
  const Epoch epoch = std::stoull(at_first.at("epoch of cell-0@/0"));
  const std::string address = at_first.at("address of cell-0@/0");
  ASSERT_EQ(address, cluster_->leaf(0));
  std::vector<Claim> claims;
  const auto hello = [&](const std::string& what, const std::string& caller,
                         const std::string& audited, const std::function<void(Hello*)>& change,
                         Outcome expected = Outcome::kRefused) {
    Hello said = LeafHello();
    said.holder = {"cell-0", 0, ""};
    said.epoch = Clock::Real().WallNs();
    said.address = "127.0.0.4:1";
    change(&said);
    claims.push_back({"grpc", what, caller, "node-hierarchy", audited,
                      [this, said](const std::string& identity) {
                        return SayHello(identity, cluster_->hierarchy(), said);
                      },
                      expected});
  };
  for (const auto& [which, claimed] : EpochsBeside(epoch)) {
    for (const char* const caller :
         {"leaf", "leaf_of_9", "leaf/cell-9/-", "worker", "worker/cell-0/b", "node", "frontend",
          "gateway", "viewer", "stranger", "anonymous"}) {
      hello("cell-0, " + which, caller, "\"verb\":\"",
            [claimed = claimed](Hello* said) { said->epoch = claimed; });
    }
  }
  hello("a replica of cell-0", "leaf_of_9", "replica=r",
        [](Hello* said) { said->holder.replica = "r"; });
  hello("another replica's name", "leaf", "replica=x",
        [](Hello* said) { said->holder.replica = "x"; });
  hello("address of cell-0's leaf", "leaf_of_9", "host=127.0.0.1", [&](Hello* said) {
    said->holder = {"cell-9", 0, "r"};
    said->address = address;
  });
  hello("name of another node", "node", "cell=m", [](Hello* said) {
    said->holder = {"m", 0, ""};
    said->address = "127.0.0.5:1";
  });
  // The right certificate, and an epoch of the time to come or of the past.
  hello(
      "own epoch in a year", "leaf/cell-0/-", "hours ahead of the receiver's clock",
      [&](Hello* said) {
        said->address = address;
        said->epoch = epoch + 365 * 24 * kHourNs;
      },
      Outcome::kPasses);
  for (const Claim& claim : claims) Check(claim, [this] { return FactsOfCell(); });
}

// Those of a cell whose workers have keys of their own, and one who may write to the cell's logs
// and has none.
TEST_F(SecurityClaimsTest, WhatIsClaimedThroughRedisOfAnotherIsNotHeardAndTheOtherGoesOn) {
  SecureRedis redis;
  StartCluster(1, 1, 400, {},
               {"--redis=" + redis.FileWith(redis.Url("cell-0:cell-0", true, redis.KeyOf()))});
  WritePolicy("[]", kOwnHosts);
  AwaitReloads(1);
  ASSERT_NO_FATAL_FAILURE(
      StartB({.url = redis.Url("cell-0:cell-0", true, redis.KeyOf("b")), .cell = "cell-0"}));
  const Facts at_first = FactsOfB();
  const Epoch epoch = std::stoull(at_first.at("epoch of b@/0"));
  struct Writer {
    std::string what;
    std::string login;
    std::string key;
    bool heard_by_redis;
  };
  const std::vector<Writer> writers = {
      {"another cell's user", "cell-9:cell-9", redis.KeyOf("b"), false},
      {"another worker's key", "cell-0:cell-0", redis.KeyOf("w"), false},
      {"no key", "cell-0:cell-0", "", true},
      {"a foreign key", "cell-0:cell-0", redis.ForeignKey(), true},
  };
  const auto forged = [&] {
    const std::string text = Curl("operator/o", cluster_->address("leaf-0", "http"), "/metrics");
    const std::string name = "\nkvatlas_leaf_redis_entries_forged_total ";
    return std::stoull(text.substr(text.find(name) + name.size()));
  };
  for (const Writer& writer : writers) {
    for (const auto& [which, claimed] : EpochsBeside(epoch)) {
      const std::string what = absl::StrCat("epoch of b, ", which, ", with ", writer.what);
      absl::StatusOr<RedisOptions> options =
          ParseRedisUrl(redis.Url(writer.login, true, writer.key));
      ASSERT_TRUE(options.ok()) << options.status();
      RedisLogOptions log;
      log.redis = *std::move(options);
      log.cell = "cell-0";
      Hello hello = WorkerHello();
      hello.holder.name = "b";
      hello.block_size = kTokensPerHashId / kSplit;
      hello.epoch = claimed;
      hello.labels = {{"url", "http://127.0.0.3:1"}};
      const uint64_t before = forged();
      {
        const HelloInLog claim(log, hello);
        // Redis itself refuses what is no younger, and what is ahead of its clock.
        const bool registers = writer.heard_by_redis && which == "younger epoch";
        EXPECT_TRUE(Await(
            [&] { return registers ? forged() > before : claim.failed() || claim.answered(); },
            kLong))
            << what;
      }
      // It goes on as it was, and says more.
      blocks_.push_back(SequenceHash{0xb10c'0000 + blocks_.size()});
      b_->StoredHashed(Tier::kDevice, static_cast<Position>(blocks_.size() - 1),
                       blocks_[blocks_.size() - 2], std::vector{blocks_.back()});
      const std::string all = std::to_string(blocks_.size());
      EXPECT_TRUE(Await([&] { return FactsOfB()["overlap of b"] == all; }, kLong)) << what;
      for (const char* const same : {"epoch of b@/0", "url of b@/0", "trust of b@/0",
                                     "connected of b@/0", "state of b@/0", "b was replaced"}) {
        EXPECT_TRUE(Await([&] { return FactsOfB()[same] == at_first.at(same); }, kLong))
            << what << ": " << same << " is " << FactsOfB()[same];
      }
      if (!writer.heard_by_redis) {
        EXPECT_EQ(FactsOfB()["b's hellos"], "1") << what;
      }
    }
  }
  EXPECT_NE(AuditOf("leaf-cell-0--").find("stream=b/0|mock|"), std::string::npos);
}

}  // namespace
}  // namespace kvatlas
