// The finders without sockets beside those over real gRPC, asked the same of the same registries.

#include "frontend/serve/lookup_clients/in_process_lookup_clients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/cluster_client/grpc_lookup_clients.h"
#include "frontend/router/frontend.h"
#include "indexer/base/await.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/memory_budget.h"
#include "indexer/base/tier.h"
#include "indexer/leaf/leaf_service.h"
#include "indexer/net/grpc_server.h"
#include "indexer/registry/holder_handle.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kOwn[] = "own";
constexpr Duration kPatience = seconds(30);
const Domain kDomains[] = {{"llama", ""}, {"gemma", "tenant"}};

std::vector<SequenceHash> Sequence(uint64_t first, size_t blocks) {
  std::vector<SequenceHash> sequence;
  for (uint64_t i = 0; i < blocks; ++i) sequence.push_back(SequenceHash{first + i});
  return sequence;
}

// ---- Answers as text, so that a difference is read ----

std::string Text(const std::optional<Load>& load) {
  if (!load.has_value()) return "no load";
  return absl::StrCat(load->running_requests, "/", load->waiting_requests, "/", load->used_blocks,
                      "/", load->free_blocks, "/", load->waiting_prefill_blocks, "/",
                      load->tokens_per_s, "/", load->workers);
}

std::string Text(const std::map<std::string, std::string>& labels) {
  std::string text;
  for (const auto& [name, value] : labels) absl::StrAppend(&text, " ", name, "=", value);
  return text;
}

std::string Text(const absl::StatusOr<WorkersAnswer>& answer) {
  if (!answer.ok()) return absl::StatusCodeToString(answer.status().code());
  std::string text = absl::StrCat("block size ", answer->block_size, "\n");
  for (const WorkerFound& worker : answer->workers) {
    absl::StrAppend(&text, ToString(worker.worker), ": ", worker.blocks, " of ", worker.held,
                    " held, trust ", static_cast<int>(worker.trust), ", ", worker.age_ms, " ms, ",
                    Text(worker.load), ", below ", worker.fetched.host, "/", worker.fetched.disk,
                    "/", worker.fetched.remote, ", from stores ", worker.stored, ", pending ",
                    worker.pending.depth, "/", worker.pending.blocks, "/", worker.pending.requests,
                    worker.pending.session ? " session" : "");
    const Labels* const labels = answer->LabelsOf(worker.worker);
    absl::StrAppend(&text, labels == nullptr ? " none" : Text(*labels), "\n");
  }
  return absl::StrCat(text, answer->labels == nullptr ? 0 : answer->labels->size(), " labelled\n");
}

std::string Ask(OverlapFinder* finder, const std::string& address, const Domain& domain,
                const std::vector<SequenceHash>& sequence, Duration deadline = kPatience,
                uint64_t frontend = 0, uint64_t session = 0) {
  std::promise<std::string> answered;
  finder->FindOverlaps(
      address, {.domain = &domain, .sequence = sequence, .session = session, .frontend = frontend},
      deadline, [&](absl::StatusOr<WorkersAnswer> answer) { answered.set_value(Text(answer)); });
  return answered.get_future().get();
}

// ---- Contents ----

