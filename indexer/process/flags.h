// The settings of a process, from its command line, its environment and its configuration file.
//
// A `FlagSet` binds flags to variables: the variable's value at `Add` is the default, shown by
// `--help`.
//   command line   `--name=value` and `--name value`; a bool may stand alone; hyphens in a name are as good as underscores. A flag
//                  given twice keeps its last value, one that `Repeats` all of them.
//   environment    KVATLAS_NAME=value, as the flag takes it        } of sets that `ReadConfig`: the flag wins over the environment,
//   file           name = value (`config_file.h`) of --config=FILE } that over the file
// Unknown names are refused with the nearest known one; a bad value with where it is from, what it
// is and what was expected: a line for each, passwords in URLs left out. Known variables that are
// no flags (of tests, of the publisher in Python, and those that Kubernetes sets for services) are
// not looked at.
//
// While the process runs, `Reload` reads file and environment again. What it may change is what
// `OnReload` names; other changes are reported.
//
// *Threads*: that of main(). *Lifetime*: bound variables outlive the set. After a refusal by
// `Parse` they may hold some new values.
//
// Example:
//   FlagSet flags("kvatlas-leaf", "The index of one cell.");
//   flags.ReadConfig("leaf");
//   Address grpc{"127.0.0.1", 7410};
//   Duration lease_ttl = 10s;
//   flags.Group("Addresses");
//   flags.Add("grpc", &grpc, "address for gRPC").Listens();
//   flags.Group("Limits");
//   flags.Add("lease_ttl", &lease_ttl, "how long a silent worker counts", 1s);
//   flags.ParseOrExit(argc, argv);

#ifndef KVATLAS_INDEXER_PROCESS_FLAGS_H_
#define KVATLAS_INDEXER_PROCESS_FLAGS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"

namespace kvatlas {

inline constexpr size_t kFlagNameBytesMax = 256;

class FlagSet {
 public:
  // One flag, for attributes that `Add` does not take.
  class Flag {
   public:
    // INVALID_ARGUMENT says what is wrong with the flag's text; an empty one is not asked about.
    Flag& Check(std::function<absl::Status(const std::string& text)> check);
    // The text of a string is a list with commas: a file may give an array, or a table.
    Flag& List();
    // For a list: given several times, the flag has all the elements of them.
    Flag& Repeats();
    // An address, or several, that this process listens on: none may be there twice.
    Flag& Listens();

   private:
    friend class FlagSet;
    enum class Kind { kText, kNumber, kBool, kList };
    // The value as text, the same for the same value; or why `text` does not fit. With `apply` the
    // variable has it.
    using Setter = std::function<absl::StatusOr<std::string>(const std::string& text, bool apply)>;

    absl::StatusOr<std::string> Set(const std::string& text, bool apply) const;

    std::string name;
    std::string type;  // as shown by --help: STRING, N, DURATION, HOST:PORT, a|b
    Kind kind = Kind::kText;
    std::string default_text;
    std::string help;
    Setter set;
    std::function<void()> reset;  // to the default
    std::string group = {};
    std::vector<std::function<absl::Status(const std::string&)>> checks = {};
    bool takes_list = false;
    bool repeats = false;
    bool listens = false;
  };

  // `program` is the binary's name in messages, `about` one sentence for `--help`.
  FlagSet(std::string program, std::string about);

  FlagSet(const FlagSet&) = delete;
  FlagSet& operator=(const FlagSet&) = delete;

  // The environment and --config count too; `section` of the file is this process's. Where
  // `other_names` are given, variables and keys of these names are another program's and not looked
  // at, a file that KVATLAS_CONFIG names is read for the section alone, and there is no --check: of
  // several commands each does its work at once.
  void ReadConfig(std::string section,
                  std::function<std::set<std::string>()> other_names = nullptr);

