// The order of questions. `targets_` holds what is left to ask of the current source, best first; a
// target leaves the list when it is taken. Until the try ends, `Take` gives out no address twice,
// whichever source names it; the search for decoders skips cells that were asked by name too
// (`WasAsked`).

#include "frontend/router/cell_search.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "frontend/router/first_answer.h"

namespace kvatlas {

void CellSearch::Start(std::vector<Target> targets) {
  targets_ = std::move(targets);
  RankTargets(*request_, AtOnce(), &targets_);
}

// The new targets are ranked among themselves and come ahead of the old ones: `Take` chose their
// node as the best of what was left, so its cells are as a rule better.
void CellSearch::Insert(std::vector<Target> targets) {
  RankTargets(*request_, AtOnce(), &targets);
  std::move(targets_.begin(), targets_.end(), std::back_inserter(targets));
  targets_ = std::move(targets);
}

// Replaces the targets of the source before, and gives the new one its own levels of nodes.
bool CellSearch::NextSource() {
  if (sources_used_ == sources_.size()) return false;
  targets_ = sources_[sources_used_++].cells(*request_);
  levels_ = 0;
  return true;
}

// Leaves in one wave. A policy whose costs coverage does not bound asks all; after a fallback more
// are asked at once, since nothing tells them apart.
uint32_t CellSearch::AtOnce() const {
  const FrontendOptions& options = request_->options();
  if (!request_->policy->bounded_by_coverage()) return std::max<uint32_t>(options.asked_max, 1);
  const uint32_t at_once =
      blind() ? std::max(options.ask_cells_blind, options.ask_cells) : options.ask_cells;
  return std::max<uint32_t>(at_once, 1);
}

uint32_t CellSearch::UsefulMax(const Answers& answers) const {
  return AtOnce() + (answers.coverage_overstates() ? request_->options().ask_cells_blind : 0);
}

// Takes up to `wanted` targets, in order, in one pass:
//   1. `wanted` is a whole wave while no good worker is known, and otherwise the useful answers
//      that are still missing; never more than `asked_max` leaves in the try.
//   2. A target is left for later when its best possible cost is not below the cheapest worker
//      found, nor below the expected cost of the targets taken before it. This bound holds only
//      while coverage is known (`blind`).
//   3. A target whose address was taken before is dropped.
std::vector<Target> CellSearch::Take(const Answers& answers) {
  const uint32_t useful_max = UsefulMax(answers);
  size_t wanted = answers.any_good() ? useful_max - std::min(useful_max, answers.good()) : AtOnce();
  wanted = std::min(wanted, room());
  double to_beat = answers.cheapest();
  std::vector<Target> taken, left;
  for (Target& target : targets_) {
    if (taken.size() == wanted || (!blind() && target.best_cost >= to_beat)) {
      left.push_back(std::move(target));
    } else if (taken_addresses_.insert(target.asked.address).second) {
      to_beat = std::min(to_beat, target.cost);
      taken.push_back(std::move(target));
    }
  }
  targets_ = std::move(left);
  return taken;
}

// The targets themselves are with the caller; only their addresses become free, so that `Insert`
// can bring them back.
void CellSearch::Untake(const std::vector<Target>& targets) {
  for (const Target& target : targets) taken_addresses_.erase(target.asked.address);
}

// False also when another wave could not run: no room under `asked_max`, or no time for a hop.
bool CellSearch::NextCanWin(const Answers& answers) const {
  if (blind() || answers.good() >= UsefulMax(answers) || room() == 0 ||
      Share(request_->Left(), kWaveShare) < kHopMin)
    return false;
  return std::any_of(targets_.begin(), targets_.end(),
                     [&](const Target& target) { return target.best_cost < answers.cheapest(); });
}

void CellSearch::DropNodes() {
  std::erase_if(targets_, [](const Target& target) { return target.is_node; });
}

// Nodes do not count against `asked_max`.
void CellSearch::CountAsked(const std::vector<Target>& leaves) {
  asked_ += leaves.size();
  for (const Target& leaf : leaves) asked_cells_.insert(leaf.asked.cell);
}

bool CellSearch::WasAsked(const Target& target) const {
  return taken_addresses_.contains(target.asked.address) ||
         asked_cells_.contains(target.asked.cell);
}

// The search's own target is better than `otherwise`: it has the bounds and replicas that the
// hierarchy named.
std::optional<Target> CellSearch::TakeCell(const std::string& cell, Target otherwise) {
  const auto named = std::find_if(targets_.begin(), targets_.end(), [&](const Target& target) {
    return target.is_node == otherwise.is_node && target.asked.cell == cell;
  });
  if (named != targets_.end()) {
    otherwise = std::move(*named);
    targets_.erase(named);
  }
  if (WasAsked(otherwise)) return std::nullopt;
  taken_addresses_.insert(otherwise.asked.address);
  return otherwise;
}

}  // namespace kvatlas
