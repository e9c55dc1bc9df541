// The list of findings and how it is put together. Each check is a function of the survey alone;
// none depends on another's result, so a check can be read and tested by itself.

#include "tools/kvatlas/findings.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace kvatlas {

std::string_view SeverityName(Severity severity) {
  return severity == Severity::kError ? "error" : "warning";
}

// Every id that a check uses has to be here: --ignore is checked against this list.
const std::vector<FleetFindingName>& FleetFindingNames() {
  static const std::vector<FleetFindingName>& names = *new std::vector<FleetFindingName>{
      {"unreachable", "an address that was given, advertised or configured does not answer"},
      {"tls_mismatch", "one side speaks TLS, the other does not"},
      {"certificate_invalid", "a certificate ended, is for another name, or no CA vouches for it"},
      {"certificate_ends", "a certificate ends soon"},
      {"schedule_mismatch", "waypoint schedules differ: coverage is refused, or never matches"},
      {"seed_mismatch", "hash contracts differ: nothing ever matches"},
      {"block_size_mismatch", "blocks of another size than the domain's"},
      {"version_skew", "services of several versions"},
      {"clock_skew", "wall clocks that differ"},
      {"duplicate_leaf", "two leaves with the name of one"},
      {"duplicate_worker", "two workers with the name of one"},
      {"wrong_cell", "the frontend knows a leaf by another cell's name"},
      {"no_parents", "a leaf that reports to no hierarchy node, although there is one"},
      {"parent_missing", "a leaf that reports to some replicas of the hierarchy and not to others"},
      {"parent_down", "a parent that a leaf or node cannot reach, or that refuses it"},
      {"no_upstreams", "a frontend without a hierarchy and without a leaf"},
      {"no_workers", "a leaf without workers"},
      {"no_cells", "a hierarchy node without cells"},
      {"fallbacks", "routes that went without the hierarchy or without any leaf's answer"},
      {"broken_promises", "a cell whose leaf has less than the hierarchy says"},
      {"prediction", "engines serve something else than predicted (kvatlas diagnose)"},
      {"stream_refused", "a stream that was not let in"},
      {"stream_silent", "a worker or cell whose lease ran out"},
      {"stream_degraded", "holdings that are not certain"},
      {"digests_differ", "digests of both ends that differed"},
      {"redis_unreachable", "the Redis that a leaf hears its workers through is away, or full"},
      {"relay_blocked", "a relay that cannot pass on what it hears"},
      {"engine_stream", "an engine's events do not come"},
      {"messages_lost", "messages of an engine that never came, not even by replay"},
      {"engine_no_replay", "lost events of an engine cannot be asked for again"},
      {"engine_unreachable", "an engine does not answer over HTTP"},
      {"engine_asks_for_key", "an engine with an API key, which was not asked how it was started"},
      {"engine_no_cache", "an engine without prefix caching"},
      {"engine_no_events", "an engine that publishes no KV events"},
      {"engine_model", "an engine that serves another model"},
      {"memory", "little memory is left of --memory_budget"},
      {"checkpoint", "checkpoints cannot be written, or soon not"},
      {"address", "an address told to others under which they cannot reach it"},
      {"insecure", "listens beyond loopback without TLS and policy"},
  };
  return names;
}

// Three ways to be without it: not connected, connected with an error, or writes are refused.
bool IsWithoutRedis(const SurveyedNode& node) {
  const v1::RedisStats& redis = node.stats.redis();
  return node.stats.has_redis() &&
         (!redis.connected() || !redis.reason().empty() || !redis.writes_refused().empty());
}

void FindingList::Error(std::string id, std::string where, std::string what, std::string remedy) {
  Add(Severity::kError, std::move(id), std::move(where), std::move(what), std::move(remedy));
}

void FindingList::Warning(std::string id, std::string where, std::string what, std::string remedy) {
  Add(Severity::kWarning, std::move(id), std::move(where), std::move(what), std::move(remedy));
}

// Order of adding does not matter, see `FindingsOf`.
void FindingList::Add(Severity severity, std::string id, std::string where, std::string what,
                      std::string remedy) {
  findings_.push_back(
      {severity, std::move(id), std::move(where), std::move(what), std::move(remedy)});
}

// Runs all checks, sorts by severity (errors first), place, id and text, and drops exact repeats:
// two services may say the same of a third.
std::vector<FleetFinding> FindingsOf(const Survey& survey, const CheckOptions& options) {
  FindingList list;
  CheckServices(survey, options, &list);
  CheckAgreement(survey, options, &list);
  CheckStreams(survey, &list);
  CheckEngines(survey, &list);
  std::vector<FleetFinding> findings = list.Take();
  // The remedy is no part of the key: it follows from the rest.
  const auto key = [](const FleetFinding& f) {
    return std::tie(f.severity, f.where, f.id, f.what);
  };
  std::sort(findings.begin(), findings.end(),
            [&](const auto& a, const auto& b) { return key(a) < key(b); });
  findings.erase(std::unique(findings.begin(), findings.end(),
                             [&](const auto& a, const auto& b) { return key(a) == key(b); }),
                 findings.end());
  return findings;
}

}  // namespace kvatlas
