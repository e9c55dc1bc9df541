// Bounds the answers that take long and much memory (dumps, snapshots, explanations) and are given
// at once.
//
// *Truth*: `at_once`; further requests are refused and may come again later. A client that takes
// nothing holds its place until it is cut off: over HTTP by the server's `write_timeout`, over gRPC
// by a `CallProgress`.
// *Threads*: any. *Cost*: an atomic operation.
//
// Example:
//   const LongAnswers::Place place = LongAnswers::Process().Take();
//   if (place == nullptr) return absl::ResourceExhaustedError(kTooManyLongAnswers);
//   … the answer keeps `place` …

#ifndef KVATLAS_INDEXER_NET_LONG_ANSWERS_H_
#define KVATLAS_INDEXER_NET_LONG_ANSWERS_H_

#include <atomic>
#include <memory>

namespace kvatlas {

inline constexpr char kTooManyLongAnswers[] =
    "too many dumps, snapshots or explanations at once; try again in some seconds";

class LongAnswers {
 public:
  static constexpr int kAtOnce = 2;
  // Held by an answer until it is over.
  using Place = std::shared_ptr<const void>;

  explicit LongAnswers(int at_once = kAtOnce)
      : free_(std::make_shared<std::atomic<int>>(at_once)) {}

  // The bound of this process.
  static LongAnswers& Process() {
    static LongAnswers& answers = *new LongAnswers;
    return answers;
  }

  // Null: there is none free.
  Place Take() {
    if (free_->fetch_sub(1, std::memory_order_relaxed) <= 0) {
      free_->fetch_add(1, std::memory_order_relaxed);
      return nullptr;
    }
    return Place(this,
                 [free = free_](const void*) { free->fetch_add(1, std::memory_order_relaxed); });
  }

 private:
  const std::shared_ptr<std::atomic<int>> free_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_LONG_ANSWERS_H_
