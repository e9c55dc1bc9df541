// What did a replay find? The figures of `tools/run`, as JSON for scripts and as a table for
// people.
//
// *Format*: `ToJson` gives one object whose fields, units and meanings are a contract with the
// scripts that read it;
// fields may be added. Names with a dot are nested objects. What was not measured is null, never
// invented.

#ifndef KVATLAS_TOOLS_TESTING_CLUSTER_REPORT_H_
#define KVATLAS_TOOLS_TESTING_CLUSTER_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/testing/cluster/chaos.h"

namespace kvatlas {

// Blocks that a worker's cache had, of all prompts.
struct CachedBlocks {
  std::optional<uint64_t> chosen;  // by the policy of the run, whichever it is
  std::optional<uint64_t> kvatlas;
  std::optional<uint64_t> best_same_state;
  std::optional<uint64_t> exact_global;
  std::optional<uint64_t> round_robin;
  // Of hybrid models: what the main class of the chosen worker held, of which it reused `chosen`.
  std::optional<uint64_t> held;
};

// Promises compared with the truth once everything is quiet.
struct AtRest {
  uint64_t checked = 0;  // (worker, prompt) pairs
  uint64_t over = 0;     // promised more than there was
  uint64_t under = 0;
  uint64_t over_blocks = 0;  // by how much, in all
  uint64_t under_blocks = 0;
  uint64_t not_exact = 0;                  // answers of less than exact trust
  std::vector<std::string> examples = {};  // a few of those that differ
};

struct LevelCost {
  uint64_t updates = 0;
  uint64_t bytes = 0;
};

struct ReplayReport {
  std::string policy;
  uint64_t requests = 0;
  uint64_t errors = 0;
  uint64_t fallbacks = 0;
  uint64_t too_long = 0;
  uint32_t cells = 0;
  uint32_t workers = 0;  // per cell
  uint32_t block_size = 0;

  uint64_t prompt_blocks = 0;
  CachedBlocks cached_blocks;
  std::optional<uint64_t> predicted_blocks;
  // Requests whose chosen worker had less, or more, on arrival than was promised.
  std::optional<uint64_t> promised_over;
  std::optional<uint64_t> promised_under;
  std::optional<uint64_t> promised_over_blocks;  // by how much, in all
  std::optional<uint64_t> promised_under_blocks;

  // Of hybrid models: their side class, and what leaves promised, "reusable" or "held" blocks.
  std::optional<std::string> hybrid;
  std::optional<std::string> answer;

  std::optional<AtRest> at_rest;

  std::optional<uint64_t> events_stored;
  std::optional<uint64_t> events_removed;
  std::optional<uint64_t> events_batches;
  std::optional<LevelCost> upward;
  std::optional<LevelCost> leaf;

  // `kvatlas serve` was asked as a client asks, and these are whole requests, their engine's part
  // included.
  bool serve = false;
  std::vector<double> request_us;

  std::vector<double> route_us;
  std::vector<double> find_cells_us;
  std::vector<double> find_overlaps_us;
  std::vector<double> ttft_ms;

  // When the frontend was asked by text: what made tokens of it, how long each prompt took there
  // before the replay, and how many the frontend found to have another number of tokens.
  std::optional<std::string> tokenizer;
  std::vector<double> tokenize_us;
  std::optional<uint64_t> token_differences;

  // Requests whose events were not acknowledged in time, in a replay that waits for that.
  uint64_t unacknowledged = 0;
  // Answers of an engine that its mirror in the runner did not predict: a bug of the runner, or a
  // lost call.
  uint64_t mirror_differences = 0;
  std::optional<double> rate;
  // From the last request's end until everybody was at rest.
  std::optional<double> rest_seconds;
  // What was killed and started again meanwhile; nothing: no faults were asked for. Counters of
  // processes count from their last start.
  std::optional<std::vector<ChaosStep>> chaos;
  double seconds = 0;

  // What went wrong, a sentence each; a few at most.
  std::vector<std::string> notes;
  static constexpr size_t kNotesMax = 8;
  void Note(std::string note) {
    if (notes.size() < kNotesMax) notes.push_back(std::move(note));
  }
};

std::string ToJson(const ReplayReport& report);
std::string ToTable(const ReplayReport& report);

// Nearest rank; nothing for no values. Sorts.
std::optional<double> Percentile(std::vector<double>& values, double percent);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_CLUSTER_REPORT_H_
