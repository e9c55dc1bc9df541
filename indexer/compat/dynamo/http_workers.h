// How are the engines listed over HTTP? `/workers`, as Dynamo's indexer words it.
//
// *Threads*: pure functions.

#ifndef KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_WORKERS_H_
#define KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_WORKERS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "indexer/engine_directory/engine_directory.h"

namespace kvatlas {

// ?model_name=…&routing_group=…
struct WorkersFilter {
  std::optional<std::string> model;
  std::optional<std::string> group;

  // Returns what is wrong with the query of a URL; empty: nothing. Unknown names have no effect.
  std::string Read(std::string_view query);
};

// Appends an array of instances; with `detail` also what is known of each stream and rank. An
// engine of which something was refused has "last_refusal" in any case.
void AppendWorkers(const std::vector<EngineEntry>& entries, bool detail, std::string* out);

// 7 for "7", "pod-7" in quotes for others.
void AppendInstance(std::string_view instance, std::string* out);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_WORKERS_H_
