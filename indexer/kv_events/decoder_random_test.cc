// The decoder against its slow twin, over random frames. KVATLAS_SEEDS=N tries N frames.

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "indexer/kv_events/decoder_random.h"
#include "indexer/kv_events/decoder_test_util.h"
#include "indexer/kv_events/decoder_twin.h"
#include "indexer/kv_events/engine_decoder.h"

namespace kvatlas {
namespace {

uint64_t Seeds() {
  const char* const text = std::getenv("KVATLAS_SEEDS");
  return text == nullptr ? 20'000 : std::strtoull(text, nullptr, 10);
}

class DecoderRandomTest : public ::testing::Test {
 protected:
  // Both say the same of these bytes, which end where the memory does.
  void Compare(const std::string& payload) {
    SCOPED_TRACE("payload " + absl::BytesToHexString(payload));
    EngineBatch batch;
    EngineBatch expected;
    DecoderTwin twin;
    const std::vector<char> exact(payload.begin(), payload.end());
    const absl::Status status = decoder_.Decode({exact.data(), exact.size()}, &batch);
    const absl::Status twin_status = twin.Decode(payload, &expected);
    ASSERT_EQ(status.code(), twin_status.code()) << status << twin_status;
    if (!status.ok()) {
      ASSERT_TRUE(batch.events.empty() && batch.refused.empty());
      return;
    }
    ASSERT_EQ(ToText(batch), ToText(expected));
    for (const EngineEvent& event : batch.events) ++kinds_[event.kind];
    for (const Refusal refusal : batch.refused) ++refusals_[refusal];
    for (const EngineEvent& event : batch.events) {
      opaque_ += event.tokens_opaque;
      offsets_ += !event.block_offsets.empty();
      ++forms_[{event.kind, event.component_form}];
    }
  }

  EngineDecoder decoder_;
  std::map<EngineEvent::Kind, int> kinds_;
  std::map<Refusal, int> refusals_;
  std::map<std::pair<EngineEvent::Kind, ComponentForm>, int> forms_;
  int64_t opaque_ = 0;
  int64_t offsets_ = 0;
};

TEST_F(DecoderRandomTest, EveryFormReadsAsTheTwinReadsIt) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    SCOPED_TRACE(seed);
    ASSERT_NO_FATAL_FAILURE(Compare(RandomFrames(seed).Payload()));
  }
  // The frames were worth it.
  for (const EngineEvent::Kind kind : {EngineEvent::Kind::kStored, EngineEvent::Kind::kRemoved,
                                       EngineEvent::Kind::kCleared, EngineEvent::Kind::kIgnored}) {
    EXPECT_GT(kinds_[kind], 100) << static_cast<int>(kind);
  }
  for (const Refusal refusal :
       {Refusal::kMalformed, Refusal::kMissingField, Refusal::kUnknownTag, Refusal::kTooLarge}) {
    EXPECT_GT(refusals_[refusal], 10) << RefusalName(refusal);
  }
  EXPECT_GT(opaque_, 100);
  EXPECT_GT(offsets_, 100);
  for (const EngineEvent::Kind kind : {EngineEvent::Kind::kStored, EngineEvent::Kind::kRemoved}) {
    for (const ComponentForm form : {ComponentForm::kSnapshot, ComponentForm::kOne}) {
      EXPECT_GT((forms_[{kind, form}]), 100) << static_cast<int>(kind) << static_cast<int>(form);
    }
  }
}

TEST_F(DecoderRandomTest, ChangedBytesReadAsTheTwinReadsThem) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    SCOPED_TRACE(seed);
    RandomFrames frames(seed);
    std::string payload = frames.Payload();
    ASSERT_NO_FATAL_FAILURE(Compare(frames.Mutated(payload)));
    ASSERT_NO_FATAL_FAILURE(Compare(frames.Mutated(payload)));
  }
}

TEST_F(DecoderRandomTest, FramesCutOffAnywhereReadAsTheTwinReadsThem) {
  for (uint64_t seed = 1; seed <= Seeds() / 200; ++seed) {
    SCOPED_TRACE(seed);
    const std::string payload = RandomFrames(seed).Payload();
    for (size_t size = 0; size < payload.size(); ++size) {
      ASSERT_NO_FATAL_FAILURE(Compare(payload.substr(0, size)));
    }
  }
}

}  // namespace
}  // namespace kvatlas
