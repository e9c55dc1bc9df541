#include "indexer/process/fork_detector.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace kvatlas {
namespace {

constexpr size_t kPageBytes = 4096;

// The fallback for kernels without MADV_WIPEONFORK (before 4.14): a handler of the C library clears
// the byte, which works for fork() but not for a raw clone system call.
volatile unsigned char* wiped_by_handler = nullptr;
void Wipe() { *wiped_by_handler = 0; }

}  // namespace

const ForkDetector* ForkDetector::OfThisProcess() {
  static const ForkDetector* const mark = Make();
  return mark;
}

// A page of its own, since MADV_WIPEONFORK works on whole pages. The byte is 1 here, and reads 0 in
// a child. The page is never unmapped.
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
