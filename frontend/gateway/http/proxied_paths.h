// Which calls of an engine's HTTP API does the proxy pass on? Inference and what belongs to it, and
// what any engine answers alike.
//
//   inference   an engine of the `model` that the body names   chats, embeddings, /tokenize, /inference/v1/generate, /generate, …
//   of any      any engine                                     /version, /ping, /load, /get_model_info, …
//   not         404, unless `--proxy_paths` names it           /sleep, /flush_cache, /v1/load_lora_adapter, /abort_requests, …: they
//                                                              change an engine under all of its clients; /server_info,
//                                                              /get_server_info, /kv_event_sources: they tell its settings and addresses
//
// `path` is without the query. A `*` in a pattern is one segment that is not empty.
// *Threads*: pure functions; `ProxiedPaths` is immutable.

#ifndef KVATLAS_FRONTEND_GATEWAY_HTTP_PROXIED_PATHS_H_
#define KVATLAS_FRONTEND_GATEWAY_HTTP_PROXIED_PATHS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kvatlas {

class ProxiedPaths {
 public:
  ProxiedPaths();

  // Beside the built-in ones: "METHOD /path/with/*"; without a body they go to any engine, with one
  // to an engine of the model that it names. INVALID_ARGUMENT: anything else, or a path that the
  // proxy answers itself.
  static absl::StatusOr<ProxiedPaths> With(const std::vector<std::string>& more);

  bool Allows(std::string_view method, std::string_view path) const;
  // Whether a call that is passed on is inference, so that its body says which model it is for.
  bool IsInference(std::string_view method, std::string_view path) const;
  // The methods that a path has, "GET, HEAD, DELETE"; empty: it is not passed on.
  std::string MethodsOf(std::string_view path) const;
  // "POST /v1/chat/completions, …", for an error.
  std::string ToString() const;

 private:
  struct Pattern {
    std::string method;
    std::string path;
    bool inference = false;
  };
  std::vector<Pattern> patterns_;
};

// The value of the field `model` of a body of multipart/form-data, the last one, which is what
// engines take of several (Starlette's `ImmutableMultiDict`); nothing: the body has none, or is of
// another type.
// *Cost*: one pass over the body's headers and boundaries.
std::optional<std::string> MultipartModel(std::string_view content_type, std::string_view body);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_HTTP_PROXIED_PATHS_H_
