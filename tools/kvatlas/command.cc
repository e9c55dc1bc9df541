// The table of sub-commands, the command line that they share (`Command`), and the loop of --watch.

#include "tools/kvatlas/command.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "frontend/serve/serve.h"
#include "indexer/base/nearest_name.h"
#include "indexer/process/build_version.h"
#include "indexer/process/roff.h"
#include "indexer/security/secret_file.h"
#include "tools/kvatlas/services.h"
#include "tools/kvatlas/table.h"

namespace kvatlas {
namespace {

// Sent to a terminal before each look of --watch: home, and nothing below.
constexpr char kClear[] = "\x1b[H\x1b[2J\x1b[3J";
constexpr char kWatchEvery[] = "2s";

// One sub-command; `run` gets the arguments behind its name.
struct Entry {
  const char* name;
  const char* about;
  int (*run)(const std::vector<std::string>&, const CommandIo&);
  bool serves = false;  // a process that runs on, whose flags are its own (`ServiceMain`)
};

int Serve(const std::vector<std::string>& arguments, const CommandIo& io) {
  if (io.flags == nullptr) return RunServe(arguments);
  LookAtServeFlags(io.flags);
  return kExitOk;
}

// In the order of the help. A new command is a line here, a declaration in command.h, and a source.
constexpr Entry kCommands[] = {
    {"serve", "stands in front of engines: leaf, frontend and proxy in one process", Serve,
     /*serves=*/true},
    {"demo", "two mock engines, serve and a conversation, to see what it does", RunDemo},
    {"status", "all processes in one screen, those that a named one knows too", RunStatus},
    {"cells", "cells that report to a hierarchy node", RunCells},
    {"workers", "worker ranks of a leaf", RunWorkers},
    {"streams", "streams into and out of a leaf, a hierarchy node or a relay", RunStreams},
    {"sessions", "what of a session is where, and what its next turn would compute", RunSessions},
    {"query", "who has how much of a prompt", RunQuery},
    {"explain", "why: block by block at a leaf, or a frontend's choice", RunExplain},
    {"dump", "who holds what", RunDump},
    {"diff", "how two tellers differ: leaf, replica, relay, checkpoint, dump", RunDiff},
    {"diagnose", "why engines serve something else than predicted", RunDiagnose},
    {"doctor", "what is wrong in a fleet, and what mends it", RunDoctor},
    {"tokenize", "token ids that an engine makes of requests, from a model's files", RunTokenize},
    {"bundle", "everything for a report about a fleet, in one file", RunBundle},
    {"checkpoint", "a leaf writes a checkpoint now", RunCheckpoint},
    {"policy", "who may do what: checks a policy file, explains a decision, makes a token",
     RunPolicy},
    {"pki", "certificates for a trial: makes a CA, issues for an identity", RunPki},
    {"completion", "prints what bash or zsh needs to complete commands and flags", RunCompletion},
};

// The overview; flags are shown by each command itself.
void PrintHelp(std::ostream& out) {
  out << "kvatlas COMMAND [KIND=HOST:PORT…] [--flag=value…]: runs kvatlas in front of engines, and "
         "asks its "
         "services.\n\n";
  for (const Entry& command : kCommands) {
    std::string name = command.name;
    name.resize(12, ' ');
    out << "  " << name << command.about << '\n';
  }
  out << "\nA service is named KIND=HOST:PORT: leaf, hierarchy, frontend, relay or serve, with its "
         "gRPC or its "
         "HTTP port.\n"
         "kvatlas COMMAND --help lists its flags. --json prints lines of JSON for scripts, --watch "
         "looks again and again.\n"
         "Flags may also be variables of the environment (KVATLAS_LEAF for --leaf), or keys of the "
         "section\n"
         "[kvatlas] of the TOML file that --config or KVATLAS_CONFIG names.\n"
         "\nExamples:\n"
         "  kvatlas status frontend=10.0.0.1:8092 --watch\n"
         "  kvatlas workers leaf=127.0.0.1:7410\n"
         "  kvatlas query leaf=127.0.0.1:7410 --model=m --tokens=$(seq -s, 64)\n\n"
         "Exit status: 0 done, 1 refused, 2 wrong command line, 3 diff found differences, "
         "doctor something wrong,\n"
         "4 a service cannot be reached.\n";
}

// kvatlas(1).
void PrintMan(std::ostream& out) {
  RoffPage page("kvatlas", 1);
  page.Name("runs kvatlas in front of engines, and asks its services");
  page.Heading("Synopsis");
  page.Usage("kvatlas", "COMMAND [--flag=value...]");
  page.Heading("Description");
  page.Paragraph(
      "kvatlas tells an LLM serving fleet where the KV cache of a prompt already is. This command "
      "starts it in front of engines, and asks the services of a fleet what they know and what is "
      "wrong. Each command has a page of its own: kvatlas-COMMAND(1).");
  page.Heading("Commands");
  std::vector<std::string> others;
  for (const Entry& command : kCommands) {
    page.Item(command.name, "", command.about);
    others.push_back(absl::StrCat("kvatlas-", command.name, "(1)"));
  }
  page.Heading("Options");
  page.Item("--help", "", "show the commands and exit; behind a command: show its flags");
  page.Item("--version", "", "show the version and exit");
  page.Paragraph(
      "--json prints lines of JSON for scripts. Flags may also be variables of the environment "
      "(KVATLAS_LEAF for --leaf), or keys of the section [kvatlas] of the TOML file that --config "
      "or KVATLAS_CONFIG names.");
  page.Heading("Exit status");
  page.Paragraph(
      "0: done. 1: the service, or a file, says no. 2: the command line is wrong. 3: diff found "
      "differences, doctor something wrong. 4: a service cannot be reached, or not in time.");
  for (const char* service : {"leaf", "hierarchy", "frontend", "relay"})
    others.push_back(absl::StrCat("kvatlas-", service, "(8)"));
  page.SeeAlso(others);
  out << page.Text();
}

// Names of flags of all commands: variables and keys of a shared configuration that belong to other
// commands are then not errors.
std::set<std::string> NamesOfCommands() {
  std::set<std::string> names;
  for (const Entry& command : kCommands) {
    if (command.serves) continue;
    LookAtFlags(command.name, [&](const FlagSet& flags) { names.merge(flags.Names()); });
  }
  return names;
}

// Runs a command, again and again with --watch. The command itself writes the interval into `watch`
// while it parses, and sets it to 0 when its command line is wrong.
int RunEntry(const Entry& command, const std::vector<std::string>& arguments, const CommandIo& io) {
  Duration watch{0};
  CommandIo watched = io;
  watched.watch = &watch;
  for (;;) {
    const int exit = command.run(arguments, watched);
    if (watch <= Duration::zero()) return exit;
    if (io.wait != nullptr) {
      if (!io.wait(watch)) return exit;
      continue;
    }
    if (!io.out.flush()) return exit;
    std::this_thread::sleep_for(watch);
  }
}

// In local time, for people.
std::string TimeOfDay() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[16];
  std::strftime(text, sizeof text, "%H:%M:%S", &local);
  return text;
}

}  // namespace

