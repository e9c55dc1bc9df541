// Walks over a message on the wire with protobuf's CodedInputStream and counts its fields, without
// building any object. Fields that the descriptor does not know, and lengths of bytes and strings,
// are skipped as one part.

#include "indexer/net/bounded_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <limits>
#include <string>
#include <vector>

namespace kvatlas {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Adds the parts of one message to `parts`. False: malformed, or more than `kPartsMax`; the caller
// tells by `parts`. Recurses into fields that are messages, up to protobuf's own depth.
bool Count(const Descriptor& type, CodedInputStream* in, size_t* parts, int depth) {
  constexpr int kDepthMax = 100;  // as protobuf's own parser has it
  if (depth > kDepthMax) return false;
  while (const uint32_t tag = in->ReadTag()) {
    if (++*parts > kPartsMax) return false;
    const bool lengthy =
        WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    const FieldDescriptor* const field =
        lengthy ? type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag)) : nullptr;
    if (field == nullptr || field->message_type() == nullptr) {
      if (!WireFormatLite::SkipField(in, tag)) return false;
      continue;
    }
    int size = 0;
    if (!in->ReadVarintSizeAsInt(&size)) return false;
    const CodedInputStream::Limit limit = in->PushLimit(size);
    if (!Count(*field->message_type(), in, parts, depth + 1)) return false;
    if (in->BytesUntilLimit() > 0) return false;
    in->PopLimit(limit);
  }
  return true;
}

}  // namespace

// A message of several slices is joined first: CodedInputStream reads one array. A message of 2 GiB
// or more cannot be read by protobuf and counts as too many.
bool HasTooManyParts(const grpc::ByteBuffer& message, const Descriptor& type) {
  std::vector<grpc::Slice> slices;
  if (!message.Dump(&slices).ok()) return false;
  std::string joined;
  if (slices.size() > 1)
    for (const grpc::Slice& slice : slices)
      joined.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  const uint8_t* const begin =
      slices.size() == 1 ? slices[0].begin() : reinterpret_cast<const uint8_t*>(joined.data());
  const size_t size = slices.size() == 1 ? slices[0].size() : joined.size();
  if (size > static_cast<size_t>(std::numeric_limits<int>::max())) return true;
  CodedInputStream in(begin, static_cast<int>(size));
  in.SetTotalBytesLimit(std::numeric_limits<int>::max());
  size_t parts = 0;
  Count(type, &in, &parts, 0);
  return parts > kPartsMax;
}

}  // namespace kvatlas
