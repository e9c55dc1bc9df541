// The tokens that each engine of the model sees for a prompt. They are made once for each
// convention of its engines; equal ones are one reading.
//
//   conventions of the model     vllm     sglang     sglang, other parsers
//   tokens                       A        B          A
//   readings of the route        A: "vllm, sglang reasoning_parser=…"      B: "sglang"        (`frontend/router/readings.h`)
//
// *Truth*: a convention whose tokens could not be made is a reading without tokens, behind those
// with tokens; its engines are candidates by load. If no convention has tokens, the result is the
// error of the first one.
// *Threads*: any; the callback is called exactly once, possibly before the call returns. *Cost*:
// the tokenizing of each convention.

#ifndef KVATLAS_FRONTEND_PROMPT_TOKENIZE_READINGS_H_
#define KVATLAS_FRONTEND_PROMPT_TOKENIZE_READINGS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/prompt/engine_conventions.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/router/frontend.h"

namespace kvatlas {

// The report on a reading, beside its tokens.
struct ReadingTold {
  std::string tokenizer;  // `PromptTokens::source`
  size_t prompt_tokens = 0;
  absl::Status no_tokens = {};  // not OK: it could not be read so, or only its beginning
};

// One question to a tokenizer.
using AskTokens =
    std::function<void(std::shared_ptr<const Prompt> prompt, PromptTokenizer::Callback callback)>;

// Fills the prompt into `input`: its tokens, BOS, and the other readings. `conventions` may be
// null: the prompt's own convention counts. The result is by reading, the input's own first.
// `input` outlives the callback.
void TokenizeReadings(const ModelConventions::Ptr& conventions,
                      const std::shared_ptr<const Prompt>& prompt, RouteInput* input,
                      const AskTokens& ask,
                      std::function<void(absl::StatusOr<std::vector<ReadingTold>>)> callback);

// A prompt that is too long to be hashed here may still be one that an engine takes. Not OK: it is,
// and `input` has no tokens any more, to be routed by load. OK: `input` has its tokens.
absl::Status ForgetTokensBeyondBlocksMax(Frontend* frontend, RouteInput* input);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TOKENIZE_READINGS_H_
