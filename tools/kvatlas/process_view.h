// How is this process, in one line, and which others does it know? What `kvatlas status` shows of it, read from its status.
//
// *Truth*: what the process says of itself; nothing is computed from what another one says of it. *Threads*: any.

#ifndef KVATLAS_TOOLS_KVATLAS_PROCESS_VIEW_H_
#define KVATLAS_TOOLS_KVATLAS_PROCESS_VIEW_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "tools/kvatlas/service_name.h"

namespace kvatlas {

struct ProcessView {
  ServiceName asked;
  absl::Status status;  // why nothing is known; else OK
  std::string program;  // "leaf", "serve"
  std::string name;     // cell[@replica], or node; empty: it has none
  std::string version;
  std::optional<uint64_t> up_ms = {};
  // Where it listens, as it says; else where it was asked.
  std::string address;
  std::string state;                   // "ready", "not ready: why"
  std::string holds;                   // "3 workers, 28 blocks of m"
  std::string does;                    // "1,204 queries"
  std::vector<std::string> attention;  // what an operator has to look at, a line each
  std::vector<ServiceName> knows =
      {};  // upstreams of a frontend, parents of a leaf, cells of a node, leaves of a relay
};

ProcessView LookAtProcess(const ServiceName& name, Duration timeout);

// Of a status; for tests. `ready` is the answer of /ready, where it was asked.
ProcessView ViewOf(const ServiceName& name, const nlohmann::json& status);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_PROCESS_VIEW_H_
