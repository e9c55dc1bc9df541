// Messages of proto/ and of streams.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/message.h"
#include "proto/kvatlas/v1/frontend.pb.h"
#include "proto/kvatlas/v1/hierarchy.pb.h"
#include "proto/kvatlas/v1/leaf.pb.h"
#include "proto/kvatlas/v1/sessions.pb.h"
#include "proto/kvatlas/v1/stream.pb.h"
#include "proto/kvatlas/v1/truth.pb.h"
#include "proto/kvatlas/v1/types.pb.h"
#include "tests/wire/golden.h"

namespace kvatlas {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;

constexpr int kDepthMax = 6;
constexpr int kElements = 2;  // of a list

void AddWithNested(const Descriptor* type, std::vector<const Descriptor*>* all) {
  if (type->options().map_entry()) return;
  all->push_back(type);
  for (int i = 0; i < type->nested_type_count(); ++i) AddWithNested(type->nested_type(i), all);
}

// Another value for each field and place.
uint32_t ValueOf(const FieldDescriptor* field, int place) {
  return static_cast<uint32_t>(field->number() * 1000 + place + 1);
}

const google::protobuf::EnumValueDescriptor* EnumOf(const FieldDescriptor* field, int place) {
  const google::protobuf::EnumDescriptor* const type = field->enum_type();
  return type->value((field->number() + place) % type->value_count());
}

void Fill(Message* message, int variant, int depth);

void SetOne(Message* message, const FieldDescriptor* field, int variant, int depth) {
  const Reflection* const to = message->GetReflection();
  const uint32_t value = ValueOf(field, 0);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return to->SetInt32(message, field, -static_cast<int32_t>(value));
    case FieldDescriptor::CPPTYPE_INT64:
      return to->SetInt64(message, field, -int64_t{value} << 32);
    case FieldDescriptor::CPPTYPE_UINT32:
      return to->SetUInt32(message, field, value);
    case FieldDescriptor::CPPTYPE_UINT64:
      return to->SetUInt64(message, field, uint64_t{value} << 40 | value);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return to->SetDouble(message, field, value + 0.5);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return to->SetFloat(message, field, static_cast<float>(value) + 0.5f);
    case FieldDescriptor::CPPTYPE_BOOL:
      return to->SetBool(message, field, true);
    case FieldDescriptor::CPPTYPE_ENUM:
      return to->SetEnum(message, field, EnumOf(field, 0));
    case FieldDescriptor::CPPTYPE_STRING:
      return to->SetString(message, field, field->name());
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Fill(to->MutableMessage(message, field), variant, depth + 1);
  }
}

void AddOne(Message* message, const FieldDescriptor* field, int place, int variant, int depth) {
  const Reflection* const to = message->GetReflection();
  const uint32_t value = ValueOf(field, place);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return to->AddInt32(message, field, -static_cast<int32_t>(value));
    case FieldDescriptor::CPPTYPE_INT64:
      return to->AddInt64(message, field, -int64_t{value} << 32);
    case FieldDescriptor::CPPTYPE_UINT32:
      return to->AddUInt32(message, field, value);
    case FieldDescriptor::CPPTYPE_UINT64:
      return to->AddUInt64(message, field, uint64_t{value} << 40 | value);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return to->AddDouble(message, field, value + 0.5);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return to->AddFloat(message, field, static_cast<float>(value) + 0.5f);
    case FieldDescriptor::CPPTYPE_BOOL:
      return to->AddBool(message, field, place % 2 == 0);
    case FieldDescriptor::CPPTYPE_ENUM:
      return to->AddEnum(message, field, EnumOf(field, place));
    case FieldDescriptor::CPPTYPE_STRING:
      return to->AddString(message, field, field->name() + std::to_string(place));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Fill(to->AddMessage(message, field), variant, depth + 1);
  }
}

void Fill(Message* message, int variant, int depth) {
  const Descriptor* const type = message->GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && depth == kDepthMax) continue;
    if (const OneofDescriptor* const one = field->real_containing_oneof();
        one != nullptr && one->field(variant % one->field_count()) != field)
      continue;
    if (field->is_repeated()) {
      // Entries of a map come in no order: one.
      const int count = field->is_map() ? 1 : kElements;
      for (int place = 0; place < count; ++place) AddOne(message, field, place, variant, depth);
    } else {
      SetOne(message, field, variant, depth);
    }
  }
}

