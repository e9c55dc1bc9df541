// A frame: time, rank and events, in an array or a map. Events are read one after the other by
// `EventReader`; here is decided what a frame is worth that is broken somewhere.
//
//   broken                                   result
//   before the first event                   an error: no batch
//   an event that can be skipped             the others, and its refusal in `refused`
//   an event without an end, or behind them  those before, one malformed event, `lost_before`

#include "indexer/kv_events/engine_decoder.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "indexer/kv_events/decoder_arena.h"
#include "indexer/kv_events/decoder_event.h"
#include "indexer/kv_events/decoder_fields.h"
#include "indexer/kv_events/decoder_values.h"
#include "indexer/kv_events/msgpack_reader.h"

namespace kvatlas {
namespace {

// Engines write seconds or milliseconds: a number from here on is milliseconds. As seconds it would
// be the year 5138, as milliseconds March of 1973.
constexpr double kMillisecondsFrom = 1e11;

double SecondsOf(const MsgpackInteger& time) {
  const double number = time.negative ? static_cast<double>(static_cast<int64_t>(time.bits))
                                      : static_cast<double>(time.bits);
  return number >= kMillisecondsFrom ? number / 1000 : number;
}

absl::Status NotABatch(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("no batch of events: ", what));
}

}  // namespace

struct EngineDecoder::State {
  explicit State(const DecoderOptions& options)
      : options(options), arena(options.memory_bytes_max) {}

  absl::Status DecodeArray(MsgpackReader* in, EngineBatch* batch);
  absl::Status DecodeMap(MsgpackReader* in, EngineBatch* batch);
  absl::Status DecodeEvents(MsgpackReader* in, EngineBatch* batch);
  bool ReadTime(MsgpackReader* in, EngineBatch* batch);
  bool ReadRank(MsgpackReader* in, EngineBatch* batch);
  // The events behind those read so far are unknown, and so is the rank of all of them.
  static void RefuseRest(EngineBatch* batch) {
    batch->refused.push_back(Refusal::kMalformed);
    batch->lost_before = batch->events.size();
  }

  const DecoderOptions options;
  DecoderArena arena;
  KeyReader keys;
  bool lost = false;  // where the last event ends is not known
};

EngineDecoder::EngineDecoder(const DecoderOptions& options)
    : state_(std::make_unique<State>(options)) {}

EngineDecoder::~EngineDecoder() = default;

// `batch` is reused: its memory stays. Its views point into `payload` and into the arena, which the
// next call takes back.
absl::Status EngineDecoder::Decode(std::string_view payload, EngineBatch* batch) {
  batch->time_s = 0;
  batch->rank.reset();
  batch->events.clear();
  batch->refused.clear();
  batch->lost_before.reset();
  batch->unknown_before.reset();
  state_->arena.Reset();
  state_->lost = false;
  if (payload.size() > state_->options.payload_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat("a payload of ", payload.size(), " bytes"));
  }
  MsgpackReader in(payload);
  switch (in.Peek()) {
    case MsgpackType::kArray:
      return state_->DecodeArray(&in, batch);
    case MsgpackType::kMap:
      return state_->DecodeMap(&in, batch);
    default:
      return NotABatch("neither an array nor a map");
  }
}

// [time, [event…], rank?, …]
absl::Status EngineDecoder::State::DecodeArray(MsgpackReader* in, EngineBatch* batch) {
  uint32_t values = 0;
  if (!in->ReadArray(&values) || values < 2 || !ReadTime(in, batch)) {
    return NotABatch("it does not begin with a time and events");
  }
  if (absl::Status status = DecodeEvents(in, batch); !status.ok() || lost) return status;
  if (values > 2 && !ReadRank(in, batch)) RefuseRest(batch);
  return absl::OkStatus();
}

// {"ts": time, "events": [event…], "data_parallel_rank": rank}, in any order.
absl::Status EngineDecoder::State::DecodeMap(MsgpackReader* in, EngineBatch* batch) {
  uint32_t pairs = 0;
  bool has_events = false;
  bool whole = in->ReadMap(&pairs);
  for (; whole && pairs > 0; --pairs) {
    std::string_view key;
    whole = in->Peek() == MsgpackType::kText ? in->ReadText(&key) : in->Skip();
    if (!whole) break;
    if (key == "ts") {
      whole = ReadTime(in, batch);
    } else if (key == "data_parallel_rank") {
      whole = ReadRank(in, batch);
    } else if (key == "events" && !has_events) {
      if (absl::Status status = DecodeEvents(in, batch); !status.ok() || lost) return status;
      has_events = true;
    } else {
      whole = in->Skip();
    }
  }
  if (!has_events) return NotABatch("a map without events");
  if (!whole) RefuseRest(batch);
  return absl::OkStatus();
}

absl::Status EngineDecoder::State::DecodeEvents(MsgpackReader* in, EngineBatch* batch) {
  if (in->Peek() != MsgpackType::kArray) return NotABatch("its events are no array");
  uint32_t events = 0;
  // An array with more values than bytes is cut off somewhere: the values that are there are read.
  const bool whole = in->ReadArray(&events);
  if (!whole && events == 0) return NotABatch("its events are cut off");
  if (events > options.events_max) {
    return absl::ResourceExhaustedError(absl::StrCat("a batch of ", events, " events"));
  }
  EventReader reader({.in = in, .arena = &arena, .hash_bytes_max = options.hash_bytes_max}, &keys);
  for (; events > 0; --events) {
    const DecoderArena::Mark mark = arena.mark();
    const EventReader::Outcome outcome = reader.Read(&batch->events.emplace_back());
    if (outcome == EventReader::Outcome::kDecoded) continue;
    batch->events.pop_back();
    arena.Release(mark);
    lost = outcome == EventReader::Outcome::kLost;
    if (lost) {
      RefuseRest(batch);
      break;
    }
    batch->refused.push_back(reader.refusal());
    if (reader.doubt() == EventReader::Doubt::kLost) batch->lost_before = batch->events.size();
    if (reader.doubt() == EventReader::Doubt::kUnknown)
      batch->unknown_before = batch->events.size();
  }
  return absl::OkStatus();
}

// False: the value has no end. A time of another type, or one that is no finite number, is 0.
bool EngineDecoder::State::ReadTime(MsgpackReader* in, EngineBatch* batch) {
  MsgpackInteger integer;
  double seconds = 0;
  batch->time_s = 0;
  switch (in->Peek()) {
    case MsgpackType::kInteger:
      if (!in->ReadInteger(&integer)) return false;
      batch->time_s = SecondsOf(integer);
      return true;
    case MsgpackType::kFloat:
      if (!in->ReadFloat(&seconds)) return false;
      batch->time_s = std::isfinite(seconds) ? seconds : 0;
      return true;
    default:
      return in->Skip();
  }
}

// False: the rank cannot be known, and with it whose events these are. Nil is none.
bool EngineDecoder::State::ReadRank(MsgpackReader* in, EngineBatch* batch) {
  MsgpackInteger integer;
  batch->rank.reset();
  if (in->Peek() == MsgpackType::kNil) return in->Skip();
  if (in->Peek() != MsgpackType::kInteger) return false;
  if (!in->ReadInteger(&integer)) return false;
  batch->rank = static_cast<int64_t>(integer.bits);
  return true;
}

}  // namespace kvatlas