  // The heading of --help for the flags that are added from now on. A heading may be used again:
  // its group then continues.
  void Group(std::string heading) { group_ = std::move(heading); }
  // The same for a heading that many programs have: in --help such groups follow the program's own.
  void CommonGroup(const std::string& heading);
  // The command by which the program is called, where that is not its name: "kvatlas serve". For
  // --help and errors of flags.
  void CalledAs(std::string command) { command_ = std::move(command); }
  // The last heading of --help, whenever it comes: what all processes have.
  static constexpr char kLastGroup[] = "Process";
  // A command line for the end of --help, and what it does.
  void Example(std::string command, std::string does);
  // Arguments that are no flags go to `words` in their order, in place of being refused; `usage`
  // names them in --help. Then a bool takes the next argument for its value only where that is one.
  void Words(std::vector<std::string>* words, std::string usage);

  // Declares a flag. A value outside [min, max] is refused, and so are trailing characters.
  // REQUIRES: `name` is in [a-z0-9_], starts with a letter and is new here.
  Flag& Add(std::string name, std::string* value, std::string help);
  // A name that other processes see: UTF-8 of at most `kFlagNameBytesMax` bytes.
  Flag& AddName(std::string name, std::string* value, std::string help, bool may_be_empty = false);
  Flag& Add(std::string name, bool* value, std::string help);
  Flag& Add(std::string name, int32_t* value, std::string help,
            int32_t min = std::numeric_limits<int32_t>::min(),
            int32_t max = std::numeric_limits<int32_t>::max());
  Flag& Add(std::string name, int64_t* value, std::string help,
            int64_t min = std::numeric_limits<int64_t>::min(),
            int64_t max = std::numeric_limits<int64_t>::max());
  Flag& Add(std::string name, uint32_t* value, std::string help, uint32_t min = 0,
            uint32_t max = std::numeric_limits<uint32_t>::max());
  Flag& Add(std::string name, uint64_t* value, std::string help, uint64_t min = 0,
            uint64_t max = std::numeric_limits<uint64_t>::max());
  // Never takes NaN or infinity.
  Flag& Add(std::string name, double* value, std::string help,
            double min = std::numeric_limits<double>::lowest(),
            double max = std::numeric_limits<double>::max());
  // With a unit: "250ms", "1m30s". "0" needs none; "inf" is Duration::max().
  Flag& Add(std::string name, Duration* value, std::string help, Duration min = Duration::zero(),
            Duration max = Duration::max());
  Flag& Add(std::string name, Address* value, std::string help);
  // As a string, for an address that may be absent: HOST:PORT, or nothing.
  Flag& AddAddress(std::string name, std::string* value, std::string help);
  // Comma-separated; an empty value is an empty list, an empty element is refused.
  Flag& Add(std::string name, std::vector<std::string>* value, std::string help);
  Flag& Add(std::string name, std::vector<Address>* value, std::string help);
  // One of `choices`, which `--help` lists.
  Flag& AddChoice(std::string name, std::string* value, std::string help,
                  std::vector<std::string> choices);

