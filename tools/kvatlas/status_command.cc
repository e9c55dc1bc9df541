// status: all processes in one screen: those that are named, and those that they know (a frontend's
// upstreams, a leaf's parents, a node's cells, a relay's leaves). Engines are not asked.

#include <string>
#include <vector>

#include "tools/kvatlas/command.h"
#include "tools/kvatlas/process_view.h"
#include "tools/kvatlas/survey.h"
#include "tools/kvatlas/survey_command.h"
#include "tools/kvatlas/table.h"

namespace kvatlas {
namespace {

// A line of JSON for scripts: the fields of the table, with the reasons.
Json JsonOf(const ProcessView& view) {
  return {
      {"process", view.program},    {"name", view.name},
      {"address", view.address},    {"version", view.version},
      {"state", view.state},        {"up_ms", view.up_ms.has_value() ? Json(*view.up_ms) : Json()},
      {"holds", view.holds},        {"does", view.does},
      {"attention", view.attention}};
}

std::string Dash(const std::string& text) { return text.empty() ? "-" : text; }

// The reason of a state stands below the table, which would be as wide as the longest one.
std::string WithoutReason(const std::string& state) { return state.substr(0, state.find(": ")); }

void Print(Command* command, const std::vector<ProcessView>& views) {
  Table table({"PROCESS", "NAME", "ADDRESS", "VERSION", "UP>", "STATE*", "HOLDS", "DID"});
  for (const ProcessView& view : views) {
    table.Add({view.program, Dash(view.name), view.address, Dash(view.version),
               view.up_ms.has_value() ? ShortMs(*view.up_ms) : "-", WithoutReason(view.state),
               Dash(view.holds), Dash(view.does)});
  }
  table.Print(command->out(), command->colours());
  bool first = true;
  for (const ProcessView& view : views) {
    std::vector<std::string> lines = view.attention;
    if (view.state != "ready") lines.insert(lines.begin(), view.state);
    for (const std::string& line : lines) {
      if (first) command->out() << "\nto look at:\n";
      first = false;
      command->out() << "  " << view.program << ' '
                     << Shown(view.name.empty() ? view.address : view.name) << ": " << Shown(line)
                     << '\n';
    }
  }
  if (first) command->out() << "\nnothing to look at\n";
}

}  // namespace

int RunStatus(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command(
      "status",
      "All processes in one screen: those that are named and those that they know, a frontend's "
      "upstreams, a leaf's parents, a node's cells. Without a name: those of this host.",
      io);
  SurveyFlags survey_flags;
  AddSurveyFlags(&command, &survey_flags);
  command.AddWatch();
  SurveyOptions options;
  options.engines = false;
  options.readiness = true;
  command.flags().Add("follow", &options.follow, "look at those that a named one knows, too");
  command.flags().Example("kvatlas status frontend=10.0.0.1:8092 relay=10.0.0.9:8093 --watch",
                          "a fleet, again every 2 s");
  if (const auto exit = command.Parse(arguments)) return *exit;
  const absl::StatusOr<Survey> survey = SurveyFor(command, survey_flags, options);
  if (!survey.ok()) return command.Fail(survey.status());
  const std::vector<ProcessView> views = ViewsOf(*survey);
  for (const ProcessView& view : views) command.PrintJson(JsonOf(view));
  if (command.table()) Print(&command, views);
  // A service that does not answer makes the status fail, although the others are shown.
  const int done = command.Done();
  return !survey->unreached.empty() && done == kExitOk ? kExitUnreachable : done;
}

}  // namespace kvatlas
