// `kvatlas serve`: one process in front of engines. A leaf that listens to them, a frontend that
// asks it by calls, a proxy that any OpenAI client talks to.
//
//   engines ══ ZeroMQ ══▶ Leaf ◀── EngineFinder ── Frontend ◀── Proxy ◀── clients
//      ▲ ╰──── HTTP ────▶ EngineFleet ────────╯                        │
//      ╰──────────────────────── HTTP ───────────────────────────╯
//
// *Threads*: those of its parts; `RunServe` blocks until a signal.

#ifndef KVATLAS_FRONTEND_SERVE_SERVE_H_
#define KVATLAS_FRONTEND_SERVE_SERVE_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/address.h"
#include "indexer/process/flags.h"

namespace kvatlas {

// Where it listens, by flag: "listen", "http", …
using ServeAddresses = std::vector<std::pair<std::string, Address>>;

// Returns the status to exit with: 0 after a signal, 1 when a part cannot start, 2 for a wrong
// flag. With `ready`, that is called in place of the ready line, and must return.
int RunServe(const std::vector<std::string>& arguments,
             const std::function<void(const ServeAddresses&)>& ready = nullptr);
// Shows its flags to `look`, for completion and manual pages.
void LookAtServeFlags(const std::function<void(const FlagSet&)>& look);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_SERVE_SERVE_H_
