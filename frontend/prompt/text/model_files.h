// Reads the files of a model's tokenizer from a folder, as AutoTokenizer of the Python package
// `transformers` looks for them.

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_MODEL_FILES_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_MODEL_FILES_H_

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "frontend/prompt/text/tokenizer.h"

namespace kvatlas {

struct ModelFiles {
  std::string path;  // of the tokenizer
  // One of the two is read, the other is empty.
  TokenizerFiles tokenizer;
  std::string sentencepiece_model;
  // By name; chat_template.jinja comes before tokenizer_config.json.
  std::map<std::string, std::string> chat_templates;
  std::string tokenizer_hash;  // 16 hex digits
  // A tekken.json or tokenizer.model.v* lies beside the tokenizer: then vLLM encodes with the
  // package mistral_common.
  bool has_mistral_files = false;
  size_t context_tokens_max = 0;  // config.json's max_position_embeddings; 0: it has none
};

// `path`: a folder, or a tokenizer's file. NOT_FOUND: neither tokenizer.json nor tokenizer.model.
// INVALID_ARGUMENT: a file that is not what its name says.
absl::StatusOr<ModelFiles> ReadModelFiles(const std::string& path, TokenizerRules rules);

// A hash of these templates, as 16 hex digits.
std::string HashOf(const std::map<std::string, std::string>& texts);

// The whole file. NOT_FOUND, or INVALID_ARGUMENT when it has more than 1 GiB.
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_MODEL_FILES_H_
