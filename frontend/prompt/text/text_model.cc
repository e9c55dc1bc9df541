#include "frontend/prompt/text/text_model.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "frontend/prompt/text/model_files.h"
#include "frontend/prompt/text/sentencepiece_tokenizer.h"

namespace kvatlas {
namespace {

absl::Status At(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::shared_ptr<TextModel>> TextModel::Load(const TextModelOptions& options) {
  absl::StatusOr<ModelFiles> files = ReadModelFiles(options.path, options.rules);
  if (!files.ok()) return files.status();
  const bool is_sentencepiece = !files->sentencepiece_model.empty();
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      is_sentencepiece ? MakeSentencePieceTokenizer(files->sentencepiece_model)
                       : MakeTokenizer(files->tokenizer);
  if (!tokenizer.ok()) return At(files->path, tokenizer.status());
  if (!options.chat_template_path.empty()) {
    absl::StatusOr<std::string> source = ReadFile(options.chat_template_path);
    if (!source.ok()) return source.status();
    files->chat_templates = {{"default", *std::move(source)}};
  }

  std::shared_ptr<TextModel> model(new TextModel);
  model->options_ = options;
  model->tokenizer_ = *std::move(tokenizer);
  const TokenizerFacts& facts = model->tokenizer_->facts();
  if (!files->chat_templates.empty()) {
    absl::StatusOr<std::unique_ptr<ChatTemplate>> chat =
        ChatTemplate::Create(files->chat_templates, facts.special_tokens);
    if (!chat.ok()) return At(files->path, chat.status());
    model->chat_template_ = *std::move(chat);
    model->facts_.template_hash = HashOf(files->chat_templates);
  }
  model->cache_ = std::make_unique<TokenCache>(options.cache_bytes);
  model->facts_.kind = is_sentencepiece ? "tokenizer.model" : "tokenizer.json";
  model->facts_.path = files->path;
  model->facts_.tokenizer_hash = files->tokenizer_hash;
  model->facts_.vocabulary_size = facts.vocabulary_size;
  model->facts_.tokens_before = facts.tokens_before;
  model->facts_.tokens_after = facts.tokens_after;
  return model;
}

absl::StatusOr<std::string> TextModel::Render(const ChatPrompt& prompt) const {
  const int64_t now_s = static_cast<int64_t>(WallTimeNs() / 1'000'000'000);
  if (prompt.chat_template.has_value()) {
    if (!options_.trust_request_templates) {
      return absl::InvalidArgumentError("chat templates of requests are not trusted here");
    }
    const absl::StatusOr<std::unique_ptr<ChatTemplate>> own = ChatTemplate::Create(
        {{"default", *prompt.chat_template}}, tokenizer_->facts().special_tokens);
    return own.ok() ? (*own)->Render(prompt, now_s) : own.status();
  }
  if (chat_template_ == nullptr) {
    return absl::InvalidArgumentError("this model has no chat template");
  }
  if (!options_.template_kwargs.is_object()) return chat_template_->Render(prompt, now_s);
  ChatPrompt with_defaults = prompt;
  with_defaults.template_kwargs = options_.template_kwargs;
  if (prompt.template_kwargs.is_object())
    with_defaults.template_kwargs.update(prompt.template_kwargs);
  return chat_template_->Render(with_defaults, now_s);
}

absl::StatusOr<PromptTokens> TextModel::Tokenize(const Prompt& prompt) {
  if (const TextPrompt* text = std::get_if<TextPrompt>(&prompt)) {
    return TokenizeText(text->text, text->add_special_tokens.value_or(true));
  }
  const ChatPrompt& chat = std::get<ChatPrompt>(prompt);
  const absl::StatusOr<std::string> text = Render(chat);
  if (!text.ok()) return text.status();
  return TokenizeText(*text, chat.add_special_tokens.value_or(false));
}

absl::StatusOr<PromptTokens> TextModel::TokenizeText(std::string_view text,
                                                     bool add_special_tokens) {
  if (text.size() > options_.prompt_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a prompt of ", text.size(), " bytes; at most ", options_.prompt_bytes_max, " are taken"));
  }
  const TokenizerFacts& facts = tokenizer_->facts();
  PromptTokens made;
  if (!facts.tokens_before.empty()) made.bos = facts.tokens_before.front();
  made.source = absl::StrCat(facts_.kind, " ", facts_.tokenizer_hash);
  std::vector<TokenId> tokens;
  const absl::StatusOr<size_t> reused = cache_->Encode(*tokenizer_, text, tokens);
  if (!reused.ok()) return reused.status();
  made.reused = *reused;
  if (add_special_tokens) {
    tokens.insert(tokens.begin(), facts.tokens_before.begin(), facts.tokens_before.end());
    tokens.insert(tokens.end(), facts.tokens_after.begin(), facts.tokens_after.end());
    if (*reused > 0) made.reused += facts.tokens_before.size();
  }
  made.tokens = std::move(tokens);
  return made;
}

}  // namespace kvatlas
