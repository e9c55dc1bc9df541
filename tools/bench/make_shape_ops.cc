// The shapes of `make_ops.h` that no trace has.

#include <algorithm>
#include <random>
#include <utility>

#include "indexer/base/hash.h"
#include "tools/bench/make_ops.h"

namespace kvatlas {
namespace {

constexpr uint64_t kNsBetweenOps = 1000;
// Of four queries, so many repeat what was stored; the others are new behind the root.
constexpr uint64_t kRepeatsOfFour = 3;

// Writes operations a microsecond apart, with sequences made of numbers.
class Writer {
 public:
  Writer(const OpsOptions& options, OpsWriter* out, OpsSummary* summary)
      : options_(options), out_(out), summary_(summary), random_(options.seed) {}

  uint64_t Random(uint64_t below) { return random_() % below; }

  // The root all share, then the blocks of branch `branch`.
  std::vector<OpBlock> Sequence(uint64_t branch) const {
    std::vector<OpBlock> sequence;
    sequence.reserve(options_.root_blocks + options_.branch_blocks);
    for (uint32_t i = 0; i < options_.root_blocks; ++i) Append(LocalOfHashId(0, i), &sequence);
    for (uint32_t i = 0; i < options_.branch_blocks; ++i) {
      Append(LocalOfHashId(branch + 1, i), &sequence);
    }
    return sequence;
  }

  void Query(std::span<const OpBlock> sequence) {
    ++summary_->requests;
    out_->Query(sequence, NextTime());
  }

  // `worker` stores sequence[from, to).
  void Store(uint32_t worker, std::span<const OpBlock> sequence, size_t from, size_t to) {
    const SequenceHash parent = from == 0 ? kNoParent : sequence[from - 1].seq;
    out_->Store(worker, static_cast<uint32_t>(from), parent, sequence.subspan(from, to - from),
                NextTime());
  }

  // `worker` removes sequence[from, to), the last block first.
  void Remove(uint32_t worker, std::span<const OpBlock> sequence, size_t from, size_t to) {
    removed_.clear();
    for (size_t i = to; i-- > from;) removed_.push_back(sequence[i].seq);
    out_->Remove(worker, removed_, NextTime());
  }

  const OpsOptions& options() const { return options_; }

 private:
  static void Append(LocalHash local, std::vector<OpBlock>* sequence) {
    const SequenceHash seq = sequence->empty() ? SequenceHash{Raw(local)}
                                               : NextSequenceHash(sequence->back().seq, local);
    sequence->push_back({.local = local, .seq = seq});
  }

  uint64_t NextTime() { return kNsBetweenOps * ops_++; }

  const OpsOptions& options_;
  OpsWriter* const out_;
  OpsSummary* const summary_;
  std::mt19937_64 random_;
  uint64_t ops_ = 0;
  std::vector<SequenceHash> removed_;
};

// Every worker stores root and a first continuation. Then requests go to workers at random: a
// query, and a store of the worker's continuation of that round under the root. Workers are drawn
// with repetition, so some stores repeat one of the same worker.
void WriteSharedRoot(Writer* writer) {
  const OpsOptions& options = writer->options();
  const uint64_t workers = options.workers;
  // Continuation of `worker` in a round; round 0 is the first one.
  const auto branch = [&](uint64_t worker, uint64_t round) { return round * workers + worker; };
  for (uint32_t worker = 0; worker < workers; ++worker) {
    const std::vector<OpBlock> sequence = writer->Sequence(branch(worker, 0));
    writer->Store(worker, sequence, 0, sequence.size());
  }
  const uint64_t rounds = 1 + options.requests / workers;
  for (uint64_t i = 0; i < options.requests; ++i) {
    const uint64_t round = 1 + i / workers;
    const auto worker = static_cast<uint32_t>(writer->Random(workers));
    if (writer->Random(4) < kRepeatsOfFour) {
      writer->Query(writer->Sequence(branch(writer->Random(workers), 0)));
    } else {
      writer->Query(writer->Sequence(branch(worker, round + rounds)));
    }
    const std::vector<OpBlock> sequence = writer->Sequence(branch(worker, round));
    writer->Store(worker, sequence, options.root_blocks, sequence.size());
  }
}

// A branch per request, under the root if there is one, each at one worker that holds the root,
// too. Then a quarter of them goes again, in random order.
void WriteFan(Writer* writer) {
  const OpsOptions& options = writer->options();
  std::vector<uint32_t> worker_of;  // by branch
  std::vector<bool> has_root(options.workers);
  for (uint64_t i = 0; i < options.requests; ++i) {
    const auto worker = static_cast<uint32_t>(writer->Random(options.workers));
    const std::vector<OpBlock> sequence = writer->Sequence(i);
    const bool repeat = i > 0 && writer->Random(4) < kRepeatsOfFour;
    writer->Query(repeat ? writer->Sequence(writer->Random(i)) : sequence);
    writer->Store(worker, sequence, has_root[worker] ? options.root_blocks : 0, sequence.size());
    has_root[worker] = true;
    worker_of.push_back(worker);
  }
  std::vector<uint64_t> removed(options.requests);
  for (uint64_t i = 0; i < removed.size(); ++i) removed[i] = i;
  for (uint64_t i = 0; i < removed.size() / 4; ++i) {
    std::swap(removed[i], removed[i + writer->Random(removed.size() - i)]);
    const std::vector<OpBlock> sequence = writer->Sequence(removed[i]);
    writer->Remove(worker_of[removed[i]], sequence, options.root_blocks, sequence.size());
    if (i % 4 == 0) writer->Query(writer->Sequence(writer->Random(removed.size())));
  }
}

// One long sequence. Workers take turns at random and store the next piece of it, until all have
// all; then each loses tails of random length, piece by piece. Whole-depth queries are spread over
// all of that.
void WriteDeep(Writer* writer) {
  const OpsOptions& options = writer->options();
  const std::vector<OpBlock> sequence = writer->Sequence(0);
  const size_t piece = std::max<size_t>(1, sequence.size() / 100);
  const size_t pieces = (sequence.size() + piece - 1) / piece;
  const uint64_t steps = options.workers * (pieces + pieces / 2);
  std::vector<size_t> depth(options.workers);
  uint64_t queries = 0;
  for (uint64_t step = 0; step < steps; ++step) {
    for (; queries * steps < options.requests * step; ++queries) writer->Query(sequence);
    auto worker = static_cast<uint32_t>(writer->Random(options.workers));
    if (step < options.workers * pieces) {
      while (depth[worker] == sequence.size()) worker = (worker + 1) % options.workers;
      const size_t to = std::min(sequence.size(), depth[worker] + piece);
      writer->Store(worker, sequence, depth[worker], to);
      depth[worker] = to;
    } else {
      while (depth[worker] == 0) worker = (worker + 1) % options.workers;
      const size_t from = (depth[worker] - 1) / piece * piece;
      writer->Remove(worker, sequence, from, depth[worker]);
      depth[worker] = from;
    }
  }
  for (; queries < options.requests; ++queries) writer->Query(sequence);
}

}  // namespace

void WriteShapeOps(const OpsOptions& options, OpsWriter* out, OpsSummary* summary) {
  Writer writer(options, out, summary);
  switch (options.shape) {
    case OpsShape::kTrace:
      break;
    case OpsShape::kSharedRoot:
      return WriteSharedRoot(&writer);
    case OpsShape::kRoots:
    case OpsShape::kChildren:
      return WriteFan(&writer);
    case OpsShape::kDeep:
      return WriteDeep(&writer);
  }
}

}  // namespace kvatlas
