#include "indexer/ui/sessions.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

Json JsonOf(const std::string& cell, const v1::SessionSeen& session) {
  Json at = Json::array();
  for (const v1::SessionSeen::At& one : session.at())
    at.push_back(
        {{"worker", one.worker().name()}, {"rank", one.worker().rank()}, {"tokens", one.tokens()}});
  return {{"session", absl::StrCat(absl::Hex(session.session(), absl::kZeroPad16))},
          {"model", session.domain().model()},
          {"tenant", session.domain().tenant()},
          {"cell", cell},
          {"worker", session.worker().name()},
          {"rank", session.worker().rank()},
          {"age_ms", session.age_ms()},
          {"prompts", session.prompts()},
          {"tokens", session.tokens()},
          {"at", std::move(at)},
          {"next_turn_computes", session.next_turn_computes()}};
}

}  // namespace

v1::FindSessionsRequest SessionsQuestion(const HttpRequest& request) {
  v1::FindSessionsRequest question;
  question.set_session(request.Param("session").value_or(""));
  question.set_max(kSessionsShown);
  return question;
}

std::string SessionsJson(const SessionsAnswer& answer) {
  std::vector<std::pair<const std::string*, const v1::SessionSeen*>> seen;
  for (const auto& [cell, told] : answer.cells)
    for (const v1::SessionSeen& session : told.sessions()) seen.emplace_back(&cell, &session);
  std::stable_sort(seen.begin(), seen.end(), [](const auto& a, const auto& b) {
    return a.second->age_ms() < b.second->age_ms();
  });
  if (seen.size() > kSessionsShown) seen.resize(kSessionsShown);
  Json sessions = Json::array();
  for (const auto& [cell, session] : seen) sessions.push_back(JsonOf(*cell, *session));
  const Json json = {{"cells_asked", answer.cells_asked},
                     {"cells", answer.cells_known},
                     {"failed", answer.failed},
                     {"sessions", std::move(sessions)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvatlas
