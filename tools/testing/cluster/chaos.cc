#include "tools/testing/cluster/chaos.h"

#include <algorithm>
#include <random>
#include <utility>

namespace kvatlas {
namespace {

constexpr size_t kTurnsOfEach = 3;
// A process is away for a part of the time between two kills.
constexpr double kAwayLeast = 0.2;
constexpr double kAwayMost = 0.7;
constexpr double kKillsEndAt = 0.9;

}  // namespace

std::vector<ChaosStep> MakeChaosPlan(const ChaosOptions& options) {
  std::vector<ChaosStep> plan;
  if (options.turns.empty()) return plan;
  const auto end = static_cast<size_t>(static_cast<double>(options.requests) * kKillsEndAt);
  const size_t every = options.every > 0
                           ? options.every
                           : std::max<size_t>(end / (kTurnsOfEach * options.turns.size()), 4);
  std::mt19937_64 random(options.seed);
  const auto draw = [&random](double from, double to) {
    return from + (to - from) * std::uniform_real_distribution<double>()(random);
  };
  for (size_t turn = 0, start = 0; start + every <= end; ++turn, start += every) {
    const std::vector<std::string>& kind = options.turns[turn % options.turns.size()];
    const std::string& process = kind[random() % kind.size()];
    const auto span = static_cast<double>(every);
    const size_t kill = start + static_cast<size_t>(draw(0.05, 1 - kAwayMost) * span);
    const size_t restart =
        std::max(kill + 1, kill + static_cast<size_t>(draw(kAwayLeast, kAwayMost) * span));
    plan.push_back({kill, true, process});
    plan.push_back({restart, false, process});
  }
  return plan;
}

void Chaos::Before(size_t request) {
  while (status_.ok() && next_ < plan_.size() && plan_[next_].request <= request) {
    status_ = act_(plan_[next_]);
    if (status_.ok()) done_.push_back(plan_[next_]);
    ++next_;
  }
}

void Chaos::Finish() {
  // A kill that is yet to come need not; what is down comes back.
  for (; status_.ok() && next_ < plan_.size(); ++next_) {
    if (plan_[next_].kill) return;
    status_ = act_(plan_[next_]);
    if (status_.ok()) done_.push_back(plan_[next_]);
  }
}

std::string ToText(const std::vector<ChaosStep>& steps) {
  std::string text;
  for (const ChaosStep& step : steps) {
    text += "request " + std::to_string(step.request) + (step.kill ? " kill " : " restart ") +
            step.process + "\n";
  }
  return text;
}

}  // namespace kvatlas
