// EndpointSlices watched over real sockets and TLS, from an API server whose answers go wrong by a
// seed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "indexer/base/await.h"
#include "indexer/base/mutex.h"
#include "indexer/discovery/directory.h"
#include "indexer/discovery/found_leaves.h"
#include "indexer/discovery/found_nodes.h"
#include "indexer/discovery/service_record.h"
#include "tools/testing/servers/k8s_test_server.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::chrono::seconds kLong(60);
using Addresses = std::vector<std::string>;

Addresses AddressesOf(const std::vector<ServiceRecord>& records) {
  Addresses addresses;
  for (const ServiceRecord& record : records) addresses.push_back(record.grpc);
  std::sort(addresses.begin(), addresses.end());
  return addresses;
}

// A directory of one entry, and everything that it told.
class Watcher {
 public:
  explicit Watcher(const K8sTestServer& server, const std::string& entry = "k8s:leaf")
      : Watcher(server.options(), entry) {}
  Watcher(const K8sOptions& k8s, const std::string& entry) {
    DirectoryOptions options{.entries = {entry}, .kind = ServiceKind::kLeaf};
    options.k8s = k8s;
    options.first_answer = kLong;
    auto directory = Directory::Open(options, [this](const std::vector<ServiceRecord>& records) {
      MutexLock lock(&mutex_);
      told_.push_back(AddressesOf(records));
    });
    EXPECT_TRUE(directory.ok()) << directory.status();
    directory_ = *std::move(directory);
  }

  Addresses Now() const { return AddressesOf(directory_->View().records); }
  std::string Why() const { return std::string(directory_->View().status.message()); }
  bool Becomes(const Addresses& wanted) const {
    return Await([&] { return Now() == wanted && directory_->View().status.ok(); }, kLong);
  }
  bool Says(const std::string& text) const {
    return Await([&] { return Why().find(text) != std::string::npos; }, kLong);
  }
  std::vector<Addresses> Told() const {
    MutexLock lock(&mutex_);
    return told_;
  }
  Directory& directory() { return *directory_; }

 private:
  mutable Mutex mutex_;
  std::vector<Addresses> told_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Directory> directory_;
};

TEST(K8sSourceTest, ListsThenFollowsWhatChanges) {
  K8sTestServer server;
  server.Put("leaf", "leaf-1", {{"10.0.0.1", true}, {"10.0.0.2", false}});
  server.Put("other", "other-1", {{"10.0.9.1", true}});
  Watcher watcher(server);
  EXPECT_TRUE(watcher.Becomes({"10.0.0.1:7410"})) << watcher.Why();
  server.Put("leaf", "leaf-1", {{"10.0.0.1", true}, {"10.0.0.2", true}});
  EXPECT_TRUE(watcher.Becomes({"10.0.0.1:7410", "10.0.0.2:7410"})) << watcher.Why();
  server.Put("leaf", "leaf-2", {{"10.0.0.3", true}});
  EXPECT_TRUE(watcher.Becomes({"10.0.0.1:7410", "10.0.0.2:7410", "10.0.0.3:7410"}));
  server.Delete("leaf", "leaf-1");
  EXPECT_TRUE(watcher.Becomes({"10.0.0.3:7410"}));
  EXPECT_EQ(server.lists(), 1u);  // all of it by one watch
}

TEST(K8sSourceTest, AListMayHaveManyPages) {
  K8sTestServer server(/*page_items=*/2);
  for (int i = 0; i < 7; ++i)
    server.Put("leaf", "s" + std::to_string(i), {{"10.0.0." + std::to_string(i), true}});
  Watcher watcher(server);
  EXPECT_TRUE(Await([&] { return watcher.Now().size() == 7; }, kLong)) << watcher.Why();
  EXPECT_EQ(server.lists(), 1u);
}

TEST(K8sSourceTest, ANewWatchBeginsWhereTheLastEnded) {
  K8sTestServer server;
  server.Put("leaf", "s", {{"10.0.0.1", true}});
  Watcher watcher(server);
  for (int i = 2; i < 6; ++i) {
    const uint64_t before = server.watches();
    server.EndWatches();
    ASSERT_TRUE(Await([&] { return server.watches() > before; }, kLong));
    server.Put("leaf", "s", {{"10.0.0." + std::to_string(i), true}});
    EXPECT_TRUE(watcher.Becomes({"10.0.0." + std::to_string(i) + ":7410"}));
  }
  EXPECT_EQ(server.lists(), 1u);
}

TEST(K8sSourceTest, AfterGoneItListsAgain) {
  K8sTestServer server;
  server.Put("leaf", "s", {{"10.0.0.1", true}});
  Watcher watcher(server);
  ASSERT_TRUE(Await([&] { return server.watches() > 0; }, kLong));
  server.Compact();
  EXPECT_TRUE(Await([&] { return server.lists() > 1; }, kLong));
  server.Put("leaf", "s", {{"10.0.0.2", true}});
  EXPECT_TRUE(watcher.Becomes({"10.0.0.2:7410"}));
  EXPECT_THAT(watcher.Why(), "");  // no failure of anything
}

