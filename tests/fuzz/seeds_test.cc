// Seeds, changed, cut off and put together, through a target's entry. KVATLAS_SEEDS=N changes N of
// them.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

#include "tests/fuzz/fuzz.h"

namespace kvatlas {
namespace {

constexpr size_t kInputBytesMax = 1 << 16;

void Fuzz(std::string_view bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

class Changer {
 public:
  explicit Changer(uint64_t seed) : random_(seed) {}

  std::string Next() {
    std::string input = Seed();
    for (uint64_t changes = 1 + Below(6); changes > 0; --changes) Change(&input);
    if (input.size() > kInputBytesMax) input.resize(kInputBytesMax);
    return input;
  }

 private:
  uint64_t Below(uint64_t end) { return random_() % end; }
  const std::string& Seed() { return FuzzSeeds()[Below(FuzzSeeds().size())]; }

  void Change(std::string* input) {
    const size_t at = Below(input->size() + 1);
    const size_t length = Below(input->size() - at + 1);
    switch (Below(7)) {
      case 0:
        if (at < input->size()) (*input)[at] = static_cast<char>(Below(256));
        break;
      case 1:
        if (at < input->size()) (*input)[at] ^= static_cast<char>(1u << Below(8));
        break;
      case 2:
        input->erase(at, std::min<size_t>(length, 1 + Below(8)));
        break;
      case 3:
        input->insert(at, 1 + Below(4), static_cast<char>(Below(256)));
        break;
      case 4:
        input->resize(at);
        break;
      case 5:  // a part twice
        input->insert(at, input->substr(at, length));
        break;
      default: {  // a part of another one
        const std::string& other = Seed();
        const size_t from = Below(other.size() + 1);
        input->replace(at, length, other.substr(from, Below(other.size() - from + 1)));
      }
    }
  }

  std::mt19937_64 random_;
};

TEST(FuzzTest, SeedsHoldTheParsersWord) {
  for (const std::string& seed : FuzzSeeds()) {
    Fuzz(seed);
    for (size_t size = 0; size < std::min<size_t>(seed.size(), 512); ++size)
      Fuzz(std::string_view(seed).substr(0, size));
  }
}

TEST(FuzzTest, ChangedSeedsHoldTheParsersWord) {
  const char* const given = std::getenv("KVATLAS_SEEDS");
  const uint64_t seeds = given == nullptr ? 3000 : std::strtoull(given, nullptr, 10);
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(seed);
    Fuzz(Changer(seed).Next());
  }
}

}  // namespace
}  // namespace kvatlas
