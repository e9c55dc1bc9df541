#include "tools/bench/bench_input.h"

#include <algorithm>
#include <utility>

namespace kvatlas {
namespace {

Event StoredOf(const BenchOp& op, size_t from, size_t to) {
  Stored stored;
  stored.position = op.header.position + static_cast<uint32_t>(from);
  stored.parent = from == 0 ? SequenceHash{op.header.parent} : op.blocks[from - 1].seq;
  stored.blocks.reserve(to - from);
  stored.local_hashes.reserve(to - from);
  for (const OpBlock& block : op.blocks.subspan(from, to - from)) {
    stored.blocks.push_back(block.seq);
    stored.local_hashes.push_back(block.local);
  }
  return stored;
}

}  // namespace

Event EventOf(const BenchOp& op, size_t from, size_t to) {
  if (op.header.kind == OpKind::kStore) return StoredOf(op, from, to);
  if (op.header.kind == OpKind::kClear) return Cleared{};
  const std::span<const SequenceHash> blocks = op.removed.subspan(from, to - from);
  return Removed{.tier = Tier::kDevice, .blocks = {blocks.begin(), blocks.end()}};
}

BenchInput::BenchInput(const OpsFile& file, uint32_t write_blocks_max)
    : workers_(file.header().workers) {
  const OpsHeader& header = file.header();
  block_ops_ = header.query_blocks + header.store_blocks + header.remove_blocks;
  blocks_.resize(header.query_blocks);
  locals_.resize(header.query_blocks);
  steps_.reserve(file.ops().size());
  size_t first = 0;
  for (const BenchOp& op : file.ops()) {
    if (&op == &file.ops()[file.ops().size() / 2]) second_half_ = steps_.size();
    if (op.header.kind == OpKind::kQuery) {
      AddQuery(op, first);
      first += op.header.count;
    } else {
      AddEvents(op, write_blocks_max);
    }
  }
}

void BenchInput::AddQuery(const BenchOp& op, size_t first) {
  for (size_t i = 0; i < op.blocks.size(); ++i) {
    blocks_[first + i] = op.blocks[i].seq;
    locals_[first + i] = op.blocks[i].local;
  }
  steps_.push_back({.kind = OpKind::kQuery,
                    .worker = 0,
                    .blocks = op.header.count,
                    .place = static_cast<uint32_t>(queries_.size()),
                    .time_ns = op.header.time_ns});
  OverlapQuery query;
  query.blocks = std::span(blocks_).subspan(first, op.blocks.size());
  query.local_hashes = std::span(locals_).subspan(first, op.blocks.size());
  queries_.push_back(query);
}

void BenchInput::AddEvents(const BenchOp& op, uint32_t write_blocks_max) {
  const size_t count = op.header.count;
  const size_t piece = write_blocks_max == 0 ? std::max<size_t>(count, 1) : write_blocks_max;
  size_t from = 0;
  do {
    const size_t to = std::min(count, from + piece);
    steps_.push_back({.kind = op.header.kind,
                      .worker = op.header.worker,
                      .blocks = static_cast<uint32_t>(to - from),
                      .place = static_cast<uint32_t>(events_.size()),
                      .time_ns = op.header.time_ns});
    events_.push_back(EventOf(op, from, to));
    from = to;
  } while (from < count);
}

}  // namespace kvatlas
