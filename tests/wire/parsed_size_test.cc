#include "indexer/net/parsed_size.h"

#include <google/protobuf/arena.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "proto/kv_indexer/v1/kv_indexer.pb.h"
#include "proto/kvatlas/v1/frontend.pb.h"
#include "proto/kvatlas/v1/hierarchy.pb.h"
#include "proto/kvatlas/v1/leaf.pb.h"
#include "proto/kvatlas/v1/sessions.pb.h"
#include "proto/kvatlas/v1/stream.pb.h"
#include "proto/kvatlas/v1/truth.pb.h"

namespace kvatlas {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kUnbounded = std::numeric_limits<size_t>::max();
// Enough for lists that have just grown, and for thousands of parts.
constexpr size_t kWireBytes = 12'000;

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string Tag(int number, int wire) {
  return Varint(static_cast<uint64_t>(number) << 3 | static_cast<uint64_t>(wire));
}
std::string Lengthy(int number, const std::string& bytes) {
  return Tag(number, 2) + Varint(bytes.size()) + bytes;
}

size_t SizeOf(const Descriptor& type, const std::string& wire, size_t bytes_max = kUnbounded) {
  google::protobuf::io::ArrayInputStream in(wire.data(), static_cast<int>(wire.size()));
  return ParsedSize(ShapeOf(type), &in, bytes_max);
}

// What the allocator has given out.
size_t Given() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

const Message& DefaultOf(const Descriptor& type) {
  return *google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type);
}

struct Measured {
  bool parsed = false;
  size_t heap = 0;
  size_t arena = 0;
};
Measured Measure(const Descriptor& type, const std::string& wire) {
  Measured measured;
  const size_t before = Given();
  std::unique_ptr<Message> message(DefaultOf(type).New());
  measured.parsed = message->ParseFromString(wire);
  measured.heap = Given() - before;
  message.reset();
  const size_t again = Given();
  google::protobuf::Arena arena;
  DefaultOf(type).New(&arena)->ParseFromString(wire);
  measured.arena = Given() - again;
  return measured;
}

// Wires of a message of `type` that consist of one part many times, for each part that it may
// have. Parts of messages in it are inside of as many messages as it takes to get there: `wrap`
// makes a wire of the outermost type of one of this type.
using Wrap = std::function<std::string(const std::string&)>;
struct Wire {
  std::string what;
  std::string bytes;
};
std::string Many(const std::function<std::string(size_t)>& part) {
  std::string bytes;
  for (size_t i = 0; bytes.size() < kWireBytes; ++i) bytes += part(i);
  return bytes;
}
std::string Many(const std::string& part) {
  return Many([&](size_t) { return part; });
}
void AddWires(const Descriptor& type, const Wrap& wrap, std::set<const Descriptor*>* seen,
              std::vector<Wire>* wires) {
  if (!seen->insert(&type).second) return;
  const auto add = [&](const std::string& what, const std::string& bytes) {
    wires->push_back({type.full_name() + ": " + what, wrap(bytes)});
  };
  // A number of one byte, where there is one that is free.
  int unknown = 1;
  while (type.FindFieldByNumber(unknown) != nullptr) ++unknown;
  add("numbers of no field", Many(Tag(unknown, 0) + '\1'));
  add("texts of no field", Many(Lengthy(unknown, "")));
  add("long texts of no field", Many(Lengthy(unknown, std::string(16, 'x'))));
  add("groups", Many(Tag(unknown, 3) + Tag(unknown, 4)));
  add("groups of one", Many(Tag(unknown, 3) + Tag(unknown, 0) + '\1' + Tag(unknown, 4)));
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const int number = field.number();
    add(field.name() + " as another type", Many(Tag(number, 1) + std::string(8, 'x')));
    add(field.name() + " empty", Many(Lengthy(number, "")));
    add(field.name() + " numbers", Many(Tag(number, 0) + '\1'));
    add(field.name() + " packed", Lengthy(number, std::string(kWireBytes, '\1')));
    if (field.is_map()) {
      const bool text =
          field.message_type()->map_key()->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
      add(field.name() + " entries", Many([&](size_t at) {
            return Lengthy(number, text ? Lengthy(1, std::to_string(at)) : Tag(1, 0) + Varint(at));
          }));
    }
    if (field.message_type() == nullptr) continue;
    const Wrap inside = [&wrap, number](const std::string& bytes) {
      return wrap(Lengthy(number, bytes));
    };
    AddWires(*field.message_type(), inside, seen, wires);
    for (const std::string& part : {Lengthy(1, ""), Tag(60, 0) + '\1'})
      add(field.name() + " of one part", Many(Lengthy(number, part)));
  }
}
std::vector<Wire> WiresOf(const Descriptor& type) {
  std::set<const Descriptor*> seen;
  std::vector<Wire> wires;
  AddWires(type, [](const std::string& bytes) { return bytes; }, &seen, &wires);
  return wires;
}

