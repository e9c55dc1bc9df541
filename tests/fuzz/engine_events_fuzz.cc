// Messages of an engine's socket, as frames, into what is held of it: the index has what the names
// have.

#include <zmq.h>

#include "absl/status/status.h"
#include "indexer/kv_events/engine_decoder.h"
#include "indexer/kv_events/engine_worker_test_util.h"
#include "indexer/kv_events/zmq_socket.h"
#include "publisher/zmq_events.h"
#include "tests/fuzz/fuzz.h"

namespace kvatlas {
namespace {

// Two ends in this process: what is sent is there at once.
class Pair {
 public:
  Pair() : context_(zmq_ctx_new()), to_(zmq_socket(context_, ZMQ_PAIR)) {
    FuzzCheck(zmq_bind(to_, "inproc://fuzz") == 0, "no socket");
    absl::StatusOr<ZmqSocket> from = ZmqSocket::Make(context_, ZMQ_PAIR);
    FuzzCheck(from.ok() && from->Connect("inproc://fuzz").ok(), "no socket");
    from_ = *std::move(from);
  }

  // Frames are cut by a byte that says how long they are; the last one has the rest.
  bool Deliver(std::string_view bytes, size_t frames_max, ZmqFrames* frames) {
    size_t frame = 0;
    for (; frame + 1 < frames_max && bytes.size() > 1; ++frame) {
      const size_t size = std::min<size_t>(static_cast<uint8_t>(bytes[0]) % 16, bytes.size() - 1);
      zmq_send(to_, bytes.data() + 1, size, ZMQ_SNDMORE | ZMQ_DONTWAIT);
      bytes.remove_prefix(1 + size);
    }
    zmq_send(to_, bytes.data(), bytes.size(), ZMQ_DONTWAIT);
    return frames->Receive(from_) == ZmqFrames::Result::kMessage;
  }

 private:
  void* const context_;
  void* const to_;
  ZmqSocket from_;
};

const AddFuzzSeeds kSeeds([] {
  std::vector<std::string> all;
  const std::vector<uint64_t> blocks = {1, 2, 3, 4};
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < 16; ++token) tokens.push_back(token);
  for (const ZmqEventForm form : {ZmqEventForm::kMap, ZmqEventForm::kLegacyArray}) {
    ZmqEventEncoder encoder(form, /*block_size=*/4, /*rank=*/0);
    encoder.Stored({.hashes = blocks, .tokens = tokens});
    encoder.Removed(Tier::kDevice, std::span(blocks).last(2));
    const std::string payload(encoder.Finish(1.0));
    // Three frames: a topic, a number, the payload.
    all.push_back(std::string("\x02\x02kv\x08\0\0\0\0\0\0\0\x01", 13) + payload);
  }
  return all;
}());

}  // namespace

}  // namespace kvatlas

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvatlas;  // NOLINT: the whole of this file
  static auto* const pair = new Pair;
  static auto* const decoder = new EngineDecoder;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t frames_max = 1 + FuzzChoice(&input, 4);
  ZmqFrames frames;
  FuzzCheck(pair->Deliver(input, frames_max, &frames), "a message that does not come");
  FuzzCheck(frames.count() <= frames_max && frames.bytes() <= size, "more than was sent");
  frames.number();
  EngineBatch batch;
  if (!decoder->Decode(frames.payload(), &batch).ok()) return 0;
  TestWorker worker;
  worker->Apply(/*stream_rank=*/0, batch, worker.now());
  worker.Advance(std::chrono::hours(1));
  for (const EngineRankStats& rank : worker->Stats().ranks) {
    uint64_t held = 0;
    for (const uint64_t blocks : rank.blocks) held += blocks;
    if (held == 0) FuzzCheck(worker.Holdings(rank.rank).empty(), "the index holds more than names");
  }
  return 0;
}
