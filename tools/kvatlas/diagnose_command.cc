// diagnose: why engines serve something else than the index promises. The frontend finds the causes
// (`frontend/accuracy`); this command prints them, as its text for people or as its JSON.

#include <string>
#include <vector>

#include "tools/kvatlas/command.h"
#include "tools/kvatlas/services.h"
#include "tools/kvatlas/table.h"

namespace kvatlas {
namespace {

const Address kFrontendHttp{"127.0.0.1", 8092};

}  // namespace

int RunDiagnose(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command("diagnose", "What a frontend found wrong between the index and the engines.", io);
  Address frontend_http = kFrontendHttp;
  std::string decision;
  command.flags().Add("frontend_http", &frontend_http, "HTTP address of the frontend");
  command.AddServices({ServiceRole::kFrontend, ServiceRole::kServe}, 1);
  command.AddWatch();
  command.flags().Add("decision", &decision, "this decision's receipt and report instead, as JSON");
  if (const auto exit = command.Parse(arguments)) return *exit;
  // The number becomes a part of the path.
  if (decision.find_first_not_of("0123456789") != std::string::npos)
    return command.Usage("--decision is a number");
  const absl::StatusOr<Address> at =
      command.Find(ServiceRole::kFrontend, Plane::kHttp, frontend_http);
  if (!at.ok()) return command.Fail(at.status());
  const auto ask = [&](const std::string& path) {
    return HttpBody("frontend", *at, "GET", path, "", command.timeout());
  };
  const std::string path = "/decisions/" + decision;
  // A decision is JSON in both forms of output, as it has no text.
  if (!decision.empty() || command.json()) {
    const absl::StatusOr<std::string> body =
        ask(decision.empty() ? "/diagnosis?format=json" : path);
    if (!body.ok()) return command.Fail(body.status());
    const Json answer = Json::parse(*body, nullptr, /*allow_exceptions=*/false);
    if (!answer.is_object())
      return command.Fail(absl::FailedPreconditionError("frontend " + at->ToString() +
                                                        ": the answer is no object"));
    command.PrintJson(answer);
    if (!decision.empty() && command.table()) command.out() << answer.dump(2) << '\n';
  }
  if (decision.empty() && command.table()) {
    const absl::StatusOr<std::string> text = ask("/diagnosis");
    if (!text.ok()) return command.Fail(text.status());
    command.out() << ShownLines(*text);
  }
  return command.Done();
}

}  // namespace kvatlas
