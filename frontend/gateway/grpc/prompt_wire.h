// Text and chats on the wire, and their answers; `wire.h` is the same for tokens.

#ifndef KVATLAS_FRONTEND_GATEWAY_GRPC_PROMPT_WIRE_H_
#define KVATLAS_FRONTEND_GATEWAY_GRPC_PROMPT_WIRE_H_

#include "absl/status/statusor.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "proto/kvatlas/v1/frontend.pb.h"

namespace kvatlas {

// REQUIRES: the request has text or a chat. INVALID_ARGUMENT names the field that is no JSON of its
// kind, too deep or missing.
absl::StatusOr<Prompt> PromptFromProto(const v1::RouteRequest& request);
v1::RouteResponse ToProto(const PromptRoute& answer);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_GRPC_PROMPT_WIRE_H_
