#include "indexer/service/security/record_keys.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "indexer/service/security/secret_file.h"

namespace kvatlas {
namespace {

constexpr char kOld[] = "the old key has enough bytes";
constexpr char kNew[] = "the new key has enough as well";

class RecordKeysTest : public testing::Test {
 protected:
  void Write(const std::string& text) { ASSERT_TRUE(WriteFileByRename(path_, text, 0600).ok()); }
  const std::string path_ = testing::TempDir() + "/record_keys_" +
                            testing::UnitTest::GetInstance()->current_test_info()->name();
};

// RFC 4231 has no context: this is HMAC-SHA-256("0:" + record) of openssl 3.0.
TEST_F(RecordKeysTest, IsHmacSha256) {
  Write("0123456789abcdef0123456789abcdef");
  const auto keys = RecordKeys::Read(path_);
  ASSERT_TRUE(keys.ok()) << keys.status();
  std::string hex;
  for (const char byte : (*keys)->Sign("", "record")) {
    const char digits[] = "0123456789abcdef";
    hex += digits[static_cast<uint8_t>(byte) >> 4];
    hex += digits[static_cast<uint8_t>(byte) & 15];
  }
  EXPECT_EQ(hex, "98e2ae38c7f5eec2ea46bcde4aa18e318c4a0116a0459da19a613308ce4b6e9f");
}

TEST_F(RecordKeysTest, ARecordVerifiesInItsPlaceAlone) {
  Write(kOld);
  const auto keys = *RecordKeys::Read(path_);
  const std::string mac = keys->Sign("stream 7", "record");
  EXPECT_TRUE(keys->Verify("stream 7", "record", mac));
  EXPECT_FALSE(keys->Verify("stream 8", "record", mac));
  EXPECT_FALSE(keys->Verify("stream 7", "recorD", mac));
  EXPECT_FALSE(keys->Verify("stream 7r", "ecord", mac)) << "nothing moves across the border";
  EXPECT_FALSE(keys->Verify("stream 7", "record", mac.substr(1)));
  EXPECT_FALSE(keys->Verify("stream 7", "record", ""));
}

TEST_F(RecordKeysTest, KeysRotateWithoutARecordThatIsRefused) {
  Write(kOld);
  const auto writer = *RecordKeys::Read(path_);
  const std::string reader_path = path_ + ".reader";
  ASSERT_TRUE(WriteFileByRename(reader_path, kOld, 0600).ok());
  const auto reader = *RecordKeys::Read(reader_path);
  const auto passes = [&] { return reader->Verify("s", "r", writer->Sign("s", "r")); };
  const std::string both = std::string(kOld) + "\n" + kNew + "\n";
  const std::string other = std::string(kNew) + "\n" + kOld + "\n";
  const std::string old = writer->Sign("s", "r");
  for (const std::string& next : {both, other}) {
    for (const std::string& path : {reader_path, path_}) {
      ASSERT_TRUE(WriteFileByRename(path, next, 0600).ok());
      reader->LookAtFile();
      writer->LookAtFile();
      EXPECT_TRUE(passes()) << next;
    }
  }
  EXPECT_TRUE(reader->Verify("s", "r", old)) << "records of before are still taken";
  ASSERT_TRUE(WriteFileByRename(reader_path, kNew, 0600).ok());
  reader->LookAtFile();
  EXPECT_TRUE(passes());
  EXPECT_FALSE(reader->Verify("s", "r", old)) << "the old key is gone";
}

TEST_F(RecordKeysTest, ABadFileKeepsTheKeys) {
  Write(kOld);
  const auto keys = *RecordKeys::Read(path_);
  const std::string mac = keys->Sign("s", "r");
  for (const std::string& bad :
       {std::string(""), std::string("short"),
        std::string(kOld) + "\n" + kOld + "\n" + kOld + "\n" + kOld + "\n" + kOld}) {
    Write(bad);
    keys->LookAtFile();
    EXPECT_TRUE(keys->Verify("s", "r", mac));
    const absl::Status status = RecordKeys::Read(path_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(status.message().find("old key"), std::string::npos) << status;
  }
  Write(kOld);
  ASSERT_EQ(chmod(path_.c_str(), 0644), 0);
  EXPECT_FALSE(RecordKeys::Read(path_).ok()) << "others may read it";
}

}  // namespace
}  // namespace kvatlas
