#include "frontend/gateway/http/proxied_paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvatlas {
namespace {

using namespace std::string_literals;

TEST(ProxiedPathsTest, InferenceIsPassedOnAndAnEnginesAdministrationIsNot) {
  const ProxiedPaths paths;
  EXPECT_TRUE(paths.Allows("POST", "/v1/chat/completions"));
  EXPECT_TRUE(paths.Allows("GET", "/v1/models"));
  EXPECT_TRUE(paths.Allows("HEAD", "/v1/models/m"));
  EXPECT_TRUE(paths.Allows("DELETE", "/v1/responses/7"));
  EXPECT_TRUE(paths.Allows("POST", "/v1/audio/transcriptions"));
  for (const char* path : {"/v1/load_lora_adapter",
                           "/v1/unload_lora_adapter",
                           "/v1/files",
                           "/v1/",
                           "/v1/chat",
                           "/v1/chat/completions/",
                           "/v1/chat/completions/x",
                           "/v1//chat/completions",
                           "/v1/models/",
                           "/sleep",
                           "/wake_up",
                           "/pause",
                           "/reset_prefix_cache",
                           "/flush_cache",
                           "/collective_rpc",
                           "/abort_requests",
                           "/abort_request",
                           "/inference/v1/abort_requests",
                           "/update_weights",
                           "/load_lora_adapter",
                           "/scale_elastic_ep",
                           "/start_profile",
                           "/set_internal_state",
                           "/",
                           "/generate/",
                           "/health_generate"})
    EXPECT_FALSE(paths.Allows("POST", path)) << path;
  EXPECT_FALSE(paths.Allows("GET", "/v1/models/"));
  EXPECT_FALSE(paths.Allows("GET", "/v1/models/a/b"));
  EXPECT_FALSE(paths.Allows("GET", "/v1/chat/completions"));
  EXPECT_THAT(paths.ToString(), testing::StartsWith("POST /v1/chat/completions, POST /v1/comp"));
}

TEST(ProxiedPathsTest, WhatIsAskedOfOneEngineIsPassedOnUnlessItTellsItsSettingsOrAddresses) {
  const ProxiedPaths paths;
  for (const char* path :
       {"/tokenize", "/detokenize", "/v1/tokenize", "/invocations", "/v1/chat/completions/batch",
        "/v1/chat/completions/render", "/v1/responses/render", "/v1/messages/render",
        "/inference/v1/generate", "/generate", "/rerank", "/v2/rerank", "/score"}) {
    EXPECT_TRUE(paths.Allows("POST", path)) << path;
    EXPECT_TRUE(paths.IsInference("POST", path)) << path;
  }
  for (const char* path : {"/version", "/ping", "/load", "/get_model_info", "/model_info"}) {
    EXPECT_TRUE(paths.Allows("GET", path)) << path;
    EXPECT_FALSE(paths.IsInference("GET", path)) << path;
  }
  EXPECT_TRUE(paths.Allows("POST", "/ping"));
  EXPECT_FALSE(paths.IsInference("POST", "/ping"));
  for (const char* path : {"/server_info", "/get_server_info", "/kv_event_sources", "/"})
    EXPECT_FALSE(paths.Allows("GET", path)) << path;
}

TEST(ProxiedPathsTest, MoreAreGivenByMethodAndPath) {
  const auto paths =
      ProxiedPaths::With({"POST /v1/files/*/content", "PUT /v1/x", "GET /kv_event_sources"});
  ASSERT_TRUE(paths.ok()) << paths.status();
  EXPECT_TRUE(paths->Allows("POST", "/v1/files/7/content"));
  EXPECT_FALSE(paths->Allows("POST", "/v1/files//content"));
  EXPECT_TRUE(paths->Allows("PUT", "/v1/x"));
  EXPECT_FALSE(paths->IsInference("PUT", "/v1/x"));
  EXPECT_TRUE(paths->Allows("GET", "/kv_event_sources"));
  EXPECT_TRUE(paths->Allows("POST", "/v1/completions"));
  for (const char* bad : {"", "/v1/x", "POST", "POST v2/x", "post /v1/x", "POST /v1/x y",
                          "GET /metrics", "GET /health"})
    EXPECT_FALSE(ProxiedPaths::With({bad}).ok()) << bad;
}

TEST(ProxiedPathsTest, TheModelOfAFormIsFound) {
  const std::string type = "multipart/form-data; charset=x; boundary=\"b 1\"";
  const std::string file =
      "--b 1\r\nContent-Disposition: form-data; name=\"file\"; filename=\"model\"\r\n"
      "Content-Type: audio/wav\r\n\r\n\0\r\nname=\"model\"\r\n\r\nno\r\n"s;
  const std::string model =
      "--b 1\r\ncontent-disposition: form-data; NAME=model\r\n\r\nwhisper-1\r\n";
  EXPECT_EQ(MultipartModel(type, file + model + "--b 1--\r\n"), "whisper-1");
  EXPECT_EQ(MultipartModel(type, model + file + "--b 1--\r\n"), "whisper-1");
  EXPECT_EQ(MultipartModel(type, file + "--b 1--\r\n"), std::nullopt);
  EXPECT_EQ(MultipartModel(type, model), std::nullopt);  // cut off
  EXPECT_EQ(MultipartModel(type, ""), std::nullopt);
  EXPECT_EQ(MultipartModel("multipart/form-data", model + "--b 1--"), std::nullopt);
  EXPECT_EQ(MultipartModel("application/json", model + "--b 1--"), std::nullopt);
}

TEST(ProxiedPathsTest, AQuotedValueIsNoParameter) {
  const auto form = [](const std::string& parameters) {
    return "--b\r\nContent-Disposition: form-data; " + parameters + "\r\n\r\nx\r\n--b--\r\n";
  };
  const std::string type = "multipart/form-data; note=\"; boundary=c\"; boundary=b";
  for (const char* other :
       {R"(filename="a; name=model"; name="file")", R"(filename="a\"; name=model"; name=file)",
        R"(filename="; name=\"model\""; name=file)", R"(name=file; filename="; name=model")",
        R"(name=file; name=model)", R"(surname=model; name=file)"})
    EXPECT_EQ(MultipartModel(type, form(other)), std::nullopt) << other;
  for (const char* model :
       {R"(filename="a; name=file"; name="model")", R"(x; name=model)", R"(filename=a;name=model)",
        R"(filename="a\"; name=file"; name="model")", R"(;; name="mo\del")"})
    EXPECT_EQ(MultipartModel(type, form(model)), "x") << model;
}

}  // namespace
}  // namespace kvatlas
