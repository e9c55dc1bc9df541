// The operator's command `kvatlas`: one function for each sub-command, its flags and texts.
//
//   serve  demo                 a process in front of engines; the same with two mock engines and a conversation
//   status                      all processes in one screen
//   cells  workers  streams     what there is, and how it is doing
//   sessions                    what of a session is where
//   query  explain              who has how much of a prompt, and why
//   dump   diff                 who holds what, and how two tellers differ
//   diagnose                    why engines serve something else than predicted
//   doctor                      what is wrong in a fleet, and what mends it
//   tokenize                    which ids an engine makes of a request
//   checkpoint                  a leaf writes one now
//   policy  pki                 who may do what, and certificates for a trial
//   completion                  for bash and zsh
//
// Every command prints an aligned table for people; with `--json` lines of JSON on standard output
// instead, with `--json FILE` lines of JSON there and the table too. With `--watch` it is printed
// again and again.
//
// *Exit status*: 0 done; 1 the service, or a file, says no (the domain is unknown, for one); 2 the
// command line; 3 `diff` found differences, `doctor` something wrong; 4 a service cannot be
// reached, or not in time. Errors are one line on standard error.

#ifndef KVATLAS_TOOLS_KVATLAS_COMMANDS_H_
#define KVATLAS_TOOLS_KVATLAS_COMMANDS_H_

#include <functional>
#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/process/flags.h"

namespace kvatlas {

inline constexpr int kExitOk = 0, kExitRefused = 1, kExitUsage = 2, kExitDifferent = 3,
                     kExitUnreachable = 4;

struct CommandIo {
  std::ostream& out;
  std::ostream& err;
  std::istream& in;
  // `out` is a terminal that shows colours, and begins anew with every look of --watch.
  bool terminal = false;
  // Between two looks of --watch; false ends it. Empty: waits, until `out` can no longer be written
  // to.
  std::function<bool(Duration)> wait = nullptr;
  // Given: a command shows its flags to it, and does nothing else.
  std::function<void(const FlagSet&)> flags = nullptr;
  // Where a command says how long it waits between two looks; set by `RunCommand`.
  Duration* watch = nullptr;
};

// Without the program's name: {"workers", "--leaf=127.0.0.1:7410"}. Returns the status to exit
// with.
int RunCommand(const std::vector<std::string>& arguments, const CommandIo& io);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_COMMANDS_H_
