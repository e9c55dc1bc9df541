#include "frontend/gateway/route_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/kvatlas/v1/frontend.pb.h"

namespace kvatlas {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Refused(const std::string& body) {
  const absl::StatusOr<v1::RouteRequest> request = RouteRequestFromJson(body);
  EXPECT_FALSE(request.ok()) << body;
  return std::string(request.status().message());
}

TEST(RouteJsonTest, EveryFieldIsRead) {
  const absl::StatusOr<v1::RouteRequest> request = RouteRequestFromJson(
      R"({"model":"m","tenant":"t","tokens":[1,"2",4294967295],"lora_name":"l","cache_salt":"s",
          "prompt_tokens":7,"deadline_ms":null,"session_id":"x","allowed_workers":["a","b"],
          "required_labels":{"zone":"z"},"queue_wait_ms":"5"})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->domain().model(), "m");
  EXPECT_THAT(request->tokens().ids(), ElementsAre(1, 2, 4294967295));
  EXPECT_EQ(request->tokens().lora_name(), "l");
  EXPECT_THAT(request->allowed_workers(), ElementsAre("a", "b"));
  EXPECT_EQ(request->required_labels().at("zone"), "z");
  EXPECT_EQ(request->queue_wait_ms(), 5u);
  EXPECT_THAT(
      RouteRequestFromJson(R"({"sequence_hashes":["18446744073709551615"]})")->sequence_hashes(),
      ElementsAre(18446744073709551615u));
  EXPECT_TRUE(RouteRequestFromJson(R"({"tokens":[]})")->has_tokens());
}

TEST(RouteJsonTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(Refused("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refused("{"), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refused("1"), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refused(R"({"tokns":[1]})"), HasSubstr("did you mean tokens?"));
  EXPECT_THAT(Refused(R"({"tokens":1})"), HasSubstr("tokens is not an array"));
  EXPECT_THAT(Refused(R"({"tokens":{}})"), HasSubstr("tokens is not an array"));
  EXPECT_THAT(Refused(R"({"tokens":[1,[2]]})"), HasSubstr("no such number: []"));
  EXPECT_THAT(Refused(R"({"tokens":[4294967296]})"), HasSubstr("no such number: 4294967296"));
  EXPECT_THAT(Refused(R"({"tokens":[1],"tokens":[2]})"), HasSubstr("tokens is there twice"));
  EXPECT_THAT(Refused(R"({"model":[[1]]})"), HasSubstr("model is nested too deep"));
  EXPECT_THAT(Refused(R"({"allowed_workers":[1]})"), HasSubstr("allowed_workers is not an array"));
}

// A body is as large as it says, whatever it is made of: no value of a field that is none is read,
// nor more elements than there can be.
TEST(RouteJsonTest, WhatIsNoneOfItsFieldsEndsTheReading) {
  EXPECT_THAT(Refused(R"({"x":[[[[[[[)"), HasSubstr("x is no field of /route"));
  std::string many = R"({"allowed_workers":[""])";
  many.pop_back();
  for (int i = 0; i < 70000; ++i) many += R"(,"")";
  EXPECT_THAT(Refused(many + "]}"), HasSubstr("more than 65536 elements"));
}

TEST(RouteJsonTest, AReportIsRead) {
  const absl::StatusOr<v1::ReportRequest> report =
      ReportFromJson(R"({"decision_id":"7","finished":true,"cached_tokens":3,"worker":"w"})");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->decision_id(), 7u);
  EXPECT_TRUE(report->finished());
  EXPECT_EQ(report->worker().name(), "w");
  EXPECT_THAT(std::string(ReportFromJson("{}").status().message()), HasSubstr("decision_id"));
}

}  // namespace
}  // namespace kvatlas
