// Each process of a survey in one line, and what has to be looked at: the view of `kvatlas status`.
//
// *Truth*: a process's own words; nothing is computed from those of another process about it.
// *Threads*: any.

#ifndef KVATLAS_TOOLS_KVATLAS_PROCESS_VIEW_H_
#define KVATLAS_TOOLS_KVATLAS_PROCESS_VIEW_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/kvatlas/service_name.h"
#include "tools/kvatlas/survey.h"

namespace kvatlas {

struct ProcessView {
  bool reached = true;
  std::string program;  // "leaf", "serve"
  std::string name;     // cell[@replica], or node; empty: it has none
  std::string version;
  std::optional<uint64_t> up_ms = {};
  // Where it listens, as it says; else where it was asked.
  std::string address;
  std::string state;                   // "ready", "not ready: why", "unreachable: why"
  std::string holds;                   // "3 workers, 28 blocks of m"
  std::string does;                    // "1,204 queries"
  std::vector<std::string> attention;  // what an operator has to look at, a line each
};

// By program, those that were not reached too.
std::vector<ProcessView> ViewsOf(const Survey& survey);

// The view of a status (`GET /status`, or `StatsJson`) that was asked where `name` says.
ProcessView ViewOf(const ServiceName& name, const nlohmann::json& status);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_PROCESS_VIEW_H_
