// Refuses gRPC messages that would take too much memory once they are parsed. A message of many
// small parts takes fifty times its bytes: 16 MiB of empty events half a gigabyte. Its parts are
// counted on the wire, and beyond the bound it is not parsed.
//
// *Truth*: parts are the fields of the message and of messages in it, known or not, each time that
// they are there. Packed numbers are one.
// *Threads*: pure. *Cost*: nothing for messages of at most `kUncountedBytes`; else a pass over
// their parts, some 10 ns each.
// *Bounds*: `kPartsMax` parts.
//
// Example, in a reactor whose type of requests is `BoundedMessage<v1::SenderMessage>`:
//   StartRead(&incoming_) ─▶ OnReadDone: if (incoming_.too_many) return Refuse();

#ifndef KVATLAS_INDEXER_NET_BOUNDED_MESSAGE_H_
#define KVATLAS_INDEXER_NET_BOUNDED_MESSAGE_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/serialization_traits.h>
#include <grpcpp/impl/codegen/status.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>

namespace kvatlas {

inline constexpr size_t kUncountedBytes = 64 << 10;
inline constexpr size_t kPartsMax = 256 << 10;

// REQUIRES: a message on the wire, of that type. A malformed one is left to the parser.
bool HasTooManyParts(const grpc::ByteBuffer& message, const google::protobuf::Descriptor& type);

template <typename Message>
struct BoundedMessage {
  Message* into = nullptr;
  bool too_many = false;  // then nothing was read
};

}  // namespace kvatlas

namespace grpc {

template <typename Message>
class SerializationTraits<kvatlas::BoundedMessage<Message>, void> {
 public:
  static Status Deserialize(ByteBuffer* buffer, kvatlas::BoundedMessage<Message>* to) {
    to->too_many = buffer->Length() > kvatlas::kUncountedBytes &&
                   kvatlas::HasTooManyParts(*buffer, *Message::descriptor());
    if (!to->too_many) return SerializationTraits<Message>::Deserialize(buffer, to->into);
    buffer->Clear();
    return Status::OK;
  }
};

}  // namespace grpc

#endif  // KVATLAS_INDEXER_NET_BOUNDED_MESSAGE_H_
