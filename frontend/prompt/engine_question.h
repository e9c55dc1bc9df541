// What must an engine be asked so that it makes the tokens that its own door makes of a request,
// and what does it answer?
//
//   TokenizeQuestion   POST /tokenize: every engine has it, and its request knows less than a chat does
//   RenderQuestion     POST …/render of vLLM: takes a request as its door does, and tells where multimodal items are
//
// *Truth*: a question whose answer would be other tokens than the door's is UNIMPLEMENTED, with the
// field that is in the way. What stands in the body is passed on as it is written there, numbers
// too. Known only to the engine itself and in no question: vLLM's --reasoning-effort-map and
// --exclude-tools-when-tool-choice-none, and that Kimi K3's and Cohere's renderers print
// `tool_choice` and `response_format`; its render endpoints know them.
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

// UNIMPLEMENTED: the tokens are not the door's (`wrong_for_harmony`). INVALID_ARGUMENT and
// NOT_FOUND: the engine refuses, in its words. UNAVAILABLE: anything else that is no list of
// tokens.
absl::StatusOr<PromptTokens> ReadEngineAnswer(const EngineQuestion& question, int status,
                                              std::string_view body);
// The answer is that of an engine which has no such path, or has it switched off.
bool LacksEndpoint(int status, std::string_view body);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_ENGINE_QUESTION_H_
