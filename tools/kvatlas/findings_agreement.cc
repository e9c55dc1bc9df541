// The facts that services have to agree on: hash seeds, waypoint schedules, versions, clocks,
// names, and reports to parents. Where they differ the majority is taken to be right, and the
// remedy names the service that is odd.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/kvatlas/findings.h"
#include "tools/kvatlas/table.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

// A clock that is off by more is an error, not only a warning.
constexpr int64_t kMinuteMs = 60'000;

// A service and one thing that it says.
struct Said {
  std::string where;
  std::string what;
};

// The text that most services say; of two that are said equally often the first by order. Empty:
// none says anything.
std::string MostSaid(const std::vector<Said>& said) {
  std::map<std::string, int> times;
  for (const Said& of : said) ++times[of.what];
  std::string most;
  for (const auto& [what, count] : times)
    if (most.empty() || count > times[most]) most = what;
  return most;
}

// The seed of a contract's id, "1337" of "xxh3-chain-1:1337": the value of --contract_seed.
std::string SeedOf(const std::string& contract) {
  const size_t colon = contract.rfind(':');
  return colon == std::string::npos ? contract : contract.substr(colon + 1);
}

// The hash contract must be the same in the whole fleet: with another seed no hash ever matches.
void CheckSeeds(const Survey& survey, FindingList* findings) {
  std::vector<Said> said;
  for (const SurveyedNode& node : survey.nodes)
    if (!node.stats.contract().empty()) said.push_back({node.Name(), node.stats.contract()});
  for (const SurveyedPage& page : survey.pages)
    if (const std::string contract = TextIn(page.status, "contract"); !contract.empty())
      said.push_back({page.Name(), contract});
  const std::string most = MostSaid(said);
  for (const Said& of : said) {
    if (of.what == most) continue;
    findings->Error(
        "seed_mismatch", of.where,
        absl::StrCat("it hashes by ", of.what, ", the others by ", most, ": nothing ever matches"),
        absl::StrCat("start it with --contract_seed=", SeedOf(most)));
  }
}

// By its flag or by its streams: streams to parents begin with the first block only.
bool ReportsTo(const SurveyedNode& leaf, const SurveyedNode& parent) {
  return std::any_of(
      parent.addresses.begin(), parent.addresses.end(), [&](const std::string& address) {
        return absl::StrContains(leaf.Flag("parents"), address) ||
               std::any_of(leaf.stats.parents().begin(), leaf.stats.parents().end(),
                           [&](const v1::ParentStats& of) { return of.address() == address; });
      });
}

// Whether some leaf reports to it, rather than nodes alone.
bool IsToldByLeaves(const Survey& survey, const SurveyedNode& node) {
  return std::any_of(survey.nodes.begin(), survey.nodes.end(), [&](const SurveyedNode& leaf) {
    return leaf.is_leaf() && ReportsTo(leaf, node);
  });
}

// Leaves, the nodes that they report to, and frontends must have one schedule: waypoints at other
// positions never match. Nodes above nodes are left out, as they may have a part of the schedule. A
// frontend with the right schedule that was refused by nodes lacks --hierarchy_schedule.
void CheckSchedules(const Survey& survey, FindingList* findings) {
  std::vector<Said> said;
  for (const SurveyedNode& node : survey.nodes)
    if (!node.stats.schedule().empty() && (node.is_leaf() || IsToldByLeaves(survey, node)))
      said.push_back({node.Name(), node.stats.schedule()});
  for (const SurveyedPage& page : survey.pages)
    if (page.kind == "frontend") said.push_back({page.Name(), TextIn(page.status, "schedule")});
  const std::string most = MostSaid(said);
  for (const SurveyedNode& leaf : survey.nodes) {
    if (!leaf.is_leaf()) continue;
    for (const SurveyedNode& parent : survey.nodes) {
      if (parent.is_leaf() || parent.stats.schedule() == leaf.stats.schedule() ||
          !ReportsTo(leaf, parent))
        continue;
      // The remedy goes to the side that differs from most services.
      const bool leaf_is_odd = leaf.stats.schedule() != most;
      findings->Error(
          "schedule_mismatch", leaf_is_odd ? leaf.Name() : parent.Name(),
          absl::StrCat(leaf.Name(), " reports waypoints \"", leaf.stats.schedule(), "\", and ",
                       parent.Name(), " takes \"", parent.stats.schedule(), "\""),
          absl::StrCat("start ", leaf_is_odd ? leaf.Name() : parent.Name(),
                       " with --schedule=", most));
    }
  }
  for (const SurveyedPage& page : survey.pages) {
    if (page.kind != "frontend") continue;
    const std::string schedule = TextIn(page.status, "schedule");
    const auto refused = page.status.find("refused_by_nodes");
    if (schedule != most) {
      findings->Error(
          "schedule_mismatch", page.Name(),
          absl::StrCat("it asks by waypoints \"", schedule, "\", and leaves report \"", most, "\""),
          absl::StrCat("start it with --schedule=", most));
    } else if (refused != page.status.end() && refused->is_number_unsigned() && *refused != 0u) {
      findings->Error("schedule_mismatch", page.Name(),
                      "hierarchy nodes refused its questions for their schedule",
                      "start it with the --schedule of the leaves, and with --hierarchy_schedule "
                      "where the top level is split");
    }
  }
}

