#include "tools/trace/trace.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

absl::Status Bad(const std::string& reason) { return absl::InvalidArgumentError(reason); }

const Json* Field(const Json& line, const char* name) {
  auto it = line.find(name);
  return it == line.end() ? nullptr : &*it;
}

absl::Status ReadTime(const Json& line, double* out) {
  const Json* value = Field(line, "timestamp");
  if (value == nullptr) return Bad("timestamp is missing");
  if (!value->is_number()) return Bad("timestamp is not a number");
  *out = value->get<double>();
  if (!std::isfinite(*out) || *out < 0) return Bad("timestamp is negative or not finite");
  return absl::OkStatus();
}

absl::Status ReadTokens(const Json& line, const char* name, uint32_t* out) {
  const Json* value = Field(line, name);
  if (value == nullptr) return Bad(std::string(name) + " is missing");
  if (!value->is_number_unsigned())
    return Bad(std::string(name) + " is not a non-negative integer");
  const uint64_t tokens = value->get<uint64_t>();
  if (tokens > std::numeric_limits<uint32_t>::max())
    return Bad(std::string(name) + " is too large");
  *out = static_cast<uint32_t>(tokens);
  return absl::OkStatus();
}

absl::Status ReadIds(const Json& line, std::vector<uint64_t>* out) {
  const Json* value = Field(line, "hash_ids");
  if (value == nullptr) return Bad("hash_ids is missing");
  if (!value->is_array()) return Bad("hash_ids is not a list");
  if (value->empty()) return Bad("hash_ids is empty");
  if (value->size() > kTraceIdsMax) {
    return Bad("hash_ids has more than " + std::to_string(kTraceIdsMax) + " ids");
  }
  out->reserve(value->size());
  for (const Json& id : *value) {
    if (!id.is_number_unsigned())
      return Bad("hash_ids holds something that is not a non-negative integer");
    out->push_back(id.get<uint64_t>());
  }
  return absl::OkStatus();
}

// Absent or null: empty. Numbers and texts are both met.
absl::Status ReadSession(const Json& line, std::string* out) {
  const Json* value = Field(line, "session_id");
  if (value == nullptr || value->is_null()) return absl::OkStatus();
  if (value->is_string()) {
    *out = value->get<std::string>();
  } else if (value->is_number_integer()) {
    *out = value->dump();
  } else {
    return Bad("session_id is neither text nor integer");
  }
  return absl::OkStatus();
}

// The parser's message without its own prefix: "[json.exception.parse_error.101] parse error at …".
std::string Reason(const Json::exception& error) {
  const std::string_view what = error.what();
  const size_t end = what.find("] ");
  return std::string(end == std::string_view::npos ? what : what.substr(end + 2));
}

absl::StatusOr<TraceRequest> ParseLine(const std::string& text) {
  if (text.size() > kTraceLineBytesMax) return Bad("line is too long");
  Json line;
  try {
    line = Json::parse(text);
  } catch (const Json::exception& error) {
    return Bad(Reason(error));
  }
  if (!line.is_object()) return Bad("not a JSON object");
  TraceRequest request;
  if (absl::Status status = ReadTime(line, &request.timestamp_ms); !status.ok()) return status;
  if (absl::Status status = ReadTokens(line, "input_length", &request.input_tokens); !status.ok()) {
    return status;
  }
  if (absl::Status status = ReadTokens(line, "output_length", &request.output_tokens);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = ReadIds(line, &request.hash_ids); !status.ok()) return status;
  const uint64_t ids = (uint64_t{request.input_tokens} + kTokensPerHashId - 1) / kTokensPerHashId;
  if (ids != request.hash_ids.size()) {
    return Bad("input_length needs " + std::to_string(ids) + " hash_ids of " +
               std::to_string(kTokensPerHashId) + " tokens, and there are " +
               std::to_string(request.hash_ids.size()));
  }
  if (absl::Status status = ReadSession(line, &request.session_id); !status.ok()) return status;
  return request;
}

void AppendU64(uint64_t value, char* out) {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(value >> (8 * i));
}

bool IsBlank(const std::string& text) {
  return text.find_first_not_of(" \t\r") == std::string::npos;
}

}  // namespace

absl::StatusOr<std::vector<TraceRequest>> ReadTrace(std::istream& in, const std::string& name,
                                                    size_t requests_max) {
  std::vector<TraceRequest> trace;
  std::string text;
  for (size_t number = 1; std::getline(in, text); ++number) {
    if (IsBlank(text)) continue;
    absl::StatusOr<TraceRequest> request = ParseLine(text);
    if (request.ok() && !trace.empty() && request->timestamp_ms < trace.back().timestamp_ms)
      request = Bad("timestamp is before the last request's");
    if (!request.ok()) {
      return Bad(name + ":" + std::to_string(number) + ": " +
                 std::string(request.status().message()));
    }
    trace.push_back(*std::move(request));
    if (trace.size() == requests_max) break;
  }
  if (in.bad()) return absl::UnavailableError(name + ": reading failed");
  if (trace.empty()) return Bad(name + ": the trace is empty");
  return trace;
}

absl::StatusOr<std::vector<TraceRequest>> ReadTrace(const std::string& path, size_t requests_max) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(path + ": " + std::strerror(errno));
  return ReadTrace(in, path, requests_max);
}

LocalHash LocalOfHashId(uint64_t hash_id, uint64_t part) {
  char bytes[16];
  AppendU64(hash_id, bytes);
  AppendU64(part, bytes + 8);
  return LocalHash{Xxh3(std::string_view(bytes, sizeof(bytes)), kDefaultHashSeed)};
}

std::vector<LocalHash> PromptLocals(const TraceRequest& request, uint32_t split) {
  std::vector<LocalHash> locals;
  locals.reserve(request.hash_ids.size() * split);
  for (uint64_t id : request.hash_ids) {
    for (uint32_t part = 0; part < split; ++part) locals.push_back(LocalOfHashId(id, part));
  }
  return locals;
}

std::vector<SequenceHash> PromptBlocks(const TraceRequest& request, uint32_t split) {
  return SequenceHashes(PromptLocals(request, split));
}

}  // namespace kvatlas
