#include "indexer/security/record_keys.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "indexer/security/secret_file.h"

namespace kvatlas {
namespace {

constexpr char kOld[] = "the old key has enough bytes";
constexpr char kNew[] = "the new key has enough as well";
constexpr RecordKeys::By kCell = RecordKeys::By::kCell;
constexpr RecordKeys::By kWorker = RecordKeys::By::kWorker;

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
  for (const char byte : (*keys)->Sign("w", "", "record").mac) {
    const char digits[] = "0123456789abcdef";
    hex += digits[static_cast<uint8_t>(byte) >> 4];
    hex += digits[static_cast<uint8_t>(byte) & 15];
  }
  EXPECT_EQ(hex, "98e2ae38c7f5eec2ea46bcde4aa18e318c4a0116a0459da19a613308ce4b6e9f");
}

TEST_F(RecordKeysTest, ARecordVerifiesInItsPlaceAlone) {
  Write(kOld);
  const auto keys = *RecordKeys::Read(path_);
  const std::string mac = keys->Sign("w", "stream 7", "record").mac;
  EXPECT_TRUE(keys->Verify(kCell, "w", "stream 7", "record", mac));
  EXPECT_FALSE(keys->Verify(kCell, "w", "stream 8", "record", mac));
  EXPECT_FALSE(keys->Verify(kCell, "w", "stream 7", "recorD", mac));
  EXPECT_FALSE(keys->Verify(kCell, "w", "stream 7r", "ecord", mac))
      << "nothing moves across the border";
  EXPECT_FALSE(keys->Verify(kCell, "w", "stream 7", "record", mac.substr(1)));
  EXPECT_FALSE(keys->Verify(kCell, "w", "stream 7", "record", ""));
}

TEST_F(RecordKeysTest, KeysRotateWithoutARecordThatIsRefused) {
  Write(kOld);
  const auto writer = *RecordKeys::Read(path_);
  const std::string reader_path = path_ + ".reader";
  ASSERT_TRUE(WriteFileByRename(reader_path, kOld, 0600).ok());
  const auto reader = *RecordKeys::Read(reader_path);
  const auto passes = [&] {
    return reader->Verify(kCell, "w", "s", "r", writer->Sign("w", "s", "r").mac);
  };
  const std::string both = std::string(kOld) + "\n" + kNew + "\n";
  const std::string other = std::string(kNew) + "\n" + kOld + "\n";
  const std::string old = writer->Sign("w", "s", "r").mac;
  for (const std::string& next : {both, other}) {
    for (const std::string& path : {reader_path, path_}) {
      ASSERT_TRUE(WriteFileByRename(path, next, 0600).ok());
      reader->LookAtFile();
      writer->LookAtFile();
      EXPECT_TRUE(passes()) << next;
    }
  }
  EXPECT_TRUE(reader->Verify(kCell, "w", "s", "r", old)) << "records of before are still taken";
  ASSERT_TRUE(WriteFileByRename(reader_path, kNew, 0600).ok());
  reader->LookAtFile();
  EXPECT_TRUE(passes());
  EXPECT_FALSE(reader->Verify(kCell, "w", "s", "r", old)) << "the old key is gone";
}

TEST_F(RecordKeysTest, AWorkersKeyIsGoodForThatWorkerAlone) {
  Write(std::string(kOld) + "\n" + kNew);
  const auto cell = *RecordKeys::Read(path_);
  const auto of = [&](const std::string& worker) {
    const std::string path = path_ + ".worker";
    EXPECT_TRUE(RecordKeys::WriteOfWorker(path_, worker, path).ok());
    return *RecordKeys::Read(path);
  };
  const std::string odd = "w:1/a b";
  for (const std::string& worker : {std::string("w"), odd}) {
    const auto own = of(worker);
    const RecordKeys::Signature signature = own->Sign(worker, "s", "r");
    EXPECT_EQ(signature.by, kWorker);
    EXPECT_TRUE(cell->Verify(kWorker, worker, "s", "r", signature.mac));
    EXPECT_TRUE(own->Verify(kWorker, worker, "s", "r", signature.mac));
    EXPECT_FALSE(cell->Verify(kWorker, "v", "s", "r", signature.mac)) << "another worker";
    EXPECT_FALSE(cell->Verify(kCell, worker, "s", "r", signature.mac)) << "the cell";
    EXPECT_FALSE(of("v")->Verify(kWorker, worker, "s", "r", signature.mac));
    EXPECT_TRUE(own->Sign("v", "s", "r").mac.empty()) << "it signs for no other";
    // A worker can neither check nor make signatures of the cell's key.
    EXPECT_FALSE(own->Verify(kCell, worker, "s", "r", cell->Sign(worker, "s", "r").mac));
  }
  // Keys of workers are made of each of the cell's, and go with it.
  const RecordKeys::Signature of_old = of("w")->Sign("w", "s", "r");
  Write(kNew);
  cell->LookAtFile();
  EXPECT_FALSE(cell->Verify(kWorker, "w", "s", "r", of_old.mac));
  EXPECT_TRUE(cell->Verify(kWorker, "w", "s", "r", of("w")->Sign("w", "s", "r").mac));
  // No other key can be made from a worker's key.
  ASSERT_TRUE(RecordKeys::WriteOfWorker(path_, "w", path_ + ".w").ok());
  EXPECT_EQ(RecordKeys::WriteOfWorker(path_ + ".w", "v", path_ + ".v").code(),
            absl::StatusCode::kInvalidArgument);
  // Nor is the cell's own replaced.
  EXPECT_EQ(RecordKeys::WriteOfWorker(path_, "w", path_).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(cell->Verify(kWorker, "w", "s", "r", of("w")->Sign("w", "s", "r").mac));
  for (const char* const bad : {"worker:w:12", "worker::", "worker:w", "worker:w:zz"}) {
    Write(bad);
    EXPECT_EQ(RecordKeys::Read(path_).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST_F(RecordKeysTest, ABadFileKeepsTheKeys) {
  Write(kOld);
  const auto keys = *RecordKeys::Read(path_);
  const std::string mac = keys->Sign("w", "s", "r").mac;
  for (const std::string& bad :
       {std::string(""), std::string("short"),
        std::string(kOld) + "\n" + kOld + "\n" + kOld + "\n" + kOld + "\n" + kOld}) {
    Write(bad);
    keys->LookAtFile();
    EXPECT_TRUE(keys->Verify(kCell, "w", "s", "r", mac));
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
