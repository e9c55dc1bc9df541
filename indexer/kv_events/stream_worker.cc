// Carries out what `StreamTracker` decided: decode and apply, or tell the engine's worker of
// losses. While the block size is unknown, payloads are kept as they came and are decoded again
// later: what a decoder returns lives only until its next call.

#include "indexer/kv_events/stream_worker.h"

#include <algorithm>
#include <utility>

#include "indexer/telemetry/log.h"

namespace kvatlas {

// Values take more room than their bytes in a payload, at most four times as much is allowed.
LaneDecoder::LaneDecoder(size_t payload_bytes_max)
    : decoder({.payload_bytes_max = payload_bytes_max,
               .memory_bytes_max =
                   std::min(DecoderOptions().memory_bytes_max, 4 * payload_bytes_max)}) {}

StreamWorker::StreamWorker(std::string name, uint32_t rank, std::shared_ptr<EngineWorker> worker)
    : name_(std::move(name)), rank_(rank), worker_(std::move(worker)) {}

StreamWorker::StreamWorker(Tap tap) : tap_(std::move(tap)) {}

void StreamWorker::Perform(StreamTracker::Action::Kind kind, std::string_view payload,
                           LaneDecoder* lane, Time now) {
  using Kind = StreamTracker::Action::Kind;
  if (tap_ != nullptr) return tap_(kind, payload);
  switch (kind) {
    case Kind::kApply:
      return Apply(payload, lane, now);
    case Kind::kLost:
      ForgetEarly();  // what it stored may be gone
      return worker_->Lost(rank_, now);
    case Kind::kRepaired:
      return worker_->Repaired(rank_);
    case Kind::kRestarted:
      ForgetEarly();
      return worker_->Restarted(rank_, now);
    case Kind::kAskReplay:
    case Kind::kEndReplay:
      return;
  }
}

// 1. Decode into the lane's batch.
// 2. While the worker has no block size: if this batch does not tell it, keep the payload (`Keep`);
//    if it does, apply the kept ones first, in order, and decode this one again, since the batch is
//    overwritten.
// 3. Apply.
//
// Another stream of the same worker may learn the size: this one notices with its next batch.
void StreamWorker::Apply(std::string_view payload, LaneDecoder* lane, Time now) {
  if (!Decode(payload, lane, now)) return;
  if (!knows_size_) {
    knows_size_ = worker_->Learn(lane->batch, now);
    if (!knows_size_) return Keep(payload);
    if (!early_.empty()) {
      for (const std::string& before : std::exchange(early_, {}))
        if (Decode(before, lane, now)) worker_->Apply(rank_, lane->batch, now);
      early_bytes_ = 0;
      Decode(payload, lane, now);
    }
  }
  worker_->Apply(rank_, lane->batch, now);
  if (lane->batch.time_s != 0)
    lag_ms_ = static_cast<double>(WallTimeNs()) / 1e6 - lane->batch.time_s * 1e3;
}

// A payload that is no batch may have removed something: it is a loss that no replay repairs.
bool StreamWorker::Decode(std::string_view payload, LaneDecoder* lane, Time now) {
  static LogLimiter limiter(std::chrono::seconds(10));
  const absl::Status decoded = lane->decoder.Decode(payload, &lane->batch);
  if (decoded.ok()) return true;
  ++undecodable_;
  LogEvery(limiter, name_, LogLevel::kWarning, "undecodable batch",
           {{"worker", name_}, {"rank", rank_}, {"reason", decoded}});
  worker_->Unreadable(rank_, now);
  return false;
}

void StreamWorker::Keep(std::string_view payload) {
  early_.emplace_back(payload);
  early_bytes_ += payload.size();
  for (; early_bytes_ > kEarlyBytesMax; early_.pop_front()) early_bytes_ -= early_.front().size();
}

void StreamWorker::ForgetEarly() {
  early_.clear();
  early_bytes_ = 0;
}

}  // namespace kvatlas
