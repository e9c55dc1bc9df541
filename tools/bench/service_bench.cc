#include "tools/bench/service_bench.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "tools/bench/service_bench_engines.h"
#include "tools/bench/service_bench_grpc.h"
#include "tools/bench/service_bench_http.h"
#include "tools/bench/service_bench_query.h"
#include "tools/bench/service_bench_redis.h"
#include "tools/bench/service_bench_target.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kSubscribe(60);
constexpr std::chrono::seconds kQueryable(120);
// Between two looks at something that is not there yet.
constexpr std::chrono::microseconds kLook(500);
// While every socket is full.
constexpr std::chrono::microseconds kFull(100);
constexpr uint32_t kWorkersMax = 4096;
constexpr char kBenchCell[] = "bench";

bool IsQuery(const ServiceBenchOptions& options) { return options.what.starts_with("query_"); }

absl::Status Bad(const std::string& what) { return absl::InvalidArgumentError(what); }

ServiceBenchOptions WithDefaults(ServiceBenchOptions options) {
  if (options.workers == 0) options.workers = IsQuery(options) ? 16 : 8;
  if (options.blocks == 0) options.blocks = options.what == "query_grpc" ? 190 : 512;
  if (options.tokens > 0) options.blocks = options.tokens / options.block_size;
  if (options.cold) options.capacity = 0;
  if (options.load.empty()) options.load = options.what == "query_grpc" ? "grpc" : "zmq";
  return options;
}

// The difference between two readings of a target, when both could be taken.
template <typename T>
std::optional<T> Since(const std::optional<T>& before, const std::optional<T>& after) {
  if (!before || !after || *after < *before) return std::nullopt;
  return *after - *before;
}

Percentiles Scaled(Percentiles p, double by) {
  for (double* value : {&p.p50, &p.p99, &p.p999, &p.max, &p.mean}) *value *= by;
  return p;
}

// Of values that are too long for `Latencies`.
std::optional<Percentiles> PercentilesOf(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[std::min(values.size() - 1, static_cast<size_t>(share * values.size()))];
  };
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return Percentiles{.p50 = at(0.5),
                     .p99 = at(0.99),
                     .p999 = at(0.999),
                     .max = values.back(),
                     .mean = sum / static_cast<double>(values.size())};
}

// Polls until `done` says so, or says what went wrong.
absl::Status Await(const std::string& what, const std::function<absl::StatusOr<bool>()>& done) {
  const Time until = Clock::Real().Now() + kQueryable;
  for (;;) {
    absl::StatusOr<bool> is_done = done();
    if (!is_done.ok()) return is_done.status();
    if (*is_done) return absl::OkStatus();
    if (Clock::Real().Now() >= until) return absl::DeadlineExceededError(what);
    std::this_thread::sleep_for(kLook);
  }
}

class Bench {
 public:
  // `redis` is where the leaf reads; null: nowhere.
  Bench(const ServiceBenchOptions& options, BenchTarget* target, const RedisTestServer* redis)
      : options_(options),
        target_(*target),
        redis_(redis),
        http_(target->http()),
        random_(options.seed) {
    result_.what = options.what;
    result_.target = target->name();
    result_.workers = options.workers;
  }

  absl::StatusOr<ServiceBenchResult> Run() {
    const absl::Status status = IsQuery(options_)                 ? Query()
                                : options_.what == "ingest_grpc"  ? IngestGrpc()
                                : options_.what == "ingest_redis" ? IngestRedis()
                                                                  : IngestZmq();
    if (!status.ok()) return status;
    result_.leaf_rss_bytes = target_.RssBytes();
    return result_;
  }

 private:
  // ---- Queries ----
  absl::Status Query();
  absl::Status LoadPrompts();
  absl::Status LoadByZmq();
  absl::Status LoadByGrpc();
  // Every prompt is held by every worker.
  absl::StatusOr<bool> IsLoaded(const BenchPrompt& prompt);
  template <typename Load>
  void Measure(Load* load);

