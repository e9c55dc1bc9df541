// What of a client's request does a route need? The table of the paths that have a prompt, and the
// few fields of a body that decide where it goes; the prompt itself is read once, by the tokenizer
// (rust/src/request), or is ids already.
//
//   path ─▶ RequestPathOf ─▶ ReadPromptRequest ─▶ model, salt, limits │ ids, or the body for a tokenizer
//
// *Truth*: nothing is filled in that the body does not say. What is no part of the prompt is not
// judged: how engines read fields of another kind is their matter. What has a prompt that cannot be
// told here says so in `no_prompt`.
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

// Has the body a `cache_salt` that engines mix into its blocks' hashes? vLLM 0.33.0 reads it of
// chats, completions, responses and /inference/v1/generate, SGLang 0.5.23 of the first three;
// neither of /v1/messages or of /generate.
bool TakesSalt(RequestPath path);
// Does an engine answer it without computing blocks that a later prompt could find? Any POST that
// is not known to be so is not.
bool LeavesNoBlocks(std::string_view method, std::string_view path);

// What a body says of the engine that must take it, and of how its usage is to be read, as vLLM
// 0.33.0 and SGLang 0.5.23 read it; what is of another kind says nothing.
struct RequestWishes {
  // Responses, items and conversations that the engine has: `previous_response_id`, items of the
  // type `item_reference`, `conversation`; 64 ids at most.
  std::vector<std::string> stored;
  // SGLang's `routed_dp_rank`, or its older name `data_parallel_rank` (openai/protocol.py,
  // engine.py).
  std::optional<uint32_t> rank;
  // One prompt and one choice: `usage` says then of the prompt what a prediction does. vLLM's of a
  // list of prompts has the sum of the tokens and the last one's cached ones; of `n` choices the
  // second finds the first one's blocks.
  bool one_prompt = true;
};

struct PromptRequest {
  std::string model;  // empty: the body names none
  // Ids that the caller has already, or what a tokenizer turns into ids.
  std::variant<std::vector<TokenId>, BodyPrompt> prompt;
  // Why there is no prompt that could be read, though engines may take the request; OK: there is
  // one.
  absl::Status no_prompt = {};
  // Why the engine will not look into its cache for this request; OK: it will. Then nothing may be
  // promised.
  absl::Status cache_not_read = {};
  std::string cache_salt = {};
  bool stream = false;
  bool own_template =
      false;  // the body brings a chat template, whose cost does not follow from its size
  size_t output_tokens_max = 0;  // 0: not said
  // Fields of the body that change what engines read, for a diagnosis of prompts that are read
  // otherwise than here.
  std::vector<std::string> traits = {};
  RequestWishes wishes = {};
};

// INVALID_ARGUMENT: what no engine takes; names the field that is missing or of another kind.
absl::StatusOr<PromptRequest> ReadPromptRequest(RequestPath path,
                                                std::shared_ptr<const std::string> body);

// Is it UTF-16 or UTF-32, which Python's json takes, and of which nothing is read here? Then the
// model is not known.
bool IsWideText(std::string_view body);

// The body with what `salt` makes of its model and its own salt as its only `cache_salt`, or with
// none where that is nothing; otherwise byte for byte as it was. *Cost*: as of reading it, however
// many fields it has. INVALID_ARGUMENT: no JSON object in UTF-8.
using SaltOfRequest =
    std::function<std::optional<std::string>(const std::string& model, const std::string& callers)>;
absl::StatusOr<std::string> WithSalt(std::string_view body, const SaltOfRequest& salt);

// The body with `model` as its model, in the place of `*before`; otherwise byte for byte as it was.
// NOT_FOUND: it names none. INVALID_ARGUMENT: no JSON object in UTF-8, or a model that is no text.
absl::StatusOr<std::string> WithModel(std::string_view body, std::string_view model,
                                      std::string* before);

// The body without members `"kv_cache_report_mode": "full"` of `vllm_xargs`, or of what
// `sampling_params` has for it: white space stands in their place, so that the length stays. An
// engine that gets one announces blocks that it holds already as if they were stored again
// (vLLM 0.33.0, v1/request.py), after which no count of their copies is right. Nothing: it has
// none, or is no JSON object in UTF-8. *Cost*: of a body without that name a search for it.
std::optional<std::string> WithoutFullReports(std::string_view body);

// `model` of any other call's body; empty: it names none. INVALID_ARGUMENT: no JSON object, or a
// model that is no text.
absl::StatusOr<std::string> ReadModel(std::string_view body);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_REQUEST_PROMPT_REQUEST_H_
