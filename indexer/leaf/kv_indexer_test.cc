// Answers to SGLang's router: of a registry by itself, and of a leaf that hears engines over real
// sockets and is asked over real gRPC.

#include "indexer/compat/sglang/kv_indexer.h"

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/base/tier.h"
#include "indexer/compat/sglang/kv_indexer_service.h"
#include "indexer/engine_directory/pool_engine_test_util.h"
#include "indexer/kv_events/decoder_test_util.h"
#include "indexer/leaf/http_transcript_test_util.h"
#include "indexer/leaf/leaf.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_deadline.h"
#include "indexer/registry/holder_handle.h"
#include "proto/kv_indexer/v1/kv_indexer.grpc.pb.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

namespace wire = ::kv_indexer::v1;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const Domain kDomain{"m", ""};

// Names of SGLang's own tests, of the tokens 10, 20, … 80 in pages of two.
const std::vector<int64_t> kGoldens = {978178666101069530, -895308556211281782,
                                       -8033692805846017938, 835415944263129316};

wire::MatchExternalKvPrefixRequest PrefixRequest(const std::vector<int64_t>& hashes,
                                                 uint32_t max_blocks = 0) {
  wire::MatchExternalKvPrefixRequest request;
  request.mutable_hashes()->Add(hashes.begin(), hashes.end());
  request.set_max_blocks(max_blocks);
  return request;
}

// "http://a w1/0 4, http://b w2/0 2; best 4, read 4"
std::string Text(const wire::MatchExternalKvPrefixResponse& response) {
  std::string text;
  for (const wire::ExternalKvPrefixMatch& match : response.matches())
    text += match.worker_address() + " " + match.worker_id() + " " +
            std::to_string(match.matched_prefix_blocks()) + ", ";
  if (!text.empty()) text.replace(text.size() - 2, 2, "; ");
  return text + "best " + std::to_string(response.best_prefix_blocks()) + ", read " +
         std::to_string(response.blocks_read());
}

// ---- The wire ----

TEST(KvIndexerWireTest, AQueryIsEightBytesAHashAndAFewMore) {
  for (const int n : {1, 15, 16, 118, 3000, 300000}) {
    std::vector<int64_t> hashes(static_cast<size_t>(n), -1);
    const std::string bytes = PrefixRequest(hashes).SerializeAsString();
    EXPECT_EQ(bytes[0], 0x0a);
    EXPECT_GE(bytes.size(), 8u * hashes.size() + 2);
    EXPECT_LE(bytes.size(), 8u * hashes.size() + 6);
  }
}

TEST(KvIndexerWireTest, NumbersAreThoseOfSGLang) {
  // The names of two pages, at most 3 blocks.
  const std::string bytes = PrefixRequest({kGoldens[0], kGoldens[1]}, 3).SerializeAsString();
  EXPECT_EQ(bytes, FromHex("0a10 dad6d16f5030930d 8aa0a8969c3993f3 1003"));
  wire::MatchExternalKvPrefixResponse response;
  wire::ExternalKvPrefixMatch* const match = response.add_matches();
  match->set_worker_address("u");
  match->set_matched_prefix_blocks(2);
  match->set_worker_id("w");
  response.set_best_prefix_blocks(2);
  response.set_blocks_read(4);
  EXPECT_EQ(response.SerializeAsString(), FromHex("0a08 0a0175 1002 1a0177 1002 1804"));
}

// ---- Of a registry by itself ----

class KvIndexerTest : public testing::Test {
 protected:
  KvIndexerTest() {
    for (uint64_t i = 1; i <= 9; ++i) names_->Name(100 + i, SequenceHash{i}, true);
  }

