// The bodies of requests to Dynamo's indexer, read in place into memory that is kept.
//
// *Truth*: names, types, what is required and what may be null are those of the service they were
// written for; unknown keys have no effect. "queries" is ours.
// *Threads*: one at a time. *Bounds*: `kQueriesMax` queries in one request.

#ifndef KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_BODIES_H_
#define KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_BODIES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "indexer/base/hash.h"
#include "indexer/compat/dynamo/http_json_reader.h"
#include "indexer/kv_events/engine_registration.h"

namespace kvatlas {

inline constexpr size_t kQueriesMax = 4096;

// The body of /query and /query_by_hash.
struct QueryBody {
  bool by_hash = false;
  std::vector<TokenId> tokens;  // unless `by_hash`
  std::vector<int64_t> hashes;  // local hashes as signed numbers
  std::string model;
  std::string group;
  std::optional<std::string> lora_name;
  std::optional<std::string> cache_salt;
};

struct QueriesBody {
  // The first `count` are meant; the others are memory.
  std::vector<QueryBody> queries;
  size_t count = 0;
  bool batch = false;  // {"queries":[…]}

  // False: what `reader` says. Beside "queries" nothing else is looked at.
  bool Read(bool by_hash, JsonReader* reader);

 private:
  QueryBody* Add(bool by_hash);
};

// Tokens, or "auto" (`kBlockSizeAuto`).
bool ReadBlockSize(JsonReader* reader, uint32_t* size);

struct RegisterBody {
  uint64_t instance = 0;
  std::string endpoint;
  std::string model;
  uint32_t block_size = 0;
  std::string group;
  std::optional<uint32_t> rank;
  std::optional<std::string> replay_endpoint;
  // Ours: what an engine publishes that the others do not tell.
  std::optional<std::string> topic;
  std::optional<std::string> server_key;
  std::optional<std::string> lora_name;
  std::optional<std::string> engine_type;
  bool bind = false;
  bool count_copies = true;
  std::optional<uint32_t> image_token_id;
  std::optional<std::string> url;
  std::optional<std::string> eagle_drop;
  std::optional<uint32_t> chunk_tokens;
  std::optional<uint32_t> window_tokens;
  bool hybrid = false;
  std::optional<uint32_t> offload_chunk_tokens;
  std::optional<std::string> silent_tiers;
  std::optional<uint32_t> first_rank;
  std::optional<uint32_t> silent_blocks;
  std::optional<uint32_t> silent_seconds;
  std::optional<std::string> store;
  std::optional<std::string> store_tiers;

  bool Read(JsonReader* reader);
};

struct UnregisterBody {
  std::string instance;  // a number, or a name that is none
  std::string model;
  std::optional<std::string> group;
  std::optional<uint32_t> rank;

  bool Read(JsonReader* reader);
};

// The body of /register_peer and /deregister_peer.
struct PeerBody {
  std::string url;

  bool Read(JsonReader* reader);
};

// The body of /test/pause_listener and /test/resume_listener.
struct ListenerBody {
  uint64_t instance = 0;
  std::optional<uint32_t> rank;

  bool Read(JsonReader* reader);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_BODIES_H_
