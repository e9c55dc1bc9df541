// What do all sub-commands have in common? Flags, the two forms of output, and the status to exit with.
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
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "indexer/base/clock.h"
#include "indexer/service/address.h"
#include "indexer/service/flags.h"
#include "indexer/service/security/security.h"
#include "tools/kvatlas/commands.h"

namespace kvatlas {

using Json = nlohmann::ordered_json;

// One run of one sub-command. Its flags are declared, then it is `Parse`d, then it prints.
class Command {
 public:
  // `name` without "kvatlas ".
  Command(const std::string& name, const std::string& about, const CommandIo& io);

  FlagSet& flags() { return flags_; }
  const CommandIo& io() const { return io_; }
  Duration timeout() const { return timeout_; }
  // The CAs of the services; empty: they are reached in clear.
  const std::string& tls_ca() const { return security_.tls.ca; }

  // --model and --tenant; a model is required where it says so.
  void AddDomain(bool required);
  const std::string& model() const { return model_; }
  const std::string& tenant() const { return tenant_; }

  // For commands that ask services: how they are reached and with what credential.
  absl::Status UseCredentials();

  // Nothing: go on. Else the status to exit with: help was asked for, or a flag is wrong.
  std::optional<int> Parse(const std::vector<std::string>& arguments);

  // Whether lines of JSON are wanted, and whether the table is.
  bool json() const { return !json_path_.empty(); }
  bool table() const { return json_path_ != "-"; }
  std::ostream& out() const { return io_.out; }
  void PrintJson(const Json& line);
  void PrintJson(const google::protobuf::Message& line);

  // Says what went wrong, and returns the status to exit with.
  int Fail(const absl::Status& status) const;
  int Usage(const std::string& what) const;
  // Of a command that is through.
  int Done();

 private:
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
};

int RunCells(const std::vector<std::string>& arguments, const CommandIo& io);
int RunWorkers(const std::vector<std::string>& arguments, const CommandIo& io);
int RunStreams(const std::vector<std::string>& arguments, const CommandIo& io);
int RunQuery(const std::vector<std::string>& arguments, const CommandIo& io);
int RunExplain(const std::vector<std::string>& arguments, const CommandIo& io);
int RunDump(const std::vector<std::string>& arguments, const CommandIo& io);
int RunDiff(const std::vector<std::string>& arguments, const CommandIo& io);
int RunDiagnose(const std::vector<std::string>& arguments, const CommandIo& io);
int RunDoctor(const std::vector<std::string>& arguments, const CommandIo& io);
int RunPolicy(const std::vector<std::string>& arguments, const CommandIo& io);
int RunPki(const std::vector<std::string>& arguments, const CommandIo& io);
int RunBundle(const std::vector<std::string>& arguments, const CommandIo& io);
int RunCheckpoint(const std::vector<std::string>& arguments, const CommandIo& io);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_COMMAND_H_
