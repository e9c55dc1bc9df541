#include "frontend/prompt/no_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "frontend/router/frontend.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {
namespace {

using testing::HasSubstr;

TEST(NoTokensTest, EachStatusHasOneReason) {
  EXPECT_EQ(NoTokensReason(NoPromptOf("POST", "/v1/embeddings")), "path");
  EXPECT_EQ(NoTokensReason(absl::UnimplementedError("prompt_embeds")), "unsupported");
  EXPECT_EQ(NoTokensReason(absl::InvalidArgumentError("roles must alternate")), "refused");
  EXPECT_EQ(NoTokensReason(absl::NotFoundError("no tokenizer")), "no_tokenizer");
  EXPECT_EQ(NoTokensReason(absl::UnavailableError("refused")), "unavailable");
  EXPECT_EQ(NoTokensReason(absl::InternalError("x")), "unavailable");
  EXPECT_EQ(NoTokensReason(absl::DeadlineExceededError("x")), "late");
  EXPECT_EQ(NoTokensReason(absl::ResourceExhaustedError("x")), "too_long");
}

TEST(NoTokensTest, TheyAreCountedByReasonButForUnknownModels) {
  Metrics metrics;
  NoTokensCounter counter(&metrics);
  EXPECT_THAT(metrics.Text(), HasSubstr("kvatlas_frontend_no_tokens_total{reason=\"late\"} 0\n"));
  const OnNoTokens count = counter.counting();
  count("m", absl::InvalidArgumentError("x"));
  count("m", absl::InvalidArgumentError("y"));
  count("nope", UnknownModelError("nope"));
  EXPECT_THAT(
      metrics.Text(),
      testing::AllOf(HasSubstr("kvatlas_frontend_no_tokens_total{reason=\"refused\"} 2\n"),
                     HasSubstr("kvatlas_frontend_no_tokens_total{reason=\"no_tokenizer\"} 0\n")));
}

}  // namespace
}  // namespace kvatlas
