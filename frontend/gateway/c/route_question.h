// A `kvatlas_route_request` as a question to `PromptRouter`.

#ifndef KVATLAS_FRONTEND_GATEWAY_C_ROUTE_QUESTION_H_
#define KVATLAS_FRONTEND_GATEWAY_C_ROUTE_QUESTION_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "frontend/gateway/c/kvatlas_frontend.h"
#include "frontend/prompt/prompt_router.h"

namespace kvatlas {

// A route that is asked for: `body` as it came, or else the prompt in `question`.
struct AskedRoute {
  PromptQuestion question;
  std::shared_ptr<const std::string> body = nullptr;
};

// INVALID_ARGUMENT: no request of `_init`, an array that is not there, or several prompts.
absl::StatusOr<AskedRoute> AskedOf(const kvatlas_route_request* request);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_C_ROUTE_QUESTION_H_