  std::unique_ptr<HolderHandle> Add(
      const std::string& name, uint32_t rank,
      const std::vector<std::pair<std::string, std::string>>& labels) {
    return *registry_.AddLocal(kDomain, 2,
                               {.id = {name, rank, ""}, .address = "", .labels = labels});
  }
  // Blocks `from` … `to`; block i is called 100 + i and stands at i - 1.
  static void Store(HolderHandle* holder, uint64_t from, uint64_t to, Tier tier = Tier::kDevice) {
    Stored run;
    run.tier = tier;
    run.position = static_cast<Position>(from - 1);
    run.parent = SequenceHash{from - 1};
    for (uint64_t i = from; i <= to; ++i) run.blocks.push_back(SequenceHash{i});
    ASSERT_TRUE(holder->Apply(run).ok());
  }

  std::string Ask(const std::vector<int64_t>& hashes, uint32_t max_blocks = 0) {
    KvIndexer indexer(options_, &registry_, names_.get());
    wire::MatchExternalKvPrefixResponse response;
    trust_.clear();
    const absl::Status status =
        indexer.MatchPrefix(PrefixRequest(hashes, max_blocks), &response, &trust_);
    return status.ok() ? Text(response) : status.ToString();
  }

  static std::vector<int64_t> Hashes(int64_t from, int64_t to) {
    std::vector<int64_t> hashes(static_cast<size_t>(to - from + 1));
    std::iota(hashes.begin(), hashes.end(), 100 + from);
    return hashes;
  }

  KvIndexerOptions options_{.domain = kDomain, .names = {.names_max = 1 << 12}};
  HolderRegistry registry_{HolderRegistryOptions()};
  std::unique_ptr<SglangBlockHashes> names_ = SglangBlockHashes::Create(options_.names);
  std::string trust_;
};

TEST_F(KvIndexerTest, WorkersComeTheDeepestFirstAndThenByName) {
  const auto a = Add("a", 0, {{"url", "http://a"}});
  const auto b = Add("b", 0, {{"url", "http://b"}});
  const auto b1 = Add("b", 1, {{"url", "http://b"}});
  Store(a.get(), 1, 3);
  Store(b.get(), 1, 4);
  Store(b1.get(), 1, 3);
  EXPECT_EQ(Ask(Hashes(1, 4)), "http://b b/0 4, http://a a/0 3, http://b b/1 3; best 4, read 4");
}

TEST_F(KvIndexerTest, AnAddressIsALabelAndAWorkerWithoutOneIsLeftOut) {
  const auto a = Add("a", 0, {{"zone", "z"}, {"url", "http://a"}, {"worker_address", "grpc://A/"}});
  const auto b = Add("b", 0, {{"zone", "z"}});
  const auto c = Add("c", 0, {{"url", ""}});
  Store(a.get(), 1, 2);
  Store(b.get(), 1, 4);
  Store(c.get(), 1, 4);
  EXPECT_EQ(Ask(Hashes(1, 4)), "grpc://A/ a/0 2; best 2, read 4");
}

TEST_F(KvIndexerTest, APrefixEndsWhereANameOrABlockIsMissing) {
  const auto a = Add("a", 0, {{"url", "u"}});
  Store(a.get(), 1, 3);
  Store(a.get(), 5, 6);
  EXPECT_EQ(Ask(Hashes(1, 6)), "u a/0 3; best 3, read 6");
  EXPECT_EQ(Ask({101, 102, 77, 103}), "u a/0 2; best 2, read 4");
}

TEST_F(KvIndexerTest, MaxBlocksBoundsWhatIsLookedAt) {
  const auto a = Add("a", 0, {{"url", "u"}});
  Store(a.get(), 1, 6);
  EXPECT_EQ(Ask(Hashes(1, 6), 4), "u a/0 4; best 4, read 4");
  EXPECT_EQ(Ask(Hashes(1, 6), 100), "u a/0 6; best 6, read 6");
}

TEST_F(KvIndexerTest, WhatIsNotKnownIsNoMatchAndNoError) {
  EXPECT_EQ(Ask(Hashes(1, 4)), "best 0, read 1") << "no such domain";
  const auto a = Add("a", 0, {{"url", "u"}});
  EXPECT_EQ(Ask(Hashes(1, 4)), "best 0, read 1") << "held by nothing";
  Store(a.get(), 2, 4);
  EXPECT_EQ(Ask(Hashes(1, 4)), "best 0, read 1") << "not from the root";
  EXPECT_EQ(Ask({7, 101}), "best 0, read 1") << "no such name";
}