  // ---- Ingest ----
  struct Stream {
    std::vector<std::string> frames;
    std::vector<uint32_t> frame_ops;  // block ops in each
    size_t warm_frames = 0;           // the first so many are sent before the clock runs
    EngineOutcome outcome;            // of the others
    BenchPrompt full;                 // one block that comes after these
    BenchPrompt last;                 // one block that comes after everything
  };
  struct Probe {
    size_t prompt = 0;
    Time sent{0};
  };
  absl::Status IngestZmq();
  absl::Status IngestGrpc();
  absl::Status IngestRedis();
  // Blocks that every engine stores before the clock runs.
  uint64_t WarmUpBlocks() const;
  void PrepareStreams();
  EngineOutcome RunWorker(const std::function<void(const BenchStep&)>& visit);
  void AddMarker(Stream* stream, BenchPrompt* marker);
  void SendWarmUp(ZmqFeeder* feeder);
  void SendAll(ZmqFeeder* feeder);
  void SendProbe(ZmqFeeder* feeder, size_t probe);
  void SendOrWait(ZmqFeeder* feeder, uint32_t engine, const std::string& frame);
  void LookForProbes(std::vector<double>* lags_ms);
  // Until this block of every engine is found.
  absl::Status AwaitMarkers(BenchPrompt Stream::* marker);
  absl::Status CheckHeld(const std::vector<EngineOutcome>& outcomes);
  absl::StatusOr<Scores> Ask(const BenchPrompt& prompt);
  void FillIngest(const std::vector<EngineOutcome>& outcomes, double seconds, uint64_t bytes,
                  std::optional<double> leaf_cpu_s, double client_cpu_s,
                  std::optional<uint64_t> rss_before);

  const ServiceBenchOptions options_;
  BenchTarget& target_;
  const RedisTestServer* const redis_;
  HttpClient http_;
  std::mt19937_64 random_;
  ServiceBenchResult result_;

  std::vector<BenchPrompt> prompts_;
  // Payloads outlive the feeder that sends them without a copy.
  std::vector<std::string> prompt_frames_;
  std::vector<Stream> streams_;
  std::vector<BenchPrompt> probe_prompts_;
  std::vector<std::string> probe_frames_;
  std::unique_ptr<ZmqFeeder> feeder_;

  std::atomic<bool> sending_{false};
  Mutex mutex_;
  std::deque<Probe> probes_ ABSL_GUARDED_BY(mutex_);
};

// ---- Queries ----

absl::Status Bench::Query() {
  const BlockNames names = options_.load == "grpc" ? BlockNames::kContract : BlockNames::kOwn;
  for (uint32_t i = 0; i < options_.prompts; ++i) {
    prompts_.push_back(RandomPrompt(options_.blocks, options_.block_size, names, random_));
  }
  if (absl::Status status = LoadPrompts(); !status.ok()) return status;
  result_.connections = options_.connections;
  result_.blocks = options_.blocks;
  if (options_.what == "query_grpc") {
    std::vector<v1::FindOverlapsRequest> questions;
    for (const BenchPrompt& prompt : prompts_) {
      questions.push_back(FindOverlapsRequestOf(prompt.blocks));
    }
    GrpcLoad load(target_.grpc(), options_.connections, options_.in_flight, std::move(questions));
    Measure(&load);
    return absl::OkStatus();
  }
  std::vector<std::string> requests;
  for (const BenchPrompt& prompt : prompts_) {
    requests.push_back(
        options_.tokens > 0
            ? HttpPost(target_.http(), "/query", QueryBody(prompt.tokens))
            : HttpPost(target_.http(), "/query_by_hash", QueryByHashBody(prompt.locals)));
  }
  HttpLoad load({.to = target_.http(), .connections = options_.connections, .qps = options_.qps},
                requests);
  absl::Status status = load.Connect();
  if (status.ok()) Measure(&load);
  return status;
}

