// An engine to be listened to, and its name, as a flag, HTTP or a file says it.
//
// *Place*: a leaf and a relay register the same. *Truth*: an instance belongs to one domain (model,
// routing group). Texts of refusals are those of Dynamo's indexer, since clients read them.
// *Threads*: plain values and pure functions.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ENGINE_REGISTRATION_H_
#define KVATLAS_INDEXER_KV_EVENTS_ENGINE_REGISTRATION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/domain.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/base/tier.h"
#include "indexer/kv_events/zmq_source.h"

namespace kvatlas {

inline constexpr std::string_view kDefaultGroup = "default";

// Bound of each text of a registration.
inline constexpr size_t kRegisteredTextBytesMax = 4096;

// The domain of a model and a routing group (Mooncake: tenant): the tenant is empty for "default"
// and for "".
Domain DomainOf(std::string_view model, std::string_view group);
// And back: "default" for an empty tenant.
std::string GroupOf(const Domain& domain);

// A block size that is learned from the engine's first stored block of the main class.
inline constexpr uint32_t kBlockSizeAuto = 0xffffffff;
inline constexpr std::string_view kBlockSizeAutoText = "auto";

struct EngineRegistration {
  std::string instance;  // a u64 in Dynamo's interface, any name in Mooncake's
  std::string model;
  std::string group = std::string(kDefaultGroup);
  uint32_t rank = 0;
  uint32_t block_size = 0;  // tokens, or `kBlockSizeAuto`
  std::string endpoint;
  std::string replay_endpoint;
  std::string topic;
  std::string server_key = {};  // `ZmqSource::server_key`
  bool bind = false;
  bool from_flags = false;  // `ZmqSource::from_flags`
  std::string lora_name;    // of all its blocks, unless an event says another
  std::string additional_salt;
  std::optional<uint32_t> image_token;  // `EngineWorkerOptions::image_token`
  bool counts_copies = true;            // `EngineWorkerOptions::counts_copies`
  // Facts about hybrid models and speculation that no event says. Attention groups of which EAGLE
  // drops the last block: "all", or their numbers "1,2"; empty: none.
  std::string eagle_drop = {};
  uint32_t chunk_tokens = 0;          // `EngineWorkerOptions::chunk_tokens`
  uint32_t window_tokens = 0;         // `EngineWorkerOptions::window_tokens`
  bool hybrid = false;                // `EngineWorkerOptions::hybrid`
  uint32_t offload_chunk_tokens = 0;  // `EngineWorkerOptions::offload_chunk_tokens`
  // `EngineWorkerOptions::silent_tiers`, by their names: "host", "host,disk"; empty: none.
  std::string silent_tiers = {};
  // `EngineWorkerOptions::silent_blocks` and `silent_time`; 0: not known.
  uint32_t silent_blocks = 0;
  uint32_t silent_seconds = 0;
  // A store that it shares with other engines, by a name that all of them give: what it announces
  // in `store_tiers` ("disk,external" where that is empty) and of other owners is the store's.
  // `store_tiers` "all": its events are those of the store itself.
  std::string store = {};
  std::string store_tiers = {};
  std::string url;  // where its requests go: a holder's label `url`
  // The lowest data-parallel rank behind that url. Not 0: an engine that serves a part of a
  // deployment's ranks (vLLM's hybrid and external load balancing), which events and metrics number
  // throughout and requests from 0. A holder's label `first_rank`.
  uint32_t first_rank = 0;
  std::string engine_type;  // "vLLM", "Mooncake", …; "SGLang" sets `EngineWorkerOptions::is_sglang`
  std::string source = "zmq";

  friend bool operator==(const EngineRegistration&, const EngineRegistration&) = default;
};

// `EngineWorkerOptions::drops_last` of `EngineRegistration::eagle_drop`. INVALID_ARGUMENT: neither
// "all" nor numbers.
absl::StatusOr<std::optional<std::vector<uint32_t>>> ParseEagleDrop(std::string_view text);

// `EngineWorkerOptions::silent_tiers` of `EngineRegistration::silent_tiers`. INVALID_ARGUMENT: not
// names of tiers beside the device.
absl::StatusOr<TierMask> ParseSilentTiers(std::string_view text);

// Labels of its holders: where their requests go, and by which number.
std::vector<std::pair<std::string, std::string>> LabelsOf(const EngineRegistration& registration);

// The tiers of `EngineRegistration::store_tiers`; all of them for "all". INVALID_ARGUMENT: as
// `ParseSilentTiers`.
absl::StatusOr<TierMask> ParseStoreTiers(std::string_view text);

// Tiers whose blocks are those of a store that others hold for it (`EngineRegistration::store`).
// Empty: none, or it is the store itself.
TierMask StoreTiersOf(const EngineRegistration& registration);

// The stream to be read.
ZmqSource SourceOf(const EngineRegistration& registration);

// INVALID_ARGUMENT: an endpoint (`CheckZmqSource`), checked first, or a text that is longer than
// `kRegisteredTextBytesMax`.
absl::Status CheckRegistration(const EngineRegistration& registration,
                               const EngineAddresses& addresses);

// "instance 7", "instance 7 dp_rank 1", "model=m routing_group=default".
std::string InstanceText(std::string_view instance);
std::string RankText(std::string_view instance, uint32_t rank);
std::string DomainText(const Domain& domain);

// Whether it is a u64 as one is written: that distinguishes numbers from names.
bool IsInstanceNumber(std::string_view instance);

// Numbers by value, then names.
struct InstanceLess {
  using is_transparent = void;
  bool operator()(std::string_view a, std::string_view b) const;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ENGINE_REGISTRATION_H_
