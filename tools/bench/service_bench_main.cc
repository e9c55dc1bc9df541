// service_bench: one leaf process, or any service that answers like one, over loopback.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/process/flags.h"
#include "tools/bench/service_bench.h"

namespace kvatlas {
namespace {

// `bazel run` changes the folder, and says which one it came from.
std::string DefaultLeaf() {
  const char* const workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  const std::string folder = workspace == nullptr ? "" : std::string(workspace) + "/";
  return folder + "bazel-bin/indexer/leaf/kvatlas-leaf";
}

void Declare(FlagSet* flags, ServiceBenchOptions* options, std::string* json) {
  flags->AddChoice("what", &options->what, "what is measured",
                   {"query_http", "query_grpc", "ingest_zmq", "ingest_grpc", "ingest_redis"});
  flags->Add("leaf", &options->leaf, "the leaf's binary");
  flags->Add("url", &options->url, "http://HOST:PORT of a service that runs already");
  flags->Add("pid", &options->pid, "its process, for its cost");
  flags->Add("seconds", &options->seconds, "how long queries are measured", 0.01, 3600.0);
  flags->Add("warm_up_s", &options->warm_up_s, "and how long they run before", 0.0, 600.0);
  flags->Add("qps", &options->qps,
             "query_http: requests, ingest_zmq: block ops per second; 0: all it takes", 0.0);
  flags->Add("connections", &options->connections,
             "query_http: each with one request outstanding; query_grpc: each a stream", 1u, 1024u);
  flags->Add("in_flight", &options->in_flight, "query_grpc: questions outstanding on each stream",
             1u, 65536u);
  flags->Add("workers", &options->workers, "engines; 0: 16 of queries, 8 of ingest", 0u, 4096u);
  flags->Add("block_size", &options->block_size, "tokens per block", 1u, 65536u);
  flags->Add("seed", &options->seed, "of prompts and streams");
  flags->Add("blocks", &options->blocks, "of a prompt; 0: 512 over HTTP, 190 over gRPC", 0u,
             65536u);
  flags->Add("tokens", &options->tokens, "query_http: ask /query with so many token ids", 0u,
             1u << 20);
  flags->Add("prompts", &options->prompts, "distinct, each held by every worker", 1u, 65536u);
  flags->AddChoice("load", &options->load, "how the workers of a query come in; empty: as asked",
                   {"", "zmq", "grpc"});
  flags->Add("ingest_blocks", &options->ingest_blocks, "stored while measured, by all engines",
             uint64_t{1});
  flags->Add("capacity", &options->capacity, "blocks of an engine, then it evicts; 0: no limit");
  flags->Add("cold", &options->cold, "ingest: engines without limit, from an empty service on");
  flags->Add("sequence_blocks", &options->sequence_blocks, "of an ingested prompt", 1u, 65536u);
  flags->Add("event_blocks", &options->event_blocks, "stored by an event, and by a batch", 1u,
             65536u);
  flags->Add("lag_probes_per_s", &options->lag_probes_per_s, "ingest_zmq: 0 none", 0u, 1000u);
  flags->Add("json", json, "file for one JSON object; `-` standard output");
}

int Main(int argc, char** argv) {
  ServiceBenchOptions options;
  options.what = "query_http";
  options.leaf = DefaultLeaf();
  std::string json;
  FlagSet flags("service_bench", "What a leaf does per second over loopback, and what it costs.");
  Declare(&flags, &options, &json);
  flags.ParseOrExit(argc, argv);
  const absl::StatusOr<ServiceBenchResult> result = RunServiceBench(options);
  if (!result.ok()) {
    std::fprintf(stderr, "service_bench: %s\n", result.status().ToString().c_str());
    return result.status().code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
  }
  if (json == "-") {
    std::cout << ToJson(*result) << std::endl;
  } else if (!json.empty()) {
    std::ofstream file(json);
    file << ToJson(*result) << std::endl;
    if (!file) {
      std::fprintf(stderr, "service_bench: %s: cannot be written\n", json.c_str());
      return 1;
    }
  }
  (json == "-" ? std::cerr : std::cout) << ToText(*result);
  return result->errors == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
