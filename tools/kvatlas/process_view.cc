// A line per process, read from its status. All services are read from JSON: leaves and nodes
// answer over gRPC, but their statistics are printed as JSON first (`StatsJson`), so that one
// reader serves both ports. Missing fields are empty, since older services have fewer.

#include "tools/kvatlas/process_view.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/kvatlas/table.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr size_t kAttentionMax = 8;  // lines a process; the rest is counted

// Null: it is missing. Iterating over null visits nothing.
const Json& Field(const Json& json, const char* name) {
  static const Json kNone;
  if (!json.is_object()) return kNone;
  const auto found = json.find(name);
  return found == json.end() ? kNone : *found;
}

// 0: missing. Protocol buffers print 64-bit numbers as texts.
uint64_t Number(const Json& json, const char* name) {
  const Json& field = Field(json, name);
  if (field.is_number_unsigned()) return field.get<uint64_t>();
  uint64_t number = 0;
  if (field.is_string() && absl::SimpleAtoi(field.get<std::string>(), &number)) return number;
  return 0;
}

bool IsTrue(const Json& json, const char* name) {
  const Json& field = Field(json, name);
  return field.is_boolean() && field.get<bool>();
}

std::string Count(uint64_t count, const char* what) {
  return absl::StrCat(Grouped(count), " ", what, count == 1 ? "" : "s");
}

std::string HolderOf(const Json& of) {
  const Json& holder = Field(of, "holder");
  std::string text = TextIn(holder, "name");
  if (const uint64_t rank = Number(holder, "rank"); rank != 0) absl::StrAppend(&text, "/", rank);
  if (const std::string replica = TextIn(holder, "replica"); !replica.empty())
    text += "@" + replica;
  return text;
}

std::string DomainOf(const Json& of) {
  const Json& domain = Field(of, "domain");
  const std::string tenant = TextIn(domain, "tenant");
  return TextIn(domain, "model") + (tenant.empty() ? "" : "/" + tenant);
}

// "WHAT: REASON", or WHAT alone.
std::string WithReason(std::string what, const std::string& reason) {
  return reason.empty() ? what : what + ": " + reason;
}

// Adds a line for a holder that has to be looked at: masked, not connected, or uncertain.
void LookAtHolder(const Json& holder, const std::string& what, ProcessView* view) {
  const std::string state = TextIn(holder, "state"), trust = TextIn(holder, "trust");
  const std::string who = what + " " + HolderOf(holder);
  if (IsTrue(holder, "masked")) {
    view->attention.push_back(WithReason(who + " masked", TextIn(holder, "reason")));
  } else if (!state.empty() && state != "connected") {
    view->attention.push_back(WithReason(who + " " + state, TextIn(holder, "reason")));
  } else if (trust == "TRUST_DEGRADED" || trust == "TRUST_STALE") {
    view->attention.push_back(who + (trust == "TRUST_STALE" ? " stale" : " degraded"));
  }
}

// Holders and blocks over all domains. A cell's replicas are one cell; a worker's ranks are
// counted.
void ReadDomains(const Json& status, bool leaf, ProcessView* view) {
  const char* const what = leaf ? "worker" : "cell";
  std::set<std::string> holders, cells;  // a cell's replicas are one
  uint64_t blocks = 0;
  std::vector<std::string> domains;
  for (const Json& domain : Field(status, "domains")) {
    domains.push_back(DomainOf(domain));
    blocks += Number(domain, "blocks");
    for (const Json& holder : Field(domain, "holder_stats")) {
      holders.insert(HolderOf(holder));
      cells.insert(TextIn(Field(holder, "holder"), "name"));
      LookAtHolder(holder, what, view);
    }
  }
  view->holds = Count(leaf ? holders.size() : cells.size(), what) + ", " +
                Count(blocks, leaf ? "block" : "waypoint");
  if (domains.size() == 1) view->holds += " of " + domains[0];
  if (domains.size() > 1) view->holds += " of " + Count(domains.size(), "domain");
}

