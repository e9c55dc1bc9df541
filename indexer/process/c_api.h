// What the C interfaces of this repository have in common: texts and structs of the caller, codes,
// exceptions that end at the border, threads that block signals, and forks.
//
// *Truth*: a code of a C interface is the number of an `absl::StatusCode`; its header asserts so.
// *Threads*: any.

#ifndef KVATLAS_INDEXER_PROCESS_C_API_H_
#define KVATLAS_INDEXER_PROCESS_C_API_H_

#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/process/fork_detector.h"

namespace kvatlas {

// Copies `text` into the caller's buffer, cut to its size and ended by a NUL; nothing without a
// buffer.
void PutText(std::string_view text, char* to, size_t size);

inline int32_t CodeOf(const absl::Status& status) { return static_cast<int32_t>(status.code()); }
inline int32_t CodeOf(absl::StatusCode code) { return static_cast<int32_t>(code); }

// The status's message as `PutText`; returns its code.
int32_t PutStatus(const absl::Status& status, char* text, size_t size);

// "OK", "INVALID_ARGUMENT", …; "UNKNOWN" for a number that no call returns.
const char* CodeName(int32_t code);

// Runs the work of a call and returns its code; exceptions end here. Memory that ran out is
// RESOURCE_EXHAUSTED, any other exception INTERNAL.
template <typename Work>
int32_t Guarded(const Work& work) noexcept {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return CodeOf(absl::StatusCode::kResourceExhausted);
  } catch (...) {
    return CodeOf(absl::StatusCode::kInternal);
  }
}

// Threads that are made while it exists, and the threads that those make, leave signals to the
// program.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// FAILED_PRECONDITION in a fork of a process that had created a `what` before; RESOURCE_EXHAUSTED:
// no memory for a page.
absl::StatusOr<const ForkDetector*> MarkOfThisProcess(std::string_view what);

// ---- Structs that begin with `struct_size`, of callers with another header ----

template <typename Struct>
bool IsInitialized(const Struct* given) {
  return given != nullptr && given->struct_size >= sizeof(size_t);
}

// Fields that a caller with an older header does not have keep their defaults.
template <typename Struct>
Struct Whole(const Struct& given, void (*init)(Struct*, size_t)) {
  Struct whole;
  init(&whole, sizeof(whole));
  std::memcpy(static_cast<void*>(&whole), &given, std::min(given.struct_size, sizeof(whole)));
  return whole;
}

// For `_init`: the defaults, as far as the caller's struct goes.
template <typename Struct>
void InitStruct(const Struct& whole, Struct* to, size_t struct_size) {
  if (to == nullptr) return;
  std::memcpy(static_cast<void*>(to), &whole, std::min(struct_size, sizeof(whole)));
}

// For answers: fills as much of the caller's struct as it has.
template <typename Struct>
void PutStruct(const Struct& whole, Struct* to) {
  const size_t given = to->struct_size;
  std::memcpy(static_cast<void*>(to), &whole, std::min(given, sizeof(Struct)));
  to->struct_size = given;
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_C_API_H_
