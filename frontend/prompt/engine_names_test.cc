// Names that engines on real sockets serve, with a leaf that knows only their model.

#include "frontend/prompt/engine_names.h"

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "frontend/gateway/http/models_engine_test_util.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "frontend/prompt/engine_conventions.h"
#include "frontend/prompt/served_names.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "gtest/gtest.h"
#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"

namespace kvatlas {
namespace {

using Workers = std::vector<std::string>;

// A leaf that knows workers of one model.
class OneModel : public CellFinder, public OverlapFinder {
 public:
  void FindCells(const std::string&, const CellQuestion&, Duration,
                 CellFinder::Callback callback) override {
    callback(absl::UnavailableError("no hierarchy"));
  }
  void FindOverlaps(const std::string&, const OverlapQuestion& question, Duration,
                    OverlapFinder::Callback callback) override {
    if (away) return callback(absl::UnavailableError("away"));
    const auto of = of_tenants.find(*question.domain);
    if (of == of_tenants.end() && *question.domain != Domain{"m", ""})
      return callback(absl::NotFoundError("no such domain"));
    WorkersAnswer answer{.workers = {}, .block_size = 4};
    auto labels = std::make_shared<LabelsByWorker>();
    for (const auto& [name, url] : of == of_tenants.end() ? urls : of->second) {
      const HolderId worker = {name, 0, ""};
      answer.workers.push_back({.worker = worker});
      (*labels)[worker] = {{kUrlLabel, url}};
    }
    answer.labels = labels;
    callback(std::move(answer));
  }
  std::map<std::string, std::string> urls;
  std::map<Domain, std::map<std::string, std::string>> of_tenants;  // of other domains
  bool away = false;
};

class EngineNamesTest : public testing::Test {
 protected:
  EngineNamesTest() {
    // A slow machine must not matter: an engine has a long time to answer, and every look is too
    // old at once.
    options_.timeout = std::chrono::minutes(1);
    options_.again_after = Duration(-1);
    options_.every = std::chrono::hours(1);
  }

  void Start() {
    FrontendOptions options;
    options.deadline = std::chrono::minutes(1);
    options.leaves = {{"cell", "leaf"}};
    options.engines = engines_;
    frontend_ = std::make_unique<Frontend>(options, &leaf_, &leaf_, &Clock::Real());
    names_ = std::make_unique<EngineNames>(options_, frontend_.get());
  }

  // A request for the model itself: its route meets the engines.
  void DiscoverEngines() {
    const auto route = frontend_->Route({.domain = {"m", ""}, .unknown_prompt = true});
    ASSERT_TRUE(route.ok()) << route.status();
  }

  RouteInput Find(const std::string& name, const std::string& tenant = "") {
    RouteInput input;
    input.domain = {name, tenant};
    std::atomic<bool> done = false;
    if (names_->Find(&input, [&] { done = true; })) return input;
    EXPECT_TRUE(Await([&] { return done.load(); }, std::chrono::seconds(60)));
    return input;
  }

