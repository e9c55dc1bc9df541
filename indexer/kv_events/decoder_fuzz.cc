// Any bytes are a frame, and any bytes are an event of one: the decoder neither crashes nor reads
// beyond them, what it keeps is in proportion to them, and the events beside a bad one survive it.
//
// A libFuzzer entry. With clang, libFuzzer's own main searches for bytes that differ:
//
//   bazel run --config=clang --copt=-O1 --copt=-fsanitize=address --linkopt=-fsanitize=address
//       --copt=-fsanitize=fuzzer-no-link //indexer/kv_events:decoder_fuzz -- -max_total_time=600
//       -max_len=4000
//
// `decoder_fuzz_test` gives it vectors, changed and cut off, under any compiler.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "indexer/kv_events/engine_decoder.h"
#include "indexer/kv_events/engine_event.h"
#include "indexer/kv_events/msgpack_reader.h"

namespace kvatlas {
namespace {

void Check(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "decoder_fuzz: %s\n", what);
  std::abort();
}

// Reads every byte that a batch points to, so that a sanitizer sees them, and says how many there
// are.
class Touch {
 public:
  size_t bytes() const { return bytes_; }
  uint64_t sum() const { return sum_; }

  void Batch(const EngineBatch& batch) {
    for (const EngineEvent& event : batch.events) Event(event);
  }

 private:
  void Event(const EngineEvent& event) {
    for (const EngineBlockHash& hash : event.hashes) Hash(hash);
    if (event.parent.has_value()) Hash(*event.parent);
    for (const TokenId token : event.tokens) sum_ += token;
    for (const uint32_t offset : event.block_offsets) sum_ += offset;
    sum_ += event.components;
    bytes_ +=
        event.tokens.size_bytes() + event.hashes.size_bytes() + event.block_offsets.size_bytes();
    Check(event.block_offsets.empty() || event.block_offsets.size() == event.hashes.size(),
          "offsets of other hashes");
    Check(event.component_form != ComponentForm::kNone || event.components == 0,
          "components that were not said");
    for (const std::string_view text :
         {event.medium, event.locality, event.ownership, event.spec_kind, event.lora_name,
          event.cache_salt.value_or(""), event.session_id, event.model_name, event.tenant_id,
          event.backend_id, event.additional_salt}) {
      Text(text);
    }
    for (const std::span<const ExtraKey> keys : event.extra_keys) {
      bytes_ += keys.size_bytes() + sizeof(keys);
      for (const ExtraKey& key : keys) Text(key.text);
    }
    for (const std::span<const uint64_t> hashes : event.multimodal) {
      bytes_ += hashes.size_bytes() + sizeof(hashes);
      for (const uint64_t hash : hashes) sum_ += hash;
    }
  }

  void Hash(const EngineBlockHash& hash) {
    sum_ += hash.value + hash.FirstBytes();
    Text(hash.bytes);
  }

  void Text(std::string_view text) {
    bytes_ += text.size();
    for (const char byte : text) sum_ += static_cast<uint8_t>(byte);
  }

  size_t bytes_ = 0;
  uint64_t sum_ = 0;
};

// The widest value beside its bytes: an extra key, of 40 bytes, from one byte.
constexpr size_t kGrowthMax = 64;

void CheckFrame(std::string_view payload) {
  EngineDecoder decoder;
  EngineBatch batch;
  const absl::Status status = decoder.Decode(payload, &batch);
  Check(status.ok() || status.code() == absl::StatusCode::kInvalidArgument ||
            status.code() == absl::StatusCode::kResourceExhausted,
        "an unexpected status");
  Check(status.ok() || (batch.events.empty() && batch.refused.empty()), "a failure with events");
  Check(batch.events.size() + batch.refused.size() <= payload.size(), "events from nothing");
  Touch first;
  first.Batch(batch);
  Check(first.bytes() <= kGrowthMax * payload.size(), "more memory than the payload is worth");
  // The decoder keeps nothing of one frame for the next.
  EngineBatch again;
  Check(decoder.Decode(payload, &again).code() == status.code(), "another status the second time");
  Touch second;
  second.Batch(again);
  Check(first.sum() == second.sum() && batch.refused == again.refused,
        "another batch the second time");
}

// ["BlockRemoved", [hash]]
std::string Sibling(char hash) {
  return std::string("\x92\xac") + "BlockRemoved" + "\x91" + std::string(1, hash);
}

bool Removes(const EngineEvent& event, uint64_t hash) {
  return event.kind == EngineEvent::Kind::kRemoved && event.hashes.size() == 1 &&
         event.hashes[0].value == hash;
}

void CheckSiblings(std::string_view event) {
  MsgpackReader reader(event);
  const bool is_whole = reader.Skip() && reader.remaining() == 0;
  std::string payload = std::string("\x93\xc0\x93") + Sibling(1);
  payload.append(event);
  payload += Sibling(2) + "\x05";
  EngineDecoder decoder;
  EngineBatch batch;
  Check(decoder.Decode(payload, &batch).ok(), "a frame refused for one event");
  Check(!batch.events.empty() && Removes(batch.events.front(), 1), "the event before is lost");
  if (!is_whole) return;
  Check(batch.events.size() + batch.refused.size() == 3, "an event is uncounted");
  Check(Removes(batch.events.back(), 2), "the event behind is lost");
  Check(batch.rank == 5, "the rank is lost");
}

// Bounds as narrow as can be: nothing but refusals.
void CheckBounds(std::string_view payload) {
  EngineDecoder decoder(
      {.payload_bytes_max = 1 << 20, .events_max = 2, .hash_bytes_max = 4, .memory_bytes_max = 64});
  EngineBatch batch;
  if (!decoder.Decode(payload, &batch).ok()) return;
  Check(batch.events.size() <= 2, "events beyond the bound");
  size_t held = 0;
  for (const EngineEvent& event : batch.events) {
    held += event.tokens.size_bytes() + event.hashes.size_bytes() + event.extra_keys.size_bytes() +
            event.multimodal.size_bytes() + event.block_offsets.size_bytes();
    for (const EngineBlockHash& hash : event.hashes) Check(hash.bytes.size() <= 4, "a long hash");
  }
  Check(held <= 64, "memory beyond the bound");
}

void Fuzz(std::string_view input) {
  CheckFrame(input);
  CheckSiblings(input);
  CheckBounds(input);
}

}  // namespace
}  // namespace kvatlas

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of its own, so that a sanitizer sees reads beyond it.
  const std::string input(reinterpret_cast<const char*>(data), size);
  kvatlas::Fuzz(input);
  return 0;
}
