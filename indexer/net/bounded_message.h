// Refuses messages of a stream that would take too much memory once they are parsed: before that,
// by their bytes (`parsed_size.h`), within what the process has for all of them
// (`message_account.h`). Unary calls need nothing: `bounded_methods.h` does the same for them.
//
// *Threads*: as the stream's reads.
// *Bounds*: as `MessageAccount`. A message is charged until the next one is read, or `Free`.
//
// Example, in a reactor whose type of requests is `BoundedMessage<v1::SenderMessage>`:
//   StartRead(&incoming_) ─▶ OnReadDone: if (!incoming_.refused.ok()) return Refuse();
//   … ─▶ handled: incoming_.Free();

#ifndef KVATLAS_INDEXER_NET_BOUNDED_MESSAGE_H_
#define KVATLAS_INDEXER_NET_BOUNDED_MESSAGE_H_

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/serialization_traits.h>
#include <grpcpp/impl/codegen/status.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/net/message_account.h"
#include "indexer/net/parsed_size.h"

namespace kvatlas {

template <typename Message>
struct BoundedMessage {
  Message* into = nullptr;
  bool charged = true;                      // see `AdmitMessage`
  absl::Status refused = absl::OkStatus();  // RESOURCE_EXHAUSTED: nothing was read
  MessageAccount::Charge charge = {};

  // It was handled. What is not of an arena would keep its memory for the next message: a small
  // one does.
  void Free() {
    if (charge.bytes() > kSmallMessageBytes && into->GetArena() == nullptr) *into = Message();
    charge = {};
  }
};

}  // namespace kvatlas

namespace grpc {

template <typename Message>
class SerializationTraits<kvatlas::BoundedMessage<Message>, void> {
 public:
  static Status Deserialize(ByteBuffer* buffer, kvatlas::BoundedMessage<Message>* to) {
    static const kvatlas::MessageShape& shape = kvatlas::ShapeOf(*Message::descriptor());
    to->charge = {};
    {
      ProtoBufferReader wire(buffer);
      absl::StatusOr<kvatlas::MessageAccount::Charge> charge =
          kvatlas::AdmitMessage(shape, &wire, to->charged);
      to->refused = charge.status();
      if (charge.ok()) to->charge = *std::move(charge);
    }
    if (to->refused.ok()) return SerializationTraits<Message>::Deserialize(buffer, to->into);
    buffer->Clear();
    return Status::OK;
  }
};

}  // namespace grpc

#endif  // KVATLAS_INDEXER_NET_BOUNDED_MESSAGE_H_
