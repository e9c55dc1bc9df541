// Which engines does `kvatlas serve` have in front of it? The text form of one engine, and where
// lists of them come from.
//
//   URL[;events=ENDPOINT][;replay=ENDPOINT][;topic=TEXT][;key=CURVE_KEY][;name=NAME][;ranks=N][;first_rank=N][;hybrid=true][;window_tokens=N]
//      [;chunk_tokens=N][;offload_chunk_tokens=N][;silent_tiers=TIERS][;silent_blocks=N][;silent_seconds=N][;count_copies=false][;store=NAME][;store_tiers=TIERS][;eagle_drop=GROUPS]
//
//   http://10.0.0.1:8000;events=kv@tcp://0.0.0.0:5557    it dials that socket (llm-d's central one)
//   http://10.0.0.1:8000
//   http://10.0.0.1:8000;events=tcp://10.0.0.1:6557;replay=tcp://10.0.0.1:6657;name=a;ranks=4
//
// *Truth*: without `events` an engine is expected to publish where it says
// (`EngineFacts::kv_sources`), else on port 5557 of its host, and to replay on 5657: a hundred
// apart, since both engines add a rank's number to both ports, and do not start where one of them
// is taken; `events=none` says that it publishes nothing. A name of several addresses is several
// engines. `first_rank` is the lowest rank there, where the engine does not say it itself
// (`EngineRegistration::first_rank`). "k8s:NAMESPACE/SELECTOR[;http=PORT…][;OPTION…]" instead of an
// URL (`engine_pods.h`): the ready pods of these labels, each with these options. A pod's engine
// has the pod's name; of several ports each is one, NAME:PORT, of the rank that the port's place
// is. `hybrid`, `window_tokens`, `chunk_tokens`, `eagle_drop`, `offload_chunk_tokens`,
// `silent_tiers` and `store` say of models and caches what no event says (`EngineRegistration`).
// *Threads*: plain values and functions; `EngineList` is used by one thread.
//
// Example:
//   absl::StatusOr<EngineSpec> spec = EngineSpec::Parse("http://10.0.0.1:8000;name=a");

#ifndef KVATLAS_FRONTEND_SERVE_ENGINE_LIST_H_
#define KVATLAS_FRONTEND_SERVE_ENGINE_LIST_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/discovery/directory.h"
#include "indexer/discovery/engine_pods.h"
#include "indexer/discovery/service_record.h"

namespace kvatlas {

struct EngineSpec {
  std::string url;              // "http://HOST:PORT[/PREFIX]", without a slash at its end
  std::string name = {};        // of its worker; "HOST:PORT" where none is given
  std::string events = {};      // of rank 0; the port goes up by the rank. "none": there are none
  std::string replay = {};      // likewise; "none": there is none
  std::string topic = {};       // a prefix; empty: all
  std::string server_key = {};  // of CURVE, for both; empty: events in clear
  uint32_t ranks = 0;           // data-parallel; 0: what the engine says
  std::optional<uint32_t> first_rank = {};  // nothing: what the engine says
  bool has_name = false;                    // the name was given
  bool has_events = false;                  // likewise, of `events`
  bool has_replay = false;
  // As in `EngineRegistration`. `hybrid`: also what the engine says of itself counts
  // (`EngineFacts::hybrid`).
  bool hybrid = false;
  uint32_t window_tokens = 0;
  uint32_t chunk_tokens = 0;
  uint32_t offload_chunk_tokens = 0;
  std::string silent_tiers = {};
  uint32_t silent_blocks = 0;
  uint32_t silent_seconds = 0;
  bool counts_copies = true;
  std::string store = {};
  std::string store_tiers = {};
  std::string eagle_drop = {};

  // INVALID_ARGUMENT: what is wrong, and what was expected.
  static absl::StatusOr<EngineSpec> Parse(std::string_view text);

  // It dials a socket of this process ("events=kv@tcp://0.0.0.0:5557"), where its topic names it:
  // kv@HOST:PORT@MODEL, kv@HOST@MODEL or kv@NAME@MODEL, NAME being that of its pod.
  bool dials_in() const;
  std::vector<std::string> pods() const;

  // The endpoints of a rank; empty for "none".
  std::string EventsOf(uint32_t rank) const;
  std::string ReplayOf(uint32_t rank) const;

  friend bool operator==(const EngineSpec&, const EngineSpec&) = default;
};

// The engines of a file: one a line, comments from "#". INVALID_ARGUMENT names the line. NOT_FOUND:
// no such file.
absl::StatusOr<std::vector<EngineSpec>> ReadEnginesFile(const std::string& path);

// Each spec once per address of its host, where the host is a name with several; else as it is.
std::vector<EngineSpec> Resolve(const std::vector<EngineSpec>& specs);

// The engines in the pods of an entry "k8s:…".
std::vector<EngineSpec> SpecsOf(const EnginePods& pods, const ServiceRecord& pod);

// The engines that flags, a file, DNS and Kubernetes name now. Copies share what they watch.
class EngineList {
 public:
  // INVALID_ARGUMENT, naming --engine or --engines_file: one of `texts`, or the file; two engines
  // of one name, URL or endpoint of events. NOT_FOUND: no such file.
  static absl::StatusOr<EngineList> Make(const std::vector<std::string>& texts, std::string file);

  // Watches pods; those that `before` watches stay known. Waits a little for the first answer. Pods
  // outside of `addresses` are left out, and so are those that have the name or the URL of another
  // engine: the log says so. `k8s`: for tests.
  absl::Status Watch(const EngineAddresses& addresses, const EngineList* before,
                     const K8sOptions& k8s = {});

  const std::vector<EngineSpec>& engines() const { return resolved_; }
  // Sockets that engines are to dial, as flags and the file say now.
  std::vector<std::string> dialed() const;
  // Where engines are looked for: "pods of llm/app=vllm"; empty: nowhere, they are named.
  std::string finds() const;

  // Reads the file again when it changed, asks DNS again after `kResolveEvery`, and takes the pods
  // that are there now. True: `engines` changed. A bad file leaves the list as it was and is an
  // error once.
  absl::StatusOr<bool> Refresh(Time now);

 private:
  struct Pods;

  absl::Status ReadFile();
  // All of them now.
  std::vector<EngineSpec> Gather();

  std::vector<EngineSpec> given_;
  std::vector<EnginePods> found_;            // entries
  std::vector<std::shared_ptr<Pods>> pods_;  // of each, once it is watched
  std::string file_;
  int64_t file_stamp_ = 0;
  std::vector<EngineSpec> from_file_;
  std::vector<EngineSpec> resolved_;
  Time resolved_at_{0};
};

inline constexpr Duration kResolveEvery = std::chrono::seconds(5);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_SERVE_ENGINE_LIST_H_
