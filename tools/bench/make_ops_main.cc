// make_ops: a trace, or a shape, to an ops file.

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "indexer/process/flags.h"
#include "tools/bench/make_ops.h"

namespace kvatlas {
namespace {

struct Words {
  std::string input, routing = "random", eviction = "lru", shape = "trace";
};

const std::vector<std::string>& Shapes() {
  static const auto* const kShapes =
      new std::vector<std::string>{"trace", "shared_root", "roots", "deep", "children"};
  return *kShapes;
}

// A well-known input is what other flags start from, so it is looked for before they are parsed.
std::string InputOf(int argc, char** argv) {
  const std::string flag = "--input";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == flag && i + 1 < argc) return argv[i + 1];
    if (argument.rfind(flag + "=", 0) == 0) return argument.substr(flag.size() + 1);
  }
  return "";
}

void Declare(FlagSet* flags, std::string* out, Words* words, OpsOptions* options) {
  flags->Add("out", out, "the ops file to write");
  flags->AddChoice("input", &words->input,
                   "a well-known input; other flags change it. d is another trace than a's",
                   {"", "a", "b", "c", "d", "e", "f", "g", "h", "i"});
  flags->Add("trace", &options->trace, "a trace, of a format that tools/trace reads");
  flags->AddChoice("shape", &words->shape, "what the sequences look like", Shapes());
  flags->Add("workers", &options->workers, "engines; 0: 128, for shared_root 7000, for deep 16", 0,
             1 << 20);
  flags->Add("requests", &options->requests,
             "requests of the trace, 0 all; for other shapes queries (roots 1000000, deep 100, "
             "children 300000, shared_root twice the workers)");
  flags->Add("seed", &options->seed, "of everything random");
  flags->Add("split", &options->split, "blocks for every hash id", 1u, kTokensPerHashId);
  flags->Add("capacity", &options->capacity, "blocks of an engine", uint64_t{1});
  flags->Add("dup", &options->dup, "workers that do as each engine does", 1u, 1u << 20);
  flags->AddChoice("routing", &words->routing, "who gets a request", {"random", "affinity"});
  flags->AddChoice("eviction", &words->eviction, "what an engine gives up", {"lru", "random"});
  flags->Add("truncate", &options->truncate_percent,
             "percent of the requests that run only a random prefix", 0u, 100u);
  flags->Add("root_blocks", &options->root_blocks, "blocks that all sequences of a shape share", 0,
             1 << 20);
  flags->Add("branch_blocks", &options->branch_blocks, "blocks of each one's own", 0, 1 << 24);
}

int Fail(const std::string& why) {
  std::fprintf(stderr, "make_ops: %s\n", why.c_str());
  return 2;
}

int Main(int argc, char** argv) {
  Words words;
  OpsOptions options;
  if (const std::string input = InputOf(argc, argv); !input.empty()) {
    const absl::StatusOr<OpsOptions> known = WellKnownInput(input);
    if (!known.ok()) return Fail(std::string(known.status().message()));
    options = *known;
    words.shape = Shapes()[static_cast<size_t>(options.shape)];
    words.routing = options.routing == OpsRouting::kAffinity ? "affinity" : "random";
    words.eviction = options.eviction == OpsEviction::kRandom ? "random" : "lru";
  }
  std::string out;
  FlagSet flags("make_ops", "A trace, or a shape, to an ops file.");
  Declare(&flags, &out, &words, &options);
  flags.ParseOrExit(argc, argv);

  options.shape = static_cast<OpsShape>(std::find(Shapes().begin(), Shapes().end(), words.shape) -
                                        Shapes().begin());
  options.routing = words.routing == "affinity" ? OpsRouting::kAffinity : OpsRouting::kRandom;
  options.eviction = words.eviction == "random" ? OpsEviction::kRandom : OpsEviction::kLru;
  if (out.empty()) return Fail("--out is missing");
  if (options.shape == OpsShape::kTrace && options.trace.empty()) return Fail("--trace is missing");

  const absl::StatusOr<OpsSummary> made = MakeOps(options, out);
  if (!made.ok()) return Fail(std::string(made.status().message()));
  const OpsHeader& header = made->header;
  std::printf(
      "%s: workers %u  block_size %u  requests %lu  too_long %lu  ops %lu\n"
      "blocks: query %lu  store %lu  remove %lu  cached %lu\n",
      out.c_str(), header.workers, header.block_size, made->requests, made->too_long, header.ops,
      header.query_blocks, header.store_blocks, header.remove_blocks, made->cached_blocks);
  return 0;
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
