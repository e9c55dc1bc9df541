#include "tools/bench/make_ops.h"

#include <memory>
#include <random>
#include <utility>

#include "indexer/base/hash.h"
#include "tools/bench/engine_pool.h"

namespace kvatlas {
namespace {

// What a block of load above the mean costs an affine router, in blocks to prefill.
constexpr double kLoadBlockCost = 0.02;

std::vector<OpBlock> Prompt(const TraceRequest& request, uint32_t split) {
  const std::vector<LocalHash> locals = PromptLocals(request, split);
  const std::vector<SequenceHash> sequence = SequenceHashes(locals);
  std::vector<OpBlock> prompt(locals.size());
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = {.local = locals[i], .seq = sequence[i]};
  return prompt;
}

// The engines of a trace, and who gets the next request.
class Fleet {
 public:
  explicit Fleet(const OpsOptions& options) : options_(options), random_(options.seed) {
    for (uint32_t worker = 0; worker < options.workers; ++worker) {
      pools_.push_back(options.eviction == OpsEviction::kLru
                           ? MakeLruEnginePool(options.capacity)
                           : MakeRandomEnginePool(options.capacity, &random_));
    }
    computed_.resize(options.workers);
  }

  // How many leading blocks run: all, or a random prefix of at least one.
  size_t Length(size_t blocks) {
    if (options_.truncate_percent == 0 || blocks == 0) return blocks;
    if (random_() % 100 >= options_.truncate_percent) return blocks;
    return 1 + random_() % blocks;
  }

  uint32_t Route(std::span<const SequenceHash> sequence) {
    const auto first = static_cast<uint32_t>(random_() % options_.workers);
    return options_.routing == OpsRouting::kRandom ? first : MostAffine(sequence, first);
  }

  EnginePool& pool(uint32_t worker) { return *pools_[worker]; }

  void AddComputed(uint32_t worker, uint64_t blocks) {
    computed_[worker] += blocks;
    computed_sum_ += blocks;
  }

 private:
  // The least to compute, load permitting; ties go to the first from `first` on.
  uint32_t MostAffine(std::span<const SequenceHash> sequence, uint32_t first) const {
    const uint64_t mean = computed_sum_ / options_.workers;
    uint32_t best = first;
    double best_cost = 0;
    for (uint32_t i = 0; i < options_.workers; ++i) {
      const uint32_t worker = (first + i) % options_.workers;
      const uint64_t above = computed_[worker] > mean ? computed_[worker] - mean : 0;
      const double cost =
          static_cast<double>(sequence.size() - pools_[worker]->CachedPrefix(sequence)) +
          kLoadBlockCost * static_cast<double>(above);
      if (i > 0 && cost >= best_cost) continue;
      best = worker;
      best_cost = cost;
    }
    return best;
  }

