#include "tools/bench/service_bench_grpc.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "indexer/base/hash.h"
#include "indexer/base/mutex.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_status.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "proto/kvatlas/v1/stream.pb.h"
#include "tools/bench/service_bench_query.h"
#include "tools/bench/timing.h"

namespace kvatlas {
namespace {

constexpr char kStreamMethod[] = "/kvatlas.v1.Holdings/Stream";

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE);
  return grpc::ByteBuffer(&slice, 1);
}

std::shared_ptr<grpc::Channel> OwnChannel(const std::string& target) {
  return MakeChannel(target, {.own_connection = true});
}

}  // namespace

// ---- Questions ----

HttpLoadResult GrpcLoad::Run(double seconds) {
  const double cpu_before = CpuSeconds();
  const uint64_t begin = Ticks();
  std::vector<HttpLoadResult> results(streams_);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < streams_; ++i) {
    threads.emplace_back([this, i, seconds, &results] { results[i] = RunOne(i, seconds); });
  }
  HttpLoadResult sum;
  for (uint32_t i = 0; i < streams_; ++i) {
    threads[i].join();
    sum.answers += results[i].answers;
    sum.errors += results[i].errors;
    sum.answer_bytes += results[i].answer_bytes;
    sum.latencies.Append(results[i].latencies);
    if (sum.first_error.empty()) sum.first_error = results[i].first_error;
  }
  sum.seconds = static_cast<double>(Ticks() - begin) * NsPerTick() / 1e9;
  sum.client_cpu_s = CpuSeconds() - cpu_before;
  return sum;
}

HttpLoadResult GrpcLoad::RunOne(uint32_t stream, double seconds) const {
  HttpLoadResult result;
  result.latencies.Reserve(1 << 18);
  const auto stub = v1::Leaf::NewStub(MakeChannel(target_, {.own_connection = true}));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const auto call = stub->FindOverlapsStream(&context);
  std::vector<uint64_t> started(in_flight_);  // of the question with this id
  size_t next = stream % questions_.size();
  v1::FindOverlapsStreamRequest batch;
  const auto ask = [&](uint64_t id) {
    v1::FindOverlapsStreamRequest::Question* const question = batch.add_questions();
    question->set_id(id);
    *question->mutable_request() = questions_[next];
    next = (next + 1) % questions_.size();
    started[id] = Ticks();
  };
  for (uint32_t id = 0; id < in_flight_; ++id) ask(id);
  const uint64_t end = Ticks() + static_cast<uint64_t>(seconds * 1e9 / NsPerTick());
  v1::FindOverlapsStreamResponse answers;
  bool goes_on = call->Write(batch);
  while (goes_on && Ticks() < end) {
    goes_on = call->Read(&answers);
    if (!goes_on) break;
    batch.Clear();
    result.answer_bytes += answers.ByteSizeLong();
    for (const v1::FindOverlapsStreamResponse::Answer& answer : answers.answers()) {
      if (answer.id() >= in_flight_ || answer.code() != 0) {
        ++result.errors;
        if (result.first_error.empty()) result.first_error = answer.message();
      } else {
        ++result.answers;
        result.latencies.Add(Ticks() - started[answer.id()]);
      }
      ask(std::min<uint64_t>(answer.id(), in_flight_ - 1));
    }
    goes_on = call->Write(batch);
  }
  context.TryCancel();
  const grpc::Status status = call->Finish();
  if (!goes_on) {
    ++result.errors;
    if (result.first_error.empty()) result.first_error = status.error_message();
  }
  return result;
}

v1::FindOverlapsRequest FindOverlapsRequestOf(std::span<const SequenceHash> blocks) {
  v1::FindOverlapsRequest request;
  request.mutable_domain()->set_model(kBenchModel);
  for (const SequenceHash block : blocks) request.add_sequence_hashes(Raw(block));
  return request;
}

