// A checkpoint whose records are anything, with checksums that fit; and the same bytes as they are.

#include <algorithm>
#include <cstring>

#include "absl/status/statusor.h"
#include "indexer/checkpoint/checkpoint_file.h"
#include "indexer/checkpoint/checkpoint_records.h"
#include "tests/fuzz/fuzz.h"

namespace kvatlas {
namespace {

constexpr size_t kMagicBytes = 8;

class Bytes final : public ReadableFile {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}
  absl::StatusOr<size_t> Read(uint64_t offset, char* to, size_t size) const override {
    if (offset >= bytes_.size()) return size_t{0};
    const std::string_view piece = bytes_.substr(offset, size);
    std::memcpy(to, piece.data(), piece.size());
    return piece.size();
  }

 private:
  const std::string_view bytes_;
};

// The order of what is told is that of the format.
class Told final : public CheckpointVisitor {
 public:
  absl::Status OnHeader(const CheckpointHeader&) override {
    FuzzCheck(!header_, "two headers");
    header_ = true;
    return absl::OkStatus();
  }
  absl::Status OnDomain(const Domain&, uint32_t) override {
    FuzzCheck(header_, "a domain before the header");
    domain_ = true;
    return absl::OkStatus();
  }
  absl::Status OnHolder(const HolderImage&) override {
    FuzzCheck(domain_, "a holder without a domain");
    holder_ = true;
    return absl::OkStatus();
  }
  absl::Status OnRun(Stored* run, TierMask tiers) override {
    FuzzCheck(holder_ && !run->blocks.empty() && !tiers.empty(), "a run of nothing");
    blocks_ += run->blocks.size();
    return absl::OkStatus();
  }
  absl::Status OnEngines(const ReadChunk& read) override {
    char piece[256];
    for (;;) {
      const absl::StatusOr<size_t> got = read(piece, sizeof piece);
      if (!got.ok()) return got.status();
      if (*got == 0) return absl::OkStatus();
    }
  }
  absl::Status OnEnd() override { return absl::OkStatus(); }
  uint64_t blocks() const { return blocks_; }

 private:
  bool header_ = false, domain_ = false, holder_ = false;
  uint64_t blocks_ = 0;
};

void Read(std::string_view bytes) {
  Told told;
  const absl::StatusOr<CheckpointCounts> counts =
      ReadCheckpoint(Bytes(bytes), {.contract_id = "c", .cell = {}}, &told);
  if (counts.ok()) FuzzCheck(told.blocks() <= bytes.size(), "more blocks than bytes");
  ReadCheckpointHeader(Bytes(bytes)).status().IgnoreError();
}

// Each record's checksum made again; what the end counts is left.
std::string Fitting(std::string_view input) {
  std::string file(input.substr(0, kMagicBytes));
  input.remove_prefix(file.size());
  uint64_t all = 0, records = 0;
  while (input.size() >= kRecordHeadBytes + kRecordTailBytes) {
    const size_t room = input.size() - kRecordHeadBytes - kRecordTailBytes;
    const auto kind = static_cast<uint8_t>(input[0]);
    uint32_t said;
    std::memcpy(&said, input.data() + 1, sizeof said);
    const size_t size = std::min<size_t>(said, room);
    std::string payload(input.substr(kRecordHeadBytes, size));
    input.remove_prefix(kRecordHeadBytes + size + kRecordTailBytes);
    if (kind == kEndRecord && payload.size() >= 24)
      std::memcpy(payload.data() + 16, &all, sizeof all);
    const size_t start = file.size();
    PutNumber(&file, kind);
    PutNumber(&file, static_cast<uint32_t>(payload.size()));
    file += payload;
    const uint64_t checksum = Xxh3(std::string_view(file).substr(start), records++);
    PutNumber(&file, checksum);
    all = FoldChecksum(all, checksum);
  }
  return file;
}

class Written final : public WritableFile {
 public:
  absl::Status Append(std::string_view bytes) override {
    text.append(bytes);
    return absl::OkStatus();
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  std::string text;
};

const AddFuzzSeeds kSeeds([] {
  std::vector<std::string> all;
  for (const bool whole : {false, true}) {
    Written file;
    CheckpointWriter writer(&file, nullptr);
    writer.Begin({.contract_id = "c", .cell = "a", .replica = "r", .wall_time_ns = 1, .number = 2})
        .IgnoreError();
    writer.AddDomain({"m", "t"}, 16).IgnoreError();
    if (whole) {
      HolderCut cut;
      cut.image.info.id = {"w", 1, "r"};
      cut.image.info.labels = {{"url", "http://h:1"}};
      cut.image.stream.epoch = 3;
      cut.image.load = Load{.running_requests = 1};
      for (uint64_t i = 1; i <= 5; ++i)
        cut.holdings.push_back({.block = SequenceHash{i},
                                .position = static_cast<Position>(i - 1),
                                .parent = i == 1 ? kNoParent : SequenceHash{i - 1},
                                .tiers = TierMask(1)});
      writer.AddHolder(cut).IgnoreError();
      writer.AddEngines("engines").IgnoreError();
    }
    writer.End().IgnoreError();
    all.push_back(std::move(file.text));
  }
  return all;
}());

}  // namespace

}  // namespace kvatlas

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  kvatlas::Read(input);
  kvatlas::Read(kvatlas::Fitting(input));
  return 0;
}
