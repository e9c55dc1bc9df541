#include "indexer/net/bounded_message.h"

#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvatlas {
namespace {

using Set = google::protobuf::FileDescriptorSet;

grpc::ByteBuffer BufferOf(const std::string& bytes, size_t slices = 1) {
  std::vector<grpc::Slice> all;
  for (size_t i = 0; i < slices; ++i) {
    const size_t from = bytes.size() * i / slices, to = bytes.size() * (i + 1) / slices;
    all.emplace_back(bytes.substr(from, to - from));
  }
  return {all.data(), all.size()};
}

// `count` empty messages in another one.
std::string Nested(size_t count) {
  Set set;
  auto* const file = set.add_file();
  for (size_t i = 0; i < count; ++i) file->add_message_type();
  return set.SerializeAsString();
}

bool TooMany(const std::string& bytes, size_t slices = 1) {
  return HasTooManyParts(BufferOf(bytes, slices), *Set::descriptor());
}

TEST(BoundedMessageTest, PartsAreCountedAtEveryDepth) {
  EXPECT_FALSE(TooMany(Nested(kPartsMax - 2)));
  EXPECT_TRUE(TooMany(Nested(kPartsMax)));
  EXPECT_TRUE(TooMany(Nested(kPartsMax), 7));
  // Fields that no message here has take memory too.
  std::string unknown;
  for (size_t i = 0; i <= kPartsMax; ++i) unknown += std::string("\xa2\x06\x00", 3);
  EXPECT_TRUE(TooMany(unknown));
}

TEST(BoundedMessageTest, PackedNumbersAreOnePart) {
  google::protobuf::SourceCodeInfo info;
  auto* const location = info.add_location();
  for (size_t i = 0; i < 2 * kPartsMax; ++i) location->add_path(static_cast<int32_t>(i));
  EXPECT_FALSE(HasTooManyParts(BufferOf(info.SerializeAsString()),
                               *google::protobuf::SourceCodeInfo::descriptor()));
}

TEST(BoundedMessageTest, WhatIsCutIsLeftToItsReader) {
  const std::string nested = Nested(1000);
  for (size_t size = 0; size < 200; ++size) EXPECT_FALSE(TooMany(nested.substr(0, size)));
}

TEST(BoundedMessageTest, WhatHasTooManyPartsIsNotRead) {
  Set set;
  BoundedMessage<Set> bounded{.into = &set};
  using Traits = grpc::SerializationTraits<BoundedMessage<Set>>;
  grpc::ByteBuffer many = BufferOf(Nested(kPartsMax));
  EXPECT_TRUE(Traits::Deserialize(&many, &bounded).ok());
  EXPECT_TRUE(bounded.too_many);
  EXPECT_EQ(set.file_size(), 0);
  grpc::ByteBuffer few = BufferOf(Nested(40000));
  EXPECT_TRUE(Traits::Deserialize(&few, &bounded).ok());
  EXPECT_FALSE(bounded.too_many);
  EXPECT_EQ(set.file(0).message_type_size(), 40000);
}

}  // namespace
}  // namespace kvatlas
