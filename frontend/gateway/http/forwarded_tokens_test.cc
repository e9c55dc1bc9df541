#include "frontend/gateway/http/forwarded_tokens.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvatlas {
namespace {

const std::vector<TokenId> kTokens = {1, 22, 4294967295};

TEST(BodyWithTokensTest, TheIdsAreTheLastMember) {
  const auto with = BodyWithTokens("{\"model\": \"m\", \"messages\": [] }\n", kTokens);
  ASSERT_NE(with, nullptr);
  EXPECT_EQ(*with,
            "{\"model\": \"m\", \"messages\": [] "
            ",\"kv_transfer_params\":{\"prompt_token_ids\":[1,22,4294967295]}}");
}

TEST(BodyWithTokensTest, ABodyThatSaysOtherwiseIsLeftAsItIs) {
  for (const char* body :
       {R"({"messages": [], "kv_transfer_params": {"do_remote_decode": true}})",
        R"({"messages": [], "echo": true})", R"({"messages": [], "truncate_prompt_tokens": 5})",
        "{}", "{ }", "[]", "", "x"})
    EXPECT_EQ(BodyWithTokens(body, kTokens), nullptr) << body;
  EXPECT_EQ(BodyWithTokens(R"({"messages": []})", {}), nullptr);
}

}  // namespace
}  // namespace kvatlas
