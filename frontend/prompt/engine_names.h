// The names under which engines serve a model: adapters (LoRA), loaded at start or later, and
// further names, as the engines' own `GET /v1/models` lists them, an adapter with its base as
// `parent`. Engines are asked when a client names a model that no leaf knows.
//
//   Find ─┬─ given (--adapters), known to leaves, or looked up lately ─▶ done
//         ╰─ a route that only learns: no leaf knows it ─▶ Look ─▶ later
//   Look  ── peers ─▶ domains ─▶ such routes, which meet their engines ─▶ GET /v1/models of all that were met ─▶ table
//                                                                        ╰▶ which engine it is; GET /server_info of SGLang ─▶ `conventions`
//
// *Truth*: a refusal relies on lists that are at most `again_after` old, a hit on lists that are at
// most three times `every` old. While names of the table are asked for, the engines are asked once
// in `every`, so that loaded and unloaded adapters are noticed. An engine that does not answer
// keeps what it said last. Only engines that the frontend has met are asked: in a fleet of many
// cells, those of cells that routes were sent to. A name of several models is the first model's, by
// name; a model that leaves know is no name of another. Each tenant has the names of its own
// engines, and of engines that no leaf has named. Conventions of engines are looked at when this
// starts, and once in `conventions_every` while requests come; sooner while some engine, or all,
// have not answered.
// *Threads*: any; a thread of its own asks engines and calls back. *Cost*: of a model that leaves
// know, a look into a table under a shared lock.
// *Bounds*: `kNamingEnginesMax` engines, each once (HOST:PORT), `timeout` for all; `kNamesMax`
// names of `kModelIdBytesMax` bytes, `kNamesPerEngineMax` of an engine; `kWaitingMax` requests that
// wait for a look (further ones go on as they are); `kDomainsMetMax` domains met at once.
// *Lifetime*: the frontend outlives it. `Stop` answers what waits; after it nothing is asked.
//
// Example:
//   EngineNames names({.call = {.reach = reach}}, &frontend);
//   PromptRouter router({.served_name = names.finder()}, &frontend, &tokenizer);

#ifndef KVATLAS_FRONTEND_PROMPT_ENGINE_NAMES_H_
#define KVATLAS_FRONTEND_PROMPT_ENGINE_NAMES_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "frontend/engine_client/engine_call.h"
#include "frontend/prompt/engine_conventions.h"
#include "frontend/prompt/served_names.h"
#include "frontend/router/frontend.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"

namespace kvatlas {

inline constexpr size_t kNamingEnginesMax = 1024;
inline constexpr size_t kNamesMax = 65536;
inline constexpr size_t kNamesPerEngineMax = 4096;
inline constexpr size_t kWaitingMax = 1024;
inline constexpr size_t kDomainsMetMax = 64;

struct EngineNamesOptions {
  ServedNames given = {};                          // before what engines say
  Duration every = std::chrono::seconds(5);        // between looks; 0: engines are not asked
  Duration again_after = std::chrono::seconds(1);  // an unknown name stays unknown so long
  Duration wanted_for = std::chrono::minutes(1);   // looks go on so long after the last use
  Duration timeout = std::chrono::seconds(1);      // for the answers of all engines together
  EngineCallOptions call = {};
  // Gets what engines say of themselves; outlives this. Null: that is not asked for.
  EngineConventions* conventions = nullptr;
  Duration conventions_every = std::chrono::seconds(10);
  // The domains that peers know, for engines that no route has met. Called on the own thread; may
  // block. Null: none.
  std::function<std::vector<Domain>()> domains = nullptr;
};

class EngineNames {
 public:
  EngineNames(EngineNamesOptions options, Frontend* frontend, const Clock* clock = &Clock::Real());
  ~EngineNames();  // stops

  EngineNames(const EngineNames&) = delete;
  EngineNames& operator=(const EngineNames&) = delete;

  // As `ServedNameFinder`.
  bool Find(RouteInput* input, std::function<void()> later);
  ServedNameFinder finder() {
    return [this](RouteInput* input, std::function<void()> later) {
      return Find(input, std::move(later));
    };
  }
  // For requests that name no model, before any route has met an engine: asks peers for domains and
  // meets their engines, as `Find` does. True: nothing to wait for, as engines are known or nothing
  // can be asked. False: `later` is called afterwards, on the own thread.
  bool Meet(std::function<void()> later);
  void SetGiven(ServedNames given);
  // Given names, and those of the last look.
  ServedNames Known() const;
  // Idempotent.
  void Stop();

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_ENGINE_NAMES_H_
