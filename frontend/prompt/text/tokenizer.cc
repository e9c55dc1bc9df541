// The C++ side of a Rust tokenizer handle. Rust gives tokens piece by piece through `TakePiece`;
// each end of a piece but the last is a cut.

#include "frontend/prompt/text/tokenizer.h"

#include <utility>

#include "frontend/prompt/text/rust_text.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

// Where `TakePiece` puts tokens and cuts. `first`: how many tokens were there before; `text_bytes`:
// of the text from `from` on.
struct Pieces {
  std::vector<TokenId>& tokens;
  std::vector<TokenCut>* cuts;
  const size_t first;
  const size_t text_bytes;
};

// Called from Rust: must not throw. The end of the text is no cut.
void TakePiece(void* to, size_t end, const uint32_t* tokens, size_t count) noexcept {
  Pieces& pieces = *static_cast<Pieces*>(to);
  pieces.tokens.insert(pieces.tokens.end(), tokens, tokens + count);
  if (pieces.cuts != nullptr && end < pieces.text_bytes) {
    pieces.cuts->push_back({.bytes = end, .tokens = pieces.tokens.size() - pieces.first});
  }
}

// Owns the handle, which serves any number of threads.
class HuggingFaceTokenizer : public Tokenizer {
 public:
  explicit HuggingFaceTokenizer(kvatlas_tokenizer* handle) : handle_(handle) {}
  ~HuggingFaceTokenizer() override { kvatlas_tokenizer_free(handle_); }
  HuggingFaceTokenizer(const HuggingFaceTokenizer&) = delete;
  HuggingFaceTokenizer& operator=(const HuggingFaceTokenizer&) = delete;

  // Rust describes as JSON what it loaded. A step of its own, since a constructor cannot fail.
  absl::Status ReadFacts() {
    std::string text, error;
    const int code = kvatlas_tokenizer_describe(handle_, RustSink(text), RustSink(error));
    if (code != 0) return RustStatus(code, error);
    const Json read = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!read.is_object()) return absl::InternalError("the tokenizer's description is no object");
    facts_.vocabulary_size = read.value("vocabulary_size", size_t{0});
    facts_.around.before = read.value("tokens_before", std::vector<TokenId>());
    facts_.around.after = read.value("tokens_after", std::vector<TokenId>());
    if (const auto sglang = read.find("sglang_around");
        sglang != read.end() && !sglang->is_null()) {
      facts_.sglang_around = {.before = (*sglang)[0], .after = (*sglang)[1]};
    }
    facts_.special_tokens = read.value("special_tokens", Json::object());
    facts_.lookahead_bytes = read.value("lookahead_bytes", size_t{0});
    return absl::OkStatus();
  }

  // Text behind a cut is encoded alone, with a note that it continues one: some tokenizers treat
  // the start of a text in another way.
  absl::Status Encode(std::string_view text, size_t from, size_t piece_bytes_min,
                      std::vector<TokenId>& tokens, std::vector<TokenCut>* cuts) const override {
    text.remove_prefix(from);
    Pieces pieces{tokens, cuts, tokens.size(), text.size()};
    std::string error;
    const int code = kvatlas_tokenizer_encode(handle_, RustView(text), from > 0, piece_bytes_min,
                                              &pieces, TakePiece, RustSink(error));
    return RustStatus(code, error);
  }

  const TokenizerFacts& facts() const override { return facts_; }

 private:
  kvatlas_tokenizer* const handle_;
  TokenizerFacts facts_;
};

}  // namespace

// The files go to Rust as one JSON object (`kvatlas_tokenizer_new`).
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const TokenizerFiles& files) {
  Json options = {{"rules", files.rules == TokenizerRules::kFile ? "file" : "transformers"}};
  if (files.tokenizer_config.is_object()) options["tokenizer_config"] = files.tokenizer_config;
  if (files.special_tokens_map.is_object())
    options["special_tokens_map"] = files.special_tokens_map;
  if (!files.model_type.empty()) options["model_type"] = files.model_type;
  const std::string options_text =
      options.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  kvatlas_tokenizer* handle = nullptr;
  std::string error;
  const int code = kvatlas_tokenizer_new(RustView(files.tokenizer_json), RustView(options_text),
                                         &handle, RustSink(error));
  if (code != 0) return RustStatus(code, error);
  auto made = std::make_unique<HuggingFaceTokenizer>(handle);
  if (absl::Status read = made->ReadFacts(); !read.ok()) return read;
  return made;
}

}  // namespace kvatlas
