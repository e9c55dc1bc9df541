// kvatlas: the operator's command.

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "tools/kvatlas/commands.h"

int main(int argc, char** argv) {
  // An error is one line: gRPC's own words about it are not another one, unless asked for.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  kvatlas::CommandIo io{std::cout, std::cerr, std::cin};
  const char* const kind = std::getenv("TERM");
  io.terminal = isatty(STDOUT_FILENO) == 1 && kind != nullptr && std::string(kind) != "dumb";
  return kvatlas::RunCommand(arguments, io);
}
