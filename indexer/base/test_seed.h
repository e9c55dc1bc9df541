// The seed of this run of a test: another one each time, unless the environment names it.
//
//   const uint64_t seed = TestSeed();
//   SCOPED_TRACE(SeedText(seed));   // a failure says how to run it again: --test_env=KVATLAS_SEED=123
//
// *Threads*: any.

#ifndef KVATLAS_INDEXER_BASE_TEST_SEED_H_
#define KVATLAS_INDEXER_BASE_TEST_SEED_H_

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

namespace kvatlas {

// KVATLAS_SEED where it is set, else a random number.
inline uint64_t TestSeed() {
  const char* const given = std::getenv("KVATLAS_SEED");
  return given == nullptr ? std::random_device()() : std::strtoull(given, nullptr, 10);
}

inline std::string SeedText(uint64_t seed) {
  return "run it again with --test_env=KVATLAS_SEED=" + std::to_string(seed);
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_TEST_SEED_H_
