// libFuzzer begins with what a target has to begin with, and comes back to it: no folder of inputs
// is needed.

#include <algorithm>
#include <cstdint>
#include <string>

#include "tests/fuzz/fuzz.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t size_max);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t size_max,
                                          unsigned int seed) {
  if (size < 2 || seed % 128 == 0) {
    const std::vector<std::string>& seeds = kvatlas::FuzzSeeds();
    const std::string& good = seeds[seed / 128 % seeds.size()];
    size = std::min(good.size(), size_max);
    std::copy_n(good.begin(), size, data);
  }
  return LLVMFuzzerMutate(data, size, size_max);
}
