// The msgpack of vLLM's events, written field by field. One `FieldWriter` makes both forms: a map
// has names, the older array has the same values in fixed places, with nil where a value is
// missing.

#include "publisher/zmq_events.h"

#include <bit>
#include <msgpack.hpp>

namespace kvatlas {
namespace {

// The tag by which Dynamo's consumers know a salt among the extra keys.
constexpr std::string_view kSaltTag = "dynamo-cache-salt:";

// A sink as msgpack's packer wants one.
class StringBuffer {
 public:
  explicit StringBuffer(std::string* to) : to_(to) {}
  void write(const char* bytes, size_t size) { to_->append(bytes, size); }

 private:
  std::string* const to_;
};

// Always a float64: msgpack's packer would write an integer for a time without a fraction.
void AppendFloat(double number, std::string* to) {
  to->push_back('\xcb');
  const uint64_t bits = std::bit_cast<uint64_t>(number);
  for (int shift = 56; shift >= 0; shift -= 8) to->push_back(static_cast<char>(bits >> shift));
}

// Writes the fields of one event, with their names in a map.
class FieldWriter {
 public:
  FieldWriter(std::string* to, bool named) : named_(named), buffer_(to), packer_(buffer_) {}

  // `array_fields`: of the array form, the tag included.
  void Begin(std::string_view tag, uint32_t map_fields, uint32_t array_fields) {
    if (named_) {
      packer_.pack_map(map_fields);
    } else {
      packer_.pack_array(array_fields);
    }
    Text("type", tag);
  }
  // Nothing in the array form.
  void Name(std::string_view name) {
    if (named_) Pack(name);
  }
  void Text(std::string_view name, std::string_view text) {
    Name(name);
    Pack(text);
  }
  void TextOrNil(std::string_view name, std::string_view text) {
    return text.empty() ? Nil(name) : Text(name, text);
  }
  void Number(std::string_view name, uint64_t number) {
    Name(name);
    packer_.pack_uint64(number);
  }
  void Nil(std::string_view name) {
    Name(name);
    packer_.pack_nil();
  }
  template <typename Number>
  void Numbers(std::string_view name, std::span<const Number> numbers) {
    Name(name);
    packer_.pack_array(static_cast<uint32_t>(numbers.size()));
    for (const Number number : numbers) packer_.pack(number);
  }
  // One entry per block: the parts of its hash beside its tokens. As in vLLM the salt is a key of
  // the first block of a sequence only; later blocks have it by their parent.
  void ExtraKeys(const ZmqStored& run) {
    Name("extra_keys");
    packer_.pack_array(static_cast<uint32_t>(run.hashes.size()));
    for (size_t i = 0; i < run.hashes.size(); ++i) {
      const bool salted = i == 0 && !run.parent && !run.cache_salt.empty();
      const uint32_t keys = (run.lora_name.empty() ? 0 : 1) + (salted ? 1 : 0);
      if (keys == 0) {
        packer_.pack_nil();
        continue;
      }
      packer_.pack_array(keys);
      if (!run.lora_name.empty()) Pack(run.lora_name);
      if (salted) Pack(std::string(kSaltTag) + std::string(run.cache_salt));
    }
  }

 private:
  void Pack(std::string_view text) {
    packer_.pack_str(static_cast<uint32_t>(text.size()));
    packer_.pack_str_body(text.data(), static_cast<uint32_t>(text.size()));
  }

  const bool named_;
  StringBuffer buffer_;
  msgpack::packer<StringBuffer> packer_;
};

}  // namespace

ZmqEventEncoder::ZmqEventEncoder(ZmqEventForm form, uint32_t block_size, uint32_t rank)
    : form_(form), block_size_(block_size), rank_(rank) {}

// The map form leaves out fields without a value, the array form needs all twelve places, hence the
// two counts.
void ZmqEventEncoder::Stored(const ZmqStored& said) {
  const bool map = form_ == ZmqEventForm::kMap;
  // Without tokens a hash stands for what it stood for before, parent and namespace included.
  ZmqStored run = said;
  if (said.tokens.empty()) {
    run.parent.reset();
    run.lora_name = run.cache_salt = {};
  }
  const uint32_t block_size = run.block_size == 0 ? block_size_ : run.block_size;
  const bool salt_field = map && !run.cache_salt.empty();
  const bool window_field = !map || run.sliding_window.has_value();
  FieldWriter fields(&body_, map);
  fields.Begin("BlockStored", 11 + (map && window_field) + salt_field, 12);
  fields.Numbers("block_hashes", run.hashes);
  if (run.parent) {
    fields.Number("parent_block_hash", *run.parent);
  } else {
    fields.Nil("parent_block_hash");
  }
  fields.Numbers("token_ids", run.tokens);
  fields.Number("block_size", run.tokens.empty() ? 0 : block_size);
  fields.Nil("lora_id");
  fields.Text("medium", MediumOf(run.tier));
  fields.TextOrNil("lora_name", run.lora_name);
  fields.ExtraKeys(run);
  fields.Number("group_idx", run.group);
  fields.Text("kv_cache_spec_kind", run.spec_kind);
  if (run.sliding_window.has_value()) {
    fields.Number("kv_cache_spec_sliding_window", *run.sliding_window);
  } else if (window_field) {
    fields.Nil("kv_cache_spec_sliding_window");
  }
  if (salt_field) fields.Text("cache_salt", run.cache_salt);
  ++events_;
}

void ZmqEventEncoder::Removed(Tier tier, std::span<const uint64_t> hashes, uint32_t group) {
  FieldWriter fields(&body_, form_ == ZmqEventForm::kMap);
  fields.Begin("BlockRemoved", 4, 4);
  fields.Numbers("block_hashes", hashes);
  fields.Text("medium", MediumOf(tier));
  fields.Number("group_idx", group);
  ++events_;
}

void ZmqEventEncoder::AllCleared() {
  FieldWriter fields(&body_, form_ == ZmqEventForm::kMap);
  fields.Begin("AllBlocksCleared", 1, 1);
  ++events_;
}

// The events were encoded without their envelope, since their number is known only now.
std::string ZmqEventEncoder::Finish(double time_s) {
  constexpr size_t kEnvelopeBytesMax = 1 + 9 + 5 + 5;
  std::string batch;
  batch.reserve(body_.size() + kEnvelopeBytesMax);
  StringBuffer buffer(&batch);
  msgpack::packer<StringBuffer> packer(buffer);
  packer.pack_array(3);
  AppendFloat(time_s, &batch);
  packer.pack_array(events_);
  batch += body_;
  packer.pack_uint32(rank_);
  body_.clear();
  events_ = 0;
  return batch;
}

std::string_view ZmqEventEncoder::MediumOf(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "GPU";
    case Tier::kHost:
      return "CPU";
    case Tier::kDisk:
      return "DISK";
    case Tier::kExternal:
      return "EXTERNAL";
  }
  return "GPU";
}

std::string_view ZmqEventEncoder::SpecKindOf(CacheKind kind) {
  switch (kind) {
    case CacheKind::kFull:
      return "full_attention";
    case CacheKind::kWindow:
      return "sliding_window";
    case CacheKind::kState:
      return "mamba";
    case CacheKind::kChunk:
      return "chunked_local_attention";
  }
  return "unknown";
}

}  // namespace kvatlas
