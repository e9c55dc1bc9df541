// Which engine made this response? `GET /v1/responses/ID` and what else is below it are for that engine alone.
//
// *Truth*: of responses that were made through this proxy. An engine that was started again has none of its own.
// *Threads*: any. *Bounds*: the last `kResponsesMax`, some 400 bytes each; ids of up to `kResponseIdMax` bytes.

#ifndef KVATLAS_FRONTEND_DOORS_HTTP_RESPONSE_MAKERS_H_
#define KVATLAS_FRONTEND_DOORS_HTTP_RESPONSE_MAKERS_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "frontend/route/frontend.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

inline constexpr size_t kResponsesMax = 65'536;
inline constexpr size_t kResponseIdMax = 256;
// The id stands within so many bytes of an answer, or is not found.
inline constexpr size_t kResponseHeadMax = 4096;

class ResponseMakers {
 public:
  void Note(const std::string& id, KnownEngine engine);
  std::optional<KnownEngine> Of(const std::string& id) const;

 private:
  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, KnownEngine> makers_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> ids_ ABSL_GUARDED_BY(mutex_);  // the oldest first
};

// The first `"id": "…"` in the beginning of an answer of `POST /v1/responses`, in whole or as a stream of events: engines write the
// response's before any other.
std::optional<std::string> ResponseIdIn(std::string_view text);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_DOORS_HTTP_RESPONSE_MAKERS_H_
