// A tokenizer that needs no files: a token for each byte, and a template that everybody knows. What
// a mock engine makes of text when it is given no model.
//
// *Truth*: a chat is "ROLE: CONTENT\n" per message, then "assistant: " when a prompt for an answer
// is wanted.

#ifndef KVATLAS_TOOLS_TESTING_MOCK_ENGINE_BYTE_TOKENIZER_H_
#define KVATLAS_TOOLS_TESTING_MOCK_ENGINE_BYTE_TOKENIZER_H_

#include <string>

#include "frontend/prompt/text/prompt_tokenizer.h"
#include "indexer/base/clock.h"

namespace kvatlas {

class ByteTokenizer : public PromptTokenizer {
 public:
  void Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                Callback callback) override;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_MOCK_ENGINE_BYTE_TOKENIZER_H_
