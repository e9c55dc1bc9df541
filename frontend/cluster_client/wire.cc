// Messages to values and back. Leaves and hierarchies answer what they like: unknown enums and
// absent fields become the careful value. Requests of clients are checked for their bounds here,
// before anything is copied into a route.

#include "frontend/cluster_client/wire.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "indexer/base/durations.h"

namespace kvatlas {
namespace {

// Values both directions use.
v1::Domain DomainToProto(const Domain& domain) {
  v1::Domain proto;
  proto.set_model(domain.model);
  proto.set_tenant(domain.tenant);
  return proto;
}

HolderId HolderFromProto(const v1::Holder& proto) {
  return {.name = proto.name(), .rank = proto.rank(), .replica = proto.replica()};
}

v1::Holder HolderToProto(const HolderId& holder) {
  v1::Holder proto;
  proto.set_name(holder.name);
  proto.set_rank(holder.rank);
  proto.set_replica(holder.replica);
  return proto;
}

// 0 workers is a peer that does not say: it divides, so it counts as one.
Load LoadFromProto(const v1::Load& proto) {
  return {.running_requests = proto.running_requests(),
          .waiting_requests = proto.waiting_requests(),
          .used_blocks = proto.used_blocks(),
          .free_blocks = proto.free_blocks(),
          .waiting_prefill_blocks = proto.waiting_prefill_blocks(),
          .tokens_per_s = proto.tokens_per_s(),
          .workers = std::max<uint32_t>(proto.workers(), 1)};
}

// A trust that a peer does not say, or says in a newer way, is not to be relied on: degraded.
Trust TrustFromProto(v1::Trust trust) {
  switch (trust) {
    case v1::TRUST_EXACT:
      return Trust::kExact;
    case v1::TRUST_STALE:
      return Trust::kStale;
    case v1::TRUST_GUESSED:
      return Trust::kGuessed;
    default:
      return Trust::kDegraded;
  }
}

v1::Trust TrustToProto(Trust trust) {
  switch (trust) {
    case Trust::kExact:
      return v1::TRUST_EXACT;
    case Trust::kDegraded:
      return v1::TRUST_DEGRADED;
    case Trust::kStale:
      return v1::TRUST_STALE;
    case Trust::kGuessed:
      return v1::TRUST_GUESSED;
  }
  return v1::TRUST_UNKNOWN;
}

// The receipt, field by field; the numbers of `Fallback` are those of the wire.
void CellAskedToProto(const CellAsked& cell, v1::CellAsked* asked) {
  asked->set_cell(cell.cell);
  asked->set_address(cell.address);
  asked->set_blocks_at_least(cell.blocks_at_least);
  asked->set_blocks_below(cell.blocks_below);
  asked->set_age_ms(cell.age_ms);
  asked->set_error(cell.error);
  asked->set_best_blocks(cell.best_blocks);
  asked->set_us(cell.us);
}

void ReceiptToProto(const Receipt& receipt, v1::Receipt* proto) {
  proto->set_fallback(static_cast<v1::Fallback>(receipt.fallback));
  proto->set_reason(receipt.reason);
  proto->set_blocks(receipt.blocks);
  proto->set_reading(receipt.reading);
  for (const CellAsked& cell : receipt.cells) CellAskedToProto(cell, proto->add_cells());
  for (const CellAsked& node : receipt.nodes) CellAskedToProto(node, proto->add_nodes());
  for (const ReceiptCandidate& candidate : receipt.candidates) {
    v1::Candidate* c = proto->add_candidates();
    *c->mutable_worker() = HolderToProto(candidate.worker);
    c->set_cell(candidate.cell);
    c->set_overlap_blocks(candidate.overlap_blocks);
    c->set_trust(TrustToProto(candidate.trust));
    c->set_age_ms(candidate.age_ms);
    c->set_cost(candidate.cost.total());
    c->set_prefill_cost(candidate.cost.prefill);
    c->set_queue_cost(candidate.cost.queue);
    c->set_decode_cost(candidate.cost.decode);
    c->set_distance_cost(candidate.cost.distance);
    c->set_fetch_cost(candidate.cost.fetch);
    c->set_memory_cost(candidate.cost.memory);
    c->set_session_cost(candidate.cost.session);
    c->set_siblings_cost(candidate.cost.siblings);
    c->set_transfer_cost(candidate.cost.transfer);
    c->set_crowding_cost(candidate.cost.crowding);
    c->set_host_blocks(candidate.fetched.host);
    c->set_disk_blocks(candidate.fetched.disk);
    c->set_external_blocks(candidate.fetched.remote);
    c->set_reading(candidate.reading);
    c->set_store_blocks(candidate.store_blocks);
    c->set_pending_blocks(candidate.pending_blocks);
  }
  proto->set_candidates_considered(receipt.candidates_considered);
  proto->set_policy(receipt.policy);
  proto->set_not_allowed(receipt.not_allowed);
  proto->set_overloaded(receipt.overloaded);
  proto->set_queued_us(receipt.queued_us);
  proto->set_find_cells_us(receipt.find_cells_us);
  proto->set_find_overlaps_us(receipt.find_overlaps_us);
  proto->set_total_us(receipt.total_us);
}

template <typename Request>
// Fields that `RouteRequest` and `RouteChatRequest` have in common. The lists are sorted by the
// route.
absl::Status ReadChoice(const Request& request, RouteInput* input) {
  const int names = request.allowed_workers_size() + request.excluded_workers_size();
  if (names > static_cast<int>(kRouteNamesMax)) {
    return absl::InvalidArgumentError("allowed_workers and excluded_workers: at most 4096 names");
  }
  if (request.required_labels_size() > static_cast<int>(kRouteLabelsMax)) {
    return absl::InvalidArgumentError("required_labels: at most 64");
  }
  input->session_id = request.session_id();
  input->allowed_workers = {request.allowed_workers().begin(), request.allowed_workers().end()};
  input->excluded_workers = {request.excluded_workers().begin(), request.excluded_workers().end()};
  input->required_labels = {request.required_labels().begin(), request.required_labels().end()};
  if (request.has_queue_wait_ms())
    input->queue_wait = std::chrono::milliseconds(request.queue_wait_ms());
  return absl::OkStatus();
}

}  // namespace

absl::Status ChoiceFromProto(const v1::RouteChatRequest& request, RouteInput* input) {
  return ReadChoice(request, input);
}

// The schedule goes by its name: a node with another one refuses (FAILED_PRECONDITION), since
// positions would mean other blocks.
void ToProto(const CellQuestion& question, v1::FindCellsRequest* to) {
  v1::FindCellsRequest& request = *to;
  *request.mutable_domain() = DomainToProto(*question.domain);
  request.mutable_waypoint_hashes()->Reserve(static_cast<int>(question.waypoints.size()));
  for (SequenceHash hash : question.waypoints) request.add_waypoint_hashes(Raw(hash));
  request.set_blocks(question.blocks);
  request.set_schedule(question.schedule->Name());
  request.set_best(question.best);
  request.mutable_positions()->Add(question.positions.begin(), question.positions.end());
  request.set_frontend(question.frontend);
}

// An older node does not set `kind`: then it is a cell.
CellsAnswer FromProto(const v1::FindCellsResponse& response) {
  CellsAnswer answer{.cells = {}, .block_size = response.block_size()};
  for (const v1::CellCoverage& cell : response.cells()) {
    CellFound found{
        .cell = cell.cell().name(),
        .address = cell.address(),
        .blocks_at_least = cell.blocks_at_least(),
        .blocks_below = cell.blocks_below(),
        .trust = TrustFromProto(cell.trust()),
        .age_ms = cell.age_ms(),
        .is_node = cell.kind() == v1::CELL_KIND_NODE,
        .other_addresses = {cell.other_addresses().begin(), cell.other_addresses().end()},
        .pending_blocks = cell.pending_blocks()};
    if (cell.has_load()) found.load = LoadFromProto(cell.load());
    for (const auto& [name, value] : cell.labels()) found.labels[name] = value;
    answer.cells.push_back(std::move(found));
  }
  return answer;
}

// A frontend wants all workers, also those without overlap, and where their blocks are, by tier.
void ToProto(const OverlapQuestion& question, uint64_t labels_version,
             v1::FindOverlapsRequest* to) {
  v1::FindOverlapsRequest& request = *to;
  *request.mutable_domain() = DomainToProto(*question.domain);
  request.mutable_sequence_hashes()->Reserve(static_cast<int>(question.sequence.size()));
  for (SequenceHash hash : question.sequence) request.add_sequence_hashes(Raw(hash));
  request.set_all_workers(true);
  request.set_labels(true);
  request.set_labels_version(labels_version);
  request.set_by_tier(true);
  request.set_pending(question.frontend != 0);
  request.set_frontend(question.frontend);
  request.set_session(question.session);
}

// Messages told one after the other share a header as long as domain and frontend stay the same.
v1::Told* ToldOf(const Domain& domain, uint64_t frontend,
                 google::protobuf::RepeatedPtrField<v1::Told>* told) {
  if (!told->empty()) {
    v1::Told& last = *told->rbegin();
    if (last.frontend() == frontend && last.domain().model() == domain.model &&
        last.domain().tenant() == domain.tenant)
      return &last;
  }
  v1::Told* const next = told->Add();
  *next->mutable_domain() = DomainToProto(domain);
  next->set_frontend(frontend);
  return next;
}

void ToProto(const Routed& routed, v1::Routed* to) {
  to->set_decision(routed.decision);
  *to->mutable_worker() = HolderToProto(routed.worker);
  to->set_first(routed.first);
  to->mutable_blocks()->Reserve(static_cast<int>(routed.blocks.size()));
  for (SequenceHash block : routed.blocks) to->add_blocks(Raw(block));
  to->set_session(routed.session);
  // The default is not sent.
  if (routed.ttl != kRoutedTtl) to->set_ttl_ms(Milliseconds(routed.ttl));
}

// Labels are not taken here: the caller knows whether they came or are those of before.
WorkersAnswer FromProto(const v1::FindOverlapsResponse& response) {
  WorkersAnswer answer{.workers = {}, .block_size = response.block_size()};
  answer.workers.reserve(static_cast<size_t>(response.workers_size()));
  for (const v1::WorkerOverlap& worker : response.workers()) {
    WorkerFound found{.worker = HolderFromProto(worker.worker()),
                      .blocks = worker.blocks(),
                      .trust = TrustFromProto(worker.trust()),
                      .age_ms = worker.age_ms(),
                      .fetched = {.host = worker.host_blocks(),
                                  .disk = worker.disk_blocks(),
                                  .remote = worker.external_blocks()},
                      .held = worker.held_blocks(),
                      .pending = {.depth = worker.pending_blocks(),
                                  .blocks = worker.pending_prefill_blocks(),
                                  .requests = worker.pending_requests(),
                                  .session = worker.session()}};
    found.AddLoadable(worker.loadable_blocks(), TrustFromProto(worker.loadable_trust()));
    if (worker.has_load()) found.load = LoadFromProto(worker.load());
    answer.workers.push_back(std::move(found));
  }
  return answer;
}

// Workers without labels have no entry.
std::shared_ptr<const LabelsByWorker> LabelsFromProto(const v1::FindOverlapsResponse& response) {
  auto labels = std::make_shared<LabelsByWorker>();
  for (const v1::WorkerOverlap& worker : response.workers()) {
    if (worker.labels().empty()) continue;
    Labels& of = (*labels)[HolderFromProto(worker.worker())];
    for (const auto& [name, value] : worker.labels()) of[name] = value;
  }
  return labels;
}

// An unknown form is `kUnknown`; it serves diagnoses alone.
absl::StatusOr<RouteInput> FromProto(const v1::RouteRequest& request) {
  RouteInput input{
      .domain = {.model = request.domain().model(), .tenant = request.domain().tenant()}};
  input.tokens.assign(request.tokens().ids().begin(), request.tokens().ids().end());
  input.lora_name = request.tokens().lora_name();
  input.cache_salt = request.tokens().cache_salt();
  input.eagle = request.tokens().eagle();
  input.sequence_hashes.reserve(static_cast<size_t>(request.sequence_hashes_size()));
  for (uint64_t hash : request.sequence_hashes())
    input.sequence_hashes.push_back(SequenceHash(hash));
  input.prompt_tokens = request.prompt_tokens();
  input.deadline = std::chrono::milliseconds(request.deadline_ms());
  if (v1::PromptForm_IsValid(request.form())) input.form = static_cast<PromptForm>(request.form());
  if (request.has_bos()) input.bos = request.bos();
  input.expected_output_tokens = request.expected_output_tokens();
  absl::Status bad = CheckNames(input.domain, request.session_id());
  bad.Update(ReadChoice(request, &input));
  if (!bad.ok()) return bad;
  return input;
}

// The engine's own rank and the number of the reading are not on the wire; the receipt names the
// reading.
v1::RouteResponse ToProto(const RouteResult& result) {
  v1::RouteResponse response;
  response.set_decision_id(result.decision_id);
  *response.mutable_worker() = HolderToProto(result.worker);
  response.set_cell(result.cell);
  response.set_overlap_blocks(result.overlap_blocks);
  if (result.decode.has_value()) {
    v1::Decode* decode = response.mutable_decode();
    *decode->mutable_worker() = HolderToProto(result.decode->worker);
    decode->set_cell(result.decode->cell);
    decode->set_overlap_blocks(result.decode->overlap_blocks);
    decode->set_url(result.decode->url);
  }
  response.set_url(result.url);
  ReceiptToProto(result.receipt, response.mutable_receipt());
  return response;
}

// Figures that are absent stay absent: no cached tokens is not 0.
RouteReport FromProto(const v1::ReportRequest& request) {
  RouteReport report{.accepted = request.accepted(),
                     .finished = request.finished(),
                     .error = request.error(),
                     .abandoned = request.abandoned(),
                     .unreachable = request.unreachable(),
                     .decode_unreachable = request.decode_unreachable()};
  if (request.has_cached_tokens()) report.cached_tokens = request.cached_tokens();
  if (request.has_prompt_tokens()) report.prompt_tokens = request.prompt_tokens();
  if (request.has_worker()) report.served_by = HolderFromProto(request.worker());
  return report;
}

}  // namespace kvatlas
