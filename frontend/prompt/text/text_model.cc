// One model: files are read by `model_files.h`, the tokenizer and the templates are handles of the
// Rust library or of SentencePiece. A request goes through three steps: `Read` (Rust turns the body
// into parts), `AppendText` (each part into tokens, the first one with the memory of prefixes),
// `Cut` (what the engine keeps of a prompt that is too long).

#include "frontend/prompt/text/text_model.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "frontend/prompt/text/model_files.h"
#include "frontend/prompt/text/rust_text.h"
#include "frontend/prompt/text/sentencepiece_tokenizer.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

// A part that is not remembered is encoded in pieces of about this size: between two of them the
// deadline is looked at.
constexpr size_t kLaterPieceBytes = 512;

std::string TextOf(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The numbers of `kvatlas_text.h`.
int EngineNumber(EngineKind engine) {
  switch (engine) {
    case EngineKind::kPlain:
      return KVATLAS_PLAIN;
    case EngineKind::kVllm:
      return KVATLAS_VLLM;
    case EngineKind::kSglang:
      break;
  }
  return KVATLAS_SGLANG;
}

int PathNumber(RequestPath path) {
  switch (path) {
    case RequestPath::kCompletions:
      return KVATLAS_COMPLETIONS;
    case RequestPath::kResponses:
      return KVATLAS_RESPONSES;
    case RequestPath::kMessages:
      return KVATLAS_MESSAGES;
    case RequestPath::kSglangGenerate:
    case RequestPath::kVllmGenerate:
      return KVATLAS_GENERATE;
    case RequestPath::kChat:
    case RequestPath::kChatOrCompletion:
      break;
  }
  return KVATLAS_CHAT;
}

// The error with the file that it is about.
absl::Status At(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

// A body as Rust read it: parts in order, whose tokens follow each other, and one of three cuts at
// most. 0: no such cut.
struct TextModel::Reading {
  struct Part {
    std::string text = {};
    bool around = false;            // with the tokens that belong around a text
    std::vector<TokenId> ids = {};  // in the place of the text
  };
  std::vector<Part> parts;
  size_t keep_last = 0;          // tokens, of all that were made
  size_t keep_first = 0;         // likewise
  size_t keep_last_of_text = 0;  // tokens with those around the text, which are not cut
};

// Cuts the tokens to what the engine keeps of a prompt that is too long. `around`: the tokens that
// were put around a text.
//
// - `keep_first` drops the end.
// - `keep_last` drops the beginning, BOS included.
// - `keep_last_of_text` drops the beginning of the text behind `around.before`, which stays; it
//   never cuts into the tokens around.
//
// `reused` counts leading tokens that were known: once the beginning is gone, only those in front
// of the cut are.
void TextModel::Cut(const Reading& read, const TokensAround& around, PromptTokens* made) {
  std::vector<TokenId>& tokens = made->tokens;
  size_t kept_in_front = 0;
  size_t cut = 0;
  if (read.keep_first > 0 && tokens.size() > read.keep_first) tokens.resize(read.keep_first);
  if (read.keep_last > 0 && tokens.size() > read.keep_last) cut = tokens.size() - read.keep_last;
  if (read.keep_last_of_text > 0 && tokens.size() > read.keep_last_of_text) {
    kept_in_front = std::min(around.before.size(), tokens.size());
    cut = std::min(
        tokens.size() - read.keep_last_of_text,
        tokens.size() - std::min(tokens.size(), around.before.size() + around.after.size()));
  }
  if (cut > 0) {
    const auto from = tokens.begin() + static_cast<ptrdiff_t>(kept_in_front);
    tokens.erase(from, from + static_cast<ptrdiff_t>(cut));
    made->reused = kept_in_front;
  }
  made->reused = std::min(made->reused, tokens.size());
}

void TextModel::FreeTemplates::operator()(kvatlas_templates* templates) const {
  kvatlas_templates_free(templates);
}

// 1. Reads the files and makes the tokenizer.
// 2. The option's template takes the place of all of the model's own.
// 3. Parses the templates: a template with an error fails the load, not the first request.
// 4. Notes what requests need later. The length of the context from config.json counts only where
//    the options name none.
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
  const Json sources(files->chat_templates);
  kvatlas_templates* templates = nullptr;
  std::string error;
  const int code =
      kvatlas_templates_new(RustView(TextOf(sources)), RustView(TextOf(facts.special_tokens)),
                            &templates, RustSink(error));
  if (code != 0) return At(files->path, RustStatus(code, error));
  model->templates_.reset(templates);
  if (!files->chat_templates.empty()) model->facts_.template_hash = HashOf(files->chat_templates);
  if (options.template_kwargs.is_object()) model->default_kwargs_ = TextOf(options.template_kwargs);
  model->model_type_ = files->tokenizer.model_type;
  model->has_mistral_files_ = files->has_mistral_files;
  if (options.context_tokens_max == 0)
    model->options_.context_tokens_max = files->context_tokens_max;
  model->cache_ = std::make_unique<TokenCache>(options.cache_bytes);
  model->facts_.kind = is_sentencepiece ? "tokenizer.model" : "tokenizer.json";
  model->facts_.path = files->path;
  model->facts_.tokenizer_hash = files->tokenizer_hash;
  model->facts_.vocabulary_size = facts.vocabulary_size;
  model->facts_.tokens_before = facts.around.before;
  model->facts_.tokens_after = facts.around.after;
  return model;
}

// The hashes cover what decides on ids; the other two, how requests are read and cut.
bool TextModel::ReadsAs(const TextModel& other) const {
  return facts_.tokenizer_hash == other.facts_.tokenizer_hash &&
         facts_.template_hash == other.facts_.template_hash &&
         has_mistral_files_ == other.has_mistral_files_ &&
         options_.context_tokens_max == other.options_.context_tokens_max;
}

// Rust reads the body once (rust/src/request) and gives the parts of the prompt; nearly all
// requests have one part. `now` is wall time: templates print dates, and engines print theirs. The
// callbacks append to `made` and must not throw, as they are called from Rust.
absl::StatusOr<TextModel::Reading> TextModel::Read(const BodyPrompt& prompt) const {
  Reading made;
  const kvatlas_convention convention{
      .engine = EngineNumber(prompt.convention.engine),
      .path = PathNumber(prompt.path),
      .reasoning_parser = RustView(prompt.convention.reasoning_parser),
      .tool_call_parser = RustView(prompt.convention.tool_call_parser),
      .model_type = RustView(model_type_),
      .mistral_tokenizer = has_mistral_files_ ? 1 : 0,
      .default_kwargs = RustView(default_kwargs_),
      .trust_templates = options_.trust_request_templates ? 1 : 0,
      .now = static_cast<int64_t>(WallTimeNs() / 1'000'000'000),
      .context_max = options_.context_tokens_max};
  kvatlas_reading reading{
      .to = &made,
      .text =
          [](void* to, const char* data, size_t size, int kind) {
            static_cast<Reading*>(to)->parts.push_back(
                {.text = std::string(data, size), .around = kind == KVATLAS_TEXT_AROUND});
          },
      .ids =
          [](void* to, const uint32_t* ids, size_t count) {
            static_cast<Reading*>(to)->parts.push_back({.ids = {ids, ids + count}});
          },
      .keep_last = 0,
      .keep_first = 0,
      .keep_last_of_text = 0};
  std::string error;
  const int code = kvatlas_request_read(templates_.get(), &convention, RustView(*prompt.body),
                                        &reading, RustSink(error));
  if (code != 0) return RustStatus(code, error);
  made.keep_last = reading.keep_last;
  made.keep_first = reading.keep_first;
  made.keep_last_of_text = reading.keep_last_of_text;
  return made;
}

absl::StatusOr<std::string> TextModel::Render(const BodyPrompt& prompt) const {
  const absl::StatusOr<Reading> read = Read(prompt);
  if (!read.ok()) return read.status();
  std::string text;
  for (const Reading::Part& part : read->parts) text += part.text;
  return text;
}

// A text gets the tokens around it unless it says no. The parts of a body say so one by one. `bos`
// is noted even where the prompt has none: it is what begins a text of this model.
absl::StatusOr<PromptTokens> TextModel::Tokenize(const Prompt& prompt) {
  const TokenizerFacts& facts = tokenizer_->facts();
  const BodyPrompt* body = std::get_if<BodyPrompt>(&prompt);
  const bool is_sglang = body != nullptr && body->convention.engine == EngineKind::kSglang;
  const TokensAround& around =
      is_sglang && facts.sglang_around.has_value() ? *facts.sglang_around : facts.around;
  const TokensAround nothing;
  PromptTokens made;
  if (!around.before.empty()) made.bos = around.before.front();
  made.source = absl::StrCat(facts_.kind, " ", facts_.tokenizer_hash);
  if (const TextPrompt* text = std::get_if<TextPrompt>(&prompt)) {
    const bool is_around = text->add_special_tokens.value_or(true);
    if (absl::Status bad = AppendText(text->text, is_around ? around : nothing, &made); !bad.ok())
      return bad;
    return made;
  }
  const absl::StatusOr<Reading> read = Read(*body);
  if (!read.ok()) return read.status();
  for (const Reading::Part& part : read->parts) {
    made.tokens.insert(made.tokens.end(), part.ids.begin(), part.ids.end());
    if (!part.ids.empty()) continue;
    if (absl::Status bad = AppendText(part.text, part.around ? around : nothing, &made); !bad.ok())
      return bad;
  }
  Cut(*read, around, &made);
  return made;
}

// Appends one part. Only the first part of a prompt uses the memory of prefixes, whose entries are
// beginnings of texts without the tokens around them. `cache_->Encode` replaces the content of
// `tokens`, so those in front are put there afterwards; they count as known if anything behind them
// is.
absl::Status TextModel::AppendText(std::string_view text, const TokensAround& around,
                                   PromptTokens* made) {
  if (text.size() > options_.prompt_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a prompt of ", text.size(), " bytes; at most ", options_.prompt_bytes_max, " are taken"));
  }
  std::vector<TokenId>& tokens = made->tokens;
  if (!tokens.empty()) {
    tokens.insert(tokens.end(), around.before.begin(), around.before.end());
    absl::Status bad = tokenizer_->Encode(text, 0, kLaterPieceBytes, tokens, nullptr);
    tokens.insert(tokens.end(), around.after.begin(), around.after.end());
    return bad;
  }
  const absl::StatusOr<size_t> reused = cache_->Encode(*tokenizer_, text, tokens);
  if (!reused.ok()) return reused.status();
  made->reused = *reused;
  tokens.insert(tokens.begin(), around.before.begin(), around.before.end());
  tokens.insert(tokens.end(), around.after.begin(), around.after.end());
  if (*reused > 0) made->reused += around.before.size();
  return absl::OkStatus();
}

}  // namespace kvatlas
