// index_bench: one ops file through one or several structures.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "indexer/process/flags.h"
#include "tools/bench/index_bench.h"

namespace kvatlas {
namespace {

struct Arguments {
  std::string ops, json;
  std::vector<std::string> indexes = {"all"};
  std::string mode = "seq";
  std::string query = "full";
  std::string sink = "none";
  bool quiet = false;
};

const std::vector<std::string>& Modes() {
  static const auto* const kModes =
      new std::vector<std::string>{"seq", "steady", "closed", "open", "mem"};
  return *kModes;
}

const std::vector<std::string>& QueryForms() {
  static const auto* const kForms =
      new std::vector<std::string>{"full", "compact", "content", "tiers"};
  return *kForms;
}

const std::vector<std::string>& Sinks() {
  static const auto* const kSinks = new std::vector<std::string>{"none", "digest", "coverage"};
  return *kSinks;
}

size_t PlaceOf(const std::string& word, const std::vector<std::string>& words) {
  size_t place = 0;
  while (words[place] != word) ++place;
  return place;
}

void Declare(FlagSet* flags, Arguments* arguments, BenchOptions* options) {
  constexpr uint32_t kThreadsMax = 1024;
  flags->Add("ops", &arguments->ops, "the ops file");
  flags->Add("index", &arguments->indexes, "names of structures, `null`, or `all`");
  flags->AddChoice(
      "mode", &arguments->mode,
      "one thread; its second half alone; threads as fast as they can; at a given rate; memory",
      Modes());
  flags->AddChoice("query", &arguments->query, "what a query asks for", QueryForms());
  flags->AddChoice("sink", &arguments->sink,
                   "seq, steady: what is done with the changes of events, as a leaf does", Sinks());
  flags->Add("event_threads", &options->event_threads, "threads that apply events", 0, kThreadsMax);
  flags->Add("query_threads", &options->query_threads, "threads that ask", 0, kThreadsMax);
  flags->Add("query_passes", &options->query_passes,
             "closed without event threads: how often all queries are asked", 1);
  flags->Add("repeat", &options->repeat,
             "repetitions; the first touches new memory and counts only when alone", 1);
  flags->Add("reuse", &options->reuse,
             "seq, closed: clear the structure between repetitions and go on");
  flags->Add("check", &options->check, "queries compared with a model, 0 none");
  flags->Add("write_blocks_max", &options->write_blocks_max,
             "cut events into pieces of at most so many blocks, 0 not");
  flags->Add("limit_s", &options->limit_s, "skip what would take longer", 0.0);
  flags->Add("speed", &options->speed, "open: one speed instead of the highest, 0 search", 0.0);
  flags->Add("churn", &options->churn, "mem: replace the live holdings so many times");
  flags->Add("json", &arguments->json, "file for one JSON object per line; `-` standard output");
  flags->Add("quiet", &arguments->quiet, "no progress on standard error");
}

int Fail(const std::string& why) {
  std::fprintf(stderr, "index_bench: %s\n", why.c_str());
  return 2;
}

// The last part of a path without its ending.
std::string ShortName(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  return name.substr(0, name.rfind('.'));
}

absl::StatusOr<BenchPlan> PlanOf(const Arguments& arguments, BenchOptions options) {
  BenchPlan plan;
  plan.mode = static_cast<BenchMode>(PlaceOf(arguments.mode, Modes()));
  options.query = static_cast<QueryForm>(PlaceOf(arguments.query, QueryForms()));
  options.sink = static_cast<SinkKind>(PlaceOf(arguments.sink, Sinks()));
  if (options.sink != SinkKind::kNone && plan.mode != BenchMode::kSeq &&
      plan.mode != BenchMode::kSteady) {
    return absl::InvalidArgumentError("--sink: only of modes seq and steady");
  }
  if (!arguments.quiet) {
    options.progress = [](const std::string& what) {
      std::fprintf(stderr, "index_bench: %s\n", what.c_str());
    };
  }
  if (plan.mode == BenchMode::kClosed && options.event_threads + options.query_threads == 0) {
    return absl::InvalidArgumentError("closed needs an event thread or a query thread");
  }
  if (plan.mode == BenchMode::kOpen && (options.event_threads == 0 || options.query_threads == 0)) {
    return absl::InvalidArgumentError("open needs an event thread and a query thread");
  }
  plan.options = std::move(options);
  return plan;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  BenchOptions options;
  FlagSet flags("index_bench", "One ops file through one or several structures.");
  Declare(&flags, &arguments, &options);
  flags.ParseOrExit(argc, argv);
  if (arguments.ops.empty()) return Fail("--ops is missing");
  const absl::StatusOr<BenchPlan> plan = PlanOf(arguments, options);
  if (!plan.ok()) return Fail(std::string(plan.status().message()));
  const absl::StatusOr<std::vector<Contender>> contenders = ContendersByName(arguments.indexes);
  if (!contenders.ok()) return Fail(std::string(contenders.status().message()));
  const absl::StatusOr<OpsFile> file = OpsFile::Open(arguments.ops);
  if (!file.ok()) return Fail(std::string(file.status().message()));

  const std::string name = ShortName(arguments.ops);
  std::ofstream json_file;
  const bool json_to_stdout = arguments.json == "-";
  if (!arguments.json.empty() && !json_to_stdout) {
    json_file.open(arguments.json);
    if (!json_file) return Fail(arguments.json + ": cannot be written");
  }
  const std::vector<BenchResult> results =
      RunBench(*contenders, *file, *plan, [&](const BenchResult& result) {
        if (json_to_stdout) std::cout << ToJson(result, name) << std::endl;
        if (json_file.is_open()) json_file << ToJson(result, name) << std::endl;
      });
  (json_to_stdout ? std::cerr : std::cout) << name << ", " << arguments.mode << ", query "
                                           << arguments.query << ", sink " << arguments.sink << "\n"
                                           << ToTable(results);
  return 0;
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
