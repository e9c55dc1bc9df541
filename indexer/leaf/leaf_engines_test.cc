// A leaf, engines over real sockets, and replicas: what is true after everything that can happen to
// them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/engine_directory/pool_engine_test_util.h"
#include "indexer/leaf/leaf.h"
#include "indexer/net/http_fetch.h"
#include "indexer/net/http_server.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

LeafOptions Options() {
  LeafOptions options;
  options.grpc = options.http = {"127.0.0.1", 0};
  options.engines.ingest.reconnect_min = milliseconds(10);
  options.engines.ingest.reconnect_max = milliseconds(50);
  // Longer than any engine takes: replays must not time out.
  options.engines.ingest.tracker.replay_timeout = seconds(60);
  options.engines.recovery.settle_wait = milliseconds(50);
  options.engines.recovery.rounds = 1;
  return options;
}

std::unique_ptr<Leaf> Start(LeafOptions options) {
  absl::StatusOr<std::unique_ptr<Leaf>> leaf = Leaf::Start(std::move(options));
  EXPECT_TRUE(leaf.ok()) << leaf.status();
  return leaf.ok() ? *std::move(leaf) : nullptr;
}

std::string UrlOf(const Leaf& leaf) { return "http://" + leaf.http_address().ToString(); }

std::unique_ptr<Leaf> StartFrom(const std::vector<std::string>& peers) {
  LeafOptions options = Options();
  options.engines.recovery.peers = peers;
  return Start(std::move(options));
}

std::string Get(const Leaf& leaf, const std::string& path) {
  HttpFetch fetch;
  const absl::StatusOr<int> status = fetch.Get(UrlOf(leaf), path);
  if (!status.ok()) return status.status().ToString();
  return std::to_string(*status) + " " + fetch.ReadAll(64 << 20).value_or("");
}

bool IsExact(const Leaf& leaf, const PoolEngine& engine, const std::string& instance) {
  return Eventually([&] { return engine.Compare(leaf.registry(), instance).empty(); });
}

Trust TrustOf(Leaf& leaf, const std::string& instance) {
  for (const EngineEntry& entry : leaf.engines().List())
    if (entry.instance == instance && !entry.worker.ranks.empty())
      return entry.worker.ranks[0].trust;
  return Trust::kStale;
}

// The first replay of the connection is over: from here on a small window matters only when
// something is lost.
bool IsSettled(Leaf& leaf, const std::string& instance) {
  return Eventually([&] {
    for (const EngineEntry& entry : leaf.engines().List())
      if (entry.instance == instance) {
        const TrackerStats& stats = entry.listeners[0].stream.tracker;
        return stats.replays_complete + stats.replays_incomplete > 0 && !stats.replaying;
      }
    return false;
  });
}

TEST(LeafEnginesTest, AnswersEqualTheEnginesPool) {
  std::unique_ptr<Leaf> leaf = Start(Options());
  PoolEngine engine({.seed = 1});
  PoolEngine digests({.seed = 2, .digests = true});
  ASSERT_TRUE(leaf->engines().Register(engine.Registration("1")).ok());
  ASSERT_TRUE(leaf->engines().Register(digests.Registration("2")).ok());
  engine.sockets().WaitForSubscribers();
  digests.sockets().WaitForSubscribers();
  for (int round = 0; round < 5; ++round) {
    engine.Run(200);
    digests.Run(200);
    EXPECT_TRUE(IsExact(*leaf, engine, "1")) << engine.Compare(leaf->registry(), "1");
    EXPECT_TRUE(IsExact(*leaf, digests, "2")) << digests.Compare(leaf->registry(), "2");
  }
  engine.EvictAll();
  EXPECT_TRUE(IsExact(*leaf, engine, "1")) << engine.Compare(leaf->registry(), "1");
  EXPECT_EQ(TrustOf(*leaf, "1"), Trust::kExact);
}