// One warning for the fleet: mixed versions are normal during an upgrade only.
void CheckVersions(const Survey& survey, FindingList* findings) {
  std::map<std::string, std::vector<std::string>> by_version;
  for (const SurveyedNode& node : survey.nodes)
    if (node.stats.has_process()) by_version[node.stats.process().version()].push_back(node.Name());
  for (const SurveyedPage& page : survey.pages)
    if (page.status.contains("process"))
      by_version[TextIn(page.status["process"], "version")].push_back(page.Name());
  if (by_version.size() < 2) return;
  std::vector<std::string> parts;
  for (const auto& [version, services] : by_version)
    parts.push_back(absl::StrCat(version, " at ",
                                 services.size() == 1 ? services.front()
                                                      : absl::StrCat(services.size(), " services, ",
                                                                     services.front(), " is one")));
  findings->Warning("version_skew", "fleet", absl::StrJoin(parts, "; "),
                    "finish the upgrade, in the order of docs/upgrade.md");
}

// One service's clock against this host's.
struct Skew {
  std::string where;
  int64_t ms = 0;         // ahead of the asker
  int64_t uncertain = 0;  // half of what the question took
};

// REQUIRES: `values` is not empty.
int64_t Median(std::vector<int64_t> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// A service's clock is compared with the middle of the time in which it was asked, which leaves an
// uncertainty of half that time. With more than two services the median is the reference, and this
// host's clock is one of the suspects; with fewer this host is the reference. Beyond a minute it is
// an error: epochs and leases go wrong then.
void CheckClocks(const Survey& survey, int64_t allowed_ms, FindingList* findings) {
  std::vector<Skew> skews;
  // 0: a service of an earlier version, which does not say its time.
  const auto add = [&](const std::string& where, int64_t now, const Asked& asked) {
    if (now == 0) return;
    const int64_t middle = (asked.before_unix_ms + asked.after_unix_ms) / 2;
    skews.push_back({where, now - middle, (asked.after_unix_ms - asked.before_unix_ms) / 2});
  };
  for (const SurveyedNode& node : survey.nodes)
    add(node.Name(), static_cast<int64_t>(node.stats.process().now_unix_ms()), node.asked);
  for (const SurveyedPage& page : survey.pages) {
    if (!page.status.contains("process")) continue;
    const Json& process = page.status["process"];
    const auto now = process.find("now_unix_ms");
    if (now != process.end() && now->is_number()) add(page.Name(), now->get<int64_t>(), page.asked);
  }
  if (skews.empty()) return;
  std::vector<int64_t> all;
  for (const Skew& skew : skews) all.push_back(skew.ms);
  // A majority of clocks agrees about the time better than one host does.
  const int64_t usual = Median(all);
  if (skews.size() > 2 && std::abs(usual) > allowed_ms + skews.front().uncertain)
    findings->Warning("clock_skew", "this host",
                      absl::StrCat("its clock is ", ShortMs(uint64_t(std::abs(usual))),
                                   usual > 0 ? " behind" : " ahead of", " the services'"),
                      "let NTP or chrony set it");
  const int64_t reference = skews.size() > 2 ? usual : 0;
  for (const Skew& skew : skews) {
    const int64_t off = skew.ms - reference;
    if (std::abs(off) <= allowed_ms + skew.uncertain) continue;
    const std::string what = absl::StrCat("its clock is ", ShortMs(uint64_t(std::abs(off))),
                                          off > 0 ? " ahead of" : " behind",
                                          skews.size() > 2 ? " most" : " this host's");
    const char* const remedy =
        "let NTP or chrony set it: epochs, leases in Redis and certificates go by it";
    if (std::abs(off) > kMinuteMs) {
      findings->Error("clock_skew", skew.where, what, remedy);
    } else {
      findings->Warning("clock_skew", skew.where, what, remedy);
    }
  }
}

// ---- Names ----

// Two leaves of one cell and replica end each other's streams at the node, since each is taken for
// the other's restart.
void CheckNames(const Survey& survey, FindingList* findings) {
  std::map<std::pair<std::string, std::string>, const SurveyedNode*> by_name;
  for (const SurveyedNode& node : survey.nodes) {
    if (!node.is_leaf()) continue;
    // The first leaf of a name is taken as the right one.
    const auto [at, is_new] = by_name.try_emplace({node.stats.cell(), node.stats.replica()}, &node);
    if (is_new) continue;
    findings->Error(
        "duplicate_leaf", node.Name(),
        absl::StrCat("it has the name of ", at->second->Name(), ": each ends the other's reports"),
        "start one of them with another --cell, or, for a replica of the cell, with "
        "another --replica");
  }
  for (const SurveyedPage& page : survey.pages) {
    if (page.kind != "frontend") continue;
    for (const Json& entry : ListIn(page.status, "leaves")) {
      const std::string text = entry.is_string() ? entry.get<std::string>() : "";
      const size_t equals = text.find('=');
      if (equals == std::string::npos) continue;
      const SurveyedNode* const leaf = survey.NodeAt(text.substr(equals + 1));
      if (leaf == nullptr || !leaf->is_leaf() || leaf->stats.cell() == text.substr(0, equals))
        continue;
      findings->Error("wrong_cell", page.Name(),
                      absl::StrCat("its --leaves has ", text, ", and that is ", leaf->Name()),
                      absl::StrCat("start it with --leaves=", leaf->stats.cell(), "=",
                                   text.substr(equals + 1)));
    }
  }
}

// ---- Reports to parents ----

// Leaves without a parent although a node exists, and leaves that report to some replicas of the
// top level only: what a frontend learns then depends on the replica that it asks.
void CheckParents(const Survey& survey, FindingList* findings) {
  std::string some_node;
  for (const SurveyedNode& node : survey.nodes)
    if (!node.is_leaf() && some_node.empty()) some_node = node.addresses.front();
  for (const SurveyedNode& leaf : survey.nodes) {
    if (!leaf.is_leaf() || some_node.empty()) continue;
    if (leaf.stats.parents().empty() && leaf.Flag("parents").empty())
      findings->Error("no_parents", leaf.Name(),
                      "it reports to no hierarchy node, so that its cell is in no answer of the "
                      "hierarchy",
                      absl::StrCat("start it with --parents=", some_node));
  }
  // Replicas of the top, as a frontend knows them; shards, which divide what is known, are not
  // meant.
  for (const SurveyedPage& page : survey.pages) {
    std::vector<const SurveyedNode*> replicas;
    for (const Json& address : ListIn(page.status, "hierarchies")) {
      const SurveyedNode* const node =
          address.is_string() ? survey.NodeAt(address.get<std::string>()) : nullptr;
      if (node != nullptr) replicas.push_back(node);
    }
    for (const SurveyedNode& leaf : survey.nodes) {
      if (!leaf.is_leaf()) continue;
      const bool to_some = std::any_of(replicas.begin(), replicas.end(),
                                       [&](const auto* node) { return ReportsTo(leaf, *node); });
      for (const SurveyedNode* const replica : replicas) {
        if (!to_some || ReportsTo(leaf, *replica)) continue;
        findings->Error("parent_missing", leaf.Name(),
                        absl::StrCat("it does not report to ", replica->Name(), ", which ",
                                     page.Name(), " asks too"),
                        absl::StrCat("add ", replica->addresses.front(), " to its --parents"));
      }
    }
  }
}

}  // namespace

void CheckAgreement(const Survey& survey, const CheckOptions& options, FindingList* findings) {
  CheckSeeds(survey, findings);
  CheckSchedules(survey, findings);
  CheckVersions(survey, findings);
  CheckClocks(survey, options.clock_ms, findings);
  CheckNames(survey, findings);
  CheckParents(survey, findings);
}

}  // namespace kvatlas
