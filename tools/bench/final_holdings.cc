#include "tools/bench/final_holdings.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace kvatlas {

absl::Status RunInChild(const std::function<void()>& task) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return absl::InternalError("fork failed");
  if (child == 0) {
    task();
    std::fflush(nullptr);
    _exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) return absl::InternalError("waitpid failed");
  if (WIFSIGNALED(status)) {
    return absl::InternalError("ended by signal " + std::to_string(WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) != 0) {
    return absl::InternalError("exited with " + std::to_string(WEXITSTATUS(status)));
  }
  return absl::OkStatus();
}

SharedMemory::SharedMemory(size_t bytes) : bytes_(bytes) {
  data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
               -1, 0);
  if (data_ == MAP_FAILED) data_ = nullptr;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

absl::StatusOr<FinalHoldings> FinalHoldings::Of(const OpsFile& file) {
  const OpsHeader& header = file.header();
  // No holder can hold more than was stored.
  const size_t bytes = sizeof(Header) + (header.workers + header.store_blocks) * sizeof(uint64_t);
  SharedMemory memory(bytes);
  if (memory.data() == nullptr) return absl::ResourceExhaustedError("no shared memory");
  FinalHoldings holdings(std::move(memory), header.workers);
  absl::Status counted = RunInChild([&] { Count(file, &holdings); });
  if (!counted.ok()) return counted;
  return holdings;
}

std::span<const SequenceHash> FinalHoldings::of(uint32_t worker) const {
  const uint64_t begin = worker == 0 ? 0 : ends()[worker - 1];
  return {blocks() + begin, blocks() + ends()[worker]};
}

void FinalHoldings::Count(const OpsFile& file, FinalHoldings* into) {
  // Block → when it was stored.
  std::vector<absl::flat_hash_map<SequenceHash, uint64_t>> held(file.header().workers);
  uint64_t now = 0;
  for (const BenchOp& op : file.ops()) {
    auto& mine = held[op.header.worker];
    if (op.header.kind == OpKind::kStore) {
      for (const OpBlock& block : op.blocks) mine.try_emplace(block.seq, now++);
    }
    for (SequenceHash block : op.removed) mine.erase(block);
    if (op.header.kind == OpKind::kClear) mine.clear();
  }
  absl::flat_hash_set<SequenceHash> distinct;
  uint64_t end = 0;
  for (uint32_t worker = 0; worker < held.size(); ++worker) {
    std::vector<std::pair<uint64_t, SequenceHash>> order;
    for (const auto& [block, when] : held[worker]) order.emplace_back(when, block);
    std::sort(order.begin(), order.end());
    for (const auto& [when, block] : order) {
      into->blocks()[end++] = block;
      distinct.insert(block);
    }
    into->ends()[worker] = end;
  }
  into->header()->holdings = end;
  into->header()->distinct_blocks = distinct.size();
}

}  // namespace kvatlas
