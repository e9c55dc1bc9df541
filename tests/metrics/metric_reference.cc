#include "tests/metrics/metric_reference.h"

#include <chrono>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "indexer/base/address.h"
#include "tools/bench/service_bench_http.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(60);

// "NAME REST" after `prefix`; nothing, where the line begins otherwise.
bool TakeHead(const std::string& line, const std::string& prefix, std::string* name,
              std::string* rest) {
  if (!line.starts_with(prefix)) return false;
  const size_t end = line.find(' ', prefix.size());
  *name = line.substr(prefix.size(), end - prefix.size());
  *rest = end == std::string::npos ? "" : line.substr(end + 1);
  return true;
}

// The family of a sample: of a histogram's, without its end.
MetricFamily* FamilyOf(const std::string& sample, MetricFamilyMap* families) {
  const auto exact = families->find(sample);
  if (exact != families->end()) return &exact->second;
  for (const std::string end : {"_bucket", "_sum", "_count"}) {
    if (!sample.ends_with(end)) continue;
    const auto family = families->find(sample.substr(0, sample.size() - end.size()));
    if (family != families->end() && family->second.type == "histogram") return &family->second;
  }
  return nullptr;
}

// Names of labels between the braces; values may have anything in them.
void ReadLabels(const std::string& line, size_t at, std::set<std::string>* labels) {
  std::string name;
  bool quoted = false;
  for (; at < line.size() && (quoted || line[at] != '}'); ++at) {
    const char c = line[at];
    if (quoted) {
      if (c == '\\') ++at;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '=') {
      if (name != "le") labels->insert(name);
      name.clear();
    } else if (c != ',') {
      name += c;
    }
  }
}