// Types that clients send.
std::vector<const Descriptor*> Types() {
  return {v1::RouteRequest::descriptor(),
          v1::RouteChatRequest::descriptor(),
          v1::RouteStreamRequest::descriptor(),
          v1::ReportRequest::descriptor(),
          v1::GetDecisionRequest::descriptor(),
          v1::DiagnoseRequest::descriptor(),
          v1::FindOverlapsRequest::descriptor(),
          v1::FindOverlapsStreamRequest::descriptor(),
          v1::DumpRequest::descriptor(),
          v1::ExplainRequest::descriptor(),
          v1::StatsRequest::descriptor(),
          v1::FindSessionsRequest::descriptor(),
          v1::FindCellsRequest::descriptor(),
          v1::FindCellsStreamRequest::descriptor(),
          v1::SenderMessage::descriptor(),
          kv_indexer::v1::ApplyExternalKvBatchRequest::descriptor(),
          kv_indexer::v1::MatchExternalKvPrefixRequest::descriptor()};
}

TEST(ParsedSizeTest, IsNeverLessThanWhatIsAllocatedAndNotMuchMore) {
  for (const Descriptor* type : Types()) {
    for (const Wire& wire : WiresOf(*type)) {
      const Measured measured = Measure(*type, wire.bytes);
      const size_t size = SizeOf(*type, wire.bytes);
      EXPECT_GE(size, measured.heap) << type->full_name() << ", " << wire.what;
      EXPECT_GE(size, measured.arena) << type->full_name() << ", " << wire.what;
      if (!measured.parsed) continue;
      // What is given again and again, as a text may be, takes its place once and counts each time.
      EXPECT_LE(size, 10 * std::max(measured.heap, 40 * wire.bytes.size()))
          << type->full_name() << ", " << wire.what;
    }
  }
}

TEST(ParsedSizeTest, OrdinaryQuestionsTakeLessThanEightTimesTheirBytes) {
  v1::RouteRequest route;
  route.mutable_domain()->set_model("meta-llama/Llama-3.1-8B");
  for (uint32_t token = 0; token < 100'000; ++token) route.mutable_tokens()->add_ids(token);
  const std::string tokens = route.SerializeAsString();
  EXPECT_LT(SizeOf(*route.GetDescriptor(), tokens), 8 * tokens.size());
  v1::FindOverlapsRequest find;
  for (uint64_t hash = 0; hash < 10'000; ++hash) find.add_sequence_hashes(hash);
  const std::string hashes = find.SerializeAsString();
  EXPECT_LT(SizeOf(*find.GetDescriptor(), hashes), 5 * hashes.size());
  v1::RouteChatRequest chat;
  chat.set_body(std::string(1'000'000, 'x'));
  EXPECT_LT(SizeOf(*chat.GetDescriptor(), chat.SerializeAsString()), 1'100'000u);
}

TEST(ParsedSizeTest, StopsBeyondTheBound) {
  const std::string groups = Many(Tag(100, 3) + Tag(100, 4));
  const Descriptor& type = *v1::Domain::descriptor();
  EXPECT_GT(SizeOf(type, groups), 200'000u);
  EXPECT_GT(SizeOf(type, groups, 100'000), 100'000u);
  EXPECT_LT(SizeOf(type, groups, 100'000), 140'000u);
  const std::string packed = Lengthy(1, std::string(kWireBytes, '\1'));
  const Descriptor& numbers = *v1::Tokens::descriptor();
  EXPECT_GT(SizeOf(numbers, packed, 1000), 1000u);
}

TEST(ParsedSizeTest, WhatIsCutOrNestedTooDeepIsCountedAsFarAsItIsRead) {
  const Descriptor& type = *v1::RouteRequest::descriptor();
  v1::RouteRequest request;
  request.mutable_domain()->set_model("model");
  request.add_allowed_workers("worker");
  (*request.mutable_required_labels())["zone"] = "a";
  const std::string whole = request.SerializeAsString();
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_LE(SizeOf(type, whole.substr(0, size)), SizeOf(type, whole));
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += Tag(100, 3);
  EXPECT_LT(SizeOf(type, deep), 60'000u);
}

TEST(ParsedSizeTest, IsTheSameHoweverTheBytesAreCut) {
  v1::RouteRequest request;
  for (int i = 0; i < 200; ++i) request.mutable_tokens()->add_ids(static_cast<uint32_t>(i * 70));
  for (int i = 0; i < 20; ++i)
    request.add_allowed_workers(std::string(static_cast<size_t>(i), 'w'));
  const std::string whole = request.SerializeAsString();
  const MessageShape& shape = ShapeOf(*request.GetDescriptor());
  for (const size_t piece : {1, 2, 7, 100, 10'000}) {
    std::vector<grpc_slice> slices;
    for (size_t at = 0; at < whole.size(); at += piece) {
      slices.push_back(
          grpc_slice_from_copied_buffer(whole.data() + at, std::min(piece, whole.size() - at)));
      slices.push_back(grpc_empty_slice());
    }
    grpc_byte_buffer* const buffer = grpc_raw_byte_buffer_create(slices.data(), slices.size());
    WireBytes wire(*buffer);
    EXPECT_EQ(ParsedSize(shape, &wire, kUnbounded), SizeOf(*request.GetDescriptor(), whole));
    EXPECT_EQ(wire.ByteCount(), static_cast<int64_t>(whole.size()));
    grpc_byte_buffer_destroy(buffer);
    for (const grpc_slice& slice : slices) grpc_slice_unref(slice);
  }
}

}  // namespace
}  // namespace kvatlas