TEST_F(KvIndexerTest, DeviceAndHostCountAndDiskWhereItIsAskedFor) {
  const auto a = Add("a", 0, {{"url", "u"}});
  Store(a.get(), 1, 2);
  Store(a.get(), 3, 4, Tier::kHost);
  Store(a.get(), 5, 6, Tier::kDisk);
  Store(a.get(), 7, 8, Tier::kExternal);
  EXPECT_EQ(Ask(Hashes(1, 9)), "u a/0 4; best 4, read 9");
  options_.counts_disk = true;
  EXPECT_EQ(Ask(Hashes(1, 9)), "u a/0 6; best 6, read 9") << "external is no worker's";
}

TEST_F(KvIndexerTest, RefusesWhatNoRouterSendsAndWhatIsTooMuch) {
  EXPECT_THAT(Ask({}), HasSubstr("INVALID_ARGUMENT"));
  EXPECT_THAT(Ask(std::vector<int64_t>(kKvIndexerHashesMax + 1)), HasSubstr("RESOURCE_EXHAUSTED"));
  EXPECT_EQ(Ask(std::vector<int64_t>(kKvIndexerHashesMax)), "best 0, read 1");
  options_.domain = std::nullopt;
  EXPECT_THAT(Ask({1}), HasSubstr("UNAVAILABLE: this leaf answers for no model"));
}

TEST_F(KvIndexerTest, SaysOfWhomItIsNotSure) {
  const auto a = Add("a", 0, {{"url", "u"}});
  const auto b = Add("b,\xc3\xa4 =%", 1, {{"url", "u"}});
  const auto c = Add("c", 0, {});
  for (HolderHandle* holder : {a.get(), b.get(), c.get()}) Store(holder, 1, 1);
  Ask(Hashes(1, 1));
  EXPECT_EQ(trust_, "");
  b->SetTrust(Trust::kDegraded);
  c->SetTrust(Trust::kDegraded);
  Ask(Hashes(1, 1));
  EXPECT_EQ(trust_, "b%2C%C3%A4%20%3D%25/1=degraded") << "of those in the answer";
  a->SetTrust(Trust::kStale);
  Ask(Hashes(1, 1));
  EXPECT_EQ(trust_, "a/0=stale,b%2C%C3%A4%20%3D%25/1=degraded");
}

TEST_F(KvIndexerTest, WhatItSaysOfTrustIsBounded) {
  std::vector<std::unique_ptr<HolderHandle>> holders;
  for (uint32_t i = 0; i < 200; ++i) {
    holders.push_back(Add(std::string(30, '\x01'), i, {{"url", "u"}}));
    Store(holders.back().get(), 1, 1);
    holders.back()->SetTrust(Trust::kDegraded);
  }
  Ask(Hashes(1, 1));
  EXPECT_GE(trust_.size(), 1024u);
  EXPECT_LE(trust_.size(), 1024u + 16);
}

