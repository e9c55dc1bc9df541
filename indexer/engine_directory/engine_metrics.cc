// Two sets of metrics from one `List`: sums with Dynamo's names, and series for each rank with
// ours. Sums include instances that are gone (`GoneStats`), so that counters do not go down.

#include "indexer/engine_directory/engine_metrics.h"

#include <array>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "indexer/base/tier.h"
#include "indexer/telemetry/metric_families.h"
#include "indexer/telemetry/text_escape.h"

namespace kvatlas {
namespace {

constexpr std::array<std::string_view, kTiers> kTierNames = {"device", "host", "disk", "external"};
// Dynamo's statuses, all of which have a series, also those that cannot occur here.
constexpr std::array<std::string_view, 9> kApplyStatuses = {"ok",
                                                            "parent_block_not_found",
                                                            "block_not_found",
                                                            "invalid_block",
                                                            "capacity_exhausted",
                                                            "allocation_failed",
                                                            "ownership_degree_overflow",
                                                            "indexer_invariant_violation",
                                                            "unsupported_residency_domain"};

uint64_t Refused(const EngineWorkerStats& stats, std::initializer_list<Refusal> reasons) {
  uint64_t sum = 0;
  for (Refusal reason : reasons) sum += stats.refused[static_cast<size_t>(reason)];
  return sum;
}

// Our count for one of Dynamo's statuses; 0 for those that cannot occur here.
uint64_t Applied(const EngineWorkerStats& sum, std::string_view type, std::string_view status) {
  if (status == "ok")
    return type == "stored" ? sum.stores : type == "removed" ? sum.removes : sum.clears;
  if (type == "removed")
    return status == "block_not_found" ? Refused(sum, {Refusal::kUnknownRemoved}) : 0;
  if (type != "stored") return 0;
  if (status == "parent_block_not_found")
    return Refused(sum, {Refusal::kOrphanDropped, Refusal::kNoContent});
  if (status == "invalid_block")
    return Refused(sum, {Refusal::kBlockSize, Refusal::kNotDense, Refusal::kOpaqueTokens,
                         Refusal::kSelfReference});
  return status == "capacity_exhausted" ? Refused(sum, {Refusal::kShed}) : 0;
}

void AddDynamo(const EngineDirectory& directory, const std::vector<EngineEntry>& entries,
               const EngineWorkerStats& sum, MetricFamilies* families) {
  std::array<uint64_t, 4> listeners = {};
  for (const EngineEntry& entry : entries)
    for (const EngineListener& listener : entry.listeners)
      ++listeners[static_cast<size_t>(listener.stream.status)];
  families->Gauge("dynamo_kvindexer_models", "Number of active model+routing-group indexers", "",
                  static_cast<double>(directory.Domains().size()));
  families->Gauge("dynamo_kvindexer_workers", "Number of registered worker instances", "",
                  static_cast<double>(entries.size()));
  for (size_t status = 0; status < listeners.size(); ++status)
    families->Gauge("dynamo_kvindexer_listeners", "Number of ZMQ listeners by status",
                    MetricLabel("status", ListenerStatusName(static_cast<ListenerStatus>(status))),
                    static_cast<double>(listeners[status]));
  for (std::string_view type : {"stored", "removed", "cleared"})
    for (std::string_view status : kApplyStatuses)
      families->Count(
          "dynamo_kvrouter_kv_cache_events_applied",
          "Total number of KV cache events applied to index",
          absl::StrCat(MetricLabel("event_type", type), ",", MetricLabel("status", status)),
          static_cast<double>(Applied(sum, type, status)));
  families->Count("dynamo_kvrouter_kv_cache_event_warnings",
                  "Total number of suspicious KV cache events seen by the router indexer",
                  MetricLabel("warning_kind", "duplicate_store"), static_cast<double>(sum.copies));
}

// Series of one listener.
void AddStream(const std::string& labels, const ZmqStreamStats& stream, MetricFamilies* families) {
  const TrackerStats& tracker = stream.tracker;
  const auto count = [&](std::string_view name, std::string_view help, uint64_t value) {
    families->Count(absl::StrCat("kvatlas_engine_", std::string(name)), help, labels,
                    static_cast<double>(value));
  };
  const auto gauge = [&](std::string_view name, std::string_view help, double value) {
    families->Gauge(absl::StrCat("kvatlas_engine_", std::string(name)), help, labels, value);
  };
  if (tracker.last.has_value())
    gauge("last_number", "Number of the last message applied.", static_cast<double>(*tracker.last));
  count("messages_total", "Messages received.", tracker.messages);
  count("gaps_total", "Gaps in the numbers of messages.", tracker.gaps);
  count("messages_lost_total", "Numbers that never came, not even by replay.",
        tracker.messages_lost);
  count("duplicates_total", "Messages that had been applied before.", tracker.duplicates);
  count("restarts_total", "Engines found to have started anew.", tracker.restarts);
  const auto replays = [&](std::string_view result, uint64_t value) {
    families->Count("kvatlas_engine_replays_total", "Replays, by how they ended.",
                    absl::StrCat(labels, ",", MetricLabel("result", result)),
                    static_cast<double>(value));
  };
  replays("asked", tracker.replays_asked);
  replays("complete", tracker.replays_complete);
  replays("incomplete", tracker.replays_incomplete);
  count("replayed_total", "Messages that a replay brought.", tracker.replayed);
  count("bytes_total", "Bytes received.", stream.bytes);
  count("bad_frames_total", "Messages of another form than [topic, number, payload].",
        stream.bad_frames);
  count("undecodable_total", "Payloads that are no batch of events.", stream.undecodable);
  gauge("connected", "Whether the engine's socket is there.", stream.connected);
  gauge("silent_seconds", "Since the last message.",
        std::chrono::duration<double>(stream.silent).count());
  gauge("lag_seconds", "From the engine's clock to applied, of the last message.",
        stream.lag_ms / 1000);
  gauge("queued_bytes", "Received and waiting to be applied.",
        static_cast<double>(stream.queued_bytes));
}

// Series of one rank, which may be one that only batches named.
void AddRank(const std::string& labels, const EngineRankStats& rank, MetricFamilies* families) {
  for (size_t tier = 0; tier < kTiers; ++tier)
    families->Gauge("kvatlas_engine_blocks", "Distinct blocks held, by tier.",
                    absl::StrCat(labels, ",", MetricLabel("tier", kTierNames[tier])),
                    static_cast<double>(rank.blocks[tier]));
  const auto gauge = [&](std::string_view name, std::string_view help, double value) {
    families->Gauge(absl::StrCat("kvatlas_engine_", std::string(name)), help, labels, value);
  };
  gauge("names", "Engine hashes that stand for held blocks.", static_cast<double>(rank.aliases));
  gauge("name_bytes", "Memory of names and parked blocks.", static_cast<double>(rank.alias_bytes));
  gauge("parked_blocks", "Blocks that wait for their parent.", static_cast<double>(rank.parked));
  gauge("suspect_blocks", "Blocks that nothing confirmed since a loss.",
        static_cast<double>(rank.suspects));
  gauge("trust", "0 exact, 1 degraded, 2 stale.", static_cast<double>(rank.trust));
}

void AddRefused(const std::string& labels, const EngineWorkerStats& stats,
                MetricFamilies* families) {
  for (size_t i = 0; i < stats.refused.size(); ++i) {
    if (stats.refused[i] == 0) continue;
    const std::string reason = MetricLabel("reason", RefusalName(static_cast<Refusal>(i)));
    families->Count("kvatlas_engine_refused_total",
                    "Events or parts of events without effect, by reason.",
                    absl::StrCat(labels, ",", reason), static_cast<double>(stats.refused[i]));
  }
}

// Declares all families that `AddOurs` may add, with made-up values: a family exists before its
// first series.
void DeclareOurs(MetricFamilies* families) {
  ZmqStreamStats stream;
  stream.tracker.last = 0;
  AddStream("", stream, families);
  AddRank("", {}, families);
  EngineWorkerStats refused;
  refused.refused.fill(1);
  AddRefused("", refused, families);
}

// Series for each rank, up to `kEngineRanksShown`. An instance is shown with all of its ranks or
// not at all.
void AddOurs(const std::vector<EngineEntry>& entries, MetricFamilies* families) {
  size_t shown = 0, hidden = 0;
  for (const EngineEntry& entry : entries) {
    const std::string worker = absl::StrCat(MetricLabel("model", entry.domain.model), ",",
                                            MetricLabel("group", GroupOf(entry.domain)), ",",
                                            MetricLabel("worker", entry.instance));
    std::set<uint32_t> ranks;
    for (const EngineListener& listener : entry.listeners) ranks.insert(listener.rank);
    for (const EngineRankStats& rank : entry.worker.ranks) ranks.insert(rank.rank);
    if (shown + ranks.size() > kEngineRanksShown) {
      hidden += ranks.size();
      continue;
    }
    shown += ranks.size();
    const auto labels = [&](uint32_t rank) {
      return absl::StrCat(worker, ",", MetricLabel("rank", std::to_string(rank)));
    };
    for (const EngineListener& listener : entry.listeners)
      AddStream(labels(listener.rank), listener.stream, families);
    for (const EngineRankStats& rank : entry.worker.ranks)
      AddRank(labels(rank.rank), rank, families);
    AddRefused(worker, entry.worker, families);
  }
  families->Gauge("kvatlas_engine_ranks_not_shown", "Worker ranks without series of their own.", "",
                  static_cast<double>(hidden));
}

EngineWorkerStats SumOf(const EngineDirectory& directory, const std::vector<EngineEntry>& entries) {
  EngineWorkerStats sum = directory.GoneStats();
  for (const EngineEntry& entry : entries) AddCounts(entry.worker, &sum);
  return sum;
}

}  // namespace

void AppendEngineMetrics(const EngineDirectory& directory, std::string* text) {
  const std::vector<EngineEntry> entries = directory.List();
  MetricFamilies families;
  AddDynamo(directory, entries, SumOf(directory, entries), &families);
  families.Declare(DeclareOurs);
  AddOurs(entries, &families);
  families.AppendTo(text);
}

void AddEngineMetrics(const EngineDirectory* directory, Metrics* metrics) {
  metrics->OnText([directory](std::string* text) { AppendEngineMetrics(*directory, text); });
}

}  // namespace kvatlas
