// Ids recorded from the Python packages, for tokenizers trained by testdata/make_testdata.py.

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/prompt/text/text_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::Gt;

std::vector<Json> Lines(const std::string& name) {
  std::ifstream file(absl::StrCat("frontend/prompt/text/testdata/", name));
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

// As apply_chat_template alone reads it.
Prompt PromptOf(const Json& body) {
  return BodyPrompt{
      .path = body.contains("prompt") ? RequestPath::kCompletions : RequestPath::kChat,
      .body = std::make_shared<const std::string>(body.dump()),
      .convention = {.engine = EngineKind::kPlain}};
}

class VectorsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(VectorsTest, IdsAreThoseOfThePythonPackages) {
  const std::string name = GetParam();
  const auto model =
      TextModel::Load({.path = absl::StrCat("frontend/prompt/text/testdata/", name)});
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<Json> bodies = Lines("prompts.jsonl");
  const std::vector<Json> answers = Lines(absl::StrCat(name, ".jsonl"));
  ASSERT_EQ(bodies.size(), answers.size());
  ASSERT_THAT(bodies.size(), Gt(100u));
  // The second time from the store of prefixes.
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < bodies.size(); ++i) {
      const auto tokens = (*model)->Tokenize(PromptOf(bodies[i]));
      ASSERT_EQ(tokens.ok(), !answers[i].is_null()) << bodies[i] << tokens.status();
      if (!tokens.ok()) continue;
      ASSERT_EQ(tokens->tokens, answers[i].get<std::vector<TokenId>>()) << bodies[i];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, VectorsTest,
                         ::testing::Values("bytes", "blanks", "unigram", "sentences"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace kvatlas
