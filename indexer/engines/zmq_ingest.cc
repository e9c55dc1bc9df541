#include "indexer/engines/zmq_ingest.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "indexer/engines/engine_decoder.h"
#include "indexer/engines/engine_event.h"
#include "indexer/engines/stream_sink.h"
#include "indexer/engines/zmq_streams.h"
#include "indexer/service/log.h"

namespace kvatlas {
namespace {

// What the streams of a lane share: its thread's memory for decoding.
struct LaneDecoder {
  explicit LaneDecoder(size_t payload_bytes_max)
      : decoder({.payload_bytes_max = payload_bytes_max,
                 .memory_bytes_max =
                     std::min(DecoderOptions().memory_bytes_max, 4 * payload_bytes_max)}) {}
  EngineDecoder decoder;
  EngineBatch batch;
};

LogLimiter& Limiter() {
  static LogLimiter limiter(std::chrono::seconds(10));
  return limiter;
}

class WorkerSink : public StreamSink {
 public:
  WorkerSink(std::string name, uint32_t rank, std::shared_ptr<EngineWorker> worker,
             LaneDecoder* lane)
      : name_(std::move(name)), rank_(rank), worker_(std::move(worker)), lane_(lane) {}

  void Apply(std::string_view payload, Time now) override {
    if (!Decode(payload, now)) return;
    if (!knows_size_) {
      knows_size_ = worker_->Learn(lane_->batch, now);
      if (!knows_size_) return Keep(payload);
      if (!early_.empty()) {
        for (const std::string& before : std::exchange(early_, {}))
          if (Decode(before, now)) worker_->Apply(rank_, lane_->batch, now);
        early_bytes_ = 0;
        Decode(payload, now);
      }
    }
    worker_->Apply(rank_, lane_->batch, now);
    if (lane_->batch.time_s != 0) {
      stats_.lag_ms = static_cast<double>(WallTimeNs()) / 1e6 - lane_->batch.time_s * 1e3;
    }
  }
  void Lost(Time now) override {
    early_.clear();
    early_bytes_ = 0;  // what they stored may be gone
    worker_->Lost(rank_, now);
  }
  void Repaired() override { worker_->Repaired(rank_); }
  void Restarted(Time now) override {
    early_.clear();
    early_bytes_ = 0;
    worker_->Restarted(rank_, now);
  }
  StreamSinkStats Stats() const override { return stats_; }

 private:
  static constexpr size_t kEarlyBytesMax = 1 << 20;

  // Into the lane's batch.
  bool Decode(std::string_view payload, Time now) {
    const absl::Status decoded = lane_->decoder.Decode(payload, &lane_->batch);
    if (decoded.ok()) return true;
    ++stats_.undecodable;
    LogEvery(Limiter(), name_, LogLevel::kWarning, "undecodable batch",
             {{"worker", name_}, {"rank", rank_}, {"reason", decoded}});
    worker_->Unreadable(rank_, now);  // it may have removed something
    return false;
  }

  // What came while the block size was unknown applies as soon as it is known, so that it does not matter what came first. Of too
  // much the oldest goes: its blocks are missing.
  void Keep(std::string_view payload) {
    early_.emplace_back(payload);
    early_bytes_ += payload.size();
    for (; early_bytes_ > kEarlyBytesMax; early_.pop_front()) early_bytes_ -= early_.front().size();
  }

  const std::string name_;
  const uint32_t rank_;
  const std::shared_ptr<EngineWorker> worker_;
  LaneDecoder* const lane_;
  StreamSinkStats stats_;
  bool knows_size_ = false;
  std::deque<std::string> early_;
  size_t early_bytes_ = 0;
};

}  // namespace

class ZmqIngest::Impl {
 public:
  explicit Impl(ZmqIngestOptions options) : streams(options) {
    for (size_t i = 0; i < streams.lanes(); ++i) {
      decoders.push_back(std::make_unique<LaneDecoder>(options.message_bytes_max));
    }
  }
  // Lanes are stopped before what they use goes.
  ~Impl() { streams.Stop(); }

  std::vector<std::unique_ptr<LaneDecoder>> decoders;
  ZmqStreams streams;
};

ZmqIngest::ZmqIngest(ZmqIngestOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
ZmqIngest::~ZmqIngest() = default;

absl::StatusOr<ZmqStreamId> ZmqIngest::Add(const ZmqSource& source,
                                           std::shared_ptr<EngineWorker> worker,
                                           std::optional<StreamPosition> resume) {
  const void* const group = worker.get();
  const auto make_sink = [&](size_t lane) {
    return std::make_unique<WorkerSink>(source.worker_name, source.rank, worker,
                                        impl_->decoders[lane].get());
  };
  return impl_->streams.Add(source, group, make_sink, resume);
}

void ZmqIngest::Remove(ZmqStreamId stream) { impl_->streams.Remove(stream); }

absl::Status ZmqIngest::ResumeFrom(ZmqStreamId stream, const StreamPosition& position,
                                   bool earlier) {
  return impl_->streams.ResumeFrom(stream, position, earlier);
}

absl::Status ZmqIngest::Pause(ZmqStreamId stream) { return impl_->streams.Pause(stream); }
absl::Status ZmqIngest::Resume(ZmqStreamId stream) { return impl_->streams.Resume(stream); }
void ZmqIngest::OpenGate() { impl_->streams.OpenGate(); }

absl::Status ZmqIngest::WithPosition(
    ZmqStreamId stream, const std::function<void(std::optional<StreamPosition>)>& cut) {
  return impl_->streams.WithPosition(stream, cut);
}

absl::StatusOr<ZmqStreamStats> ZmqIngest::Stats(ZmqStreamId stream) const {
  return impl_->streams.Stats(stream);
}

absl::StatusOr<std::string> ZmqIngest::BoundEndpoint(ZmqStreamId stream) const {
  return impl_->streams.BoundEndpoint(stream);
}

void ZmqIngest::Stop() { impl_->streams.Stop(); }

const EngineAddresses& ZmqIngest::addresses() const { return impl_->streams.addresses(); }

}  // namespace kvatlas
