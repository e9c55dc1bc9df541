#include "indexer/leaf/sessions_service.h"

#include <algorithm>
#include <cstdint>

#include "indexer/base/durations.h"
#include "indexer/base/memory_budget.h"
#include "indexer/base/routed.h"
#include "indexer/leaf/session_answers.h"
#include "indexer/net/grpc_guard.h"
#include "indexer/net/grpc_status.h"
#include "indexer/transport/wire.h"

namespace kvatlas {
namespace {

void Fill(const SessionAnswer& session, v1::SessionSeen* seen) {
  const uint64_t block_size = session.block_size;
  seen->set_session(session.session);
  ToProto(session.domain, seen->mutable_domain());
  ToProto(session.worker, seen->mutable_worker());
  seen->set_age_ms(Milliseconds(session.age));
  seen->set_prompts(session.prompts);
  seen->set_tokens(session.blocks * block_size);
  for (const SessionAnswer::At& at : session.at) {
    v1::SessionSeen::At* const added = seen->add_at();
    ToProto(at.worker, added->mutable_worker());
    added->set_tokens(at.blocks * block_size);
  }
  seen->set_next_turn_computes(NextTurnComputes(session));
}

}  // namespace

grpc::Status SessionsService::FindSessions(grpc::ServerContext* context,
                                           const v1::FindSessionsRequest* request,
                                           v1::FindSessionsResponse* response) {
  return ToGrpcStatus(FindFor(*IdentityOf(security_.get(), *context), *request, response));
}

// What the asker may not see is left out without an entry in the audit log: it named none of it.
absl::Status SessionsService::FindFor(const Identity& asker, const v1::FindSessionsRequest& request,
                                      v1::FindSessionsResponse* response) const {
  if (absl::Status full = CheckMemory(registry_->memory(), MemoryLevel::kFull, "lists of sessions");
      !full.ok())
    return full;
  const uint32_t max = request.max() == 0 ? kSessionsByDefault : request.max();
  const std::shared_ptr<const AccessPolicy> policy = security_->policy();
  for (const SessionAnswer& session :
       registry_->Sessions(SessionHash(request.session()), std::min(max, kSessionsMax))) {
    const PolicyTarget target = {.model = session.domain.model, .tenant = session.domain.tenant};
    if (policy != nullptr && !policy->Decide(asker, Verb::kDump, target).allowed) continue;
    Fill(session, response->add_sessions());
  }
  return absl::OkStatus();
}

}  // namespace kvatlas
