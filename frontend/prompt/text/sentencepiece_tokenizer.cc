#include "frontend/prompt/text/sentencepiece_tokenizer.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "frontend/prompt/text/sentencepiece_model.h"
#include "frontend/prompt/text/utf8.h"

namespace kvatlas {
namespace {

// The library cannot be stopped, and a text is one piece here. No context has so many tokens.
constexpr size_t kTextBytesMax = 1 << 20;

// `facts_` names only the special tokens that the model has. BOS goes in front of a text, as in
// mistral_common; EOS does not go behind it.
class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(std::unique_ptr<SentencePieceModel> model)
      : model_(std::move(model)) {
    facts_.vocabulary_size = model_->vocabulary_size();
    const std::pair<const char*, SentencePieceModel::Named> named[] = {
        {"bos_token", model_->bos()}, {"eos_token", model_->eos()}, {"unk_token", model_->unk()}};
    for (const auto& [name, token] : named) {
      if (token.id >= 0) facts_.special_tokens[name] = token.piece;
    }
    if (const int bos = model_->bos().id; bos >= 0) {
      facts_.around.before.push_back(static_cast<TokenId>(bos));
    }
  }

  // A model may look at any part of a text to choose its pieces, so there are no cuts. `from` is
  // always 0 then: there is no cut to go on from.
  absl::Status Encode(std::string_view text, size_t /*from*/, size_t /*piece_bytes_min*/,
                      std::vector<TokenId>& tokens, std::vector<TokenCut>*) const override {
    if (absl::Status valid = CheckUtf8(text); !valid.ok()) return valid;
    if (text.size() > kTextBytesMax)
      return absl::UnimplementedError(
          absl::StrCat("a text of more than ", kTextBytesMax, " bytes that cannot be cut"));
    std::string error;
    if (!model_->Encode(text, tokens, error)) {
      return absl::InvalidArgumentError(absl::StrCat("no tokens: ", error));
    }
    return absl::OkStatus();
  }

  const TokenizerFacts& facts() const override { return facts_; }

 private:
  const std::unique_ptr<SentencePieceModel> model_;
  TokenizerFacts facts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeSentencePieceTokenizer(std::string_view model) {
  std::string error;
  std::unique_ptr<SentencePieceModel> loaded = SentencePieceModel::Load(model, error);
  if (loaded == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("no SentencePiece model: ", error));
  }
  return std::make_unique<SentencePieceTokenizer>(std::move(loaded));
}

}  // namespace kvatlas
