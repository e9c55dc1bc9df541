#include "indexer/process/c_api.h"

#include <pthread.h>

#include <string>

namespace kvatlas {

// Always ends with NUL. The cut may fall within a character of UTF-8.
void PutText(std::string_view text, char* to, size_t size) {
  if (to == nullptr || size == 0) return;
  const size_t count = std::min(text.size(), size - 1);
  std::memcpy(to, text.data(), count);
  to[count] = '\0';
}

int32_t PutStatus(const absl::Status& status, char* text, size_t size) {
  const absl::string_view message = status.message();
  PutText({message.data(), message.size()}, text, size);
  return CodeOf(status);
}

// Names the codes that the C interfaces return; the texts are static, so C callers may keep them.
const char* CodeName(int32_t code) {
  switch (static_cast<absl::StatusCode>(code)) {
    case absl::StatusCode::kOk:
      return "OK";
    case absl::StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case absl::StatusCode::kNotFound:
      return "NOT_FOUND";
    case absl::StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case absl::StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case absl::StatusCode::kInternal:
      return "INTERNAL";
    case absl::StatusCode::kUnavailable:
      return "UNAVAILABLE";
    default:
      return "UNKNOWN";
  }
}

// A new thread inherits the mask of its maker. With all signals blocked, the host program's signals
// are delivered to its own threads.
SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

// The mark must exist before the fork, so creating an object asks for it first.
absl::StatusOr<const ForkDetector*> MarkOfThisProcess(std::string_view what) {
  const ForkDetector* const mark = ForkDetector::OfThisProcess();
  if (mark == nullptr) return absl::ResourceExhaustedError("no memory for a page");
  if (!mark->forked()) return mark;
  return absl::FailedPreconditionError("this process was forked from one that had created a " +
                                       std::string(what) + ": fork first, or exec");
}

}  // namespace kvatlas
