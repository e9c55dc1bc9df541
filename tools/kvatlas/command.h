// The parts that all sub-commands share: flags, the two forms of output, and the status to exit
// with.
//
// *Threads*: none.

#ifndef KVATLAS_TOOLS_KVATLAS_COMMAND_H_
#define KVATLAS_TOOLS_KVATLAS_COMMAND_H_

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/process/flags.h"
#include "indexer/security/security.h"
#include "tools/kvatlas/commands.h"
#include "tools/kvatlas/service_name.h"

namespace kvatlas {

using Json = nlohmann::ordered_json;

// One run of one sub-command. Its flags are declared, then it is `Parse`d, then it prints.
class Command {
 public:
  // `name` without "kvatlas ".
  Command(const std::string& name, const std::string& about, const CommandIo& io);
  ~Command();  // a look of --watch is shown whole

  FlagSet& flags() { return flags_; }
  const CommandIo& io() const { return io_; }
  Duration timeout() const { return timeout_; }
  // The CAs of the services; empty: they are reached in clear.
  const std::string& tls_ca() const { return security_.tls.ca; }

  // --model and --tenant; a model is required where it says so.
  void AddDomain(bool required);
  const std::string& model() const { return model_; }
  const std::string& tenant() const { return tenant_; }

  // Services of these kinds may be named as words, KIND=HOST:PORT, at most `max` of them. What
  // flags name is the older way.
  void AddServices(std::vector<ServiceRole> roles, size_t max);
  // The services that words name; a word beside the flag of the same service is refused by `Parse`.
  const std::vector<ServiceName>& services() const { return services_; }
  // The address of the service that a word names in one of `roles`, or else of `otherwise`.
  absl::StatusOr<Address> Find(ServiceRole role, Plane plane, const Address& otherwise) const;
  // Whether a word names a service of this kind.
  bool Names(ServiceRole role) const;
  // For commands whose words do not name services.
  const std::vector<std::string>& words() const { return words_; }
  void TakeWords(std::string usage) { flags_.Words(&words_, std::move(usage)); }

  // --watch: the command may be run again and again.
  void AddWatch();

  // For commands that ask services: how they are reached and with what credential.
  absl::Status UseCredentials();

  // Nothing: go on. Else the status to exit with: help was asked for, or a flag is wrong.
  std::optional<int> Parse(const std::vector<std::string>& arguments);

  // Whether lines of JSON are wanted, and whether the table is.
  bool json() const { return !json_path_.empty(); }
  bool table() const { return json_path_ != "-"; }
  std::ostream& out() const;
  bool colours() const { return colours_; }
  void PrintJson(const Json& line);
  void PrintJson(const google::protobuf::Message& line);

  // Says what went wrong, and returns the status to exit with.
  int Fail(const absl::Status& status) const;
  int Usage(const std::string& what) const;
  // Ends a command that has printed everything.
  int Done();

 private:
  // INVALID_ARGUMENT: a word that names none of the services that are wanted.
  absl::Status ReadServices();
  bool watching() const { return watch_ > Duration::zero(); }

  const std::string program_;
  const CommandIo& io_;
  FlagSet flags_;
  std::string json_path_;
  Duration timeout_ = std::chrono::seconds(5);
  std::string model_;
  std::string tenant_;
  bool model_required_ = false;
  std::ofstream json_file_;
  SecurityOptions security_;
  std::string token_;
  std::string color_ = "auto";
  bool colours_ = false;
  Duration watch_{0};
  mutable std::ostringstream look_;  // what is shown at the end, with --watch
  std::vector<std::string> words_;
  std::vector<ServiceRole> roles_;
  size_t services_max_ = 0;
  std::vector<ServiceName> services_;
};

// All commands, for completion and manual pages.
struct CommandText {
  std::string name;
  std::string about;
};
std::vector<CommandText> CommandTexts();
// The words that may stand in the place of the last word of a command line up to the cursor.
std::vector<std::string> CompletionsOf(const std::string& line);
// Shows the flags of a command to `look`; false: there is no such command.
bool LookAtFlags(const std::string& command, const std::function<void(const FlagSet&)>& look);

int RunStatus(const std::vector<std::string>& arguments, const CommandIo& io);
int RunCompletion(const std::vector<std::string>& arguments, const CommandIo& io);
int RunCells(const std::vector<std::string>& arguments, const CommandIo& io);
int RunWorkers(const std::vector<std::string>& arguments, const CommandIo& io);
int RunStreams(const std::vector<std::string>& arguments, const CommandIo& io);
int RunSessions(const std::vector<std::string>& arguments, const CommandIo& io);
int RunQuery(const std::vector<std::string>& arguments, const CommandIo& io);
int RunExplain(const std::vector<std::string>& arguments, const CommandIo& io);
int RunDump(const std::vector<std::string>& arguments, const CommandIo& io);
int RunDiff(const std::vector<std::string>& arguments, const CommandIo& io);
int RunDiagnose(const std::vector<std::string>& arguments, const CommandIo& io);
int RunDoctor(const std::vector<std::string>& arguments, const CommandIo& io);
int RunPolicy(const std::vector<std::string>& arguments, const CommandIo& io);
int RunDemo(const std::vector<std::string>& arguments, const CommandIo& io);
int RunPki(const std::vector<std::string>& arguments, const CommandIo& io);
int RunTokenize(const std::vector<std::string>& arguments, const CommandIo& io);
int RunBundle(const std::vector<std::string>& arguments, const CommandIo& io);
int RunCheckpoint(const std::vector<std::string>& arguments, const CommandIo& io);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_COMMAND_H_
