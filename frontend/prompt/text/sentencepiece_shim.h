// What of the SentencePiece library does sentencepiece_model.cc use? These words of C, in a shared
// library of their own, libkvatlas_sentencepiece.so.
//
// *Place*: Debian's libsentencepiece.so holds an old copy of Protocol Buffers and shows its
// symbols: a program that links it and libprotobuf mixes the two and ends before its main. So only
// this library links it, which sentencepiece_model.cc opens at run time, its symbols kept from all
// others and all others' from it.
// *Threads*: a model's functions may be called from any, `release_model` after all others.
// *Errors*: zero-terminated words in `*error`, for `release`. No exception comes out.

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
  // `bytes`: those of a tokenizer.model. Null, with `*error`, when they are none.
  KvatlasSentencePieceModel* (*load)(const char* bytes, size_t size, char** error);
  void (*release_model)(KvatlasSentencePieceModel* model);

  // The ids of `text`, for `release`; null where there are none. False, with `*error`, when it
  // cannot be encoded.
  bool (*encode)(const KvatlasSentencePieceModel* model, const char* text, size_t size,
                 uint32_t** ids, size_t* count, char** error);

  // A token's id, -1 when the model has none; `*piece` is how it is written, as long as the model
  // lives.
  int32_t (*token)(const KvatlasSentencePieceModel* model, KvatlasSentencePieceToken which,
                   const char** piece);
  size_t (*vocabulary_size)(const KvatlasSentencePieceModel* model);

  void (*release)(void* error_or_ids);
};

// The library's only symbol. Another set of functions gets another number.
const KvatlasSentencePiece* kvatlas_sentencepiece_1();

}  // extern "C"

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_SENTENCEPIECE_SHIM_H_
