// Is this name one under which engines serve a model? Adapters (LoRA), loaded at start or later,
// and further names: as the engines' own `GET /v1/models` lists them, an adapter with its base as
// `parent`. They are asked when a client names a model that no leaf knows.
//
//   Find ─┬─ given (--adapters), known to leaves, or looked up lately ─▶ done
//         ╰─ a route that only learns: no leaf knows it ─▶ Look ─▶ later
//   Look  ── peers ─▶ domains ─▶ such routes, which meet their engines ─▶ GET /v1/models of all that were met ─▶ table
//                                                                        ╰▶ which engine it is; GET /server_info of SGLang ─▶ `conventions`
//
// *Truth*: a refusal relies on lists that are at most `again_after` old, a hit on lists that are at
// most three times `every` old. While names of the table are asked for, the engines are asked once
// in `every`: who loads or unloads an adapter is noticed. An engine that does not answer keeps what
// it said last. Only engines that the frontend has met are asked: in a fleet of many cells, those
// of cells that routes were sent to. A name of several models is the first model's, by name; a
// model that leaves know is no name of another. Each tenant has the names of its own engines, and
// of engines that no leaf has named. How engines read requests is looked at when this starts, and
// once in `conventions_every` while requests come: sooner as long as some engine, or all, have not
// answered.
// *Threads*: any; one of its own looks, and calls back. *Cost*: of a model that leaves know, a look
// into a table under a shared lock.
// *Bounds*: `kNamingEnginesMax` engines, each once (HOST:PORT), `timeout` for all; `kNamesMax`
// names of `kModelIdBytesMax` bytes, `kNamesPerEngineMax` of an engine; `kWaitingMax` requests that
// wait for a look, others go on as they are; `kDomainsMetMax` domains met at once.
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
  Duration every = std::chrono::seconds(5);        // 0: engines are not asked
  Duration again_after = std::chrono::seconds(1);  // so long a name that was not found is none
  Duration wanted_for = std::chrono::minutes(1);
  Duration timeout = std::chrono::seconds(1);
  EngineCallOptions call = {};
  // What engines say that they are goes here, and outlives this; null: it is not asked for.
  EngineConventions* conventions = nullptr;
  Duration conventions_every = std::chrono::seconds(10);
  // Domains that peers say there are, for engines that no route has met. May wait; of the own
  // thread. Null: none.
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
  // For requests that name no model, before any route has met an engine: domains are asked of peers
  // and their engines met, as for `Find`. True: at once, where engines are known, or nothing can be
  // asked. False: `later` is called after it, from the own thread.
  bool Meet(std::function<void()> later);
  void SetGiven(ServedNames given);
  // What is given, and what engines said last.
  ServedNames Known() const;
  // Idempotent.
  void Stop();

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_ENGINE_NAMES_H_