std::vector<CommandText> CommandTexts() {
  std::vector<CommandText> texts;
  for (const Entry& command : kCommands) texts.push_back({command.name, command.about});
  return texts;
}

// Runs the command with `CommandIo::flags` set, so that it declares its flags and does nothing
// else.
bool LookAtFlags(const std::string& command, const std::function<void(const FlagSet&)>& look) {
  for (const Entry& entry : kCommands) {
    if (entry.name != command) continue;
    std::ostringstream out;
    std::istringstream in;
    CommandIo io{out, out, in};
    io.flags = look;
    entry.run({}, io);
    return true;
  }
  return false;
}

int RunCommand(const std::vector<std::string>& arguments, const CommandIo& io) {
  const std::string name = arguments.empty() ? "" : arguments[0];
  if (name == "--help" || name == "-h" || name == "help") {
    PrintHelp(io.out);
    return kExitOk;
  }
  if (name == "--help=man") {
    PrintMan(io.out);
    return kExitOk;
  }
  if (name == "--help=commands") {
    for (const Entry& command : kCommands) io.out << command.name << '\n';
    return kExitOk;
  }
  if (name == "--version") {
    io.out << "kvatlas " << BuildVersion() << '\n';
    return kExitOk;
  }
  for (const Entry& command : kCommands)
    if (name == command.name)
      return RunEntry(command, {arguments.begin() + 1, arguments.end()}, io);
  std::vector<std::string> names;
  for (const Entry& command : kCommands) names.emplace_back(command.name);
  if (name.starts_with('-')) {
    io.err << "kvatlas: the command comes first, then its flags: kvatlas COMMAND " << Shown(name)
           << " (see kvatlas --help)\n";
    return kExitUsage;
  }
  io.err << "kvatlas: " << (name.empty() ? "no command" : "\"" + Shown(name) + "\" is no command")
         << DidYouMean(name, names) << " (see kvatlas --help)\n";
  return kExitUsage;
}

