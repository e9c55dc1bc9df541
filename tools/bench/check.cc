#include "tools/bench/check.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"

namespace kvatlas {
namespace {

constexpr size_t kStepsBetweenLooks = 64;

// What every worker holds.
class Model {
 public:
  explicit Model(uint32_t workers) : held_(workers) {}

  void Apply(uint32_t worker, const Event& event) {
    absl::flat_hash_set<SequenceHash>& held = held_[worker];
    if (const auto* stored = std::get_if<Stored>(&event)) {
      held.insert(stored->blocks.begin(), stored->blocks.end());
    } else if (const auto* removed = std::get_if<Removed>(&event)) {
      for (SequenceHash block : removed->blocks) held.erase(block);
    } else {
      held.clear();
    }
  }

  uint32_t Overlap(uint32_t worker, std::span<const SequenceHash> query) const {
    uint32_t blocks = 0;
    while (blocks < query.size() && held_[worker].contains(query[blocks])) ++blocks;
    return blocks;
  }

 private:
  std::vector<absl::flat_hash_set<SequenceHash>> held_;
};

// Adds the comparison of one answer. `got` has a place for every worker, all 0 before and after.
void Compare(std::span<const Overlap> expected, std::span<const Overlap> answer,
             std::vector<uint32_t>* got, CheckResult* check) {
  ++check->queries;
  size_t pairs = 0;
  for (const Overlap& overlap : answer) {
    if (overlap.blocks == 0) continue;
    const uint32_t holder = Raw(overlap.holder);
    if (holder >= got->size() || (*got)[holder] > 0) {
      ++pairs;
      ++check->over;
      check->over_blocks += overlap.blocks;
      continue;
    }
    (*got)[holder] = overlap.blocks;
  }
  for (const Overlap& overlap : expected) {
    const uint32_t blocks = std::exchange((*got)[Raw(overlap.holder)], 0);
    ++pairs;
    check->over += blocks > overlap.blocks;
    check->under += blocks < overlap.blocks;
    if (blocks > overlap.blocks) check->over_blocks += blocks - overlap.blocks;
    if (blocks < overlap.blocks) check->under_blocks += overlap.blocks - blocks;
  }
  // What is left was not expected at all.
  for (const Overlap& overlap : answer) {
    if (Raw(overlap.holder) >= got->size()) continue;
    const uint32_t blocks = std::exchange((*got)[Raw(overlap.holder)], 0);
    if (blocks == 0) continue;
    ++pairs;
    ++check->over;
    check->over_blocks += blocks;
  }
  check->checked += pairs;
}

}  // namespace

ExpectedAnswers::ExpectedAnswers(const BenchInput& input, uint64_t samples)
    : samples_(samples), queries_(input.queries()) {
  Model model(input.workers());
  uint64_t query = 0;
  for (const BenchInput::Step& step : input.steps()) {
    if (step.kind != OpKind::kQuery) {
      model.Apply(step.worker, input.event(step));
      continue;
    }
    if (!Sampled(query++)) continue;
    for (uint32_t worker = 0; worker < input.workers(); ++worker) {
      const uint32_t blocks = model.Overlap(worker, input.query(step).blocks);
      if (blocks > 0) overlaps_.push_back({.holder = HolderIndex{worker}, .blocks = blocks});
    }
    ends_.push_back(overlaps_.size());
  }
}

std::span<const Overlap> ExpectedAnswers::answer(size_t sample) const {
  const size_t begin = sample == 0 ? 0 : ends_[sample - 1];
  return std::span(overlaps_).subspan(begin, ends_[sample] - begin);
}

BenchResult RunCheck(const Contender& contender, const BenchInput& input,
                     const ExpectedAnswers& expected, const BenchOptions& options) {
  BenchResult result;
  absl::StatusOr<std::unique_ptr<Index>> index =
      MakeWithHolders(contender, WarmOptions(input.workers()), input.workers());
  if (!index.ok()) {
    result.skipped = std::string(index.status().message());
    return result;
  }
  const TimeLimit limit(options.limit_s);
  Asker asker(options);
  CheckResult check;
  std::vector<uint32_t> got(input.workers());
  uint64_t query = 0, done = 0;
  size_t until_look = kStepsBetweenLooks;
  for (const BenchInput::Step& step : input.steps()) {
    done += step.blocks;
    if (step.kind != OpKind::kQuery) {
      (*index)->Apply(HolderIndex{step.worker}, input.event(step), nullptr).IgnoreError();
    } else if (expected.Sampled(query++)) {
      asker.Ask(**index, input.query(step));
      Compare(expected.answer(check.queries), asker.Answer(), &got, &check);
    }
    if (--until_look > 0) continue;
    until_look = kStepsBetweenLooks;
    result.skipped =
        limit.Exceeded(static_cast<double>(done), static_cast<double>(input.block_ops()));
    if (result.skipped.has_value()) return result;
  }
  result.check = check;
  options.progress(contender.name + " checked: " + std::to_string(check.over) + " over, " +
                   std::to_string(check.under) + " under of " + std::to_string(check.checked));
  return result;
}

}  // namespace kvatlas
