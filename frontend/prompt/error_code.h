// What was not found: OpenAI's `code` of an error, carried by its status from where it is known to the door that tells it.
//
// *Threads*: pure functions.

#ifndef KVATLAS_FRONTEND_PROMPT_ERROR_CODE_H_
#define KVATLAS_FRONTEND_PROMPT_ERROR_CODE_H_

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace kvatlas {

inline constexpr char kTokenizerNotFound[] = "tokenizer_not_found";
inline constexpr char kErrorCodeUrl[] = "kvatlas/error-code";

inline absl::Status WithErrorCode(absl::Status why, std::string_view code) {
  why.SetPayload(kErrorCodeUrl, absl::Cord(absl::string_view(code.data(), code.size())));
  return why;
}

// Empty: none was given.
inline std::string ErrorCodeOf(const absl::Status& why) {
  const auto code = why.GetPayload(kErrorCodeUrl);
  return code.has_value() ? std::string(*code) : std::string();
}

// A tokenizer's answer: what it has not found is a tokenizer for the model, not the model.
inline absl::Status AboutTokenizer(absl::Status why) {
  return absl::IsNotFound(why) ? WithErrorCode(std::move(why), kTokenizerNotFound) : why;
}

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_ERROR_CODE_H_