Command::Command(const std::string& name, const std::string& about, const CommandIo& io)
    : program_("kvatlas " + name), io_(io), flags_(program_, about) {
  flags_.ReadConfig("kvatlas", NamesOfCommands);
  flags_.Add("json", &json_path_, "lines of JSON to this file; alone or -: to standard output");
  flags_.Add("timeout", &timeout_, "how long a service may take", std::chrono::milliseconds(1));
  flags_.AddChoice("color", &color_,
                   "colours; auto: where standard output is a terminal and NO_COLOR is not set",
                   {"auto", "always", "never"});
  flags_.Group("Security");
  flags_.Add("tls_ca", &security_.tls.ca,
             "PEM file with the CAs of the services; given: they are reached by TLS");
  flags_.Add("tls_cert", &security_.tls.certificate, "PEM file with the operator's certificate");
  flags_.Add("tls_key", &security_.tls.key, "PEM file with its key, of mode 0640 or less");
  flags_.Add("token", &token_, "@FILE with a bearer token, of mode 0640 or less");
  flags_.Group("");
}

// With --watch the whole look is printed at once: a slow service does not leave half a screen.
Command::~Command() {
  if (!watching()) return;
  const std::string look = look_.str();
  if (io_.terminal) io_.out << kClear;
  io_.out << program_ << ", " << TimeOfDay() << "\n\n" << look << (io_.terminal ? "" : "\n");
  io_.out.flush();
}

std::ostream& Command::out() const {
  return watching() ? static_cast<std::ostream&>(look_) : io_.out;
}

// The words also become the usage line of --help.
void Command::AddServices(std::vector<ServiceRole> roles, size_t max) {
  std::string usage;
  for (const ServiceRole role : roles)
    usage += (usage.empty() ? "" : "|") + std::string(RoleName(role)) + "=HOST:PORT";
  flags_.Words(&words_, "[" + usage + "]" + (max > 1 ? "..." : ""));
  roles_ = std::move(roles);
  services_max_ = max;
}

void Command::AddWatch() {
  flags_.Add("watch", &watch_,
             "look again so often, alone: every " + std::string(kWatchEvery) + "; 0: once");
}

// Words are services, of the kinds that the command wants. A word beside the older flag of the same
// service is refused, since it is not clear which is meant.
absl::Status Command::ReadServices() {
  if (roles_.empty()) return absl::OkStatus();
  for (const std::string& word : words_) {
    absl::StatusOr<ServiceName> name = ServiceName::Parse(word);
    if (!name.ok()) return name.status();
    if (std::find(roles_.begin(), roles_.end(), name->role) == roles_.end()) {
      std::string wanted;
      for (const ServiceRole role : roles_)
        wanted += (wanted.empty() ? "" : ", ") + std::string(RoleName(role));
      return absl::InvalidArgumentError("expected a service of: " + wanted + "; found " + word);
    }
    const std::string role(RoleName(name->role));
    for (const std::string& flag : {role, role + "_http"}) {
      if (!flags_.WhereFrom(flag).starts_with("flag ")) continue;
      return absl::InvalidArgumentError(word + " and --" + flag + ": name the " + role + " once");
    }
    services_.push_back(*std::move(name));
  }
  if (services_.size() <= services_max_) return absl::OkStatus();
  return absl::InvalidArgumentError("expected at most " + std::to_string(services_max_) +
                                    " services; found " + std::to_string(services_.size()));
}

bool Command::Names(ServiceRole role) const {
  return std::any_of(services_.begin(), services_.end(),
                     [role](const ServiceName& name) { return name.role == role; });
}

// A service named `serve` stands for its leaf and for its frontend.
absl::StatusOr<Address> Command::Find(ServiceRole role, Plane plane,
                                      const Address& otherwise) const {
  const bool in_serve = role == ServiceRole::kLeaf || role == ServiceRole::kFrontend;
  for (const ServiceName& name : services_) {
    if (name.role == role || (in_serve && name.role == ServiceRole::kServe))
      return Located({role, name.address}, plane, timeout_);
  }
  return Located({role, otherwise}, plane, timeout_);
}

