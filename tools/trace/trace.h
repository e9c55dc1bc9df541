// Which requests came when, and which prompts began alike? A reader of the traces that are
// published.
//
// *Format*: found out from the file, which may be gzip. JSON lines, one object per request, of
// Mooncake: `timestamp` (ms, a number, never before the last one's), `hash_ids` (one non-negative
// integer per 512 tokens of the prompt; equal ids at equal places mean equal prefixes; 16 to 256
// tokens where the lengths say so), `input_length` (tokens, as many as the ids stand for, the last
// one in part), `output_length` (tokens), `session_id` (text or number; may be absent). Of Bailian,
// known by `parent_chat_id`: `timestamp` in seconds, ids of 16 tokens, a session per conversation.
// Of aiperf: in a session `delay` (ms after the turn before) in place of `timestamp`;
// `output_length` and `hash_ids` may be absent. CSV with a header: of BurstGPT and of Azure,
// lengths alone. Unknown fields are ignored, and so are empty lines. Whatever else the file is, the
// error says what was expected.
// *Truth*: hash ids are names, not hashes. `PromptLocals` gives every id blocks of 512 / split
// tokens, with local hashes of our own making; sequence hashes follow the contract
// (`indexer/base/hash.h`). A last id that stands for fewer tokens counts as full. Where a trace has
// lengths alone each prompt is its own from its first token on (`TraceNote`). A `delay` counts from
// when the turn before came, since what that took is another system's.
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

// Tokens that one hash id stands for, unless a request says otherwise; what --split divides.
inline constexpr uint32_t kTokensPerHashId = 512;

inline constexpr size_t kTraceLineBytesMax = 16 << 20;
inline constexpr size_t kTraceIdsMax = 1 << 16;

struct TraceRequest {
  double timestamp_ms = 0;
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  std::vector<uint64_t> hash_ids;
  std::string session_id = {};            // empty: not known
  uint32_t id_tokens = kTokensPerHashId;  // a power of two, of each of `hash_ids`
  bool has_prefixes = true;  // false: the ids are made up, and none is another request's
};

// The first `requests_max` requests of a trace; 0 means all.
// INVALID_ARGUMENT "FILE:LINE: reason" for a line that is no request, "FILE: reason" for an empty
// trace;
// NOT_FOUND for a file that cannot be opened.
absl::StatusOr<std::vector<TraceRequest>> ReadTrace(const std::string& path,
                                                    size_t requests_max = 0);

// The same from a stream; `name` stands in messages.
absl::StatusOr<std::vector<TraceRequest>> ReadTrace(std::istream& in, const std::string& name,
                                                    size_t requests_max = 0);

// What a trace cannot show, in a sentence; empty: nothing.
std::string TraceNote(const std::vector<TraceRequest>& trace);

// Local hash of part `part` (from 0) of what a hash id stands for: XXH3-64 with the contract's
// default seed over 16 bytes, id then part, both u64 little-endian.
LocalHash LocalOfHashId(uint64_t hash_id, uint64_t part);

// Blocks of 512 / `split` tokens for the hash ids, in order: several for an id, or one for several
// ids.
std::vector<LocalHash> PromptLocals(const TraceRequest& request, uint32_t split);

// Their sequence hashes.
std::vector<SequenceHash> PromptBlocks(const TraceRequest& request, uint32_t split);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TRACE_TRACE_H_
