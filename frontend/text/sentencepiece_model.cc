#include "frontend/text/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <utility>

namespace kvatlas {

struct SentencePieceModel::Library {
  sentencepiece::SentencePieceProcessor processor;

  Named Of(int id) const {
    if (id < 0) return {};
    return {.id = id, .piece = processor.IdToPiece(id)};
  }
};

SentencePieceModel::SentencePieceModel(std::unique_ptr<Library> library)
    : library_(std::move(library)) {}
SentencePieceModel::~SentencePieceModel() = default;

std::unique_ptr<SentencePieceModel> SentencePieceModel::Load(std::string_view model,
                                                             std::string& error) {
  auto library = std::make_unique<Library>();
  const sentencepiece::util::Status loaded = library->processor.LoadFromSerializedProto(model);
  if (!loaded.ok()) {
    error = loaded.error_message();
    return nullptr;
  }
  return std::unique_ptr<SentencePieceModel>(new SentencePieceModel(std::move(library)));
}

bool SentencePieceModel::Encode(std::string_view text, std::vector<uint32_t>& ids,
                                std::string& error) const {
  std::vector<int> encoded;
  const sentencepiece::util::Status status = library_->processor.Encode(text, &encoded);
  if (!status.ok()) {
    error = status.error_message();
    return false;
  }
  ids.insert(ids.end(), encoded.begin(), encoded.end());
  return true;
}

SentencePieceModel::Named SentencePieceModel::bos() const {
  return library_->Of(library_->processor.bos_id());
}
SentencePieceModel::Named SentencePieceModel::eos() const {
  return library_->Of(library_->processor.eos_id());
}
SentencePieceModel::Named SentencePieceModel::unk() const {
  return library_->Of(library_->processor.unk_id());
}
size_t SentencePieceModel::vocabulary_size() const {
  return static_cast<size_t>(library_->processor.GetPieceSize());
}

}  // namespace kvatlas
