// Does this build read what a release wrote, and write what that read? Recorded bytes of every
// message and file format.
//
// Fields may be added: what a release wrote is read without anything unknown, to the same values.
// Of streams, checkpoints and the log in Redis, which older processes read too, this build writes
// the very bytes of the latest release; where a format is to change, that is decided here, by
// recording again (README.md).

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "indexer/base/version.h"
#include "indexer/transport/redis/redis_entry.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/stream.pb.h"
#include "tests/wire/golden.h"

namespace kvatlas {
namespace {

using google::protobuf::Message;

constexpr char kData[] = "tests/wire/data";

std::vector<std::string> Releases() {
  std::vector<std::string> releases;
  for (const auto& entry : std::filesystem::directory_iterator(kData))
    releases.push_back(entry.path().filename());
  std::sort(releases.begin(), releases.end());
  return releases;
}

std::string Read(const std::string& release, const std::string& name) {
  std::ifstream file(std::string(kData) + "/" + release + "/" + name, std::ios::binary);
  EXPECT_TRUE(file) << release << "/" << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Of each line its fields.
std::vector<std::vector<std::string>> Rows(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) rows.push_back(absl::StrSplit(line, '\t'));
  return rows;
}

bool HasUnknown(const Message& message) {
  const google::protobuf::Reflection* const of = message.GetReflection();
  if (!of->GetUnknownFields(message).empty()) return true;
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  of->ListFields(message, &fields);
  for (const auto* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      if (HasUnknown(of->GetMessage(message, field))) return true;
      continue;
    }
    for (int i = 0; i < of->FieldSize(message, field); ++i)
      if (HasUnknown(of->GetRepeatedMessage(message, field, i))) return true;
  }
  return false;
}

class WireTest : public testing::TestWithParam<std::string> {
 protected:
  std::string Recorded(const std::string& name) const { return Read(GetParam(), name); }
  bool is_latest() const { return GetParam() == Releases().back(); }
};

TEST_P(WireTest, EveryMessageIsReadToTheSameValues) {
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  ASSERT_FALSE(AllMessages().empty());  // which links them
  const auto rows = Rows(Recorded("messages.txt"));
  EXPECT_GT(rows.size(), 60u);
  for (const std::vector<std::string>& row : rows) {
    ASSERT_EQ(row.size(), 3u);
    const auto* type = pool->FindMessageTypeByName(row[0]);
    ASSERT_NE(type, nullptr) << row[0] << " is gone";
    auto* factory = google::protobuf::MessageFactory::generated_factory();
    const std::unique_ptr<Message> read(factory->GetPrototype(type)->New());
    const std::unique_ptr<Message> wanted(factory->GetPrototype(type)->New());
    ASSERT_TRUE(read->ParseFromString(absl::HexStringToBytes(row[1]))) << row[0];
    EXPECT_FALSE(HasUnknown(*read)) << row[0] << " has lost a field: " << row[2];
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(row[2], wanted.get()))
        << row[0] << " has another name for a field, which JSON shows: " << row[2];
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*read, *wanted))
        << row[0] << "\nread " << read->ShortDebugString() << "\nwas  " << row[2];
  }
}

TEST_P(WireTest, StreamsAreReadToTheSameValues) {
  const auto rows = Rows(Recorded("stream.txt"));
  const std::vector<SenderMessage> senders = GoldenSenderMessages();
  const std::vector<ReceiverMessage> receivers = GoldenReceiverMessages();
  ASSERT_EQ(rows.size(), senders.size() + receivers.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string bytes = absl::HexStringToBytes(rows[i].at(1));
    if (i < senders.size()) {
      v1::SenderMessage message, now;
      SenderMessage typed;
      ASSERT_TRUE(message.ParseFromString(bytes));
      ASSERT_TRUE(FromProto(message, &typed).ok()) << message.ShortDebugString();
      EXPECT_EQ(typed, senders[i]) << message.ShortDebugString();
      ToProto(senders[i], &now);
      if (is_latest()) {
        EXPECT_EQ(ToHex(now.SerializeAsString()), rows[i].at(1)) << now.ShortDebugString();
      }
    } else {
      v1::ReceiverMessage message, now;
      ReceiverMessage typed;
      ASSERT_TRUE(message.ParseFromString(bytes));
      ASSERT_TRUE(FromProto(message, &typed).ok()) << message.ShortDebugString();
      EXPECT_EQ(typed, receivers[i - senders.size()]) << message.ShortDebugString();
      ToProto(receivers[i - senders.size()], &now);
      if (is_latest()) {
        EXPECT_EQ(ToHex(now.SerializeAsString()), rows[i].at(1)) << now.ShortDebugString();
      }
    }
  }
}

TEST_P(WireTest, EntriesOfTheLogInRedisAreRead) {
  const auto rows = Rows(Recorded("redis_log.txt"));
  const std::vector<SenderMessage> messages = GoldenSenderMessages();
  ASSERT_EQ(rows.size(), messages.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::optional<RedisEntryId> id = RedisEntryId::Parse(rows[i].at(0));
    ASSERT_TRUE(id.has_value());
    const absl::StatusOr<SenderMessage> read =
        DecodeRedisEntry(absl::HexStringToBytes(rows[i].at(1)), *id);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, messages[i]);
    if (is_latest()) {
      EXPECT_EQ(ToHex(EncodeRedisEntry(messages[i], *id)), rows[i].at(1));
    }
  }
}

TEST_P(WireTest, CheckpointsAreRead) {
  const absl::StatusOr<std::string> told =
      TextOfCheckpoint(std::string(kData) + "/" + GetParam() + "/checkpoint.bin");
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(*told, Recorded("checkpoint.txt"));
  if (is_latest()) {
    EXPECT_TRUE(GoldenCheckpoint(Recorded("replica_snapshot.bin")) == Recorded("checkpoint.bin"));
  }
}

TEST_P(WireTest, SnapshotsOfReplicasAreRead) {
  const absl::StatusOr<std::string> told = TextOfReplicaSnapshot(Recorded("replica_snapshot.bin"));
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(*told, Recorded("replica_snapshot.txt"));
}

TEST_P(WireTest, DumpsAreRead) {
  const absl::StatusOr<std::string> told = TextOfDynamoDump(Recorded("dynamo_dump.json"));
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(*told, Recorded("dynamo_dump.txt"));
}

INSTANTIATE_TEST_SUITE_P(Releases, WireTest, testing::ValuesIn(Releases()), [](const auto& of) {
  std::string name = "v" + of.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

TEST(WireReleasesTest, ThisVersionIsRecorded) {
  const std::vector<std::string> releases = Releases();
  EXPECT_NE(std::find(releases.begin(), releases.end(), kVersion), releases.end())
      << "record it: bazel run //tests/wire:record -- $PWD/tests/wire/data/" << kVersion;
}

}  // namespace
}  // namespace kvatlas
