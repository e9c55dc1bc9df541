// sessions: what of a session is where, and what its next turn would compute. Each leaf knows what
// frontends told it; the table joins the answers of several leaves without merging them.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tools/kvatlas/command.h"
#include "tools/kvatlas/holdings.h"
#include "tools/kvatlas/service_name.h"
#include "tools/kvatlas/services.h"
#include "tools/kvatlas/survey.h"
#include "tools/kvatlas/table.h"

namespace kvatlas {
namespace {

const Address kLeafHttp{"127.0.0.1", 8090};
constexpr size_t kLeavesMax = 1024;

uint64_t NumberIn(const Json& json, const char* field) {
  const auto found = json.find(field);
  return found != json.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

std::string StringIn(const Json& json, const char* field) {
  const auto found = json.find(field);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string WorkerIn(const Json& json) {
  return HolderText(
      HolderId{StringIn(json, "worker"), static_cast<uint32_t>(NumberIn(json, "rank")), ""});
}

// "w0 4,080, w3 512": tokens at workers, the most first.
std::string WhereText(const Json& session) {
  std::string text;
  const auto at = session.find("at");
  if (at != session.end() && at->is_array())
    for (const Json& worker : *at)
      absl::StrAppend(&text, text.empty() ? "" : ", ", WorkerIn(worker), " ",
                      Grouped(NumberIn(worker, "tokens")));
  return text.empty() ? "nowhere" : text;
}

// Errors are those of asking; FAILED_PRECONDITION: the answer is no list.
absl::StatusOr<Json> SessionsOf(const Command& command, const Address& leaf_http,
                                const std::string& session, uint32_t max) {
  const std::string target =
      absl::StrCat("/sessions?max=", max, session.empty() ? "" : "&session=", UrlEncoded(session));
  const absl::StatusOr<std::string> body =
      HttpBody("leaf", leaf_http, "GET", target, "", command.timeout());
  if (!body.ok()) return body.status();
  Json sessions = Json::parse(*body, nullptr, /*allow_exceptions=*/false);
  if (!sessions.is_array())
    return absl::FailedPreconditionError("leaf " + leaf_http.ToString() +
                                         ": the answer is no list of sessions");
  return sessions;
}

}  // namespace

int RunSessions(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command(
      "sessions",
      "Sessions that frontends told leaves of: where their last prompts' tokens are, and "
      "what a next turn would compute.",
      io);
  std::string session;
  uint32_t max = 64;
  Address leaf_http = kLeafHttp;
  command.AddServices({ServiceRole::kLeaf, ServiceRole::kServe}, kLeavesMax);
  command.AddWatch();
  command.flags().Add("session", &session,
                      "this one alone, as clients name it; empty: the latest of all");
  command.flags().Add("max", &max, "sessions of each model at each leaf", 1u, 1024u);
  command.flags().Add("leaf_http", &leaf_http, "HTTP address of the leaf");
  command.AddDomain(/*required=*/false);
  if (const auto exit = command.Parse(arguments)) return *exit;
  Table table({"SESSION", "DOMAIN", "LAST AT", "AGE>", "PROMPTS>", "TOKENS>", "NEXT TURN COMPUTES>",
               "TOKENS AT WORKERS"});
  int worst = kExitOk;
  // A leaf that cannot be asked is an error of its own, and the others are still shown.
  const auto add = [&](const absl::StatusOr<Address>& at) {
    const absl::StatusOr<Json> sessions =
        at.ok() ? SessionsOf(command, *at, session, max) : absl::StatusOr<Json>(at.status());
    if (!sessions.ok()) {
      worst = std::max(worst, command.Fail(sessions.status()));
      return;
    }
    for (const Json& seen : *sessions) {
      const Domain domain{StringIn(seen, "model"), StringIn(seen, "tenant")};
      if (!command.model().empty() && domain != Domain{command.model(), command.tenant()}) continue;
      command.PrintJson(seen);
      table.Add({session.empty() ? StringIn(seen, "session") : session, DomainName(domain),
                 WorkerIn(seen), ShortMs(NumberIn(seen, "age_ms")),
                 Grouped(NumberIn(seen, "prompts")), Grouped(NumberIn(seen, "tokens")),
                 Grouped(NumberIn(seen, "next_turn_computes")), WhereText(seen)});
    }
  };
  if (command.services().empty()) add(leaf_http);
  for (const ServiceName& name : command.services())
    add(Located({ServiceRole::kLeaf, name.address}, Plane::kHttp, command.timeout()));
  if (command.table()) {
    table.Print(command.out(), command.colours());
    if (table.rows() == 0 && worst == kExitOk)
      command.out() << (session.empty() ? "no session was told of in the last ten minutes\n"
                                        : "that session was not told of in the last ten minutes\n");
  }
  const int done = command.Done();
  return worst == kExitOk ? done : worst;
}

}  // namespace kvatlas
