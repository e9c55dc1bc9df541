// The engines behind this process: asks each what it is, registers its events with the leaf, and
// says what changed.
//
//   EngineList ─▶ EngineFleet ─▶ probes over HTTP (threads of its own) ─▶ what each engine is
//                   ├────▶ EngineDirectory::Register: events of each of its ranks
//                   ├────▶ EngineView: who serves a model, by which url, with which load (`engine_finder.h`)
//                   └────▶ one line per change: found, without events and why, unreachable, restarted, another model, …
//
// *Truth*: an engine whose events do not arrive is routed to by load, and its line says which of
// its own flags is missing. A model is what `/v1/models` says; when that changes, the engine's
// blocks are forgotten with its old registration. Ranks are what its metrics say; an answer without
// them changes nothing. A line names an engine that holds blocks, and none under the cache salt and
// adapter of a prompt that it finished.
// *Threads*: `Tick` and `SetEngines` from one; `View` from any; `EngineFleetOptions::say` from the
// thread of `Tick`.
// *Bounds*: an engine is asked once a second, by at most `probe_threads` at a time, each question
// within `probe_timeout`.

#ifndef KVATLAS_FRONTEND_SERVE_ENGINE_FLEET_H_
#define KVATLAS_FRONTEND_SERVE_ENGINE_FLEET_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "frontend/engine_client/engine_probe.h"
#include "frontend/prompt/engine_conventions.h"
#include "frontend/prompt/served_names.h"
#include "frontend/serve/engine_list.h"
#include "frontend/serve/served_namespaces.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/checkpoint/engine_restore.h"
#include "indexer/engine_directory/engine_directory.h"

namespace kvatlas {

// Immutable.
struct EngineView {
  struct Engine {
    size_t index = 0;  // among the model's
    std::string url;
    std::map<uint32_t, Load> loads;  // by rank
  };
  using Engines = absl::flat_hash_map<std::string, Engine>;  // by the name of the worker

  // By model, adapters too. Engines that answer, or all of them where none does.
  std::map<std::string, Engines> engines;
  // Adapters (LoRA), and further names of a model: of the name by which its engines are registered.
  ServedNames names;

  // Null: no engine serves it.
  const Engines* EnginesOf(const std::string& model) const;
  // `model` itself where it is not known.
  const std::string& ModelOf(const std::string& model) const;
};

// An engine of the list that does not answer over HTTP.
struct UnreachableEngine {
  std::string name;
  std::string model;  // that it served; empty: it never answered
  Time since{0};      // the first question that it did not answer
  std::string why;
};

struct EngineFleetOptions {
  Duration probe_every = std::chrono::seconds(1);
  Duration probe_timeout = std::chrono::seconds(1);
  uint32_t probe_threads = 8;
  // Without events for so long after it was found an engine is said to have none.
  Duration events_within = std::chrono::seconds(1);
  Duration repeat_every = std::chrono::minutes(1);  // of what is still wrong
  // So long after a prompt was finished its blocks have been announced, also by a machine that is
  // busy.
  Duration blocks_within = std::chrono::milliseconds(900);
  const Clock* clock = &Clock::Real();
  // The authorization of requests to the engine of this url; empty: none.
  std::function<std::string(const std::string& url)> authorization = {};
  // A line for a person; `wrong`: something has to be done.
  std::function<void(bool wrong, const std::string& line)> say;
  // How prompts of this model are tokenized, in words: a path, or the engine's own /tokenize.
  // Called after each probe, by its thread and without a lock; may read files.
  std::function<std::string(const ServedModel& model)> tokenizer = {};
  // Gets how engines read requests, as they say; outlives the fleet. Null: not wanted.
  EngineConventions* conventions = nullptr;
  // The topic of an engine that dials in, by what it may be called in it (`EngineSpec::pods`);
  // nothing: it said nothing yet.
  std::function<std::optional<std::string>(const std::string& endpoint,
                                           const std::vector<std::string>& pods)>
      dialed = {};
  // An engine's events began anew. Called by `Tick`; empty: not of interest.
  std::function<void(const std::string& url)> restarted = {};
  // Prompts that engines finished by then, each once (`ServedNamespaces::Take`); empty: none is
  // known. Called by `Tick`.
  std::function<std::vector<ServedNamespace>(Time until)> served = {};
};

// For a leaf that starts from a checkpoint (`LeafEngineOptions::named`): whether a stream belongs
// to an engine of the list, and is where the list says.
NamedByFlags NamedBy(std::vector<EngineSpec> specs);

class EngineFleet {
 public:
  // `directory` outlives it.
  EngineFleet(EngineFleetOptions options, EngineDirectory* directory);
  ~EngineFleet();

  void SetEngines(const std::vector<EngineSpec>& engines);
  // Several times a second: takes what was found since, registers, and says what changed. Streams
  // are looked at twice a second.
  void Tick();

  std::shared_ptr<const EngineView> View() const;
  // Where engines take requests, by name: those that answer, or all where none does.
  std::map<std::string, std::string> Urls() const;
  // Whether an engine of this name is in the list, whether it answers or not.
  bool Has(const std::string& name) const;
  // Engines that answered lately, and all.
  size_t answering() const;
  size_t size() const;
  // Every engine was asked once.
  bool all_asked() const;
  // Whether some engine answers. Nothing: none does so far, and one of them may yet: its first
  // answer may take long, as the tokenizer of its model is read with it.
  std::optional<bool> ready() const;
  std::vector<UnreachableEngine> Unreachable() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_SERVE_ENGINE_FLEET_H_
