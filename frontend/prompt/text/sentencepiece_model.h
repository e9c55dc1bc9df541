// A SentencePiece model behind types of the C++ standard library alone: the library's own header
// declares another absl::string_view than Abseil's, so no file can include both.
//
// *Threads*: `Encode` may be called from any.

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_SENTENCEPIECE_MODEL_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_SENTENCEPIECE_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvatlas {

class SentencePieceModel {
 public:
  // Null, with `error`, when `model` is no SentencePiece model.
  static std::unique_ptr<SentencePieceModel> Load(std::string_view model, std::string& error);
  ~SentencePieceModel();

  // Appends the ids of `text`; false, with `error`, when it cannot be encoded.
  bool Encode(std::string_view text, std::vector<uint32_t>& ids, std::string& error) const;

  // A token that the model has: its id and how it is written; id -1 when it has none.
  struct Named {
    int id = -1;
    std::string piece;
  };
  Named bos() const;
  Named eos() const;
  Named unk() const;
  size_t vocabulary_size() const;

 private:
  struct Library;
  explicit SentencePieceModel(std::unique_ptr<Library> library);
  const std::unique_ptr<Library> library_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_SENTENCEPIECE_MODEL_H_
