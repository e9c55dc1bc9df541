// Streams between services: refused, silent, uncertain, or with digests that differed. Each is
// reported where it was noticed; a finding of a cause suppresses those of its effects (a leaf
// without Redis, an engine that is not reached).

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/kvatlas/findings.h"
#include "tools/kvatlas/holdings.h"
#include "tools/kvatlas/table.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

// "worker w0/1" of a leaf, "cell a@1" of a node.
std::string HolderOf(const SurveyedNode& node, const v1::Holder& holder) {
  return absl::StrCat(node.is_leaf() ? "worker " : "cell ", HolderText(holder), " of ",
                      node.Name());
}

// The name of a finding and its remedy.
struct Refusal {
  const char* id;
  std::string remedy;
};

// The finding and its remedy, by the words of the receiver's refusal.
Refusal ReadRefusal(const SurveyedNode& node, const std::string& reason) {
  if (absl::StrContains(reason, "hash contract")) {
    return {"seed_mismatch", absl::StrCat("start its publisher, relay or leaf with the seed of ",
                                          node.stats.contract(), " (--contract_seed)")};
  }
  if (absl::StrContains(reason, "waypoint schedule")) {
    return {"schedule_mismatch",
            absl::StrCat("start its leaf with --schedule=", node.stats.schedule())};
  }
  if (absl::StrContains(reason, "block size"))
    return {"block_size_mismatch",
            "start its engine and its publisher with the block size of the domain, or give it a "
            "model's name of its own (--block_size of a relay)"};
  if (absl::StrContains(reason, "this name"))
    return {node.is_leaf() ? "duplicate_worker" : "duplicate_leaf",
            node.is_leaf() ? "give each publisher a worker name of its own"
                           : "start one of the leaves with another --cell or --replica"};
  return {"stream_refused", "mend what the reason says; the sender tries again by itself"};
}

void CheckRefused(const SurveyedNode& node, FindingList* findings) {
  for (const v1::RefusedStream& refused : node.stats.refused()) {
    const Refusal read = ReadRefusal(node, refused.reason());
    findings->Error(read.id, HolderOf(node, refused.holder()),
                    absl::StrCat("its stream of ", DomainName(refused.domain()),
                                 " is refused: ", refused.reason()),
                    read.remedy);
  }
}

// A leaf whose Redis is away: publishers through it are not heard, whatever they do.
void CheckRedis(const SurveyedNode& node, FindingList* findings) {
  const v1::RedisStats& redis = node.stats.redis();
  if (!IsWithoutRedis(node)) return;
  if (redis.writes_refused().empty() || !redis.reason().empty())
    findings->Error("redis_unreachable", node.Name(),
                    absl::StrCat("it hears no worker through its Redis: ", redis.reason()),
                    "bring Redis back, or mend --redis; workers need no restart");
  else
    findings->Error("redis_unreachable", node.Name(),
                    absl::StrCat("its Redis takes no writes, so that publishers are not heard: ",
                                 redis.writes_refused()),
                    "give Redis memory (maxmemory) and its user the rights of "
                    "indexer/transport/redis/README.md; workers need no restart");
}

// At most one finding per holder: silent beyond its lease (its blocks are in no answer), not
// connected, or uncertain.
void CheckHolder(const SurveyedNode& node, const v1::DomainStats& domain,
                 const v1::HolderStats& holder, FindingList* findings) {
  const std::string where = HolderOf(node, holder.holder());
  const std::string of = DomainName(domain.domain());
  // An engine that is not reached is a finding of `CheckEngines`.
  const std::string& state = holder.state();
  const bool not_reached =
      holder.has_engine() && (state == "unreachable" || state == "refused" || state == "failed");
  // Already explained by `CheckRedis`.
  if (IsWithoutRedis(node) && !holder.has_engine() && !holder.connected()) return;
  if (holder.masked() && !not_reached) {
    return findings->Error("stream_silent", where,
                           absl::StrCat("nothing was heard of it for ", ShortMs(holder.age_ms()),
                                        ", so that its blocks of ", of, " are in no answer"),
                           node.is_leaf() ? "look whether its engine and its publisher run"
                                          : "look whether its leaf runs (--lease_ttl says how "
                                            "long it may be silent)");
  }
  if (!holder.has_engine() && !holder.connected()) {
    return findings->Warning("stream_silent", where,
                             absl::StrCat("its stream of ", of, " is not connected, heard ",
                                          ShortMs(holder.age_ms()), " ago"),
                             "look whether it runs and reaches this address");
  }
  // An engine that is not heard is a finding of `CheckEngines`.
  if (holder.trust() == v1::TRUST_EXACT ||
      (holder.has_engine() && holder.state() != "connected" && !holder.state().empty()))
    return;
  findings->Warning("stream_degraded", where,
                    absl::StrCat("its blocks of ", of, " are ", TrustText(holder.trust()),
                                 holder.reason().empty() ? "" : ": " + holder.reason()),
                    "after a gap it mends itself within --repair_timeout; if not, look at its "
                    "events (kvatlas streams) and at --max_blocks, --max_bytes");
}

