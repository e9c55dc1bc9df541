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
  ExpectRefused(std::string(100, 'x'), "neither KVOPS001 nor SMGMCK01");
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

// ---- SMG's corpora ----

// Appends numbers as they lie in memory.
class Bytes {
 public:
  template <typename Number>
  Bytes& Add(Number number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
    return *this;
  }
  Bytes& Add(const std::string& text) {
    bytes_ += text;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

struct CorpusOptions {
  uint64_t parent = 901;
  uint64_t totals_queries = 1;
};

// Worker 77 stores [901 902] of locals 1 2, rank 1 of it [901] of local 5; 902 is followed by [903]
// of local 3; 902 and an unknown one are removed; a query of locals 1 2 3; a clear.
std::string ExampleCorpus(const CorpusOptions& options = {}) {
  Bytes out;
  out.Add(std::string("SMGMCK01")).Add(1u).Add(64u);
  for (int i = 0; i < 5; ++i) out.Add(uint64_t{1});
  out.Add(options.totals_queries);
  for (uint64_t total : {3, 1, 1, 3, 4, 2}) out.Add(total);
  out.Add(uint64_t{5}).Add(std::string("trace"));
  out.Add(uint64_t{3});
  for (uint64_t local : {1, 2, 3}) out.Add(local);
  out.Add(uint64_t{4});
  for (uint64_t number : {901, 1, 902, 2, 903, 3, 901, 5}) out.Add(number);
  out.Add(uint64_t{2}).Add(uint64_t{902}).Add(uint64_t{555});
  out.Add(uint64_t{6});
  const auto store = [&](uint32_t id, uint32_t rank, bool has_parent, uint64_t parent,
                         uint64_t start, uint32_t length) {
    out.Add(id).Add(uint64_t{100}).Add(uint64_t{77}).Add(uint8_t{1}).Add(rank).Add(uint64_t{id});
    out.Add(uint8_t{has_parent}).Add(parent).Add(uint8_t{0}).Add(0u).Add(start).Add(length);
  };
  store(0, 0, false, 0, 0, 2);
  store(1, 1, false, 0, 3, 1);
  store(2, 0, true, options.parent, 2, 1);
  out.Add(3u).Add(uint64_t{200}).Add(uint64_t{77}).Add(uint8_t{2}).Add(0u).Add(uint64_t{3});
  out.Add(uint64_t{0}).Add(2u);
  out.Add(4u).Add(uint64_t{300}).Add(uint64_t{0}).Add(uint8_t{0}).Add(uint64_t{0}).Add(3u);
  out.Add(5u).Add(uint64_t{400}).Add(uint64_t{77}).Add(uint8_t{3}).Add(1u).Add(uint64_t{4});
  return out.bytes();
}

TEST(SmgCorpusTest, EngineHashesBecomeSequenceHashes) {
  WriteAll(TestPath(), ExampleCorpus({.parent = 902, .totals_queries = 1}));
  absl::StatusOr<OpsFile> file = OpsFile::Open(TestPath());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header().workers, 2u);
  EXPECT_EQ(file->header().block_size, 64u);
  EXPECT_EQ(file->header().store_blocks, 4u);
  EXPECT_EQ(file->header().duration_ns, 400u);
  const std::vector<OpBlock> sequence = Sequence(1, 3);
  const std::span<const BenchOp> ops = file->ops();
  ASSERT_EQ(ops.size(), 6u);
  EXPECT_EQ(ops[0].blocks[1].seq, sequence[1].seq);
  EXPECT_EQ(ops[1].header.worker, 1u);
  EXPECT_EQ(ops[1].blocks[0].seq, SequenceHash{5});
  EXPECT_EQ(ops[2].header.position, 2u);
  EXPECT_EQ(ops[2].header.parent, Raw(sequence[1].seq));
  EXPECT_EQ(ops[2].blocks[0].seq, sequence[2].seq);
  ASSERT_EQ(ops[3].removed.size(), 1u);
  EXPECT_EQ(ops[3].removed[0], sequence[1].seq);
  EXPECT_EQ(ops[4].header.kind, OpKind::kQuery);
  EXPECT_EQ(ops[4].blocks[2].seq, sequence[2].seq);
  EXPECT_EQ(ops[5].header.kind, OpKind::kClear);
  EXPECT_EQ(ops[5].header.worker, 1u);
}

TEST(SmgCorpusTest, AParentIsLookedForInItsOwnRank) {
  ExpectRefused(ExampleCorpus({.parent = 555, .totals_queries = 1}),
                "operation 2: its parent was never stored");
}

TEST(SmgCorpusTest, TotalsMustBeThoseOfTheOperations) {
  ExpectRefused(ExampleCorpus({.parent = 901, .totals_queries = 2}),
                "the totals are not what the operations have");
}

TEST(SmgCorpusTest, EveryPrefixIsRefused) {
  const std::string bytes = ExampleCorpus();
  for (size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_FALSE(StatusOfFile(bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_TRUE(StatusOfFile(bytes).ok());
  ExpectRefused(bytes + "x", "bytes after the last operation");
}

}  // namespace
}  // namespace kvatlas
