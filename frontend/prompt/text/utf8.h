// Checks that a text is UTF-8.

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_UTF8_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_UTF8_H_

#include <simdjson.h>

#include <string_view>

#include "absl/status/status.h"

namespace kvatlas {

// INVALID_ARGUMENT: it is not UTF-8.
inline absl::Status CheckUtf8(std::string_view text) {
  return simdjson::validate_utf8(text.data(), text.size())
             ? absl::OkStatus()
             : absl::InvalidArgumentError("the text is not UTF-8");
}

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_UTF8_H_