  // Returns nothing if the program should run, or else the status to exit with: 0 after `--help` or
  // `--version` went to `out`, 2 after messages that name flag and value went to `err`.
  std::optional<int> Parse(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

  // As `Parse` with stdout and stderr, and exits where that says so.
  void ParseOrExit(int argc, const char* const* argv);

  // Whether --check was given: everything is to be looked at, and nothing started.
  bool checking() const { return checking_; }
  // The settings that count now, as a configuration file, by topic; behind a value that is not the
  // default, its source.
  std::string Effective() const;
  // The flags that were given, and those that a reload changed, in the order of --help. Values as
  // they were given: with secrets.
  struct Told {
    std::string name;
    std::string value;
    std::string where;  // as of `WhereFrom`
  };
  std::vector<Told> AllTold() const;
  // Where the value of a flag is from: "flag --cell", "KVATLAS_CELL", "leaf.toml:3"; empty: it is
  // the default.
  std::string WhereFrom(const std::string& name) const;
  // An error about flags as it is printed: where a value comes from that the message names first
  // ("--cell: …"), no passwords.
  std::string Refusal(std::string_view message) const;

  const std::string& program() const { return program_; }
  const std::string& command() const { return command_; }
  // By topic; or of one topic, or one flag; or, of "man" and "markdown", as `ManPage` and
  // `Markdown`. Nothing: there is no such.
  std::string Help() const;
  std::optional<std::string> Help(std::string topic) const;
  // For the manual, in roff: section 8 for a service, 1 for a command.
  std::string ManPage() const;
  // For a reference: a heading, and a table for each topic.
  std::string Markdown() const;
  std::set<std::string> Names() const;
  // Every flag as --help has it, in the order it was added; for completion and manual pages.
  struct Text {
    std::string name;
    std::string type;  // STRING, N, DURATION, HOST:PORT, a|b
    std::string default_text;
    std::string help;
    std::string group;
    bool is_bool = false;
  };
  std::vector<Text> Texts() const;
  const std::string& about() const { return about_; }
  const std::vector<std::pair<std::string, std::string>>& examples() const { return examples_; }

  // ---- While the process runs ----

  struct Change {
    std::string flag;
    std::string where;  // as of `WhereFrom`; empty: it has its default again
  };
  struct Reloaded {
    std::vector<Change> changed;
    std::vector<Change> need_restart;  // another value than at the start, which does not count
  };
  // Registers flags that may change at `Reload`: `prepare` reads the variables, which have the new
  // values, and the files that they name, and returns a function that puts them into effect.
  // INVALID_ARGUMENT, naming a flag: everything stays as it was. It is called at each reload,
  // whether or not these flags changed, for the sake of the files. REQUIRES: nothing else reads
  // these variables any more.
  using Commit = std::function<void()>;
  void OnReload(std::set<std::string> flags, std::function<absl::StatusOr<Commit>()> prepare);
  // Everything, or nothing and the reason. After `Parse`.
  absl::StatusOr<Reloaded> Reload();

 private:
  struct Given {
    std::string text;
    std::string where;       // as of `WhereFrom`
    std::string with_value;  // where and what, for a message: "flag --cell=a"
    bool is_list = false;    // an array or a table of a file
  };
  using Settings = std::map<const Flag*, Given>;
  struct CommandLine {
    Settings settings;
    std::optional<std::string> help;  // the topic; empty: all
    bool version = false;
    bool check = false;
    std::vector<std::string> words;
    std::vector<std::string> problems;
  };
  struct Reloader {
    std::set<std::string> flags;
    std::function<absl::StatusOr<Commit>()> prepare;
  };

  Flag& Declare(Flag flag);
  template <typename Number>
  Flag& AddNumber(std::string name, Number* value, std::string help, Number min, Number max);
  template <typename Value, typename Parser>
  Flag& AddParsed(std::string name, std::string type, Flag::Kind kind, Value* value,
                  std::string help, Parser parse);
  const Flag* Find(std::string_view name) const;
  std::vector<std::string> NameList() const;
  CommandLine ReadCommandLine(const std::vector<std::string>& arguments) const;
  void ReadEnvironment(Settings* settings, std::vector<std::string>* problems) const;
  void ReadFile(const Given& path, Settings* settings, std::vector<std::string>* problems) const;
  // `file_keys`: of the configuration file.
  Settings Gather(const CommandLine& line, std::vector<std::string>* problems,
                  size_t* file_keys) const;
  void CheckListeners(const std::map<const Flag*, std::string>& texts,
                      std::vector<std::string>* problems) const;
  bool TakesCheck() const { return reads_config_ && other_names_ == nullptr; }
  std::vector<std::string> Groups() const;
  std::string GroupHelp(const std::string& group) const;
  std::string FlagHelp(const Flag& flag) const;
  void Restore(const std::map<const Flag*, std::string>& texts) const;

  const std::string program_;
  const std::string about_;
  std::string command_;
  std::string group_;
  std::set<std::string> common_groups_;
  std::deque<Flag> flags_;  // addresses stay
  std::vector<std::pair<std::string, std::string>> examples_;
  std::vector<std::string>* words_ = nullptr;
  std::string words_usage_;
  bool reads_config_ = false;
  std::string section_;
  std::function<std::set<std::string>()> other_names_;
  std::string config_path_;
  bool checking_ = false;
  std::vector<std::string> arguments_;
  Settings settings_;                          // what was given
  size_t file_keys_ = 0;                       // in the configuration file when it was read last
  std::map<const Flag*, std::string> values_;  // of all, as text
  std::vector<Reloader> reloaders_;
};

// The same status, of a flag: "--grpc: …".
absl::Status OfFlag(std::string_view flag, const absl::Status& status);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_FLAGS_H_
