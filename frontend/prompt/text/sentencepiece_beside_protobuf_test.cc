// The SentencePiece library in a program that has libprotobuf: each uses its own symbols.

#include <google/protobuf/descriptor.h>
#include <link.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/prompt/text/sentencepiece_model.h"
#include "frontend/prompt/text/text_model.h"
#include "gtest/gtest.h"
#include "proto/kvatlas/v1/types.pb.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

bool IsOpen(std::string_view library) {
  const auto look = [](dl_phdr_info* object, size_t, void* wanted) -> int {
    return std::string_view(object->dlpi_name).find(*static_cast<std::string_view*>(wanted)) !=
           std::string_view::npos;
  };
  return dl_iterate_phdr(look, &library) != 0;
}

// Uses generated code, descriptors and the text format of a message.
std::string ThereAndBack() {
  v1::Stored sent;
  sent.set_tier(v1::TIER_HOST);
  for (uint64_t hash = 1; hash <= 1000; ++hash) sent.add_blocks(hash);
  v1::Stored received;
  if (!received.ParseFromString(sent.SerializeAsString())) return "not parsed";
  return received.DebugString();
}

// Compares the prompts that are plain texts with the ids of the Python package.
void ExpectRecordedIds(TextModel& model) {
  std::ifstream prompts("frontend/prompt/text/testdata/prompts.jsonl");
  std::ifstream answers("frontend/prompt/text/testdata/sentences.jsonl");
  size_t compared = 0;
  for (std::string prompt, answer;
       std::getline(prompts, prompt) && std::getline(answers, answer);) {
    const Json body = Json::parse(prompt);
    if (!body.contains("prompt") || body.contains("add_special_tokens")) continue;
    const auto tokens = model.Tokenize(TextPrompt{.text = body["prompt"].get<std::string>()});
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    ASSERT_EQ(tokens->tokens, Json::parse(answer).get<std::vector<TokenId>>()) << prompt;
    ++compared;
  }
  EXPECT_GT(compared, 30u);
}

TEST(SentencePieceBesideProtobuf, IsOpenedWithTheFirstModelAndBothWorkOn) {
  ASSERT_TRUE(IsOpen("libprotobuf.so"));
  EXPECT_FALSE(IsOpen("libsentencepiece.so")) << "linked at start";
  const std::string before = ThereAndBack();
  {
    const auto model = TextModel::Load({.path = "frontend/prompt/text/testdata/sentences"});
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_TRUE(IsOpen("libsentencepiece.so"));
    ExpectRecordedIds(**model);
    EXPECT_EQ(ThereAndBack(), before);
  }
  const auto again = TextModel::Load({.path = "frontend/prompt/text/testdata/sentences"});
  ASSERT_TRUE(again.ok()) << again.status();
  ExpectRecordedIds(**again);
  EXPECT_EQ(ThereAndBack(), before);
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  EXPECT_NE(pool->FindMessageTypeByName("kvatlas.v1.Stored"), nullptr);
  EXPECT_EQ(pool->FindMessageTypeByName("sentencepiece.ModelProto"), nullptr);
}

TEST(SentencePieceBesideProtobuf, BytesThatAreNoModelAreRefused) {
  std::string error;
  EXPECT_EQ(SentencePieceModel::Load("no model", error), nullptr);
  EXPECT_NE(error, "");
}

}  // namespace
}  // namespace kvatlas