// Holders that come, go and change at random, in one registry.
class RandomHolders {
 public:
  RandomHolders(HolderRegistry* registry, uint32_t seed) : registry_(registry), random_(seed) {}

  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_()) % bound; }

  // Adds a holder that holds some of `sequence`.
  void Add(const Domain& domain, uint32_t block_size, const std::vector<SequenceHash>& sequence) {
    HolderInfo said{
        .id = {"worker" + std::to_string(Below(24)), Below(3), ""}, .address = "", .labels = {}};
    for (uint32_t i = Below(4); i > 0; --i)
      said.labels.emplace_back("label" + std::to_string(i), std::to_string(Below(3)));
    if (Below(2) == 0)
      said.labels.emplace_back(Below(3) == 0 ? "holds_store" : "store",
                               "s" + std::to_string(Below(2)));
    auto holder = registry_->AddLocal(domain, block_size, std::move(said));
    if (!holder.ok()) return;  // that id is there
    if (Below(4) == 0) MakeHybrid(block_size, sequence, holder->get());
    Fill(sequence, holder->get());
    if (Below(3) > 0) (*holder)->SetLoad(SomeLoad());
    if (Below(4) == 0) (*holder)->SetTrust(Below(2) == 0 ? Trust::kDegraded : Trust::kStale);
    if (Below(8) == 0) (*holder)->SetMasked(true);
    if (Below(2) == 0) (*holder)->Heard();
    holders_.push_back(*std::move(holder));
  }

  void RemoveOne() {
    if (holders_.empty()) return;
    holders_.erase(holders_.begin() + Below(static_cast<uint32_t>(holders_.size())));
  }

 private:
  Load SomeLoad() {
    return {.running_requests = Below(9),
            .waiting_requests = Below(9),
            .used_blocks = Below(1000),
            .free_blocks = Below(1000),
            .waiting_prefill_blocks = Below(100),
            .tokens_per_s = Below(1000) / 8.0,
            .workers = Below(3)};
  }

  void Fill(const std::vector<SequenceHash>& sequence, HolderHandle* holder) {
    const size_t held = Below(static_cast<uint32_t>(sequence.size()) + 1);
    for (size_t i = 0; i < held; ++i) {
      const Stored stored{.tier = static_cast<Tier>(std::min<uint32_t>(Below(8), kTiers - 1)),
                          .position = static_cast<Position>(i),
                          .parent = i == 0 ? kNoParent : sequence[i - 1],
                          .blocks = {sequence[i]}};
      EXPECT_TRUE(holder->Apply(stored).ok());
    }
    if (held == 0 || Below(2) == 0) return;
    const SequenceHash lost = sequence[Below(static_cast<uint32_t>(held))];
    for (int tier = 0; tier < kTiers; ++tier)
      EXPECT_TRUE(holder->Apply(Removed{.tier = static_cast<Tier>(tier), .blocks = {lost}}).ok());
  }

  void MakeHybrid(uint32_t block_size, const std::vector<SequenceHash>& sequence,
                  HolderHandle* holder) {
    CacheLayout layout{.main = {.kind = CacheKind::kFull, .block_size = block_size}, .sides = {}};
    layout.sides.push_back(
        {.kind = CacheKind::kWindow, .block_size = block_size, .window_tokens = 2 * block_size});
    holder->SetLayout(layout);
    Stored side{.blocks = {}, .side = 1};
    for (SequenceHash block : sequence) {
      if (Below(3) > 0) side.blocks.push_back(SideName(SideTag(layout.sides[0]), block));
    }
    if (!side.blocks.empty()) {
      EXPECT_TRUE(holder->Apply(side).ok());
    }
  }

  HolderRegistry* const registry_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<HolderHandle>> holders_;
};

HolderInfo Named(HolderId id) { return {.id = std::move(id), .address = "", .labels = {}}; }

// ---- A leaf, over gRPC too ----

struct LeafPair {
  explicit LeafPair(const Clock* clock, const MemoryBudget* memory = nullptr)
      : registry(Options(clock, memory)),
        service({.cell = "cell", .replica = "", .contract = {}}, &registry, nullptr, &metrics),
        server(GrpcServerOptions{.listen = {"127.0.0.1", 0}}),
        direct(kOwn, &registry, nullptr, &Clock::Real()) {
    server.Register(&service);
    EXPECT_TRUE(server.Start().ok());
  }
  ~LeafPair() {
    service.Stop();
    server.Stop(Duration(0));
  }
  static HolderRegistryOptions Options(const Clock* clock, const MemoryBudget* memory) {
    HolderRegistryOptions options;
    options.index.memory = memory;
    options.clock = clock;
    return options;
  }
  void ExpectSame(const Domain& domain, const std::vector<SequenceHash>& sequence,
                  uint64_t frontend = 0, uint64_t session = 0) {
    EXPECT_EQ(
        Ask(&direct, kOwn, domain, sequence, kPatience, frontend, session),
        Ask(&grpc, server.address().ToString(), domain, sequence, kPatience, frontend, session));
  }

  Metrics metrics;
  HolderRegistry registry;
  LeafService service;
  GrpcServer server;
  InProcessOverlapFinder direct;
  GrpcOverlapFinder grpc;
};

