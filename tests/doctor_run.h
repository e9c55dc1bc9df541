// What does `kvatlas doctor` say? A program of this build that is run to its end, and the doctor's
// findings as JSON.
//
// *Threads*: one.
//
// Example:
//   const Ended run = RunDoctor({"--leaf=" + address});
//   for (const nlohmann::json& finding : run.Lines()) finding["id"];

#ifndef KVATLAS_TESTS_DOCTOR_RUN_H_
#define KVATLAS_TESTS_DOCTOR_RUN_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvatlas {

inline constexpr char kCommand[] = "tools/kvatlas/kvatlas";

struct Ended {
  int exit = -1;
  std::string out;  // and what it wrote of errors

  // A line each; what is no JSON is a value that is discarded.
  std::vector<nlohmann::json> Lines() const;
};

// `args` begin with the program; none may have an apostrophe.
Ended RunProgram(const std::vector<std::string>& args);

// `kvatlas doctor` with these, --json and a long --timeout.
Ended RunDoctor(std::vector<std::string> args);

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_DOCTOR_RUN_H_