  OneModel leaf_;
  std::map<std::string, std::string> engines_;  // `FrontendOptions::engines`
  EngineNamesOptions options_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<EngineNames> names_;
};

TEST_F(EngineNamesTest, AnAdapterIsOfTheModelThatLeavesKnowAtEnginesThatListIt) {
  ModelsEngine with({"ad-a"}), without;
  leaf_.urls = {{"w0", without.url()}, {"w1", with.url()}};
  Start();
  DiscoverEngines();
  const RouteInput input = Find("ad-a");
  EXPECT_EQ(input.domain.model, "m");
  EXPECT_EQ(input.lora_name, "ad-a");
  EXPECT_EQ(input.allowed_workers, Workers{"w1"});
  EXPECT_EQ(with.lists_asked(), 1);
  // The table has it from now on.
  EXPECT_EQ(Find("ad-a").lora_name, "ad-a");
  EXPECT_EQ(with.lists_asked(), 1);
}

// Tenants neither see nor share the adapters of others.
TEST_F(EngineNamesTest, AdaptersOfATenantAreNoOthers) {
  ModelsEngine of_a({"pirate", "of-a"}), of_b({"pirate", "of-b"}, "b-model");
  leaf_.of_tenants[{"m", "a"}] = {{"w0", of_a.url()}};
  leaf_.of_tenants[{"b-model", "b"}] = {{"w1", of_b.url()}};
  options_.domains = [] { return std::vector<Domain>{{"m", "a"}, {"b-model", "b"}}; };
  Start();
  EXPECT_EQ(Find("pirate", "a").domain, (Domain{"m", "a"}));
  EXPECT_EQ(Find("pirate", "a").allowed_workers, Workers{"w0"});
  EXPECT_EQ(Find("pirate", "b").domain, (Domain{"b-model", "b"}));
  EXPECT_EQ(Find("pirate", "b").allowed_workers, Workers{"w1"});
  EXPECT_EQ(Find("of-b", "a").domain, (Domain{"of-b", "a"})) << "stays unknown";
  EXPECT_EQ(Find("pirate", "c").domain, (Domain{"pirate", "c"}));
  // A model of another tenant may have the adapter's name.
  leaf_.of_tenants[{"of-a", "b"}] = {{"w1", of_b.url()}};
  ASSERT_TRUE(frontend_->Route({.domain = {"of-a", "b"}, .unknown_prompt = true}).ok());
  EXPECT_EQ(Find("of-a", "a").lora_name, "of-a");
}

TEST_F(EngineNamesTest, AnAdapterThatIsLoadedLaterIsFound) {
  ModelsEngine engine;
  leaf_.urls = {{"w0", engine.url()}};
  Start();
  DiscoverEngines();
  const RouteInput before = Find("ad-a");
  EXPECT_EQ(before.domain.model, "ad-a");
  EXPECT_EQ(before.lora_name, "");
  EXPECT_TRUE(before.allowed_workers.empty());
  engine.Load("ad-a");
  EXPECT_EQ(Find("ad-a").lora_name, "ad-a");
}

TEST_F(EngineNamesTest, WhileAnAdapterIsAskedForItIsNoticedWhoLoadsAndUnloadsIt) {
  ModelsEngine first({"ad-a"}), second;
  leaf_.urls = {{"w0", first.url()}, {"w1", second.url()}};
  options_.every = std::chrono::milliseconds(10);
  Start();
  DiscoverEngines();
  EXPECT_EQ(Find("ad-a").allowed_workers, Workers{"w0"});
  second.Load("ad-a");
  EXPECT_TRUE(Await([&] { return Find("ad-a").allowed_workers == Workers{"w0", "w1"}; },
                    std::chrono::seconds(60)));
  first.Unload("ad-a");
  EXPECT_TRUE(Await([&] { return Find("ad-a").allowed_workers == Workers{"w1"}; },
                    std::chrono::seconds(60)));
  // An engine that refuses its list keeps the last one.
  second.Refuse();
  const int asked = second.lists_asked();
  EXPECT_TRUE(Await([&] { return second.lists_asked() > asked + 3; }, std::chrono::seconds(60)));
  EXPECT_EQ(Find("ad-a").allowed_workers, Workers{"w1"});
}

TEST_F(EngineNamesTest, EnginesThatNoRouteHasMetAreMetWherePeersNameTheirDomains) {
  ModelsEngine engine({"ad-a"});
  leaf_.urls = {{"w0", engine.url()}};
  options_.domains = [] { return std::vector<Domain>{{"gone", ""}, {"m", ""}}; };
  Start();
  EXPECT_EQ(Find("ad-a").domain.model, "m");
  EXPECT_EQ(Find("neither").domain.model, "neither");
  EXPECT_EQ(frontend_->stats().routes, 0u) << "those that meet engines do not count";
  EXPECT_EQ(frontend_->stats().failed, 0u);
}

TEST_F(EngineNamesTest, PeersAreNotAskedAgainForEveryUnknownName) {
  ModelsEngine engine;
  leaf_.urls = {{"w0", engine.url()}};
  std::atomic<int> asked = 0;
  options_.domains = [&] {
    return ++asked == 1 ? std::vector<Domain>() : std::vector<Domain>{{"m", ""}};
  };
  Start();
  Find("neither");
  EXPECT_EQ(engine.lists_asked(), 0) << "no peer has answered";
  for (int i = 0; i < 3; ++i) Find("neither");
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(engine.lists_asked(), 3);
}

TEST_F(EngineNamesTest, NoEngineIsAskedAboutAModelThatLeavesKnow) {
  ModelsEngine engine({"ad-a"});
  leaf_.urls = {{"w0", engine.url()}};
  Start();
  EXPECT_EQ(Find("m").domain.model, "m");
  EXPECT_EQ(Find("m").domain.model, "m");
  EXPECT_EQ(engine.lists_asked(), 0);
}

TEST_F(EngineNamesTest, WhatIsGivenAnyEngineOfTheModelTakesWhateverItLists) {
  ModelsEngine engine;
  leaf_.urls = {{"w0", engine.url()}};
  options_.given = {{"ad-g", {.model = "m", .adapter = true}}};
  options_.every = Duration(0);
  Start();
  const RouteInput input = Find("ad-g");
  EXPECT_EQ(input.domain.model, "m");
  EXPECT_EQ(input.lora_name, "ad-g");
  EXPECT_TRUE(input.allowed_workers.empty());
  EXPECT_EQ(Find("ad-a").domain.model, "ad-a");
  EXPECT_EQ(engine.lists_asked(), 0);
  names_->SetGiven({});
  EXPECT_EQ(Find("ad-g").domain.model, "ad-g");
}

TEST_F(EngineNamesTest, AFurtherNameOfAModelIsTheModel) {
  ModelsEngine engine({"ad-a"}, /*model=*/"org/m");
  leaf_.urls = {{"w0", engine.url()}};
  Start();
  DiscoverEngines();
  EXPECT_EQ(Find("org/m").domain.model, "m");
  EXPECT_EQ(Find("org/m").lora_name, "");
  EXPECT_EQ(Find("ad-a").domain.model, "m") << "as leaves know it, not as its engine";
}

TEST_F(EngineNamesTest, AnAdapterOfGivenEnginesThatNoLeafKnowsIsOfTheirOwnModel) {
  ModelsEngine engine({"ad-a"});
  engines_ = {{"e0", engine.url()}};
  leaf_.away = true;
  Start();
  const RouteInput input = Find("ad-a");
  EXPECT_EQ(input.domain.model, "m");
  EXPECT_EQ(input.allowed_workers, Workers{"e0"});
  EXPECT_TRUE(Find("m").allowed_workers.empty());
}

TEST_F(EngineNamesTest, ItsEndAnswersWhoWaitsForAnEngine) {
  std::atomic<bool> asked = false;
  TestEngine silent([&](TestSocket& connection) {
    while (!connection.ReadMessage().empty()) asked = true;
  });
  leaf_.urls = {{"w0", silent.url()}};
  options_.timeout = std::chrono::hours(1);
  Start();
  DiscoverEngines();
  RouteInput input;
  input.domain.model = "ad-a";
  std::atomic<int> answers = 0;
  ASSERT_FALSE(names_->Find(&input, [&] { ++answers; }));
  ASSERT_TRUE(Await([&] { return asked.load(); }, std::chrono::seconds(60)));
  names_->Stop();
  EXPECT_EQ(answers, 1);
  EXPECT_EQ(input.domain.model, "ad-a");
  EXPECT_TRUE(names_->Find(&input, [&] { ++answers; }));
  EXPECT_EQ(answers, 1);
}

// ---- How engines read requests ----

class EngineKindsTest : public EngineNamesTest {
 protected:
  EngineKindsTest() {
    options_.conventions = &conventions_;
    options_.conventions_every = Duration(-1);  // each request wants a look
    sglang_.SetOwner("sglang", R"({"version":"0.5.23","tp_size":1,"reasoning_parser":"qwen3",)"
                               R"("tool_call_parser":null})");
    vllm_.SetOwner("vllm");
  }
  ~EngineKindsTest() override { names_.reset(); }  // before what it fills