// A leaf or a node. Of a parent one line is enough, though it has a stream per domain.
void ReadHolders(const Json& status, bool leaf, ProcessView* view) {
  view->name = TextIn(status, "cell");
  if (const std::string replica = TextIn(status, "replica"); !replica.empty())
    view->name += "@" + replica;
  ReadDomains(status, leaf, view);
  view->does =
      Grouped(Number(status, "queries")) + (Number(status, "queries") == 1 ? " query" : " queries");
  for (const Json& refused : Field(status, "refused")) {
    view->attention.push_back(
        absl::StrCat("stream of ", HolderOf(refused), " refused: ", TextIn(refused, "reason")));
  }
  std::set<std::string> parents;
  for (const Json& parent : Field(status, "parents")) {
    const std::string address = TextIn(parent, "address");
    if (!parents.insert(address).second) continue;
    const std::string refused = TextIn(parent, "refused");
    if (!refused.empty()) {
      view->attention.push_back("parent " + address + " refused: " + refused);
    } else if (!IsTrue(parent, "connected")) {
      const std::string state = TextIn(parent, "state");
      view->attention.push_back(WithReason(
          "parent " + address + " " + (state.empty() ? "down" : state), TextIn(parent, "reason")));
    }
  }
}

// Findings between index and engines (`kvatlas diagnose` has all of it): the cause, and its first
// piece of evidence.
void ReadFindings(const Json& truth, ProcessView* view) {
  for (const Json& finding : ListIn(truth, "findings")) {
    std::string what = TextIn(finding, "cause");
    for (const auto& [word, field] : {std::pair(" of ", "worker"), std::pair(" for ", "domain")}) {
      const std::string of = TextIn(finding, field);
      if (!of.empty()) what += word + of;
    }
    const Json& evidence = ListIn(finding, "evidence");
    const bool said = !evidence.empty() && evidence.front().is_string();
    view->attention.push_back(WithReason(what, said ? evidence.front().get<std::string>() : ""));
  }
}

// Fallbacks are shown by name where there were any: they explain poor choices.
void ReadFrontend(const Json& status, ProcessView* view) {
  view->does = Count(Number(status, "routes"), "route");
  const Json& fallbacks = Field(status, "by_fallback");
  std::vector<std::string> fallen;
  if (fallbacks.is_object()) {
    for (const auto& [name, count] : fallbacks.items())
      if (name != "none" && count.is_number_unsigned() && count.get<uint64_t>() > 0)
        fallen.push_back(Grouped(count.get<uint64_t>()) + " " + name);
  }
  absl::StrAppend(&view->does, ", ", Grouped(Number(status, "failed")), " failed");
  if (!fallen.empty()) absl::StrAppend(&view->does, ", fallback: ", absl::StrJoin(fallen, ", "));
  view->holds = absl::StrCat(Count(Number(status, "workers_remembered"), "worker"), " seen, ",
                             Grouped(Number(status, "in_flight")), " in flight");
  ReadFindings(Field(status, "truth"), view);
}

// Streams of engines that are not connected, ranks that are in doubt, leaves that are not reached.
void ReadRelay(const Json& status, ProcessView* view) {
  view->holds = Count(Field(status, "workers").size(), "worker") + ", " +
                Count(Number(status, "blocks"), "block");
  if (!IsTrue(status, "ready")) view->state = WithReason("not ready", TextIn(status, "reason"));
  for (const Json& worker : Field(status, "workers")) {
    const std::string name = TextIn(worker, "worker");
    for (const Json& stream : Field(worker, "streams")) {
      const std::string state = TextIn(stream, "state");
      if (state.empty() || state == "connected") continue;
      view->attention.push_back(
          WithReason("engine " + name + " " + state, TextIn(stream, "reason")));
    }
    for (const Json& rank : Field(worker, "ranks")) {
      if (const std::string doubt = TextIn(rank, "doubt"); !doubt.empty())
        view->attention.push_back("worker " + name + " " + TextIn(rank, "trust") + ": " + doubt);
      for (const Json& link : Field(rank, "leaves")) {
        const std::string state = TextIn(link, "state");
        if (state.empty() || state == "connected") continue;
        view->attention.push_back(
            WithReason("leaf " + TextIn(link, "leaf") + " " + state, TextIn(link, "reason")));
      }
    }
  }
}

// Only a budget that is no longer ample is worth a line.
void ReadMemory(const Json& status, ProcessView* view) {
  const Json& memory = Field(status, "memory");
  const std::string level = TextIn(memory, "level");
  if (level.empty() || level == "ample") return;
  view->attention.push_back(absl::StrCat("memory ", level, ": ",
                                         Grouped(Number(memory, "used_bytes")), " of ",
                                         Grouped(Number(memory, "budget_bytes")), " bytes"));
}

