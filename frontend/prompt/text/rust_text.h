// How the C interface of the Rust library is called from C++: views, sinks and errors as absl::Status.

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_RUST_TEXT_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_RUST_TEXT_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "frontend/prompt/text/rust/kvatlas_text.h"

namespace kvatlas {

inline kvatlas_text_view RustView(std::string_view text) { return {text.data(), text.size()}; }

inline kvatlas_text_sink RustSink(std::string& text) {
  return {&text, [](void* to, const char* data, size_t size) {
            static_cast<std::string*>(to)->append(data, size);
          }};
}

inline absl::Status RustStatus(int code, const std::string& error) {
  return code == 0 ? absl::OkStatus() : absl::Status(static_cast<absl::StatusCode>(code), error);
}

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_RUST_TEXT_H_
