// Metrics are made as text at each scrape, from one read of all instances: series of engines come
// and go, which counters cannot.

#include "publisher/relay/relay_metrics.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "indexer/telemetry/metric_families.h"
#include "indexer/telemetry/text_escape.h"

namespace kvatlas {
namespace {

// Counts over all instances, at this scrape.
struct Gauges {
  uint64_t instances = 0, streams = 0, connected = 0, ranks = 0, offered = 0, degraded = 0;
  uint64_t links = 0, welcomed = 0;
};

// The sums that `GrowingTotals` keeps.
enum Total { kGaps, kLost, kUndecodable, kStored, kRemoved, kRefused, kShed, kTotals };
using Totals = std::array<uint64_t, kTotals>;

// Sums that only grow, over engines that come and go. `last_` has each engine's counts at the
// scrape before. A scrape adds what each has gained since; counts that fell back were begun anew
// and are added whole. An engine that is gone is forgotten at `End`, and what it added stays.
class GrowingTotals {
 public:
  void Begin() { seen_.clear(); }
  void Add(const std::string& instance, const Totals& now) {
    const auto before = last_.find(instance);
    for (size_t i = 0; i < kTotals; ++i) {
      const uint64_t was = before == last_.end() ? 0 : before->second[i];
      sums_[i] += now[i] >= was ? now[i] - was : now[i];  // else it was registered anew
    }
    seen_[instance] = now;
  }
  void End() { last_.swap(seen_); }
  uint64_t Of(Total total) const { return sums_[total]; }