absl::StatusOr<v1::FindOverlapsResponse> FindOverlaps(const std::string& target,
                                                      std::span<const SequenceHash> blocks) {
  const auto stub = v1::Leaf::NewStub(MakeChannel(target));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  v1::FindOverlapsResponse response;
  const grpc::Status status =
      stub->FindOverlaps(&context, FindOverlapsRequestOf(blocks), &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

// ---- Events ----

HoldingsStreamBuilder::HoldingsStreamBuilder(const std::string& worker, uint32_t block_size) {
  v1::SenderMessage message;
  v1::Hello* const hello = message.mutable_hello();
  hello->mutable_holder()->set_name(worker);
  hello->mutable_domain()->set_model(kBenchModel);
  hello->set_block_size(block_size);
  hello->set_contract_id(HashContract().Id());
  hello->set_epoch(WallTimeNs());
  hello->set_instance_id(RandomInstanceId());
  hello->set_first_kept(1);
  hello->set_starting(true);
  stream_.hello = message.SerializeAsString();
}

void HoldingsStreamBuilder::Add(const BenchStep& step) {
  v1::SenderMessage message;
  v1::Batch* const batch = message.mutable_batch();
  batch->set_number(stream_.batches.size() + 1);
  if (!step.removed.empty()) {
    v1::Removed* const removed = batch->add_events()->mutable_removed();
    for (const uint64_t block : step.removed) removed->add_blocks(block);
  }
  if (!step.stored.empty()) {
    v1::Stored* const stored = batch->add_events()->mutable_stored();
    stored->set_position(step.position);
    stored->set_parent(step.parent.value_or(Raw(kNoParent)));
    for (const uint64_t block : step.stored) stored->add_blocks(block);
  }
  stream_.batches.push_back(message.SerializeAsString());
  stream_.bytes += stream_.batches.back().size();
}

namespace {

// One stream under way: writes while it has credit.
class Writer : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Writer(const std::string& target, const HoldingsStream& stream)
      : stream_(stream), stub_(OwnChannel(target)) {
    context_.set_wait_for_ready(true);
  }

  void Start() {
    stub_.PrepareBidiStreamingCall(&context_, kStreamMethod, /*options=*/{}, this);
    outgoing_ = BufferOf(stream_.hello);
    StartWrite(&outgoing_);
    StartRead(&incoming_);
    StartCall();
  }

  void Cancel() { context_.TryCancel(); }

  // All batches are acknowledged, or the call ended.
  bool WaitDone(Time until) {
    MutexLock lock(&mutex_);
    while (acknowledged_ < stream_.batches.size() && !ended_) {
      const Duration left = until - Clock::Real().Now();
      if (left <= Duration(0)) return false;
      changed_.WaitFor(&mutex_, left);
    }
    return true;
  }

  void WaitEnded() {
    MutexLock lock(&mutex_);
    while (!ended_) changed_.Wait(&mutex_);
  }

  absl::Status status() {
    MutexLock lock(&mutex_);
    if (acknowledged_ == stream_.batches.size()) return absl::OkStatus();
    if (!refused_.ok()) return refused_;
    return ended_ ? FromGrpcStatus(status_)
                  : absl::DeadlineExceededError("not acknowledged in time");
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    writing_ = false;
    if (ok) WriteNext();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    v1::ReceiverMessage message;
    grpc::ProtoBufferReader reader(&incoming_);
    message.ParseFromZeroCopyStream(&reader);
    {
      MutexLock lock(&mutex_);
      if (message.has_welcome()) {
        credit_ = message.welcome().credit();
      } else if (message.has_ack()) {
        acknowledged_ = message.ack().applied();
        credit_ = message.ack().credit();
        if (acknowledged_ == stream_.batches.size()) changed_.SignalAll();
      } else {
        refused_ = absl::InternalError("the leaf wants what this client does not have: " +
                                       message.ShortDebugString());
        context_.TryCancel();
      }
      WriteNext();
    }
    StartRead(&incoming_);
  }

  void OnDone(const grpc::Status& status) override {
    MutexLock lock(&mutex_);
    ended_ = true;
    status_ = status;
    changed_.SignalAll();
  }

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const uint64_t batches = stream_.batches.size();
    if (writing_ || written_ == batches || written_ - acknowledged_ >= credit_) return;
    outgoing_ = BufferOf(stream_.batches[written_++]);
    writing_ = true;
    StartWrite(&outgoing_);
  }

  const HoldingsStream& stream_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer outgoing_;
  grpc::ByteBuffer incoming_;
  Mutex mutex_;
  CondVar changed_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = true;  // the hello
  uint64_t credit_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t acknowledged_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<double> WriteHoldings(const std::string& target,
                                     std::span<const HoldingsStream> streams, Duration timeout) {
  std::vector<std::unique_ptr<Writer>> writers;
  for (const HoldingsStream& stream : streams) {
    writers.push_back(std::make_unique<Writer>(target, stream));
  }
  const Time begin = Clock::Real().Now();
  for (auto& writer : writers) writer->Start();
  for (auto& writer : writers) writer->WaitDone(begin + timeout);
  const Duration took = Clock::Real().Now() - begin;
  absl::Status status;
  for (auto& writer : writers) {
    status.Update(writer->status());
    writer->Cancel();
    writer->WaitEnded();
  }
  if (!status.ok()) return status;
  return std::chrono::duration<double>(took).count();
}

}  // namespace kvatlas
