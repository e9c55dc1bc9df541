// GET /sessions as text: JSON is appended piece by piece, without a document in between.

#include "indexer/leaf/http_sessions.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "indexer/base/routed.h"
#include "indexer/leaf/session_answers.h"
#include "indexer/registry/explain_json.h"

namespace kvatlas {
namespace {

void AppendWorker(const HolderId& worker, std::string* out) {
  *out += "\"worker\":";
  AppendJsonText(worker.name, out);
  absl::StrAppend(out, ",\"rank\":", worker.rank);
}

void AppendSession(const SessionAnswer& session, std::string* out) {
  absl::StrAppend(out, "{\"session\":\"", absl::Hex(session.session, absl::kZeroPad16),
                  "\",\"model\":");
  AppendJsonText(session.domain.model, out);
  *out += ",\"tenant\":";
  AppendJsonText(session.domain.tenant, out);
  *out += ",";
  AppendWorker(session.worker, out);
  const uint64_t block_size = session.block_size;
  absl::StrAppend(
      out,
      ",\"age_ms\":", std::chrono::duration_cast<std::chrono::milliseconds>(session.age).count(),
      ",\"prompts\":", session.prompts, ",\"tokens\":", session.blocks * block_size, ",\"at\":[");
  for (const SessionAnswer::At& at : session.at) {
    *out += &at == &session.at.front() ? "{" : ",{";
    AppendWorker(at.worker, out);
    absl::StrAppend(out, ",\"tokens\":", at.blocks * block_size, "}");
  }
  absl::StrAppend(out, "],\"next_turn_computes\":", NextTurnComputes(session), "}");
}

}  // namespace

void AddSessionsHttp(const HolderRegistry* registry, AdminHttp* http) {
  http->Handle("GET", "/sessions", [registry](const HttpRequest& request) {
    // A text that is no number is refused; a number above the bound is cut to it.
    uint32_t max = kSessionsByDefault;
    if (const auto wanted = request.Param("max");
        wanted.has_value() && !absl::SimpleAtoi(*wanted, &max)) {
      HttpResponse bad{.status = 400};
      AppendJsonError("max: a number from 0 to 1024", &bad.body);
      return bad;
    }
    HttpResponse response{.body = "["};
    // Without ?session= the hash is 0, which means all sessions.
    for (const SessionAnswer& session : registry->Sessions(
             SessionHash(request.Param("session").value_or("")), std::min(max, kSessionsMax))) {
      if (response.body.size() > 1) response.body += ",";
      AppendSession(session, &response.body);
    }
    response.body += "]";
    return response;
  });
}

}  // namespace kvatlas
