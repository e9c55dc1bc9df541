// `Sizer` walks over a message as protobuf 3.21's parser does, and adds what each part of it makes
// the parser allocate. The figures are of that version, on 64 bits, with glibc's malloc; the test
// holds them against the allocator.

#include "indexer/net/parsed_size.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpc/slice.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

namespace {

// A list has up to twice as many places as entries; what it has grown out of stays in an arena, and
// is as much again.
constexpr size_t kGrown = 4;
constexpr size_t kHeader = 16;         // of malloc
constexpr size_t kEntry = kGrown * 8;  // a pointer in a list
constexpr size_t kText = 32 + 24;      // std::string, and what frees it
constexpr size_t kLongText = 32;       // beside its bytes
constexpr size_t kUnknown = 2 * 16;    // in an UnknownFieldSet, never in an arena
constexpr size_t kUnknownSet = 3 * (kHeader + 16);
// An object, and each of its fields.
constexpr size_t kMessage = 32, kField = 24, kMapField = 160;
// Of a map, beside key and value: a node, its places in the table, an entry to parse into.
constexpr size_t kMapEntry = 256;
constexpr size_t kBlock = 32 << 10;  // of an arena, not filled

size_t TextBytes(size_t length) { return kText + (length > 15 ? kLongText + length : 0); }

}  // namespace

class MessageShape {
 public:
  enum class Kind : uint8_t {
    kUnknown,   // no such field
    kNumber,    // in the object itself
    kNumbers,   // a list; of `bytes` each
    kText,      // bytes or string
    kTexts,     // likewise, a list
    kMessage,   // of `message`
    kMessages,  // likewise, a list, or a map's entries
  };
  struct Field {
    Kind kind = Kind::kUnknown;
    uint8_t bytes = 0;
    WireFormatLite::WireType wire = WireFormatLite::WIRETYPE_VARINT;  // unless it is packed
    const MessageShape* message = nullptr;
  };

  const Field& At(int number) const {
    static constexpr Field kNone;
    return number < static_cast<int>(fields_.size()) ? fields_[static_cast<size_t>(number)] : kNone;
  }
  size_t bytes() const { return bytes_; }
  bool map_entry() const { return map_entry_; }
  // An object of this type in a list or, of a map, an entry, whose value is there also where the
  // wire has none.
  size_t bytes_in_list() const {
    if (!map_entry_) return bytes_ + kEntry;
    const MessageShape* const value = At(2).message;
    return bytes_ + kMapEntry + (value != nullptr ? 2 * value->bytes() : 0);
  }

  // REQUIRES: field numbers of up to some thousands, as all of ours are.
  template <typename ShapeOfMessage>
  void Fill(const Descriptor& type, const ShapeOfMessage& shape_of) {
    bytes_ = kMessage;
    map_entry_ = type.map_key() != nullptr;
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      bytes_ += field.is_map() ? kMapField : kField;
      const auto number = static_cast<size_t>(field.number());
      if (fields_.size() <= number) fields_.resize(number + 1);
      fields_[number] = FieldOf(field, shape_of);
    }
  }

 private:
  template <typename ShapeOfMessage>
  static Field FieldOf(const FieldDescriptor& field, const ShapeOfMessage& shape_of) {
    Field to;
    to.wire =
        WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
    const bool list = field.is_repeated();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        to.kind = list ? Kind::kMessages : Kind::kMessage;
        to.message = shape_of(*field.message_type());
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        to.kind = list ? Kind::kTexts : Kind::kText;
        break;
      case FieldDescriptor::CPPTYPE_INT64:
      case FieldDescriptor::CPPTYPE_UINT64:
      case FieldDescriptor::CPPTYPE_DOUBLE:
        to.kind = list ? Kind::kNumbers : Kind::kNumber;
        to.bytes = 8;
        break;
      default:
        to.kind = list ? Kind::kNumbers : Kind::kNumber;
        to.bytes = 4;
    }
    return to;
  }

  size_t bytes_ = 0;
  bool map_entry_ = false;
  std::vector<Field> fields_;  // by number
};

namespace {

// Types refer to each other, also in circles: each has its place before its fields are filled in.
class Shapes {
 public:
  const MessageShape& Of(const Descriptor& type) {
    MutexLock lock(&mutex_);
    return *Make(type);
  }

 private:
  const MessageShape* Make(const Descriptor& type) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto [at, added] = made_.try_emplace(&type);
    if (!added) return at->second.get();
    at->second = std::make_unique<MessageShape>();
    MessageShape* const made = at->second.get();
    made->Fill(
        type, [this](const Descriptor& part) ABSL_NO_THREAD_SAFETY_ANALYSIS { return Make(part); });
    return made;
  }

  Mutex mutex_;
  std::unordered_map<const Descriptor*, std::unique_ptr<MessageShape>> made_
      ABSL_GUARDED_BY(mutex_);
};

using Field = MessageShape::Field;
using Kind = MessageShape::Kind;

class Sizer {
 public:
  Sizer(CodedInputStream* in, size_t bytes_max) : in_(in), bytes_max_(bytes_max) {}

  size_t bytes() const { return bytes_; }