// Program and version of the status's section "process", or of its top level, where a relay has
// them.
void ReadProcess(const Json& status, ProcessView* view) {
  const Json& process = Field(status, "process");
  const std::string program = TextIn(process.is_object() ? process : status, "program");
  if (program.starts_with("kvatlas-")) view->program = program.substr(8);
  view->version = TextIn(process.is_object() ? process : status, "version");
  if (view->version.empty()) view->version = TextIn(status, "version");
  if (process.is_object()) view->up_ms = Number(process, "uptime_ms");
}

// Drops repeated lines, and cuts to `kAttentionMax`.
void Shorten(std::vector<std::string>* lines) {
  std::vector<std::string> kept;
  for (std::string& line : *lines)
    if (std::find(kept.begin(), kept.end(), line) == kept.end()) kept.push_back(std::move(line));
  if (kept.size() > kAttentionMax) {
    const size_t more = kept.size() - kAttentionMax;
    kept.resize(kAttentionMax);
    kept.push_back(absl::StrCat("and ", more, " more"));
  }
  *lines = std::move(kept);
}

ProcessView ViewOfUnreached(const Unreached& what) {
  ProcessView view;
  view.reached = false;
  view.program = what.kind;
  view.name = what.cell;
  view.address = what.address;
  // Its kind and address are in their own columns.
  const std::string title = what.kind + " " + what.address + ": ";
  std::string reason(what.why.message());
  if (reason.starts_with(title)) reason = reason.substr(title.size());
  view.state = WithReason("unreachable", reason);
  if (!what.told_by.empty()) view.attention.push_back("named by " + what.told_by);
  return view;
}

// The answer of /ready, unless the status itself says why the service is not ready.
void SetReadiness(const std::string& readiness, ProcessView* view) {
  if (!readiness.empty() && view->state == "ready") view->state = readiness;
}

}  // namespace

// The kind of service is told by its fields: a frontend counts routes and fallbacks, which `serve`
// does as well; a relay says its program; the rest are leaves and nodes.
ProcessView ViewOf(const ServiceName& name, const Json& status) {
  ProcessView view;
  view.program = std::string(RoleName(name.role));
  view.state = "ready";
  ReadProcess(status, &view);
  if (status.contains("routes") && status.contains("by_fallback")) {
    ReadFrontend(status, &view);
  } else if (view.program == "relay") {
    ReadRelay(status, &view);
  } else {
    // In `serve` the leaf is a part that is asked at its own port.
    if (view.program == "serve") view.program = "leaf";
    ReadHolders(status, view.program == "leaf", &view);
  }
  ReadMemory(status, &view);
  Shorten(&view.attention);
  // `serve` listens for its leaf at ports of their own names.
  const bool leaf_part = view.program == "leaf";
  std::optional<Address> grpc, http;
  for (const char* port : {"leaf_grpc", "grpc"})
    if (!grpc.has_value() && (leaf_part || std::string(port) == "grpc"))
      grpc = ListensAt(status, port, name.address);
  for (const char* port : {"leaf_http", "http"})
    if (!http.has_value() && (leaf_part || std::string(port) == "http"))
      http = ListensAt(status, port, name.address);
  view.address = name.address.ToString();
  if (grpc.has_value() && http.has_value()) {
    view.address = grpc->ToString() + " " +
                   (grpc->host == http->host ? ":" + std::to_string(http->port) : http->ToString());
  } else if (http.has_value()) {
    view.address = http->ToString();
  }
  return view;
}

// Sorted by program; within one in the order of the survey.
std::vector<ProcessView> ViewsOf(const Survey& survey) {
  std::vector<ProcessView> views;
  const auto add = [&](ServiceRole role, const std::string& asked, const Json& status,
                       const std::string& readiness) {
    const absl::StatusOr<Address> address = Address::Parse(asked);
    views.push_back(ViewOf({role, address.value_or(Address{})}, status));
    SetReadiness(readiness, &views.back());
  };
  for (const SurveyedNode& node : survey.nodes) {
    const absl::StatusOr<Json> stats = StatsJson(node.stats);
    add(node.role, node.addresses.front(), stats.ok() ? *stats : Json::object(), node.readiness);
  }
  for (const SurveyedPage& page : survey.pages)
    add(page.kind == "relay" ? ServiceRole::kRelay : ServiceRole::kFrontend, page.address,
        page.status, page.readiness);
  for (const Unreached& what : survey.unreached) views.push_back(ViewOfUnreached(what));
  std::stable_sort(views.begin(), views.end(), [](const ProcessView& a, const ProcessView& b) {
    return a.program < b.program;
  });
  return views;
}

}  // namespace kvatlas
