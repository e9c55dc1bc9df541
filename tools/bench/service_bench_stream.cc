#include "tools/bench/service_bench_stream.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "indexer/net/grpc_channel.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "tools/bench/timing.h"

namespace kvatlas {

GrpcStreamLoad::GrpcStreamLoad(std::string target, uint32_t streams, uint32_t in_flight,
                               std::span<const std::string> requests)
    : target_(std::move(target)), streams_(streams), in_flight_(in_flight) {
  for (const std::string& request : requests) questions_.emplace_back().ParseFromString(request);
}

HttpLoadResult GrpcStreamLoad::Run(double seconds) {
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

HttpLoadResult GrpcStreamLoad::RunOne(uint32_t stream, double seconds) const {
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

}  // namespace kvatlas
