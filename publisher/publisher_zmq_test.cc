// A consumer that is not ours, after hearing all events of an engine.

#include <gtest/gtest.h>

#include <map>
#include <msgpack.hpp>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "indexer/base/await.h"
#include "indexer/base/test_seed.h"
#include "publisher/publisher.h"

namespace kvatlas {
namespace {

constexpr uint32_t kBlockSize = 4;
constexpr std::chrono::seconds kLong(30);

using Fields = std::map<std::string, msgpack::object>;
// Copies by (medium, engine hash).
using Copies = std::map<std::pair<std::string, uint64_t>, int>;

std::unique_ptr<Publisher> Make(PublisherOptions options = {}) {
  options.worker = "w";
  options.domain = {"m", ""};
  options.block_size = kBlockSize;
  options.zmq.endpoint = "tcp://127.0.0.1:0";
  options.zmq.replay_endpoint = "tcp://127.0.0.1:0";
  auto made = Publisher::Create(options);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

// A consumer that counts copies, and asks for everything from the start.
class Consumer {
 public:
  explicit Consumer(Publisher* publisher) {
    EXPECT_TRUE(publisher->WaitAcknowledged(kLong));  // worked off: every batch has its number
    ZmqPublisherStats stats;
    const auto sent = [&] {
      stats = *publisher->Stats().zmq;
      return stats.batches_sent + stats.batches_lost >= stats.next_number;
    };
    EXPECT_TRUE(Await(sent, std::chrono::seconds(60)));
    zmq::context_t context;
    zmq::socket_t dealer(context, zmq::socket_type::dealer);
    dealer.set(zmq::sockopt::linger, 0);
    dealer.set(zmq::sockopt::rcvtimeo, 30000);
    dealer.connect(stats.replay_endpoint);
    dealer.send(zmq::message_t(), zmq::send_flags::sndmore);
    dealer.send(zmq::buffer(std::string(8, '\0')), zmq::send_flags::none);
    for (std::string payload; !(payload = LastFrame(dealer)).empty();) {
      const msgpack::object_handle batch = msgpack::unpack(payload.data(), payload.size());
      rank_ = batch->via.array.ptr[2].as<int>();
      for (Fields fields : batch->via.array.ptr[1].as<std::vector<Fields>>()) Apply(fields);
    }
  }

  const Copies& copies() const { return copies_; }
  const std::vector<std::string>& types() const { return types_; }
  int rank() const { return rank_; }

 private:
  static std::string LastFrame(zmq::socket_t& dealer) {
    for (;;) {
      zmq::message_t message;
      const bool received = dealer.recv(message).has_value();
      EXPECT_TRUE(received);
      if (!received || !message.more()) return message.to_string();
    }
  }

  void Apply(Fields& fields) {
    types_.push_back(fields["type"].as<std::string>());
    if (types_.back() == "AllBlocksCleared") return copies_.clear();
    const auto medium = fields["medium"].as<std::string>();
    for (const uint64_t hash : fields["block_hashes"].as<std::vector<uint64_t>>()) {
      int& copies = copies_[{medium, hash}];
      copies += types_.back() == "BlockStored" ? 1 : -1;
      EXPECT_GE(copies, 0) << hash;
      if (copies == 0) copies_.erase({medium, hash});
    }
  }

  Copies copies_;
  std::vector<std::string> types_;
  int rank_ = -1;
};

TEST(PublisherZmqTest, CopiesAreSaidOneByOne) {
  auto publisher = Make({.dp_rank = 5});
  const std::vector<TokenId> tokens = {1, 2, 3, 4};
  publisher->Stored(Tier::kDevice, {7}, std::nullopt, tokens);
  publisher->Stored(Tier::kDevice, {7}, std::nullopt, tokens);
  publisher->Stored(Tier::kHost, {7}, std::nullopt, {});
  publisher->Removed(Tier::kDevice, {7});
  const Consumer consumer(publisher.get());
  EXPECT_EQ(consumer.copies(), (Copies{{{"GPU", 7}, 1}, {{"CPU", 7}, 1}}));
  EXPECT_EQ(consumer.types().size(), 4u);
  EXPECT_EQ(consumer.rank(), 5);
  EXPECT_EQ(publisher->Stats().blocks_stored_passed, 2u);
}

TEST(PublisherZmqTest, AClearOfOneTierIsSaidAsItsRemovals) {
  auto publisher = Make();
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  publisher->Stored(Tier::kDevice, {7, 8}, std::nullopt, tokens);
  publisher->Stored(Tier::kDevice, {7, 8}, std::nullopt, tokens);
  publisher->Stored(Tier::kHost, {7, 8}, std::nullopt, {});
  publisher->Cleared(Tier::kDevice);
  const Consumer consumer(publisher.get());
  EXPECT_EQ(consumer.copies(), (Copies{{{"CPU", 7}, 1}, {{"CPU", 8}, 1}}));
  EXPECT_EQ(consumer.types().back(), "BlockRemoved");
}

TEST(PublisherZmqTest, BlocksByTheContractsHashesAreNotSaid) {
  auto publisher = Make();
  const std::vector<SequenceHash> blocks = {SequenceHash{5}};
  publisher->StoredHashed(Tier::kDevice, 0, kNoParent, blocks);
  publisher->RemovedHashed(Tier::kDevice, blocks);
  EXPECT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(publisher->Stats().zmq->calls_untold, 2u);
  EXPECT_EQ(publisher->Stats().zmq->next_number, 0u);
}

TEST(PublisherZmqTest, AnEndpointThatCannotBeHadIsAnErrorOfCreate) {
  auto first = Make();
  PublisherOptions options{.worker = "w", .domain = {"m", ""}};
  options.zmq.endpoint = first->Stats().zmq->endpoint;
  options.zmq.attach = ZmqAttach::kBind;
  EXPECT_EQ(Publisher::Create(options).status().code(), absl::StatusCode::kUnavailable);
  options.zmq.endpoint = "nonsense";
  EXPECT_EQ(Publisher::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PublisherZmqTest, WhoCountsCopiesKnowsWhatTheEngineHas) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(SeedText(seed));
  std::mt19937 random(seed);
  const std::vector<std::string> media = {"GPU", "CPU", "DISK", "EXTERNAL"};
  // A queue so small that the engine's thread works off some of it.
  auto publisher = Make({.batch_blocks = 8, .queue_bytes_max = 4096});
  Copies truth;
  const auto held = [&](const std::string& medium) {
    std::vector<uint64_t> hashes;
    for (const auto& [key, copies] : truth) {
      if (key.first == medium) hashes.push_back(key.second);
    }
    return hashes;
  };
  for (int step = 0; step < 3000; ++step) {
    const int tier = static_cast<int>(random() % 4);
    const uint32_t what = random() % 100;
    if (what < 50) {
      // Sequence s has the blocks 100 s … 100 s + 9; some of them are stored from the start.
      const uint64_t first = 100 * (1 + random() % 30);
      const size_t count = 1 + random() % 10;
      std::vector<EngineHash> blocks;
      std::vector<TokenId> tokens;
      for (uint64_t hash = first; hash < first + count; ++hash) {
        blocks.push_back(hash);
        for (uint32_t i = 0; i < kBlockSize; ++i) tokens.push_back(hash * 10 + i);
        ++truth[{media[tier], hash}];
      }
      publisher->Stored(static_cast<Tier>(tier), blocks, std::nullopt, tokens);
    } else if (what < 98) {
      const std::vector<uint64_t> hashes = held(media[tier]);
      if (hashes.empty()) continue;
      const uint64_t hash = hashes[random() % hashes.size()];
      if (--truth[{media[tier], hash}] == 0) truth.erase({media[tier], hash});
      publisher->Removed(static_cast<Tier>(tier), {hash});
    } else if (what == 98) {
      for (const uint64_t hash : held(media[tier])) truth.erase({media[tier], hash});
      publisher->Cleared(static_cast<Tier>(tier));
    } else if (random() % 4 == 0) {
      truth.clear();
      publisher->Cleared();
    }
  }
  const Consumer consumer(publisher.get());
  EXPECT_EQ(consumer.copies(), truth);
  EXPECT_EQ(publisher->Stats().unknown_removed, 0u);
  EXPECT_EQ(publisher->Stats().zmq->batches_lost, 0u);
}

}  // namespace
}  // namespace kvatlas
