// How much do the streams of a picker hold of requests' bodies, together? A body is kept until its
// endpoint is chosen, and then until the proxy has read it back, which one that reads nothing puts
// off.
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

  // What one stream holds of it.
  class Part {
   public:
    explicit Part(HeldBodies* of) : of_(of) {}
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;
    ~Part() { Clear(); }

    // False: all of them would hold too much, and nothing was added.
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
