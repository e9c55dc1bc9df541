// Logs whose records are signed, and users that may reach one cell alone: a real redis-server, and
// an attacker who may write to it.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/net/redis_client.h"
#include "indexer/security/secret_file.h"
#include "indexer/stream/messages.h"
#include "indexer/transport/redis/redis_entry.h"
#include "indexer/transport/redis/redis_keys.h"
#include "indexer/transport/redis/redis_log_harness.h"
#include "indexer/transport/redis/redis_log_options.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {
namespace {

constexpr uint64_t kMadeUp = 0xbad'0000;

class RedisSealedLogTest : public testing::Test {
 protected:
  RedisSealedLogTest() {
    std::string directory = testing::TempDir() + "/redis_sealed_XXXXXX";
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    directory_ = directory;
  }

  std::string PathOf(const std::string& name) const { return directory_ + "/" + name; }
  void Write(const std::string& name, const std::vector<std::string>& keys) {
    std::string text;
    for (const std::string& key : keys) absl::StrAppend(&text, key, " and so many bytes more\n");
    ASSERT_TRUE(WriteFileByRename(PathOf(name), text, 0600).ok());
  }
  RedisLogOptions With(const std::string& key_file) const {
    return TestLogOptions(server_.url() + "?log_key=" + PathOf(key_file));
  }

  std::string StreamName() const { return RedisStreamName({"worker-0", 0, ""}, kTestDomain); }
  std::string LogKey() const { return RedisTag("cell", 0) + ":log:" + StreamName(); }
  // Registers that name with an entry that no key of ours signed.
  void RegisterMadeUp(Epoch epoch, RecordKeys* keys) {
    const std::string stream = StreamName();
    Hello hello;
    hello.holder = {"worker-0", 0, ""};
    hello.domain = kTestDomain;
    hello.block_size = 16;
    hello.contract_id = kTestContract;
    hello.epoch = epoch;
    hello.instance_id = 9;
    const RedisSeal seal{.keys = keys, .cell = "cell", .stream = stream};
    const std::string entry = EncodeRedisEntry(hello, RedisEntryId::Of(epoch, 0), seal);
    EXPECT_TRUE(client_
                    .Call({"HSET", StreamsKey(), stream,
                           RedisPadded(epoch) + RedisHex(hello.instance_id) + entry})
                    .ok());
    EXPECT_TRUE(
        client_.Call({"XADD", RedisTag("cell", 0) + ":news", "*", "k", "h", "s", stream}).ok());
  }
  std::string StreamsKey() const { return RedisTag("cell", 0) + ":streams"; }
  // The worker's registration is signed by the first key of that file.
  bool Registered(const std::string& key_file) {
    const std::string stream = StreamName();
    const absl::StatusOr<RedisReply> reply = client_.Call({"HGET", StreamsKey(), stream});
    constexpr size_t kOwner = 36;
    if (!reply.ok() || reply->text.size() < kOwner) return false;
    const std::shared_ptr<RecordKeys> keys = *RecordKeys::Read(PathOf(key_file));
    return DecodeRedisEntry(std::string_view(reply->text).substr(kOwner), RedisEntryId::Of(1000, 0),
                            {.keys = keys.get(), .cell = "cell", .stream = stream})
        .ok();
  }
  // As the worker's batch of that number, signed with `keys`.
  absl::Status Forge(BatchNumber number, RecordKeys* keys) {
    const RedisEntryId id = RedisEntryId::Of(1000, number);
    Batch batch;
    batch.number = number;
    batch.events = {RunOf(kMadeUp, 10)};
    const std::string stream = StreamName();
    const RedisSeal seal{.keys = keys, .cell = "cell", .stream = stream};
    return client_.Call({"XADD", LogKey(), id.ToString(), "m", EncodeRedisEntry(batch, id, seal)})
        .status();
  }

  RedisTestServer server_;
  RedisClient client_{*ParseRedisUrl(server_.url())};
  std::string directory_;
};

// A worker that signs, and a leaf that knows it exactly.
class RedisSealedWorkerTest : public RedisSealedLogTest {
 protected:
  RedisSealedWorkerTest() { ApplyAndAwait(RunOf(100, 50)); }

  std::shared_ptr<RecordKeys> KeysOf(const std::string& name) {
    Write(name, {name});
    return *RecordKeys::Read(PathOf(name));
  }
  void ApplyAndAwait(const Event& event) {
    worker_.Apply(event);
    leaf_.AwaitExact(worker_);
  }

