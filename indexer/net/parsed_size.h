// How much memory does a protobuf message take once it is parsed? Told by its bytes on the wire,
// without building anything of it.
//
//   wire                                            memory, for each byte of it
//   packed numbers, long strings                    1 to 8
//   fields of no known number, empty strings        up to 32
//   empty messages in a list                        up to 60
//
// *Truth*: never less than what the parser allocates, on the heap or in an arena, and two to eight
// times as much. Of a malformed message it is what the parser takes until it finds that out.
// *Threads*: any. *Cost*: a pass over the parts, some 10 ns each, and over the bytes of packed
// varints; nothing is allocated.
// *Bounds*: it stops at the first part that goes beyond `bytes_max`.
//
// Example:
//   const MessageShape& shape = ShapeOf(*v1::RouteRequest::descriptor());   // once
//   if (ParsedSize(shape, &stream, 64 << 20) > 64 << 20) return Refuse();

#ifndef KVATLAS_INDEXER_NET_PARSED_SIZE_H_
#define KVATLAS_INDEXER_NET_PARSED_SIZE_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream.h>
#include <grpc/impl/codegen/grpc_types.h>

#include <cstddef>
#include <cstdint>

namespace kvatlas {

class MessageShape;  // of a type: its fields, and what each takes

// Made once for each type, and kept.
const MessageShape& ShapeOf(const google::protobuf::Descriptor& type);

// `wire` is read up to its end, or to where more than `bytes_max` are counted.
size_t ParsedSize(const MessageShape& shape, google::protobuf::io::ZeroCopyInputStream* wire,
                  size_t bytes_max);

// The bytes of a message that gRPC has read. They stay where they are, and outlive this.
// REQUIRES: not compressed.
class WireBytes : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit WireBytes(const grpc_byte_buffer& buffer) : slices_(buffer.data.raw.slice_buffer) {}

  bool Next(const void** data, int* size) override;
  void BackUp(int count) override;
  bool Skip(int count) override;
  int64_t ByteCount() const override { return count_; }

 private:
  const grpc_slice_buffer& slices_;
  size_t next_ = 0;    // slice
  size_t backed_ = 0;  // bytes at the end of the slice before, which come again
  int64_t count_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_PARSED_SIZE_H_
