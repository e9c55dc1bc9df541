// Messages made of what `Truth` answers. Access is as over HTTP (`truth_http.cc`): a decision that
// the caller may not see is NOT_FOUND.

#include "frontend/accuracy/truth_service.h"

#include <optional>
#include <string>

#include "frontend/cluster_client/wire.h"
#include "indexer/base/durations.h"
#include "indexer/net/grpc_guard.h"
#include "indexer/transport/wire.h"

namespace kvatlas {
namespace {

// All reports of the decision so far, as one.
void FillReport(const DecisionRecord& record, v1::ReportRequest* report) {
  const RouteReport& said = record.report;
  report->set_decision_id(record.result.decision_id);
  report->set_accepted(said.accepted);
  report->set_finished(said.finished);
  if (said.cached_tokens.has_value()) report->set_cached_tokens(*said.cached_tokens);
  if (said.prompt_tokens.has_value()) report->set_prompt_tokens(*said.prompt_tokens);
  if (said.served_by.has_value()) ToProto(*said.served_by, report->mutable_worker());
  report->set_error(said.error);
}

// No worker: the finding is about the domain.
void FillFinding(const KnownFinding& known, v1::Finding* out) {
  const Finding& finding = known.finding;
  out->set_cause(std::string(CauseName(finding.cause)));
  out->set_confidence(finding.confidence);
  ToProto(finding.domain, out->mutable_domain());
  out->set_cell(finding.cell);
  if (!finding.worker.name.empty()) ToProto(finding.worker, out->mutable_worker());
  for (const std::string& evidence : finding.evidence) out->add_evidence(evidence);
  for (uint64_t decision : finding.decisions) out->add_decisions(decision);
  out->set_remedy(RemedyOf(finding));
  for (Cause other : finding.or_else) out->add_or_else(std::string(CauseName(other)));
  out->set_test(std::string(CauseTest(finding.cause)));
  out->set_since_ms(Milliseconds<uint64_t>(known.since));
}

}  // namespace

// The decision's own tenant decides, so it is looked up before the policy is asked.
grpc::Status TruthService::GetDecision(grpc::ServerContext* context,
                                       const v1::GetDecisionRequest* request,
                                       v1::Decision* response) {
  const std::optional<DecisionRecord> record = truth_->Find(request->decision_id());
  bool seen = record.has_value();
  if (seen && security_->enforces()) {
    PolicyTarget target;
    target.tenant = record->tenant;
    seen = security_->policy()
               ->Decide(*IdentityOf(security_.get(), *context), Verb::kFeedback, target)
               .allowed;
  }
  if (!seen) return {grpc::StatusCode::NOT_FOUND, "no such decision, or it is forgotten"};
  ToProto(record->domain, response->mutable_domain());
  *response->mutable_route() = ToProto(record->result);
  response->set_age_ms(Milliseconds<uint64_t>(clock_->Now() - record->at));
  response->set_prompt_tokens(record->prompt_tokens);
  response->set_block_size(record->prompt.block_size);
  response->set_form(static_cast<v1::PromptForm>(record->form));
  if (record->reported_at.has_value()) FillReport(*record, response->mutable_report());
  return grpc::Status::OK;
}

grpc::Status TruthService::Diagnose(grpc::ServerContext*, const v1::DiagnoseRequest*,
                                    v1::DiagnoseResponse* response) {
  for (const KnownFinding& known : truth_->Diagnose()) FillFinding(known, response->add_findings());
  return grpc::Status::OK;
}

}  // namespace kvatlas