TEST(LeafEnginesTest, TheStatusTellsOfTheEngineBehindAHolder) {
  std::unique_ptr<Leaf> leaf = Start(Options());
  PoolEngine engine({.seed = 7});
  EngineRegistration registration = engine.Registration("1");
  registration.lora_name = "poet";
  ASSERT_TRUE(leaf->engines().Register(registration).ok());
  EXPECT_THAT(Get(*leaf, "/status"), HasSubstr("\"contract\":\"xxh3-chain-1:1337\""));
  engine.sockets().WaitForSubscribers();
  engine.Run(20);
  ASSERT_TRUE(Eventually([&] {
    for (const EngineEntry& entry : leaf->engines().List()) return entry.worker.batches == 20;
    return false;
  }));
  const std::string status = Get(*leaf, "/status");
  EXPECT_THAT(status, HasSubstr("\"connected\":true,\"batches\":\"20\",\"engine\":{"));
  EXPECT_THAT(status, HasSubstr("\"block_size\":4,\"lora_name\":\"poet\",\"salted\":false"));
}

TEST(LeafEnginesTest, AnEngineThatStartsAnewIsFollowed) {
  std::unique_ptr<Leaf> leaf = Start(Options());
  PoolEngine engine({.seed = 3, .replay = true});
  ASSERT_TRUE(leaf->engines().Register(engine.Registration("1")).ok());
  engine.sockets().WaitForSubscribers();
  engine.Run(100);
  ASSERT_TRUE(IsExact(*leaf, engine, "1"));
  engine.Restart();
  engine.sockets().WaitForSubscribers();
  engine.Run(20);
  EXPECT_TRUE(IsExact(*leaf, engine, "1")) << engine.Compare(leaf->registry(), "1");
}

TEST(LeafEnginesTest, ALeafThatWasKilledIsExactAgainFromItsPeer) {
  PoolEngine with_replay({.seed = 4, .replay = true});
  PoolEngine without({.seed = 5});
  PoolEngine digests({.seed = 6, .digests = true});
  std::unique_ptr<Leaf> a = Start(Options());
  PoolEngine* const engines[] = {&with_replay, &without, &digests};
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(a->engines().Register(engines[i]->Registration(std::to_string(i))).ok());
    engines[i]->sockets().WaitForSubscribers();
    engines[i]->Run(300);
  }
  for (int killed = 0; killed < 3; ++killed) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(IsExact(*a, *engines[i], std::to_string(i)));
    std::unique_ptr<Leaf> b = StartFrom({UrlOf(*a)});
    // Engines go on while it recovers, from its subscriptions on.
    for (PoolEngine* engine : engines) engine->sockets().WaitForSubscribers();
    for (int batch = 0; batch < 50; ++batch)
      for (PoolEngine* engine : engines) engine->Run(1);
    ASSERT_TRUE(Eventually([&] { return b->readiness().ready; }));
    for (int i = 0; i < 3; ++i) {
      const std::string name = std::to_string(i);
      EXPECT_TRUE(IsExact(*b, *engines[i], name)) << engines[i]->Compare(b->registry(), name);
      EXPECT_EQ(TrustOf(*b, name), Trust::kExact) << name;
    }
    for (PoolEngine* engine : engines) engine->Run(100);
    for (int i = 0; i < 3; ++i) {
      const std::string name = std::to_string(i);
      EXPECT_TRUE(IsExact(*b, *engines[i], name)) << engines[i]->Compare(b->registry(), name);
    }
    a = std::move(b);
  }
  // Copies were counted right all along: nothing is left when everything is evicted.
  for (int i = 0; i < 3; ++i) {
    engines[i]->EvictAll();
    const std::string name = std::to_string(i);
    EXPECT_TRUE(IsExact(*a, *engines[i], name)) << engines[i]->Compare(a->registry(), name);
  }
}

TEST(LeafEnginesTest, ReplicasThatAreFedByTheSameEnginesStayEqual) {
  PoolEngine engine({.seed = 7});
  std::unique_ptr<Leaf> a = Start(Options());
  ASSERT_TRUE(a->engines().Register(engine.Registration("1")).ok());
  engine.sockets().WaitForSubscribers();
  engine.Run(100);
  ASSERT_TRUE(IsExact(*a, engine, "1"));
  std::unique_ptr<Leaf> b = StartFrom({UrlOf(*a)});
  ASSERT_TRUE(Eventually([&] { return b->readiness().ready; }));
  engine.sockets().WaitForSubscribers();
  for (int round = 0; round < 3; ++round) {
    engine.Run(100);
    EXPECT_TRUE(IsExact(*a, engine, "1")) << engine.Compare(a->registry(), "1");
    EXPECT_TRUE(IsExact(*b, engine, "1")) << engine.Compare(b->registry(), "1");
  }
}

