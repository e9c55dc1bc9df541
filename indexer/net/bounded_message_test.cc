#include "indexer/net/bounded_message.h"

#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <string>

namespace kvatlas {
namespace {

using Set = google::protobuf::FileDescriptorSet;
using Traits = grpc::SerializationTraits<BoundedMessage<Set>>;

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

// `count` empty messages in another one.
std::string Nested(size_t count) {
  Set set;
  auto* const file = set.add_file();
  for (size_t i = 0; i < count; ++i) file->add_message_type();
  return set.SerializeAsString();
}

// Each counts for more than 100 bytes.
constexpr size_t kTooMany = kParsedBytesMax / 100;
constexpr size_t kLarge = 40'000;

class BoundedMessageTest : public testing::Test {
 protected:
  grpc::Status Read(const std::string& bytes) {
    grpc::ByteBuffer buffer = BufferOf(bytes);
    return Traits::Deserialize(&buffer, &bounded_);
  }
  uint64_t Charged() const { return MessageAccount::OfProcess().bytes(); }

  Set set_;
  BoundedMessage<Set> bounded_{.into = &set_};
};

TEST_F(BoundedMessageTest, WhatHasTooManyPartsIsNotRead) {
  EXPECT_TRUE(Read(Nested(kTooMany)).ok());
  EXPECT_EQ(bounded_.refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(set_.file_size(), 0);
  EXPECT_TRUE(Read(Nested(kLarge)).ok());
  EXPECT_TRUE(bounded_.refused.ok());
  EXPECT_EQ(set_.file(0).message_type_size(), static_cast<int>(kLarge));
}

TEST_F(BoundedMessageTest, AMessageIsChargedUntilItIsFreedOrTheNextOneIsRead) {
  EXPECT_TRUE(Read(Nested(kLarge)).ok());
  const uint64_t charged = Charged();
  EXPECT_GE(charged, set_.SpaceUsedLong());
  EXPECT_TRUE(Read(Nested(kLarge)).ok());
  EXPECT_EQ(Charged(), charged);
  bounded_.Free();
  EXPECT_EQ(Charged(), 0u);
  EXPECT_LT(set_.SpaceUsedLong(), 1000u) << "it keeps no memory for the next one";
  EXPECT_TRUE(Read(Nested(kLarge)).ok());
  EXPECT_TRUE(Read(Nested(10)).ok());
  EXPECT_EQ(Charged(), 0u);
  set_.mutable_file(0)->set_name("kept");
  bounded_.Free();
  EXPECT_EQ(set_.file_size(), 1) << "a small one does";
}

TEST_F(BoundedMessageTest, OneThatIsNotChargedHasTheBoundOfOneMessage) {
  bounded_.charged = false;
  EXPECT_TRUE(Read(Nested(kLarge)).ok());
  EXPECT_EQ(Charged(), 0u);
  EXPECT_TRUE(Read(Nested(kTooMany)).ok());
  EXPECT_FALSE(bounded_.refused.ok());
}

TEST_F(BoundedMessageTest, WhatIsMalformedIsLeftToItsReader) {
  const std::string nested = Nested(1000);
  for (size_t size = 0; size < 200; ++size) {
    Read(nested.substr(0, size));
    EXPECT_TRUE(bounded_.refused.ok());
  }
}

}  // namespace
}  // namespace kvatlas
