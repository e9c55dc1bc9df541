// One model: its tokenizer, its chat templates, the conventions of engines and the memory of
// earlier prompts, loaded from files as an engine loads them.
//
// *Place*: made by a ModelRegistry; LocalTokenizer asks it.
// *Truth*: ids are the engine's if the engine reads the same files by the same `rules`;
// `facts().source` names the file's hash, so that two ends can compare.
// *Threads*: all methods may be called from any.
// *Bounds*: `prompt_bytes_max` of text for each part of a prompt, `cache_bytes` of memory.

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_TEXT_MODEL_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_TEXT_MODEL_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/prompt/text/token_cache.h"
#include "frontend/prompt/text/tokenizer.h"

struct kvatlas_templates;

namespace kvatlas {

struct TextModelOptions {
  // A folder with tokenizer.json, or with tokenizer.model (SentencePiece); or one of these files,
  // beside which the others are looked for: tokenizer_config.json, special_tokens_map.json,
  // config.json, chat_template.jinja, chat_template.json, additional_chat_templates/*.jinja.
  std::string path = {};
  TokenizerRules rules = TokenizerRules::kTransformers;
  // A file that takes the place of the model's own templates, as engines' --chat-template does.
  std::string chat_template_path = {};
  // Variables of every chat; a request's own win, as engines' --default-chat-template-kwargs.
  nlohmann::ordered_json template_kwargs = {};
  // Requests may bring a chat template; engines refuse that unless they are started with an option.
  bool trust_request_templates = false;
  // The longest prompt that the engine takes, in tokens (--max-model-len), to which a request's
  // `truncate_prompt_tokens` of -1 cuts. 0: as config.json says.
  size_t context_tokens_max = 0;
  size_t prompt_bytes_max = size_t{64} << 20;
  size_t cache_bytes = size_t{64} << 20;
};

// Facts of a loaded model.
struct TextModelFacts {
  std::string kind;            // "tokenizer.json" or "tokenizer.model"
  std::string path;            // of that file
  std::string tokenizer_hash;  // of all files that decide on ids: 16 hex digits
  std::string template_hash;   // of the chat templates; empty without any
  size_t vocabulary_size = 0;
  std::vector<TokenId> tokens_before;
  std::vector<TokenId> tokens_after;
};

class TextModel {
 public:
  // NOT_FOUND: no such files. INVALID_ARGUMENT: a file cannot be used; the message names it.
  static absl::StatusOr<std::shared_ptr<TextModel>> Load(const TextModelOptions& options);

  // As `PromptTokenizer::Tokenize`, in the caller's thread. `source` is "tokenizer.json 5f0c…".
  absl::StatusOr<PromptTokens> Tokenize(const Prompt& prompt);

  // The text of a request, with parts that are encoded apart joined. For tools and tests.
  absl::StatusOr<std::string> Render(const BodyPrompt& prompt) const;

  const TextModelFacts& facts() const { return facts_; }
  // Whether both, loaded by the same options, read every prompt alike.
  bool ReadsAs(const TextModel& other) const;
  TokenCache::Stats cache_stats() const { return cache_->stats(); }

 private:
  struct Reading;
  struct FreeTemplates {
    void operator()(kvatlas_templates* templates) const;
  };

  TextModel() = default;
  absl::StatusOr<Reading> Read(const BodyPrompt& prompt) const;
  static void Cut(const Reading& read, const TokensAround& around, PromptTokens* made);
  // Appends the tokens of a text with those around it.
  absl::Status AppendText(std::string_view text, const TokensAround& around, PromptTokens* made);

  TextModelOptions options_;
  TextModelFacts facts_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::string default_kwargs_;  // a JSON object, or empty
  std::string model_type_;
  bool has_mistral_files_ = false;
  std::unique_ptr<kvatlas_templates, FreeTemplates> templates_;
  std::unique_ptr<TokenCache> cache_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_TEXT_MODEL_H_