absl::Status ReadSample(const std::string& line, MetricFamilyMap* families) {
  const size_t end = line.find_first_of("{ ");
  if (end == std::string::npos) return absl::InvalidArgumentError("no value: " + line);
  MetricFamily* const family = FamilyOf(line.substr(0, end), families);
  if (family == nullptr) return absl::InvalidArgumentError("a sample without # TYPE: " + line);
  if (line[end] == '{') ReadLabels(line, end + 1, &family->labels);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadScrape(const std::string& program, const std::string& text,
                        MetricFamilyMap* families) {
  std::istringstream lines(text);
  for (std::string line, name, rest; std::getline(lines, line);) {
    if (TakeHead(line, "# HELP ", &name, &rest)) {
      MetricFamily& family = (*families)[name];
      family.help = rest;
      family.programs.insert(program);
    } else if (TakeHead(line, "# TYPE ", &name, &rest)) {
      MetricFamily& family = (*families)[name];
      if (!family.type.empty() && family.type != rest)
        return absl::InvalidArgumentError(name + " is " + family.type + " and " + rest);
      family.type = rest;
    } else if (!line.empty() && line[0] != '#') {
      if (absl::Status bad = ReadSample(line, families); !bad.ok()) return bad;
    }
  }
  return absl::OkStatus();
}

absl::Status FleetOfAll::Start(const std::string& program, const std::string& binary,
                               std::vector<std::string> args) {
  auto& process = processes_[program];
  process = std::make_unique<Process>(ProcessOptions{.name = program,
                                                     .binary = binary,
                                                     .args = std::move(args),
                                                     .log = folder_ + "/" + program + ".log"});
  return process->Start(kLong);
}

absl::Status FleetOfAll::Start() {
  const std::vector<std::string> ports = {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0"};
  const auto with_ports = [&](std::vector<std::string> args) {
    args.insert(args.end(), ports.begin(), ports.end());
    return args;
  };
  const std::string nowhere = "127.0.0.1:1";  // parents, Redis and engines need not be there
  absl::Status status =
      Start("hierarchy", "hierarchy/kvatlas-hierarchy", with_ports({"--parents=" + nowhere}));
  if (!status.ok()) return status;
  status = Start(
      "leaf", "indexer/leaf/kvatlas-leaf",
      with_ports({"--parents=" + processes_["hierarchy"]->address("grpc"),
                  "--checkpoint_dir=" + folder_ + "/checkpoints", "--redis=redis://" + nowhere,
                  "--kv_indexer_model=m", "--kv_indexer_names=1000", "--model_name=m",
                  "--block_size=16", "--workers=w=tcp://" + nowhere}));
  if (!status.ok()) return status;
  status = Start(
      "frontend", "frontend/kvatlas-frontend",
      with_ports({"--hierarchy=" + processes_["hierarchy"]->address("grpc"), "--proxy=127.0.0.1:0",
                  "--ext_proc=127.0.0.1:0", "--models=bytes=frontend/prompt/text/testdata/bytes"}));
  if (!status.ok()) return status;
  status = Start("relay", "publisher/kvatlas-relay",
                 {"--http=127.0.0.1:0", "--leaves=" + processes_["leaf"]->address("grpc"),
                  "--model_name=m", "--block_size=16", "--workers=w=tcp://" + nowhere});
  if (!status.ok()) return status;
  return Start("serve", "tools/kvatlas/kvatlas",
               {"serve", "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--grpc=127.0.0.1:0",
                "--leaf_http=127.0.0.1:0", "--leaf_grpc=127.0.0.1:0",
                "--hf_cache=", "--engine=http://" + nowhere});
}

absl::StatusOr<std::map<std::string, std::string>> FleetOfAll::Scrapes() const {
  std::map<std::string, std::string> scrapes;
  for (const auto& [program, process] : processes_) {
    const absl::StatusOr<Address> address = Address::Parse(process->address("http"));
    if (!address.ok()) return address.status();
    const absl::StatusOr<HttpAnswer> answer = HttpClient(*address).Get("/metrics");
    if (!answer.ok()) return answer.status();
    if (answer->status != 200) return absl::UnavailableError(program + ": " + answer->body);
    scrapes[program] = answer->body;
  }
  return scrapes;
}

absl::StatusOr<MetricFamilyMap> FleetOfAll::Families() const {
  const absl::StatusOr<std::map<std::string, std::string>> scrapes = Scrapes();
  if (!scrapes.ok()) return scrapes.status();
  MetricFamilyMap families;
  for (const auto& [program, text] : *scrapes) {
    const absl::Status bad = ReadScrape(program, text, &families);
    if (!bad.ok()) return absl::InvalidArgumentError(program + ": " + std::string(bad.message()));
  }
  return families;
}

std::string ReferencePage(const MetricFamilyMap& families) {
  std::string page =
      "# Metrics: what every process says at `GET /metrics`\n\n"
      "Made from the running programs by `bazel run //tests/metrics:write_reference`; a test holds "
      "it to them. Series whose labels are not "
      "yet known, such as those of engines that never connected, are there as families.\n\n"
      "Ratios that operators ask for:\n\n"
      "| question | expression |\n|---|---|\n"
      "| predicted hit ratio | `rate(kvatlas_frontend_chosen_blocks_total[5m]) / "
      "rate(kvatlas_frontend_prompt_blocks_total[5m])` |\n"
      "| locality that choices gave up for load or distance | `1 - "
      "rate(kvatlas_frontend_chosen_blocks_total[5m]) / "
      "rate(kvatlas_frontend_best_blocks_total[5m])` |\n"
      "| hit ratio as engines report it | `rate(kvatlas_frontend_cached_blocks_total[5m]) / "
      "rate(kvatlas_frontend_reported_blocks_total[5m])` |\n"
      "| the oldest live stream of a leaf | `kvatlas_leaf_stream_age_max_seconds` |\n"
      "| route latency | `histogram_quantile(0.99, "
      "rate(kvatlas_frontend_route_seconds_bucket[5m]))` |\n\n"
      "| name | type | of | meaning |\n|---|---|---|---|\n";
  std::string former;
  for (const auto& [name, family] : families) {
    const std::string help = absl::StrReplaceAll(family.help, {{"|", "\\|"}});
    const std::string row = absl::StrCat("| `", name, "` | ", family.type, " | ",
                                         absl::StrJoin(family.programs, ", "), " | ", help, " |\n");
    (family.deprecated() ? former : page) += row;
  }
  return page +
         "\n## Former names\n\nGauges that counted; each has a counter of the same name and "
         "`_total` now, and goes with the next release.\n\n"
         "| name | type | of | meaning |\n|---|---|---|---|\n" +
         former;
}

}  // namespace kvatlas
