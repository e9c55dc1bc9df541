#include "indexer/base/big_endian.h"

#include "gtest/gtest.h"

namespace kvatlas {
namespace {

TEST(BigEndianTest, NumbersComeBackFromTheirBytes) {
  EXPECT_EQ(BigEndian<uint16_t>(0x0102), "\1\2");
  EXPECT_EQ(BigEndian<uint32_t>(0xfffefdfc), "\xff\xfe\xfd\xfc");
  EXPECT_EQ(FromBigEndian(BigEndian<uint64_t>(0xfedcba9876543210)), 0xfedcba9876543210);
  EXPECT_EQ(FromBigEndian(""), 0u);
  EXPECT_EQ(FromBigEndian("\1\2\3"), 0x010203u);
  EXPECT_EQ(FromBigEndian("much before\xff\2\3\4\5\6\7\xf8"), 0xff020304050607f8);
}

}  // namespace
}  // namespace kvatlas
