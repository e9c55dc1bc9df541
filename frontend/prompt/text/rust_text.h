// Helpers to call the C interface of the Rust library from C++: views, sinks, and errors as
// absl::Status.

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_RUST_TEXT_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_RUST_TEXT_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "frontend/prompt/text/rust/kvatlas_text.h"
#include "indexer/base/clock.h"

namespace kvatlas {

inline kvatlas_text_view RustView(std::string_view text) { return {text.data(), text.size()}; }

inline kvatlas_text_sink RustSink(std::string& text) {
  return {&text, [](void* to, const char* data, size_t size) {
            static_cast<std::string*>(to)->append(data, size);
          }};
}

// While it lives, this thread's calls may take `limit` together; then they fail with
// DEADLINE_EXCEEDED. One at a time for each thread.
class RustWork {
 public:
  explicit RustWork(Duration limit) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(limit).count();
    kvatlas_work_begin(left > 0 ? static_cast<uint64_t>(left) : 0);
  }
  ~RustWork() { kvatlas_work_end(); }
  RustWork(const RustWork&) = delete;
  RustWork& operator=(const RustWork&) = delete;
};

inline absl::Status RustStatus(int code, const std::string& error) {
  return code == 0 ? absl::OkStatus() : absl::Status(static_cast<absl::StatusCode>(code), error);
}

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_RUST_TEXT_H_