  // Adds the parts of one message up to its limit or, in a group, its end. False: malformed, or
  // more than `bytes_max`. `shape` is null in what is not known.
  bool Message(const MessageShape* shape, int depth) {
    constexpr int kDepthMax = 100;  // as protobuf's own parser has it
    if (depth > kDepthMax) return false;
    bool has_unknown = false;
    while (const uint32_t tag = in_->ReadTag()) {
      const auto wire = WireFormatLite::GetTagWireType(tag);
      if (wire == WireFormatLite::WIRETYPE_END_GROUP) return shape == nullptr;
      static constexpr Field kNone;
      const Field& field =
          shape == nullptr ? kNone : shape->At(WireFormatLite::GetTagFieldNumber(tag));
      if (IsOf(field, wire)) {
        if (!Known(field, wire, tag, depth, shape->map_entry())) return false;
      } else {
        bytes_ += kUnknown + (std::exchange(has_unknown, true) ? 0 : kUnknownSet);
        if (!Unknown(wire, tag, depth)) return false;
      }
      if (bytes_ > bytes_max_) return false;
    }
    return true;
  }

 private:
  static bool IsOf(const Field& field, WireFormatLite::WireType wire) {
    if (field.kind == Kind::kUnknown) return false;
    return wire == field.wire ||
           (field.kind == Kind::kNumbers && wire == WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  }

  // `in_entry`: of a map, whose texts an arena keeps twice.
  bool Known(const Field& field, WireFormatLite::WireType wire, uint32_t tag, int depth,
             bool in_entry) {
    if (wire != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (field.kind == Kind::kNumbers) bytes_ += kGrown * field.bytes;
      return WireFormatLite::SkipField(in_, tag);
    }
    int size = 0;
    if (!in_->ReadVarintSizeAsInt(&size)) return false;
    const auto length = static_cast<size_t>(size);
    if (field.kind == Kind::kNumbers) {
      if (field.wire == WireFormatLite::WIRETYPE_VARINT)
        return Varints(length, kGrown * field.bytes);
      bytes_ += kGrown * length;
      return in_->Skip(size);
    }
    if (field.message == nullptr) {
      bytes_ += (in_entry ? 2 : 1) * TextBytes(length) + (field.kind == Kind::kTexts ? kEntry : 0);
      return in_->Skip(size);
    }
    bytes_ += kHeader + (field.kind == Kind::kMessages ? field.message->bytes_in_list()
                                                       : field.message->bytes());
    const CodedInputStream::Limit limit = in_->PushLimit(size);
    if (!Message(field.message, depth + 1) || in_->BytesUntilLimit() > 0) return false;
    in_->PopLimit(limit);
    return true;
  }

  bool Unknown(WireFormatLite::WireType wire, uint32_t tag, int depth) {
    if (wire == WireFormatLite::WIRETYPE_START_GROUP) {
      bytes_ += kHeader + 32;  // an UnknownFieldSet of its own
      return Message(nullptr, depth + 1) &&
             in_->LastTagWas(WireFormatLite::MakeTag(WireFormatLite::GetTagFieldNumber(tag),
                                                     WireFormatLite::WIRETYPE_END_GROUP));
    }
    if (wire != WireFormatLite::WIRETYPE_LENGTH_DELIMITED)
      return WireFormatLite::SkipField(in_, tag);
    int size = 0;
    if (!in_->ReadVarintSizeAsInt(&size)) return false;
    bytes_ += TextBytes(static_cast<size_t>(size));
    return in_->Skip(size);
  }

  // Numbers one after the other: each ends with a byte below 0x80.
  bool Varints(size_t length, size_t bytes_each) {
    while (length > 0) {
      const void* data = nullptr;
      int size = 0;
      if (!in_->GetDirectBufferPointer(&data, &size) || size <= 0) return false;
      const size_t here = std::min(length, static_cast<size_t>(size));
      const auto* const begin = static_cast<const uint8_t*>(data);
      const auto ends =
          std::count_if(begin, begin + here, [](uint8_t byte) { return byte < 0x80; });
      bytes_ += static_cast<size_t>(ends) * bytes_each;
      if (bytes_ > bytes_max_) return false;
      in_->Skip(static_cast<int>(here));
      length -= here;
    }
    return true;
  }

  CodedInputStream* const in_;
  const size_t bytes_max_;
  size_t bytes_ = 0;
};

}  // namespace

const MessageShape& ShapeOf(const Descriptor& type) {
  static auto* const shapes = new Shapes();
  return shapes->Of(type);
}

size_t ParsedSize(const MessageShape& shape, google::protobuf::io::ZeroCopyInputStream* wire,
                  size_t bytes_max) {
  CodedInputStream in(wire);
  in.SetTotalBytesLimit(std::numeric_limits<int>::max());
  Sizer sizer(&in, bytes_max);
  sizer.Message(&shape, 0);
  return sizer.bytes() + shape.bytes() + kBlock;
}

bool WireBytes::Next(const void** data, int* size) {
  if (backed_ == 0) {
    if (next_ == slices_.count) return false;
    backed_ = GRPC_SLICE_LENGTH(slices_.slices[next_]);
    ++next_;  // not in the macro, which has its argument twice
  }
  const grpc_slice& slice = slices_.slices[next_ - 1];
  *data = GRPC_SLICE_START_PTR(slice) + (GRPC_SLICE_LENGTH(slice) - backed_);
  *size = static_cast<int>(backed_);
  count_ += *size;
  backed_ = 0;
  return true;
}

void WireBytes::BackUp(int count) {
  backed_ = static_cast<size_t>(count);
  count_ -= count;
}

bool WireBytes::Skip(int count) {
  const void* data = nullptr;
  for (int size = 0; Next(&data, &size); count -= size) {
    if (size < count) continue;
    BackUp(size - count);
    return true;
  }
  return false;
}

}  // namespace kvatlas
