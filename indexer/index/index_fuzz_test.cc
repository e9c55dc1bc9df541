// Random bytes through the fuzz entry: it aborts, with code to paste, where a structure differs.
//
// KVATLAS_SEEDS=N gives it N inputs.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace kvatlas {
namespace {

TEST(IndexFuzzTest, RandomBytesAreCallsThatAgree) {
  const char* const text = std::getenv("KVATLAS_SEEDS");
  const uint64_t seeds = text == nullptr ? 2'000 : std::strtoull(text, nullptr, 10);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::vector<uint8_t> bytes(random() % 1'500);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    ASSERT_EQ(LLVMFuzzerTestOneInput(bytes.data(), bytes.size()), 0);
  }
}

TEST(IndexFuzzTest, NoBytesAndEqualBytesAreFine) {
  LLVMFuzzerTestOneInput(nullptr, 0);
  for (int byte = 0; byte < 256; ++byte) {
    const std::vector<uint8_t> bytes(300, static_cast<uint8_t>(byte));
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
}

}  // namespace
}  // namespace kvatlas
