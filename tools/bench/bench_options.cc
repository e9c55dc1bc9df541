#include "tools/bench/bench_options.h"

#include <bit>
#include <cmath>

#include "tools/bench/timing.h"

namespace kvatlas {
namespace {

// Before that an estimate says nothing.
constexpr double kLookAfterSeconds = 3;

}  // namespace

std::vector<Overlap> Asker::Answer() const {
  if (form_ != QueryForm::kCompact && form_ != QueryForm::kTiers) return overlaps_;
  std::vector<Overlap> answer;
  if (form_ == QueryForm::kTiers) {
    for (const TierOverlap& one : tiers_) {
      answer.push_back({.holder = one.holder, .blocks = one.blocks});
    }
    return answer;
  }
  for (size_t step = 0; step < steps_.depths.size(); ++step) {
    const std::span<const uint64_t> words = steps_.holders(step);
    for (size_t i = 0; i < words.size(); ++i) {
      for (uint64_t rest = words[i]; rest != 0; rest &= rest - 1) {
        const auto holder = static_cast<uint32_t>(i * 64 + std::countr_zero(rest));
        answer.push_back({.holder = HolderIndex{holder}, .blocks = steps_.depths[step]});
      }
    }
  }
  return answer;
}

TimeLimit::TimeLimit(double limit_s) : limit_s_(limit_s), start_s_(CpuSeconds()) {}

std::optional<std::string> TimeLimit::Exceeded(double done, double all) const {
  const double spent_s = CpuSeconds() - start_s_;
  if (spent_s < std::fmin(kLookAfterSeconds, limit_s_) || done <= 0) return std::nullopt;
  const double whole_s = spent_s * all / done;
  if (whole_s <= limit_s_) return std::nullopt;
  return "would take about " + std::to_string(std::llround(whole_s)) + " s, estimated from " +
         std::to_string(std::llround(100 * done / all)) + " % of it";
}

}  // namespace kvatlas
