#include "indexer/discovery/found_leaves.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/mutex.h"
#include "indexer/base/resolve_host.h"
#include "indexer/discovery/announcer.h"
#include "indexer/discovery/service_record.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Addresses = std::vector<std::string>;

std::unique_ptr<Announcer> Announce(const RedisTestServer& server, const std::string& cell,
                                    const std::string& replica, const std::string& grpc) {
  ServiceRecord record;
  record.kind = ServiceKind::kLeaf;
  record.name = cell;
  record.replica = replica;
  record.grpc = grpc;
  AnnouncerOptions options;
  options.redis = server.url();
  auto announcer = Announcer::Start(options, std::move(record));
  EXPECT_TRUE(announcer.ok()) << announcer.status();
  return *std::move(announcer);
}

std::unique_ptr<FoundLeaves> Open(const Addresses& entries, const std::string& cell,
                                  DirectoryOptions options = {}) {
  options.poll_every = std::chrono::milliseconds(10);
  options.refresh = std::chrono::milliseconds(10);
  auto leaves = FoundLeaves::Open(entries, cell, std::move(options));
  EXPECT_TRUE(leaves.ok()) << leaves.status();
  return *std::move(leaves);
}

Addresses WaitForChange(FoundLeaves* leaves) {
  std::optional<Addresses> changed;
  while (!changed.has_value()) changed = leaves->Changed();
  return *changed;
}

// A resolver whose answer the test gives.
class Names {
 public:
  void Say(Addresses hosts) {
    MutexLock lock(&mutex_);
    hosts_ = std::move(hosts);
  }
  HostResolver Fn() {
    return [this](const std::string&) -> absl::StatusOr<Addresses> {
      MutexLock lock(&mutex_);
      if (hosts_.empty()) return absl::UnavailableError("away");
      return hosts_;
    };
  }

 private:
  Mutex mutex_;
  Addresses hosts_ ABSL_GUARDED_BY(mutex_);
};

TEST(FoundLeavesTest, GivenOnesStayAsTheyAreWritten) {
  const auto leaves = Open({"leaf-b:7410", "leaf-a:7410"}, "");
  EXPECT_THAT(leaves->addresses(), ElementsAre("leaf-b:7410", "leaf-a:7410"));
  EXPECT_FALSE(leaves->finds());
  EXPECT_EQ(leaves->Changed(), std::nullopt);
}

TEST(FoundLeavesTest, WhatCannotBeUnderstoodIsRefused) {
  EXPECT_EQ(FoundLeaves::Check({"dns:leaf"}, "").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FoundLeaves::Check({"redis:/x"}, "c").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FoundLeaves::Check(Addresses(17, "a:1"), "").code(),
            absl::StatusCode::kInvalidArgument);
  const absl::Status no_cell = FoundLeaves::Check({"redis://127.0.0.1:1"}, "");
  EXPECT_THAT(std::string(no_cell.message()), HasSubstr("cell"));
  EXPECT_TRUE(FoundLeaves::Check({"redis://127.0.0.1:1", "dns:leaf:7410", "a:1"}, "c").ok());
}

TEST(FoundLeavesTest, AReplicaThatComesIsFoundAndOneThatLeavesIsDropped) {
  RedisTestServer redis;
  const auto a = Announce(redis, "cell", "a", "leaf-a:7410");
  const auto stranger = Announce(redis, "other-cell", "a", "leaf-of-others:7410");
  const auto leaves = Open({"given:7410", redis.url()}, "cell");
  EXPECT_TRUE(leaves->finds());
  if (leaves->addresses().size() == 1) WaitForChange(leaves.get());
  EXPECT_THAT(leaves->addresses(), ElementsAre("given:7410", "leaf-a:7410"));
  const auto b = Announce(redis, "cell", "b", "a-leaf:7410");
  EXPECT_THAT(WaitForChange(leaves.get()), ElementsAre("given:7410", "leaf-a:7410", "a-leaf:7410"));
  a->Stop();
  EXPECT_THAT(WaitForChange(leaves.get()), ElementsAre("given:7410", "a-leaf:7410"));
}

TEST(FoundLeavesTest, TheLastOneStaysWhenNobodyIsThere) {
  RedisTestServer redis;
  auto a = Announce(redis, "cell", "a", "leaf-a:7410");
  const auto leaves = Open({redis.url()}, "cell");
  if (leaves->addresses().empty()) WaitForChange(leaves.get());
  a->Stop();
  const auto b = Announce(redis, "cell", "b", "leaf-b:7410");
  // There is never a change to an empty list, even if the moment between was seen.
  EXPECT_THAT(WaitForChange(leaves.get()), ::testing::Contains("leaf-b:7410"));
}

TEST(FoundLeavesTest, OfMoreThanAreToldThoseKnownStay) {
  Names names;
  names.Say({"10.0.0.200"});
  DirectoryOptions options;
  options.resolve = names.Fn();
  const auto leaves = Open({"dns:leaf:7410"}, "", options);
  if (leaves->addresses().empty()) WaitForChange(leaves.get());
  Addresses many = {"10.0.0.200"};
  for (int i = 0; i < 30; ++i) many.push_back("10.0.0." + std::to_string(i));
  names.Say(many);
  const Addresses told = WaitForChange(leaves.get());
  EXPECT_EQ(told.size(), kFoundLeavesMax);
  EXPECT_EQ(told.front(), "10.0.0.200:7410");
  names.Say({});  // the resolver fails: all stay
  names.Say({"10.0.0.7"});
  EXPECT_THAT(WaitForChange(leaves.get()), ElementsAre("10.0.0.7:7410"));
}

}  // namespace
}  // namespace kvatlas
