#include "indexer/net/arena_messages.h"

#include <vector>

#include "google/protobuf/struct.pb.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using Messages = ArenaMessages<google::protobuf::ListValue, google::protobuf::ListValue>;

TEST(ArenaMessagesTest, MessagesAreEmptyEachTimeAndTheArenaIsUsedAgain) {
  Messages messages;
  auto* first = messages.AllocateMessages();
  for (int i = 0; i < 1000; ++i) first->response()->add_values()->set_number_value(i);
  EXPECT_NE(first->request()->GetArena(), nullptr);
  google::protobuf::Arena* const arena = first->response()->GetArena();
  first->Release();
  EXPECT_EQ(messages.kept(), 1u);
  auto* second = messages.AllocateMessages();
  EXPECT_EQ(messages.kept(), 0u);
  EXPECT_EQ(second->response()->GetArena(), arena);
  EXPECT_EQ(second->response()->values_size(), 0);
  second->Release();
}

TEST(ArenaMessagesTest, KeepsNoMoreThanItMay) {
  Messages messages(/*reused_max=*/2);
  std::vector<grpc::MessageHolder<google::protobuf::ListValue, google::protobuf::ListValue>*> held;
  for (int i = 0; i < 5; ++i) held.push_back(messages.AllocateMessages());
  for (auto* holder : held) holder->Release();
  EXPECT_EQ(messages.kept(), 2u);
}

TEST(ArenaMessagesTest, CallsBeyondTheReusedArenasCostWhatTheirMessagesHold) {
  Messages messages(/*reused_max=*/1);
  auto* reused = messages.AllocateMessages();
  auto* beyond = messages.AllocateMessages();
  EXPECT_GE(reused->request()->GetArena()->SpaceAllocated(), Messages::kArenaBytes);
  EXPECT_LE(beyond->request()->GetArena()->SpaceAllocated(), 1024u);
  for (int i = 0; i < 1000; ++i) beyond->response()->add_values()->set_number_value(i);
  EXPECT_EQ(beyond->response()->values_size(), 1000);
  beyond->Release();
  reused->Release();
}

}  // namespace
}  // namespace kvatlas
