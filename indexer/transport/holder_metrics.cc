// Totals are gauges and counters of `Metrics`; everything with labels is text made at each scrape,
// so that series of domains and holders that are gone end by themselves.

#include "indexer/transport/holder_metrics.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/durations.h"
#include "indexer/base/overlap.h"
#include "indexer/process/memory_watch.h"
#include "indexer/telemetry/metric_families.h"
#include "indexer/telemetry/text_escape.h"
#include "indexer/transport/holder_states.h"

namespace kvatlas {
namespace {

void SetTotals(const HolderRegistry& registry, const std::string& prefix, Metrics* metrics) {
  const RegistryStats all = registry.Stats();
  metrics->AddGauge(prefix + "_streams_open", "Connections of holders.")
      .Set(static_cast<double>(all.streams_open));
  if (registry.memory() != nullptr) SetMemoryGauges(*registry.memory(), prefix, metrics);
  const auto total = [&](const char* name, const char* help, uint64_t value) {
    metrics->RaiseRenamed(prefix + name, help, static_cast<double>(value));
  };
  total("_streams_refused_total", "Hellos refused.", all.streams_refused);
  total("_holders_expired_total", "Leases that ran out.", all.holders_expired);
  total("_holders_swept_total", "Holders forgotten after that.", all.holders_swept);
  total("_domains_forgotten_total", "Models without holders forgotten.", all.domains_forgotten);
}

// A family with one series for each domain.
struct Family {
  const char* name;
  const char* help;
  uint64_t (*of)(const DomainStats&);
};

constexpr Family kGauges[] = {
    {"_holders", "Holders known.",
     [](const DomainStats& s) -> uint64_t { return s.index.holders; }},
    {"_blocks", "Distinct blocks held.",
     [](const DomainStats& s) -> uint64_t { return s.index.blocks; }},
    {"_holdings", "Pairs of holder and block.",
     [](const DomainStats& s) -> uint64_t { return s.index.holdings; }},
    {"_index_bytes", "Memory of the index.",
     [](const DomainStats& s) -> uint64_t { return s.index.bytes; }},
    {"_pending_blocks", "Blocks of routed prompts that no event shows yet.",
     [](const DomainStats& s) -> uint64_t { return s.pending.blocks; }},
    {"_pending_requests", "Prompts that frontends said they sent, and that no event shows yet.",
     [](const DomainStats& s) -> uint64_t { return s.pending.requests; }},
    {"_pending_bytes", "Memory of what is on its way.",
     [](const DomainStats& s) -> uint64_t { return s.pending.bytes; }},
};

constexpr Family kCounters[] = {
    {"_blocks_stored_total", "Block stores applied.",
     [](const DomainStats& s) { return s.blocks_stored; }},
    {"_blocks_removed_total", "Block removals applied.",
     [](const DomainStats& s) { return s.blocks_removed; }},
    {"_gaps_total", "Gaps noticed in numbers of batches.",
     [](const DomainStats& s) { return s.gaps; }},
    {"_snapshots_total", "Snapshots applied.", [](const DomainStats& s) { return s.snapshots; }},
    {"_digests_different_total", "Digests that differed.",
     [](const DomainStats& s) { return s.digests_different; }},
};

void AppendDomains(const std::vector<DomainStats>& domains, const std::string& prefix,
                   MetricFamilies* families) {
  for (const Family& family : kGauges) {
    families->DeclareGauge(prefix + family.name, family.help);
    for (const DomainStats& domain : domains)
      families->Gauge(prefix + family.name, family.help,
                      MetricLabel("domain", ToString(domain.domain)),
                      static_cast<double>(family.of(domain)));
  }
  for (const Family& family : kCounters) {
    families->Declare(
        [&](MetricFamilies* to) { to->CountRenamed(prefix + family.name, family.help, "", 0); });
    for (const DomainStats& domain : domains)
      families->CountRenamed(prefix + family.name, family.help,
                             MetricLabel("domain", ToString(domain.domain)),
                             static_cast<double>(family.of(domain)));
  }
}

// For alerts: of every stream, however many there are.
void AppendOldest(const std::vector<DomainStats>& domains, const std::string& prefix,
                  MetricFamilies* families) {
  const std::string name = prefix + "_stream_age_max_seconds";
  constexpr char kHelp[] = "Since the live stream that is silent for longest was heard.";
  families->DeclareGauge(name, kHelp);
  for (const DomainStats& domain : domains) {
    Duration oldest{0};
    for (const HolderStats& holder : domain.holders)
      if (!holder.masked) oldest = std::max(oldest, holder.age);
    families->Gauge(name, kHelp, MetricLabel("domain", ToString(domain.domain)), Seconds(oldest));
  }
}

// A stream with series of its own.
struct Shown {
  std::string labels;
  const HolderStats* stream;

