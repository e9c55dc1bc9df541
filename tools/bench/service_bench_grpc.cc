#include "tools/bench/service_bench_grpc.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "indexer/base/hash.h"
#include "indexer/base/mutex.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_status.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "proto/kvatlas/v1/stream.pb.h"
#include "tools/bench/service_bench_zmq.h"
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

std::chrono::system_clock::time_point SystemDeadline(Duration timeout) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(timeout);
}

}  // namespace

// ---- Questions ----

struct GrpcLoad::State {
  struct Call {
    std::unique_ptr<grpc::GenericStub> stub;
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
    grpc::ByteBuffer answer;
    grpc::Status status;
    uint64_t started = 0;  // ticks: when it was sent, or due
  };

  void Begin(Call* call, uint64_t due) {
    call->context = std::make_unique<grpc::ClientContext>();
    call->context->set_wait_for_ready(true);
    call->started = due;
    const grpc::ByteBuffer request = BufferOf(requests[next_request]);
    next_request = next_request + 1 == requests.size() ? 0 : next_request + 1;
    call->reader = call->stub->PrepareUnaryCall(call->context.get(), method, request, &queue);
    call->reader->StartCall();
    call->reader->Finish(&call->answer, &call->status, call);
    ++outstanding;
  }

  void Finish(const Call& call) {
    --outstanding;
    if (call.status.ok()) {
      ++result.answers;
      result.answer_bytes += call.answer.Length();
      result.latencies.Add(Ticks() - call.started);
      return;
    }
    ++result.errors;
    if (result.first_error.empty()) result.first_error = call.status.error_message();
  }

  // Each connection asks again as soon as it is answered.
  void AskInTurn(uint64_t end) {
    for (Call& call : calls) Begin(&call, Ticks());
    while (Ticks() < end) {
      if (Call* const call = Next(); call != nullptr) {
        Finish(*call);
        Begin(call, Ticks());
      }
    }
    ended = Ticks();
  }

  // At a rate. One thread sleeps until a question is due, the other one waits for answers: a
  // completion queue's own deadlines are of whole milliseconds.
  void AskAtRate(uint64_t begin, uint64_t end, double interval) {
    std::vector<Call*> idle;
    for (Call& call : calls) idle.push_back(&call);
    Mutex mutex;
    CondVar answered;
    bool over = false;
    std::thread listener([&] {
      for (;;) {
        Call* const call = Next();
        MutexLock lock(&mutex);
        if (over) {
          if (call != nullptr) late.push_back(call);
          return;
        }
        if (call == nullptr) continue;
        Finish(*call);
        idle.push_back(call);
        answered.Signal();
      }
    });
    for (uint64_t count = 0;; ++count) {
      const uint64_t due = begin + static_cast<uint64_t>(static_cast<double>(count) * interval);
      if (due >= end) break;
      SleepUntil(due);
      MutexLock lock(&mutex);
      while (idle.empty() && Ticks() < end) answered.WaitFor(&mutex, kPatience);
      if (idle.empty()) break;
      Begin(idle.back(), due);
      idle.pop_back();
    }
    {
      MutexLock lock(&mutex);
      over = true;
    }
    ended = Ticks();
    listener.join();
  }

  // The next one that is answered; null: none for a while.
  Call* Next() {
    void* tag = nullptr;
    bool ok = false;
    const auto deadline = std::chrono::system_clock::now() + kPatience;
    return queue.AsyncNext(&tag, &ok, deadline) == grpc::CompletionQueue::GOT_EVENT
               ? static_cast<Call*>(tag)
               : nullptr;
  }

  static constexpr auto kPatience = std::chrono::milliseconds(100);

  std::string method;
  double qps = 0;
  std::span<const std::string> requests;
  size_t next_request = 0;
  size_t outstanding = 0;
  uint64_t ended = 0;
  grpc::CompletionQueue queue;
  std::vector<Call> calls;
  std::vector<Call*> late;  // answered after the end
  HttpLoadResult result;
};

GrpcLoad::GrpcLoad(const std::string& target, std::string method, uint32_t connections, double qps,
                   std::span<const std::string> requests)
    : state_(std::make_unique<State>()) {
  state_->method = std::move(method);
  state_->qps = qps;
  state_->requests = requests;
  state_->calls.resize(connections);
  for (State::Call& call : state_->calls) {
    call.stub = std::make_unique<grpc::GenericStub>(OwnChannel(target));
  }
}

GrpcLoad::~GrpcLoad() {
  state_->queue.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (state_->queue.Next(&tag, &ok)) {
  }
}

HttpLoadResult GrpcLoad::Run(double seconds) {
  State& state = *state_;
  state.result = {};
  state.result.latencies.Reserve(1 << 20);
  const double cpu_before = CpuSeconds();
  const uint64_t begin = Ticks();
  const double ticks_per_s = 1e9 / NsPerTick();
  const uint64_t end = begin + static_cast<uint64_t>(seconds * ticks_per_s);
  if (state.qps <= 0) {
    state.AskInTurn(end);
  } else {
    state.AskAtRate(begin, end, ticks_per_s / state.qps);
  }
  state.result.seconds = static_cast<double>(state.ended - begin) / ticks_per_s;
  state.result.client_cpu_s = CpuSeconds() - cpu_before;
  HttpLoadResult result = std::move(state.result);
  state.result = {};
  for (const State::Call* call : std::exchange(state.late, {})) state.Finish(*call);
  while (state.outstanding > 0) {
    if (const State::Call* const call = state.Next(); call != nullptr) state.Finish(*call);
  }
  state.result = {};
  return result;
}

std::string FindOverlapsRequestOf(std::span<const SequenceHash> blocks) {
  v1::FindOverlapsRequest request;
  request.mutable_domain()->set_model(kBenchModel);
  for (const SequenceHash block : blocks) request.add_sequence_hashes(Raw(block));
  return request.SerializeAsString();
}

absl::StatusOr<v1::FindOverlapsResponse> FindOverlaps(const std::string& target,
                                                      std::span<const SequenceHash> blocks) {
  const auto stub = v1::Leaf::NewStub(MakeChannel(target));
  v1::FindOverlapsRequest request;
  request.ParseFromString(FindOverlapsRequestOf(blocks));
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(SystemDeadline(std::chrono::seconds(60)));
  v1::FindOverlapsResponse response;
  const grpc::Status status = stub->FindOverlaps(&context, request, &response);
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