TEST_F(KvIndexerTest, ListsWhatIsHeldByWorkerAndTier) {
  const auto a = Add("a", 0, {{"url", "u"}});
  const auto b = Add("b", 0, {});
  Store(a.get(), 1, 3);
  Store(a.get(), 2, 2, Tier::kHost);
  Store(b.get(), 3, 4, Tier::kDisk);
  KvIndexer indexer(options_, &registry_, names_.get());
  wire::MatchExternalKvRequest request;
  request.mutable_hashes()->Add(103);
  for (const int64_t hash : {101, 103, 102, 77, 104}) request.add_hashes(hash);
  wire::MatchExternalKvResponse response;
  ASSERT_TRUE(indexer.Match(request, &response).ok());
  ASSERT_EQ(response.matches_size(), 2);
  EXPECT_EQ(response.matches(0).worker_id(), "a/0");
  EXPECT_EQ(response.matches(0).address(), "u");
  ASSERT_EQ(response.matches(0).hashes_by_tier_size(), 2);
  EXPECT_EQ(response.matches(0).hashes_by_tier(0).tier(), wire::TIER_HBM);
  EXPECT_THAT(response.matches(0).hashes_by_tier(0).hashes(), ElementsAre(103, 101, 102));
  EXPECT_EQ(response.matches(0).hashes_by_tier(1).tier(), wire::TIER_DRAM);
  EXPECT_THAT(response.matches(0).hashes_by_tier(1).hashes(), ElementsAre(102));
  EXPECT_EQ(response.matches(1).worker_id(), "b/0");
  EXPECT_EQ(response.matches(1).address(), "");
  ASSERT_EQ(response.matches(1).hashes_by_tier_size(), 1);
  EXPECT_EQ(response.matches(1).hashes_by_tier(0).tier(), wire::TIER_SSD);
  EXPECT_THAT(response.matches(1).hashes_by_tier(0).hashes(), ElementsAre(103, 104));
}

TEST_F(KvIndexerTest, CountsHitsOfWhatWasMatchedWhenAskedTo) {
  const auto a = Add("a", 0, {});
  Store(a.get(), 1, 2);
  KvIndexer indexer(options_, &registry_, names_.get());
  wire::MatchExternalKvRequest request;
  for (const int64_t hash : {101, 101, 102, 103, 77}) request.add_hashes(hash);
  wire::MatchExternalKvResponse response;
  ASSERT_TRUE(indexer.Match(request, &response).ok());
  request.set_count_as_hit(true);
  ASSERT_TRUE(indexer.Match(request, &response).ok());
  request.clear_hashes();
  request.add_hashes(102);
  ASSERT_TRUE(indexer.Match(request, &response).ok());
  wire::GetExternalKvHitCountsRequest asked;
  for (const int64_t hash : {101, 102, 103, 77}) asked.add_hashes(hash);
  wire::GetExternalKvHitCountsResponse counts;
  ASSERT_TRUE(indexer.HitCounts(asked, &counts).ok());
  ASSERT_EQ(counts.entries_size(), 2);
  EXPECT_EQ(counts.entries(0).hash(), 101);
  EXPECT_EQ(counts.entries(0).hit_count_total(), 1u);
  EXPECT_EQ(counts.entries(1).hash(), 102);
  EXPECT_EQ(counts.entries(1).hit_count_total(), 2u);
}

TEST_F(KvIndexerTest, ListsAreBounded) {
  KvIndexer indexer(options_, &registry_, names_.get());
  wire::MatchExternalKvRequest request;
  wire::GetExternalKvHitCountsRequest counts;
  for (int i = 0; i <= kKvIndexerListMax; ++i) {
    request.add_hashes(i);
    counts.add_hashes(i);
  }
  wire::MatchExternalKvResponse response;
  wire::GetExternalKvHitCountsResponse counted;
  EXPECT_TRUE(absl::IsResourceExhausted(indexer.Match(request, &response)));
  EXPECT_TRUE(absl::IsResourceExhausted(indexer.HitCounts(counts, &counted)));
}

TEST(KvIndexerModelTest, IsAModelAndMaybeATenant) {
  EXPECT_EQ(*ParseKvIndexerModel("org/model"), (Domain{"org/model", ""}));
  EXPECT_EQ(*ParseKvIndexerModel("m=t"), (Domain{"m", "t"}));
  EXPECT_EQ(*ParseKvIndexerModel("m=default"), (Domain{"m", ""}));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseKvIndexerModel("=t").status()));
}

TEST(GrpcDeadlineTest, HasPassedOrNot) {
  EXPECT_TRUE(HasPassed(DeadlineIn(std::chrono::seconds(-1))));
  EXPECT_FALSE(HasPassed(DeadlineIn(std::chrono::hours(1))));
  EXPECT_FALSE(HasPassed(gpr_inf_future(GPR_CLOCK_REALTIME)));
}

// ---- Of a leaf, over sockets ----

