// `PlanShards` says which shard is asked about which waypoints, `MergeAnswers` makes bounds for the
// whole prompt of bounds that each hold only for the waypoints of one question.

#include "frontend/router/shard_plan.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace kvatlas {
namespace {

// One cell while answers are merged: the lower bound that each question gave, and the smallest
// upper bound of all.
struct Merged {
  CellFound cell;
  uint32_t first_missing = 0;  // blocks before it, plus 1: `CellFound::blocks_below`
  std::vector<std::pair<const ShardQuestion*, uint32_t>> at_least;
};

// The blocks up to the last waypoint of the question that the cell covers, ahead of the first
// missing one. A shard that was not asked about a waypoint cannot say that it is missing, so its
// lower bound counts only up to what another shard says is missing.
uint32_t CoveredBefore(const ShardQuestion& question, uint32_t at_least, uint32_t first_missing) {
  uint32_t covered = 0;
  for (Position position : question.positions) {
    if (position >= at_least || position + 1 >= first_missing) break;
    covered = position + 1;
  }
  return covered;
}

// Address, load and labels are of the freshest answer; trust and age are the worst of all.
void Add(const ShardQuestion* question, CellFound found, Merged* merged) {
  merged->at_least.emplace_back(question, found.blocks_at_least);
  if (merged->at_least.size() == 1) {
    merged->first_missing = found.blocks_below;
    merged->cell = std::move(found);
    return;
  }
  merged->first_missing = std::min(merged->first_missing, found.blocks_below);
  const Trust trust = std::max(merged->cell.trust, found.trust);
  const uint32_t age_ms = std::max(merged->cell.age_ms, found.age_ms);
  if (found.age_ms < merged->cell.age_ms) merged->cell = std::move(found);
  merged->cell.trust = trust;
  merged->cell.age_ms = age_ms;
}

// Upper bound: the least of all. Lower bound: the deepest covered waypoint below it, over all
// questions.
CellFound Result(Merged merged) {
  CellFound cell = std::move(merged.cell);
  cell.blocks_below = merged.first_missing;
  cell.blocks_at_least = 0;
  for (const auto& [question, at_least] : merged.at_least) {
    cell.blocks_at_least =
        std::max(cell.blocks_at_least, CoveredBefore(*question, at_least, merged.first_missing));
  }
  return cell;
}

}  // namespace

// Plans the questions to the top level:
//   1. A level that is not split has one question with all waypoints.
//   2. A prompt with shallow waypoints only, which all shards have, goes to one shard, drawn by
//      `key`.
//   3. Otherwise from the deepest waypoint up: its owner is asked, until `shards_max` shards are.
//      The deepest tell most.
//   4. Each asked shard gets the shallow waypoints and those it owns, in ascending order as
//      `CoveredBefore` needs them.
std::vector<ShardQuestion> PlanShards(const ShardMap& map, const WaypointSchedule& schedule,
                                      std::span<const SequenceHash> waypoints, uint64_t key,
                                      size_t shards_max) {
  if (!map.split())
    return {{.shard = 0, .waypoints = {waypoints.begin(), waypoints.end()}, .positions = {}}};
  if (waypoints.size() <= map.shallow()) {
    return {{.shard = map.OwnerOf(SequenceHash(key)),
             .waypoints = {waypoints.begin(), waypoints.end()},
             .positions = {}}};
  }
  std::vector<size_t> owners(waypoints.size());
  std::vector<ShardQuestion> plan;
  for (size_t i = waypoints.size(); i-- > map.shallow();) {
    owners[i] = map.OwnerOf(waypoints[i]);
    const bool asked = std::any_of(plan.begin(), plan.end(), [&](const ShardQuestion& question) {
      return question.shard == owners[i];
    });
    if (!asked && plan.size() < shards_max)
      plan.push_back({.shard = owners[i], .waypoints = {}, .positions = {}});
  }
  for (ShardQuestion& question : plan) {
    for (size_t i = 0; i < waypoints.size(); ++i) {
      if (i >= map.shallow() && owners[i] != question.shard) continue;
      question.waypoints.push_back(waypoints[i]);
      question.positions.push_back(schedule.PositionOf(static_cast<uint32_t>(i)));
    }
  }
  return plan;
}

ShardQuestion ShallowQuestion(const ShardMap& map, const WaypointSchedule& schedule,
                              std::span<const SequenceHash> waypoints, size_t shard) {
  ShardQuestion question{.shard = shard, .waypoints = {}, .positions = {}};
  const size_t shallow = std::min<size_t>(map.shallow(), waypoints.size());
  for (size_t i = 0; i < shallow; ++i) {
    question.waypoints.push_back(waypoints[i]);
    question.positions.push_back(schedule.PositionOf(static_cast<uint32_t>(i)));
  }
  return question;
}

// A cell that one shard names and another does not is merged from the answers that name it.
CellsAnswer MergeAnswers(std::vector<ShardAnswer> answers) {
  if (answers.size() == 1) return std::move(answers[0].answer);
  CellsAnswer together;
  absl::flat_hash_map<std::string, Merged> cells;
  for (ShardAnswer& answer : answers) {
    if (answer.answer.block_size != 0) together.block_size = answer.answer.block_size;
    for (CellFound& found : answer.answer.cells) {
      Merged& merged = cells[found.cell];
      Add(answer.question, std::move(found), &merged);
    }
  }
  together.cells.reserve(cells.size());
  for (auto& [name, merged] : cells) together.cells.push_back(Result(std::move(merged)));
  std::sort(together.cells.begin(), together.cells.end(),
            [](const CellFound& a, const CellFound& b) {
              return a.blocks_at_least != b.blocks_at_least ? a.blocks_at_least > b.blocks_at_least
                                                            : a.cell < b.cell;
            });
  return together;
}

}  // namespace kvatlas