TEST(K8sSourceTest, WithoutReadyEndpointsWhatWasKnownStays) {
  K8sTestServer server;
  server.Put("leaf", "s", {{"10.0.0.1", true}});
  Watcher watcher(server);
  ASSERT_TRUE(watcher.Becomes({"10.0.0.1:7410"})) << watcher.Why();
  server.Put("leaf", "s", {{"10.0.0.1", false}});
  EXPECT_TRUE(watcher.Says("none is ready"));
  EXPECT_THAT(watcher.Now(), ElementsAre("10.0.0.1:7410"));
  server.Delete("leaf", "s");
  EXPECT_TRUE(watcher.Says("no EndpointSlice of Service leaf"));
  EXPECT_THAT(watcher.Now(), ElementsAre("10.0.0.1:7410"));
  server.Put("leaf", "s", {{"10.0.0.1", true}});  // the same again
  EXPECT_TRUE(watcher.Becomes({"10.0.0.1:7410"}));
  EXPECT_EQ(watcher.Told().size(), 1u);  // which was never gone
}

TEST(K8sSourceTest, TheTokenIsReadAgain) {
  K8sTestServer server;
  server.Put("leaf", "s", {{"10.0.0.1", true}});
  Watcher watcher(server);
  ASSERT_TRUE(Await([&] { return server.watches() > 0; }, kLong));  // no request is under way
  server.ChangeToken();
  server.EndWatches();
  server.Put("leaf", "s", {{"10.0.0.2", true}});
  EXPECT_TRUE(watcher.Becomes({"10.0.0.2:7410"}));
  EXPECT_EQ(server.unauthorized(), 0u);
  server.ChangeToken(/*write=*/false);
  server.EndWatches();
  EXPECT_TRUE(watcher.Says("401"));
  EXPECT_THAT(watcher.Now(), ElementsAre("10.0.0.2:7410"));
  server.WriteToken();
  server.Put("leaf", "s", {{"10.0.0.3", true}});
  EXPECT_TRUE(watcher.Becomes({"10.0.0.3:7410"}));
}

TEST(K8sSourceTest, RefusalsSayWhatIsMissing) {
  K8sTestServer server;
  server.Put("leaf", "s", {{"10.0.0.1", true}});
  server.AnswerAll(403, "User \"x\" cannot list resource \"endpointslices\"");
  Watcher watcher(server);
  EXPECT_TRUE(watcher.Says("cannot list resource")) << watcher.Why();
  EXPECT_THAT(watcher.Why(), HasSubstr("a Role with list and watch of endpointslices in llm"));
  server.AnswerAll(0);
  EXPECT_TRUE(watcher.Becomes({"10.0.0.1:7410"}));
  Watcher elsewhere(server, "k8s:leaf.prod");
  EXPECT_TRUE(elsewhere.Says("endpointslices in prod")) << elsewhere.Why();
}

TEST(K8sSourceTest, OutsideOfAPodItSaysSo) {
  K8sOptions options;
  options.url = "https://127.0.0.1:1";
  options.account_dir = "/nonexistent";
  Watcher no_account(options, "k8s:leaf");
  EXPECT_THAT(no_account.Why(), HasSubstr("automountServiceAccountToken"));
  K8sTestServer server;
  options.account_dir = server.options().account_dir;
  Watcher no_server(options, "k8s:leaf");
  EXPECT_TRUE(no_server.Says("connecting to 127.0.0.1:1")) << no_server.Why();
}

TEST(K8sSourceTest, AServerOfAnotherCaIsNotAsked) {
  K8sTestServer server;
  K8sTestServer impostor;
  server.Put("leaf", "s", {{"10.0.0.1", true}});
  impostor.Put("leaf", "s", {{"10.6.6.6", true}});
  K8sOptions options = server.options();
  options.url = impostor.options().url;
  Watcher watcher(options, "k8s:leaf");
  EXPECT_TRUE(watcher.Says("TLS with")) << watcher.Why();
  EXPECT_TRUE(watcher.Now().empty());
  EXPECT_EQ(impostor.last_query(), "");
}

