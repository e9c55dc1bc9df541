// mock_engine: an engine without a GPU. A model of its cache and its time, publishing through the
// real library.

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/prompt/text/local_tokenizer.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/net/grpc_server.h"
#include "indexer/process/flags.h"
#include "indexer/process/service_main.h"
#include "indexer/telemetry/health.h"
#include "indexer/telemetry/log.h"
#include "publisher/publisher.h"
#include "publisher/zmq_publisher.h"
#include "tools/testing/mock_engine/byte_tokenizer.h"
#include "tools/testing/mock_engine/engine_model.h"
#include "tools/testing/mock_engine/engine_ranks.h"
#include "tools/testing/mock_engine/hybrid.h"
#include "tools/testing/mock_engine/openai_http.h"

namespace kvatlas {
namespace {

// For the ready line; only tcp endpoints have an address.
void AddEndpoint(const std::string& name, const std::string& endpoint,
                 std::vector<std::pair<std::string, Address>>* addresses) {
  constexpr std::string_view kTcp = "tcp://";
  if (!endpoint.starts_with(kTcp)) return;
  const auto address = Address::Parse(std::string_view(endpoint).substr(kTcp.size()));
  if (address.ok()) addresses->emplace_back(name, *address);
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) {
  using namespace kvatlas;
  ServiceMain service("mock_engine", "An engine without a GPU: its cache, its time, its events.");
  EngineOptions options;
  PublisherOptions publishing;
  Address grpc_address;
  publishing.domain.model = "mock";
  publishing.worker = "worker-0";
  FlagSet& flags = service.flags();
  flags.Add("grpc", &grpc_address, "address for gRPC (tools/testing/mock_engine/engine.proto)");
  flags.Add(
      "leaf", &publishing.leaves,
      "gRPC addresses of the replicas of its cell's leaf, or where they are found: dns:HOST:PORT, "
      "redis://HOST:PORT");
  flags.AddName("cell", &publishing.cell, "name of its cell, for leaves that announce themselves",
                true);
  flags.Add("redis", &publishing.redis.url,
            "URL of a Redis where its cell's leaf reads, redis://HOST:PORT or @FILE; empty: none");
  flags.AddName("redis_cell", &publishing.redis.cell,
                "name of its cell, for --redis; empty: --cell", true);
  flags.Add("redis_shards", &publishing.redis.shards, "shards of its cell's logs", 1u, 1024u);
  flags.Add("tls_cert", &publishing.tls.certificate, "PEM file with its certificate for leaves");
  flags.Add("tls_key", &publishing.tls.key, "PEM file with its key");
  flags.Add("tls_ca", &publishing.tls.ca, "PEM file with the CA of leaves; empty: no TLS to them");
  flags.AddName("worker", &publishing.worker, "its name");
  flags.AddName("model", &publishing.domain.model, "model of its domain");
  flags.AddName("tenant", &publishing.domain.tenant, "tenant of its domain", true);
  flags.Add("capacity", &options.capacity_blocks, "blocks in its pool", uint64_t{1});
  flags.Add("block_size", &options.block_size, "tokens per block", 1u, 65536u);
  flags.Add("prefill_tokens_per_s", &options.prefill_tokens_per_s, "speed of prefill", 1.0, 1e9);
  flags.Add("decode_ms_per_token", &options.decode_ms_per_token, "time of an output token", 0.0,
            1e6);
  std::string hybrid;
  flags.Add("hybrid", &hybrid,
            "side class of its model: window:TOKENS (sliding window) or mamba:TOKENS (a state each "
            "so many tokens of prefill); "
            "empty: full attention alone");
  flags.Add("dp_rank", &publishing.dp_rank, "its data-parallel rank", 0u, 65535u);
  uint32_t ranks = 1;
  flags.Add(
      "ranks", &ranks,
      "data-parallel ranks behind --http, each with a cache of its own, from --dp_rank on; --grpc "
      "is the first one's",
      1u, 1024u);
  flags.Add(
      "zmq_events", &publishing.zmq.endpoint,
      "ZMQ endpoint for vLLM's KV events, such as tcp://*:5557; the port goes up by the rank. "
      "Blocks are then published with tokens made from their hashes, to leaves too");
  flags.Add("zmq_replay", &publishing.zmq.replay_endpoint, "ZMQ endpoint that replays them");
  flags.Add("zmq_curve_key", &publishing.zmq.curve_key,
            "file with its CURVE key for --zmq_events and --zmq_replay (kvatlas pki curve); empty: "
            "in clear");
  flags.Add("zmq_window", &publishing.zmq.ring_batches_max, "batches that it can replay",
            size_t{1});
  flags.Add("zmq_topic", &publishing.zmq.topic, "topic of the events");
  bool zmq_legacy = false;
  std::string zmq_attach = "auto";
  flags.AddChoice(
      "zmq_attach", &zmq_attach,
      "whether --zmq_events is bound or dialled; auto: wildcards and free ports are bound",
      {"auto", "bind", "connect"});
  flags.Add("zmq_legacy", &zmq_legacy,
            "tuples and replies without a topic, as engines did before mid-2026");
  std::string cache_salt;
  flags.Add("cache_salt", &cache_salt,
            "that requests of --http without one are cached under, and their blocks announced");
  Duration token_time{0};
  Duration prefill_time{0};
  std::string http_listen;
  flags.Add("http", &http_listen,
            "HOST:PORT for OpenAI's calls; its worker is labelled with their url. Empty: none");
  flags.Add("token_time", &token_time, "between two words of a streamed answer, in real time");
  flags.Add("prefill_time", &prefill_time,
            "of 1,000 tokens of a prompt over HTTP, in real time, before its blocks are stored");
  std::string tokenizer;
  flags.Add("tokenizer", &tokenizer,
            "folder or file of a tokenizer.json or tokenizer.model, and of a chat template, that "
            "--http makes "
            "tokens by; empty: a token for each byte");
  std::vector<std::string> labels;
  flags.Add("labels", &labels, "KEY=VALUE,… that its worker is labelled with, such as role=decode");
  service.Start(argc, argv);
  const absl::StatusOr<HybridOptions> side = ParseHybrid(hybrid);
  if (!side.ok())
    return service.Fail(
        absl::InvalidArgumentError("--hybrid: " + std::string(side.status().message())));
  options.hybrid = *side;
  if (!side->plain() && !publishing.zmq.endpoint.empty()) {
    return service.Fail(absl::InvalidArgumentError(
        "--hybrid: side blocks are not published over ZeroMQ; drop --zmq_events"));
  }
  if (zmq_attach == "bind") publishing.zmq.attach = ZmqAttach::kBind;
  if (zmq_attach == "connect") publishing.zmq.attach = ZmqAttach::kConnect;
  if (zmq_legacy) {
    publishing.zmq.form = ZmqEventForm::kLegacyArray;
    publishing.zmq.replay_layout = ZmqReplayLayout::kNoTopic;
  }

  for (const std::string& label : labels) {
    const size_t equals = label.find('=');
    if (equals == 0 || equals == std::string::npos)
      return service.Fail(absl::InvalidArgumentError("--labels: '" + label + "' is no KEY=VALUE"));
    publishing.labels.emplace_back(label.substr(0, equals), label.substr(equals + 1));
  }

  OpenAiHttpOptions openai{.listen = {},
                           .model = publishing.domain.model,
                           .token_time = token_time,
                           .prefill_time = prefill_time,
                           .cache_salt = cache_salt,
                           .block_size = options.block_size,
                           .events_topic = publishing.zmq.topic};
  if (!http_listen.empty()) {
    const absl::StatusOr<Address> listen = Address::Parse(http_listen);
    if (!listen.ok()) return service.Fail(listen.status());
    openai.listen = *listen;
  }
  ByteTokenizer bytes;
  std::unique_ptr<ModelRegistry> models;
  if (!tokenizer.empty()) {
    ModelOptions model{.name = openai.model};
    model.text.path = tokenizer;
    auto loaded = ModelRegistry::Create({std::move(model)});
    if (!loaded.ok()) return service.Fail(loaded.status());
    models = *std::move(loaded);
  }
  LocalTokenizer local(models.get(), {});
  PromptTokenizer* const used = models == nullptr ? static_cast<PromptTokenizer*>(&bytes) : &local;
  OpenAiHttp openai_http(openai, used);
  if (!http_listen.empty()) {
    if (absl::Status status = openai_http.Start(); !status.ok()) return service.Fail(status);
    publishing.labels.emplace_back("url", "http://" + openai_http.address().ToString());
  }
  publishing.block_size = options.block_size;
  const absl::StatusOr<std::unique_ptr<EngineRanks>> engine =
      EngineRanks::Start(options, publishing, ranks);
  if (!engine.ok()) return service.Fail(engine.status());
  openai_http.Serve(engine->get());
  GrpcServer grpc({.listen = grpc_address});
  grpc.Register(&(*engine)->engine(0), "kvatlas.engine.v1.Engine");
  if (absl::Status status = grpc.Start(); !status.ok()) return service.Fail(status);
  grpc.SetHealth(Health::kServing);
  std::vector<std::pair<std::string, Address>> addresses = {{"grpc", grpc.address()}};
  if (!http_listen.empty()) addresses.emplace_back("http", openai_http.address());
  if (const std::optional<ZmqPublisherStats> zmq = (*engine)->publisher(0).Stats().zmq) {
    AddEndpoint("zmq_events", zmq->endpoint, &addresses);
    AddEndpoint("zmq_replay", zmq->replay_endpoint, &addresses);
  }
  if (!publishing.zmq.endpoint.empty() &&
      !ZmqBinds(publishing.zmq.endpoint, publishing.zmq.attach)) {
    Log(LogLevel::kInfo, "events go to a subscriber that listens at --zmq_events",
        {{"endpoint", publishing.zmq.endpoint},
         {"hint", "to listen there for subscribers: --zmq_attach=bind, or tcp://*:PORT"}});
  }
  if (absl::Status status = service.Ready(addresses); !status.ok()) return service.Fail(status);
  service.WaitForSignal();
  openai_http.Stop();
  grpc.Stop(service.stop_deadline());
  (*engine)->Stop(std::chrono::milliseconds(100));
  return 0;
}
