// The object behind a `kvatlas_route*`: the answer that the `kvatlas_route_…` functions show.

#ifndef KVATLAS_FRONTEND_GATEWAY_C_ROUTE_HANDLE_H_
#define KVATLAS_FRONTEND_GATEWAY_C_ROUTE_HANDLE_H_

#include <string>

#include "frontend/prompt/prompt_router.h"

struct kvatlas_route {
  kvatlas::PromptRoute answer;
  std::string json;  // empty: not made yet
};

#endif  // KVATLAS_FRONTEND_GATEWAY_C_ROUTE_HANDLE_H_