absl::Status Bench::LoadPrompts() {
  absl::Status status = options_.load == "grpc" ? LoadByGrpc() : LoadByZmq();
  for (const BenchPrompt& prompt : prompts_) {
    if (!status.ok()) break;
    status =
        Await("a prompt is not held by every worker in time", [&] { return IsLoaded(prompt); });
  }
  return status;
}

absl::Status Bench::LoadByZmq() {
  absl::StatusOr<std::unique_ptr<ZmqFeeder>> feeder = ZmqFeeder::Create(options_.workers);
  if (!feeder.ok()) return feeder.status();
  feeder_ = *std::move(feeder);
  for (const BenchPrompt& prompt : prompts_) {
    for (std::string& frame : FramesOf(prompt, options_.block_size, options_.event_blocks)) {
      prompt_frames_.push_back(std::move(frame));
    }
  }
  absl::Status status = feeder_->Register(&http_, options_.block_size, kSubscribe);
  if (!status.ok()) return status;
  for (const std::string& frame : prompt_frames_) {
    for (uint32_t engine = 0; engine < options_.workers; ++engine) {
      SendOrWait(feeder_.get(), engine, frame);
    }
  }
  return absl::OkStatus();
}

absl::Status Bench::LoadByGrpc() {
  std::vector<HoldingsStream> streams;
  for (uint32_t i = 0; i < options_.workers; ++i) {
    HoldingsStreamBuilder builder(std::to_string(i + 1), options_.block_size);
    for (const BenchPrompt& prompt : prompts_) {
      builder.Add({.removed = {},
                   .position = 0,
                   .parent = std::nullopt,
                   .stored = prompt.names,
                   .tokens = prompt.tokens});
    }
    streams.push_back(builder.Finish());
  }
  return WriteHoldings(target_.grpc(), streams, kQueryable).status();
}

absl::StatusOr<bool> Bench::IsLoaded(const BenchPrompt& prompt) {
  const absl::StatusOr<Scores> scores = Ask(prompt);
  if (!scores.ok()) return scores.status();
  const uint64_t tokens = prompt.locals.size() * options_.block_size;
  return std::count_if(scores->begin(), scores->end(), [&](const auto& entry) {
           return entry.second == tokens;
         }) == options_.workers;
}

// Over what the question uses: gRPC where there is no HTTP interface for it.
absl::StatusOr<Scores> Bench::Ask(const BenchPrompt& prompt) {
  if (options_.what != "query_grpc" && options_.what != "ingest_grpc" &&
      options_.what != "ingest_redis") {
    return AskByHash(&http_, prompt.locals);
  }
  const absl::StatusOr<v1::FindOverlapsResponse> answer =
      FindOverlaps(target_.grpc(), prompt.blocks);
  if (!answer.ok()) return answer.status();
  Scores scores;
  for (const v1::WorkerOverlap& worker : answer->workers()) {
    scores[worker.worker().name()] += uint64_t{worker.blocks()} * options_.block_size;
  }
  return scores;
}

template <typename Load>
void Bench::Measure(Load* load) {
  load->Run(options_.warm_up_s);
  const std::optional<double> cpu_before = target_.CpuSeconds();
  HttpLoadResult measured = load->Run(options_.seconds);
  result_.leaf_cpu_s = Since(cpu_before, target_.CpuSeconds());
  result_.seconds = measured.seconds;
  result_.errors = measured.errors;
  result_.first_error = measured.first_error;
  if (measured.answers == 0) return;
  const auto answers = static_cast<double>(measured.answers);
  result_.qps = answers / measured.seconds;
  result_.us = Scaled(measured.latencies.InNs(), 1e-3);
  result_.answer_bytes = measured.answer_bytes / measured.answers;
  result_.client_cpu_us_per_query = measured.client_cpu_s * 1e6 / answers;
  if (result_.leaf_cpu_s) result_.leaf_cpu_us_per_query = *result_.leaf_cpu_s * 1e6 / answers;
}

// ---- Ingest ----