  // Worst first.
  bool operator<(const Shown& other) const {
    const auto key = [](const Shown& s) {
      return std::tuple(s.stream->trust == Trust::kExact && !s.stream->masked, -s.stream->age);
    };
    return key(*this) < key(other);
  }
};

// Outcomes of the prompts that frontends said they sent to a holder. A holder that confirms few of
// them announces late, computes other tokens, or has another salt.
void AppendPending(const std::vector<Shown>& streams, const std::string& prefix,
                   MetricFamilies* families) {
  const std::string told = prefix + "_pending_told_total", ended = prefix + "_pending_ended_total";
  constexpr char kTold[] = "Prompts that frontends said they sent to the holder.";
  constexpr char kEnded[] =
      "Of these, by what became of them: confirmed by its events, failed, contradicted (the "
      "request ended well and "
      "its blocks were not announced), timed_out, dropped for want of room.";
  families->Declare([&](MetricFamilies* to) {
    to->Count(told, kTold, "", 0);
    to->Count(ended, kEnded, "", 0);
  });
  for (const Shown& s : streams) {
    const PendingCounts& counts = s.stream->pending.counts;
    if (counts.told == 0) continue;
    families->Count(told, kTold, s.labels, static_cast<double>(counts.told));
    const std::pair<const char*, uint64_t> outcomes[] = {{"confirmed", counts.confirmed},
                                                         {"failed", counts.failed},
                                                         {"contradicted", counts.contradicted},
                                                         {"timed_out", counts.timed_out},
                                                         {"dropped", counts.dropped}};
    for (const auto& [outcome, count] : outcomes)
      families->Count(ended, kEnded, s.labels + "," + MetricLabel("outcome", outcome),
                      static_cast<double>(count));
  }
}

void AppendStreams(const std::vector<DomainStats>& domains, const std::string& prefix,
                   MetricFamilies* families) {
  std::vector<Shown> streams;
  for (const DomainStats& domain : domains) {
    const std::string label = MetricLabel("domain", ToString(domain.domain)) + ",";
    for (const HolderStats& holder : domain.holders)
      streams.push_back({label + MetricLabel("holder", ToString(holder.holder->id)), &holder});
  }
  const size_t shown = std::min(streams.size(), kStreamSeriesMax);
  if (shown < streams.size())
    std::partial_sort(streams.begin(), streams.begin() + kStreamSeriesMax, streams.end());
  families->Gauge(prefix + "_streams_not_shown", "Streams without series of their own.", "",
                  static_cast<double>(streams.size() - shown));
  streams.resize(shown);
  const auto family = [&](const char* name, const char* help, auto value) {
    families->DeclareGauge(prefix + name, help);
    for (const Shown& s : streams) families->Gauge(prefix + name, help, s.labels, value(*s.stream));
  };
  family("_stream_age_seconds", "Since the stream was last heard.",
         [](const HolderStats& s) { return Seconds(s.age); });
  family("_stream_behind_batches", "Batches that its sender has sent and that are not applied.",
         [](const HolderStats& s) { return static_cast<double>(s.behind_batches); });
  family("_stream_trust", "0 exact, 1 degraded, 2 stale.",
         [](const HolderStats& s) { return static_cast<double>(s.trust); });
  family("_stream_masked", "1: its lease ran out.",
         [](const HolderStats& s) { return s.masked ? 1.0 : 0.0; });
  AppendPending(streams, prefix, families);
}

}  // namespace

void AddHolderMetrics(const HolderRegistry* registry, const std::string& prefix, Metrics* metrics) {
  metrics->OnScrape([=] { SetTotals(*registry, prefix, metrics); });
  metrics->OnText([=](std::string* text) {
    std::vector<DomainStats> domains;
    for (const Domain& domain : registry->Domains()) {
      absl::StatusOr<DomainStats> stats = registry->StatsOf(domain);
      if (stats.ok()) domains.push_back(*std::move(stats));
    }
    MetricFamilies families;
    AppendDomains(domains, prefix, &families);
    AppendOldest(domains, prefix, &families);
    AppendStreams(domains, prefix, &families);
    families.AppendTo(text);
    AppendHolderStates(*registry, prefix, text);
  });
}

}  // namespace kvatlas
