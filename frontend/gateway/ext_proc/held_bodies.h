// How many bytes of request bodies all streams of a picker hold together. A stream keeps its body
// until the endpoint is chosen, and counts it until the engine answers: a proxy that does not read
// delays both.
//
// *Threads*: any. *Bounds*: `bytes_max`.

#ifndef KVATLAS_FRONTEND_GATEWAY_EXT_PROC_HELD_BODIES_H_
#define KVATLAS_FRONTEND_GATEWAY_EXT_PROC_HELD_BODIES_H_

#include <atomic>
#include <cstdint>
#include <utility>

namespace kvatlas {

class HeldBodies {
 public:
  explicit HeldBodies(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  // The share of one stream. Not thread-safe; the stream's lock guards it.
  class Part {
   public:
    explicit Part(HeldBodies* of) : of_(of) {}
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;
    ~Part() { Clear(); }

    // False: the sum would exceed `bytes_max`, and nothing was added. Adds first and takes back on
    // failure, so that two concurrent calls cannot both pass the bound; a call beside a failing one
    // may be refused although it would have fitted.
    bool Add(uint64_t bytes) {
      if (of_->bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes > of_->bytes_max_) {
        of_->bytes_.fetch_sub(bytes, std::memory_order_relaxed);
        return false;
      }
      bytes_ += bytes;
      return true;
    }
    void Clear() {
      if (bytes_ > 0) of_->bytes_.fetch_sub(std::exchange(bytes_, 0), std::memory_order_relaxed);
    }

   private:
    HeldBodies* const of_;
    uint64_t bytes_ = 0;
  };

 private:
  const uint64_t bytes_max_;
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_EXT_PROC_HELD_BODIES_H_
