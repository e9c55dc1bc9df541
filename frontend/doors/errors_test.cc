#include "frontend/doors/errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "frontend/prompt/error_code.h"
#include "frontend/route/frontend.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

Json BodyOf(const HttpResponse& response) { return Json::parse(response.body)["error"]; }

TEST(ErrorsTest, EachStatusHasOneHttpStatusAndType) {
  const struct {
    absl::Status why;
    int http_status;
    const char* type;
  } table[] = {{absl::InvalidArgumentError("x"), 400, "invalid_request_error"},
               {absl::OutOfRangeError("x"), 400, "invalid_request_error"},
               {absl::UnauthenticatedError("x"), 401, "authentication_error"},
               {absl::PermissionDeniedError("x"), 403, "authentication_error"},
               {absl::NotFoundError("x"), 404, "not_found_error"},
               {absl::FailedPreconditionError("x"), 409, "invalid_request_error"},
               {absl::ResourceExhaustedError("x"), 413, "invalid_request_error"},
               {WithRetryAfter(absl::ResourceExhaustedError("x"), milliseconds(1500)), 429,
                "rate_limit_error"},
               {absl::InternalError("x"), 500, "server_error"},
               {absl::UnimplementedError("x"), 501, "server_error"},
               {absl::UnavailableError("x"), 503, "server_error"},
               {absl::DeadlineExceededError("x"), 504, "server_error"}};
  for (const auto& row : table) {
    const ClientError error = ToClientError(row.why);
    EXPECT_EQ(error.http_status, row.http_status) << row.why;
    EXPECT_EQ(error.type, row.type) << row.why;
    EXPECT_EQ(OpenAiError(row.why).status, row.http_status);
    EXPECT_EQ(PlainError(row.why).status, row.http_status);
    EXPECT_EQ(BodyOf(OpenAiError(row.why))["message"], "x");
  }
}

TEST(ErrorsTest, WhatIsAwaySaysWhenToComeAgain) {
  const auto retry_after = [](const absl::Status& why) {
    const HttpHeaders headers = OpenAiError(why).headers;
    EXPECT_EQ(headers, PlainError(why).headers);
    return headers.empty() ? "" : headers.front().second;
  };
  EXPECT_EQ(retry_after(absl::UnavailableError("x")), "1");
  EXPECT_EQ(retry_after(WithRetryAfter(absl::UnavailableError("x"), milliseconds(2500))), "3");
  EXPECT_EQ(retry_after(WithRetryAfter(absl::ResourceExhaustedError("x"), milliseconds(1))), "1");
  EXPECT_EQ(retry_after(absl::ResourceExhaustedError("x")), "");
  EXPECT_EQ(retry_after(absl::InvalidArgumentError("x")), "");
}

TEST(ErrorsTest, WhatIsNotThereIsAModelUnlessItIsSaidToBeSomethingElse) {
  Json error = BodyOf(OpenAiError(absl::NotFoundError("no worker of m")));
  EXPECT_EQ(error["code"], "model_not_found");
  EXPECT_EQ(error["param"], "model");
  error = BodyOf(OpenAiError(WithErrorCode(absl::NotFoundError("no such path"), "unknown_url")));
  EXPECT_EQ(error["code"], "unknown_url");
  EXPECT_EQ(error["param"], Json());
}

TEST(ErrorsTest, TheFieldIsNamed) {
  EXPECT_EQ(ToClientError(absl::InvalidArgumentError("messages is missing")).param, "messages");
  EXPECT_EQ(ToClientError(absl::InvalidArgumentError("tools[0].type is x")).param, "tools[0].type");
  EXPECT_EQ(ToClientError(absl::InvalidArgumentError("the body is not JSON")).param, "");
  EXPECT_EQ(ToClientError(absl::NotFoundError("messages is missing")).param, "model");
}

TEST(ErrorsTest, ABodyIsJsonWhateverTheMessageHolds) {
  const HttpResponse response = OpenAiError(absl::InvalidArgumentError("\"\n\xff"));
  EXPECT_THAT(BodyOf(response)["message"].get<std::string>(), HasSubstr("\"\n"));
  EXPECT_THAT(PlainError(WithErrorCode(absl::NotFoundError("x"), "y")).body,
              Not(HasSubstr("kvatlas/")));
}

}  // namespace
}  // namespace kvatlas