EngineOutcome Bench::RunWorker(const std::function<void(const BenchStep&)>& visit) {
  const BlockNames names = options_.what == "ingest_zmq" ? BlockNames::kOwn : BlockNames::kContract;
  const uint64_t share = WarmUpBlocks() + options_.ingest_blocks / options_.workers;
  return RunEngine({.block_size = options_.block_size,
                    .blocks = share,
                    .capacity = options_.capacity,
                    .sequence_blocks = options_.sequence_blocks,
                    .event_blocks = options_.event_blocks,
                    .names = names},
                   random_, visit);
}

uint64_t Bench::WarmUpBlocks() const {
  return options_.what == "ingest_zmq" ? options_.capacity : 0;
}

void Bench::AddMarker(Stream* stream, BenchPrompt* marker) {
  *marker = RandomPrompt(1, options_.block_size, BlockNames::kOwn, random_);
  stream->frames.push_back(FramesOf(*marker, options_.block_size, 1).front());
  stream->frame_ops.push_back(1);
}

void Bench::PrepareStreams() {
  for (uint32_t worker = 0; worker < result_.workers; ++worker) {
    Stream stream;
    uint64_t warm_up_stored = 0, warm_up_removed = 0;
    stream.outcome = RunWorker([&](const BenchStep& step) {
      if (warm_up_stored < WarmUpBlocks()) {
        warm_up_stored += step.stored.size();
        warm_up_removed += step.removed.size();
        ++stream.warm_frames;
      } else if (stream.warm_frames > 0 && stream.frames.size() == stream.warm_frames) {
        AddMarker(&stream, &stream.full);
        ++stream.warm_frames;
      }
      stream.frames.push_back(FrameOf(step, options_.block_size));
      stream.frame_ops.push_back(static_cast<uint32_t>(step.removed.size() + step.stored.size()));
    });
    stream.outcome.stored -= warm_up_stored;
    stream.outcome.removed -= warm_up_removed;
    AddMarker(&stream, &stream.last);
    streams_.push_back(std::move(stream));
  }
  constexpr uint32_t kProbesMax = 10000;
  for (uint32_t i = 0; options_.lag_probes_per_s > 0 && i < kProbesMax; ++i) {
    probe_prompts_.push_back(RandomPrompt(1, options_.block_size, BlockNames::kOwn, random_));
    probe_frames_.push_back(FramesOf(probe_prompts_.back(), options_.block_size, 1).front());
  }
}

void Bench::SendOrWait(ZmqFeeder* feeder, uint32_t engine, const std::string& frame) {
  while (!feeder->TrySend(engine, frame)) std::this_thread::sleep_for(kFull);
}

void Bench::SendProbe(ZmqFeeder* feeder, size_t probe) {
  const Time sent = Clock::Real().Now();  // waiting for room is part of the lag
  SendOrWait(feeder, static_cast<uint32_t>(probe % feeder->engines()), probe_frames_[probe]);
  MutexLock lock(&mutex_);
  probes_.push_back({probe, sent});
}

void Bench::SendWarmUp(ZmqFeeder* feeder) {
  bool moved = true;
  for (size_t at = 0; moved; ++at) {
    moved = false;
    for (uint32_t engine = 0; engine < streams_.size(); ++engine) {
      if (at >= streams_[engine].warm_frames) continue;
      SendOrWait(feeder, engine, streams_[engine].frames[at]);
      moved = true;
    }
  }
}

// By turns, as fast as the sockets take it or at the rate asked for.
void Bench::SendAll(ZmqFeeder* feeder) {
  std::vector<size_t> next;
  for (const Stream& stream : streams_) next.push_back(stream.warm_frames);
  size_t unfinished = streams_.size();
  const Time begin = Clock::Real().Now();
  double sent_ops = 0;
  size_t probe = 0;
  while (unfinished > 0) {
    bool moved = false;
    for (uint32_t engine = 0; engine < streams_.size(); ++engine) {
      const Stream& stream = streams_[engine];
      if (next[engine] == stream.frames.size()) continue;
      const Time now = Clock::Real().Now();
      const double elapsed = std::chrono::duration<double>(now - begin).count();
      if (probe < probe_frames_.size() &&
          elapsed * options_.lag_probes_per_s >= static_cast<double>(probe + 1)) {
        SendProbe(feeder, probe++);
      }
      if (options_.qps > 0 && sent_ops > elapsed * options_.qps) continue;
      if (!feeder->TrySend(engine, stream.frames[next[engine]])) continue;
      moved = true;
      sent_ops += stream.frame_ops[next[engine]];
      unfinished -= ++next[engine] == stream.frames.size();
    }
    if (!moved) std::this_thread::sleep_for(kFull);
  }
  sending_ = false;
}

