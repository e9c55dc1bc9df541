// bundle: everything for a report about a fleet, in one file, and nothing of prompts, tokens and
// secrets.
//
//   kvatlas-bundle/
//     README.txt                 what this is, when and by which version it was made
//     doctor.txt, doctor.json    what is wrong
//     streams.txt                streams into and out of leaves, nodes and relays
//     services.json              who was found, where, of which version, told what
//     KIND-HOST-PORT/            status.json, metrics.txt, workers.json of each
//     logs/N-NAME                the last lines of log files
//
// Decisions, dumps and explanations are not in it: they have hashes of prompts. The rest goes
// through `scrub.h`.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/util/json_util.h"
#include "indexer/base/version.h"
#include "tools/kvatlas/archive.h"
#include "tools/kvatlas/command.h"
#include "tools/kvatlas/findings.h"
#include "tools/kvatlas/scrub.h"
#include "tools/kvatlas/services.h"
#include "tools/kvatlas/survey.h"
#include "tools/kvatlas/survey_command.h"

namespace kvatlas {
namespace {

constexpr char kFolder[] = "kvatlas-bundle/";
constexpr size_t kLogBytesMax = 4 << 20;
constexpr size_t kFileNameBytesMax = 40;

// By value: scrubbing must not change the survey.
std::string Printed(Json json) {
  Scrub(&json);
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// A service's page, scrubbed; a page that is no JSON is treated as text.
std::string PrintedBody(const std::string& body) {
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? ScrubbedText(body) : Printed(std::move(json));
}

// A name within an archive: only letters, digits, '.' and '-'. Of a long one the end is kept, which
// has the port.
std::string FileName(std::string text) {
  for (char& c : text)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '-') c = '-';
  if (text.size() > kFileNameBytesMax) text.erase(0, text.size() - kFileNameBytesMax);
  return text;
}

// "20261125-101844", UTC.
std::string Stamp(int64_t unix_s) {
  const std::time_t at = unix_s;
  std::tm parts = {};
  gmtime_r(&at, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y%m%d-%H%M%S", &parts);
  return text;
}

struct BundleOptions {
  std::string out;
  std::vector<std::string> logs;
  uint32_t log_lines = 1000;
};

// Collects files into the archive. Every content goes through `Scrub` or `ScrubbedText` before
// `Add`.
class Bundle {
 public:
  Bundle(const Command& command, const Survey& survey, int64_t now_unix_s)
      : command_(command), survey_(survey), archive_(now_unix_s), now_unix_s_(now_unix_s) {}

  void AddAll(const BundleOptions& options);
  const Archive& archive() const { return archive_; }
  size_t files() const { return files_; }

 private:
  void Add(const std::string& name, const std::string& content) {
    archive_.Add(kFolder + name, content);
    ++files_;
  }
  void AddReadme();
  void AddDoctor();
  void AddStreams();
  void AddServices();
  void AddPages(const std::string& folder, const std::string& kind, const Address& address,
                const std::vector<std::string>& paths);
  void AddNode(const SurveyedNode& node);
  void AddLogs(const BundleOptions& options);

  const Command& command_;
  const Survey& survey_;
  Archive archive_;
  const int64_t now_unix_s_;
  size_t files_ = 0;
  std::set<std::string> logs_;  // that processes of this host write to
};

void Bundle::AddReadme() {
  Add("README.txt",
      "What kvatlas " + std::string(kVersion) + " found of a fleet at " + Stamp(now_unix_s_) +
          " UTC (kvatlas bundle).\n\n"
          "doctor.txt says what is wrong. No prompt, token, hash of a prompt or secret is in these "
          "files:\nsuch fields are ***, long numbers in texts are <number>. Names of models, "
          "tenants, workers, cells and\nhosts are in them; look through the files before you pass "
          "them on.\n");
}

// With the limits of a doctor without flags.
void Bundle::AddDoctor() {
  std::string text, lines;
  CheckOptions checks;
  checks.now_unix_s = now_unix_s_;
  for (const FleetFinding& finding : FindingsOf(survey_, checks)) {
    const std::string severity(SeverityName(finding.severity));
    text += severity + "  " + finding.where + ": " + finding.what + " [" + finding.id + "]\n    " +
            finding.remedy + "\n";
    Json line = {{"severity", severity},
                 {"id", finding.id},
                 {"where", finding.where},
                 {"what", finding.what},
                 {"remedy", finding.remedy}};
    Scrub(&line);
    lines += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  Add("doctor.txt", text.empty() ? "nothing is wrong\n" : ScrubbedText(text));
  Add("doctor.json", lines);
}

// Runs `kvatlas streams` within this process and keeps what it prints.
void Bundle::AddStreams() {
  std::string leaves, nodes, relays;
  const auto join = [](const std::string& address, std::string* to) {
    *to += (to->empty() ? "" : ",") + address;
  };
  for (const SurveyedNode& node : survey_.nodes)
    join(node.addresses.front(), node.is_leaf() ? &leaves : &nodes);
  for (const SurveyedPage& page : survey_.pages)
    if (page.kind == "relay") join(page.address, &relays);
  if (leaves.empty() && nodes.empty() && relays.empty()) return;
  std::ostringstream out, err;
  RunStreams({"--leaf=" + leaves, "--hierarchy=" + nodes, "--relay=" + relays},
             {out, err, command_.io().in});
  Add("streams.txt", ScrubbedText(out.str() + err.str()));
}

// Flags are told as services report them, which leave out secrets; `Printed` scrubs once more.
void Bundle::AddServices() {
  Json services = Json::array();
  for (const SurveyedNode& node : survey_.nodes) {
    const v1::ProcessStats& process = node.stats.process();
    Json flags = Json::object();
    for (const v1::FlagStats& flag : process.flags())
      flags[flag.name()] = {{"value", flag.value()}, {"from", flag.from()}};
    services.push_back({{"service", node.Name()},
                        {"addresses", node.addresses},
                        {"program", process.program()},
                        {"version", process.version()},
                        {"uptime_ms", process.uptime_ms()},
                        {"flags", std::move(flags)}});
  }
  for (const SurveyedPage& page : survey_.pages) {
    services.push_back({{"service", page.Name()}, {"addresses", {page.address}}});
    if (page.status.contains("process")) services.back()["process"] = Json(page.status["process"]);
  }
  for (const Unreached& unreached : survey_.unreached)
    services.push_back({{"service", unreached.kind + " " + unreached.address},
                        {"unreachable", std::string(unreached.why.message())},
                        {"told_by", unreached.told_by}});
  for (const SurveyedEngine& engine : survey_.engines) {
    services.push_back({{"service", "engine " + engine.url}, {"of", engine.of}});
    Json& json = services.back();
    if (!engine.facts.ok()) {
      json["unreachable"] = std::string(engine.facts.status().message());
      continue;
    }
    json["engine"] = engine.facts->Title();
    json["block_size"] = engine.facts->block_size;
    for (const ServedModel& model : engine.facts->models) json["models"].push_back(model.id);
  }
  Add("services.json", Printed(std::move(services)));
}

// A page that cannot be had leaves a file NAME.error with the reason: that is worth knowing as
// well.
void Bundle::AddPages(const std::string& folder, const std::string& kind, const Address& address,
                      const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    const absl::StatusOr<std::string> body =
        HttpBody(kind, address, "GET", path, "", command_.timeout());
    const bool metrics = path == "/metrics";
    const std::string name = folder + path.substr(1) + (metrics ? ".txt" : ".json");
    if (!body.ok()) {
      Add(name + ".error", ScrubbedText(std::string(body.status().message())) + "\n");
    } else {
      Add(name, metrics ? ScrubbedText(*body) : PrintedBody(*body));
    }
  }
}

// Statistics over gRPC were asked for in the survey; only HTTP pages are fetched here.
void Bundle::AddNode(const SurveyedNode& node) {
  const char* const kind = node.is_leaf() ? "leaf" : "hierarchy";
  const std::string folder = FileName(std::string(kind) + "-" + node.addresses.front()) + "/";
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string stats;
  if (google::protobuf::util::MessageToJsonString(node.stats, &stats, options).ok())
    Add(folder + "status.json", PrintedBody(stats));
  const std::optional<Address> http = node.Http();
  if (!http.has_value()) return;
  std::vector<std::string> paths = {"/metrics"};
  if (node.is_leaf()) paths.push_back("/workers");
  AddPages(folder, kind, *http, paths);
}

// The last lines of at most `kLogBytesMax` bytes; empty: the file is not there, as for services of
// other hosts.
std::string LastLines(const std::string& path, size_t lines) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const auto size = static_cast<size_t>(std::max<std::streamoff>(file.tellg(), 0));
  file.seekg(static_cast<std::streamoff>(size > kLogBytesMax ? size - kLogBytesMax : 0));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  size_t from = text.size();
  for (size_t found = 0; from > 0; --from)
    if (text[from - 1] == '\n' && from < text.size() && ++found == lines) break;
  return text.substr(from);
}

// Files of the flag, then those that services of the fleet say they write, where they exist on this
// host.
void Bundle::AddLogs(const BundleOptions& options) {
  std::vector<std::string> paths = options.logs;
  for (const std::string& path : logs_)
    if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string lines = LastLines(paths[i], options.log_lines);
    const std::string name = paths[i].substr(paths[i].rfind('/') + 1);
    if (!lines.empty())
      Add("logs/" + std::to_string(i) + "-" + FileName(name), ScrubbedText(lines));
  }
}

// Services are asked one after the other: a bundle is not in a hurry.
void Bundle::AddAll(const BundleOptions& options) {
  AddReadme();
  AddDoctor();
  AddStreams();
  AddServices();
  for (const SurveyedNode& node : survey_.nodes) {
    AddNode(node);
    if (const std::string& log = node.stats.process().log(); !log.empty()) logs_.insert(log);
  }
  for (const SurveyedPage& page : survey_.pages) {
    const absl::StatusOr<Address> address = Address::Parse(page.address);
    const std::string folder = FileName(page.kind + "-" + page.address) + "/";
    Add(folder + "status.json", Printed(Json(page.status)));
    std::vector<std::string> paths = {"/metrics"};
    if (page.kind == "relay") paths.push_back("/workers");
    if (address.ok()) AddPages(folder, page.kind, *address, paths);
    if (!page.status.contains("process")) continue;
    if (const std::string log = TextIn(page.status["process"], "log"); !log.empty())
      logs_.insert(log);
  }
  AddLogs(options);
}

}  // namespace

