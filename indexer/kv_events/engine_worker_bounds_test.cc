// How much memory can an engine's events take? Names of adapters and salts, and blocks that wait
// for their parent.

#include <malloc.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/base/memory_budget.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/engine_worker_test_util.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;

OwnedEvent Under(std::string_view lora_name, std::string_view cache_salt, OwnedEvent event) {
  event.event.lora_name = lora_name;
  if (!cache_salt.empty()) event.event.cache_salt = cache_salt;
  return event;
}

std::vector<uint64_t> Numbers(size_t count, uint64_t from) {
  std::vector<uint64_t> numbers(count);
  for (uint64_t& number : numbers) number = from++;
  return numbers;
}

// ---- Names of adapters and salts ----

TEST(NamespaceBoundsTest, BlocksThatWaitShareTheNameOfTheirAdapter) {
  const std::string lora(4000, 'l');
  TestWorker worker;
  const size_t before = mallinfo2().uordblks;
  worker.Apply({Under(lora, "", StoreEvent(Numbers(2000, 2), Tokens(8000, 4), 1))});
  EXPECT_LT(mallinfo2().uordblks, before + 4'000'000);
  EXPECT_EQ(worker.RankStats().parked, 2000);
  worker.Apply({Under(lora, "", StoreEvent({1}, Tokens(4)))});
  EXPECT_EQ(worker.Reach(Tokens(8004), {.lora_name = lora}), 2001);
}

TEST(NamespaceBoundsTest, NamesAreCountedAsMemoryOfTheRankUntilTheyGo) {
  const std::string lora(4000, 'l'), salt(3000, 's');
  TestWorker worker;
  worker.Apply({StoreEvent({1}, Tokens(4))});
  const uint64_t plain = worker.RankStats().alias_bytes;
  worker.Apply({Under(lora, salt, StoreEvent({12}, Tokens(4, 4), 11))});
  EXPECT_GT(worker.RankStats().alias_bytes, plain + 7000) << "of a block that waits";
  worker.Apply({RemoveEvent({12}), Under(lora, salt, StoreEvent({11}, Tokens(4)))});
  EXPECT_GT(worker.RankStats().alias_bytes, plain + 7000) << "of one that is placed";
  worker.Apply({RemoveEvent({11})});
  EXPECT_LT(worker.RankStats().alias_bytes, plain + 1000);
}

TEST(NamespaceBoundsTest, AStoreUnderANameThatIsTooLongIsRefused) {
  const std::string most(4096, 'x'), more(4097, 'x');
  TestWorker worker;
  OwnedEvent plain_salt = StoreEvent({3}, Tokens(4, 30));
  plain_salt.extra_keys = {{{ExtraKey::Kind::kText, more}}};
  OwnedEvent envelope = StoreEvent({4}, Tokens(4, 40));
  envelope.event.additional_salt = more;
  worker.Apply({Under(more, "", StoreEvent({1}, Tokens(4, 10))),
                Under("", more, StoreEvent({2}, Tokens(4, 20))), plain_salt, envelope,
                Under(more, "", StoreEvent({6, 7}, Tokens(8, 60), 5))});
  EXPECT_EQ(worker.Refused(Refusal::kTooLarge), 6);
  EXPECT_NE(worker->Stats().last_refusal.find("4097 bytes; at most 4096"), std::string::npos)
      << worker->Stats().last_refusal;
  EXPECT_EQ(worker.RankStats().aliases + worker.RankStats().parked, 0);
  EXPECT_EQ(worker.trust(), Trust::kExact) << "missed, as after any store that is refused";
  worker.Apply({Under(most, most, StoreEvent({1}, Tokens(4, 10)))});
  EXPECT_EQ(worker.Reach(Tokens(4, 10), {.lora_name = most, .cache_salt = most}), 1);
  EXPECT_FALSE(
      worker
          ->Restore({.hash = HashOf(9), .block = SequenceHash{9}, .copies = {1}, .lora_name = more})
          .ok());
}

