// Which requests came when, and which prompts began alike? A reader of traces in Mooncake's format.
//
// *Format*: JSON lines, one object per request: `timestamp` (ms, a number, never before the last one's), `hash_ids` (one
// non-negative integer per 512 tokens of the prompt; equal ids at equal places mean equal prefixes), `input_length` (tokens, as
// many as the ids stand for, the last one in part), `output_length` (tokens), `session_id` (text or number; may be absent). Unknown fields are ignored, and so are empty lines.
// *Truth*: hash ids are names, not hashes. `PromptLocals` gives every id `split` blocks of 512 / split
// tokens each, with local hashes of our own making; sequence hashes follow the contract
// (`indexer/base/hash.h`). A last id that stands for fewer than 512 tokens counts as full.
// *Bounds*: a line of `kTraceLineBytesMax`, `kTraceIdsMax` ids in a line.
//
// Example:
//   absl::StatusOr<std::vector<TraceRequest>> trace = ReadTrace("conversation.jsonl");
//   std::vector<SequenceHash> prompt = PromptBlocks((*trace)[0], /*split=*/8);

#ifndef KVATLAS_TOOLS_TRACE_TRACE_H_
#define KVATLAS_TOOLS_TRACE_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/ids.h"

namespace kvatlas {

// Tokens that one hash id stands for.
inline constexpr uint32_t kTokensPerHashId = 512;

inline constexpr size_t kTraceLineBytesMax = 16 << 20;
inline constexpr size_t kTraceIdsMax = 1 << 16;

struct TraceRequest {
  double timestamp_ms = 0;
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  std::vector<uint64_t> hash_ids;
  std::string session_id = {};  // empty: not known
};

// The first `requests_max` requests of a trace; 0 means all.
// INVALID_ARGUMENT "FILE:LINE: reason" for a line that is no request, "FILE: reason" for an empty trace;
// NOT_FOUND for a file that cannot be opened.
absl::StatusOr<std::vector<TraceRequest>> ReadTrace(const std::string& path,
                                                    size_t requests_max = 0);

// The same from a stream; `name` stands in messages.
absl::StatusOr<std::vector<TraceRequest>> ReadTrace(std::istream& in, const std::string& name,
                                                    size_t requests_max = 0);

// Local hash of part `part` (from 0) of what a hash id stands for: XXH3-64 with the contract's default
// seed over 16 bytes, id then part, both u64 little-endian.
LocalHash LocalOfHashId(uint64_t hash_id, uint64_t part);

// `split` blocks for every hash id, in order.
std::vector<LocalHash> PromptLocals(const TraceRequest& request, uint32_t split);

// Their sequence hashes.
std::vector<SequenceHash> PromptBlocks(const TraceRequest& request, uint32_t split);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TRACE_TRACE_H_
