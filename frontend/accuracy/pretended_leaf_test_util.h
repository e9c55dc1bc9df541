// A cell's index for tests of diagnoses: as it should be, but for what its options say of a
// publisher, of lateness and of names.

#ifndef KVATLAS_FRONTEND_ACCURACY_PRETENDED_LEAF_TEST_UTIL_H_
#define KVATLAS_FRONTEND_ACCURACY_PRETENDED_LEAF_TEST_UTIL_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "frontend/accuracy/evidence.h"
#include "frontend/accuracy/fleet_test_util.h"
#include "frontend/accuracy/leaf_prober.h"
#include "frontend/router/lookup_clients.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"

namespace kvatlas {

inline constexpr uint32_t kPretendedBlockSize = 16;

// An index that has what workers announce, by the contract's names.
class PretendedLeaf : public AnnouncementSink, public OverlapFinder, public LeafProber {
 public:
  struct Options {
    uint64_t publisher_seed = kDefaultHashSeed;
    HolderId seed_of = {};    // whose publisher has that seed
    bool publishers = false;  // hash themselves and are believed, whatever their block size
    HolderId late = {};
    Duration by{0};
    std::map<HolderId, HolderId> names = {};  // that their events are registered under
    Duration lag{0};                          // of all workers
  };
  PretendedLeaf(Options options, const Clock* clock)
      : options_(std::move(options)), clock_(clock) {}

  void Add(const HolderId& worker) { holders_[worker]; }
  void Silence(const HolderId& worker) {
    holders_[worker].masked = true;
    holders_[worker].silent_since = clock_->Now();
  }

  void Served(const HolderId& worker) { holders_[worker].served.push_back(clock_->Now()); }

  void Announce(const HolderId& engine, const Announcement& announcement) override {
    const auto name = options_.names.find(engine);
    const HolderId worker = name == options_.names.end() ? engine : name->second;
    const Duration by = options_.late == worker ? options_.by : options_.lag;
    underway_.push_back({clock_->Now() + by, worker, announcement});
    Arrive();
  }

  void FindOverlaps(const std::string&, const OverlapQuestion& question, Duration,
                    OverlapFinder::Callback callback) override {
    Arrive();
    WorkersAnswer answer{.workers = {}, .block_size = kPretendedBlockSize};
    for (const auto& [worker, holder] : holders_) {
      if (holder.masked) continue;
      uint32_t blocks = 0;
      while (blocks < question.sequence.size() && holder.blocks.contains(question.sequence[blocks]))
        ++blocks;
      Load load;
      for (Time at : holder.served)
        load.running_requests += at + std::chrono::seconds(8) > clock_->Now();
      answer.workers.push_back({.worker = worker, .blocks = blocks, .load = load});
    }
    callback(std::move(answer));
  }

  void Probe(const std::string&, const Domain&, Duration, LeafProber::Callback callback) override {
    Arrive();
    LeafAnswer answer{
        .contract = HashContract().Id(), .block_size = kPretendedBlockSize, .workers = {}};
    for (const auto& [worker, holder] : holders_) {
      LeafView& view = answer.workers[worker];
      view.known = true;
      view.masked = holder.masked;
      view.connected = !holder.masked;
      if (holder.masked) view.age = clock_->Now() - holder.silent_since;
      view.blocks = holder.blocks.size();
      view.batches = holder.batches;
      view.engine.emplace();
      view.engine->block_size = kPretendedBlockSize;
      if (holder.refused > 0) view.engine->refused["block_size"] = holder.refused;
    }
    callback(std::move(answer));
  }

 private:
  struct Named {
    SequenceHash block;
    std::string lora_name, cache_salt;
  };
  struct HolderState {
    std::set<SequenceHash> blocks;
    std::map<uint64_t, Named> names;
    std::vector<Time> served;
    uint64_t batches = 0, refused = 0;
    bool masked = false;
    Time silent_since{0};
  };
  struct Underway {
    Time at;
    HolderId worker;
    Announcement announcement;
  };

  void Arrive() {
    for (auto at = underway_.begin(); at != underway_.end();) {
      if (at->at > clock_->Now()) {
        ++at;
        continue;
      }
      Apply(at->worker, at->announcement);
      at = underway_.erase(at);
    }
  }

  void Apply(const HolderId& worker, const Announcement& said) {
    HolderState& holder = holders_[worker];
    if (holder.masked) return;
    ++holder.batches;
    if (said.kind == Announcement::Kind::kRemoved) {
      for (uint64_t name : said.names) {
        const auto named = holder.names.find(name);
        if (named == holder.names.end()) continue;
        holder.blocks.erase(named->second.block);
        holder.names.erase(named);
      }
      return;
    }
    if (said.block_size != kPretendedBlockSize && !options_.publishers) {
      ++holder.refused;
      return;
    }
    const HashContract contract{.seed = options_.seed_of == worker ? options_.publisher_seed
                                                                   : kDefaultHashSeed};
    SequenceHash parent = kNoParent;
    if (said.parent != 0) {
      const auto named = holder.names.find(said.parent);
      if (named == holder.names.end()) return;
      parent = named->second.block;
    }
    const uint64_t seed =
        BlockSeed({.lora_name = said.lora_name, .cache_salt = said.cache_salt}, contract);
    const std::vector<SequenceHash> blocks = SequenceHashesAfter(
        parent, LocalHashes(said.tokens, {.block_size = said.block_size}, seed), contract);
    for (size_t i = 0; i < blocks.size(); ++i) {
      holder.blocks.insert(blocks[i]);
      holder.names[said.names[i]] = {blocks[i], said.lora_name, said.cache_salt};
    }
  }

  const Options options_;
  const Clock* const clock_;
  std::map<HolderId, HolderState> holders_;
  std::deque<Underway> underway_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_PRETENDED_LEAF_TEST_UTIL_H_
