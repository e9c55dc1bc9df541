// Messages of gRPC: what is taken is the same once it was sent on.

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <cstdint>

#include "frontend/cluster_client/wire.h"
#include "frontend/gateway/grpc/prompt_wire.h"
#include "indexer/net/parsed_size.h"
#include "indexer/stream/messages.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/frontend.pb.h"
#include "proto/kvatlas/v1/hierarchy.pb.h"
#include "proto/kvatlas/v1/leaf.pb.h"
#include "proto/kvatlas/v1/stream.pb.h"
#include "tests/fuzz/fuzz.h"

namespace kvatlas {
namespace {

// What its bytes say of the memory that it takes is never too little, malformed or not.
template <typename Wire>
bool Parsed(const std::string& bytes, Wire* wire) {
  static const MessageShape& shape = ShapeOf(*Wire::descriptor());
  google::protobuf::io::ArrayInputStream in(bytes.data(), static_cast<int>(bytes.size()));
  const size_t size = ParsedSize(shape, &in, SIZE_MAX);
  const bool parsed = wire->ParseFromString(bytes);
  FuzzCheck(size >= wire->SpaceUsedLong(), "it takes more memory than was told");
  return parsed;
}

template <typename Wire, typename Message>
void Stream(const std::string& bytes) {
  Wire wire;
  Message message;
  if (!Parsed(bytes, &wire) || !FromProto(wire, &message).ok()) return;
  Wire again, third;
  ToProto(message, &again);
  Message back;
  FuzzCheck(FromProto(again, &back).ok(), "what was taken is refused when it is sent on");
  ToProto(back, &third);
  FuzzCheck(again.SerializeAsString() == third.SerializeAsString(), "it is another one");
}

template <typename Wire, typename Use>
void Read(const std::string& bytes, const Use& use) {
  if (Wire wire; Parsed(bytes, &wire)) use(wire);
}

SenderMessage HelloOf() {
  Hello hello;
  hello.holder = {"w", 1, ""};
  hello.domain = {"m", "t"};
  hello.block_size = 16;
  hello.contract_id = "c";
  hello.address = "h:1";
  hello.labels = {{"url", "http://h:1"}};
  hello.epoch = 7;
  return hello;
}

template <typename Message>
std::string Seed(char kind, const Message& message) {
  return kind + message.SerializeAsString();
}

const AddFuzzSeeds kSeeds([] {
  std::vector<std::string> all;
  v1::SenderMessage sender;
  ToProto(HelloOf(), &sender);
  all.push_back(Seed('\0', sender));
  Batch batch;
  batch.number = 1;
  batch.events = {Stored{.blocks = {SequenceHash{1}, SequenceHash{2}}},
                  Removed{.blocks = {SequenceHash{1}}}, Cleared{}};
  ToProto(SenderMessage(batch), &sender);
  all.push_back(Seed('\0', sender));
  v1::ReceiverMessage receiver;
  receiver.mutable_refuse()->set_reason("why");
  all.push_back(Seed('\1', receiver));
  receiver.Clear();
  receiver.mutable_welcome()->set_next(3);
  all.push_back(Seed('\1', receiver));
  v1::FindCellsResponse cells;
  cells.add_cells()->mutable_cell()->set_name("c");
  all.push_back(Seed('\2', cells));
  v1::FindOverlapsResponse overlaps;
  overlaps.add_workers()->mutable_worker()->set_name("w");
  all.push_back(Seed('\3', overlaps));
  v1::RouteRequest route;
  route.mutable_domain()->set_model("m");
  route.mutable_tokens()->add_ids(1);
  all.push_back(Seed('\4', route));
  v1::RouteChatRequest chat;
  chat.set_body("{\"model\":\"m\"}");
  all.push_back(Seed('\5', chat));
  v1::ReportRequest report;
  report.set_decision_id(1);
  report.set_finished(true);
  all.push_back(Seed('\6', report));
  return all;
}());

}  // namespace

}  // namespace kvatlas

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvatlas;  // NOLINT: the whole of this file
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t kind = FuzzChoice(&input, 7);
  const std::string bytes(input);
  switch (kind) {
    case 0:
      Stream<v1::SenderMessage, SenderMessage>(bytes);
      break;
    case 1:
      Stream<v1::ReceiverMessage, ReceiverMessage>(bytes);
      break;
    case 2:
      Read<v1::FindCellsResponse>(bytes, [](const auto& wire) { FromProto(wire); });
      break;
    case 3:
      Read<v1::FindOverlapsResponse>(bytes, [](const auto& wire) {
        FromProto(wire);
        LabelsFromProto(wire);
      });
      break;
    case 4:
      Read<v1::RouteRequest>(bytes, [](const auto& wire) {
        FromProto(wire).status().IgnoreError();
        PromptFromProto(wire).status().IgnoreError();
      });
      break;
    case 5:
      Read<v1::RouteChatRequest>(bytes, [](const auto& wire) {
        RouteInput input;
        ChoiceFromProto(wire, &input).IgnoreError();
      });
      break;
    default:
      Read<v1::ReportRequest>(bytes, [](const auto& wire) { FromProto(wire); });
  }
  return 0;
}
