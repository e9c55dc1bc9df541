// kvatlas: the operator's command.

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "tools/kvatlas/commands.h"

int main(int argc, char** argv) {
  // An error is one line: gRPC's own words about it are not another one, unless asked for.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return kvatlas::RunCommand(arguments, {std::cout, std::cerr, std::cin});
}
