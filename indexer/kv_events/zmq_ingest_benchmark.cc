// The cost in this process of a block from an engine's socket to a holder. Engines in a process of
// their own publish vLLM's map events over loopback TCP as fast as they are read; CPU is that of
// this process, libzmq's threads included. Idle streams are counted beside.
//
//   bazel run //indexer/kv_events:zmq_ingest_benchmark

#include <benchmark/benchmark.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "indexer/base/mutex.h"
#include "indexer/kv_events/decoder_test_util.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/zmq_ingest.h"

namespace kvatlas {
namespace {

constexpr size_t kBlockSize = 16;
constexpr uint64_t kVocabulary = 150'000;

// A holder that takes everything.
class NoWriter : public HoldingsWriter {
 public:
  Applied Apply(std::span<const Event> events) override {
    return {.events = events.size(), .changed = UINT64_MAX, .status = {}};
  }
  void SetTrust(Trust) override {}
};

// Stores of `blocks` blocks behind the root, `events` in a batch, all different.
std::string Payload(size_t events, size_t blocks, std::mt19937_64* random) {
  MsgpackWriter out;
  for (size_t event = 0; event < events; ++event) {
    out.Map(11).Text("type").Text("BlockStored").Text("block_hashes").Array(blocks);
    for (size_t i = 0; i < blocks; ++i) out.Wide(0xcf, (*random)());
    out.Text("parent_block_hash").Nil();
    out.Text("token_ids").Array(blocks * kBlockSize);
    for (size_t i = 0; i < blocks * kBlockSize; ++i) out.Unsigned((*random)() % kVocabulary);
    out.Text("block_size").Unsigned(kBlockSize).Text("lora_id").Nil();
    out.Text("medium").Text("GPU").Text("lora_name").Nil();
    out.Text("extra_keys").Array(blocks);
    for (size_t i = 0; i < blocks; ++i) out.Nil();
    out.Text("group_idx").Unsigned(0).Text("kv_cache_spec_kind").Text("full_attention");
  }
  return BatchOf(events, out.bytes());
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Time passes, while this thread costs nothing.
void Rest(std::chrono::nanoseconds time) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(&mutex);
  never.WaitFor(&mutex, time);
}

// The engines' process: dials out to each address, says on `ready` that all are connected, waits
// for a word on `start`, publishes, and stays until killed.
[[noreturn]] void RunEngines(const std::vector<std::string>& endpoints, size_t messages,
                             const std::vector<std::string>& payloads, int ready, int start) {
  void* context = zmq_ctx_new();
  std::vector<void*> sockets;
  for (const std::string& endpoint : endpoints) {
    sockets.push_back(zmq_socket(context, ZMQ_XPUB));
    // Nothing is dropped: `send` waits for room.
    const int on = 1;
    zmq_setsockopt(sockets.back(), ZMQ_XPUB_NODROP, &on, sizeof(on));
    zmq_connect(sockets.back(), endpoint.c_str());
  }
  // A subscription each.
  char word;
  for (void* socket : sockets) zmq_recv(socket, &word, 1, 0);
  if (write(ready, "!", 1) != 1 || read(start, &word, 1) != 1) _exit(1);
  for (uint64_t number = 0; number < messages; ++number) {
    std::string bytes;
    for (int shift = 56; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<char>(number >> shift));
    }
    for (void* socket : sockets) {
      const std::string& payload = payloads[number % payloads.size()];
      zmq_send(socket, "", 0, ZMQ_SNDMORE);
      zmq_send(socket, bytes.data(), bytes.size(), ZMQ_SNDMORE);
      zmq_send(socket, payload.data(), payload.size(), 0);
    }
  }
  for (;;) pause();
}

// Args: streams, events a message, blocks an event.
void BM_Ingest(benchmark::State& state) {
  const auto streams = static_cast<size_t>(state.range(0));
  const auto events = static_cast<size_t>(state.range(1));
  const auto blocks = static_cast<size_t>(state.range(2));
  constexpr size_t kBlocksInAll = 4'000'000;
  const size_t messages = kBlocksInAll / (streams * events * blocks);
  std::mt19937_64 random(1);
  std::vector<std::string> payloads;
  // About as many different blocks as an engine holds.
  while (payloads.size() * events * blocks < 16384) {
    payloads.push_back(Payload(events, blocks, &random));
  }
  double cpu_s = 0;
  for (auto _ : state) {
    ZmqIngestOptions options;
    options.receive_hwm = 1000;
    auto ingest = std::make_unique<ZmqIngest>(options);
    std::vector<ZmqStreamId> ids;
    std::vector<std::string> endpoints;
    for (size_t i = 0; i < streams; ++i) {
      EngineWorkerOptions worker;
      worker.name = std::to_string(i);
      const auto make_writer = [](uint32_t) { return std::make_shared<NoWriter>(); };
      const auto id =
          ingest->Add({.worker_name = worker.name, .endpoint = "tcp://127.0.0.1:0", .bind = true},
                      std::make_shared<EngineWorker>(worker, make_writer));
      if (!id.ok()) {
        state.SkipWithError("no stream");
        return;
      }
      ids.push_back(*id);
      endpoints.push_back(*ingest->BoundEndpoint(*id));
    }
    ingest->OpenGate();
    int ready[2];
    int start[2];
    if (pipe(ready) != 0 || pipe(start) != 0) std::abort();
    const pid_t child = fork();
    if (child == 0) RunEngines(endpoints, messages, payloads, ready[1], start[0]);
    char word;
    if (read(ready[0], &word, 1) != 1) std::abort();
    const double cpu_before = CpuSeconds();
    const auto before = std::chrono::steady_clock::now();
    if (write(start[1], "!", 1) != 1) std::abort();
    for (const ZmqStreamId id : ids) {
      while (ingest->Stats(id)->tracker.last.value_or(0) + 1 < messages) {
        Rest(std::chrono::milliseconds(1));
      }
    }
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count());
    cpu_s += CpuSeconds() - cpu_before;
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    for (const int fd : {ready[0], ready[1], start[0], start[1]}) close(fd);
  }
  const double done =
      static_cast<double>(state.iterations() * messages * streams * events * blocks);
  state.counters["blocks"] = benchmark::Counter(done, benchmark::Counter::kIsRate);
  state.counters["cpu_ns_per_block"] = cpu_s * 1e9 / done;
}
BENCHMARK(BM_Ingest)
    ->Args({16, 8, 8})  // prefills
    ->Args({16, 8, 1})  // a step of decoding
    ->Args({16, 1, 1})  // the smallest messages
    ->Args({256, 8, 4})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

// Args: streams without an engine.
void BM_IdleStreams(benchmark::State& state) {
  ZmqIngest ingest({});
  ingest.OpenGate();
  const auto make_writer = [](uint32_t) { return std::make_shared<NoWriter>(); };
  const auto worker = std::make_shared<EngineWorker>(EngineWorkerOptions(), make_writer);
  for (int64_t i = 0; i < state.range(0); ++i) {
    const auto id =
        ingest.Add({.worker_name = "", .endpoint = "ipc:///tmp/kvatlas-no-engine"}, worker);
    if (!id.ok()) {
      state.SkipWithError("no stream");
      return;
    }
  }
  Rest(std::chrono::seconds(1));
  const double cpu_before = CpuSeconds();
  for (auto _ : state) Rest(std::chrono::seconds(2));
  state.counters["cpu_percent"] = (CpuSeconds() - cpu_before) / 2 * 100;
}
BENCHMARK(BM_IdleStreams)->Arg(2000)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
}  // namespace kvatlas

BENCHMARK_MAIN();
