#include "indexer/process/fork_detector.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace kvatlas {
namespace {

constexpr size_t kPageBytes = 4096;

// For kernels without MADV_WIPEONFORK (before 4.14): wiped by the C library, which knows of fork()
// alone.
volatile unsigned char* wiped_by_handler = nullptr;
void Wipe() { *wiped_by_handler = 0; }

}  // namespace

const ForkDetector* ForkDetector::OfThisProcess() {
  static const ForkDetector* const mark = Make();
  return mark;
}

ForkDetector* ForkDetector::Make() {
  void* const page =
      mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  auto* const here = static_cast<volatile unsigned char*>(page);
  if (madvise(page, kPageBytes, MADV_WIPEONFORK) != 0) {
    wiped_by_handler = here;
    if (pthread_atfork(nullptr, nullptr, &Wipe) != 0) return nullptr;
  }
  *here = 1;
  return new (std::nothrow) ForkDetector(here);
}

}  // namespace kvatlas
