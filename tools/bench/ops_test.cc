#include "tools/bench/ops.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include <gtest/gtest.h>
#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

std::vector<OpBlock> Sequence(uint64_t first_local, size_t blocks) {
  std::vector<LocalHash> locals;
  for (size_t i = 0; i < blocks; ++i) locals.push_back(LocalHash{first_local + i});
  const std::vector<SequenceHash> seqs = SequenceHashes(locals);
  std::vector<OpBlock> sequence;
  for (size_t i = 0; i < blocks; ++i) sequence.push_back({.local = locals[i], .seq = seqs[i]});
  return sequence;
}

std::string TestPath() {
  return testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name() +
         ".ops";
}

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A query, a store behind a parent, a remove and a clear: 64 + (32+48) + (32+32) + (32+16) + 32
// bytes.
std::string ExampleFile() {
  const std::vector<OpBlock> sequence = Sequence(10, 3);
  const std::vector<SequenceHash> removed = {sequence[2].seq, sequence[1].seq};
  absl::StatusOr<OpsWriter> out = OpsWriter::Create(TestPath(), 16, 4);
  EXPECT_TRUE(out.ok());
  out->Query(sequence, 5);
  out->Store(3, 1, sequence[0].seq, std::span(sequence).subspan(1), 6);
  out->Remove(3, removed, 7);
  out->Clear(2, 9);
  EXPECT_TRUE(out->Finish().ok());
  return ReadAll(TestPath());
}

constexpr size_t kQueryAt = 64;
constexpr size_t kStoreAt = kQueryAt + 32 + 48;
constexpr size_t kRemoveAt = kStoreAt + 32 + 32;
constexpr size_t kClearAt = kRemoveAt + 32 + 16;

absl::Status StatusOfFile(const std::string& bytes) {
  WriteAll(TestPath(), bytes);
  return OpsFile::Open(TestPath()).status();
}

// The example with another number at `offset`.
template <typename Number>
std::string ExampleWith(size_t offset, Number number) {
  std::string bytes = ExampleFile();
  std::memcpy(&bytes[offset], &number, sizeof(number));
  return bytes;
}

void ExpectRefused(const std::string& bytes, const std::string& why) {
  const absl::Status status = StatusOfFile(bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), TestPath() + ": " + why);
}

TEST(OpsTest, WhatIsWrittenIsRead) {
  EXPECT_EQ(ExampleFile().size(), kClearAt + 32);
  absl::StatusOr<OpsFile> file = OpsFile::Open(TestPath());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header().block_size, 16u);
  EXPECT_EQ(file->header().workers, 4u);
  EXPECT_EQ(file->header().ops, 4u);
  EXPECT_EQ(file->header().query_blocks, 3u);
  EXPECT_EQ(file->header().store_blocks, 2u);
  EXPECT_EQ(file->header().remove_blocks, 2u);
  EXPECT_EQ(file->header().duration_ns, 9u);
  const std::vector<OpBlock> sequence = Sequence(10, 3);
  const std::span<const BenchOp> ops = file->ops();
  ASSERT_EQ(ops.size(), 4u);
  EXPECT_EQ(ops[0].header.kind, OpKind::kQuery);
  ASSERT_EQ(ops[0].blocks.size(), 3u);
  EXPECT_EQ(ops[0].blocks[2].local, LocalHash{12});
  EXPECT_EQ(ops[0].blocks[2].seq, sequence[2].seq);
  EXPECT_EQ(ops[1].header.kind, OpKind::kStore);
  EXPECT_EQ(ops[1].header.worker, 3u);
  EXPECT_EQ(ops[1].header.position, 1u);
  EXPECT_EQ(ops[1].header.parent, Raw(sequence[0].seq));
  ASSERT_EQ(ops[1].blocks.size(), 2u);
  EXPECT_EQ(ops[1].blocks[0].seq, sequence[1].seq);
  ASSERT_EQ(ops[2].removed.size(), 2u);
  EXPECT_EQ(ops[2].removed[0], sequence[2].seq);
  EXPECT_EQ(ops[3].header.kind, OpKind::kClear);
  EXPECT_EQ(ops[3].header.time_ns, 9u);
}

TEST(OpsTest, NoFileIsNotFound) {
  EXPECT_EQ(OpsFile::Open(testing::TempDir() + "/none.ops").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(OpsTest, AnotherFormatIsRefused) {
  ExpectRefused("short", "shorter than its header");
  ExpectRefused(std::string(100, 'x'), "not a KVOPS001 file");
}

TEST(OpsTest, EveryPrefixIsRefused) {
  const std::string bytes = ExampleFile();
  for (size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_FALSE(StatusOfFile(bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_TRUE(StatusOfFile(bytes).ok());
}

TEST(OpsTest, BytesAfterTheEndAreRefused) {
  ExpectRefused(ExampleFile() + "x", "bytes after the last operation");
}

TEST(OpsTest, TotalsMustBeThoseOfTheOperations) {
  ExpectRefused(ExampleWith<uint64_t>(24, 4), "query_blocks is not what the operations have");
  ExpectRefused(ExampleWith<uint64_t>(32, 4), "store_blocks is not what the operations have");
  ExpectRefused(ExampleWith<uint64_t>(40, 4), "remove_blocks is not what the operations have");
  ExpectRefused(ExampleWith<uint64_t>(16, 3), "bytes after the last operation");
  ExpectRefused(ExampleWith<uint64_t>(16, ~0ull), "more operations than the file has room for");
}

TEST(OpsTest, AnOperationThatCannotBeIsNamed) {
  ExpectRefused(ExampleWith<uint32_t>(kQueryAt, 7), "operation 0: unknown kind");
  ExpectRefused(ExampleWith<uint32_t>(kQueryAt + 4, 1), "operation 0: a query names a worker");
  ExpectRefused(ExampleWith<uint32_t>(kStoreAt + 4, 4), "operation 1: no such worker");
  ExpectRefused(ExampleWith<uint32_t>(kStoreAt + 12, 0),
                "operation 1: a store at the root has a parent");
  ExpectRefused(ExampleWith<uint32_t>(kStoreAt + 12, ~0u), "operation 1: positions overflow");
  ExpectRefused(ExampleWith<uint32_t>(kRemoveAt + 8, ~0u),
                "operation 2: the file ends in its blocks");
  ExpectRefused(ExampleWith<uint32_t>(kClearAt + 8, 1), "operation 3: a clear names blocks");
}

}  // namespace
}  // namespace kvatlas
