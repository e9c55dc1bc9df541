#include "tests/fuzz/fuzz.h"

#include <utility>

namespace kvatlas {
namespace {

std::vector<std::string>& Added() {
  static auto* const added = new std::vector<std::string>;
  return *added;
}

}  // namespace

const std::vector<std::string>& FuzzSeeds() { return Added(); }

AddFuzzSeeds::AddFuzzSeeds(std::vector<std::string> seeds) {
  for (std::string& seed : seeds) Added().push_back(std::move(seed));
}

}  // namespace kvatlas
