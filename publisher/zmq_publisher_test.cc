// A publisher over ZeroMQ, heard by real SUB and DEALER sockets.

#include "publisher/zmq_publisher.h"
#include "indexer/base/await.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <msgpack.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "indexer/security/curve.h"
#include "indexer/security/secret_file.h"

namespace kvatlas {
namespace {

constexpr std::chrono::milliseconds kLong(30000);
constexpr uint32_t kBlockSize = 2;
constexpr uint64_t kEnd = ~uint64_t{0};
using Frames = std::vector<std::string>;

uint64_t NumberOf(const std::string& frame) {
  uint64_t number = 0;
  for (const char byte : frame) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

std::string Frame(uint64_t number) {
  std::string bytes(8, '\0');
  for (int i = 7; i >= 0; --i, number >>= 8) bytes[i] = static_cast<char>(number);
  return bytes;
}

// One end of a conversation with a publisher.
class Peer {
 public:
  Peer(zmq::context_t& context, zmq::socket_type type) : socket_(context, type) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvhwm, 0);
    if (type == zmq::socket_type::sub) socket_.set(zmq::sockopt::subscribe, "");
  }

  zmq::socket_t& socket() { return socket_; }

  std::optional<Frames> Receive(std::chrono::milliseconds wait = kLong) {
    Frames frames;
    socket_.set(zmq::sockopt::rcvtimeo, static_cast<int>(wait.count()));
    for (bool more = true; more;) {
      zmq::message_t message;
      if (!socket_.recv(message)) return std::nullopt;
      more = message.more();
      frames.push_back(message.to_string());
    }
    return frames;
  }

  void Send(const Frames& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      socket_.send(zmq::buffer(frames[i]),
                   i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }

 private:
  zmq::socket_t socket_;
};

ZmqPublisherOptions OnLoopback() {
  ZmqPublisherOptions options;
  options.endpoint = "tcp://127.0.0.1:0";
  options.replay_endpoint = "tcp://127.0.0.1:0";
  return options;
}

class ZmqPublisherTest : public ::testing::Test {
 protected:
  std::unique_ptr<ZmqPublisher> Make(const ZmqPublisherOptions& options, uint32_t rank = 0) {
    absl::StatusOr<std::unique_ptr<ZmqPublisher>> made =
        ZmqPublisher::Create(options, kBlockSize, rank);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }

  // One batch that names `hash`.
  static void Say(ZmqPublisher* publisher, uint64_t hash) {
    publisher->Add({.kind = Record::kRemoved, .hashes = {&hash, 1}});
    publisher->Flush();
  }

  // A PUB socket forgets what it said before the subscription arrived: says batches until one is
  // heard, from which on all are. Returns the number of the last one said, which is the last one
  // heard.
  static uint64_t SayUntilHeard(ZmqPublisher* publisher, Peer* subscriber) {
    do {
      Say(publisher, 0);
    } while (!subscriber->Receive(std::chrono::milliseconds(20)));
    Say(publisher, 0);
    const uint64_t last = publisher->Stats().next_number - 1;
    for (std::optional<Frames> heard; (heard = subscriber->Receive());) {
      if (NumberOf(heard->at(1)) == last) break;
    }
    return last;
  }

  static void WaitSent(const ZmqPublisher& publisher, uint64_t batches) {
    const auto sent = [&] {
      return publisher.Stats().batches_sent + publisher.Stats().batches_lost >= batches;
    };
    ASSERT_TRUE(Await(sent, std::chrono::seconds(60)));
  }

  std::unique_ptr<Peer> Subscriber(const std::string& endpoint) {
    auto peer = std::make_unique<Peer>(context_, zmq::socket_type::sub);
    peer->socket().connect(endpoint);
    return peer;
  }

  std::unique_ptr<Peer> Dealer(const std::string& endpoint) {
    auto peer = std::make_unique<Peer>(context_, zmq::socket_type::dealer);
    peer->socket().connect(endpoint);
    return peer;
  }