void Command::AddDomain(bool required) {
  model_required_ = required;
  flags_.Add("model", &model_, required ? "model of the domain" : "only this model's domain");
  flags_.Add("tenant", &tenant_, "tenant of the domain");
}

// 1. Only shows the flags, if that is asked for.
// 2. --json and --watch without a value get their default: the next argument is a flag or a
//    service.
// 3. Flags, words, colours, credentials, and the file of --json, in this order.
std::optional<int> Command::Parse(const std::vector<std::string>& arguments) {
  if (io_.flags != nullptr) {
    io_.flags(flags_);
    return kExitOk;
  }
  std::vector<std::string> given = {program_};
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool alone = i + 1 == arguments.size() || arguments[i + 1].starts_with("--") ||
                       IsNamed(arguments[i + 1]);
    if (alone && arguments[i] == "--json") {
      given.emplace_back("--json=-");
    } else if (alone && arguments[i] == "--watch") {
      given.emplace_back("--watch=" + std::string(kWatchEvery));
    } else {
      given.push_back(arguments[i]);
    }
  }
  std::vector<const char*> argv;
  for (const std::string& argument : given) argv.push_back(argument.c_str());
  if (std::optional<int> exit =
          flags_.Parse(static_cast<int>(argv.size()), argv.data(), io_.out, io_.err))
    return exit;
  if (absl::Status bad = ReadServices(); !bad.ok()) return Usage(std::string(bad.message()));
  colours_ = color_ == "always" ||
             (color_ == "auto" && io_.terminal && std::getenv("NO_COLOR") == nullptr);
  if (io_.watch != nullptr) *io_.watch = watch_;
  if (absl::Status bad = UseCredentials(); !bad.ok()) return Usage(std::string(bad.message()));
  if (model_required_ && model_.empty()) return Usage("--model is missing");
  if (json() && table()) {
    json_file_.open(json_path_, std::ios::trunc);
    if (!json_file_) return Usage("--json: " + json_path_ + " cannot be written");
  }
  return std::nullopt;
}

// A token is only sent over TLS, and only read from a file: others can read a command line.
absl::Status Command::UseCredentials() {
  if (security_.tls.any()) {
    absl::StatusOr<std::shared_ptr<Security>> security = Security::Start(security_);
    if (!security.ok()) return security.status();
    Security::SetOfProcess(*std::move(security));
  }
  if (token_.empty()) return absl::OkStatus();
  if (security_.tls.ca.empty()) {
    return absl::InvalidArgumentError("--token needs --tls_ca: it is not sent in clear");
  }
  if (!token_.starts_with('@')) {
    return absl::InvalidArgumentError(
        "--token: expected @FILE, since others can read a command line");
  }
  absl::StatusOr<std::string> token = ReadSecretFile(token_.substr(1));
  if (!token.ok()) return OfFlag("token", token.status());
  SetBearerToken(*std::move(token));
  return absl::OkStatus();
}

// A line of JSON, to the file of --json or to standard output.
void Command::PrintJson(const Json& line) {
  if (!json()) return;
  std::ostream& to = table() ? static_cast<std::ostream&>(json_file_) : out();
  to << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
}

void Command::PrintJson(const google::protobuf::Message& line) {
  if (!json()) return;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(line, &text, options).ok()) return;
  std::ostream& to = table() ? static_cast<std::ostream&>(json_file_) : out();
  to << text << '\n';
}

// The exit status tells a service that is not there from one that refuses. With --watch the error
// is part of the look, and the watch goes on.
int Command::Fail(const absl::Status& status) const {
  std::ostream& to = watching() ? static_cast<std::ostream&>(look_) : io_.err;
  to << program_ << ": " << ShownLines(flags_.Refusal(std::string(status.message()))) << '\n';
  // Deadlines count as unreachable: a service that hangs is not there for the operator.
  const bool unreachable = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  return unreachable ? kExitUnreachable : kExitRefused;
}

// Ends a watch: another look would be as wrong.
int Command::Usage(const std::string& what) const {
  if (io_.watch != nullptr) *io_.watch = Duration::zero();
  io_.err << program_ << ": " << flags_.Refusal(what) << " (see --help)\n";
  return kExitUsage;
}

// A file of --json that could not be written is an error of the command.
int Command::Done() {
  if (!json() || !table()) return kExitOk;
  json_file_.close();
  if (json_file_) return kExitOk;
  io_.err << program_ << ": " << json_path_ << " could not be written\n";
  return kExitRefused;
}

}  // namespace kvatlas