// Each difference was repaired by a snapshot; that there was one points to a lost event or a bug.
void CheckDigests(const SurveyedNode& node, const v1::DomainStats& domain, FindingList* findings) {
  if (domain.digests_different() == 0) return;
  findings->Warning(
      "digests_differ", node.Name(),
      absl::StrCat(domain.digests_different(), " of ",
                   domain.digests_different() + domain.digests_equal(), " digests of ",
                   DomainName(domain.domain()),
                   " differed since its start; each was repaired by a snapshot"),
      "compare both ends with kvatlas diff; if it goes on, send a bundle (kvatlas bundle)");
}

// Streams from a leaf or a node to its parents.
void CheckUpward(const SurveyedNode& node, FindingList* findings) {
  for (const v1::ParentStats& parent : node.stats.parents()) {
    const std::string to = absl::StrCat("its parent ", parent.address());
    if (!parent.refused().empty()) {
      // The node tells of the same refusal with its remedy, if it was reached.
      findings->Error("parent_down", node.Name(),
                      absl::StrCat(to, " refuses its reports: ", parent.refused()),
                      "mend what the reason says");
    } else if (parent.state() == "unreachable" || parent.state() == "refused") {
      findings->Error("parent_down", node.Name(),
                      absl::StrCat(to, " is ", parent.state(), ": ", parent.reason()),
                      "start the node, or mend --parents");
    }
    // Waypoints beyond the node's budget: its cell looks smaller than it is.
    if (parent.waypoints_waiting() > 0)
      findings->Warning("memory", node.Name(),
                        absl::StrCat(Grouped(parent.waypoints_waiting()), " of ",
                                     Grouped(parent.waypoints_covered()),
                                     " waypoints are kept back by its budget for coverage"),
                        "raise --max_waypoints, --max_waypoint_bytes or --waypoint_updates_per_s");
  }
}

// ---- Relays and frontends ----

// From a relay's status: its engines on the one side, its leaves on the other.
void CheckRelay(const SurveyedPage& page, FindingList* findings) {
  for (const Json& worker : ListIn(page.status, "workers")) {
    const std::string where =
        absl::StrCat("worker ", TextIn(worker, "worker"), " of ", page.Name());
    for (const Json& stream : ListIn(worker, "streams")) {
      const std::string state = TextIn(stream, "state");
      if (state == "unreachable" || state == "refused")
        findings->Error("engine_stream", where,
                        absl::StrCat("its events are ", state, ": ", TextIn(stream, "reason")),
                        "start the engine with KV events on, or mend --workers of the relay");
      if (TextIn(stream, "replay_endpoint").empty())
        findings->Warning("engine_no_replay", where, "it has no replay endpoint",
                          "set replay_endpoint in the engine's --kv-events-config, and "
                          "\";replay=tcp://HOST:PORT\" in --workers");
      else if (TextIn(stream, "replay_state") == "unreachable")
        findings->Warning("engine_no_replay", where,
                          absl::StrCat("its replay endpoint: ", TextIn(stream, "replay_reason")),
                          "mend replay_endpoint of the engine, or \";replay=\" in --workers");
    }
    for (const Json& rank : ListIn(worker, "ranks")) {
      for (const Json& leaf : ListIn(rank, "leaves")) {
        const std::string state = TextIn(leaf, "state");
        // Connecting is normal right after a start; the next look tells.
        if (state == "connected" || state == "connecting" || state.empty()) continue;
        std::string why = TextIn(leaf, "reason");
        if (why.empty()) why = TextIn(leaf, "error");
        findings->Error("relay_blocked", where,
                        absl::StrCat("leaf ", TextIn(leaf, "leaf"), " is ", state, ": ", why),
                        "start the leaf, or mend --leaves of the relay");
      }
    }
  }
}

// Connections of a frontend to nodes and leaves, as it sees them itself.
void CheckPeers(const SurveyedPage& page, FindingList* findings) {
  if (!page.status.contains("peers")) return;
  for (const char* kind : {"hierarchies", "leaves"}) {
    for (const Json& peer : ListIn(page.status["peers"], kind)) {
      if (TextIn(peer, "state") != "unreachable") continue;
      findings->Error(
          "unreachable", page.Name(),
          absl::StrCat("it does not reach the ", kind[0] == 'h' ? "hierarchy node " : "leaf ",
                       TextIn(peer, "address"), ": ", TextIn(peer, "reason")),
          "start it, or mend --hierarchy or --leaves of the frontend, or --advertise "
          "of the leaf");
    }
  }
}

}  // namespace

void CheckStreams(const Survey& survey, FindingList* findings) {
  for (const SurveyedNode& node : survey.nodes) {
    CheckRefused(node, findings);
    CheckRedis(node, findings);
    CheckUpward(node, findings);
    for (const v1::DomainStats& domain : node.stats.domains()) {
      CheckDigests(node, domain, findings);
      for (const v1::HolderStats& holder : domain.holder_stats())
        CheckHolder(node, domain, holder, findings);
    }
  }
  for (const SurveyedPage& page : survey.pages)
    page.kind == "relay" ? CheckRelay(page, findings) : CheckPeers(page, findings);
}

}  // namespace kvatlas