TEST(InProcessFindersTest, OverlapsOfRandomRegistriesAreThoseOverGrpc) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    ManualClock clock;
    LeafPair leaf(&clock);
    RandomHolders holders(&leaf.registry, seed);
    const std::vector<SequenceHash> sequence = Sequence(1000, 40);
    for (int step = 0; step < 60; ++step) {
      const uint32_t which = holders.Below(2);
      holders.Add(kDomains[which], which == 0 ? 16 : 64, sequence);
      if (holders.Below(4) == 0) holders.RemoveOne();
      clock.Advance(milliseconds(holders.Below(500)));
      if (step % 4 != 0) continue;
      std::vector<SequenceHash> asked = Sequence(1000, holders.Below(41));
      if (!asked.empty() && holders.Below(3) == 0)
        asked[holders.Below(static_cast<uint32_t>(asked.size()))] = SequenceHash{7};
      for (const Domain& domain : kDomains) leaf.ExpectSame(domain, asked);
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(InProcessFindersTest, WhatIsToldOverAStreamIsSaidByBoth) {
  const ManualClock clock;
  LeafPair leaf(&clock);
  GrpcOverlapFinder teller(/*streams=*/true);
  const std::string address = leaf.server.address().ToString();
  const auto holder = leaf.registry.AddLocal(kDomains[0], 16, Named({"w", 0, ""}));
  const auto other = leaf.registry.AddLocal(kDomains[0], 16, Named({"v", 1, ""}));
  ASSERT_TRUE(holder.ok() && other.ok());
  const std::vector<SequenceHash> prompt = Sequence(1, 40);
  ASSERT_TRUE((*holder)->Apply(Stored{.blocks = Sequence(1, 10)}).ok());
  const auto stats = [&] { return leaf.registry.StatsOf(kDomains[0])->pending; };
  // The stream stands once a question was answered; until then tellings are lost. A choice told
  // again counts once.
  ASSERT_TRUE(Await(
      [&] {
        Ask(&teller, address, kDomains[0], prompt);
        teller.Tell(address, kDomains[0], /*frontend=*/5,
                    {.decision = 1,
                     .worker = {"w", 0, ""},
                     .first = 10,
                     .blocks = std::span(prompt).subspan(10),
                     .session = 77,
                     .ttl = seconds(7)});
        return stats().requests > 0;
      },
      kPatience));
  for (const uint64_t frontend : {0, 5, 6})
    for (const uint64_t session : {0, 77, 78})
      leaf.ExpectSame(kDomains[0], prompt, frontend, session);
  const std::string said = Ask(&teller, address, kDomains[0], prompt, kPatience, 6, 77);
  EXPECT_NE(said.find("w/0: 10 of 10 held"), std::string::npos) << said;
  EXPECT_NE(said.find("pending 40/30/1 session"), std::string::npos) << said;
  teller.End(address, kDomains[0], 5, {.decision = 1, .failed = true});
  EXPECT_TRUE(Await([&] { return stats().counts.failed == 1; }, kPatience));
  leaf.ExpectSame(kDomains[0], prompt, 6, 77);
  // A worker that is not there, and a domain that is not.
  teller.Tell(address, kDomains[0], 5,
              {.decision = 1000, .worker = {"none", 0, ""}, .blocks = prompt});
  teller.Tell(address, kDomains[1], 5,
              {.decision = 1001, .worker = {"w", 0, ""}, .blocks = prompt});
  teller.Tell(address, kDomains[0], 5,
              {.decision = 1002, .worker = {"v", 1, ""}, .blocks = prompt});
  EXPECT_TRUE(Await([&] { return stats().requests == 1; }, kPatience));
  EXPECT_EQ(stats().blocks, 40u);
  leaf.service.Stop();
}

TEST(InProcessFindersTest, LabelsThatChangeAreSeenAtOnce) {
  LeafPair leaf(&Clock::Real());
  const std::vector<SequenceHash> none;
  for (const char* url : {"http://a:1", "http://b:2", ""}) {
    HolderInfo info{.id = {"w", 0, ""}, .address = "", .labels = {}};
    if (*url != '\0') info.labels.emplace_back(kUrlLabel, url);
    const auto holder = leaf.registry.AddLocal(kDomains[0], 16, std::move(info));
    ASSERT_TRUE(holder.ok());
    const std::string answer = Ask(&leaf.direct, kOwn, kDomains[0], none);
    EXPECT_NE(answer.find(*url == '\0' ? " none" : absl::StrCat(" url=", url)), std::string::npos)
        << answer;
  }
}

TEST(InProcessFindersTest, WhatALeafRefusesIsRefusedWithTheSameCode) {
  static_assert(kRouteBlocksMax == kQueryBlocksMax);
  uint64_t used = 10;
  MemoryBudget memory(100, [&used] { return used; });
  const ManualClock clock;
  LeafPair leaf(&clock, &memory);
  LeafPair ample(&clock);
  leaf.ExpectSame(kDomains[0], Sequence(1, 3));  // NOT_FOUND
  const auto holder = leaf.registry.AddLocal(kDomains[0], 16, Named({"w", 0, ""}));
  const auto other = ample.registry.AddLocal(kDomains[0], 16, Named({"w", 0, ""}));
  ASSERT_TRUE(holder.ok() && other.ok());
  used = 99;  // from now on: new domains would be refused too
  memory.Measure();
  leaf.ExpectSame({"", ""}, Sequence(1, 3));
  leaf.ExpectSame({std::string(257, 'm'), ""}, Sequence(1, 3));
  // No message can carry this one: over gRPC it ends the stream.
  EXPECT_EQ(Ask(&leaf.direct, kOwn, {"llama", "\xff"}, {}), "INVALID_ARGUMENT");
  leaf.ExpectSame(kDomains[0], Sequence(1, 1024));
  leaf.ExpectSame(kDomains[0], Sequence(1, 1025));
  EXPECT_EQ(Ask(&leaf.direct, kOwn, kDomains[0], Sequence(1, 1025)), "RESOURCE_EXHAUSTED");
  ample.ExpectSame(kDomains[0], Sequence(1, kRouteBlocksMax));
  ample.ExpectSame(kDomains[0], Sequence(1, kRouteBlocksMax + 1));
  EXPECT_EQ(Ask(&ample.direct, kOwn, kDomains[0], Sequence(1, kRouteBlocksMax + 1)),
            "RESOURCE_EXHAUSTED");
  EXPECT_EQ(Ask(&ample.direct, kOwn, {"", ""}, {}), "INVALID_ARGUMENT");
}

// Each look at it takes a second.
class SlowClock : public ManualClock {
 public:
  Time Now() const override {
    const_cast<SlowClock*>(this)->Advance(seconds(1));
    return ManualClock::Now();
  }
};

TEST(InProcessFindersTest, AnAnswerAfterItsDeadlineIsNone) {
  HolderRegistry registry(HolderRegistryOptions{});
  const auto holder = registry.AddLocal(kDomains[0], 16, Named({"w", 0, ""}));
  SlowClock clock;
  InProcessOverlapFinder finder(kOwn, &registry, nullptr, &clock);
  EXPECT_EQ(Ask(&finder, kOwn, kDomains[0], {}, milliseconds(999)), "DEADLINE_EXCEEDED");
  EXPECT_EQ(Ask(&finder, kOwn, kDomains[0], {}, seconds(1)).substr(0, 10), "block size");
  const ManualClock still;
  InProcessOverlapFinder at_once(kOwn, &registry, nullptr, &still);
  EXPECT_EQ(Ask(&at_once, kOwn, kDomains[0], {}, Duration(0)), "DEADLINE_EXCEEDED");
}

TEST(InProcessFindersTest, OtherAddressesAreAskedThroughTheOtherFinder) {
  LeafPair other(&Clock::Real());
  const auto there = other.registry.AddLocal(kDomains[0], 32, Named({"there", 0, ""}));
  HolderRegistry registry(HolderRegistryOptions{});
  InProcessOverlapFinder alone(kOwn, &registry, nullptr, &Clock::Real());
  int asked = 0;
  InProcessOverlapFinder both(kOwn, &registry, &other.grpc, &Clock::Real(), [&] { ++asked; });
  const std::string address = other.server.address().ToString();
  EXPECT_EQ(Ask(&alone, address, kDomains[0], {}), "UNAVAILABLE");
  EXPECT_NE(Ask(&both, address, kDomains[0], {}).find("there"), std::string::npos);
  EXPECT_EQ(Ask(&both, kOwn, kDomains[0], {}), "NOT_FOUND");
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace kvatlas