  const std::shared_ptr<RecordKeys> ours_ = KeysOf("ours"), theirs_ = KeysOf("theirs");
  const RedisLogOptions options_ = With("ours");
  RedisLeaf leaf_{options_};
  RedisWorker worker_{options_, {}};
};

TEST_F(RedisSealedLogTest, WhoHasTheKeyIsHeardAndNobodyElse) {
  Write("ours", {"ours"});
  Write("theirs", {"theirs"});
  RedisLeaf leaf(With("ours"), "leaf");
  RedisLeaf plain(TestLogOptions(server_.url()), "plain");
  RedisLeaf foreign(With("theirs"), "foreign");
  RedisWorker worker(With("ours"), {});
  worker.Apply(RunOf(100, 50));
  leaf.AwaitExact(worker);
  AwaitTrue([&] { return plain.reader_stats().entries_damaged > 0; });
  AwaitTrue([&] { return foreign.reader_stats().entries_forged > 0; });
  EXPECT_FALSE(plain.DigestOf(worker.holder()).has_value());
  EXPECT_FALSE(foreign.DigestOf(worker.holder()).has_value());
  EXPECT_EQ(leaf.reader_stats().entries_forged, 0u);
  EXPECT_EQ(leaf.reader_stats().entries_damaged, 0u);
  // A worker that does not sign is not heard by a leaf that wants signatures.
  RedisWorker unsigned_worker(TestLogOptions(server_.url()), {.name = "worker-1"});
  unsigned_worker.Apply(RunOf(500, 5));
  AwaitTrue([&] { return leaf.reader_stats().entries_forged > 0; });
  EXPECT_FALSE(leaf.DigestOf(unsigned_worker.holder()).has_value());
}

TEST_F(RedisSealedWorkerTest, ForgedRecordsAreSkippedCountedAndHealed) {
  uint64_t forged = 0;
  for (RecordKeys* const keys : {static_cast<RecordKeys*>(nullptr), theirs_.get()}) {
    // The worker may be faster: then Redis refuses, and the next number is tried.
    AwaitTrue([&] { return Forge(worker_.pump().last_number() + 1, keys).ok(); });
    AwaitTrue([&] { return leaf_.reader_stats().entries_forged > forged; });
    forged = leaf_.reader_stats().entries_forged;
    for (uint64_t i = 0; i < 10; ++i)
      EXPECT_FALSE(leaf_.registry().MayHold(kTestDomain, SequenceHash{kMadeUp + i}));
    ApplyAndAwait(RunOf(1000 + forged, 10));
  }
  // A genuine record under another number.
  const auto entries = client_.Call({"XRANGE", LogKey(), "-", "+", "COUNT", "1"});
  ASSERT_TRUE(entries.ok() && !entries->elements.empty()) << entries.status();
  const std::string genuine = entries->elements[0].elements[1].elements[1].text;
  const auto replay = [&] {
    const RedisEntryId next = RedisEntryId::Of(1000, worker_.pump().last_number() + 1);
    return client_.Call({"XADD", LogKey(), next.ToString(), "m", genuine}).ok();
  };
  AwaitTrue(replay);
  AwaitTrue([&] { return leaf_.reader_stats().entries_forged > forged; });
  ApplyAndAwait(RunOf(5000, 10));
}

TEST_F(RedisSealedLogTest, KeysRotateWhileTheLogIsWritten) {
  Write("worker", {"key 0"});
  Write("leaf", {"key 0"});
  const RedisLogOptions of_worker = With("worker");
  const RedisLogOptions of_leaf = With("leaf");
  RedisLeaf leaf(of_leaf);
  RedisWorker worker(of_worker, {});
  uint64_t runs = 0;
  const auto use = [&](const std::vector<std::string>& keys) {
    for (const auto& [name, options] :
         {std::pair("leaf", &of_leaf), std::pair("worker", &of_worker)}) {
      Write(name, keys);
      options->redis.record_keys->LookAtFile();
      worker.Apply(RunOf(100 * ++runs, 10));
    }
  };
  for (int i = 0; i < 20; ++i) {
    const std::string old = absl::StrCat("key ", i), fresh = absl::StrCat("key ", i + 1);
    use({old, fresh});
    use({fresh, old});
    leaf.AwaitExact(worker);
    // Leaves read it again from time to time, and those that start later too.
    Write("fresh", {fresh});
    AwaitTrue([&] { return Registered("fresh"); });
    use({fresh});
  }
  leaf.AwaitExact(worker);
  RedisLeaf late(of_leaf, "late");
  late.AwaitExact(worker);
  EXPECT_EQ(leaf.reader_stats().entries_forged, 0u);
  EXPECT_EQ(leaf.reader_stats().entries_damaged, 0u);
  EXPECT_EQ(leaf.StatsOf(worker.holder())->receiver.gaps, 0u);
}

// An attacker that may write to Redis registers a younger epoch: without a signature by our keys it
// fences no worker.
TEST_F(RedisSealedWorkerTest, AMadeUpEpochFencesNoWorker) {
  uint64_t first = 1000;
  const auto goes_on = [&] {
    const uint64_t hellos = worker_.pump().stats().hellos_sent;
    AwaitTrue([&] { return worker_.pump().stats().hellos_sent > hellos; });
    ApplyAndAwait(RunOf(first += 100, 10));
    EXPECT_EQ(leaf_.StatsOf(worker_.holder())->epoch, 1000u);
    EXPECT_EQ(worker_.pump().stats().replaced, 0u);
  };
  for (RecordKeys* const keys : {static_cast<RecordKeys*>(nullptr), theirs_.get()}) {
    RegisterMadeUp(2000, keys);
    goes_on();
  }
  // A log of a younger epoch alone, without a registration.
  EXPECT_TRUE(client_.Call({"HDEL", StreamsKey(), StreamName()}).ok());
  EXPECT_TRUE(client_.Call({"DEL", LogKey()}).ok());
  EXPECT_TRUE(client_.Call({"XADD", LogKey(), "2000-0", "m", "nothing"}).ok());
  goes_on();
  // A younger epoch that a key of ours signed counts.
  RedisWorker younger(options_, {.epoch = 3000, .instance_id = 8});
  younger.Apply(RunOf(9000, 10));
  AwaitTrue([&] { return worker_.pump().stats().replaced > 0; });
  leaf_.AwaitExact(younger);
}

TEST_F(RedisSealedWorkerTest, OnlyTheWorkerItselfSaysGoodbye) {
  const std::string unsigned_goodbye = EncodeRedisEntry(Goodbye{}, RedisEntryId::Last(1000));
  EXPECT_TRUE(client_
                  .Call({"XADD", RedisTag("cell", 0) + ":news", "*", "k", "g", "s", StreamName(),
                         "e", "1000", "m", unsigned_goodbye})
                  .ok());
  AwaitTrue([&] { return leaf_.reader_stats().entries_forged > 0; });
  EXPECT_EQ(leaf_.DigestOf(worker_.holder()), worker_.digest());
  ApplyAndAwait(RunOf(500, 10));
  worker_.Stop(/*goodbye=*/true);
  AwaitTrue([&] { return !leaf_.StatsOf(worker_.holder()).has_value(); });
}

TEST_F(RedisSealedLogTest, AWorkerWithAKeyOfItsOwnSpeaksForItselfAlone) {
  Write("cell", {"of the cell"});
  for (const std::string name : {"worker-0", "worker-1"})
    ASSERT_TRUE(RecordKeys::WriteOfWorker(PathOf("cell"), name, PathOf(name)).ok());
  RedisLeaf leaf(With("cell"));
  RedisWorker own(With("worker-0"), {});
  RedisWorker with_the_cells(With("cell"), {.name = "worker-2"});
  own.Apply(RunOf(100, 50));
  with_the_cells.Apply(RunOf(100, 50));
  leaf.AwaitExact(own);
  leaf.AwaitExact(with_the_cells);
  EXPECT_EQ(leaf.reader_stats().entries_forged, 0u);
  // In worker-0's log, by worker-1: its own link does not even try.
  const std::shared_ptr<RecordKeys> other = *RecordKeys::Read(PathOf("worker-1"));
  AwaitTrue([&] { return Forge(own.pump().last_number() + 1, other.get()).ok(); });
  AwaitTrue([&] { return leaf.reader_stats().entries_forged > 0; });
  RegisterMadeUp(2000, other.get());
  own.Apply(RunOf(1000, 10));
  leaf.AwaitExact(own);
  EXPECT_FALSE(leaf.registry().MayHold(kTestDomain, SequenceHash{kMadeUp}));
  EXPECT_EQ(own.pump().stats().replaced, 0u);
  RedisWorker intruder(With("worker-1"), {.epoch = 3000, .instance_id = 8});
  AwaitTrue([&] { return intruder.link().Stats().losses > 0; });
  EXPECT_TRUE(absl::IsFailedPrecondition(intruder.link().Stats().last_loss))
      << intruder.link().Stats().last_loss;
  EXPECT_EQ(leaf.StatsOf(own.holder())->epoch, 1000u);
}

// The rights that README.md lists for such a user.
TEST(RedisUserTest, AUserOfACellReachesThatCellAlone) {
  RedisTestServer server(
      {"user cell-a on >secret ~{kvatlas:a:* ~kvatlas:a:* +@stream +@hash +@scripting "
       "+@connection +exists +del +unlink +pexpire +pttl +time +setnx +get",
       "user default off"});
  const std::string url = absl::StrCat("redis://cell-a:secret@127.0.0.1:", server.port());
  RedisLogOptions own = TestLogOptions(url);
  own.cell = "a";
  RedisLogOptions other = own;
  other.cell = "b";
  RedisLeaf leaf(own);
  RedisWorker worker(own, {});
  worker.Apply(RunOf(100, 50));
  worker.AwaitAtRest();
  EXPECT_TRUE(leaf.Has(worker));
  RedisWorker intruder(other, {});
  intruder.Apply(RunOf(100, 50));
  AwaitTrue([&] { return intruder.link().Stats().losses > 0; });
  EXPECT_TRUE(absl::IsPermissionDenied(intruder.link().Stats().last_loss))
      << intruder.link().Stats().last_loss;
  RedisClient client(own.redis);
  EXPECT_TRUE(
      absl::IsPermissionDenied(client.Call({"HGETALL", RedisTag("b", 0) + ":streams"}).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(client.Call({"CONFIG", "GET", "*"}).status()));
}

}  // namespace
}  // namespace kvatlas
