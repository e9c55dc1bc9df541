#include "indexer/net/io_loop.h"

#include <atomic>

namespace kvatlas {

// From 1; keys are unique in the process, so tenants of different owners never meet in a loop.
uint64_t IoLoop::NewKey() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace kvatlas