// A chain's first blocks of two tokens, as these names.
std::string StoreEvent(const std::vector<int64_t>& hashes, const std::vector<TokenId>& tokens,
                       bool map) {
  MsgpackWriter writer;
  if (map) {
    writer.Map(6).Text("type");
  } else {
    writer.Array(7);
  }
  const auto field = [&](const char* name) {
    if (map) writer.Text(name);
  };
  writer.Text("BlockStored");
  field("block_hashes");
  writer.Array(hashes.size());
  for (const int64_t hash : hashes)
    hash < 0 ? writer.Signed(hash) : writer.Unsigned(static_cast<uint64_t>(hash));
  field("parent_block_hash");
  writer.Nil();
  field("token_ids");
  writer.Array(tokens.size());
  for (const TokenId token : tokens) writer.Unsigned(token);
  field("block_size");
  writer.Unsigned(2);
  if (!map) writer.Nil();
  field("medium");
  writer.Text("GPU");
  return writer.bytes();
}

std::string RemoveEvent(int64_t hash) {
  MsgpackWriter writer;
  writer.Array(3).Text("BlockRemoved").Array(1);
  hash < 0 ? writer.Signed(hash) : writer.Unsigned(static_cast<uint64_t>(hash));
  writer.Text("GPU");
  return writer.bytes();
}

class KvIndexerLeafTest : public testing::Test {
 protected:
  void Start(KvIndexerOptions options) {
    LeafOptions leaf;
    leaf.grpc = leaf.http = {"127.0.0.1", 0};
    leaf.kv_indexer = std::move(options);
    absl::StatusOr<std::unique_ptr<Leaf>> started = Leaf::Start(std::move(leaf));
    ASSERT_TRUE(started.ok()) << started.status();
    leaf_ = *std::move(started);
    http_ = std::make_unique<HttpTestClient>(leaf_->http_address());
    stub_ = wire::KVIndexer::NewStub(MakeChannel(leaf_->grpc_address().ToString(),
                                                 {.connect_timeout = std::chrono::minutes(1)}));
  }
  void Start() { Start({.domain = kDomain}); }

  void Register(int instance, const ZmqTestEngine& engine, const std::string& more = "") {
    const HttpAnswerText answer = http_->Post(
        "/register", R"({"instance_id":)" + std::to_string(instance) + R"(,"endpoint":")" +
                         engine.endpoint() + R"(","model_name":"m","block_size":2)" + more + "}");
    ASSERT_EQ(answer.status, 201) << answer.body;
  }

  std::string Ask(const std::vector<int64_t>& hashes) {
    wire::MatchExternalKvPrefixResponse response;
    grpc::ClientContext context;
    const grpc::Status status =
        stub_->MatchExternalKvPrefix(&context, PrefixRequest(hashes), &response);
    const auto& trailers = context.GetServerTrailingMetadata();
    const auto trust = trailers.find(kKvIndexerTrustMetadata);
    trust_ = trust == trailers.end() ? "" : std::string(trust->second.data(), trust->second.size());
    code_ = status.error_code();
    return status.ok() ? Text(response) : status.error_message();
  }

  bool Answers(const std::vector<int64_t>& hashes, const std::string& text) {
    return Eventually([&] { return Ask(hashes) == text; });
  }

  const std::vector<TokenId> tokens_ = {10, 20, 30, 40, 50, 60, 70, 80};
  std::unique_ptr<Leaf> leaf_;
  std::unique_ptr<HttpTestClient> http_;
  std::unique_ptr<wire::KVIndexer::Stub> stub_;
  std::string trust_;
  grpc::StatusCode code_ = grpc::StatusCode::OK;
};

