// Reads the JSON of requests and answers: `nlohmann::ordered_json::parse`, at several times its speed, by simdjson.
//
// *Truth*: the same value as the library's parser gives, or none where that refuses the text: numbers that simdjson does not take
// (beyond 64 bits) and texts that it refuses are given to the library. Of a name that stands in an object twice the last value counts.
// *Threads*: any; each keeps a parser, of some four mebibytes at most between two calls.
// *Cost*: a copy of the text and an allocation per long string, object and array.
// *Bounds*: `kJsonDepthMax` levels, so that what recurses over the value does not exhaust the stack.

#ifndef KVATLAS_FRONTEND_PROMPT_OPENAI_JSON_READER_H_
#define KVATLAS_FRONTEND_PROMPT_OPENAI_JSON_READER_H_

#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvatlas {

// INVALID_ARGUMENT: "the body is nested too deep", "is empty", or "is not JSON" and where it is wrong.
absl::StatusOr<nlohmann::ordered_json> ReadJson(std::string_view text);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_OPENAI_JSON_READER_H_
