// Bytes that no engine sends through the fuzz entry, which aborts where the decoder breaks its
// word; and what the decoder allocates for them. KVATLAS_SEEDS=N changes N frames.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <string_view>

#include "indexer/kv_events/decoder_random.h"
#include "indexer/kv_events/decoder_test_util.h"
#include "indexer/kv_events/engine_decoder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

// Bytes asked for on this thread so far.
thread_local size_t allocated = 0;

}  // namespace

// Not inlined: compilers warn of memory from a `new` that ends in a `free` that they can see.
__attribute__((noinline)) void* operator new(size_t size) {
  allocated += size;
  void* const room = std::malloc(size == 0 ? 1 : size);
  if (room == nullptr) std::abort();
  return room;
}
__attribute__((noinline)) void operator delete(void* room) noexcept { std::free(room); }
__attribute__((noinline)) void operator delete(void* room, size_t) noexcept { std::free(room); }

namespace kvatlas {
namespace {

void Fuzz(std::string_view bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

// Bytes that a new decoder and a new batch allocate for this payload.
size_t AllocatedFor(std::string_view payload) {
  const size_t before = allocated;
  EngineDecoder decoder;
  EngineBatch batch;
  decoder.Decode(payload, &batch).IgnoreError();
  return allocated - before;
}

// The first chunk of the arena, and what a payload of so many bytes may be worth in events (the
// smallest has 9 bytes) and values, each growing by doubling.
size_t MayAllocate(size_t payload_bytes) { return (128 << 10) + 256 * payload_bytes; }

uint64_t Seeds() {
  const char* const text = std::getenv("KVATLAS_SEEDS");
  return text == nullptr ? 5'000 : std::strtoull(text, nullptr, 10);
}

TEST(DecoderFuzzTest, ChangedFramesHoldTheDecodersWord) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    SCOPED_TRACE(seed);
    RandomFrames frames(seed);
    std::string payload = frames.Payload();
    for (int change = 0; change < 4; ++change) {
      Fuzz(payload);
      ASSERT_LE(AllocatedFor(payload), MayAllocate(payload.size()));
      payload = frames.Mutated(payload);
    }
  }
}

TEST(DecoderFuzzTest, EventsOfAnyFormLeaveTheirSiblingsAlone) {
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    SCOPED_TRACE(seed);
    RandomFrames frames(seed);
    const std::string event = frames.Event();
    Fuzz(event);
    Fuzz(frames.Mutated(event));
  }
}

TEST(DecoderFuzzTest, FramesCutOffAtEveryByteHoldTheDecodersWord) {
  for (uint64_t seed = 1; seed <= Seeds() / 100; ++seed) {
    SCOPED_TRACE(seed);
    const std::string payload = RandomFrames(seed).Payload();
    for (size_t size = 0; size < payload.size(); ++size) {
      Fuzz(std::string_view(payload).substr(0, size));
    }
  }
}

TEST(DecoderFuzzTest, EveryPairOfBytesIsAFrame) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const char bytes[] = {static_cast<char>(first), static_cast<char>(second)};
      Fuzz({bytes, 1});
      Fuzz({bytes, 2});
      Fuzz(FromHex("92c091") + std::string(bytes, 2));
    }
  }
}

TEST(DecoderFuzzTest, LengthsThatNobodySentReserveNothing) {
  // A header that claims 2^32-1, in every place where a frame may have one.
  for (const std::string_view header : {"dd", "df", "db", "c6", "c9"}) {
    const std::string claim = FromHex(header) + "\xff\xff\xff\xff";
    for (const std::string_view before :
         {"", "92c0", "92c091", "92c091dc0004", "92c09182a474797065",
          "92c09192ab426c6f636b53746f726564", "92c09192ab426c6f636b53746f72656491",
          "92c09195ab426c6f636b53746f72656490c0", "92c09195ab426c6f636b53746f72656490c091",
          "92c09199ab426c6f636b53746f72656490c09004c0c0c0",
          "92c09199ab426c6f636b53746f72656490c09004c0c0c091",
          "92c0919aab426c6f636b53746f72656490c09004c0c0c0c091",
          "92c09198ab426c6f636b53746f72656490c09004c0c0", "92c09181ad626c6f636b5f6f666673657473",
          "92c09181af636f6d706f6e656e745f7479706573", "92c09181ae636f6d706f6e656e745f74797065",
          "93c090", "82a2747301"}) {
      SCOPED_TRACE(std::string(before) + " " + std::string(header));
      const std::string payload = FromHex(before) + claim + std::string(40, '\x01');
      Fuzz(payload);
      EXPECT_LE(AllocatedFor(payload), MayAllocate(payload.size()));
    }
  }
}

TEST(DecoderFuzzTest, NestingOfAnyDepthCostsNothing) {
  for (const std::string_view level : {"91", "81c0", "92c0", "dd00000001", "dc0001"}) {
    std::string nested;
    for (size_t i = 0; i < 1'000'000; ++i) nested += FromHex(level);
    nested += "\xc0";
    const std::string payload = BatchOf(1, nested);
    EngineDecoder decoder;
    EngineBatch batch;
    ASSERT_TRUE(decoder.Decode(payload, &batch).ok());
    EXPECT_EQ(batch.refused.size(), 1u);
    EXPECT_EQ(batch.rank, 0);
    EXPECT_LE(AllocatedFor(payload), size_t{128 << 10});
    Fuzz(nested);
  }
}

TEST(DecoderFuzzTest, ManyFieldsThatFailCostOneTheirMemory) {
  // Each list of hashes is long and ends in what is no hash: what it took is given back.
  MsgpackWriter event;
  event.Map(200);
  for (int field = 0; field < 200; ++field) {
    event.Text("block_hashes").Array(1000);
    for (int hash = 0; hash < 999; ++hash) event.Unsigned(1);
    event.Bool(true);
  }
  const std::string payload = BatchOf(1, event.bytes());
  EXPECT_LE(AllocatedFor(payload), size_t{256 << 10});
  Fuzz(payload);
}

}  // namespace
}  // namespace kvatlas