 private:
  std::map<std::string, Totals> last_, seen_;
  Totals sums_ = {};
};

// The counts of one instance since its registration.
Totals TotalsOf(const RelayInstance& instance) {
  Totals totals = {};
  totals[kStored] = instance.worker.blocks_stored;
  totals[kRemoved] = instance.worker.blocks_removed;
  for (uint64_t refused : instance.worker.refused) totals[kRefused] += refused;
  for (const RelayListener& listener : instance.listeners) {
    totals[kGaps] += listener.stream.tracker.gaps;
    totals[kLost] += listener.stream.tracker.messages_lost;
    totals[kUndecodable] += listener.stream.undecodable;
  }
  for (const RelayRankStats& rank : instance.ranks) totals[kShed] += rank.shed;
  return totals;
}

void Count(const RelayInstance& instance, Gauges* all) {
  ++all->instances;
  for (const RelayListener& listener : instance.listeners) {
    ++all->streams;
    all->connected += listener.stream.connected;
  }
  for (const RelayRankStats& rank : instance.ranks) {
    ++all->ranks;
    all->offered += rank.stand == RelayStand::kOffered;
    all->degraded += rank.trust != Trust::kExact;
    for (const RelayLinkStats& link : rank.links) {
      ++all->links;
      all->welcomed += link.welcomed;
    }
  }
}

void AppendGauges(const Gauges& all, uint64_t blocks, MetricFamilies* families) {
  const auto set = [&](const char* name, const char* help, uint64_t value) {
    families->Gauge(std::string("kvatlas_relay_") + name, help, "", static_cast<double>(value));
  };
  set("instances", "Engines registered.", all.instances);
  set("engine_streams", "Streams of theirs.", all.streams);
  set("engine_streams_connected", "Those that an engine is connected to.", all.connected);
  set("ranks", "Worker ranks.", all.ranks);
  set("ranks_offered", "Those that leaves are told of.", all.offered);
  set("ranks_degraded", "Those whose holdings are not certain.", all.degraded);
  set("leaf_streams", "Streams to leaves.", all.links);
  set("leaf_streams_welcomed", "Those that the leaf has taken.", all.welcomed);
  set("blocks", "Blocks held, rank by rank.", blocks);
}

void AppendTotals(const GrowingTotals& totals, MetricFamilies* families) {
  const auto total = [&](const char* name, const char* help, Total of) {
    families->CountRenamed(std::string("kvatlas_relay_") + name, help, "",
                           static_cast<double>(totals.Of(of)));
  };
  total("gaps_total", "Gaps in engines' streams.", kGaps);
  total("messages_lost_total", "Messages of engines that never came.", kLost);
  total("undecodable_total", "Payloads that could not be read.", kUndecodable);
  total("blocks_stored_total", "Blocks stored by engines.", kStored);
  total("blocks_removed_total", "Blocks removed by engines.", kRemoved);
  total("events_refused_total", "Events and blocks without effect.", kRefused);
  total("blocks_shed_total", "Blocks there was no room for.", kShed);
}

// Domain, worker and rank, as labels of one series.
std::string LabelsOf(const RelayInstance& instance, uint32_t rank) {
  return MetricLabel("domain", ToString(instance.domain)) + "," +
         MetricLabel("worker", instance.name) + "," + MetricLabel("rank", std::to_string(rank));
}

void AppendEngineStream(const std::string& labels, const ZmqStreamStats& stream,
                        MetricFamilies* families) {
  families->Gauge("kvatlas_relay_engine_connected", "Whether the engine's socket is there.", labels,
                  stream.connected);
  families->Gauge("kvatlas_relay_engine_silent_seconds", "Since the engine's last message.", labels,
                  std::chrono::duration<double>(stream.silent).count());
  families->Gauge("kvatlas_relay_engine_lag_seconds",
                  "From the engine's clock to applied, of the last message.", labels,
                  stream.lag_ms / 1000);
}

void AppendLeafStream(const std::string& labels, const RelayLinkStats& link,
                      MetricFamilies* families) {
  const uint64_t waiting =
      link.last_number > link.acknowledged ? link.last_number - link.acknowledged : 0;
  families->Gauge("kvatlas_relay_leaf_connected", "Whether the leaf has taken the stream.", labels,
                  link.welcomed);
  families->Gauge("kvatlas_relay_leaf_unacknowledged_batches",
                  "Batches that the leaf has not acknowledged.", labels,
                  static_cast<double>(waiting));
}

// At most `kRelayStreamsShown` series of each kind: the first in the order of instances.
void AppendStreams(const std::vector<RelayInstance>& instances, MetricFamilies* families) {
  families->Declare([](MetricFamilies* to) {
    AppendEngineStream("", {}, to);
    AppendLeafStream("", {}, to);
  });
  size_t engines = 0, leaves = 0, hidden = 0;
  for (const RelayInstance& instance : instances) {
    for (const RelayListener& listener : instance.listeners) {
      if (engines++ < kRelayStreamsShown) {
        AppendEngineStream(LabelsOf(instance, listener.registration.rank), listener.stream,
                           families);
      } else {
        ++hidden;
      }
    }
    for (const RelayRankStats& rank : instance.ranks) {
      for (const RelayLinkStats& link : rank.links) {
        if (leaves++ < kRelayStreamsShown) {
          AppendLeafStream(
              LabelsOf(instance, rank.identity.holder.rank) + "," + MetricLabel("leaf", link.leaf),
              link, families);
        } else {
          ++hidden;
        }
      }
    }
  }
  families->Gauge("kvatlas_relay_streams_not_shown", "Streams without series of their own.", "",
                  static_cast<double>(hidden));
}

}  // namespace

void AddRelayMetrics(const Relay* relay, Metrics* metrics) {
  // One scrape at a time, so `totals` needs no lock.
  metrics->OnText([relay, totals = std::make_shared<GrowingTotals>()](std::string* text) {
    const std::vector<RelayInstance> instances = relay->Instances();
    Gauges all;
    totals->Begin();
    for (const RelayInstance& instance : instances) {
      Count(instance, &all);
      totals->Add(instance.name, TotalsOf(instance));
    }
    totals->End();
    MetricFamilies families;
    AppendGauges(all, relay->blocks_held(), &families);
    AppendTotals(*totals, &families);
    AppendStreams(instances, &families);
    families.AppendTo(text);
  });
}

}  // namespace kvatlas
