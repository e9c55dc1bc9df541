#include "indexer/transport/in_process_link.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace kvatlas {
namespace {

// Acknowledges batches and closes on a goodbye.
class Acceptor : public StreamAcceptor {
 public:
  std::unique_ptr<ReceiverSession> Accept(ReplyFn reply) override {
    ++accepted;
    last_reply = reply;
    return std::make_unique<Session>(this, std::move(reply));
  }

  int accepted = 0;
  int open = 0;
  std::vector<BatchNumber> batches;
  ReplyFn last_reply;
  std::function<void()> on_batch;

 private:
  class Session : public ReceiverSession {
   public:
    Session(Acceptor* owner, ReplyFn reply) : owner_(owner), reply_(std::move(reply)) {
      ++owner_->open;
    }
    ~Session() override { --owner_->open; }
    absl::Status OnMessage(SenderMessage message) override {
      if (std::holds_alternative<Goodbye>(message)) return absl::InvalidArgumentError("closed");
      const auto* batch = std::get_if<Batch>(&message);
      if (batch == nullptr) return absl::OkStatus();
      owner_->batches.push_back(batch->number);
      if (owner_->on_batch) owner_->on_batch();
      reply_(ReceiverMessage(std::in_place_type<Ack>, Ack{.applied = batch->number, .credit = 1}));
      return absl::OkStatus();
    }

   private:
    Acceptor* const owner_;
    const ReplyFn reply_;
  };
};

class Observer : public SenderLinkObserver {
 public:
  void OnConnected() override { said += "connected "; }
  void OnDisconnected(const absl::Status&) override { said += "disconnected "; }
  void OnMessage(ReceiverMessage message) override {
    if (const auto* ack = std::get_if<Ack>(&message)) said += std::to_string(ack->applied) + " ";
  }
  void OnWritable() override { said += "writable "; }

  std::string said;
};

SenderMessage BatchOf(BatchNumber number) {
  Batch batch;
  batch.number = number;
  return batch;
}

void RunAll(InProcessLink* link) {
  while (link->Run()) {
  }
}

TEST(InProcessLinkTest, CarriesMessagesBothWaysInOrder) {
  Acceptor acceptor;
  Observer observer;
  InProcessLink link(&acceptor);
  link.Start(&observer);
  EXPECT_FALSE(link.Write(BatchOf(1)));  // Not connected yet.
  RunAll(&link);
  EXPECT_TRUE(link.Write(BatchOf(1)));
  EXPECT_TRUE(link.Write(BatchOf(2)));
  RunAll(&link);
  EXPECT_EQ(acceptor.batches, (std::vector<BatchNumber>{1, 2}));
  EXPECT_EQ(observer.said, "connected 1 2 ");
}

TEST(InProcessLinkTest, AFullQueueRefusesAndSaysWhenThereIsRoom) {
  Acceptor acceptor;
  Observer observer;
  InProcessLink link(&acceptor, /*messages_max=*/2);
  link.Start(&observer);
  RunAll(&link);
  EXPECT_TRUE(link.Write(BatchOf(1)));
  EXPECT_TRUE(link.Write(BatchOf(2)));
  EXPECT_FALSE(link.Write(BatchOf(3)));
  RunAll(&link);
  EXPECT_EQ(observer.said, "connected writable 1 2 ");
  EXPECT_TRUE(link.Write(BatchOf(3)));
}

TEST(InProcessLinkTest, AResetConnectsAgainAndDropsWhatWasQueued) {
  Acceptor acceptor;
  Observer observer;
  InProcessLink link(&acceptor);
  link.Start(&observer);
  RunAll(&link);
  EXPECT_TRUE(link.Write(BatchOf(1)));
  link.Reset();
  EXPECT_FALSE(link.Write(BatchOf(2)));
  RunAll(&link);
  EXPECT_TRUE(acceptor.batches.empty());
  EXPECT_EQ(acceptor.accepted, 2);
  EXPECT_EQ(observer.said, "connected disconnected connected ");
}

TEST(InProcessLinkTest, ASessionThatFailsEndsItsConnection) {
  Acceptor acceptor;
  Observer observer;
  InProcessLink link(&acceptor);
  link.Start(&observer);
  RunAll(&link);
  EXPECT_TRUE(link.Write(Goodbye{}));
  RunAll(&link);
  EXPECT_EQ(observer.said, "connected disconnected connected ");
}

TEST(InProcessLinkTest, RepliesAfterTheEndAreDropped) {
  Acceptor acceptor;
  Observer observer;
  {
    InProcessLink link(&acceptor);
    link.Start(&observer);
    RunAll(&link);
    EXPECT_TRUE(link.Write(BatchOf(1)));
    link.Stop(std::chrono::seconds(1));
    EXPECT_FALSE(link.Run());
  }
  EXPECT_EQ(acceptor.batches, std::vector<BatchNumber>{1});
  EXPECT_EQ(acceptor.open, 0);
  acceptor.last_reply(ReceiverMessage(std::in_place_type<Ack>, Ack{.applied = 9, .credit = 1}));
  EXPECT_EQ(observer.said, "connected ");
}

// A session whose messages make its owner write more.
TEST(InProcessLinkTest, ASessionMayUseTheLinkWhileItIsFlushed) {
  Acceptor acceptor;
  Observer observer;
  InProcessLink link(&acceptor);
  link.Start(&observer);
  RunAll(&link);
  EXPECT_TRUE(link.Write(BatchOf(1)));
  EXPECT_TRUE(link.Write(BatchOf(2)));
  acceptor.on_batch = [&] {
    link.Write(BatchOf(3));
    link.Reset();
  };
  link.Stop(std::chrono::seconds(1));
  EXPECT_EQ(acceptor.batches, (std::vector<BatchNumber>{1, 2}));
  EXPECT_EQ(acceptor.open, 0);
}

}  // namespace
}  // namespace kvatlas
