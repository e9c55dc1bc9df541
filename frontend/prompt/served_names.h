// The model of the leaves, and the adapter, that a model name in a client's request means. Engines
// serve adapters (LoRA) as models of their own, and a model under further names; their blocks are
// in the domain of the model by which their workers are known, those of an adapter under its seed.
//
// *Place*: the table is filled by `engine_names.h`, or by the probes of `kvatlas serve`.
// *Threads*: functions without state.

#ifndef KVATLAS_FRONTEND_PROMPT_SERVED_NAMES_H_
#define KVATLAS_FRONTEND_PROMPT_SERVED_NAMES_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "frontend/router/frontend.h"

namespace kvatlas {

struct ServedName {
  std::string model;                      // of the domain
  bool adapter = false;                   // else a further name of the model
  std::vector<std::string> workers = {};  // that serve it, each once; empty: all of the model
};

using ServedNames = std::map<std::string, ServedName>;  // by what clients say

// Puts model, adapter and workers in the place of a name of the table; other models stay as they
// are.
void AsServed(const ServedNames& names, RouteInput* input);

// Only these workers may be chosen, and of them only those that `input` allows already.
void AllowOnly(const std::vector<std::string>& workers, RouteInput* input);

// As `AsServed`, where the table may have to be fetched first. Returns true if `input` is resolved.
// Otherwise calls `later` exactly once, when it is, from another thread or before this returns;
// until then the caller leaves `input` alone.
using ServedNameFinder = std::function<bool(RouteInput* input, std::function<void()> later)>;

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_SERVED_NAMES_H_
