// status: all processes in one screen. Those that are named, and those that they know: a frontend's upstreams, a leaf's parents, a
// node's cells, a relay's leaves.

#include <algorithm>
#include <future>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/kvatlas/command.h"
#include "tools/kvatlas/process_view.h"
#include "tools/kvatlas/service_name.h"
#include "tools/kvatlas/table.h"

namespace kvatlas {
namespace {

constexpr size_t kProcessesMax = 1024;
constexpr size_t kAtOnce = 16;
constexpr char kThisHost[] = "127.0.0.1";

// Their HTTP ports unless told otherwise; `serve` has a frontend's.
std::vector<ServiceName> UsualOnes() {
  return {{Role::kFrontend, {kThisHost, 8092}},
          {Role::kHierarchy, {kThisHost, 8091}},
          {Role::kLeaf, {kThisHost, 8090}},
          {Role::kRelay, {kThisHost, 8093}}};
}

std::vector<ProcessView> LookAtAll(const std::vector<ServiceName>& names, Duration timeout) {
  std::vector<ProcessView> views;
  for (size_t begin = 0; begin < names.size(); begin += kAtOnce) {
    std::vector<std::future<ProcessView>> looks;
    for (size_t i = begin; i < std::min(names.size(), begin + kAtOnce); ++i)
      looks.push_back(std::async(std::launch::async, LookAtProcess, names[i], timeout));
    for (std::future<ProcessView>& look : looks) views.push_back(look.get());
  }
  return views;
}

// A process may be known by several of its addresses: what tells two apart is where they listen.
std::string KeyOf(const ProcessView& view) {
  const bool frontend = view.program == "serve" || view.program == "frontend";
  return (frontend ? "frontend " : view.program + " ") + view.address;
}

std::vector<ProcessView> Follow(std::vector<ServiceName> names, bool follow, Duration timeout) {
  std::vector<ProcessView> all;
  std::set<std::string> asked, seen;
  while (!names.empty() && all.size() < kProcessesMax) {
    std::vector<ServiceName> next;
    for (ProcessView& view : LookAtAll(names, timeout)) {
      if (!seen.insert(KeyOf(view)).second) continue;
      next.insert(next.end(), view.knows.begin(), view.knows.end());
      all.push_back(std::move(view));
    }
    names.clear();
    if (!follow) break;
    for (ServiceName& name : next)
      if (asked.insert(name.ToString()).second) names.push_back(std::move(name));
  }
  return all;
}

Json JsonOf(const ProcessView& view) {
  Json json = {
      {"process", view.program}, {"name", view.name},
      {"address", view.address}, {"asked", view.asked.ToString()},
      {"version", view.version}, {"up_ms", view.up_ms.has_value() ? Json(*view.up_ms) : Json()},
      {"state", view.state},     {"holds", view.holds},
      {"does", view.does},       {"attention", view.attention},
      {"knows", Json::array()}};
  for (const ServiceName& name : view.knows) json["knows"].push_back(name.ToString());
  return json;
}

std::string Dash(const std::string& text) { return text.empty() ? "-" : text; }

void Print(Command* command, const std::vector<ProcessView>& views) {
  Table table({"PROCESS", "NAME", "ADDRESS", "VERSION", "UP>", "STATE*", "HOLDS", "DID"});
  for (const ProcessView& view : views) {
    table.Add({view.program, Dash(view.name), view.address, Dash(view.version),
               view.up_ms.has_value() ? ShortMs(*view.up_ms) : "-", view.state, Dash(view.holds),
               Dash(view.does)});
  }
  table.Print(command->out(), command->colours());
  bool first = true;
  for (const ProcessView& view : views) {
    for (const std::string& line : view.attention) {
      if (first) command->out() << "\nto look at:\n";
      first = false;
      command->out() << "  " << view.program << ' '
                     << (view.name.empty() ? view.address : view.name) << ": " << line << '\n';
    }
  }
  if (first) command->out() << "\nnothing to look at\n";
}

}  // namespace

int RunStatus(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command(
      "status",
      "All processes in one screen: those that are named and those that they know, a frontend's "
      "upstreams, a leaf's parents, a node's cells. Without a name: of this host's usual ports.",
      io);
  command.AddServices({std::begin(kRoles), std::end(kRoles)}, kProcessesMax);
  command.AddWatch();
  std::vector<Address> leaves, hierarchies, frontends, relays;
  bool follow = true;
  command.flags().Add("leaf", &leaves, "addresses of leaves");
  command.flags().Add("hierarchy", &hierarchies, "addresses of hierarchy nodes");
  command.flags().Add("frontend", &frontends, "HTTP addresses of frontends");
  command.flags().Add("relay", &relays, "HTTP addresses of relays");
  command.flags().Add("follow", &follow, "look at those that a named one knows, too");
  command.flags().Example("kvatlas status frontend=10.0.0.1:8092 relay=10.0.0.9:8093 --watch",
                          "a fleet, again every 2 s");
  if (const auto exit = command.Parse(arguments)) return *exit;
  std::vector<ServiceName> names = command.services();
  for (const auto& [role, addresses] :
       {std::pair(Role::kLeaf, &leaves), std::pair(Role::kHierarchy, &hierarchies),
        std::pair(Role::kFrontend, &frontends), std::pair(Role::kRelay, &relays)})
    for (const Address& address : *addresses) names.push_back({role, address});
  const bool usual = names.empty();
  std::vector<ProcessView> views = Follow(usual ? UsualOnes() : names, follow, command.timeout());
  // What is not on a usual port is not missed, unless a process that is there names it.
  if (usual) {
    const std::vector<ServiceName> ports = UsualOnes();
    std::erase_if(views, [&](const ProcessView& view) {
      return !view.status.ok() && std::find(ports.begin(), ports.end(), view.asked) != ports.end();
    });
    if (views.empty())
      return command.Fail(absl::UnavailableError(
          "no process listens on this host's usual HTTP ports, 8090 to 8093: name one, such as "
          "kvatlas status frontend=HOST:PORT"));
  }
  std::stable_sort(views.begin(), views.end(), [](const ProcessView& a, const ProcessView& b) {
    return a.program < b.program;
  });
  for (const ProcessView& view : views) command.PrintJson(JsonOf(view));
  if (command.table()) Print(&command, views);
  const bool missing = std::any_of(views.begin(), views.end(),
                                   [](const ProcessView& view) { return !view.status.ok(); });
  const int done = command.Done();
  return missing && done == kExitOk ? kExitUnreachable : done;
}

}  // namespace kvatlas
