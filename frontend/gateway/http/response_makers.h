// Which engine made a response, or has an item or a conversation. `GET /v1/responses/ID` and the
// paths below it are for that engine alone, and so is a `POST /v1/responses` that goes on with
// items it has stored: vLLM and SGLang keep responses in their process.
//
// *Truth*: of responses that were made through this proxy. An engine that was started again has
// none of its own.
// *Threads*: any. *Bounds*: the last `kResponsesMax`, some 400 bytes each; ids of up to
// `kResponseIdMax` bytes.

#ifndef KVATLAS_FRONTEND_GATEWAY_HTTP_RESPONSE_MAKERS_H_
#define KVATLAS_FRONTEND_GATEWAY_HTTP_RESPONSE_MAKERS_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "frontend/router/frontend.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

inline constexpr size_t kResponsesMax = 65'536;
inline constexpr size_t kResponseIdMax = 256;

class ResponseMakers {
 public:
  void Note(const std::string& id, KnownEngine engine);
  std::optional<KnownEngine> Of(const std::string& id) const;

 private:
  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, KnownEngine> makers_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> ids_ ABSL_GUARDED_BY(mutex_);  // the oldest first
};

// Finds each `"id": "…"` of an answer of `POST /v1/responses` that comes in pieces, in whole or as
// a stream of events: of the response, which engines write before any other, and of its items.
// Within a text the quotes are escaped, so that a model cannot write one.
class ResponseIds {
 public:
  // The ids that end in `piece`, in order.
  std::vector<std::string> Add(std::string_view piece);

 private:
  std::string rest_;  // the beginning of one, maybe
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_HTTP_RESPONSE_MAKERS_H_
