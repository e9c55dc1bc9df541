// Accessors of a route. Texts and arrays belong to the route and live until `kvatlas_route_free`;
// none of these calls fails but the receipt, which allocates.

#include "frontend/gateway/c/route_handle.h"

#include <google/protobuf/util/json_util.h>

#include <cstdint>
#include <string>
#include <vector>

#include "frontend/gateway/c/kvatlas_frontend.h"
#include "frontend/gateway/grpc/prompt_wire.h"
#include "indexer/base/hash.h"
#include "indexer/process/c_api.h"

namespace kvatlas {
namespace {

static_assert(sizeof(TokenId) == sizeof(uint32_t));  // what `kvatlas_route_tokens` shows

// In the form of POST /route's answers; "{}" if Protobuf cannot print it.
std::string JsonOf(const PromptRoute& answer) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(ToProto(answer), &json, options).ok())
    return "{}";
  return json;
}

}  // namespace
}  // namespace kvatlas

uint64_t kvatlas_route_decision_id(const kvatlas_route* route) {
  return route->answer.route.decision_id;
}

const char* kvatlas_route_worker(const kvatlas_route* route) {
  return route->answer.route.worker.name.c_str();
}

uint32_t kvatlas_route_rank(const kvatlas_route* route) { return route->answer.route.worker.rank; }

const char* kvatlas_route_cell(const kvatlas_route* route) {
  return route->answer.route.cell.c_str();
}

const char* kvatlas_route_url(const kvatlas_route* route) {
  return route->answer.route.url.c_str();
}

uint32_t kvatlas_route_overlap_blocks(const kvatlas_route* route) {
  return route->answer.route.overlap_blocks;
}

// NULL: the worker that prefills decodes too.
const char* kvatlas_route_decode_worker(const kvatlas_route* route) {
  const auto& decode = route->answer.route.decode;
  return decode.has_value() ? decode->worker.name.c_str() : nullptr;
}

uint32_t kvatlas_route_decode_rank(const kvatlas_route* route) {
  const auto& decode = route->answer.route.decode;
  return decode.has_value() ? decode->worker.rank : 0;
}

const char* kvatlas_route_decode_cell(const kvatlas_route* route) {
  const auto& decode = route->answer.route.decode;
  return decode.has_value() ? decode->cell.c_str() : nullptr;
}

const char* kvatlas_route_decode_url(const kvatlas_route* route) {
  const auto& decode = route->answer.route.decode;
  return decode.has_value() ? decode->url.c_str() : nullptr;
}

uint64_t kvatlas_route_prompt_tokens(const kvatlas_route* route) {
  return route->answer.prompt_tokens;
}

const char* kvatlas_route_tokenizer(const kvatlas_route* route) {
  return route->answer.tokenizer.c_str();
}

const uint32_t* kvatlas_route_tokens(const kvatlas_route* route, size_t* count) {
  const std::vector<kvatlas::TokenId>& tokens = route->answer.tokens;
  if (count != nullptr) *count = tokens.size();
  return tokens.empty() ? nullptr : tokens.data();
}

// Made at the first call and kept: not to be called by two threads at once for one route.
const char* kvatlas_route_receipt_json(kvatlas_route* route) {
  const int32_t code = kvatlas::Guarded([&] {
    if (route->json.empty()) route->json = kvatlas::JsonOf(route->answer);
    return int32_t{KVATLAS_OK};
  });
  return code == KVATLAS_OK ? route->json.c_str() : nullptr;
}

void kvatlas_route_free(kvatlas_route* route) { delete route; }
