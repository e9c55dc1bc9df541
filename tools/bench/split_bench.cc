// What does splitting a level over shards do to a trace? How even the parts are, how many shards a
// prompt asks, how much coarser its bounds become, and what a new shard moves. No processes: the
// product's map and plan over a trace's waypoints.
//
//   bazel run -c opt //tools/bench:split_bench -- --trace=FILE [--split=8] [--head=0] [--shallow=1]
//   [--requests=0]

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/router/shard_plan.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/shard_map.h"
#include "indexer/base/waypoints.h"
#include "indexer/process/flags.h"
#include "tools/trace/trace.h"

namespace kvatlas {
namespace {

struct Prompt {
  uint32_t blocks = 0;
  std::vector<SequenceHash> waypoints;
};

struct Options {
  std::string trace = "tools/traces/mooncake_conversation.jsonl";
  uint32_t split = 8;
  uint32_t head = 0;
  uint32_t shallow = ShardMap::kShallowDefault;
  uint64_t requests = 0;
};

std::vector<Prompt> Prompts(const Options& options, const std::vector<TraceRequest>& trace) {
  std::vector<Prompt> prompts;
  for (const TraceRequest& request : trace) {
    std::vector<LocalHash> locals;
    for (uint32_t i = 0; i < options.head; ++i) locals.push_back(LocalHash{0x5eed0000 + i});
    for (LocalHash local : PromptLocals(request, options.split)) locals.push_back(local);
    prompts.push_back({.blocks = static_cast<uint32_t>(locals.size()),
                       .waypoints = WaypointSchedule::Standard().Select(SequenceHashes(locals))});
  }
  return prompts;
}

ShardMap Map(const Options& options, int shards) {
  std::string text = "shallow=" + std::to_string(options.shallow);
  // In order of their names, so that a place means the same shard in every map.
  for (int i = 0; i < shards; ++i)
    text += ",node-" + std::to_string(100 + i) + "=h:" + std::to_string(i + 1);
  return *ShardMap::Parse(text);
}

double Percent(double part, double whole) { return whole == 0 ? 0 : 100 * part / whole; }

// What everybody reports together: each waypoint of the trace once.
void PrintParts(const std::vector<Prompt>& prompts, const Options& options, int shards) {
  const ShardMap map = Map(options, shards), more = Map(options, shards + 1);
  std::unordered_set<uint64_t> seen;
  std::vector<uint64_t> parts(shards), by_branch(shards);
  uint64_t waypoints = 0, shallow = 0, moved = 0;
  for (const Prompt& prompt : prompts) {
    for (uint32_t i = 0; i < prompt.waypoints.size(); ++i) {
      const SequenceHash waypoint = prompt.waypoints[i];
      if (!seen.insert(Raw(waypoint)).second) continue;
      ++waypoints;
      shallow += i < map.shallow();
      for (size_t shard = 0; shard < parts.size(); ++shard)
        parts[shard] += map.Keeps(shard, i, waypoint);
      moved += i >= map.shallow() && map.OwnerOf(waypoint) != more.OwnerOf(waypoint);
      // The other way: all that is deeper goes where the first deep one does.
      if (i >= map.shallow()) ++by_branch[map.OwnerOf(prompt.waypoints[map.shallow()])];
    }
  }
  const auto largest = [&](const std::vector<uint64_t>& of) {
    return Percent(static_cast<double>(*std::max_element(of.begin(), of.end())),
                   static_cast<double>(waypoints));
  };
  std::printf("%6d  %9lu  %8.2f  %8.2f  %8.2f  %10.2f  %8.2f\n", shards, waypoints,
              Percent(static_cast<double>(shallow), static_cast<double>(waypoints)), largest(parts),
              Percent(static_cast<double>(*std::min_element(parts.begin(), parts.end())),
                      static_cast<double>(waypoints)),
              largest(by_branch),
              Percent(static_cast<double>(moved), static_cast<double>(waypoints)));
}

// As a shard answers about a cell that has had all earlier prompts.
CellFound AnswerOf(const ShardQuestion& question, const std::unordered_set<uint64_t>& covered,
                   uint32_t blocks) {
  CellFound found{.cell = "c", .address = "", .blocks_at_least = 0, .blocks_below = blocks + 1};
  for (size_t i = 0; i < question.waypoints.size(); ++i) {
    const Position position =
        question.positions.empty()
            ? WaypointSchedule::Standard().PositionOf(static_cast<uint32_t>(i))
            : question.positions[i];
    if (!covered.contains(Raw(question.waypoints[i]))) {
      found.blocks_below = position + 1;
      break;
    }
    found.blocks_at_least = position + 1;
  }
  return found;
}

void PrintQuestions(const std::vector<Prompt>& prompts, const Options& options, int shards,
                    size_t asked_max) {
  const ShardMap map = Map(options, shards);
  std::unordered_set<uint64_t> covered;
  std::vector<uint64_t> questions(shards);
  uint64_t asked = 0, promised = 0, whole_promised = 0, outside = 0, coarser = 0;
  for (const Prompt& prompt : prompts) {
    const auto plan =
        PlanShards(map, WaypointSchedule::Standard(), prompt.waypoints,
                   prompt.waypoints.empty() ? 0 : Raw(prompt.waypoints.back()), asked_max);
    std::vector<ShardAnswer> answers;
    for (const ShardQuestion& question : plan) {
      ++questions[question.shard];
      ++asked;
      answers.push_back({.question = &question,
                         .answer = {.cells = {AnswerOf(question, covered, prompt.blocks)}}});
    }
    const CellFound merged = MergeAnswers(std::move(answers)).cells[0];
    const CellFound whole = AnswerOf({.shard = 0, .waypoints = prompt.waypoints, .positions = {}},
                                     covered, prompt.blocks);
    promised += merged.blocks_at_least;
    whole_promised += whole.blocks_at_least;
    coarser += merged.blocks_at_least != whole.blocks_at_least;
    outside += whole.blocks_at_least < merged.blocks_at_least ||
               whole.blocks_at_least >= merged.blocks_below;
    for (SequenceHash waypoint : prompt.waypoints) covered.insert(Raw(waypoint));
  }
  const auto count = static_cast<double>(prompts.size());
  std::printf("%6d  %5zu  %5.2f  %8.2f  %9.2f  %8.2f  %8lu\n", shards, asked_max,
              static_cast<double>(asked) / count,
              Percent(static_cast<double>(*std::max_element(questions.begin(), questions.end())),
                      static_cast<double>(asked)),
              Percent(static_cast<double>(promised), static_cast<double>(whole_promised)),
              Percent(static_cast<double>(coarser), count), outside);
}

int Main(int argc, char** argv) {
  Options options;
  FlagSet flags("split_bench", "What splitting a level over shards does to a trace.");
  flags.Add("trace", &options.trace, "a trace, of a format that tools/trace reads");
  flags.Add("split", &options.split, "blocks per 512 tokens", 1, 512);
  flags.Add("head", &options.head, "blocks in front of every prompt that all share");
  flags.Add("shallow", &options.shallow, "waypoints that every shard has", 1, 65536);
  flags.Add("requests", &options.requests, "only the first so many; 0: all");
  flags.ParseOrExit(argc, argv);
  const absl::StatusOr<std::vector<TraceRequest>> trace =
      ReadTrace(options.trace, options.requests);
  if (!trace.ok()) {
    std::fprintf(stderr, "split_bench: %s\n", trace.status().ToString().c_str());
    return 1;
  }
  const std::vector<Prompt> prompts = Prompts(options, *trace);
  std::printf(
      "# parts, in %% of all waypoints; by_branch: the largest, were all owned by the first deep "
      "one\n"
      "shards  waypoints  shallow%%  largest%%  smallest%%  by_branch%%  moved%%\n");
  for (int shards : {2, 4, 8, 16}) PrintParts(prompts, options, shards);
  std::printf(
      "# questions; promised: blocks of the lower bounds, in %% of those of one whole node\n"
      "shards  most  asked  busiest%%  promised%%  coarser%%  outside\n");
  for (int shards : {2, 4, 8, 16})
    for (size_t most : {1, 2, 3}) PrintQuestions(prompts, options, shards, most);
  return 0;
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
