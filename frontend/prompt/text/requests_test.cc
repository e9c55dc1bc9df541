// Bodies of clients, and the ids that the code of vLLM and SGLang made of them (testdata/README.md
// says how they were recorded).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/prompt/text/prompt_tokenizer.h"

namespace kvatlas {
namespace {

using ::testing::Gt;
using Json = nlohmann::ordered_json;

constexpr char kFolder[] = "frontend/prompt/text/testdata/requests/";

RequestPath PathOf(const std::string& path) {
  if (path == "/v1/completions") return RequestPath::kCompletions;
  if (path == "/v1/responses") return RequestPath::kResponses;
  if (path == "/v1/messages") return RequestPath::kMessages;
  if (path == "/generate") return RequestPath::kSglangGenerate;
  return RequestPath::kChat;
}

// The client's bytes, with a model as engines want one: a body that is parsed and written again has
// other numbers.
std::string BodyIn(const std::string& line, const Json& vector) {
  constexpr std::string_view kBody = "\"body\":";
  auto field = vector.find("body");
  const std::string next = absl::StrCat(",\"", (++field).key(), "\":");
  const size_t from = line.find(kBody) + kBody.size();
  const std::string body = line.substr(from, line.rfind(next) - from);
  const std::string model = vector["model"].get<std::string>();
  return absl::StrCat("{\"model\":\"", model, "\"", body == "{}" ? "" : ",", body.substr(1));
}

TEST(RequestsTest, BodiesAreReadAsEnginesReadThem) {
  absl::StatusOr<std::vector<ModelOptions>> options =
      ParseModels(absl::StrCat("@", kFolder, "models.json"));
  ASSERT_TRUE(options.ok()) << options.status();
  // The context of the recording, longer than any of its prompts.
  for (ModelOptions& model : *options) model.text.context_tokens_max = 8192;
  const auto models = ModelRegistry::Create(*std::move(options));
  ASSERT_TRUE(models.ok()) << models.status();
  std::ifstream file(absl::StrCat(kFolder, "vectors.jsonl"));
  size_t read = 0;
  for (std::string line; std::getline(file, line); ++read) {
    const Json vector = Json::parse(line);
    const auto model = (*models)->Find(vector["model"].get<std::string>());
    ASSERT_TRUE(model.ok()) << model.status();
    BodyPrompt prompt;
    prompt.path = PathOf(vector["path"].get<std::string>());
    prompt.body = std::make_shared<const std::string>(BodyIn(line, vector));
    prompt.convention.engine = vector["engine"] == "vllm" ? EngineKind::kVllm : EngineKind::kSglang;
    const auto tokens = (*model)->Tokenize(prompt);
    if (!vector.contains("ids")) {
      EXPECT_FALSE(tokens.ok()) << "the engine refuses: " << line;
      continue;
    }
    ASSERT_TRUE(tokens.ok()) << tokens.status() << "\n" << line;
    EXPECT_EQ(tokens->tokens, vector["ids"].get<std::vector<TokenId>>()) << line;
  }
  EXPECT_THAT(read, Gt(300u));
}

}  // namespace
}  // namespace kvatlas
