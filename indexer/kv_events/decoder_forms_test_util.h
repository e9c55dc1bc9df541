// Forms that engines use, written value by value, and a test that decodes them.

#ifndef KVATLAS_INDEXER_KV_EVENTS_DECODER_FORMS_TEST_UTIL_H_
#define KVATLAS_INDEXER_KV_EVENTS_DECODER_FORMS_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/hash.h"
#include "indexer/kv_events/decoder_test_util.h"
#include "indexer/kv_events/engine_decoder.h"
#include "indexer/kv_events/engine_event.h"

namespace kvatlas {

using Write = std::function<void(MsgpackWriter*)>;

inline Write Text(std::string_view text) {
  return [text](MsgpackWriter* out) { out->Text(text); };
}
inline Write Number(int64_t number) {
  return [number](MsgpackWriter* out) { out->Signed(number); };
}
inline Write Nil() {
  return [](MsgpackWriter* out) { out->Nil(); };
}
inline Write Bytes(std::string_view bytes) {
  return [bytes](MsgpackWriter* out) { out->Bytes(bytes); };
}
inline Write Array(std::vector<Write> values) {
  return [values](MsgpackWriter* out) {
    out->Array(values.size());
    for (const Write& value : values) value(out);
  };
}
inline Write Numbers(std::vector<int64_t> numbers) {
  std::vector<Write> values;
  for (const int64_t number : numbers) values.push_back(Number(number));
  return Array(values);
}
inline Write Map(std::vector<std::pair<std::string_view, Write>> pairs) {
  return [pairs](MsgpackWriter* out) {
    out->Map(pairs.size());
    for (const auto& [key, value] : pairs) {
      out->Text(key);
      value(out);
    }
  };
}

using Pairs = std::vector<std::pair<std::string_view, Write>>;

// A store of block 7 as vLLM's newest map has it at least, and more fields.
inline Write StoreMap(Pairs more = {}) {
  Pairs pairs = {{"type", Text("BlockStored")},
                 {"block_hashes", Numbers({7})},
                 {"parent_block_hash", Nil()},
                 {"token_ids", Numbers({1, 2, 3, 4})},
                 {"block_size", Number(4)}};
  pairs.insert(pairs.end(), more.begin(), more.end());
  return Map(pairs);
}

// The same as a tuple, and more places from `lora_id` on.
inline Write StoreTuple(std::vector<Write> more = {}) {
  std::vector<Write> values = {Text("BlockStored"), Numbers({7}), Nil(), Numbers({1, 2, 3, 4}),
                               Number(4)};
  values.insert(values.end(), more.begin(), more.end());
  return Array(values);
}

inline Write RemoveMap(Pairs more = {}) {
  Pairs pairs = {{"type", Text("BlockRemoved")}, {"block_hashes", Numbers({7})}};
  pairs.insert(pairs.end(), more.begin(), more.end());
  return Map(pairs);
}

inline std::vector<TokenId> Tokens(const EngineEvent& event) {
  return {event.tokens.begin(), event.tokens.end()};
}

class DecoderFormsTest : public ::testing::Test {
 protected:
  absl::Status DecodeBytes(std::string payload, const DecoderOptions& options = {}) {
    payload_ = std::move(payload);
    decoder_ = std::make_unique<EngineDecoder>(options);
    return decoder_->Decode(payload_, &batch_);
  }

  const EngineBatch& Decode(std::vector<Write> events, const DecoderOptions& options = {}) {
    MsgpackWriter out;
    for (const Write& event : events) event(&out);
    const absl::Status status = DecodeBytes(BatchOf(events.size(), out.bytes()), options);
    EXPECT_TRUE(status.ok()) << status;
    return batch_;
  }

  const EngineEvent& DecodeOne(const Write& event) {
    static const EngineEvent kNone;
    Decode({event});
    EXPECT_TRUE(batch_.refused.empty()) << ToText(batch_);
    EXPECT_EQ(batch_.events.size(), 1u);
    return batch_.events.size() == 1 ? batch_.events[0] : kNone;
  }

  // The event is refused so, and those beside it are not.
  void ExpectRefused(const Write& event, Refusal refusal, const DecoderOptions& options = {}) {
    Decode({StoreMap(), event, RemoveMap()}, options);
    EXPECT_EQ(batch_.refused, std::vector<Refusal>{refusal}) << ToText(batch_);
    ASSERT_EQ(batch_.events.size(), 2u);
    EXPECT_EQ(batch_.events[0].kind, EngineEvent::Kind::kStored);
    EXPECT_EQ(batch_.events[1].kind, EngineEvent::Kind::kRemoved);
    EXPECT_EQ(batch_.rank, 0);
  }

  std::string payload_;
  std::unique_ptr<EngineDecoder> decoder_;
  EngineBatch batch_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_DECODER_FORMS_TEST_UTIL_H_