  const OpsOptions& options_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<EnginePool>> pools_;
  std::vector<uint64_t> computed_;  // blocks, by worker
  uint64_t computed_sum_ = 0;
};

void WriteRequest(const OpsOptions& options, const TraceRequest& request, Fleet* fleet,
                  OpsWriter* out, OpsSummary* summary) {
  const std::vector<OpBlock> prompt = Prompt(request, options.split);
  const auto time_ns = static_cast<uint64_t>(request.timestamp_ms * 1e6);
  out->Query(prompt, time_ns);
  ++summary->requests;

  std::vector<SequenceHash> sequence(fleet->Length(prompt.size()));
  for (size_t i = 0; i < sequence.size(); ++i) sequence[i] = prompt[i].seq;
  const uint32_t engine = fleet->Route(sequence);
  const uint32_t cached = fleet->pool(engine).CachedPrefix(sequence);
  std::vector<SequenceHash> evicted;
  if (!fleet->pool(engine).Serve(sequence, &evicted)) {
    ++summary->too_long;
    return;
  }
  fleet->AddComputed(engine, sequence.size() - cached);
  summary->cached_blocks += cached;
  const std::span<const OpBlock> stored =
      std::span(prompt).subspan(cached, sequence.size() - cached);
  const SequenceHash parent = cached == 0 ? kNoParent : sequence[cached - 1];
  for (uint32_t copy = 0; copy < options.dup; ++copy) {
    const uint32_t worker = engine * options.dup + copy;
    if (!evicted.empty()) out->Remove(worker, evicted, time_ns);
    if (!stored.empty()) out->Store(worker, cached, parent, stored, time_ns);
  }
}

// ---- Shapes: the same numbers for everybody ----

struct ShapeDefaults {
  uint32_t workers;
  uint64_t requests;
  uint32_t root_blocks;
  uint32_t branch_blocks;
};

// shared_root's requests are twice its workers, whatever they are.
ShapeDefaults DefaultsOf(OpsShape shape) {
  switch (shape) {
    case OpsShape::kTrace:
      return {.workers = 128, .requests = 0, .root_blocks = 0, .branch_blocks = 0};
    case OpsShape::kSharedRoot:
      return {.workers = 7000, .requests = 0, .root_blocks = 8, .branch_blocks = 56};
    case OpsShape::kRoots:
      return {.workers = 128, .requests = 1'000'000, .root_blocks = 0, .branch_blocks = 2};
    case OpsShape::kDeep:
      return {.workers = 16, .requests = 100, .root_blocks = 0, .branch_blocks = 100'000};
    case OpsShape::kChildren:
      return {.workers = 128, .requests = 300'000, .root_blocks = 8, .branch_blocks = 2};
  }
  return {};
}

OpsOptions OfTrace(uint64_t capacity, OpsRouting routing = OpsRouting::kRandom) {
  OpsOptions options;
  options.capacity = capacity;
  options.routing = routing;
  return options;
}

OpsOptions WithHoles(uint32_t workers, uint64_t capacity, uint32_t truncate_percent) {
  OpsOptions options = OfTrace(capacity);
  options.workers = workers;
  options.eviction = OpsEviction::kRandom;
  options.truncate_percent = truncate_percent;
  return options;
}

}  // namespace

OpsOptions WithDefaults(OpsOptions options) {
  const ShapeDefaults defaults = DefaultsOf(options.shape);
  if (options.workers == 0) options.workers = defaults.workers;
  if (options.root_blocks == 0) options.root_blocks = defaults.root_blocks;
  if (options.branch_blocks == 0) options.branch_blocks = defaults.branch_blocks;
  if (options.requests == 0) options.requests = defaults.requests;
  if (options.requests == 0 && options.shape == OpsShape::kSharedRoot) {
    options.requests = uint64_t{2} * options.workers;
  }
  return options;
}

void WriteTraceOps(const OpsOptions& options, const std::vector<TraceRequest>& trace,
                   OpsWriter* out, OpsSummary* summary) {
  Fleet fleet(options);
  for (const TraceRequest& request : trace) WriteRequest(options, request, &fleet, out, summary);
}

absl::StatusOr<OpsSummary> MakeOps(const OpsOptions& given, const std::string& path) {
  const OpsOptions options = WithDefaults(given);
  std::vector<TraceRequest> trace;
  if (options.shape == OpsShape::kTrace) {
    absl::StatusOr<std::vector<TraceRequest>> read = ReadTrace(options.trace, options.requests);
    if (!read.ok()) return read.status();
    trace = *std::move(read);
  }
  absl::StatusOr<OpsWriter> out =
      OpsWriter::Create(path, kTokensPerHashId / options.split, options.workers * options.dup);
  if (!out.ok()) return out.status();
  OpsSummary summary{};
  if (options.shape == OpsShape::kTrace) {
    WriteTraceOps(options, trace, &*out, &summary);
  } else {
    WriteShapeOps(options, &*out, &summary);
  }
  if (absl::Status finished = out->Finish(); !finished.ok()) return finished;
  summary.header = out->header();
  return summary;
}

absl::StatusOr<OpsOptions> WellKnownInput(std::string_view name) {
  if (name == "a" || name == "d") return OfTrace(16384);
  if (name == "b") return OfTrace(4096);
  if (name == "c") return OfTrace(16384, OpsRouting::kAffinity);
  if (name == "g") return WithHoles(128, 4096, 0);
  if (name == "h") return WithHoles(16, 16384, 0);
  if (name == "i") return WithHoles(16, 16384, 50);
  OpsOptions options;
  if (name == "e") {
    options.workers = 1000;
    options.dup = 7;
    options.split = 4;
    return options;
  }
  if (name == "f") {
    options.shape = OpsShape::kSharedRoot;
    return options;
  }
  return absl::NotFoundError("no input '" + std::string(name) + "'; there are: a b c d e f g h i");
}

}  // namespace kvatlas