// A rank that only batches name goes with the stream that named it, at a replica too.
TEST(LeafEnginesTest, AReplicaKnowsWhichStreamPublishesARank) {
  PoolEngine engine({.seed = 13, .rank = 5});
  EngineRegistration registration = engine.Registration("1");
  registration.rank = 0;
  std::unique_ptr<Leaf> a = Start(Options());
  ASSERT_TRUE(a->engines().Register(registration).ok());
  engine.sockets().WaitForSubscribers();
  engine.Run(100);
  ASSERT_TRUE(IsExact(*a, engine, "1"));
  std::unique_ptr<Leaf> b = StartFrom({UrlOf(*a)});
  engine.sockets().WaitForSubscribers();
  ASSERT_TRUE(Eventually([&] { return b->readiness().ready; }));
  ASSERT_TRUE(IsExact(*b, engine, "1")) << engine.Compare(b->registry(), "1");
  EXPECT_THAT(
      Get(*b, "/metrics"),
      HasSubstr("kvatlas_engine_trust{model=\"m\",group=\"default\",worker=\"1\",rank=\"5\"} 0"));
  a.reset();
  engine.Restart();
  engine.sockets().WaitForSubscribers();
  engine.Run(5);
  EXPECT_TRUE(IsExact(*b, engine, "1")) << engine.Compare(b->registry(), "1");
}

TEST(LeafEnginesTest, WithoutAPeerReplayWindowsThatReachBackMakeItExactAgain) {
  PoolEngine engine({.seed = 8, .replay = true});
  {
    std::unique_ptr<Leaf> first = Start(Options());
    ASSERT_TRUE(first->engines().Register(engine.Registration("1")).ok());
    engine.sockets().WaitForSubscribers();
    engine.Run(200);
    ASSERT_TRUE(IsExact(*first, engine, "1"));
  }
  // The engine says nothing more: what it holds is only in its window.
  LeafOptions options = Options();
  options.engines.workers = {engine.Registration("1")};
  std::unique_ptr<Leaf> leaf = Start(std::move(options));
  EXPECT_TRUE(IsExact(*leaf, engine, "1")) << engine.Compare(leaf->registry(), "1");
  EXPECT_EQ(TrustOf(*leaf, "1"), Trust::kExact);
  engine.Run(100);
  EXPECT_TRUE(IsExact(*leaf, engine, "1")) << engine.Compare(leaf->registry(), "1");
}

TEST(LeafEnginesTest, WithWindowsRolledOverAnswersAreDegradedAndNeverTooHigh) {
  PoolEngine engine({.seed = 9, .replay = true, .ring = 20});
  LeafOptions options = Options();
  options.registry.receiver.repair_timeout = milliseconds(300);
  std::unique_ptr<Leaf> leaf = Start(options);
  ASSERT_TRUE(leaf->engines().Register(engine.Registration("1")).ok());
  engine.sockets().WaitForSubscribers();
  ASSERT_TRUE(IsSettled(*leaf, "1"));
  engine.Run(200);
  ASSERT_TRUE(IsExact(*leaf, engine, "1"));
  engine.Run(100, /*lost=*/true);
  engine.Run(1);
  EXPECT_TRUE(Eventually([&] { return TrustOf(*leaf, "1") == Trust::kDegraded; }));
  EXPECT_TRUE(Eventually([&] {
    return engine.Compare(leaf->registry(), "1", /*under=*/true).empty();
  })) << engine.Compare(leaf->registry(), "1", true);
  engine.EvictAll();
  EXPECT_TRUE(IsExact(*leaf, engine, "1")) << engine.Compare(leaf->registry(), "1");

  // A leaf that starts now has seen none of it.
  leaf.reset();
  engine.Run(100);
  options.engines.workers = {engine.Registration("1")};
  leaf = Start(options);
  EXPECT_TRUE(Eventually([&] { return TrustOf(*leaf, "1") == Trust::kDegraded; }));
  engine.Run(100);
  EXPECT_TRUE(Eventually([&] {
    return engine.Compare(leaf->registry(), "1", /*under=*/true).empty();
  })) << engine.Compare(leaf->registry(), "1", true);
}