// Until all is sent and every probe was seen.
void Bench::LookForProbes(std::vector<double>* lags_ms) {
  const Time until = Clock::Real().Now() + kQueryable;
  while (Clock::Real().Now() < until) {
    std::optional<Probe> probe;
    {
      MutexLock lock(&mutex_);
      if (!probes_.empty()) probe = probes_.front();
    }
    if (!probe && !sending_) return;
    if (probe) {
      const absl::StatusOr<Scores> scores = Ask(probe_prompts_[probe->prompt]);
      if (scores.ok() && !scores->empty()) {
        const Duration lag = Clock::Real().Now() - probe->sent;
        lags_ms->push_back(std::chrono::duration<double, std::milli>(lag).count());
        MutexLock lock(&mutex_);
        probes_.pop_front();
        continue;
      }
    }
    std::this_thread::sleep_for(kLook);
  }
}

absl::Status Bench::AwaitMarkers(BenchPrompt Stream::* marker) {
  for (uint32_t worker = 0; worker < streams_.size(); ++worker) {
    absl::Status status =
        Await("a block of engine " + std::to_string(worker + 1) + " is not found in time",
              [&]() -> absl::StatusOr<bool> {
                const absl::StatusOr<Scores> scores = Ask(streams_[worker].*marker);
                if (!scores.ok()) return scores.status();
                return !scores->empty();
              });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Bench::IngestZmq() {
  PrepareStreams();
  absl::StatusOr<std::unique_ptr<ZmqFeeder>> feeder = ZmqFeeder::Create(result_.workers);
  if (!feeder.ok()) return feeder.status();
  feeder_ = *std::move(feeder);
  absl::Status status = feeder_->Register(&http_, options_.block_size, kSubscribe);
  const std::optional<uint64_t> rss_before = target_.RssBytes();
  if (status.ok() && WarmUpBlocks() > 0) {
    SendWarmUp(feeder_.get());
    status = AwaitMarkers(&Stream::full);
    result_.workload = "steady";
  }
  if (!status.ok()) return status;
  if (options_.cold) result_.workload = "cold";
  const uint64_t bytes_before = feeder_->bytes_sent();
  const std::optional<double> cpu_before = target_.CpuSeconds();
  const double client_cpu_before = CpuSeconds();
  const double begin = NowSeconds();
  sending_ = true;
  std::thread sender([this] { SendAll(feeder_.get()); });
  std::vector<double> lags_ms;
  LookForProbes(&lags_ms);
  sender.join();
  status = AwaitMarkers(&Stream::last);
  if (!status.ok()) return status;
  const double seconds = NowSeconds() - begin;
  std::vector<EngineOutcome> outcomes;
  for (Stream& stream : streams_) outcomes.push_back(std::move(stream.outcome));
  result_.lag_ms = PercentilesOf(std::move(lags_ms));
  FillIngest(outcomes, seconds, feeder_->bytes_sent() - bytes_before,
             Since(cpu_before, target_.CpuSeconds()), CpuSeconds() - client_cpu_before, rss_before);
  return CheckHeld(outcomes);
}

absl::Status Bench::IngestGrpc() {
  std::vector<HoldingsStream> streams;
  std::vector<EngineOutcome> outcomes;
  uint64_t bytes = 0;
  for (uint32_t worker = 0; worker < result_.workers; ++worker) {
    HoldingsStreamBuilder builder(std::to_string(worker + 1), options_.block_size);
    outcomes.push_back(RunWorker([&](const BenchStep& step) { builder.Add(step); }));
    streams.push_back(builder.Finish());
    bytes += streams.back().bytes;
  }
  const std::optional<uint64_t> rss_before = target_.RssBytes();
  const std::optional<double> cpu_before = target_.CpuSeconds();
  const double client_cpu_before = CpuSeconds();
  const absl::StatusOr<double> seconds = WriteHoldings(target_.grpc(), streams, kQueryable);
  if (!seconds.ok()) return seconds.status();
  FillIngest(outcomes, *seconds, bytes, Since(cpu_before, target_.CpuSeconds()),
             CpuSeconds() - client_cpu_before, rss_before);
  return CheckHeld(outcomes);
}

absl::Status Bench::IngestRedis() {
  std::vector<RedisHoldings> streams;
  std::vector<EngineOutcome> outcomes;
  for (uint32_t worker = 0; worker < result_.workers; ++worker) {
    RedisHoldingsBuilder builder(std::to_string(worker + 1), options_.block_size);
    outcomes.push_back(RunWorker([&](const BenchStep& step) { builder.Add(step); }));
    streams.push_back(builder.Finish());
  }
  const std::optional<uint64_t> rss_before = target_.RssBytes();
  const std::optional<double> cpu_before = target_.CpuSeconds();
  const std::optional<double> redis_cpu_before = BenchTarget::CpuSecondsOf(redis_->pid());
  const double client_cpu_before = CpuSeconds();
  const absl::StatusOr<RedisWritten> written =
      WriteHoldingsToRedis(redis_->url(), kBenchCell, streams, kQueryable);
  if (!written.ok()) return written.status();
  FillIngest(outcomes, written->seconds, written->bytes, Since(cpu_before, target_.CpuSeconds()),
             CpuSeconds() - client_cpu_before, rss_before);
  const auto redis_cpu_s = Since(redis_cpu_before, BenchTarget::CpuSecondsOf(redis_->pid()));
  const double ops = *result_.blocks_per_s * written->seconds;
  if (redis_cpu_s) result_.redis_cpu_ns_per_block = *redis_cpu_s * 1e9 / ops;
  return CheckHeld(outcomes);
}

void Bench::FillIngest(const std::vector<EngineOutcome>& outcomes, double seconds, uint64_t bytes,
                       std::optional<double> leaf_cpu_s, double client_cpu_s,
                       std::optional<uint64_t> rss_before) {
  uint64_t stored = 0;
  uint64_t removed = 0;
  uint64_t held = 0;
  for (const EngineOutcome& outcome : outcomes) {
    stored += outcome.stored;
    removed += outcome.removed;
    held += outcome.held;
  }
  const auto ops = static_cast<double>(stored + removed);
  result_.seconds = seconds;
  result_.blocks_stored = stored;
  result_.blocks_removed = removed;
  result_.blocks_per_s = ops / seconds;
  result_.stored_per_s = static_cast<double>(stored) / seconds;
  result_.bytes_per_block = static_cast<double>(bytes) / ops;
  result_.leaf_cpu_s = leaf_cpu_s;
  if (leaf_cpu_s) result_.leaf_cpu_ns_per_block = *leaf_cpu_s * 1e9 / ops;
  result_.client_cpu_ns_per_block = client_cpu_s * 1e9 / ops;
  result_.blocks_held = held;
  if (const auto grown = Since(rss_before, target_.RssBytes()); grown && held > 0) {
    result_.rss_per_held_block = static_cast<double>(*grown) / static_cast<double>(held);
  }
}

// Made-up prompts are unique: each is held by its engine alone, as far as it is held.
absl::Status Bench::CheckHeld(const std::vector<EngineOutcome>& outcomes) {
  uint64_t checked = 0;
  uint64_t wrong = 0;
  for (size_t worker = 0; worker < outcomes.size(); ++worker) {
    for (const HeldPrompt& held : outcomes[worker].prompts) {
      const absl::StatusOr<Scores> scores = Ask(held.prompt);
      if (!scores.ok()) return scores.status();
      Scores expected;
      if (held.blocks > 0) {
        expected[std::to_string(worker + 1)] = uint64_t{held.blocks} * options_.block_size;
      }
      Scores said;
      for (const auto& [instance, tokens] : *scores) {
        if (tokens > 0) said[instance] = tokens;
      }
      ++checked;
      if (said == expected) continue;
      ++wrong;
      if (result_.first_error.empty()) {
        result_.first_error = "engine " + std::to_string(worker + 1) + " holds " +
                              std::to_string(held.blocks) + " blocks of a prompt, and " +
                              std::to_string(said.size()) + " engines are said to hold " +
                              std::to_string(said.empty() ? 0 : said.begin()->second) + " tokens";
      }
    }
  }
  if (checked > 0) {
    result_.checked = checked;
    result_.wrong = wrong;
    result_.errors += wrong;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckServiceBench(const ServiceBenchOptions& given) {
  const ServiceBenchOptions options = WithDefaults(given);
  const std::string& what = options.what;
  if (what != "query_grpc" && what != "query_http" && what != "ingest_grpc" &&
      what != "ingest_zmq" && what != "ingest_redis") {
    return Bad("--what: query_grpc, query_http, ingest_grpc, ingest_zmq or ingest_redis");
  }
  const bool needs_grpc = what.ends_with("_grpc") || (IsQuery(options) && options.load == "grpc");
  if (!options.url.empty() && needs_grpc) return Bad("--url: only over HTTP and ZMQ");
  if (options.qps > 0 && what != "query_http" && what != "ingest_zmq") {
    return Bad("--qps: of query_http and ingest_zmq only");
  }
  if (options.load != "zmq" && options.load != "grpc") return Bad("--load: zmq or grpc");
  if (options.workers > kWorkersMax) return Bad("--workers: at most 4096");
  if (options.block_size == 0 || options.event_blocks == 0 || options.sequence_blocks == 0 ||
      options.prompts == 0 || options.connections == 0 || options.in_flight == 0) {
    return Bad(
        "block_size, event_blocks, sequence_blocks, prompts, connections, in_flight: at least 1");
  }
  if (options.cold && IsQuery(options)) return Bad("--cold: of ingest only");
  if (IsQuery(options)) {
    if (options.blocks == 0) return Bad("--tokens: less than a block");
    if (options.load == "grpc" && options.blocks > 4096) {
      return Bad("--blocks: at most 4096 when workers come in over gRPC");
    }
    return absl::OkStatus();
  }
  const bool batches = what == "ingest_grpc" || what == "ingest_redis";
  if (what == "ingest_redis" && !options.url.empty()) return Bad("--url: not of ingest_redis");
  if (batches && options.event_blocks > 2048) return Bad("--event_blocks: at most 2048");
  if (options.capacity != 0 && options.capacity < 2 * uint64_t{options.sequence_blocks}) {
    return Bad("--capacity: at least two prompts (--sequence_blocks)");
  }
  if (options.ingest_blocks < options.workers) {
    return Bad("--ingest_blocks: at least one for each worker");
  }
  return absl::OkStatus();
}

absl::StatusOr<ServiceBenchResult> RunServiceBench(ServiceBenchOptions options) {
  if (absl::Status status = CheckServiceBench(options); !status.ok()) return status;
  options = WithDefaults(std::move(options));
  std::optional<RedisTestServer> redis;
  std::vector<std::string> args;
  if (options.what == "ingest_redis") {
    redis.emplace();
    args = {std::string("--cell=") + kBenchCell, "--redis=" + redis->url()};
  }
  absl::StatusOr<std::unique_ptr<BenchTarget>> target =
      !options.url.empty() ? BenchTarget::Foreign(options.url, options.pid)
                           : BenchTarget::StartLeaf(options.leaf, args);
  if (!target.ok()) return target.status();
  return Bench(options, target->get(), redis.has_value() ? &*redis : nullptr).Run();
}

}  // namespace kvatlas