  // Sends requests for the model until its conventions are these.
  bool AwaitKinds(const std::string& model, const std::vector<std::string>& expected) {
    return Await(
        [&] {
          Find(model);
          std::vector<std::string> kinds;
          for (const Convention& convention : conventions_.Of(model)->conventions)
            kinds.push_back(ToString(convention));
          return kinds == expected;
        },
        std::chrono::seconds(60));
  }

  EngineConventions conventions_;
  ModelsEngine vllm_, sglang_;
};

TEST_F(EngineKindsTest, EnginesAreWhatTheirListsSayAndSglangTellsItsParsers) {
  leaf_.urls = {{"w0", vllm_.url()}, {"w1", sglang_.url()}};
  Start();
  DiscoverEngines();
  ASSERT_TRUE(AwaitKinds("m", {"vllm", "sglang reasoning_parser=qwen3"}));
  EXPECT_EQ(conventions_.Of("m")->Of(vllm_.url()), 0u);
  EXPECT_EQ(conventions_.Of("m")->Of(sglang_.url()), 1u);
}

TEST_F(EngineKindsTest, AVllmThatTakesTokenIdsIsKnownByItsVersion) {
  vllm_.SetOwner("vllm", R"({"version":"0.32.1"})");
  leaf_.urls = {{"w0", vllm_.url()}, {"w1", sglang_.url()}};
  Start();
  DiscoverEngines();
  ASSERT_TRUE(AwaitKinds("m", {"vllm", "sglang reasoning_parser=qwen3"}));
  EXPECT_FALSE(conventions_.Of("m")->TakesTokenIds(vllm_.url()));
  vllm_.SetOwner("vllm", R"({"version":"0.33.0"})");
  EXPECT_TRUE(Await(
      [&] {
        Find("m");
        return conventions_.Of("m")->TakesTokenIds(vllm_.url());
      },
      std::chrono::seconds(60)));
  EXPECT_FALSE(conventions_.Of("m")->TakesTokenIds(sglang_.url()));
}

// One that answers late holds no other kind up.
TEST_F(EngineKindsTest, EnginesOfBothKindsAreAskedAtOnce) {
  const auto answer = [](TestSocket& connection, const std::string& body) {
    connection.Send(
        absl::StrCat("HTTP/1.1 200 OK\r\ncontent-length: ", body.size(), "\r\n\r\n", body));
  };
  const auto list_of = [](const std::string& owner) {
    return absl::StrCat(R"({"data":[{"id":"m","owned_by":")", owner, R"("}]})");
  };
  std::atomic<bool> is_vllm_asked = false, was_asked_meanwhile = false, is_over = false;
  TestEngine vllm([&](TestSocket& connection) {
    for (std::string request; !(request = connection.ReadMessage()).empty();) {
      is_vllm_asked = is_vllm_asked || absl::StartsWith(request, "GET /version ");
      answer(connection, absl::StartsWith(request, "GET /v1/models ") ? list_of("vllm")
                                                                      : R"({"version":"0.33.0"})");
    }
  });
  TestEngine sglang([&](TestSocket& connection) {
    for (std::string request; !(request = connection.ReadMessage()).empty();) {
      const bool lists = absl::StartsWith(request, "GET /v1/models ");
      if (!lists && !is_over) {
        was_asked_meanwhile = Await([&] { return is_vllm_asked.load(); }, std::chrono::seconds(5));
        is_over = true;
      }
      answer(connection, lists ? list_of("sglang") : R"({"version":"0.5.23","tp_size":1})");
    }
  });
  leaf_.urls = {{"w0", vllm.url()}, {"w1", sglang.url()}};
  Start();
  DiscoverEngines();
  ASSERT_TRUE(Await(
      [&] {
        Find("m");
        return is_over.load();
      },
      std::chrono::seconds(60)));
  EXPECT_TRUE(was_asked_meanwhile);
  names_->Stop();
}

TEST_F(EngineKindsTest, AKindIsLearnedLateAndAnew) {
  leaf_.urls = {{"w0", sglang_.url()}};
  Start();
  // No engine was met yet.
  EXPECT_EQ(conventions_.Of("m")->conventions.front(), Convention());
  DiscoverEngines();
  ASSERT_TRUE(AwaitKinds("m", {"sglang reasoning_parser=qwen3"}));
  sglang_.SetOwner("vllm");
  ASSERT_TRUE(AwaitKinds("m", {"vllm"}));
  sglang_.SetOwner("mock");
  leaf_.urls = {{"w0", sglang_.url()}, {"w1", vllm_.url()}};
  DiscoverEngines();
  ASSERT_TRUE(AwaitKinds("m", {"vllm"}));
}

TEST_F(EngineKindsTest, EnginesAreKnownBeforeTheFirstRequestWherePeersTellOfDomains) {
  leaf_.urls = {{"w0", sglang_.url()}};
  options_.domains = [] { return std::vector<Domain>{{"m", ""}}; };
  Start();
  EXPECT_TRUE(
      Await([&] { return conventions_.Of("m")->conventions[0].engine == EngineKind::kSglang; },
            std::chrono::seconds(60)));
}

TEST_F(EngineKindsTest, AnEngineThatNoLeafNamedIsOfTheModelThatItLists) {
  ModelsEngine other({}, "other");
  other.SetOwner("sglang");
  engines_ = {{"w9", other.url()}};
  Start();
  EXPECT_TRUE(AwaitKinds("other", {"sglang"}));
}

TEST_F(EngineKindsTest, EnginesAreAskedOnceInAWhile) {
  leaf_.urls = {{"w0", vllm_.url()}};
  options_.conventions_every = std::chrono::hours(1);
  Start();
  DiscoverEngines();
  ASSERT_TRUE(AwaitKinds("m", {"vllm"}));
  // The first look may have been before the engine was met.
  ASSERT_TRUE(Await([&] { return vllm_.lists_asked() > 0; }, std::chrono::seconds(60)));
  const int asked = vllm_.lists_asked();
  for (int i = 0; i < 100; ++i) Find("m");
  EXPECT_EQ(vllm_.lists_asked(), asked);
}

}  // namespace
}  // namespace kvatlas
