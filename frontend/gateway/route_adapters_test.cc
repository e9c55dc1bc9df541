// `/route/chat` for adapters (LoRA) by their names: an engine lists them and makes the tokens, a
// leaf knows their model alone.

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/gateway/frontend_service_test_util.h"
#include "frontend/gateway/http/models_engine_test_util.h"
#include "frontend/prompt/engine_names.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/remote_tokenizer.h"
#include "frontend/router/frontend.h"
#include "frontend/router/prepared_prompt.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/domain.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"

namespace kvatlas {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RouteAdaptersTest : public FrontendServiceTest {
 protected:
  void SetUp() override {
    FrontendServiceTest::SetUp();
    // A cell of two engines of "m", of which the first has more of every prompt.
    options_.hierarchies = {};
    options_.leaves = {{"a", leaf_servers_["a"]->address().ToString()}};
    leaves_["a"].model = "m";
    for (auto& worker : *leaves_["a"].answer.mutable_workers())
      (*worker.mutable_labels())["url"] =
          worker.worker().name() == "a0" ? without_.url() : with_.url();
    leaves_["a"].answer.set_labels_version(1);
    with_.SetTokens(33);
    without_.SetTokens(33);
  }

  PromptRouter* MakeRouter() override {
    RemoteTokenizerOptions remote;
    remote.urls = [this](const std::string& model) {
      std::vector<std::string> urls;
      for (const KnownEngine& engine : frontend_->Engines(8))
        if (engine.domain.model == model) urls.push_back(engine.url);
      return urls;
    };
    tokenizer_ = std::make_unique<RemoteTokenizer>(remote);
    EngineNamesOptions names;
    // However slow a test is, an engine that is there has listed its models in time; what was
    // looked up is old at once.
    names.timeout = std::chrono::minutes(1);
    names.again_after = Duration(-1);
    names.domains = [] { return std::vector<Domain>{{"m", ""}}; };
    names_ = std::make_unique<EngineNames>(names, frontend_.get());
    PromptRouterOptions prompts;
    prompts.tokenize_deadline = std::chrono::minutes(1);
    prompts.served_name = names_->finder();
    router_ = std::make_unique<PromptRouter>(prompts, frontend_.get(), tokenizer_.get());
    return router_.get();
  }

  HttpAnswer Chat(const std::string& model) {
    return Post(
        http_->address(), "/route/chat",
        absl::StrCat(R"({"messages":[{"role":"user","content":"hi"}],"model":")", model, "\"}"));
  }

  ModelsEngine without_, with_{{"ad-a"}};
  std::unique_ptr<RemoteTokenizer> tokenizer_;
  std::unique_ptr<EngineNames> names_;
  std::unique_ptr<PromptRouter> router_;
};

// The first request of the frontend, which has met no engine yet.
TEST_F(RouteAdaptersTest, AnAdaptersChatIsRoutedToAnEngineThatHasIt) {
  Start();
  const HttpAnswer answer = Chat("ad-a");
  ASSERT_EQ(answer.status, 200u) << answer.body;
  const nlohmann::json route = nlohmann::json::parse(answer.body);
  EXPECT_EQ(route["worker"]["name"], "a1");
  EXPECT_EQ(route["url"], with_.url());
  EXPECT_EQ(route["prompt_tokens"], 33);
  std::string got;
  for (ModelsEngine* engine : {&with_, &without_})
    for (const std::string& request : engine->got()) got += request;
  EXPECT_THAT(got, HasSubstr(R"("model":"m")")) << "its model's tokenizer";
  // Under its own seed.
  const auto asked = leaves_["a"].last_request.sequence_hashes();
  RouteInput input = {.domain = {"m", ""},
                      .tokens = std::vector<TokenId>(33, ModelsEngine::kToken),
                      .lora_name = "ad-a"};
  ASSERT_TRUE(frontend_->Prepare(&input).ok());
  EXPECT_THAT(std::vector<uint64_t>(asked.begin(), asked.end()),
              ElementsAre(Raw(input.prepared->sequence()[0]), Raw(input.prepared->sequence()[1])));
}

TEST_F(RouteAdaptersTest, AnAdapterThatIsLoadedLaterIsFoundAndAnUnknownNameIsNot) {
  Start();
  const HttpAnswer before = Chat("ad-b");
  EXPECT_EQ(before.status, 404u) << before.body;
  without_.Load("ad-b");
  const HttpAnswer after = Chat("ad-b");
  ASSERT_EQ(after.status, 200u) << after.body;
  EXPECT_EQ(nlohmann::json::parse(after.body)["worker"]["name"], "a0");
  EXPECT_EQ(Chat("neither").status, 404u);
}

}  // namespace
}  // namespace kvatlas
