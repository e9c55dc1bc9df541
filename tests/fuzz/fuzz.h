// What every target of this folder has: an entry, which clang's libFuzzer calls and `seeds_test.cc`
// does, and inputs to begin with.

#ifndef KVATLAS_TESTS_FUZZ_FUZZ_H_
#define KVATLAS_TESTS_FUZZ_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

// Any bytes. Ends the process where the parser breaks its word.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace kvatlas {

// Good inputs of every kind that the target reads; it adds them before `main`.
const std::vector<std::string>& FuzzSeeds();
struct AddFuzzSeeds {
  explicit AddFuzzSeeds(std::vector<std::string> seeds);
};

inline void FuzzCheck(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

// The input's first byte, below `end`, which chooses what the rest is read as; the rest.
inline size_t FuzzChoice(std::string_view* input, size_t end) {
  if (input->empty()) return 0;
  const size_t choice = static_cast<uint8_t>(input->front()) % end;
  input->remove_prefix(1);
  return choice;
}

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_FUZZ_FUZZ_H_
