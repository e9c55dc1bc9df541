// Assertions: conditions that must be true, or the program is wrong. Checked in every build, the
// released one included.
//
//   KVATLAS_ASSERT(found.word == word);
//
// *Truth*: a failed assertion prints file, line and the condition to stderr and aborts. For the
// program's own invariants alone;
// what a peer, a file or a user says gets an error instead.
// *Cost*: a compare and a branch that is never taken. What costs more belongs into a `Check()`.

#ifndef KVATLAS_INDEXER_BASE_ASSERT_H_
#define KVATLAS_INDEXER_BASE_ASSERT_H_

#include <cstdio>
#include <cstdlib>

namespace kvatlas {

[[noreturn, gnu::cold, gnu::noinline]] inline void AssertionFailed(const char* file, int line,
                                                                   const char* condition) {
  std::fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace kvatlas

#define KVATLAS_ASSERT(condition)                                 \
  do {                                                            \
    if (!(condition)) [[unlikely]]                                \
      ::kvatlas::AssertionFailed(__FILE__, __LINE__, #condition); \
  } while (false)

#endif  // KVATLAS_INDEXER_BASE_ASSERT_H_
