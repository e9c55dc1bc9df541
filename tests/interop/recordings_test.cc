// Do we know exactly what real engines held? Their recorded streams go through the tracker, the
// decoder, the workers and an index; then every recorded question must find what the engine's own
// pool had of its main class. What of that can be reused is asked of a whole leaf, in
// recordings_leaf_test.cc.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/index/index.h"
#include "indexer/kv_events/engine_decoder.h"
#include "indexer/kv_events/engine_event.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/stream_tracker.h"
#include "tests/interop/recording.h"

namespace kvatlas {
namespace {

constexpr char kFolder[] = "tests/interop/recordings";

class IndexWriter : public HoldingsWriter {
 public:
  IndexWriter(Index* index, HolderIndex holder) : index_(index), holder_(holder) {}
  Applied Apply(std::span<const Event> events) override {
    return ApplyInOrder(events, [this](const Event& event, uint64_t* changed) {
      *changed = UINT64_MAX;
      return index_->Apply(holder_, event, nullptr);
    });
  }
  void SetTrust(Trust) override {}

 private:
  Index* const index_;
  const HolderIndex holder_;
};

// All streams of a recording into one index, as a leaf would have them for one model.
class Listener {
 public:
  explicit Listener(const Recording& recording)
      : recording_(recording), index_(*MakeIndex("atlas", {})) {
    for (const Recording::Stream& stream : recording.streams) {
      std::unique_ptr<EngineWorker>& worker = workers_[stream.instance];
      if (worker == nullptr) worker = MakeWorker(stream);
      trackers_.push_back(std::make_unique<StreamTracker>(TrackerOptions{.can_replay = true}));
    }
  }

  // A message as it arrives; what a replay would bring is taken from the recording.
  void Hear(size_t frame) {
    const Recording::Frame& message = recording_.frames[frame];
    now_ += std::chrono::milliseconds(1);
    std::vector<StreamTracker::Action> actions;
    trackers_[message.stream]->OnLive(message.number, message.payload, now_, &actions);
    Act(message.stream, frame, std::move(actions));
  }

  uint32_t Reach(const Recording::Question& question, size_t stream) const {
    const Recording::Stream& of = recording_.streams[stream];
    const auto holder = holders_.find({of.instance, of.rank});
    if (holder == holders_.end()) return 0;
    uint32_t reach = 0;
    for (const bool eagle : {false, true}) {
      const std::vector<SequenceHash> blocks =
          SequenceHashes(LocalHashes(question.tokens, {.block_size = of.block_size, .eagle = eagle},
                                     BlockSeed({question.lora_name, question.cache_salt})));
      std::vector<Overlap> overlaps;
      index_->FindOverlaps({.blocks = blocks}, &overlaps);
      for (const Overlap& overlap : overlaps) {
        if (overlap.holder == holder->second) reach = std::max(reach, overlap.blocks);
      }
    }
    return reach;
  }

  // Events and blocks that had no effect, as text.
  std::string Refused() const {
    std::string refused;
    for (const auto& [name, worker] : workers_) {
      const EngineWorkerStats stats = worker->Stats();
      // Names of parts of blocks are no mistake, nor are their removals.
      const bool parts = stats.refused[static_cast<size_t>(Refusal::kPartBlock)] != 0;
      for (size_t i = 0; i < kRefusals; ++i) {
        const Refusal refusal = static_cast<Refusal>(i);
        if (stats.refused[i] == 0 || refusal == Refusal::kNotMainAttention) continue;
        if (parts && (refusal == Refusal::kPartBlock || refusal == Refusal::kUnknownRemoved))
          continue;
        refused += name + ": " + std::to_string(stats.refused[i]) + " " +
                   std::string(RefusalName(static_cast<Refusal>(i))) + " (" + stats.last_refusal +
                   ") ";
      }
    }
    return refused;
  }

 private:
  std::unique_ptr<EngineWorker> MakeWorker(const Recording::Stream& stream) {
    return std::make_unique<EngineWorker>(
        EngineWorkerOptions{.name = stream.instance, .block_size = stream.block_size},
        [this,
         name = stream.instance](uint32_t rank) -> absl::StatusOr<std::shared_ptr<HoldingsWriter>> {
          absl::StatusOr<HolderIndex> holder = index_->AddHolder();
          if (!holder.ok()) return holder.status();
          holders_[{name, rank}] = *holder;
          return std::make_shared<IndexWriter>(index_.get(), *holder);
        });
  }

