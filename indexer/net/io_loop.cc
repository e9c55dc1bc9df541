#include "indexer/net/io_loop.h"

#include <atomic>

namespace kvatlas {

uint64_t IoLoop::NewKey() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace kvatlas
