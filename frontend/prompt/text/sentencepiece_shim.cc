// The only source that includes SentencePiece. Everything that leaves it is plain C memory from
// malloc, and no exception passes its functions: the caller may have another C++ library state, and
// must free what it gets by `release`.

#include "frontend/prompt/text/sentencepiece_shim.h"

#include <sentencepiece_processor.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string_view>
#include <vector>

struct KvatlasSentencePieceModel {
  sentencepiece::SentencePieceProcessor processor;
};

namespace {

using Model = KvatlasSentencePieceModel;

// `*error` may be null afterwards: strdup found no memory.
void SetError(const char* words, char** error) { *error = strdup(words); }

Model* Load(const char* bytes, size_t size, char** error) {
  try {
    auto model = std::make_unique<Model>();
    const auto loaded = model->processor.LoadFromSerializedProto(std::string_view(bytes, size));
    if (loaded.ok()) return model.release();
    SetError(loaded.error_message(), error);
  } catch (const std::exception& thrown) {
    SetError(thrown.what(), error);
  }
  return nullptr;
}

void ReleaseModel(Model* model) { delete model; }

// The ids are copied to memory of malloc, which `release` frees.
bool Encode(const Model* model, const char* text, size_t size, uint32_t** ids, size_t* count,
            char** error) {
  *ids = nullptr;
  *count = 0;
  try {
    std::vector<int> encoded;
    const auto status = model->processor.Encode(std::string_view(text, size), &encoded);
    if (!status.ok()) {
      SetError(status.error_message(), error);
      return false;
    }
    if (encoded.empty()) return true;
    auto* copy = static_cast<uint32_t*>(std::malloc(encoded.size() * sizeof(uint32_t)));
    if (copy == nullptr) {
      SetError("no memory", error);
      return false;
    }
    for (size_t i = 0; i < encoded.size(); ++i) copy[i] = static_cast<uint32_t>(encoded[i]);
    *ids = copy;
    *count = encoded.size();
    return true;
  } catch (const std::exception& thrown) {
    SetError(thrown.what(), error);
  }
  return false;
}

int32_t IdOf(const Model* model, KvatlasSentencePieceToken which) {
  switch (which) {
    case KVATLAS_SENTENCEPIECE_BOS:
      return model->processor.bos_id();
    case KVATLAS_SENTENCEPIECE_EOS:
      return model->processor.eos_id();
    case KVATLAS_SENTENCEPIECE_UNK:
      return model->processor.unk_id();
  }
  return -1;
}

// The piece belongs to the model.
int32_t Token(const Model* model, KvatlasSentencePieceToken which, const char** piece) {
  const int32_t id = IdOf(model, which);
  *piece = id < 0 ? "" : model->processor.IdToPiece(id).c_str();
  return id;
}

size_t VocabularySize(const Model* model) {
  return static_cast<size_t>(model->processor.GetPieceSize());
}

}  // namespace

// sentencepiece_shim.lds exports this symbol alone.
const KvatlasSentencePiece* kvatlas_sentencepiece_1() {
  static constexpr KvatlasSentencePiece kFunctions = {.load = Load,
                                                      .release_model = ReleaseModel,
                                                      .encode = Encode,
                                                      .token = Token,
                                                      .vocabulary_size = VocabularySize,
                                                      .release = std::free};
  return &kFunctions;
}