  zmq::context_t context_;
};

TEST_F(ZmqPublisherTest, WithAKeyItIsHeardByWhoKnowsItAlone) {
  const CurveKeys keys = *MakeCurveKeys();
  ZmqPublisherOptions options = OnLoopback();
  options.curve_key = ::testing::TempDir() + "/publisher.curve";
  ASSERT_TRUE(WriteFileByRename(options.curve_key, keys.secret_key, 0600).ok());
  const auto publisher = Make(options);
  ASSERT_NE(publisher, nullptr);
  const auto peer = [&](zmq::socket_type type, const std::string& server_key) {
    auto made = std::make_unique<Peer>(context_, type);
    const CurveKeys own = *MakeCurveKeys();
    if (!server_key.empty()) {
      made->socket().set(zmq::sockopt::curve_serverkey, server_key);
      made->socket().set(zmq::sockopt::curve_publickey, own.public_key);
      made->socket().set(zmq::sockopt::curve_secretkey, own.secret_key);
    }
    const bool live = type == zmq::socket_type::sub;
    made->socket().connect(live ? publisher->Stats().endpoint : publisher->Stats().replay_endpoint);
    return made;
  };
  const auto right = peer(zmq::socket_type::sub, keys.public_key);
  const auto wrong = peer(zmq::socket_type::sub, MakeCurveKeys()->public_key);
  const auto plain = peer(zmq::socket_type::sub, "");
  SayUntilHeard(publisher.get(), right.get());
  EXPECT_FALSE(wrong->Receive(std::chrono::milliseconds(1)).has_value());
  EXPECT_FALSE(plain->Receive(std::chrono::milliseconds(1)).has_value());
  const auto asker = peer(zmq::socket_type::dealer, keys.public_key);
  asker->Send({"", Frame(0)});
  EXPECT_TRUE(asker->Receive().has_value());
}

TEST_F(ZmqPublisherTest, AKeyThatCannotBeUsedIsAnError) {
  ZmqPublisherOptions options = OnLoopback();
  options.curve_key = ::testing::TempDir() + "/no_such.curve";
  EXPECT_FALSE(ZmqPublisher::Create(options, kBlockSize, 0).ok());
  options.curve_key = ::testing::TempDir() + "/dialling.curve";
  ASSERT_TRUE(WriteFileByRename(options.curve_key, MakeCurveKeys()->secret_key, 0600).ok());
  options.attach = ZmqAttach::kConnect;
  const absl::Status dials = ZmqPublisher::Create(options, kBlockSize, 0).status();
  EXPECT_EQ(dials.code(), absl::StatusCode::kInvalidArgument) << dials;
}

// The first hash of the first event.
uint64_t HashIn(const std::string& payload) {
  const msgpack::object_handle batch = msgpack::unpack(payload.data(), payload.size());
  const msgpack::object& event = batch->via.array.ptr[1].via.array.ptr[0];
  return event.as<std::map<std::string, msgpack::object>>()["block_hashes"]
      .as<std::vector<uint64_t>>()
      .at(0);
}

std::string TypeIn(const msgpack::object& event) {
  return event.as<std::map<std::string, msgpack::object>>()["type"].as<std::string>();
}

TEST_F(ZmqPublisherTest, BatchesAreNumberedFrom0UnderTheirTopic) {
  ZmqPublisherOptions options = OnLoopback();
  options.topic = "kv@pod-1@llama";
  auto publisher = Make(options);
  EXPECT_EQ(publisher->Stats().next_number, 0u);
  auto subscriber = Subscriber(publisher->Stats().endpoint);
  const uint64_t last = SayUntilHeard(publisher.get(), subscriber.get());
  for (uint64_t i = 1; i <= 300; ++i) Say(publisher.get(), 1000 + i);
  for (uint64_t i = 1; i <= 300; ++i) {
    const std::optional<Frames> heard = subscriber->Receive();
    ASSERT_TRUE(heard.has_value());
    ASSERT_EQ(heard->size(), 3u);
    EXPECT_EQ(heard->at(0), "kv@pod-1@llama");
    EXPECT_EQ(heard->at(1), Frame(last + i));
    EXPECT_EQ(HashIn(heard->at(2)), 1000 + i);
  }
}

TEST_F(ZmqPublisherTest, WhatIsAddedBetweenFlushesIsOneBatchInOrder) {
  auto publisher = Make(OnLoopback(), /*rank=*/3);
  auto subscriber = Subscriber(publisher->Stats().endpoint);
  SayUntilHeard(publisher.get(), subscriber.get());
  const std::vector<uint64_t> hashes = {11, 12};
  const std::vector<TokenId> tokens = {1, 2, 3, 4};
  publisher->Add({.kind = Record::kStored, .hashes = hashes, .tokens = tokens});
  publisher->Add({.kind = Record::kLoad});
  publisher->Add({.kind = Record::kRemoved, .tier = Tier::kHost, .hashes = hashes});
  publisher->Flush();
  publisher->Flush();  // nothing: no batch
  const std::optional<Frames> heard = subscriber->Receive();
  ASSERT_TRUE(heard.has_value());
  const std::string& payload = heard->at(2);
  const msgpack::object_handle batch = msgpack::unpack(payload.data(), payload.size());
  EXPECT_EQ(batch->via.array.ptr[2].as<int>(), 3);
  const msgpack::object& events = batch->via.array.ptr[1];
  ASSERT_EQ(events.via.array.size, 2u);
  EXPECT_EQ(TypeIn(events.via.array.ptr[0]), "BlockStored");
  EXPECT_EQ(TypeIn(events.via.array.ptr[1]), "BlockRemoved");
  Say(publisher.get(), 5);
  EXPECT_EQ(NumberOf(subscriber->Receive()->at(1)), NumberOf(heard->at(1)) + 1);
}

TEST_F(ZmqPublisherTest, AClearGoesOutWithoutAFlush) {
  auto publisher = Make(OnLoopback());
  auto subscriber = Subscriber(publisher->Stats().endpoint);
  SayUntilHeard(publisher.get(), subscriber.get());
  publisher->Add({.kind = Record::kCleared, .tiers = TierMask::All()});
  const std::optional<Frames> heard = subscriber->Receive();
  ASSERT_TRUE(heard.has_value());
  const msgpack::object_handle batch = msgpack::unpack(heard->at(2).data(), heard->at(2).size());
  EXPECT_EQ(TypeIn(batch->via.array.ptr[1].via.array.ptr[0]), "AllBlocksCleared");
}

TEST_F(ZmqPublisherTest, LongRunsAreSeveralEventsThatFollowEachOther) {
  auto publisher = Make(OnLoopback());
  constexpr size_t kBlocks = 300000;
  std::vector<uint64_t> hashes(kBlocks);
  std::vector<TokenId> tokens(kBlocks * kBlockSize);
  for (size_t i = 0; i < kBlocks; ++i) hashes[i] = 1'000'000 + i;
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = i;
  publisher->Add({.kind = Record::kStored,
                  .has_parent = true,
                  .parent = 77,
                  .hashes = hashes,
                  .tokens = tokens});
  publisher->Flush();
  WaitSent(*publisher, publisher->Stats().next_number);
  EXPECT_GT(publisher->Stats().next_number, 1u);
  auto dealer = Dealer(publisher->Stats().replay_endpoint);
  dealer->Send({"", Frame(0)});
  uint64_t parent = 77;
  size_t at = 0;
  for (;;) {
    const std::optional<Frames> reply = dealer->Receive();
    ASSERT_TRUE(reply.has_value());
    if (NumberOf(reply->at(2)) == kEnd) break;
    EXPECT_LT(reply->at(3).size(), 2u << 20);
    const msgpack::object_handle batch = msgpack::unpack(reply->at(3).data(), reply->at(3).size());
    for (const auto& event : batch->via.array.ptr[1].as<std::vector<msgpack::object>>()) {
      auto fields = event.as<std::map<std::string, msgpack::object>>();
      EXPECT_EQ(fields["parent_block_hash"].as<uint64_t>(), parent);
      const auto blocks = fields["block_hashes"].as<std::vector<uint64_t>>();
      const auto said = fields["token_ids"].as<std::vector<TokenId>>();
      ASSERT_EQ(said.size(), blocks.size() * kBlockSize);
      ASSERT_TRUE(std::equal(blocks.begin(), blocks.end(), hashes.begin() + at));
      ASSERT_TRUE(std::equal(said.begin(), said.end(), tokens.begin() + at * kBlockSize));
      at += blocks.size();
      parent = blocks.back();
    }
  }
  EXPECT_EQ(at, kBlocks);
}

TEST_F(ZmqPublisherTest, CallsByTheContractsHashesAreCountedAndNotSaid) {
  auto publisher = Make(OnLoopback());
  const std::vector<uint64_t> hashes = {1};
  publisher->Add({.kind = Record::kStoredHashed, .hashes = hashes});
  publisher->Add({.kind = Record::kRemovedHashed, .hashes = hashes});
  publisher->Flush();
  EXPECT_EQ(publisher->Stats().calls_untold, 2u);
  EXPECT_EQ(publisher->Stats().next_number, 0u);
}

// ---- Replay ----

TEST_F(ZmqPublisherTest, ReplaySaysEverythingFromANumberOnAndThenThatItEnds) {
  ZmqPublisherOptions options = OnLoopback();
  options.topic = "t";
  auto publisher = Make(options);
  for (uint64_t i = 0; i < 500; ++i) Say(publisher.get(), 100 + i);
  WaitSent(*publisher, 500);
  auto dealer = Dealer(publisher->Stats().replay_endpoint);
  dealer->Send({"", Frame(200)});
  for (uint64_t i = 200; i < 500; ++i) {
    const std::optional<Frames> reply = dealer->Receive();
    ASSERT_TRUE(reply.has_value());
    ASSERT_EQ(reply->size(), 4u);
    EXPECT_EQ(reply->at(0), "");
    EXPECT_EQ(reply->at(1), "t");
    EXPECT_EQ(reply->at(2), Frame(i));
    EXPECT_EQ(HashIn(reply->at(3)), 100 + i);
  }
  EXPECT_EQ(*dealer->Receive(), (Frames{"", "", Frame(kEnd), ""}));
  EXPECT_EQ(publisher->Stats().batches_replayed, 300u);
}

TEST_F(ZmqPublisherTest, TheOldLayoutHasNoTopicFrame) {
  ZmqPublisherOptions options = OnLoopback();
  options.topic = "t";
  options.replay_layout = ZmqReplayLayout::kNoTopic;
  auto publisher = Make(options);
  Say(publisher.get(), 100);
  WaitSent(*publisher, 1);
  auto dealer = Dealer(publisher->Stats().replay_endpoint);
  dealer->Send({"", Frame(0)});
  const std::optional<Frames> reply = dealer->Receive();
  ASSERT_TRUE(reply.has_value());
  ASSERT_EQ(reply->size(), 3u);
  EXPECT_EQ(reply->at(0), "");
  EXPECT_EQ(reply->at(1), Frame(0));
  EXPECT_EQ(HashIn(reply->at(2)), 100u);
  EXPECT_EQ(*dealer->Receive(), (Frames{"", Frame(kEnd), ""}));
}

TEST_F(ZmqPublisherTest, AReplayOfNothingEndsAtOnce) {
  auto publisher = Make(OnLoopback());
  Say(publisher.get(), 1);
  WaitSent(*publisher, 1);
  auto dealer = Dealer(publisher->Stats().replay_endpoint);
  for (const uint64_t from : {uint64_t{1}, uint64_t{1000}, kEnd}) {
    dealer->Send({"", Frame(from)});
    EXPECT_EQ(*dealer->Receive(), (Frames{"", "", Frame(kEnd), ""})) << from;
  }
}

TEST_F(ZmqPublisherTest, ReqSocketGetsAnAnswerToo) {
  auto publisher = Make(OnLoopback());
  Say(publisher.get(), 41);
  WaitSent(*publisher, 1);
  Peer req(context_, zmq::socket_type::req);
  req.socket().connect(publisher->Stats().replay_endpoint);
  req.Send({Frame(0)});
  const std::optional<Frames> reply = req.Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(HashIn(reply->back()), 41u);
}

TEST_F(ZmqPublisherTest, WhatHasRolledOutOfTheRingIsNotReplayed) {
  ZmqPublisherOptions options = OnLoopback();
  options.ring_batches_max = 10;
  auto publisher = Make(options);
  for (uint64_t i = 0; i < 100; ++i) {
    Say(publisher.get(), i);
    WaitSent(*publisher, i + 1);
  }
  EXPECT_EQ(publisher->Stats().batches_lost, 0u);
  auto dealer = Dealer(publisher->Stats().replay_endpoint);
  dealer->Send({"", Frame(0)});
  for (uint64_t i = 90; i < 100; ++i) EXPECT_EQ(dealer->Receive()->at(2), Frame(i));
  EXPECT_EQ(dealer->Receive()->at(2), Frame(kEnd));
}

TEST_F(ZmqPublisherTest, TheRingIsBoundedInBytes) {
  ZmqPublisherOptions options = OnLoopback();
  options.ring_bytes_max = 2000;
  auto publisher = Make(options);
  for (uint64_t i = 0; i < 200; ++i) {
    Say(publisher.get(), i);
    EXPECT_LE(publisher->Stats().ring_bytes, 2000u);
  }
  EXPECT_GT(publisher->Stats().ring_batches, 5u);
  EXPECT_EQ(publisher->Stats().next_number, 200u);
}

TEST_F(ZmqPublisherTest, ABatchLargerThanTheRingBurnsItsNumber) {
  ZmqPublisherOptions options = OnLoopback();
  options.ring_bytes_max = 2000;
  auto publisher = Make(options);
  auto subscriber = Subscriber(publisher->Stats().endpoint);
  const uint64_t last = SayUntilHeard(publisher.get(), subscriber.get());
  const std::vector<uint64_t> many(1000, 1);
  const uint64_t lost = publisher->Stats().batches_lost;
  publisher->Add({.kind = Record::kRemoved, .hashes = many});
  for (uint64_t i = 0; i < 1000; ++i) {
    publisher->Add({.kind = Record::kRemoved, .hashes = {&i, 1}});
  }
  publisher->Flush();
  EXPECT_EQ(publisher->Stats().batches_lost, lost + 1);
  Say(publisher.get(), 5);
  EXPECT_EQ(NumberOf(subscriber->Receive()->at(1)), last + 2);
}

TEST_F(ZmqPublisherTest, MalformedRequestsHarmNobody) {
  auto publisher = Make(OnLoopback());
  Say(publisher.get(), 1);
  WaitSent(*publisher, 1);
  auto dealer = Dealer(publisher->Stats().replay_endpoint);
  dealer->Send({""});
  dealer->Send({"", "short"});
  dealer->Send({"x", Frame(0)});
  dealer->Send({Frame(0)});
  dealer->Send(Frames(20, "many"));
  dealer->Send({"", Frame(0)});
  EXPECT_EQ(dealer->Receive()->at(2), Frame(0));
  EXPECT_EQ(dealer->Receive()->at(2), Frame(kEnd));
  EXPECT_EQ(publisher->Stats().replays_refused, 5u);
}

TEST_F(ZmqPublisherTest, AReplayThatNobodyReadsDelaysNeitherLiveBatchesNorOtherReplays) {
  ZmqPublisherOptions options = OnLoopback();
  options.send_hwm = 10;
  options.ring_bytes_max = 256 << 20;
  auto publisher = Make(options);
  const std::vector<uint64_t> hashes(20000, ~uint64_t{0});  // about 180 KB
  for (int i = 0; i < 300; ++i) {
    publisher->Add({.kind = Record::kRemoved, .hashes = hashes});
    publisher->Flush();
  }
  WaitSent(*publisher, 300);
  zmq::context_t other;
  Peer stuck(other, zmq::socket_type::dealer);
  stuck.socket().set(zmq::sockopt::rcvhwm, 1);
  stuck.socket().set(zmq::sockopt::rcvbuf, 4096);
  stuck.socket().connect(publisher->Stats().replay_endpoint);
  stuck.Send({"", Frame(0)});
  ASSERT_TRUE(Await([&] { return publisher->Stats().replays > 0; }, std::chrono::seconds(60)));

  auto subscriber = Subscriber(publisher->Stats().endpoint);
  const uint64_t last = SayUntilHeard(publisher.get(), subscriber.get());
  EXPECT_GE(last, 300u);
  auto dealer = Dealer(publisher->Stats().replay_endpoint);
  dealer->Send({"", Frame(last)});
  EXPECT_EQ(dealer->Receive()->at(2), Frame(last));
  EXPECT_EQ(dealer->Receive()->at(2), Frame(kEnd));
  EXPECT_LT(publisher->Stats().batches_replayed, 301u);
  // And who reads at last gets everything.
  for (uint64_t i = 0; i < 300; ++i) ASSERT_EQ(stuck.Receive()->at(2), Frame(i));
}

// ---- Endpoints ----

TEST(ZmqEndpointTest, RanksHaveEndpointsOfTheirOwn) {
  EXPECT_EQ(*ZmqEndpointOfRank("tcp://*:5557", 0), "tcp://*:5557");
  EXPECT_EQ(*ZmqEndpointOfRank("tcp://*:5557", 3), "tcp://*:5560");
  EXPECT_EQ(*ZmqEndpointOfRank("tcp://[::1]:5557", 1), "tcp://[::1]:5558");
  EXPECT_EQ(*ZmqEndpointOfRank("tcp://*:0", 3), "tcp://*:0");
  EXPECT_EQ(*ZmqEndpointOfRank("tcp://*:*", 3), "tcp://*:*");
  EXPECT_EQ(*ZmqEndpointOfRank("inproc://x", 0), "inproc://x");
  EXPECT_EQ(*ZmqEndpointOfRank("inproc://x", 2), "inproc://x_dp2");
  EXPECT_EQ(*ZmqEndpointOfRank("ipc:///tmp/x", 2), "ipc:///tmp/x_dp2");
  EXPECT_EQ(ZmqEndpointOfRank("tcp://h:65535", 1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ZmqEndpointTest, WhatIsNoEndpointIsRefusedByName) {
  for (const char* bad :
       {"", "tcp://", "tcp://h", "tcp://h:", "tcp://:5557", "tcp://h:x", "tcp://h:65536",
        "tcp://h:-1", "udp://h:1", "h:5557", "inproc://", "ipc://"}) {
    const absl::Status status = ZmqEndpointOfRank(bad, 0).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(std::string(status.message()).find(std::string("\"") + bad + "\""),
              std::string::npos);
  }
}

TEST(ZmqEndpointTest, WildcardsBindAndNamesAreDialled) {
  for (const char* bound :
       {"tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557", "tcp://[::1]:5557",
        "tcp://127.0.0.1:0", "tcp://127.0.0.1:*", "ipc:///tmp/x", "inproc://x"}) {
    EXPECT_TRUE(ZmqBinds(bound, ZmqAttach::kAuto)) << bound;
    EXPECT_FALSE(ZmqBinds(bound, ZmqAttach::kConnect)) << bound;
  }
  for (const char* dialled : {"tcp://127.0.0.1:5557", "tcp://indexer:5557", "tcp://10.0.0.1:1"}) {
    EXPECT_FALSE(ZmqBinds(dialled, ZmqAttach::kAuto)) << dialled;
    EXPECT_TRUE(ZmqBinds(dialled, ZmqAttach::kBind)) << dialled;
  }
}

TEST_F(ZmqPublisherTest, DialsOutToASubscriberThatBinds) {
  Peer subscriber(context_, zmq::socket_type::sub);
  subscriber.socket().bind("tcp://127.0.0.1:*");
  ZmqPublisherOptions options;
  options.endpoint = subscriber.socket().get(zmq::sockopt::last_endpoint);
  auto publisher = Make(options);
  EXPECT_EQ(publisher->Stats().endpoint, options.endpoint);
  const uint64_t last = SayUntilHeard(publisher.get(), &subscriber);
  Say(publisher.get(), 9);
  EXPECT_EQ(NumberOf(subscriber.Receive()->at(1)), last + 1);
}

TEST_F(ZmqPublisherTest, BindsWhereItIsToldTo) {
  auto first = Make(OnLoopback());
  ZmqPublisherOptions options;
  options.endpoint = first->Stats().endpoint;
  options.attach = ZmqAttach::kBind;
  const absl::Status taken = ZmqPublisher::Create(options, kBlockSize, 0).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(taken.message()).find(options.endpoint), std::string::npos) << taken;
  first.reset();
  auto second = Make(options);
  EXPECT_EQ(second->Stats().endpoint, options.endpoint);
}

TEST_F(ZmqPublisherTest, RanksOnOneHostDoNotCollide) {
  const std::string path = "ipc:///tmp/kvatlas_zmq_" + std::to_string(getpid());
  ZmqPublisherOptions options;
  options.endpoint = path;
  auto rank0 = Make(options, 0);
  auto rank1 = Make(options, 1);
  EXPECT_EQ(rank0->Stats().endpoint, path);
  EXPECT_EQ(rank1->Stats().endpoint, path + "_dp1");
  auto subscriber = Subscriber(path + "_dp1");
  SayUntilHeard(rank1.get(), subscriber.get());
}

TEST_F(ZmqPublisherTest, NothingIsSaidAfterStop) {
  auto publisher = Make(OnLoopback());
  Say(publisher.get(), 1);
  publisher->Stop(kLong);
  EXPECT_EQ(publisher->Stats().batches_sent, 1u);
  Say(publisher.get(), 2);
  publisher->Stop(kLong);
  EXPECT_EQ(publisher->Stats().next_number, 1u);
}

}  // namespace
}  // namespace kvatlas
