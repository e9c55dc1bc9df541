// The two finders over gRPC: they turn questions and answers into messages (`wire.h`), put a span
// around each question, and leave it to `GrpcQuestions` over what it goes. `GrpcOverlapFinder` also
// keeps the labels of each leaf's workers, so that an answer carries them only after they changed.
// At the end `GrpcTimer`.

#include "frontend/cluster_client/grpc_lookup_clients.h"

#include <grpcpp/alarm.h>

#include <utility>

#include "frontend/cluster_client/grpc_questions.h"
#include "frontend/cluster_client/peer_questions.h"
#include "frontend/cluster_client/peers_by_address.h"
#include "frontend/cluster_client/wire.h"
#include "indexer/net/grpc_deadline.h"
#include "indexer/telemetry/tracing/tracer.h"

namespace kvatlas {
namespace {

// Ends the span with the answer. The span is shared because a `std::function` must be copyable.
template <typename Answer>
std::function<void(absl::StatusOr<Answer>)> Traced(
    Span span, const std::string& address, std::function<void(absl::StatusOr<Answer>)> callback) {
  span.Set("server.address", address);
  return [span = std::make_shared<Span>(std::move(span)),
          callback = std::move(callback)](absl::StatusOr<Answer> answer) {
    span->End(answer.status());
    callback(std::move(answer));
  };
}

template <typename Asked>
// A choice, as part of whatever batch the stream sends next; the size is an estimate, for the
// stream's bounds.
void TellOver(GrpcQuestions<Asked>* questions, const std::string& address, const Domain& domain,
              uint64_t frontend, const Routed& routed) {
  questions->Tell(address, routed.blocks.size() * sizeof(SequenceHash),
                  [&](typename Asked::StreamRequest* request) {
                    ToProto(routed,
                            ToldOf(domain, frontend, request->mutable_told())->add_routed());
                  });
}

template <typename Asked>
// The end of a choice. The engine's figure (`RouteOver::cached_tokens`) is not sent.
void EndOver(GrpcQuestions<Asked>* questions, const std::string& address, const Domain& domain,
             uint64_t frontend, const RouteOver& over) {
  questions->Tell(address, sizeof(over), [&](typename Asked::StreamRequest* request) {
    v1::RouteOver* told = ToldOf(domain, frontend, request->mutable_told())->add_over();
    told->set_decision(over.decision);
    told->set_failed(over.failed);
  });
}

}  // namespace

GrpcCellFinder::GrpcCellFinder(bool streams)
    : questions_(std::make_unique<GrpcQuestions<CellQuestions>>(streams)) {}
GrpcCellFinder::~GrpcCellFinder() = default;

void GrpcCellFinder::Connect(const std::string& hierarchy_address) {
  questions_->Connect(hierarchy_address);
}

std::vector<PeerState> GrpcCellFinder::States() const { return questions_->States(); }
bool GrpcCellFinder::Reached() { return questions_->Reached(); }
void GrpcCellFinder::LookForTheLost() { questions_->LookForTheLost(); }

// The message is made before `Ask` returns, so the question's spans need not live longer.
// `callback` is replaced before it is moved into the answer's.
void GrpcCellFinder::FindCells(const std::string& hierarchy_address, const CellQuestion& question,
                               Duration deadline, Callback callback) {
  Span span = Tracer::OfProcess()->BeginChild("ask hierarchy", SpanKind::kClient, question.trace);
  const std::string traceparent = ToTraceparent(span.context());
  if (span.recorded()) callback = Traced(std::move(span), hierarchy_address, std::move(callback));
  questions_->Ask(
      hierarchy_address, question.waypoints.size() * sizeof(SequenceHash),
      [&](v1::FindCellsRequest* request) {
        ToProto(question, request);
        if (!traceparent.empty()) request->set_traceparent(traceparent);
      },
      deadline,
      [callback = std::move(callback)](const absl::Status& status,
                                       const v1::FindCellsResponse& response) {
        if (!status.ok()) return callback(status);
        callback(FromProto(response));
      });
}

void GrpcCellFinder::TellCell(const std::string& hierarchy_address, const Domain& domain,
                              uint64_t frontend, const Routed& routed) {
  TellOver(questions_.get(), hierarchy_address, domain, frontend, routed);
}

void GrpcCellFinder::EndCell(const std::string& hierarchy_address, const Domain& domain,
                             uint64_t frontend, const RouteOver& over) {
  EndOver(questions_.get(), hierarchy_address, domain, frontend, over);
}

GrpcOverlapFinder::GrpcOverlapFinder(bool streams)
    : questions_(std::make_unique<GrpcQuestions<OverlapQuestions>>(streams)) {}
GrpcOverlapFinder::~GrpcOverlapFinder() = default;

void GrpcOverlapFinder::Connect(const std::string& leaf_address) {
  questions_->Connect(leaf_address);
}

std::vector<PeerState> GrpcOverlapFinder::States() const { return questions_->States(); }
bool GrpcOverlapFinder::Reached() { return questions_->Reached(); }
void GrpcOverlapFinder::LookForTheLost() { questions_->LookForTheLost(); }

// Asks a leaf, with labels only when they changed:
//   1. The labels known of this leaf and domain are taken along: their version goes with the
//      question.
//   2. The leaf leaves its labels out where that version is current.
//   3. `TakeLabels` then gives the answer the known ones, or keeps the new ones. The known ones are
//      held by the callback, so that they are at hand even if the table has forgotten them
//      meanwhile.
// The object outlives the callback: `questions_` is destroyed first and waits for it.
void GrpcOverlapFinder::FindOverlaps(const std::string& leaf_address,
                                     const OverlapQuestion& question, Duration deadline,
                                     Callback callback) {
  LabelsKey key{leaf_address, *question.domain};
  KnownLabels known = LabelsOf(key);
  const uint64_t version = known.version;
  Span span = Tracer::OfProcess()->BeginChild("ask leaf", SpanKind::kClient, question.trace);
  const std::string traceparent = ToTraceparent(span.context());
  if (span.recorded()) callback = Traced(std::move(span), leaf_address, std::move(callback));
  questions_->Ask(
      leaf_address, question.sequence.size() * sizeof(SequenceHash),
      [&](v1::FindOverlapsRequest* request) {
        ToProto(question, version, request);
        if (!traceparent.empty()) request->set_traceparent(traceparent);
      },
      deadline,
      [this, key = std::move(key), known = std::move(known), callback = std::move(callback)](
          const absl::Status& status, const v1::FindOverlapsResponse& response) {
        if (!status.ok()) return callback(status);
        WorkersAnswer answer = FromProto(response);
        answer.labels = TakeLabels(key, known, response);
        callback(std::move(answer));
      });
}

void GrpcOverlapFinder::Tell(const std::string& leaf_address, const Domain& domain,
                             uint64_t frontend, const Routed& routed) {
  TellOver(questions_.get(), leaf_address, domain, frontend, routed);
}

void GrpcOverlapFinder::End(const std::string& leaf_address, const Domain& domain,
                            uint64_t frontend, const RouteOver& over) {
  EndOver(questions_.get(), leaf_address, domain, frontend, over);
}

// Version 0, which no leaf uses for labels: nothing is known.
GrpcOverlapFinder::KnownLabels GrpcOverlapFinder::LabelsOf(const LabelsKey& key) {
  MutexLock lock(&labels_mutex_);
  const auto found = labels_.find(key);
  return found == labels_.end() ? KnownLabels{} : found->second;
}

std::shared_ptr<const LabelsByWorker> GrpcOverlapFinder::TakeLabels(
    const LabelsKey& key, const KnownLabels& known, const v1::FindOverlapsResponse& response) {
  const uint64_t version = response.labels_version();
  if (version == known.version) return known.labels;
  std::shared_ptr<const LabelsByWorker> labels = version == 0 ? nullptr : LabelsFromProto(response);
  MutexLock lock(&labels_mutex_);
  // At the bound all are forgotten; each is asked for again with version 0.
  if (labels_.size() >= kPeersMax && !labels_.contains(key)) labels_.clear();
  labels_[key] = {.version = version, .labels = labels};
  return labels;
}

GrpcTimer::~GrpcTimer() {
  MutexLock lock(&mutex_);
  while (set_ > 0) idle_.Wait(&mutex_);
}

// The callback runs in a thread of gRPC's, also when the alarm is cancelled: a route that waits for
// it must not wait for ever.
void GrpcTimer::After(Duration delay, std::function<void()> callback) {
  {
    MutexLock lock(&mutex_);
    ++set_;
  }
  auto alarm = std::make_shared<grpc::Alarm>();
  // The alarm keeps its callback, and the callback its alarm until it has run.
  alarm->Set(DeadlineIn(delay), [this, alarm, callback = std::move(callback)](bool) mutable {
    const std::shared_ptr<grpc::Alarm> last = std::move(alarm);
    std::exchange(callback, nullptr)();
    MutexLock lock(&mutex_);
    if (--set_ == 0) idle_.SignalAll();
  });
}

}  // namespace kvatlas
