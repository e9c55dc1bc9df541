#include "frontend/gateway/errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "frontend/prompt/error_code.h"
#include "frontend/router/frontend.h"

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
    const char* anthropic;
  } table[] = {
      {absl::InvalidArgumentError("x"), 400, "BadRequestError", "invalid_request_error"},
      {absl::OutOfRangeError("x"), 400, "BadRequestError", "invalid_request_error"},
      {absl::UnauthenticatedError("x"), 401, "AuthenticationError", "authentication_error"},
      {absl::PermissionDeniedError("x"), 403, "PermissionDeniedError", "permission_error"},
      {absl::NotFoundError("x"), 404, "NotFoundError", "not_found_error"},
      {absl::FailedPreconditionError("x"), 409, "BadRequestError", "invalid_request_error"},
      {absl::ResourceExhaustedError("x"), 413, "BadRequestError", "request_too_large"},
      {WithRetryAfter(absl::ResourceExhaustedError("x"), milliseconds(1500)), 429, "RateLimitError",
       "rate_limit_error"},
      {absl::InternalError("x"), 500, "InternalServerError", "api_error"},
      {absl::UnimplementedError("x"), 501, "NotImplementedError", "api_error"},
      {absl::UnavailableError("x"), 503, "ServiceUnavailableError", "overloaded_error"},
      {absl::DeadlineExceededError("x"), 504, "InternalServerError", "api_error"}};
  for (const auto& row : table) {
    EXPECT_EQ(ToClientError(row.why).http_status, row.http_status) << row.why;
    const HttpResponse answer = ErrorAnswer(row.why);
    EXPECT_EQ(answer.status, row.http_status);
    EXPECT_EQ(PlainError(row.why).status, row.http_status);
    EXPECT_EQ(Json::parse(answer.body), (Json{{"error",
                                               {{"message", "x"},
                                                {"type", row.type},
                                                {"param", nullptr},
                                                {"code", row.http_status}}}}));
    const HttpResponse anthropic = ErrorAnswer(row.why, ErrorShape::kAnthropic);
    EXPECT_EQ(anthropic.status, row.http_status);
    EXPECT_EQ(anthropic.headers, answer.headers);
    EXPECT_EQ(Json::parse(anthropic.body),
              (Json{{"type", "error"}, {"error", {{"type", row.anthropic}, {"message", "x"}}}}));
  }
}

TEST(ErrorsTest, TheMessagesApiHasAnthropicsErrors) {
  for (const char* path : {"/v1/messages", "/v1/messages/count_tokens", "/a/v1/messages?beta=true"})
    EXPECT_EQ(ErrorShapeOf(path), ErrorShape::kAnthropic) << path;
  for (const char* path : {"/v1/chat/completions", "/v1/models", "/tokenize", ""})
    EXPECT_EQ(ErrorShapeOf(path), ErrorShape::kOpenAi) << path;
}

TEST(ErrorsTest, WhatIsAwaySaysWhenToComeAgain) {
  const auto retry_after = [](const absl::Status& why) {
    const HttpHeaders headers = ErrorAnswer(why).headers;
    EXPECT_EQ(headers, PlainError(why).headers);
    return headers.empty() ? "" : headers.front().second;
  };
  EXPECT_EQ(retry_after(absl::UnavailableError("x")), "1");
  EXPECT_EQ(retry_after(WithRetryAfter(absl::UnavailableError("x"), milliseconds(2500))), "3");
  EXPECT_EQ(retry_after(WithRetryAfter(absl::ResourceExhaustedError("x"), milliseconds(1))), "1");
  EXPECT_EQ(retry_after(absl::ResourceExhaustedError("x")), "");
  EXPECT_EQ(retry_after(absl::InvalidArgumentError("x")), "");
}

TEST(ErrorsTest, AModelThatIsNotThereIsSaidAsVllmSaysIt) {
  const absl::Status unknown = UnknownModelError("a/b");
  EXPECT_TRUE(IsUnknownModel(unknown));
  const Json error = BodyOf(ErrorAnswer(unknown));
  EXPECT_EQ(error["message"], "The model `a/b` does not exist.");
  EXPECT_EQ(error["param"], "model");
  EXPECT_EQ(error["code"], 404);
  EXPECT_TRUE(ErrorAnswer(unknown).headers.empty()) << "a typo is not to be asked again";
  EXPECT_EQ(BodyOf(ErrorAnswer(AboutTokenizer(unknown)))["message"], error["message"]);
  EXPECT_EQ(BodyOf(ErrorAnswer(AboutTokenizer(absl::NotFoundError("x"))))["param"], "model");
  EXPECT_EQ(BodyOf(ErrorAnswer(absl::NotFoundError("no such path")))["param"], Json());
}

TEST(ErrorsTest, TheFieldIsNamed) {
  EXPECT_EQ(ToClientError(absl::InvalidArgumentError("messages is missing")).param, "messages");
  EXPECT_EQ(ToClientError(absl::InvalidArgumentError("tools[0].type is x")).param, "tools[0].type");
  EXPECT_EQ(ToClientError(absl::InvalidArgumentError("the body is not JSON")).param, "");
  EXPECT_EQ(ToClientError(absl::NotFoundError("messages is missing")).param, "");
}

TEST(ErrorsTest, ABodyIsJsonWhateverTheMessageHolds) {
  const HttpResponse response = ErrorAnswer(absl::InvalidArgumentError("\"\n\xff"));
  EXPECT_THAT(BodyOf(response)["message"].get<std::string>(), HasSubstr("\"\n"));
  EXPECT_THAT(PlainError(UnknownModelError("x")).body, Not(HasSubstr("kvatlas/")));
}

}  // namespace
}  // namespace kvatlas
