#include "tests/doctor_run.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <sstream>

namespace kvatlas {

using Json = nlohmann::json;

std::vector<Json> Ended::Lines() const {
  std::vector<Json> lines;
  std::istringstream in(out);
  for (std::string line; std::getline(in, line);)
    lines.push_back(Json::parse(line, nullptr, /*allow_exceptions=*/false));
  return lines;
}

Ended RunProgram(const std::vector<std::string>& args) {
  std::string command;
  for (const std::string& arg : args) command += "'" + arg + "' ";
  FILE* const pipe = popen((command + "2>&1").c_str(), "r");
  Ended run;
  std::array<char, 4096> piece;
  for (size_t n; (n = fread(piece.data(), 1, piece.size(), pipe)) > 0;)
    run.out.append(piece.data(), n);
  const int status = pclose(pipe);
  run.exit = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

Ended RunDoctor(std::vector<std::string> args) {
  args.insert(args.begin(), {kCommand, "doctor"});
  args.push_back("--json");
  args.push_back("--timeout=60s");  // of a machine that does much else
  return RunProgram(args);
}

}  // namespace kvatlas
