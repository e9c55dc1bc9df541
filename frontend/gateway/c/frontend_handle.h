// The object behind a `kvatlas_frontend*`: a `Frontend`, its clients of hierarchies and leaves, and
// the count of its routes under way.
//
// *Place*: made and destroyed by `frontend_handle.cc`, used by `kvatlas_frontend.cc`.

#ifndef KVATLAS_FRONTEND_GATEWAY_C_FRONTEND_HANDLE_H_
#define KVATLAS_FRONTEND_GATEWAY_C_FRONTEND_HANDLE_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "frontend/cluster_client/grpc_lookup_clients.h"
#include "frontend/gateway/c/kvatlas_frontend.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/text/local_tokenizer.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/router/frontend.h"
#include "indexer/base/mutex.h"
#include "indexer/base/waypoints.h"
#include "indexer/net/grpc_awake.h"
#include "indexer/process/fork_detector.h"

// Members are destroyed from the last to the first: the tokenizers, the frontend, then the services
// that its routes ask.
struct kvatlas_frontend {
  const kvatlas::ForkDetector* mark = nullptr;
  uint32_t routes_max = 0;

  kvatlas::Mutex mutex;
  kvatlas::CondVar idle;
  uint32_t under_way ABSL_GUARDED_BY(mutex) = 0;

  kvatlas::WaypointSchedule schedule = kvatlas::WaypointSchedule::Standard();
  kvatlas::GrpcTimer timer;
  kvatlas::GrpcAwake awake;
  kvatlas::GrpcCellFinder cell_finder;
  kvatlas::GrpcOverlapFinder overlap_finder;
  std::unique_ptr<kvatlas::Frontend> frontend;

  std::unique_ptr<kvatlas::ModelRegistry> models;      // null: none
  std::unique_ptr<kvatlas::LocalTokenizer> tokenizer;  // likewise
  std::unique_ptr<kvatlas::PromptRouter> router;
};

namespace kvatlas {

// False in a forked child of the process that made it.
inline bool Usable(const kvatlas_frontend& frontend) { return !frontend.mark->forked(); }

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_C_FRONTEND_HANDLE_H_
