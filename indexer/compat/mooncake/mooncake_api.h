// Mooncake's indexer interface (RFC #1403, Conductor): the same engines and the same index under
// its names, on a listener of its own, since its paths are also Dynamo's.
//
//   POST /register       {"endpoint","replay_endpoint"?,"type","modelname","lora_name"?,"tenant_id"?,"instance_id",
//                         "block_size","dp_rank"?,"additionalsalt"?}
//                        ─▶ {"status":"registered successfully","instance_id":"pod-1"}
//   POST /unregister     {"instance_id","tenant_id"?,"dp_rank"?} ─▶ {"status":"unregistered successfully",
//                         "removed_instances":["pod-1|default|0"]}
//   POST /query          {"model","token_ids","block_size"?,"tenant_id"?,"instance_id"?,"lora_name"?,"cache_salt"?}
//   POST /query_by_hash  the same with "seq_hashes" (or "block_hash"): the contract's hashes
//                        ─▶ {"default":{"pod-1":{"longest_matched":256,"GPU":128,"DP":{"0":128,"1":256},"CPU":256,"DISK":0}}}
//   GET  /global_view    ─▶ {"data":{"<model>":{"<tenant>":{"block_size","instances":{"pod-1":{"type","status",
//                         "DP":{"0":{"endpoint","status"}},"blocks":{"0":{"GPU","CPU","DISK"}}}}}}}}
//
// *Truth*: GPU, CPU and DISK are the deepest prefix that one rank has on that medium alone, in
// tokens; DP is by rank, over all media; `longest_matched` the deepest of those. A model or a
// tenant that was never announced has no instances. The RFC's first text wraps the answers of
// queries in {"data":…}: with `wrap_data`, or where the request has ?data=1. The RFC leaves the
// form of /global_view open: this one is ours.
// *Threads*: the server's. *Lifetime*: registry and directory outlive it, and it the server.

#ifndef KVATLAS_INDEXER_COMPAT_MOONCAKE_MOONCAKE_API_H_
#define KVATLAS_INDEXER_COMPAT_MOONCAKE_MOONCAKE_API_H_

#include <cstdint>
#include <memory>
#include <string>

#include "indexer/base/hash.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/net/http_server.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/security/security.h"

namespace kvatlas {

inline constexpr uint16_t kMooncakePort = 13333;

struct MooncakeApiOptions {
  HashContract contract;
  bool wrap_data = false;
  std::string cell = {};  // what a registration is of, for the policy
};

class MooncakeApi {
 public:
  MooncakeApi(MooncakeApiOptions options, const HolderRegistry* registry,
              EngineDirectory* directory);

  // Adds the paths above. REQUIRES: `server` has not started.
  void AddRoutes(HttpServer* server);

 private:
  HttpResponse Register(const HttpRequest& request);
  HttpResponse Unregister(const HttpRequest& request);
  HttpResponse Query(const HttpRequest& request, bool by_hash);
  HttpResponse GlobalView() const;

  const MooncakeApiOptions options_;
  const HolderRegistry* const registry_;
  EngineDirectory* const directory_;
  const std::shared_ptr<Security> security_ = Security::OfProcess();
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COMPAT_MOONCAKE_MOONCAKE_API_H_
