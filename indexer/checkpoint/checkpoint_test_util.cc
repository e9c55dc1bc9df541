#include "indexer/checkpoint/checkpoint_test_util.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

constexpr uint64_t kSequences = 40;
constexpr uint64_t kSequenceBlocks = 60;

// A block of a small world, in which sequences share their beginnings.
SequenceHash BlockAt(uint64_t sequence, uint64_t position) {
  const uint64_t shared = sequence - sequence % (position < 20 ? 8 : 1);
  return SequenceHash{1 + shared * 1000 + position};
}

}  // namespace

CacheLayout TestLayout() {
  return {.main = {.block_size = 16},
          .sides = {{.kind = CacheKind::kWindow, .block_size = 16, .window_tokens = 31},
                    {.kind = CacheKind::kState, .block_size = 32}}};
}

Contents ContentsOf(const std::vector<Stored>& runs) {
  Contents contents;
  for (const Stored& run : runs) {
    for (size_t i = 0; i < run.blocks.size(); ++i) {
      if (run.side != 0) {
        contents.emplace(static_cast<int>(run.tier), Raw(run.blocks[i]), kSidePosition, 0);
        continue;
      }
      const SequenceHash parent = i == 0 ? run.parent : run.blocks[i - 1];
      contents.emplace(static_cast<int>(run.tier), Raw(run.blocks[i]),
                       run.position + static_cast<Position>(i), Raw(parent));
    }
  }
  return contents;
}

TestPublisher::TestPublisher(Domain domain, const std::string& name, Epoch epoch,
                             const SenderOptions& options, const Clock* clock)
    : clock_(clock),
      identity_{.holder = {name, 0, ""},
                .domain = std::move(domain),
                .block_size = 16,
                .contract_id = HashContract().Id(),
                .schedule = "",
                .address = "10.0.0.1:1",
                .labels = {{"zone", "a"}},
                .epoch = epoch,
                .instance_id = epoch + 77},
      sender_(std::make_unique<StreamSender>(options, identity_, &resident_)) {}

void TestPublisher::Change(const Event& event) {
  sender_->Append(resident_.Apply(event), std::nullopt, clock_->Now());
}

void TestPublisher::BecomeHybrid() {
  if (resident_.SetLayout(TestLayout())) sender_->NoteLayout();
}

void TestPublisher::ChangeSomething(std::mt19937_64* random) {
  const auto below = [&](uint64_t limit) { return (*random)() % limit; };
  const Tier tier = static_cast<Tier>(below(10) < 7 ? 0 : below(kTiers));
  const uint64_t sequence = below(kSequences);
  const uint64_t from = below(2) == 0 ? 0 : below(kSequenceBlocks);
  const uint64_t to = from + 1 + below(kSequenceBlocks - from);
  std::vector<SequenceHash> blocks;
  for (uint64_t position = from; position < to; ++position)
    blocks.push_back(BlockAt(sequence, position));
  if (const size_t sides = layout().sides.size(); sides != 0 && below(3) == 0) {
    const uint64_t side = below(sides);
    for (SequenceHash& block : blocks) block = SideName(SideTag(layout().sides[side]), block);
    const auto number = static_cast<SideClass>(side + 1);
    if (below(2) == 0) return Change(Stored{.tier = tier, .blocks = blocks, .side = number});
    return Change(Removed{.tier = tier, .blocks = blocks, .side = number});
  }
  const uint64_t kind = below(100);
  if (kind == 99) return BecomeHybrid();
  if (kind < 60) {
    Change(Stored{.tier = tier,
                  .position = static_cast<Position>(from),
                  .parent = from == 0 ? kNoParent : BlockAt(sequence, from - 1),
                  .blocks = std::move(blocks)});
  } else if (kind < 98) {
    std::shuffle(blocks.begin(), blocks.end(), *random);
    blocks.resize(1 + blocks.size() / 2);
    Change(Removed{.tier = tier, .blocks = std::move(blocks)});
  } else {
    Change(Cleared{.tiers = below(2) == 0 ? TierMask::All() : TierMask(tier)});
  }
}

void TestPublisher::Connect(HolderRegistry* registry) {
  Disconnect();
  session_ =
      registry->Accept([this](ReceiverMessage message) { replies_.push_back(std::move(message)); });
  sender_->OnConnected(clock_->Now());
}

void TestPublisher::Disconnect() {
  if (session_ == nullptr) return;
  session_.reset();
  replies_.clear();
  sender_->OnDisconnected(clock_->Now());
}

bool TestPublisher::Exchange(int messages) {
  while (messages-- > 0 && session_ != nullptr) {
    if (!replies_.empty()) {
      const ReceiverMessage reply = std::move(replies_.front());
      replies_.pop_front();
      if (!sender_->OnMessage(reply, clock_->Now()).ok()) Disconnect();
      continue;
    }
    std::optional<SenderMessage> message = sender_->Poll(clock_->Now());
    if (!message.has_value()) return false;
    if (!session_->OnMessage(*std::move(message)).ok()) Disconnect();
  }
  return session_ != nullptr;
}

bool TestPublisher::AtRest() const {
  return sender_->welcomed() && !sender_->snapshot_owed() && replies_.empty() &&
         sender_->acknowledged() == sender_->last_number();
}

CheckpointedLeaf::CheckpointedLeaf(const Clock* clock, FileLayer* files,
                                   const std::string& directory, uint32_t keep,
                                   IndexOptions index) {
  HolderRegistryOptions options;
  options.contract_id = HashContract().Id();
  options.clock = clock;
  options.index = index;
  registry_ = std::make_unique<HolderRegistry>(std::move(options));
  CheckpointOptions checkpoint;
  checkpoint.directory = directory;
  checkpoint.keep = keep;
  checkpoint.cell = kTestCell;
  checkpoint.files = files;
  checkpointer_ =
      std::make_unique<Checkpointer>(std::move(checkpoint), registry_.get(), nullptr, &metrics_);
}

AllContents CheckpointedLeaf::Contents() const {
  AllContents all;
  for (const Domain& domain : registry_->Domains())
    for (const HolderId& holder : registry_->HoldersOf(domain))
      all[{domain, holder}] = ContentsOf(registry_->Dump(domain, holder)->runs);
  return all;
}

CacheLayout CheckpointedLeaf::LayoutOf(const Domain& domain, const HolderId& holder) const {
  const absl::StatusOr<HolderDump> dump = registry_->Dump(domain, holder);
  return dump.ok() ? dump->layout : CacheLayout();
}

std::optional<HolderOverlap> CheckpointedLeaf::AnswerOf(const Domain& domain,
                                                        const HolderId& holder,
                                                        std::vector<SequenceHash> prompt) const {
  const absl::StatusOr<OverlapAnswer> answer =
      registry_->FindOverlaps(domain, {.blocks = prompt}, /*all_holders=*/true);
  if (!answer.ok()) return std::nullopt;
  for (const HolderOverlap& overlap : answer->holders)
    if (overlap.holder->id == holder) return overlap;
  return std::nullopt;
}

}  // namespace kvatlas
