// The question to an engine whose answer is the tokens that the engine itself makes of a request,
// and the reading of that answer.
//
//   TokenizeQuestion   POST /tokenize: every engine has it, but its request has fewer fields than a chat
//   RenderQuestion     POST …/render of vLLM: takes a request as the path itself does, and tells where media items are
//
// *Truth*: a question whose answer would be other tokens than those of the request is
// UNIMPLEMENTED, with the field that is in the way. Values of the body are passed on as they are
// written, numbers too. Not covered, as only the engine itself knows them: vLLM's
// --reasoning-effort-map and --exclude-tools-when-tool-choice-none, and that Kimi K3's and Cohere's
// renderers print `tool_choice` and `response_format`; its render endpoints know them.
// *Threads*: pure functions. *Cost*: one pass of simdjson's on-demand parser and a copy of the
// fields; two passes where messages are rewritten.
//
// Sources: vLLM 0.33.0 entrypoints/serve/tokenize/protocol.py, entrypoints/scale_out; SGLang 0.5.23
// srt/entrypoints/openai/protocol.py (`TokenizeRequest`), serving_tokenize.py.

#ifndef KVATLAS_FRONTEND_PROMPT_ENGINE_QUESTION_H_
#define KVATLAS_FRONTEND_PROMPT_ENGINE_QUESTION_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/prompt/text/prompt_tokenizer.h"

namespace kvatlas {

// "/v1/messages".
const char* PathName(RequestPath path);

struct EngineQuestion {
  std::string target;  // "/tokenize"
  std::string body;
  // vLLM's renderer of gpt-oss takes an effort from no field of /tokenize: an answer in Harmony's
  // form is other tokens than the chat's.
  bool wrong_for_harmony = false;
};

absl::StatusOr<EngineQuestion> TokenizeQuestion(EngineKind engine, const std::string& model,
                                                const Prompt& prompt);
absl::StatusOr<EngineQuestion> RenderQuestion(EngineKind engine, const std::string& model,
                                              const Prompt& prompt);

// UNIMPLEMENTED: the tokens are not those of the request (`wrong_for_harmony`). INVALID_ARGUMENT
// and NOT_FOUND: the engine refuses, in its words. UNAVAILABLE: any other answer without a list of
// tokens.
absl::StatusOr<PromptTokens> ReadEngineAnswer(const EngineQuestion& question, int status,
                                              std::string_view body);
// Whether the answer means that the engine has no such path, or has it switched off.
bool LacksEndpoint(int status, std::string_view body);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_ENGINE_QUESTION_H_
