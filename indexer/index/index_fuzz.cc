// Any bytes are calls: the exact structures must answer each of them as the reference does.
//
// A libFuzzer entry. The first bytes choose the structure, the trie and the bounds, the others draw
// the calls (`random_ops.h`). With clang, libFuzzer's own main searches for bytes that differ:
//
//   bazel run --config=clang --copt=-O1 --copt=-fsanitize=fuzzer-no-link //indexer/index:index_fuzz
//   --
//       -max_total_time=600 -max_len=4000
//
// `index_fuzz_test` gives it random bytes under any compiler.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "indexer/index/compare_ops.h"
#include "indexer/index/index.h"
#include "indexer/index/random_ops.h"
#include "indexer/index/random_trie.h"

namespace kvatlas {
namespace {

// Numbers from the bytes, as long as there are any; then zeros.
class Bytes {
 public:
  explicit Bytes(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  uint32_t Below(uint32_t below) {
    uint32_t number = Byte();
    if (below > 256) number = number << 8 | Byte();
    return number % below;
  }

 private:
  uint32_t Byte() {
    if (bytes_.empty()) return 0;
    const uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return byte;
  }

  std::span<const uint8_t> bytes_;
};

std::vector<IndexKind> FuzzedKinds() {
  std::vector<IndexKind> kinds;
  for (const IndexKind& kind : IndexKinds()) {
    if (kind.exact && kind.name != "reference") kinds.push_back(kind);
  }
  return kinds;
}

RandomOptions OptionsFrom(Bytes* bytes, const IndexKind& kind) {
  static constexpr uint32_t kSizes[] = {4, 12, 30, 100, 300, 700};
  static constexpr uint32_t kHolders[] = {1, 2, 3, 5, 70, 200};
  RandomOptions options;
  options.trie.seed = bytes->Below(256);
  options.trie.blocks = kSizes[bytes->Below(std::size(kSizes))];
  options.trie.shape = static_cast<Shape>(bytes->Below(5));
  options.trie.spread = static_cast<Spread>(bytes->Below(7));
  options.holders = kHolders[bytes->Below(std::size(kHolders))];
  if (kind.holders_max != 0) options.holders = std::min(options.holders, kind.holders_max);
  options.run_max = 1 + bytes->Below(options.trie.blocks);
  options.whole = kind.whole;
  if (kind.whole && bytes->Below(4) == 0)
    options.blocks_max = 1 + bytes->Below(options.trie.blocks);
  options.state_every = 16;
  return options;
}

void Fuzz(std::span<const uint8_t> input) {
  static const std::vector<IndexKind>* const kinds = new std::vector<IndexKind>(FuzzedKinds());
  Bytes bytes(input);
  const IndexKind& kind = (*kinds)[bytes.Below(static_cast<uint32_t>(kinds->size()))];
  const RandomOptions options = OptionsFrom(&bytes, kind);
  const RandomTrie trie(options.trie);
  const std::vector<Op> ops = ChooseOps([&bytes](uint32_t below) { return bytes.Below(below); },
                                        [&bytes] { return !bytes.empty(); }, trie, options);
  const MakeTested make = [&kind](const IndexOptions& index_options) {
    return *MakeIndex(kind.name, index_options);
  };
  const std::string difference = FirstDifferenceToPaste(make, ops, options);
  if (difference.empty()) return;
  std::fprintf(stderr, "%s: %s\n", std::string(kind.name).c_str(), difference.c_str());
  std::abort();
}

}  // namespace
}  // namespace kvatlas

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvatlas::Fuzz({data, size});
  return 0;
}