int Variants(const Descriptor* type, int depth) {
  int most = 1;
  if (depth == kDepthMax) return most;
  for (int i = 0; i < type->real_oneof_decl_count(); ++i)
    most = std::max(most, type->oneof_decl(i)->field_count());
  for (int i = 0; i < type->field_count(); ++i)
    if (const Descriptor* const of = type->field(i)->message_type(); of != nullptr)
      most = std::max(most, Variants(of, depth + 1));
  return most;
}

Load SomeLoad() {
  return {.running_requests = 1,
          .waiting_requests = 2,
          .used_blocks = 3,
          .free_blocks = 4,
          .waiting_prefill_blocks = 5,
          .tokens_per_s = 6.5,
          .workers = 7};
}

Digest SomeDigest() {
  Digest digest;
  digest.Add(Tier::kDevice, SequenceHash{0x1111});
  digest.Add(Tier::kHost, SequenceHash{0x2222});
  return digest;
}

Stored SomeStored() {
  return {.tier = Tier::kDevice,
          .position = 2,
          .parent = SequenceHash{0xabcdef0123456789},
          .blocks = {SequenceHash{0x0102030405060708}, SequenceHash{0xf1f2f3f4f5f6f7f8}}};
}

CacheLayout SomeLayout() {
  CacheLayout layout;
  layout.main = {.kind = CacheKind::kFull, .block_size = 16, .drops_last = true};
  layout.sides = {{.kind = CacheKind::kWindow, .block_size = 16, .window_tokens = 1023},
                  {.kind = CacheKind::kState, .block_size = 512}};
  return layout;
}

}  // namespace

std::string ToHex(std::string_view bytes) {
  return absl::BytesToHexString({bytes.data(), bytes.size()});
}

std::vector<const Descriptor*> AllMessages() {
  std::vector<const Descriptor*> all;
  for (const FileDescriptor* file :
       {v1::Domain::descriptor()->file(), v1::SenderMessage::descriptor()->file(),
        v1::StatsRequest::descriptor()->file(), v1::FindCellsRequest::descriptor()->file(),
        v1::RouteRequest::descriptor()->file(), v1::DiagnoseRequest::descriptor()->file(),
        v1::FindSessionsRequest::descriptor()->file()})
    for (int i = 0; i < file->message_type_count(); ++i) AddWithNested(file->message_type(i), &all);
  std::sort(all.begin(), all.end(),
            [](const auto* a, const auto* b) { return a->full_name() < b->full_name(); });
  return all;
}

std::unique_ptr<Message> FilledMessage(const Descriptor* type, int variant) {
  std::unique_ptr<Message> message(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
  Fill(message.get(), variant, 0);
  return message;
}

int VariantsOf(const Descriptor* type) { return Variants(type, 0); }

std::vector<SenderMessage> GoldenSenderMessages() {
  Stored side = SomeStored();
  side.side = 1;
  side.position = 0;  // side blocks have none, and no parent
  side.parent = kNoParent;
  return {
      Hello{.holder = {"w0", 3, "r1"},
            .domain = {"llama-70b", "acme"},
            .block_size = 16,
            .contract_id = "xxh3-chain-1:1337",
            .schedule = "every:32",
            .epoch = 1'700'000'000'000'000'000,
            .instance_id = 0xfedcba9876543210,
            .first_kept = 5,
            .last_sent = 77,
            .starting = true,
            .address = "10.0.0.1:7410",
            .labels = {{"zone", "a"}},  // one: entries of a map come in no order
            .degraded = true},
      Batch{.number = 78,
            .events = {SomeStored(), side,
                       Removed{.tier = Tier::kHost, .blocks = {SequenceHash{9}, SequenceHash{10}}},
                       Cleared{.tiers = TierMask(Tier::kDevice) | Tier::kDisk}},
            .load = SomeLoad(),
            .digest = SomeDigest(),
            .degraded = true},
      SnapshotPart{.snapshot_id = 4,
                   .as_of = 78,
                   .part = 1,
                   .last = true,
                   .stored = {SomeStored(), side},
                   .load = SomeLoad(),
                   .digest = SomeDigest(),
                   .degraded = true,
                   .layout = SomeLayout()},
      Heartbeat{.last_sent = 79},
      Goodbye{},
  };
}

std::vector<ReceiverMessage> GoldenReceiverMessages() {
  return {Welcome{.next = 6, .snapshot = true, .credit = 64},
          Refuse{.code = absl::StatusCode::kFailedPrecondition,
                 .reason = "another sender has this name",
                 .epoch = 1'700'000'000'000'000'001,
                 .instance_id = 0x123456789abcdef0,
                 .lapsed = true},
          Ack{.applied = 78, .credit = 63}, Need{.next = 79, .snapshot = true}};
}

}  // namespace kvatlas
