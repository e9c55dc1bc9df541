// The interface of Dynamo's standalone indexer over HTTP: paths, bodies, status codes and texts of
// refusals; and our additions.
//
//   /health /register /unregister /workers /query /query_by_hash /dump /register_peer
//   /deregister_peer /peers /snapshot /reopen_logs /test/pause_listener /test/resume_listener (only
//   with `test_endpoints`)
//
//   POST /query?detail=1      beside the answer, every rank by tier with trust, age and load; also /query_by_hash
//   POST /query               {"queries":[{…},…]} ─▶ {"answers":[{…},…]}, each as if asked alone; also /query_by_hash
//   POST /explain             the body of a query: who has which block, where it ends, where holes are
//   GET  /ready               200 or 503 {"ready":false,"reason":"2 of 4 workers"}
//
// *Truth*: `testdata/dynamo_http_transcripts.md` has what the original answers, and
// `http_transcript_test.cc` compares; where we answer better on purpose, the test says so.
// *Bounds*: of dumps, snapshots and explanations two at a time (`long_answers.h`), then 503 with
// retry-after; an explanation goes into at most 65,536 blocks and 1,024 ranks.
// *Threads*: the server's. Queries are answered on its I/O threads, everything else on its pool.
// *Lifetime*: what `HttpApiParts` names outlives it; it outlives the server.

#ifndef KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_API_H_
#define KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_API_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "indexer/base/hash.h"
#include "indexer/checkpoint/replica_peers.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/net/http_server.h"
#include "indexer/process/readiness.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

struct HttpApiOptions {
  HashContract contract;
  std::string cell = {};  // what a snapshot or a registration is of, for the policy
  bool test_endpoints = false;
  std::string access_log = {};  // file; empty: none
};

// KVATLAS_TEST_ENDPOINTS (or Dynamo's DYN_KV_INDEXER_TEST_ENDPOINTS) is 1, true, yes or on.
bool TestEndpointsFromEnvironment();

struct HttpApiParts {
  HolderRegistry* registry = nullptr;
  EngineDirectory* directory = nullptr;  // null: this leaf listens to no engines
  Peers* peers = nullptr;
  std::function<Readiness()> ready = nullptr;
  Metrics* metrics = nullptr;
};

class HttpApi {
 public:
  HttpApi(HttpApiOptions options, HttpApiParts parts);
  ~HttpApi();

  HttpApi(const HttpApi&) = delete;
  HttpApi& operator=(const HttpApi&) = delete;

  // UNAVAILABLE: the access log cannot be opened.
  absl::Status Open();

  // Adds the paths above. REQUIRES: `server` has not started.
  void AddRoutes(HttpServer* server);

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_API_H_
