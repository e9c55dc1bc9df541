// The part of a client's request that a route needs: the table of the paths that have a prompt, and
// the few fields of a body that decide where it goes; the prompt itself is read once, by the
// tokenizer (rust/src/request), or is ids already.
//
//   path ─▶ RequestPathOf ─▶ ReadPromptRequest ─▶ model, salt, limits │ ids, or the body for a tokenizer
//
// *Truth*: nothing is filled in that the body does not say. Fields that are no part of the prompt
// are not judged; how engines read values of another kind is their matter. A body whose prompt
// cannot be read here says so in `no_prompt`.
// *Threads*: pure functions; each thread keeps a parser. *Cost*: one pass of simdjson's on-demand
// parser, which skips messages and tools (some 2 GB/s), and a copy of the body. *Bounds*: of
// several prompts in one body the first one counts; the caller bounds the body's size.
//
// Example:
//   const std::optional<RequestPath> path = RequestPathOf("POST", "/v1/messages");
//   if (!path.has_value()) return PassOn();
//   absl::StatusOr<PromptRequest> request = ReadPromptRequest(*path, body);

#ifndef KVATLAS_FRONTEND_PROMPT_REQUEST_PROMPT_REQUEST_H_
#define KVATLAS_FRONTEND_PROMPT_REQUEST_PROMPT_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "indexer/base/hash.h"

namespace kvatlas {

// The path of a call that has a prompt; nothing: any other, which needs no choice by prompt. A
// query does not matter, nor what stands before /v1 or /inference.
std::optional<RequestPath> RequestPathOf(std::string_view method, std::string_view path);

// Whether engines mix a `cache_salt` of the body into the hashes of its blocks. vLLM 0.33.0 reads
// it from chats, completions, responses and /inference/v1/generate, SGLang 0.5.23 of the first
// three; neither of /v1/messages or of /generate.
bool TakesSalt(RequestPath path);
// Whether an engine answers the call without computing blocks that a later prompt could find. False
// for any POST that is not known.
bool LeavesNoBlocks(std::string_view method, std::string_view path);

// The fields of a body that choose its engine, and those that decide how its usage is to be read,
// by the rules of vLLM 0.33.0 and SGLang 0.5.23. Values of another kind say nothing.
struct RequestWishes {
  // Responses, items and conversations that the engine has: `previous_response_id`, items of the
  // type `item_reference`, `conversation`; 64 ids at most.
  std::vector<std::string> stored;
  // SGLang's `routed_dp_rank`, or its older name `data_parallel_rank` (openai/protocol.py,
  // engine.py).
  std::optional<uint32_t> rank;
  // One prompt and one choice: only then can `usage` be compared with a prediction. For a list of
  // prompts vLLM's usage has the sum of the tokens and the cached ones of the last prompt; of `n`
  // choices the second finds the first one's blocks.
  bool one_prompt = true;
  // There are arguments for code of the engine's own, among which `WithoutFullReports` looks:
  // `vllm_xargs`, also of `sampling_params`, or the latter's `extra_args`.
  bool has_engine_arguments = false;
};

// A longer id of a session in a body is none.
inline constexpr size_t kBodySessionBytesMax = 256;

struct PromptRequest {
  std::string model;  // empty: the body names none
  // Ids that the body has, or a body that a tokenizer turns into ids.
  std::variant<std::vector<TokenId>, BodyPrompt> prompt;
  // Why no prompt could be read, though engines may take the request; OK: there is one.
  absl::Status no_prompt = {};
  // Not OK: why the engine will not look into its cache for this request; then nothing may be
  // promised.
  absl::Status cache_not_read = {};
  std::string cache_salt = {};
  bool stream = false;
  bool own_template =
      false;  // the body brings a chat template, whose cost does not follow from its size
  size_t output_tokens_max = 0;  // 0: not said
  // Fields of the body that change what engines read, to diagnose prompts that engines read
  // differently.
  std::vector<std::string> traits = {};
  RequestWishes wishes = {};
  // The session that the body names, where no header does (`session_header.h`); empty: none. The
  // first of these that is a text counts:
  //   session_params.id                      SGLang's session, which one engine has (io_struct.py)
  //   nvext.session_control.session_id       Dynamo's
  //   session_id                             OpenRouter's, and gateways' that have its interface
  //   metadata.session_id
  //   metadata.user_id                       Claude Code, which sent no header before 2.1.86: what
  //                                          follows "_session_", or "session_id" of an object that
  //                                          is written as text (from 2.1.78 on)
  //   prompt_cache_key                       OpenAI's, by which its servers route; Codex writes the
  //                                          conversation's id there
  // `user` and `safety_identifier` are people, who have many sessions at once.
  std::string session = {};
};

// INVALID_ARGUMENT: no engine takes the body; the text names the field that is missing or wrong.
absl::StatusOr<PromptRequest> ReadPromptRequest(RequestPath path,
                                                std::shared_ptr<const std::string> body);

// Whether the body is UTF-16 or UTF-32: Python's json takes it, nothing of it is read here, and so
// its model is not known.
bool IsWideText(std::string_view body);

// The body with another `cache_salt`: the one that `salt` makes of its model and its own salt, or
// none. All other bytes stay. *Cost*: as of reading it, however many fields it has.
// INVALID_ARGUMENT: no JSON object in UTF-8.
using SaltOfRequest =
    std::function<std::optional<std::string>(const std::string& model, const std::string& callers)>;
absl::StatusOr<std::string> WithSalt(std::string_view body, const SaltOfRequest& salt);

// The body with `model` in the place of its model, which goes to `*before`. All other bytes stay.
// NOT_FOUND: it names none. INVALID_ARGUMENT: no JSON object in UTF-8, or a model that is no text.
absl::StatusOr<std::string> WithModel(std::string_view body, std::string_view model,
                                      std::string* before);

// The body without members `"kv_cache_report_mode": "full"` of `vllm_xargs`, or of what
// `sampling_params` has for it: white space stands in their place, so that the length stays. An
// engine that gets one announces blocks that it holds already as if they were stored again
// (vLLM 0.33.0, v1/request.py), after which no count of their copies is right. Nothing: it has
// none, or is no JSON object in UTF-8. *Cost*: as of reading it, so it is for bodies that have
// arguments of this kind (`RequestWishes::has_engine_arguments`).
std::optional<std::string> WithoutFullReports(std::string_view body);

// The model in the body of any other call; empty: it names none. INVALID_ARGUMENT: no JSON object,
// or a model that is no text.
absl::StatusOr<std::string> ReadModel(std::string_view body);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_REQUEST_PROMPT_REQUEST_H_