  void Act(uint32_t stream, size_t frame, std::vector<StreamTracker::Action> actions) {
    const Recording::Stream& of = recording_.streams[stream];
    EngineWorker& worker = *workers_[of.instance];
    for (StreamTracker::Action& action : actions) {
      switch (action.kind) {
        case StreamTracker::Action::Kind::kApply: {
          EngineBatch batch;
          const absl::Status decoded = decoder_.Decode(action.payload, &batch);
          ASSERT_TRUE(decoded.ok()) << decoded;
          ASSERT_TRUE(batch.refused.empty());
          worker.Apply(of.rank, batch, now_);
          break;
        }
        case StreamTracker::Action::Kind::kLost:
          worker.Lost(of.rank, now_);
          break;
        case StreamTracker::Action::Kind::kRepaired:
          worker.Repaired(of.rank);
          break;
        case StreamTracker::Action::Kind::kRestarted:
          worker.Restarted(of.rank, now_);
          break;
        case StreamTracker::Action::Kind::kAskReplay:
          Replay(stream, frame, action.from);
          break;
        case StreamTracker::Action::Kind::kEndReplay:
          break;
      }
    }
  }

  // What the engine's window has by now, which is everything since its start.
  void Replay(uint32_t stream, size_t frame, uint64_t from) {
    size_t start = frame;
    for (size_t i = frame + 1; i-- > 0;) {
      if (recording_.frames[i].stream != stream) continue;
      start = i;
      if (recording_.frames[i].number == 0) break;
    }
    for (size_t i = start; i <= frame; ++i) {
      const Recording::Frame& message = recording_.frames[i];
      if (message.stream != stream || message.number < from) continue;
      std::vector<StreamTracker::Action> actions;
      trackers_[stream]->OnReplayed(message.number, message.payload, now_, &actions);
      Act(stream, frame, std::move(actions));
    }
    std::vector<StreamTracker::Action> actions;
    trackers_[stream]->OnReplayEnd(now_, &actions);
    Act(stream, frame, std::move(actions));
  }

  const Recording& recording_;
  Time now_{1};
  std::unique_ptr<Index> index_;
  std::map<std::pair<std::string, uint32_t>, HolderIndex> holders_;
  std::map<std::string, std::unique_ptr<EngineWorker>> workers_;
  std::vector<std::unique_ptr<StreamTracker>> trackers_;
  EngineDecoder decoder_;
};

std::vector<std::string> RecordingNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".rec.gz")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

class RecordingsTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    absl::StatusOr<Recording> read = ReadRecording(std::string(kFolder) + "/" + GetParam());
    ASSERT_TRUE(read.ok()) << read.status();
    recording_ = *std::move(read);
  }

  void ExpectExact(const Listener& listener) {
    size_t asked = 0, wrong = 0;
    for (const Recording::Question& question : recording_.questions) {
      for (size_t stream = 0; stream < recording_.streams.size(); ++stream) {
        if (!recording_.streams[stream].layout.has_main) continue;
        ++asked;
        const uint32_t reach = listener.Reach(question, stream);
        if (reach == question.held[stream] || ++wrong > 5) continue;
        ADD_FAILURE() << "a prompt of " << question.tokens.size() << " tokens, salt '"
                      << question.cache_salt << "', adapter '" << question.lora_name
                      << "': the engine of stream " << stream << " holds " << question.held[stream]
                      << " blocks, found " << reach;
      }
    }
    EXPECT_EQ(wrong, 0u) << "of " << asked << "; " << recording_.about;
  }

  Recording recording_;
};

TEST_P(RecordingsTest, EveryPromptIsFoundAsDeepAsItsEngineHoldsIt) {
  Listener listener(recording_);
  for (size_t i = 0; i < recording_.frames.size(); ++i) {
    // The first message that is heard reveals those that were missed.
    const Recording::Frame& frame = recording_.frames[i];
    if (frame.number >= recording_.streams[frame.stream].live_from) listener.Hear(i);
  }
  ExpectExact(listener);
  EXPECT_EQ(listener.Refused(), "");
}

TEST_P(RecordingsTest, MessagesLostOnTheWayComeBackByReplay) {
  Listener listener(recording_);
  std::vector<size_t> last(recording_.streams.size(), 0);
  for (size_t i = 0; i < recording_.frames.size(); ++i) last[recording_.frames[i].stream] = i;
  for (size_t i = 0; i < recording_.frames.size(); ++i) {
    const Recording::Frame& frame = recording_.frames[i];
    const bool lost = frame.number % 7 == 3 || frame.number % 7 == 4;
    if (!lost || i == last[frame.stream]) listener.Hear(i);
  }
  ExpectExact(listener);
}

INSTANTIATE_TEST_SUITE_P(Recordings, RecordingsTest, testing::ValuesIn(RecordingNames()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           std::string name = info.param.substr(0, info.param.find('.'));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(RecordingTest, AllThatWasRecordedIsThere) { EXPECT_EQ(RecordingNames().size(), 73u); }

TEST(RecordingTest, WhatIsNoRecordingIsRefused) {
  EXPECT_EQ(ReadRecording("tests/interop/recordings/none.rec.gz").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadRecording("tests/interop/recordings/README.md").status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kvatlas