TEST_F(KvIndexerLeafTest, EnginesOfSGLangAndOfVllmAreFoundByTheSameNames) {
  Start();
  ZmqTestEngine sglang({}), vllm({});
  Register(1, sglang, R"(,"url":"http://10.0.0.1:30000")");
  Register(2, vllm, R"(,"url":"http://10.0.0.2:8000","engine_type":"vLLM")");
  sglang.WaitForSubscribers();
  vllm.WaitForSubscribers();
  EXPECT_EQ(Ask(kGoldens), "best 0, read 1");
  sglang.Publish(BatchOf(1, StoreEvent(kGoldens, tokens_, /*map=*/false)));
  EXPECT_TRUE(Answers(kGoldens, "http://10.0.0.1:30000 1/0 4; best 4, read 4")) << Ask(kGoldens);
  // vLLM's own names say nothing of pages.
  vllm.Publish(
      BatchOf(1, StoreEvent({1, 2, 3}, {tokens_.begin(), tokens_.begin() + 6}, /*map=*/true)));
  EXPECT_TRUE(
      Answers(kGoldens, "http://10.0.0.1:30000 1/0 4, http://10.0.0.2:8000 2/0 3; best 4, read 4"))
      << Ask(kGoldens);
  EXPECT_EQ(Ask({1, 2, 3}), "best 0, read 1");
  sglang.Publish(BatchOf(1, RemoveEvent(kGoldens[1])));
  EXPECT_TRUE(
      Answers(kGoldens, "http://10.0.0.2:8000 2/0 3, http://10.0.0.1:30000 1/0 1; best 3, read 4"))
      << Ask(kGoldens);
  EXPECT_EQ(trust_, "");
  EXPECT_THAT(http_->Get("/metrics").body, HasSubstr("kvatlas_leaf_kv_indexer_names 4\n"));
}

TEST_F(KvIndexerLeafTest, AnEngineOfVllmAloneIsFound) {
  Start();
  ZmqTestEngine vllm({});
  Register(2, vllm, R"(,"url":"u")");
  vllm.WaitForSubscribers();
  vllm.Publish(BatchOf(1, StoreEvent({1, 2, 3, 4}, tokens_, /*map=*/true)));
  EXPECT_TRUE(Answers(kGoldens, "u 2/0 4; best 4, read 4")) << Ask(kGoldens);
}

TEST_F(KvIndexerLeafTest, EnginesOfOtherModelsAreNotItsBusiness) {
  Start({.domain = Domain{"other", ""}});
  ZmqTestEngine engine({});
  Register(1, engine, R"(,"url":"u")");
  engine.WaitForSubscribers();
  engine.Publish(BatchOf(1, StoreEvent(kGoldens, tokens_, false)));
  ASSERT_TRUE(Eventually([&] { return leaf_->engines().List()[0].worker.batches == 1; }));
  EXPECT_EQ(Ask(kGoldens), "best 0, read 1");
}

TEST_F(KvIndexerLeafTest, DoubtIsToldBehindTheAnswer) {
  Start();
  ZmqTestEngine engine({});
  Register(1, engine, R"(,"url":"u")");
  engine.WaitForSubscribers();
  engine.Publish(BatchOf(1, StoreEvent(kGoldens, tokens_, false)));
  ASSERT_TRUE(Answers(kGoldens, "u 1/0 4; best 4, read 4"));
  engine.Drop("lost");
  engine.Publish(BatchOf(0, ""));
  EXPECT_TRUE(Eventually([&] {
    Ask(kGoldens);
    return trust_ == "1/0=degraded";
  })) << trust_;
}

TEST_F(KvIndexerLeafTest, NamesOfWhatIsGoneAreSwept) {
  Start();
  ZmqTestEngine engine({});
  Register(1, engine, R"(,"url":"u")");
  engine.WaitForSubscribers();
  engine.Publish(BatchOf(1, StoreEvent(kGoldens, tokens_, false)));
  ASSERT_TRUE(Answers(kGoldens, "u 1/0 4; best 4, read 4"));
  engine.Publish(BatchOf(2, RemoveEvent(kGoldens[3]) + RemoveEvent(kGoldens[2])));
  EXPECT_TRUE(Eventually([&] {
    return http_->Get("/metrics").body.find("kvatlas_leaf_kv_indexer_names 2\n") !=
           std::string::npos;
  }));
  EXPECT_EQ(Ask(kGoldens), "u 1/0 2; best 2, read 4");
}

// Other codes than these are 503 to a router's user.
TEST_F(KvIndexerLeafTest, StatusesAreThoseThatARouterTakesForNoAnswer) {
  Start({.domain = kDomain, .in_flight_max = 0});
  Ask(kGoldens);
  EXPECT_EQ(code_, grpc::StatusCode::RESOURCE_EXHAUSTED);
  Start();
  Ask({});
  EXPECT_EQ(code_, grpc::StatusCode::INVALID_ARGUMENT);
  Ask(std::vector<int64_t>(kKvIndexerHashesMax + 1));
  EXPECT_EQ(code_, grpc::StatusCode::RESOURCE_EXHAUSTED);
  Ask(std::vector<int64_t>(3 * kKvIndexerHashesMax));
  EXPECT_EQ(code_, grpc::StatusCode::RESOURCE_EXHAUSTED) << "beyond what the port takes";
  EXPECT_EQ(Ask(std::vector<int64_t>(kKvIndexerHashesMax)), "best 0, read 1");
  Start({});
  EXPECT_THAT(Ask(kGoldens), HasSubstr("--kv_indexer_model"));
  EXPECT_EQ(code_, grpc::StatusCode::UNAVAILABLE);
}

TEST_F(KvIndexerLeafTest, IsUnavailableUntilTheLeafIsReady) {
  LeafOptions options;
  options.grpc = options.http = {"127.0.0.1", 0};
  options.kv_indexer.domain = kDomain;
  options.engines.min_initial_workers = 1;
  leaf_ = *Leaf::Start(std::move(options));
  stub_ = wire::KVIndexer::NewStub(
      MakeChannel(leaf_->grpc_address().ToString(), {.connect_timeout = std::chrono::minutes(1)}));
  Ask(kGoldens);
  EXPECT_EQ(code_, grpc::StatusCode::UNAVAILABLE);
  http_ = std::make_unique<HttpTestClient>(leaf_->http_address());
  ZmqTestEngine engine({});
  Register(1, engine);
  EXPECT_TRUE(Answers(kGoldens, "best 0, read 1"));
}

TEST_F(KvIndexerLeafTest, TheOtherCallsExist) {
  Start();
  ZmqTestEngine engine({});
  Register(1, engine, R"(,"url":"u")");
  engine.WaitForSubscribers();
  engine.Publish(BatchOf(1, StoreEvent(kGoldens, tokens_, false)));
  ASSERT_TRUE(Answers(kGoldens, "u 1/0 4; best 4, read 4"));
  wire::MatchExternalKvRequest request;
  request.mutable_hashes()->Add(kGoldens.begin(), kGoldens.end());
  request.set_count_as_hit(true);
  wire::MatchExternalKvResponse response;
  grpc::ClientContext match;
  ASSERT_TRUE(stub_->MatchExternalKv(&match, request, &response).ok());
  ASSERT_EQ(response.matches_size(), 1);
  EXPECT_THAT(response.matches(0).hashes_by_tier(0).hashes(), testing::ElementsAreArray(kGoldens));
  wire::GetExternalKvHitCountsRequest asked;
  asked.add_hashes(kGoldens[0]);
  wire::GetExternalKvHitCountsResponse counts;
  grpc::ClientContext hits;
  ASSERT_TRUE(stub_->GetExternalKvHitCounts(&hits, asked, &counts).ok());
  ASSERT_EQ(counts.entries_size(), 1);
  EXPECT_EQ(counts.entries(0).hit_count_total(), 1u);
  // Batches of a bridge are refused.
  wire::ApplyExternalKvBatchRequest batch;
  batch.set_worker_id("w");
  wire::ApplyExternalKvBatchResponse applied;
  grpc::ClientContext apply;
  const grpc::Status status = stub_->ApplyExternalKvBatch(&apply, batch, &applied);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--workers"));
}

}  // namespace
}  // namespace kvatlas
