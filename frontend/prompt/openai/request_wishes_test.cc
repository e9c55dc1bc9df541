#include "frontend/prompt/openai/request_wishes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvatlas {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(RequestWishesTest, WhatAnEngineHasStoredIsNamed) {
  EXPECT_THAT(ReadWishes(R"({"input":"x","previous_response_id":"resp_1"})").stored,
              ElementsAre("resp_1"));
  EXPECT_THAT(ReadWishes(R"({"conversation":"conv_1"})").stored, ElementsAre("conv_1"));
  EXPECT_THAT(ReadWishes(R"({"conversation":{"id":"conv_1"},"previous_response_id":null})").stored,
              ElementsAre("conv_1"));
  EXPECT_THAT(ReadWishes(R"({"input":[{"type":"message","id":"a"},{"type":"item_reference",)"
                         R"("id":"msg_1"},7],"previous_response_id":"resp_1"})")
                  .stored,
              ElementsAre("resp_1", "msg_1"));
}

TEST(RequestWishesTest, SglangsRankHasTwoNames) {
  EXPECT_EQ(ReadWishes(R"({"routed_dp_rank":1})").rank, 1u);
  EXPECT_EQ(ReadWishes(R"({"data_parallel_rank":2})").rank, 2u);
  EXPECT_EQ(ReadWishes(R"({"data_parallel_rank":2,"routed_dp_rank":1})").rank, 1u);
  EXPECT_EQ(ReadWishes(R"({"data_parallel_rank":2,"routed_dp_rank":null})").rank, 2u);
  EXPECT_EQ(ReadWishes(R"({"routed_dp_rank":-1})").rank, std::nullopt);
  EXPECT_EQ(ReadWishes(R"({"messages":[{"routed_dp_rank":1}]})").rank, std::nullopt);
}

TEST(RequestWishesTest, SeveralPromptsOrChoicesAreNotOne) {
  for (const char* one :
       {R"({"prompt":"a"})", R"({"prompt":[1,2,3]})", R"({"prompt":["a"]})", R"({"prompt":[[1]]})",
        R"({"prompt":"a","n":1})", R"({"prompt":"a","n":null})",
        R"({"text":"a","sampling_params":{"n":1}})", R"({"input_ids":[1,2],"sampling_params":{}})"})
    EXPECT_TRUE(ReadWishes(one).one_prompt) << one;
  for (const char* several :
       {R"({"prompt":["a","b"]})", R"({"prompt":[[1],[2]]})", R"({"messages":[],"n":2})",
        R"({"text":["a","b"],"sampling_params":{}})",
        R"({"input_ids":[[1],[2]],"sampling_params":{}})",
        R"({"text":"a","sampling_params":{"n":2}})"})
    EXPECT_FALSE(ReadWishes(several).one_prompt) << several;
}

TEST(RequestWishesTest, WhatIsNotReadSaysNothing) {
  for (const char* body : {"", "{", "[]", "7", R"({"n":NaN,"previous_response_id":"x"})",
                           R"({"previous_response_id":7,"conversation":[],"n":"2"})"}) {
    const RequestWishes wishes = ReadWishes(body);
    EXPECT_THAT(wishes.stored, IsEmpty()) << body;
    EXPECT_EQ(wishes.rank, std::nullopt) << body;
    EXPECT_TRUE(wishes.one_prompt) << body;
  }
}

}  // namespace
}  // namespace kvatlas
