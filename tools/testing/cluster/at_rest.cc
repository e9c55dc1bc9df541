#include "tools/testing/cluster/at_rest.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/mutex.h"
#include "tools/testing/mock_engine/hybrid.h"

namespace kvatlas {
namespace {

struct Contents {
  absl::flat_hash_set<SequenceHash> main, side;
};

constexpr uint64_t kPromptsMin = 100;
constexpr size_t kExamplesMax = 5;
// Between two looks at the leaves' streams upward, which no observer is told of.
constexpr Duration kLookEvery = std::chrono::milliseconds(25);

void Pause(Duration duration) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(&mutex);
  never.WaitFor(&mutex, duration);
}

absl::Status UpwardAtRest(const Cluster& cluster, ClusterClient& client) {
  for (uint32_t cell = 0; cell < cluster.options().cells; ++cell) {
    absl::StatusOr<v1::StatsResponse> stats = client.LeafStats(cell);
    if (!stats.ok()) return stats.status();
    for (const v1::ParentStats& parent : stats->parents()) {
      if (!parent.connected() || !parent.at_rest()) {
        return absl::DeadlineExceededError(cluster.LeafName(cell) + "'s stream upward is " +
                                           (parent.connected() ? "not at rest" : "not connected"));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Contents>> FetchContents(const Cluster& cluster, ClusterClient& client) {
  std::vector<Contents> contents(cluster.workers());
  for (uint32_t worker = 0; worker < cluster.workers(); ++worker) {
    absl::StatusOr<engine::v1::ContentsResponse> fetched = client.Contents(worker);
    if (!fetched.ok()) return fetched.status();
    contents[worker].main.reserve(fetched->blocks_size());
    for (uint64_t hash : fetched->blocks()) contents[worker].main.insert(SequenceHash{hash});
    for (uint64_t hash : fetched->side_blocks()) contents[worker].side.insert(SequenceHash{hash});
  }
  return contents;
}

// Whether the side class accepts the first `length` blocks of a prompt, as `cache_class.h` defines
// it.
bool SideAccepts(const HybridOptions& hybrid, uint32_t block_size, const Contents& contents,
                 const std::vector<SequenceHash>& prompt, uint32_t length) {
  uint32_t needed = 0;  // blocks before `length`
  if (hybrid.kind == CacheKind::kWindow) needed = WindowBlocks(hybrid, block_size);
  if (hybrid.kind == CacheKind::kState) needed = 1;
  for (uint32_t i = length - std::min(length, needed); i < length; ++i) {
    if (!contents.side.contains(prompt[i])) return false;
  }
  return true;
}

// What the engine could reuse of the prompt if more tokens followed.
uint32_t TrueReuse(const HybridOptions& hybrid, uint32_t block_size, const Contents& contents,
                   const std::vector<SequenceHash>& prompt) {
  uint32_t length = 0;
  while (length < prompt.size() && contents.main.contains(prompt[length])) ++length;
  while (!SideAccepts(hybrid, block_size, contents, prompt, length)) --length;
  return length;
}

struct Promise {
  uint32_t blocks = 0;
  bool exact = true;
};

void Compare(const std::string& worker, Promise promised, uint32_t truth, size_t prompt,
             AtRest* at_rest) {
  ++at_rest->checked;
  at_rest->over += promised.blocks > truth;
  at_rest->under += promised.blocks < truth;
  at_rest->over_blocks += promised.blocks - std::min(promised.blocks, truth);
  at_rest->under_blocks += truth - std::min(promised.blocks, truth);
  at_rest->not_exact += !promised.exact;
  if (promised.blocks != truth && at_rest->examples.size() < kExamplesMax) {
    at_rest->examples.push_back(worker + " can reuse " + std::to_string(truth) +
                                " blocks of prompt " + std::to_string(prompt) + ", its leaf says " +
                                std::to_string(promised.blocks));
  }
}

absl::Status CheckPrompt(const Cluster& cluster, const HybridOptions& hybrid, ClusterClient& client,
                         const std::vector<Contents>& contents,
                         const std::vector<SequenceHash>& prompt, size_t number, AtRest* at_rest) {
  for (uint32_t cell = 0; cell < cluster.options().cells; ++cell) {
    absl::StatusOr<v1::FindOverlapsResponse> answer = client.FindOverlaps(cell, prompt);
    std::map<std::string, Promise> promises;
    if (answer.ok()) {
      for (const v1::WorkerOverlap& worker : answer->workers()) {
        promises[worker.worker().name()] = {worker.blocks(), worker.trust() == v1::TRUST_EXACT};
      }
    } else if (answer.status().code() != absl::StatusCode::kNotFound) {
      return answer.status();
    }
    for (uint32_t i = 0; i < cluster.options().workers; ++i) {
      const uint32_t worker = cell * cluster.options().workers + i;
      const std::string name = cluster.WorkerName(worker);
      const uint32_t truth =
          TrueReuse(hybrid, cluster.options().block_size, contents[worker], prompt);
      Compare(name, promises[name], truth, number, at_rest);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WaitAtRest(const Cluster& cluster, ClusterClient& client, Duration timeout) {
  const Time until = Clock::Real().Now() + timeout;
  for (uint32_t worker = 0; worker < cluster.workers(); ++worker) {
    const Duration left = std::max(until - Clock::Real().Now(), Duration(0));
    if (absl::Status status = client.WaitAcknowledged(worker, left); !status.ok()) {
      return absl::DeadlineExceededError(cluster.WorkerName(worker) + ": " +
                                         std::string(status.message()));
    }
  }
  for (;;) {
    const absl::Status status = UpwardAtRest(cluster, client);
    if (status.ok() || Clock::Real().Now() >= until) return status;
    Pause(kLookEvery);
  }
}

absl::StatusOr<AtRest> CheckAtRest(const Cluster& cluster, ClusterClient& client, size_t requests,
                                   const BlocksOf& blocks_of, uint64_t pairs_min) {
  const absl::StatusOr<HybridOptions> hybrid = ParseHybrid(cluster.options().hybrid);
  if (!hybrid.ok()) return hybrid.status();
  absl::StatusOr<std::vector<Contents>> contents = FetchContents(cluster, client);
  if (!contents.ok()) return contents.status();
  const uint64_t wanted =
      std::max(kPromptsMin, (pairs_min + cluster.workers() - 1) / cluster.workers());
  const uint64_t prompts = std::min<uint64_t>(wanted, requests);
  AtRest at_rest;
  for (uint64_t i = 0; i < prompts; ++i) {
    const size_t number = i * requests / prompts;
    const std::vector<SequenceHash> prompt = blocks_of(number);
    absl::Status status =
        CheckPrompt(cluster, *hybrid, client, *contents, prompt, number, &at_rest);
    if (!status.ok()) return status;
  }
  return at_rest;
}

absl::Status AddLeafFigures(const Cluster& cluster, ClusterClient& client, ReplayReport* report) {
  uint64_t stored = 0, removed = 0, batches = 0;
  LevelCost leaf, upward;
  for (uint32_t cell = 0; cell < cluster.options().cells; ++cell) {
    absl::StatusOr<v1::StatsResponse> stats = client.LeafStats(cell);
    if (!stats.ok()) return stats.status();
    for (const v1::DomainStats& domain : stats->domains()) {
      stored += domain.blocks_stored();
      removed += domain.blocks_removed();
      batches += domain.batches();
      leaf.bytes += domain.bytes_received();
    }
    for (const v1::ParentStats& parent : stats->parents()) {
      upward.updates += parent.waypoints_announced() + parent.waypoints_withdrawn();
      upward.bytes += parent.bytes_sent();
    }
  }
  leaf.updates = stored + removed;
  report->events_stored = stored;
  report->events_removed = removed;
  report->events_batches = batches;
  report->leaf = leaf;
  report->upward = upward;
  return absl::OkStatus();
}

}  // namespace kvatlas
