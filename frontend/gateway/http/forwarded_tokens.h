// Builds a body that makes the engine run the very ids that were hashed. vLLM from 0.33 on takes
// the ids of a chat in `kv_transfer_params` and neither renders nor tokenizes it again
// (renderers/online_renderer.py, `_reused_prompt_token_ids`).
//
// *Truth*: for chats of text whose ids were found equal to the engine's own; the caller knows that.
// The engine ignores the ids where the body says `echo` or has media.
// *Threads*: a pure function. *Cost*: a copy of the body, and about six bytes a token.

#ifndef KVATLAS_FRONTEND_GATEWAY_HTTP_FORWARDED_TOKENS_H_
#define KVATLAS_FRONTEND_GATEWAY_HTTP_FORWARDED_TOKENS_H_

#include <memory>
#include <span>
#include <string>

#include "indexer/base/hash.h"

namespace kvatlas {

// `body` with the ids in it. Null: it has `kv_transfer_params` of its own, asks for `echo` or a cut
// of the prompt, or is no object that could be added to.
std::shared_ptr<const std::string> BodyWithTokens(const std::string& body,
                                                  std::span<const TokenId> tokens);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_HTTP_FORWARDED_TOKENS_H_
