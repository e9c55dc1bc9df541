// The C interface through which sentencepiece_model.cc uses the SentencePiece library, in a shared
// library of its own, libkvatlas_sentencepiece.so.
//
// *Place*: Debian's libsentencepiece.so holds an old copy of Protocol Buffers and shows its
// symbols: a program that links it and libprotobuf mixes the two and ends before its main. So only
// this library links it. sentencepiece_model.cc opens it at run time and keeps its symbols and
// those of the program apart.
// *Threads*: a model's functions may be called from any, `release_model` after all others.
// *Errors*: a zero-terminated text in `*error`, to be freed by `release`. No exception comes out.

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_SENTENCEPIECE_SHIM_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_SENTENCEPIECE_SHIM_H_

#include <cstddef>
#include <cstdint>

extern "C" {

struct KvatlasSentencePieceModel;

enum KvatlasSentencePieceToken {
  KVATLAS_SENTENCEPIECE_BOS = 0,
  KVATLAS_SENTENCEPIECE_EOS = 1,
  KVATLAS_SENTENCEPIECE_UNK = 2,
};

struct KvatlasSentencePiece {
  // `bytes`: the content of a tokenizer.model. Null, with `*error`, when they are no model.
  KvatlasSentencePieceModel* (*load)(const char* bytes, size_t size, char** error);
  void (*release_model)(KvatlasSentencePieceModel* model);

  // The ids of `text`, to be freed by `release`; null where there are none. False, with `*error`,
  // when it cannot be encoded.
  bool (*encode)(const KvatlasSentencePieceModel* model, const char* text, size_t size,
                 uint32_t** ids, size_t* count, char** error);

  // A token's id, -1 when the model has none; `*piece` is how it is written, as long as the model
  // lives.
  int32_t (*token)(const KvatlasSentencePieceModel* model, KvatlasSentencePieceToken which,
                   const char** piece);
  size_t (*vocabulary_size)(const KvatlasSentencePieceModel* model);

  void (*release)(void* error_or_ids);
};

// The library's only symbol. A change of the struct gets another number, so that an older library
// is not called.
const KvatlasSentencePiece* kvatlas_sentencepiece_1();

}  // extern "C"

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_SENTENCEPIECE_SHIM_H_
