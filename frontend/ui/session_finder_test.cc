#include "frontend/ui/session_finder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

using Json = nlohmann::json;

// Leaves "a:1" and "b:1", of which the second does not answer.
class Leaves : public PeerAsker {
 public:
  void Ask(StatsOf, const std::string&, Duration, Told callback) override {
    callback(v1::StatsResponse());
  }
  void Explain(const std::string&, const v1::ExplainRequest&, Duration,
               Explained callback) override {
    callback(absl::UnimplementedError("not in this test"));
  }
  void FindSessions(const std::string& address, const v1::FindSessionsRequest& request, Duration,
                    Sessions callback) override {
    asked.push_back(request.session());
    if (address != "a:1") return callback(absl::UnavailableError("connection refused"));
    v1::FindSessionsResponse found;
    v1::SessionSeen* const seen = found.add_sessions();
    seen->set_session(7);
    seen->mutable_domain()->set_model("m");
    seen->set_next_turn_computes(16);
    callback(std::move(found));
  }

  std::vector<std::string> asked;
};

TEST(SessionFinderTest, LeavesAreAskedAndThoseThatDoNotAnswerAreNamed) {
  Leaves leaves;
  FleetWatch watch({},
                   {.nodes = [] { return std::vector<std::string>(); },
                    .leaves =
                        [] {
                          return std::vector<std::pair<std::string, std::string>>{{"a", "a:1"},
                                                                                  {"b", "b:1"}};
                        }},
                   &leaves, &Clock::Real());
  watch.Round();
  const SessionFinder finder(&watch, &leaves);
  const HttpResponse response = finder.Answer(HttpRequest());
  ASSERT_EQ(response.status, 200);
  const Json json = Json::parse(response.body);
  ASSERT_EQ(json["sessions"].size(), 1u);
  EXPECT_EQ(json["sessions"][0]["cell"], "a");
  EXPECT_EQ(json["sessions"][0]["next_turn_computes"], 16);
  EXPECT_EQ(json["failed"], Json::parse(R"(["cell b: connection refused"])"));
  EXPECT_EQ(json["cells_asked"], 2);
  EXPECT_EQ(leaves.asked, (std::vector<std::string>{"", ""}));
}

}  // namespace
}  // namespace kvatlas
