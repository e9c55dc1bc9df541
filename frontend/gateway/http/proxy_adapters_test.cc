// Adapters (LoRA) asked for by their names: engines list them, a leaf knows their model alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/gateway/http/models_engine_test_util.h"
#include "frontend/gateway/http/proxy_test_util.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "frontend/router/frontend.h"
#include "frontend/router/prepared_prompt.h"
#include "indexer/base/ids.h"

namespace kvatlas {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class ProxyAdaptersTest : public ProxyTest {
 protected:
  ProxyAdaptersTest() {
    cell_.model = "m";
    names_options_.emplace();
  }

  // So that the engines are met.
  void AskForTheModel() { EXPECT_THAT(Ask(Post("/v1/chat/completions", kChat)), EndsWith("ok")); }

  std::string AskFor(const std::string& model) {
    return Ask(Post("/v1/completions", Completion(model)));
  }
  static std::string Completion(const std::string& model) {
    return absl::StrCat(R"({"prompt":[1,2,3,4,5,6,7,8,9], "model" : ")", model,
                        R"(", "cache_salt":"s"})");
  }
  // The blocks of that prompt which an engine can reuse.
  std::vector<SequenceHash> Blocks(const std::string& lora_name) {
    RouteInput input = {.domain = {"m", ""},
                        .tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9},
                        .lora_name = lora_name,
                        .cache_salt = "s"};
    EXPECT_TRUE(frontend_->Prepare(&input).ok());
    return input.prepared->sequence();
  }
};

TEST_F(ProxyAdaptersTest, AnAdapterIsLookedForInItsModelsDomainAndGoesToAnEngineThatHasIt) {
  ModelsEngine first, second({"ad-a"});
  Start({first.url(), second.url()});
  AskForTheModel();
  const std::string answer = AskFor("ad-a");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer, HasSubstr("x-kvatlas-worker: w1\r\n")) << "though w0 has more of the prompt";
  EXPECT_THAT(answer, HasSubstr("x-kvatlas-fallback: none\r\n"));
  ASSERT_EQ(second.got().size(), 1u);
  EXPECT_THAT(second.got()[0], EndsWith("\r\n\r\n" + Completion("ad-a"))) << "as the client said";
  EXPECT_EQ(cell_.asked(), Blocks("ad-a"));
  EXPECT_NE(cell_.asked(), Blocks(""));
}

TEST_F(ProxyAdaptersTest, TheTokensOfAnAdaptersChatAreThoseOfItsModel) {
  ModelsEngine engine({"ad-a"});
  Start({engine.url()});
  AskForTheModel();
  const int before = tokenizer_.calls;  // which knows no other model
  const std::string answer =
      Ask(Post("/v1/chat/completions",
               R"({"messages": [{"role":"user","content":"hello"}], "model":"ad-a"})"));
  EXPECT_THAT(answer, HasSubstr("x-kvatlas-fallback: none\r\n"));
  EXPECT_EQ(tokenizer_.calls, before + 1);
}

TEST_F(ProxyAdaptersTest, AnAdapterThatIsLoadedLaterIsFound) {
  names_options_->again_after = Duration(-1);
  ModelsEngine engine({"ad-a"});
  Start({engine.url()});
  AskForTheModel();
  EXPECT_THAT(AskFor("ad-b"), StartsWith("HTTP/1.1 404 "));
  engine.Load("ad-b");
  EXPECT_THAT(AskFor("ad-b"), EndsWith("ok"));
  EXPECT_THAT(AskFor("ad-a"), EndsWith("ok"));
}

TEST_F(ProxyAdaptersTest, ACallWithoutAPromptGoesToAnEngineThatHasTheAdapter) {
  ModelsEngine first, second({"ad-a"});
  Start({first.url(), second.url()});
  AskForTheModel();
  EXPECT_THAT(Ask(Post("/v1/embeddings", R"({"model":"ad-a","input":"x"})")),
              HasSubstr("x-kvatlas-worker: w1\r\n"));
}

// Leaves know engines, and no route has met one yet.
TEST_F(ProxyAdaptersTest, ModelsAreListedBeforeTheFirstPrompt) {
  names_options_->domains = [] { return std::vector<Domain>{{"m", ""}}; };
  ModelsEngine engine({"ad-a"});
  Start({engine.url()});
  EXPECT_THAT(
      Ask("GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"),
      AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr(R"([{"id":"m","parent":null,"owned_by":"mock"},)"
                                                   R"({"id":"ad-a","parent":"m"}])")));
}

TEST_F(ProxyAdaptersTest, WhatNamesNoModelGoesToAnEngineBeforeTheFirstPrompt) {
  names_options_->domains = [] { return std::vector<Domain>{{"m", ""}}; };
  ModelsEngine engine;
  Start({engine.url()});
  EXPECT_THAT(Ask("GET /version HTTP/1.1\r\nHost: h\r\n\r\n"), EndsWith("ok"));
}

TEST_F(ProxyAdaptersTest, WhereNoLeafKnowsAnEngineThereIsNone) {
  names_options_->domains = [] { return std::vector<Domain>{}; };
  Start({});
  EXPECT_THAT(Ask("GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"), StartsWith("HTTP/1.1 503 "));
}

TEST_F(ProxyAdaptersTest, AGivenAdapterIsTakenByAnyEngineOfItsModel) {
  names_options_->given = {{"ad-g", {.model = "m", .adapter = true}}};
  ModelsEngine first, second;
  Start({first.url(), second.url()});
  AskForTheModel();
  EXPECT_THAT(AskFor("ad-g"), HasSubstr("x-kvatlas-worker: w0\r\n"));
  EXPECT_EQ(cell_.asked(), Blocks("ad-g"));
}

TEST_F(ProxyAdaptersTest, ANameThatIsNeitherModelNorAdapterIsStillNotFound) {
  ModelsEngine engine({"ad-a"});
  Start({engine.url()});
  AskForTheModel();
  for (int i = 0; i < 2; ++i) {
    const std::string none = AskFor("neither");
    EXPECT_THAT(none, StartsWith("HTTP/1.1 404 "));
    EXPECT_EQ(ErrorOf(none)["code"], 404) << none;
  }
  EXPECT_EQ(engine.got().size(), 1u) << "the first request";
}

}  // namespace
}  // namespace kvatlas
