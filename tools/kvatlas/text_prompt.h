// Makes tokens of a text: by a frontend, as it makes them of a client's prompt, or by a tokenizer's
// files on this machine.
//
// *Truth*: a frontend is asked for a route of the text, and told at once that the request is over:
// nothing stays counted.
// *Threads*: none.

#ifndef KVATLAS_TOOLS_KVATLAS_TEXT_PROMPT_H_
#define KVATLAS_TOOLS_KVATLAS_TEXT_PROMPT_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "tools/kvatlas/prompt.h"

namespace kvatlas {

struct GivenTokenizer {
  std::string text;                      // as `AskedPromptFlags::tokenizer`
  std::optional<Address> frontend = {};  // where `text` is empty; nothing: 127.0.0.1:8092
};

// A prompt of another form is left as it is. INVALID_ARGUMENT: neither a frontend's name nor a
// file. Others as the frontend or the files say, naming them.
absl::Status MakeTokens(const std::string& model, const std::string& tenant,
                        const GivenTokenizer& tokenizer, Duration timeout, AskedPrompt* prompt);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_TEXT_PROMPT_H_
