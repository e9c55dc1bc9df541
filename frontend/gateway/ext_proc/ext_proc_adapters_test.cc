// Adapters (LoRA) asked for by their names through the endpoint picker: engines list them, a leaf
// knows their model alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "frontend/gateway/ext_proc/ext_proc_test_util.h"
#include "frontend/gateway/ext_proc/proxy_test_util.h"
#include "frontend/gateway/http/models_engine_test_util.h"
#include "frontend/prompt/engine_names.h"
#include "frontend/prompt/served_names.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/router/prepared_prompt.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/ids.h"

namespace kvatlas {
namespace {

class ExtProcAdaptersTest : public ExtProcServiceTest {
 protected:
  void SetUp() override {
    Say("w0", 2, without_);
    Say("w1", 0, with_);
    leaf_.Set(absl::NotFoundError("no such domain"));
    leaf_.SetFor("m", workers_);
    picker_options_.served_name = [this](RouteInput* input, std::function<void()> later) {
      return names_->Find(input, std::move(later));
    };
  }
  void MeetFirst() {
    picker_options_.meet_engines = [this](std::function<void()> later) {
      return names_->Meet(std::move(later));
    };
  }
  ~ExtProcAdaptersTest() override {
    if (names_ != nullptr) names_->Stop();
  }

  // A worker of the model at that engine.
  void Say(const std::string& name, uint32_t blocks, const ModelsEngine& engine) {
    const HolderId worker = {name, 0, ""};
    workers_.block_size = 4;
    workers_.workers.push_back({.worker = worker, .blocks = blocks});
    auto labels = workers_.labels == nullptr ? std::make_shared<LabelsByWorker>()
                                             : std::make_shared<LabelsByWorker>(*workers_.labels);
    (*labels)[worker] = {{kUrlLabel, engine.url()}};
    workers_.labels = std::move(labels);
  }

  void StartWithNames() {
    Start();
    EngineNamesOptions options;
    // However slow a test is, an engine that is there has listed its models in time; what was
    // looked up is old at once.
    options.timeout = std::chrono::minutes(1);
    options.again_after = Duration(-1);
    options.domains = [] { return std::vector<Domain>{{"m", ""}}; };
    names_ = std::make_unique<EngineNames>(options, frontend_.get());
  }

  static std::string BodyFor(const std::string& model, const std::string& prompt) {
    return absl::StrCat(R"({"model": ")", model, R"(", "prompt": )", prompt, "}");
  }
  std::string EndpointFor(const std::string& model, const std::string& prompt = kPrompt) {
    return HeadersEndpoint(Ask(Completion(), BodyFor(model, prompt)));
  }

  static constexpr char kPrompt[] = "[1, 2, 3, 4, 5, 6, 7, 8, 9]";
  ModelsEngine without_, with_{{"ad-a"}};
  std::unique_ptr<EngineNames> names_;
};

// The first request of the frontend, which has met no engine yet.
TEST_F(ExtProcAdaptersTest, AnAdapterGoesToAnEngineThatHasItAndIsLookedForUnderItsSeed) {
  StartWithNames();
  EXPECT_EQ(EndpointFor("ad-a"), with_.address().ToString()) << "though w0 has more of the prompt";
  RouteInput input = {
      .domain = {"m", ""}, .tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9}, .lora_name = "ad-a"};
  ASSERT_TRUE(frontend_->Prepare(&input).ok());
  EXPECT_EQ(leaf_.asked(), input.prepared->sequence());
  EXPECT_EQ(EndpointFor("m"), without_.address().ToString());
}

TEST_F(ExtProcAdaptersTest, TheTokensOfAnAdaptersPromptAreThoseOfItsModel) {
  StartWithNames();
  EXPECT_EQ(EndpointFor("ad-a", "\"hello\""), with_.address().ToString());
  EXPECT_EQ(tokenizer_.asked(), std::vector<std::string>{"m text"});
}

// Leaves know engines, and no route has met one yet.
TEST_F(ExtProcAdaptersTest, ARequestWithoutAPromptMeetsTheEnginesFirst) {
  MeetFirst();
  StartWithNames();
  Stream stream = Open();
  stream.Write(Request("GET", "/v1/models", true));
  EXPECT_THAT(HeadersEndpoint(stream.Read()),
              testing::AnyOf(with_.address().ToString(), without_.address().ToString()));
}

TEST_F(ExtProcAdaptersTest, ABodyThatComesBeforeTheEnginesAreMetIsPassedOn) {
  MeetFirst();
  StartWithNames();
  Stream form = Open();
  form.Write(Request("POST", "/v1/audio/transcriptions", false,
                     {{"content-type", "multipart/form-data; boundary=b"}}));
  form.Write(Body("--b", false));
  form.Write(Body("--", true));
  EXPECT_NE(HeadersEndpoint(form.Read()), "");
  // Pieces that came before the engines were met may be passed on as one.
  std::string body;
  for (bool end = false; !end;) {
    const auto piece = form.Read();
    body += Streamed(piece.request_body()).body();
    end = Streamed(piece.request_body()).end_of_stream();
  }
  EXPECT_EQ(body, "--b--");
}

// However little is in each: the engines are never met.
TEST_F(ExtProcAdaptersTest, MessagesThatComeBeforeTheEnginesAreMetCountAsMemory) {
  std::function<void()> later;
  picker_options_.meet_engines = [&later](std::function<void()> then) {
    later = std::move(then);
    return false;
  };
  options_.body_bytes_max = 50'000;
  StartWithNames();
  Stream form = Open();
  form.Write(Request("PUT", "/v1/models"));
  for (int i = 0; i < 1'000; ++i) form.Write(Body("", false));
  EXPECT_EQ(RefusedBy(&form), 503);
  EXPECT_EQ(service_->bodies_bytes(), 0u);
}

TEST_F(ExtProcAdaptersTest, ABodyWithoutAModelMeetsTheEnginesFirst) {
  MeetFirst();
  StartWithNames();
  EXPECT_NE(HeadersEndpoint(Ask(Request("POST", "/v1/embeddings"), R"({"input":"x"})")), "");
}

TEST_F(ExtProcAdaptersTest, WhereNoLeafKnowsAnEngineItIsStill503) {
  MeetFirst();
  leaf_.SetFor("m", {});
  StartWithNames();
  Stream stream = Open();
  stream.Write(Request("GET", "/v1/models", true));
  EXPECT_EQ(RefusedBy(&stream), 503);
}

TEST_F(ExtProcAdaptersTest, OfASubsetAnEngineThatHasTheAdapterIsChosen) {
  ModelsEngine other({"ad-a"});
  Say("w2", 1, other);
  leaf_.SetFor("m", workers_);
  StartWithNames();
  EXPECT_EQ(EndpointFor("ad-a"), other.address().ToString());
  EXPECT_EQ(HeadersEndpoint(Ask(
                Subset({without_.address().ToString(), with_.address().ToString()}, Completion()),
                BodyFor("ad-a", kPrompt))),
            with_.address().ToString());
}

TEST_F(ExtProcAdaptersTest, AnAdapterThatIsLoadedLaterIsFoundAndAnUnknownNameIsRefused) {
  StartWithNames();
  EXPECT_EQ(Refused(Completion(), BodyFor("ad-b", kPrompt)), 404);
  without_.Load("ad-b");
  EXPECT_EQ(EndpointFor("ad-b"), without_.address().ToString());
  EXPECT_EQ(Refused(Completion(), BodyFor("neither", kPrompt)), 404);
}

}  // namespace
}  // namespace kvatlas