int RunBundle(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command("bundle",
                  "Everything for a report about a fleet in one file: states, metrics, streams, "
                  "findings, flags and the ends of logs; no prompt, token or secret.",
                  io);
  SurveyFlags survey_flags;
  AddSurveyFlags(&command, &survey_flags);
  BundleOptions options;
  const CheckOptions now = ChecksNow();
  command.flags().Add("out", &options.out, "the file to write; empty: kvatlas-bundle-TIME.tar.gz");
  command.flags().Add("log", &options.logs,
                      "log files of which the end is added, beside those that services of this "
                      "host write");
  command.flags().Add("log_lines", &options.log_lines, "so many lines of each", 0, 1'000'000);
  if (const auto exit = command.Parse(arguments)) return *exit;
  const absl::StatusOr<Survey> survey = SurveyFor(command, survey_flags);
  if (!survey.ok()) return command.Fail(survey.status());
  Bundle bundle(command, *survey, now.now_unix_s);
  bundle.AddAll(options);
  const absl::StatusOr<std::string> bytes = bundle.archive().TarGz();
  if (!bytes.ok()) return command.Fail(bytes.status());
  const std::string path =
      options.out.empty() ? "kvatlas-bundle-" + Stamp(now.now_unix_s) + ".tar.gz" : options.out;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << *bytes;
  file.close();
  if (!file) return command.Usage("--out: " + path + " cannot be written");
  command.PrintJson({{"file", path}, {"files", bundle.files()}, {"bytes", bytes->size()}});
  if (command.table())
    command.out() << path << ": " << bundle.files() << " files, " << bytes->size() << " bytes\n";
  return command.Done();
}

}  // namespace kvatlas
