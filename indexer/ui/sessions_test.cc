#include "indexer/ui/sessions.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvatlas {
namespace {

using Json = nlohmann::json;

v1::SessionSeen Seen(uint64_t session, uint64_t age_ms) {
  v1::SessionSeen seen;
  seen.set_session(session);
  seen.mutable_domain()->set_model("m");
  seen.mutable_worker()->set_name("w0");
  seen.set_age_ms(age_ms);
  seen.set_prompts(3);
  seen.set_tokens(4096);
  v1::SessionSeen::At* const at = seen.add_at();
  at->mutable_worker()->set_name("w1");
  at->mutable_worker()->set_rank(2);
  at->set_tokens(4080);
  seen.set_next_turn_computes(16);
  return seen;
}

TEST(SessionsTest, TheLatestOfAllCellsComesFirst) {
  SessionsAnswer answer;
  answer.cells_known = 4;
  answer.cells_asked = 3;
  answer.failed = {"cell c: late"};
  answer.cells.resize(2);
  answer.cells[0].first = "a";
  *answer.cells[0].second.add_sessions() = Seen(7, 900);
  answer.cells[1].first = "b";
  *answer.cells[1].second.add_sessions() = Seen(uint64_t{1} << 63, 40);
  const Json json = Json::parse(SessionsJson(answer));
  EXPECT_EQ(json, Json::parse(R"({"cells_asked":3,"cells":4,"failed":["cell c: late"],"sessions":[
      {"session":"8000000000000000","model":"m","tenant":"","cell":"b","worker":"w0","rank":0,
       "age_ms":40,"prompts":3,"tokens":4096,"at":[{"worker":"w1","rank":2,"tokens":4080}],
       "next_turn_computes":16},
      {"session":"0000000000000007","model":"m","tenant":"","cell":"a","worker":"w0","rank":0,
       "age_ms":900,"prompts":3,"tokens":4096,"at":[{"worker":"w1","rank":2,"tokens":4080}],
       "next_turn_computes":16}]})"));
}

TEST(SessionsTest, NoMoreAreShownThanThePageHasRoomFor) {
  SessionsAnswer answer;
  answer.cells.resize(1);
  for (uint64_t i = 0; i < 2 * kSessionsShown; ++i)
    *answer.cells[0].second.add_sessions() = Seen(i, 1000 - i);
  const Json json = Json::parse(SessionsJson(answer));
  ASSERT_EQ(json["sessions"].size(), kSessionsShown);
  EXPECT_EQ(json["sessions"][0]["age_ms"], 1000 - 2 * kSessionsShown + 1);
}

TEST(SessionsTest, OneIsAskedForAsItsClientsNameIt) {
  HttpRequest request;
  EXPECT_EQ(SessionsQuestion(request).session(), "");
  EXPECT_EQ(SessionsQuestion(request).max(), kSessionsShown);
}

}  // namespace
}  // namespace kvatlas
