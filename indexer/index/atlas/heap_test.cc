// The address space that an atlas takes, and the memory that the system has to promise it.

#include "indexer/index/atlas/heap.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace kvatlas::atlas {
namespace {

// "VmData": what is writable and private, which counts where the system promises no more than it
// has.
uint64_t StatusBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string name;
  uint64_t kilobytes = 0;
  while (status >> name) {
    if (name == field + ":" && status >> kilobytes) return kilobytes << 10;
  }
  return 0;
}

TEST(HeapTest, WhatIsNotUsedIsNotPromised) {
  const uint64_t before = StatusBytes("VmData");
  ASSERT_GT(before, 0u);
  const std::unique_ptr<Heap> heap = Heap::Create(0);
  ASSERT_NE(heap, nullptr);
  EXPECT_LT(StatusBytes("VmData") - before, uint64_t{64} << 20);
  for (int i = 0; i < 20'000; ++i) ASSERT_NE(heap->Allocate(8192), 0u);  // 160 MB
  for (int i = 0; i < 100; ++i)
    ASSERT_NE(heap->Allocate(1 << 20), 0u);  // 100 MB more, in large ones
  const uint64_t charged = StatusBytes("VmData") - before;
  EXPECT_GE(charged, uint64_t{260} << 20);
  EXPECT_LT(charged, uint64_t{600} << 20);
}

TEST(HeapTest, ASmallRegionIsUsedToItsEndAndNoFurther) {
  constexpr uint64_t kBytes = uint64_t{32} << 20;
  const std::unique_ptr<Heap> heap = Heap::Create(0, kBytes);
  ASSERT_NE(heap, nullptr);
  uint64_t allocated = 0;
  std::vector<Ref> refs;
  while (const Ref ref = heap->Allocate(32768)) {
    for (Ref word = ref; word < ref + 32768 / 8; word += 512) heap->word(word).store(1);
    allocated += 32768;
    refs.push_back(ref);
  }
  EXPECT_GT(allocated, kBytes - (uint64_t{1} << 20));
  EXPECT_LT(allocated, kBytes);
  EXPECT_EQ(heap->Allocate(1 << 20), 0u);
  for (const Ref ref : refs) heap->Free(ref, 32768);
  EXPECT_NE(heap->Allocate(1 << 20), 0u);
}

TEST(HeapTest, WithoutAddressesThereIsNone) {
  EXPECT_EQ(Heap::Create(0, uint64_t{1} << 20), nullptr);
}

}  // namespace
}  // namespace kvatlas::atlas
