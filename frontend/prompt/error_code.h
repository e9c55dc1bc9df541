// Tells a NOT_FOUND of a tokenizer from one of a model: a status carries the mark from the place
// that knows it to the API that reports it.
//
// *Threads*: pure functions.

#ifndef KVATLAS_FRONTEND_PROMPT_ERROR_CODE_H_
#define KVATLAS_FRONTEND_PROMPT_ERROR_CODE_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "frontend/router/frontend.h"

namespace kvatlas {

inline constexpr char kAboutTokenizerUrl[] = "kvatlas/about-tokenizer";

// Marks a tokenizer's NOT_FOUND: no tokenizer for the model was found. Not where leaves say that
// there is no such model.
inline absl::Status AboutTokenizer(absl::Status why) {
  if (absl::IsNotFound(why) && !IsUnknownModel(why))
    why.SetPayload(kAboutTokenizerUrl, absl::Cord());
  return why;
}
inline bool IsAboutTokenizer(const absl::Status& why) {
  return why.GetPayload(kAboutTokenizerUrl).has_value();
}

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_ERROR_CODE_H_
