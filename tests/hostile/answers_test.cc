// Answers and dumps that are asked for and never read: what do they cost the others?

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/engine_directory/pool_engine_test_util.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "proto/kvatlas/v1/stream.grpc.pb.h"
#include "tests/hostile/raw_socket.h"
#include "tests/hostile/siege.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

const Domain kModel{"m", ""};
constexpr uint64_t kBlock = 77;

// Workers that each told a leaf of one block, and say nothing more.
class Workers {
 public:
  Workers(const Address& leaf, uint32_t count) {
    std::shared_ptr<grpc::Channel> channel;
    for (uint32_t i = 0; i < count && !testing::Test::HasFailure(); ++i) {
      if (i % kStreamsOfAChannel == 0)
        channel = MakeChannel(leaf.ToString(), {.own_connection = true});
      streams_.push_back(std::make_unique<Stream>(channel));
      Stream& stream = *streams_.back();
      Hello hello;
      hello.holder = {"worker-" + std::to_string(i), 0, ""};
      hello.domain = kModel;
      hello.block_size = 16;
      hello.contract_id = HashContract().Id();
      hello.epoch = hello.instance_id = 1 + i;
      hello.starting = true;
      stream.Say(hello);
      EXPECT_TRUE(std::holds_alternative<Welcome>(stream.Hear()));
      Batch batch;
      batch.number = 1;
      batch.events.push_back(Stored{.blocks = {SequenceHash{kBlock}}});
      stream.Say(batch);
      ReceiverMessage answer = stream.Hear();
      while (std::holds_alternative<Ack>(answer) && std::get<Ack>(answer).applied < 1)
        answer = stream.Hear();
      EXPECT_TRUE(std::holds_alternative<Ack>(answer));
    }
  }

 private:
  // A connection allows 1,024 calls at once.
  static constexpr uint32_t kStreamsOfAChannel = 1000;

  class Stream {
   public:
    explicit Stream(const std::shared_ptr<grpc::Channel>& channel)
        : call_(v1::Holdings::NewStub(channel)->Stream(Context())) {}
    ~Stream() { context_.TryCancel(); }

    void Say(const SenderMessage& message) {
      v1::SenderMessage wire;
      ToProto(message, &wire);
      EXPECT_TRUE(call_->Write(wire));
    }
    ReceiverMessage Hear() {
      v1::ReceiverMessage wire;
      ReceiverMessage message = Refuse{};
      EXPECT_TRUE(call_->Read(&wire) && FromProto(wire, &message).ok());
      return message;
    }

   private:
    grpc::ClientContext* Context() {
      context_.set_wait_for_ready(true);
      return &context_;
    }

    grpc::ClientContext context_;
    const std::unique_ptr<grpc::ClientReaderWriter<v1::SenderMessage, v1::ReceiverMessage>> call_;
  };

  std::vector<std::unique_ptr<Stream>> streams_;
};

// The frames of one message of a call.
std::string H2Message(uint32_t stream, const std::string& message) {
  std::string bytes(1, '\0');  // not compressed
  for (const int shift : {24, 16, 8, 0})
    bytes.push_back(static_cast<char>(message.size() >> shift));
  bytes += message;
  std::string frames;
  constexpr size_t kFrameMax = 16 << 10;
  for (size_t at = 0; at < bytes.size(); at += kFrameMax)
    frames += H2Frame(0, 0, stream, bytes.substr(at, kFrameMax));
  return frames;
}

