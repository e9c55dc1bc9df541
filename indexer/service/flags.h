// What was this process told on its command line?
//
// A `FlagSet` binds flags to variables: the variable's value at `Add` is the default, shown by
// `--help`. `--name=value` and `--name value` both work; a bool may stand alone; a flag given twice
// keeps its last value. Hyphens in a name are as good as underscores. `--help` and `--version` are always there. An unknown flag, a stray
// argument and a bad value are refused by name, on one line, never ignored.
//
// Threads: one thread, before others start.
// Lifetime: bound variables outlive the `FlagSet`. After a refusal they may hold some new values.
//
// Example:
//   FlagSet flags("kvatlas-leaf", "The index of one cell.");
//   Address grpc{"127.0.0.1", 7410};
//   Duration lease_ttl = 10s;
//   flags.Add("grpc", &grpc, "address for gRPC");
//   flags.Add("lease_ttl", &lease_ttl, "how long a silent worker counts", 1s);
//   flags.ParseOrExit(argc, argv);

#ifndef KVATLAS_INDEXER_SERVICE_FLAGS_H_
#define KVATLAS_INDEXER_SERVICE_FLAGS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/service/address.h"

namespace kvatlas {

inline constexpr size_t kFlagNameBytesMax = 256;

class FlagSet {
 public:
  // `program` is the binary's name in messages, `about` one sentence for `--help`.
  FlagSet(std::string program, std::string about);

  FlagSet(const FlagSet&) = delete;
  FlagSet& operator=(const FlagSet&) = delete;

  // Declares a flag. A value outside [min, max] is refused, and so are trailing characters.
  // REQUIRES: `name` is in [a-z0-9_], starts with a letter and is new here.
  void Add(std::string name, std::string* value, std::string help);
  // A name that other processes are told: UTF-8 of at most `kFlagNameBytesMax` bytes.
  void AddName(std::string name, std::string* value, std::string help, bool may_be_empty = false);
  void Add(std::string name, bool* value, std::string help);
  void Add(std::string name, int32_t* value, std::string help,
           int32_t min = std::numeric_limits<int32_t>::min(),
           int32_t max = std::numeric_limits<int32_t>::max());
  void Add(std::string name, int64_t* value, std::string help,
           int64_t min = std::numeric_limits<int64_t>::min(),
           int64_t max = std::numeric_limits<int64_t>::max());
  void Add(std::string name, uint32_t* value, std::string help, uint32_t min = 0,
           uint32_t max = std::numeric_limits<uint32_t>::max());
  void Add(std::string name, uint64_t* value, std::string help, uint64_t min = 0,
           uint64_t max = std::numeric_limits<uint64_t>::max());
  // Never takes NaN or infinity.
  void Add(std::string name, double* value, std::string help,
           double min = std::numeric_limits<double>::lowest(),
           double max = std::numeric_limits<double>::max());
  // With a unit: "250ms", "1m30s". "0" needs none; "inf" is Duration::max().
  void Add(std::string name, Duration* value, std::string help, Duration min = Duration::zero(),
           Duration max = Duration::max());
  void Add(std::string name, Address* value, std::string help);
  // Comma-separated; an empty value is an empty list, an empty element is refused.
  void Add(std::string name, std::vector<std::string>* value, std::string help);
  void Add(std::string name, std::vector<Address>* value, std::string help);
  // One of `choices`, which `--help` lists.
  void AddChoice(std::string name, std::string* value, std::string help,
                 std::vector<std::string> choices);

  // Returns nothing if the program should run, or else the status to exit with: 0 after `--help` or
  // `--version` went to `out`, 2 after a message that names flag and value went to `err`.
  std::optional<int> Parse(int argc, const char* const* argv, std::ostream& out,
                           std::ostream& err) const;

  // As `Parse` with stdout and stderr, and exits where that says so.
  void ParseOrExit(int argc, const char* const* argv) const;

  const std::string& program() const { return program_; }
  std::string Help() const;

 private:
  // Sets the variable, or says why `text` does not fit ("not a number", "must be in 1..8").
  using Setter = std::function<absl::Status(std::string_view text)>;

  struct Flag {
    std::string name;
    std::string type;  // as shown by --help: STRING, N, DURATION, HOST:PORT, a|b
    std::string default_text;
    std::string help;
    Setter set;
    bool may_stand_alone = false;  // then "true" is meant
  };

  void Declare(Flag flag);
  template <typename Number>
  void AddNumber(std::string name, Number* value, std::string help, Number min, Number max);
  std::vector<std::string> Normalize(int argc, const char* const* argv) const;
  std::string WithUnderscores(std::string argument) const;
  std::optional<int> Refuse(std::ostream& err, std::string_view why) const;

  const std::string program_;
  const std::string about_;
  std::vector<Flag> flags_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_FLAGS_H_