TEST(NamespaceBoundsTest, BlocksUnderNamesThatHaveNoRoomAreShed) {
  TestWorker worker({.namespace_bytes_max = 2500});
  const std::vector<std::string> salts = {std::string(900, 'a'), std::string(900, 'b'),
                                          std::string(900, 'c')};
  for (uint64_t i = 0; i < salts.size(); ++i)
    worker.Apply({Under("", salts[i], StoreEvent({i + 1}, Tokens(4)))});
  EXPECT_EQ(worker.Reach(Tokens(4), {.cache_salt = salts[0]}), 1);
  EXPECT_EQ(worker.Reach(Tokens(4), {.cache_salt = salts[2]}), 0);
  EXPECT_EQ(worker.Refused(Refusal::kShed), 1);
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
  worker.Advance(seconds(100));
  EXPECT_EQ(worker.trust(), Trust::kDegraded) << "no event will say it again";
  // The child of a known block needs no name; what is removed makes room.
  worker.Apply({StoreEvent({11}, Tokens(4, 4), 1), RemoveEvent({2}),
                Under("", salts[2], StoreEvent({13}, Tokens(4)))});
  EXPECT_EQ(worker.Reach(Tokens(8), {.cache_salt = salts[0]}), 2);
  EXPECT_EQ(worker.Reach(Tokens(4), {.cache_salt = salts[2]}), 1);
  worker.Apply({ClearEvent()});
  EXPECT_EQ(worker.trust(), Trust::kExact);
}

TEST(NamespaceBoundsTest, WordsOfAnEventAreCutWhereTheyAreRepeated) {
  const std::string medium(1'000'000, 'm');
  TestWorker worker;
  worker.Apply({StoreEvent({1}, Tokens(4), std::nullopt, medium)});
  EXPECT_EQ(worker.Refused(Refusal::kUnknownMedium), 1);
  EXPECT_LT(worker->Stats().last_refusal.size(), 200);
}

// ---- Blocks that wait for their parent ----

TEST(ParkedBoundsTest, BlocksAreBoundedInBytes) {
  TestWorker worker({.orphan_bytes_max = 50'000});
  for (uint64_t i = 0; i < 20; ++i) {
    OwnedEvent event = StoreEvent({10 + i}, Tokens(4, 4), 1);
    event.multimodal = {std::vector<uint64_t>(1000, 7)};
    worker.Apply({event});
  }
  EXPECT_EQ(worker.RankStats().parked, 7) << "of 8,000 bytes and more";
  EXPECT_EQ(worker.Refused(Refusal::kOrphanDropped), 13);
}

TEST(ParkedBoundsTest, WhileMemoryIsFullNothingIsParkedAndNoNameIsNew) {
  uint64_t used = 50;
  MemoryBudget memory(100, [&] { return used; });
  TestWorker worker({.memory = &memory});
  worker.Apply({StoreEvent({1}, Tokens(4)), Under("", "old", StoreEvent({21}, Tokens(4))),
                StoreEvent({12}, Tokens(4, 4), 11)});
  used = 90;
  memory.Measure();
  worker.Apply(
      {StoreEvent({14}, Tokens(4, 8), 13), Under("", "old", StoreEvent({22}, Tokens(4, 4)))});
  EXPECT_EQ(worker.RankStats().parked, 1);
  EXPECT_EQ(worker.Refused(Refusal::kOrphanDropped), 1);
  EXPECT_EQ(worker.Reach(Tokens(4, 4), {.cache_salt = "old"}), 1) << "the index has room";
  EXPECT_EQ(worker.trust(), Trust::kExact);
  worker.Apply({Under("", "new", StoreEvent({31}, Tokens(4)))});
  EXPECT_EQ(worker.Reach(Tokens(4), {.cache_salt = "new"}), 0);
  EXPECT_EQ(worker.trust(), Trust::kDegraded);
  // A removal is heard at every level, and the parent of a block that waits links it.
  worker.Apply({RemoveEvent({1}), StoreEvent({11}, Tokens(4))});
  EXPECT_EQ(worker.Reach(Tokens(8)), 2);
  EXPECT_EQ(worker.RankStats().parked, 0);
}

}  // namespace
}  // namespace kvatlas
