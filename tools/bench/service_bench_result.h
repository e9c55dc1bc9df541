// What was measured of a service, and how is it told?
//
// *Truth*: what was not measured is absent here, `null` in JSON and left out for people, never a
// number.

#ifndef KVATLAS_TOOLS_BENCH_SERVICE_BENCH_RESULT_H_
#define KVATLAS_TOOLS_BENCH_SERVICE_BENCH_RESULT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "tools/bench/timing.h"

namespace kvatlas {

struct ServiceBenchResult {
  std::string what;
  std::string target;  // "leaf", or the URL of another service
  uint32_t workers = 0;
  double seconds = 0;  // that were measured
  uint64_t errors = 0;
  std::string first_error;

  // Queries.
  std::optional<uint32_t> connections;
  std::optional<uint32_t> blocks;  // of a prompt
  std::optional<double> qps;
  std::optional<Percentiles> us;
  std::optional<double> leaf_cpu_us_per_query;
  std::optional<double> client_cpu_us_per_query;
  std::optional<uint64_t> answer_bytes;  // of one answer, on average

  // Ingest. A block op is a block named in a stored or in a removed event; those of the warm-up
  // count nowhere.
  std::optional<std::string>
      workload;  // "cold", or "steady" when engines were full before the clock ran
  std::optional<uint64_t> blocks_stored;
  std::optional<uint64_t> blocks_removed;
  std::optional<double> blocks_per_s;  // block ops until queryable
  std::optional<double> stored_per_s;
  std::optional<double> leaf_cpu_ns_per_block;  // per block op
  std::optional<double> client_cpu_ns_per_block;
  std::optional<double> redis_cpu_ns_per_block;
  std::optional<double> bytes_per_block;  // sent, per block op
  std::optional<Percentiles> lag_ms;      // sent to queryable
  std::optional<uint64_t> blocks_held;    // at the end, by all engines
  // Answers about what engines hold at the end, compared with what they were told to hold.
  std::optional<uint64_t> checked;
  std::optional<uint64_t> wrong;
  std::optional<double> rss_per_held_block;  // grown since before the first event

  std::optional<double> leaf_cpu_s;
  std::optional<uint64_t> leaf_rss_bytes;
};

std::string ToJson(const ServiceBenchResult& result);

// A name and a value on each line.
std::string ToText(const ServiceBenchResult& result);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_SERVICE_BENCH_RESULT_H_
