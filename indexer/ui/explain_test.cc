#include "indexer/ui/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "indexer/base/tier.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::ExplainResponse Response(std::vector<std::pair<std::string, std::string>> workers) {
  v1::ExplainResponse response;
  response.set_block_size(16);
  response.set_blocks(5);
  for (const auto& [name, letters] : workers) {
    v1::ExplainedWorker* worker = response.add_workers();
    worker->mutable_worker()->set_name(name);
    worker->set_trust(v1::TRUST_EXACT);
    worker->set_blocks(static_cast<uint32_t>(letters.find('.')));
    for (const char letter : letters) {
      const TierMask bits = letter == 'b'   ? TierMask(Tier::kDevice) | TierMask(Tier::kDisk)
                            : letter == 'h' ? TierMask(Tier::kHost)
                            : letter == 'k' ? TierMask(Tier::kDisk)
                            : letter == 'x' ? TierMask(Tier::kExternal)
                                            : TierMask();
      worker->mutable_tiers()->push_back(static_cast<char>(bits.bits()));
    }
  }
  return response;
}

TEST(ExplainTest, AQuestionIsRead) {
  const absl::StatusOr<ExplainQuestion> question = ReadExplain(
      R"({"model":"m","tokens":[1,2,4294967295],"tenant":"t","lora_name":"l","cache_salt":"s"})");
  ASSERT_TRUE(question.ok()) << question.status();
  EXPECT_THAT(question->tokens, ElementsAre(1, 2, 4294967295u));
  const v1::ExplainRequest request = ToRequest(*question);
  EXPECT_EQ(request.domain().tenant(), "t");
  EXPECT_EQ(request.tokens().ids_size(), 3);
  EXPECT_EQ(request.tokens().lora_name(), "l");
  EXPECT_EQ(request.tokens().cache_salt(), "s");
}

TEST(ExplainTest, WhatIsWrongIsNamed) {
  const auto why = [](const char* body) {
    return std::string(ReadExplain(body).status().message());
  };
  EXPECT_THAT(why("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(why(R"({"tokens":[1]})"), HasSubstr("model is missing"));
  EXPECT_THAT(why(R"({"model":"m"})"), HasSubstr("one of tokens and text"));
  EXPECT_THAT(why(R"({"model":"m","tokens":[1],"text":"a"})"), HasSubstr("one of tokens and text"));
  EXPECT_THAT(why(R"({"model":"m","tokens":[-1]})"), HasSubstr("no token id"));
  EXPECT_THAT(why(R"({"model":"m","tokens":[4294967296]})"), HasSubstr("no token id"));
  EXPECT_THAT(why(R"({"model":7,"tokens":[1]})"), HasSubstr("model is not a string"));
}

TEST(ExplainTest, BlocksAreToldByTheirNearestTierTheDeepestWorkerFirst) {
  ExplainAnswer answer;
  answer.cells = {{"a", Response({{"w0", "bh..."}, {"w1", "....."}})},
                  {"b", Response({{"w2", "hkx.b"}})}};
  answer.cells_known = 4;
  answer.cells_asked = 2;
  ExplainQuestion question;
  question.model = "m";
  question.tokens.assign(80, 1);
  const Json json = Json::parse(ExplainJson(question, answer));
  EXPECT_EQ(json["blocks"], 5);
  EXPECT_EQ(json["diverges_at"], 3);
  EXPECT_EQ(json["cells"], 4);
  ASSERT_EQ(json["workers"].size(), 3u);
  EXPECT_EQ(json["workers"][0]["worker"], "w2");
  EXPECT_EQ(json["workers"][0]["tiers"], "hkx.d");
  EXPECT_EQ(json["workers"][1]["tiers"], "dh...");
  EXPECT_EQ(json["workers"][1]["cell"], "a");
}

}  // namespace
}  // namespace kvatlas