TEST(LeafEnginesTest, AnUnreachablePeerLeadsToTheNextAndNoPeerToAnEmptyStart) {
  PoolEngine engine({.seed = 10});
  std::unique_ptr<Leaf> a = Start(Options());
  ASSERT_TRUE(a->engines().Register(engine.Registration("1")).ok());
  engine.sockets().WaitForSubscribers();
  engine.Run(50);
  ASSERT_TRUE(IsExact(*a, engine, "1"));
  std::unique_ptr<Leaf> b = StartFrom({"http://127.0.0.1:1", "not a url", UrlOf(*a)});
  ASSERT_TRUE(Eventually([&] { return b->readiness().ready; }));
  EXPECT_TRUE(IsExact(*b, engine, "1")) << engine.Compare(b->registry(), "1");
  std::unique_ptr<Leaf> c = StartFrom({"http://127.0.0.1:1"});
  EXPECT_TRUE(Eventually([&] { return c->readiness().ready; }));
  EXPECT_EQ(Get(*c, "/workers"), "200 []");
  EXPECT_EQ(Get(*c, "/peers"), "200 [\"http://127.0.0.1:1\"]");
  std::unique_ptr<Leaf> d = StartFrom({UrlOf(*c)});
  EXPECT_TRUE(Eventually([&] { return d->readiness().ready; }));
}

// Dynamo's indexer has no snapshot: its workers and its dump.
TEST(LeafEnginesTest, ADumpOfDynamosIndexerIsRecoveredFrom) {
  ZmqTestEngine engine({});
  HttpServer dynamo({.listen = {"127.0.0.1", 0}});
  const auto answer = [&](const char* path, std::string body) {
    dynamo.Handle({.method = "GET", .path = path, .handler = [body](const HttpRequest&) {
                     return HttpResponse{.body = body};
                   }});
  };
  answer("/workers", R"([{"instance_id":1,"source":"zmq","status":"active","model_name":"m",)"
                     R"("routing_group":"default","block_size":4,"endpoints":{"0":")" +
                         engine.endpoint() + R"("},"listeners":{}}])");
  answer(
      "/dump",
      R"({"m:default":{"block_size":4,"events":[{"worker_id":1,"storage_tier":"device",)"
      R"("residency_domain":"worker","event":{"event_id":0,"data":{"stored":{"parent_hash":null,)"
      R"("start_position":null,"blocks":[{"block_hash":1,"tokens_hash":9143094415614847814,)"
      R"("mm_extra_info":null},{"block_hash":2,"tokens_hash":12124091508212882195,)"
      R"("mm_extra_info":null}]}},"dp_rank":0}},{"worker_id":1,"storage_tier":"host_pinned",)"
      R"("residency_domain":"worker","event":{"event_id":0,"data":{"stored":{"parent_hash":2,)"
      R"("start_position":null,"blocks":[{"block_hash":5,"tokens_hash":1088361764653601668,)"
      R"("mm_extra_info":null}]}},"dp_rank":0}}]}})");
  ASSERT_TRUE(dynamo.Start().ok());
  std::unique_ptr<Leaf> leaf = StartFrom({"http://" + dynamo.address().ToString()});
  ASSERT_TRUE(Eventually([&] { return leaf->readiness().ready; }));
  const std::vector<LocalHash> locals = {LocalHash{9143094415614847814u},
                                         LocalHash{12124091508212882195u},
                                         LocalHash{1088361764653601668u}};
  const std::vector<SequenceHash> sequence = SequenceHashes(locals);
  const auto depth = [&](TierMask tiers) -> uint32_t {
    const auto found = leaf->registry().FindOverlaps(DomainOf("m", "default"),
                                                     {.blocks = sequence, .tiers = tiers});
    return found.ok() && !found->holders.empty() ? found->holders[0].blocks : 0;
  };
  EXPECT_EQ(depth(Tier::kDevice), 2u);
  EXPECT_EQ(depth(TierMask::All()), 3u);
  EXPECT_EQ(TrustOf(*leaf, "1"), Trust::kDegraded) << "nothing confirmed it";
  // Its names are known: [0.0, [["BlockRemoved", [2], "GPU"]], 0].
  engine.WaitForSubscribers();
  engine.Publish(std::string("\x93\xcb\0\0\0\0\0\0\0\0\x91\x93\xac", 13) + "BlockRemoved" +
                 "\x91\x02\xa3GPU" + std::string("\0", 1));
  EXPECT_TRUE(Eventually([&] { return depth(Tier::kDevice) == 1; }));
  leaf->Stop(Duration::zero());
  dynamo.Stop();
}

