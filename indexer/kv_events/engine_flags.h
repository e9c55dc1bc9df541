// The flags of a leaf and of a relay that say which engines they listen to, and how.
//
// *Threads*: none.
//
// Example:
//   EngineFlags engines;
//   engines.Declare(flags, "engines to listen to");
//   … flags are read …
//   absl::StatusOr<std::vector<EngineRegistration>> workers = engines.Workers();
//   absl::Status bad = engines.ReadInto(&options.ingest);

#ifndef KVATLAS_INDEXER_KV_EVENTS_ENGINE_FLAGS_H_
#define KVATLAS_INDEXER_KV_EVENTS_ENGINE_FLAGS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/kv_events/engine_registration.h"
#include "indexer/kv_events/zmq_source.h"
#include "indexer/process/flags.h"

namespace kvatlas {

struct EngineFlags {
  std::vector<std::string> workers;
  EngineRegistration of_all;  // what `workers` have in common
  std::vector<std::string> addresses = EngineAddresses::Default();
  std::string curve_key;  // file
  bool plain = false;
  // Entries of `workers` with these beginnings are not of `Workers`: the process reads them itself.
  std::vector<std::string> found_prefixes;

  EngineFlags() { of_all.model = "default"; }

  // --workers (`what` they are, and their form), --engine_addresses, --engine_curve_key,
  // --plain_engines, --model_name, --routing_group, --block_size. It outlives `flags`.
  void Declare(FlagSet& flags, const std::string& what);
  // The workers of --workers. INVALID_ARGUMENT names the flag, as in `ReadInto`.
  absl::StatusOr<std::vector<EngineRegistration>> Workers() const;
  std::vector<std::string> Found() const;
  // The others.
  absl::Status ReadInto(ZmqIngestOptions* options) const;

 private:
  bool IsFound(const std::string& entry) const;
  absl::Status CheckForm(const std::string& list) const;
};

// NAME=VALUE of --labels, as pairs. INVALID_ARGUMENT names the flag.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ReadLabels(
    const std::vector<std::string>& labels);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ENGINE_FLAGS_H_
