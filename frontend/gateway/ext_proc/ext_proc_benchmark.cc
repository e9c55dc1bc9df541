// What does a request cost at the picker's port? The server as gateways reach it, with TLS of its
// own and bodies streamed both ways, in a process of its own; one connection asks it as Envoy does:
// headers and body, then, with the endpoint there, the response's headers and body. A leaf of 128
// workers answers at once in the server's process, so that what is left is the port, the reading of
// the request and the choice.
//
//   bazel run -c opt //frontend/gateway/ext_proc:ext_proc_benchmark
//
// `p50_us`: from the first message of a request to the end of its stream, as the client sees it,
// both its round trips included. `server_us` and `server_switches`: processor time of the server,
// and how often its threads gave up a processor, per request.

#include <benchmark/benchmark.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "frontend/gateway/ext_proc/endpoints.h"
#include "frontend/gateway/ext_proc/ext_proc_service.h"
#include "frontend/gateway/ext_proc/external_processor.grpc.pb.h"
#include "frontend/gateway/ext_proc/picker.h"
#include "frontend/gateway/ext_proc/proxy_test_util.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "indexer/base/clock.h"
#include "indexer/net/grpc_server.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {
namespace {

constexpr int kWorkers = 128;

class NearFleet : public CellFinder, public OverlapFinder {
 public:
  explicit NearFleet(Endpoints* endpoints) {
    for (int i = 0; i < kWorkers; ++i) {
      const std::string name = "worker-" + std::to_string(i);
      answer_.workers.push_back({.worker = {name, 0, ""},
                                 .blocks = static_cast<uint32_t>(i % 8),
                                 .load = Load{.running_requests = static_cast<uint32_t>(i % 7)}});
      if (!endpoints->Configure(name + "=10.0.0." + std::to_string(i) + ":8000").ok()) std::abort();
    }
  }
  void FindCells(const std::string&, const CellQuestion&, Duration,
                 CellFinder::Callback callback) override {
    callback(absl::UnavailableError("none"));
  }
  void FindOverlaps(const std::string&, const OverlapQuestion&, Duration,
                    OverlapFinder::Callback callback) override {
    callback(answer_);
  }

 private:
  WorkersAnswer answer_;
};

// What the server's process has used.
struct Used {
  int64_t processor_us;
  int64_t switches;
};

Used UsedByThisProcess() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& time) { return time.tv_sec * 1'000'000 + time.tv_usec; };
  return {.processor_us = us(usage.ru_utime) + us(usage.ru_stime), .switches = usage.ru_nvcsw};
}

// Serves until `control` is closed: says the address, then, for each byte, what it has used.
void Serve(int control) {
  Endpoints endpoints;
  NearFleet fleet(&endpoints);
  FrontendOptions options;
  options.leaves = {{"cell", "leaf:1"}};
  Frontend frontend(std::move(options), &fleet, &fleet, &Clock::Real());
  Picker picker({}, &frontend, nullptr, &endpoints);
  Metrics metrics;
  ExtProcService service({}, &picker, &metrics, uint64_t{1} << 30);
  GrpcServer server({.listen = {.host = "127.0.0.1", .port = 0}, .tls = PortTls::kOwn});
  server.Register(&service, kExtProcServiceName);
  if (!server.Start().ok()) std::abort();
  const uint16_t port = server.address().port;
  if (write(control, &port, sizeof(port)) != sizeof(port)) std::abort();
  for (char byte; read(control, &byte, 1) == 1;) {
    const Used used = UsedByThisProcess();
    if (write(control, &used, sizeof(used)) != sizeof(used)) std::abort();
  }
  server.Stop(Duration::zero());
}

// The server, in a process that is forked before gRPC has threads in this one.
class Server {
 public:
  static Server& Get() {
    static Server& server = *new Server();
    return server;
  }

  Used used() const {
    Used used{};
    if (write(control_, "?", 1) != 1 || read(control_, &used, sizeof(used)) != sizeof(used))
      std::abort();
    return used;
  }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  Server() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::abort();
    if (fork() == 0) {
      close(ends[0]);
      Serve(ends[1]);
      _exit(0);
    }
    close(ends[1]);
    control_ = ends[0];
    uint16_t port = 0;
    if (read(control_, &port, sizeof(port)) != sizeof(port)) std::abort();
    channel_ = GatewayChannel("127.0.0.1:" + std::to_string(port), /*tls=*/true);
  }

  int control_ = -1;
  std::shared_ptr<grpc::Channel> channel_;
};

// The headers of a request as Envoy sends them.
ext_proc::ProcessingRequest RequestHeaders() {
  return Mode(ext_proc::FULL_DUPLEX_STREAMED,
              Request("POST", "/v1/completions", false,
                      {{":scheme", "http"},
                       {"content-length", "700"},
                       {"user-agent", "OpenAI/Python 1.99"},
                       {"x-forwarded-proto", "http"},
                       {"x-request-id", "6f1a0c4b-9b43-4a53-9a6f-1f2f6a2c9e10"},
                       {"accept", "application/json"},
                       {"authorization", "Bearer none"}}));
}

bool Answered(
    grpc::ClientReaderWriter<ext_proc::ProcessingRequest, ext_proc::ProcessingResponse>* stream) {
  ext_proc::ProcessingResponse answer;
  return stream->Read(&answer) && !answer.has_immediate_response();
}

void Requests(benchmark::State& state) {
  Server& server = Server::Get();
  const auto stub = ext_proc::ExternalProcessor::NewStub(server.channel());
  const ext_proc::ProcessingRequest headers = RequestHeaders();
  std::string tokens;
  for (int i = 0; i < 128; ++i) tokens += (i == 0 ? "" : ", ") + std::to_string(1000 + i);
  const ext_proc::ProcessingRequest body =
      Body(R"({"model": "m", "prompt": [)" + tokens + "], \"user\": \"" +
               std::string(static_cast<size_t>(state.range(0)), 'x') + "\"}",
           true);
  const ext_proc::ProcessingRequest response = Response("200", "application/json");
  const ext_proc::ProcessingRequest answer = ResponseBody(
      R"({"usage": {"prompt_tokens": 128, "prompt_tokens_details": {"cached_tokens": 96}}})", true);
  const Used before = server.used();
  std::vector<double> took_us;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    grpc::ClientContext context;
    const auto stream = stub->Process(&context);
    stream->Write(headers);
    stream->Write(body);
    bool good = Answered(stream.get());
    for (size_t at = 0; at < body.request_body().body().size(); at += kBodyChunkMax)
      good = good && Answered(stream.get());
    stream->Write(response);
    stream->Write(answer);
    good = good && Answered(stream.get()) && Answered(stream.get());
    stream->WritesDone();
    if (!stream->Finish().ok() || !good) return state.SkipWithError("a request was refused");
    took_us.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  const Used after = server.used();
  std::sort(took_us.begin(), took_us.end());
  const auto requests = static_cast<double>(took_us.size());
  state.counters["p50_us"] = took_us[took_us.size() / 2];
  state.counters["server_us"] =
      static_cast<double>(after.processor_us - before.processor_us) / requests;
  state.counters["server_switches"] =
      static_cast<double>(after.switches - before.switches) / requests;
}

BENCHMARK(Requests)->ArgName("more_bytes")->Arg(0)->Arg(4096)->Arg(500'000)->UseRealTime();

}  // namespace
}  // namespace kvatlas

BENCHMARK_MAIN();