TEST(LeafEnginesTest, IsReadyOnceThereAreEnoughWorkers) {
  LeafOptions options = Options();
  options.engines.min_initial_workers = 2;
  std::unique_ptr<Leaf> leaf = Start(std::move(options));
  PoolEngine engine({.seed = 11});
  ASSERT_TRUE(leaf->engines().Register(engine.Registration("1")).ok());
  EXPECT_FALSE(leaf->readiness().ready);
  EXPECT_THAT(Get(*leaf, "/ready"), HasSubstr("503"));
  EXPECT_THAT(Get(*leaf, "/ready"), HasSubstr("1 of 2 workers"));
  EXPECT_THAT(Get(*leaf, "/healthz"), HasSubstr("503"));
  ASSERT_TRUE(leaf->engines().Register(engine.Registration("2")).ok());
  EXPECT_TRUE(leaf->readiness().ready);
  EXPECT_THAT(Get(*leaf, "/ready"), HasSubstr("200"));
  EXPECT_TRUE(Eventually([&] { return Get(*leaf, "/healthz").substr(0, 3) == "200"; }));
  ASSERT_TRUE(leaf->engines().Unregister("1", "m", std::nullopt, std::nullopt).ok());
  EXPECT_TRUE(leaf->readiness().ready) << "ready it stays";
}

TEST(LeafEnginesTest, AMessageThatIsTooLargeForTheMemoryIsNotTakenAndItsEngineIsHeardAgain) {
  LeafOptions options = Options();
  options.memory_bytes_max = 16 << 20;
  options.memory_meter = [] { return 0; };
  std::unique_ptr<Leaf> leaf = Start(std::move(options));
  PoolEngine engine({.seed = 13});
  ASSERT_TRUE(leaf->engines().Register(engine.Registration("7")).ok());
  const auto count = [&](const std::string& metric) {
    const std::string text = Get(*leaf, "/metrics");
    const size_t at = text.find("\n" + metric + "{");
    return at == text.npos ? std::string() : text.substr(text.find("} ", at) + 2, 1);
  };
  engine.sockets().WaitForSubscribers();
  engine.sockets().Publish(std::string((1 << 20) - 1000, '\0'));
  EXPECT_TRUE(Eventually([&] { return count("kvatlas_engine_undecodable_total") == "1"; }));
  engine.sockets().Publish(std::string(2 << 20, '\0'));
  EXPECT_TRUE(Eventually([&] {
    engine.Run(1);
    return count("kvatlas_engine_gaps_total") == "1";
  })) << Get(*leaf, "/metrics");
  EXPECT_EQ(count("kvatlas_engine_undecodable_total"), "1");
}

TEST(LeafEnginesTest, TellsAScrapeOfEveryEngine) {
  std::unique_ptr<Leaf> leaf = Start(Options());
  PoolEngine engine({.seed = 12});
  ASSERT_TRUE(leaf->engines().Register(engine.Registration("7")).ok());
  engine.sockets().WaitForSubscribers();
  engine.Run(30);
  ASSERT_TRUE(IsExact(*leaf, engine, "7"));
  const std::string text = Get(*leaf, "/metrics");
  EXPECT_THAT(text, HasSubstr("dynamo_kvindexer_workers 1\n"));
  EXPECT_THAT(text, HasSubstr("dynamo_kvindexer_models 1\n"));
  EXPECT_THAT(text, HasSubstr("dynamo_kvindexer_listeners{status=\"active\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("dynamo_kvrouter_kv_cache_events_applied{event_type=\"cleared\","
                              "status=\"ok\"} 0\n"));
  const std::string of = "model=\"m\",group=\"default\",worker=\"7\",rank=\"0\"";
  EXPECT_THAT(text, HasSubstr("kvatlas_engine_last_number{" + of + "} 29\n"));
  EXPECT_THAT(text, HasSubstr("kvatlas_engine_trust{" + of + "} 0\n"));
  EXPECT_THAT(text, HasSubstr("kvatlas_engine_blocks{" + of + ",tier=\"device\"} " +
                              std::to_string(engine.held()) + "\n"));
  ASSERT_TRUE(leaf->engines().Unregister("7", "m", std::nullopt, std::nullopt).ok());
  const std::string after = Get(*leaf, "/metrics");
  EXPECT_THAT(after, HasSubstr("dynamo_kvindexer_workers 0\n"));
  EXPECT_EQ(after.find("worker=\"7\""), std::string::npos) << "series go with their worker";
}

}  // namespace
}  // namespace kvatlas
