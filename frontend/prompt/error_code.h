// What was not found, where it is no model: carried by a status from where it is known to the door
// that tells it.
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

// A tokenizer's answer: what it has not found is a tokenizer for the model, unless leaves know no
// such model either.
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