TEST(AnswersTest, AnswersThatAreNotReadAreNotMade) {
  Siege siege({.program = kLeaf, .args = {"--lease_ttl=10m"}});
  ASSERT_TRUE(siege.ok());
  const Workers workers(siege.grpc(), 2'000);
  siege.CountMemoryFromHere();
  v1::FindOverlapsStreamRequest request;
  for (uint64_t id = 0; id < 1024; ++id) {
    v1::FindOverlapsStreamRequest::Question& question = *request.add_questions();
    question.set_id(id);
    ToProto(kModel, question.mutable_request()->mutable_domain());
    question.mutable_request()->add_sequence_hashes(kBlock);
  }
  std::vector<RawSocket> callers;
  for (int i = 0; i < 8; ++i) {
    RawSocket& caller = callers.emplace_back(siege.grpc());
    ASSERT_TRUE(caller.Send(H2Hello() + H2Acknowledge() +
                            H2Request(1, "/kvatlas.v1.Leaf/FindOverlapsStream") +
                            H2Message(1, request.SerializeAsString())));
  }
  siege.Watch(50);
  // It has begun to answer, each with 2,000 workers.
  for (RawSocket& caller : callers) {
    std::string said;
    bool ended = false;
    while (said.size() < (32 << 10) && !ended)
      said += caller.ReadSome(std::chrono::seconds(10), &ended);
    EXPECT_FALSE(ended);
    EXPECT_NE(said.find("worker-1"), said.npos);
  }
  siege.ExpectUnharmed();
}

// An engine with so many blocks, in prompts of 1,000.
class LargeEngine {
 public:
  explicit LargeEngine(uint64_t blocks) : blocks_(blocks) {}

  std::string workers() const { return "--workers=1=" + sockets_.endpoint(); }

  // Returns when the leaf has them.
  void Publish(const Siege& siege) {
    sockets_.WaitForSubscribers();
    for (uint64_t first = 0; first < blocks_; first += kPrompt) {
      HybridEvent event;
      for (uint64_t i = first; i < first + kPrompt; ++i) {
        event.names.push_back(i + 1);
        for (uint64_t token = 0; token < 4; ++token)
          event.tokens.push_back(static_cast<TokenId>(4 * i + token));
      }
      sockets_.Publish(HybridPayload({event}));
    }
    const std::string all = "kvatlas_leaf_holdings{domain=\"m\"} " + std::to_string(blocks_);
    std::string page;
    for (int i = 0; i < 3000 && page.find(all) == page.npos; ++i)
      page = HttpGet(siege.http(), "/metrics", std::chrono::seconds(10)).value_or("");
    EXPECT_NE(page.find(all), page.npos) << page;
  }

 private:
  static constexpr uint64_t kPrompt = 1000;
  const uint64_t blocks_;
  ZmqTestEngine sockets_{{}};
};

// Asks for a dump and reads no more of it than its head.
std::string BeginDump(RawSocket& caller) {
  EXPECT_TRUE(caller.Send("GET /dump HTTP/1.1\r\nHost: test\r\n\r\n"));
  std::string said;
  bool ended = false;
  while (said.find("\r\n\r\n") == said.npos && !ended)
    said += caller.ReadSome(std::chrono::seconds(30), &ended);
  return said;
}

TEST(AnswersTest, DumpsThatAreNotReadAreFewAndHoldLittle) {
  LargeEngine engine(250'000);
  Siege siege({.program = kLeaf, .args = {"--block_size=4", "--model_name=m", engine.workers()}});
  ASSERT_TRUE(siege.ok());
  engine.Publish(siege);
  siege.CountMemoryFromHere();
  std::vector<RawSocket> callers;
  int given = 0;
  int refused = 0;
  for (int i = 0; i < 4; ++i) {
    const std::string said = BeginDump(callers.emplace_back(siege.http()));
    if (HttpStatusIn(said) == 200) ++given;
    if (HttpStatusIn(said) == 503 && said.find("retry-after: ") != said.npos) ++refused;
  }
  EXPECT_EQ(given, 2);
  EXPECT_EQ(refused, 2);
  siege.Watch(100);
  siege.ExpectUnharmed();
  callers.clear();
  // The places are free again.
  EXPECT_TRUE(Eventually([&] {
    RawSocket caller(siege.http());
    return HttpStatusIn(BeginDump(caller)) == 200;
  }));
}

TEST(AnswersTest, GrpcDumpsThatAreNotReadAreFew) {
  Siege siege({.program = kLeaf, .args = {"--lease_ttl=10m"}});
  ASSERT_TRUE(siege.ok());
  const Workers workers(siege.grpc(), 2'000);
  siege.CountMemoryFromHere();
  std::vector<RawSocket> callers;
  for (int i = 0; i < 8; ++i) {
    RawSocket& caller = callers.emplace_back(siege.grpc());
    ASSERT_TRUE(caller.Send(H2Hello() + H2Acknowledge() + H2Request(1, "/kvatlas.v1.Leaf/Dump") +
                            H2Message(1, "") + H2Frame(0, 1, 1, "")));
  }
  siege.Watch(50);
  siege.ExpectUnharmed();
}

}  // namespace
}  // namespace kvatlas