TEST(K8sSourceTest, NodesAndLeavesAreFoundByIt) {
  K8sTestServer server;
  server.Put("nodes", "s", {{"10.0.0.1", true}, {"10.0.0.2", true}});
  DirectoryOptions options;
  options.k8s = server.options();
  options.first_answer = kLong;
  auto nodes = FoundNodes::Read("--parents", "k8s:nodes.llm:7420,10.0.0.9:7420", options);
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  EXPECT_TRUE(nodes->finds());
  EXPECT_THAT(nodes->map().Addresses(),
              testing::UnorderedElementsAre("10.0.0.1:7420", "10.0.0.2:7420", "10.0.0.9:7420"));
  auto leaves = FoundLeaves::Open({"k8s:nodes"}, "", options);
  ASSERT_TRUE(leaves.ok()) << leaves.status();
  EXPECT_THAT((*leaves)->addresses(), ElementsAre("10.0.0.1:7410", "10.0.0.2:7410"));
  server.Put("nodes", "s", {{"10.0.0.2", true}});
  std::optional<Addresses> changed;
  ASSERT_TRUE(Await([&] { return (changed = (*leaves)->Changed()).has_value(); }, kLong));
  EXPECT_THAT(*changed, ElementsAre("10.0.0.2:7410"));
  EXPECT_FALSE(FoundNodes::Read("--parents", "k8s:Nodes").ok());
  EXPECT_FALSE(FoundLeaves::Check({"k8s:nodes:port-name-too-long"}, "").ok());
}

TEST(K8sSourceTest, ANameBeforeAServiceIsThatOfItsRecords) {
  K8sTestServer server;
  server.Put("leaf", "s", {{"10.0.0.1", true}});
  Watcher watcher(server, "cell-a=k8s:leaf");
  ASSERT_TRUE(watcher.Becomes({"10.0.0.1:7410"})) << watcher.Why();
  const DirectoryView view = watcher.directory().View();
  ASSERT_EQ(view.records.size(), 1u) << view.status;
  EXPECT_EQ(view.records[0].name, "cell-a");
  EXPECT_FALSE(CheckDirectoryEntry("=k8s:leaf").ok());
}

TEST(K8sSourceTest, ItEndsWhileItWaits) {
  K8sTestServer server;
  server.Put("leaf", "s", {{"10.0.0.1", true}});
  {
    Watcher in_a_watch(server);
  }
  server.AnswerAll(500);
  K8sOptions options = server.options();
  options.backoff_min = std::chrono::hours(1);
  options.backoff_max = std::chrono::hours(1);
  Watcher in_a_wait(options, "k8s:leaf");
  server.AnswerAll(0);
  in_a_wait.directory().Refresh();
  EXPECT_TRUE(in_a_wait.Becomes({"10.0.0.1:7410"}));
}

// Two hundred changes under all faults at once: every reported state existed, and the last one is
// the current one.
class K8sFaultsTest : public testing::TestWithParam<uint64_t> {};

TEST_P(K8sFaultsTest, WhatIsToldWasTrueAndEndsWithTheTruth) {
  std::mt19937_64 random(GetParam());
  const auto draw = [&](int below) {
    return std::uniform_int_distribution<int>(0, below - 1)(random);
  };
  K8sTestServer server(/*page_items=*/2);
  server.Put("leaf", "s0", {{"10.0.0.0", true}});
  Watcher watcher(server);
  server.SetFaults(GetParam(), {.refuse = 0.2,
                                .garbage = 0.1,
                                .gone = 0.1,
                                .cut = 0.1,
                                .end = 0.1,
                                .repeat = 0.2,
                                .bookmark = 0.2});
  for (int i = 0; i < 200; ++i) {
    const std::string slice = "s" + std::to_string(draw(6));
    const int what = draw(20);
    if (what == 0) {
      server.Compact();
    } else if (what == 1) {
      server.ChangeToken();
    } else if (what == 2) {
      server.EndWatches();
    } else if (what < 5) {
      server.Delete("leaf", slice);
    } else {
      K8sTestServer::Endpoints endpoints;
      for (int n = draw(5); n > 0; --n)
        endpoints.emplace_back("10.0.0." + std::to_string(draw(12)), draw(3) != 0);
      server.Put("leaf", slice, endpoints);
    }
    // Now and then the watcher may catch up, so that even a slow one reports that many states.
    if (i % 10 == 9) {
      const Addresses truth = server.Ready("leaf");
      if (!truth.empty()) {
        ASSERT_TRUE(Await([&] { return watcher.Now() == truth; }, kLong)) << watcher.Why();
      }
    }
  }
  server.SetFaults(GetParam(), {});
  server.Put("leaf", "last", {{"10.0.1.1", true}});
  ASSERT_TRUE(watcher.Becomes(server.Ready("leaf"))) << watcher.Why();
  const auto history = server.History("leaf");
  for (const Addresses& told : watcher.Told())
    EXPECT_NE(std::find(history.begin(), history.end(), told), history.end())
        << testing::PrintToString(told) << " was never the state";
  EXPECT_GT(watcher.Told().size(), 10u);
  EXPECT_GT(server.lists(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, K8sFaultsTest, testing::Range<uint64_t>(1, 7));

}  // namespace
}  // namespace kvatlas
