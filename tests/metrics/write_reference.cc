// Writes docs/reference/metrics.md: bazel run //tests/metrics:write_reference

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/metrics/metric_reference.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--help") {
    std::puts("write_reference: writes docs/reference/metrics.md of a fleet that it starts");
    return 0;
  }
  const char* const checkout = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  if (checkout == nullptr) {
    std::fprintf(stderr, "expected to be run by: bazel run //tests/metrics:write_reference\n");
    return 2;
  }
  const std::string folder =
      std::filesystem::temp_directory_path() / ("kvatlas-metrics." + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  int result = 1;
  {
    kvatlas::FleetOfAll fleet(folder);
    const absl::Status started = fleet.Start();
    const absl::StatusOr<kvatlas::MetricFamilyMap> families =
        started.ok() ? fleet.Families() : started;
    if (families.ok()) {
      const std::string path = std::string(checkout) + "/docs/reference/metrics.md";
      std::ofstream file(path);
      file << kvatlas::ReferencePage(*families);
      file.close();
      std::printf("%s: %zu families\n", path.c_str(), families->size());
      result = file.good() ? 0 : 1;
    } else {
      std::fprintf(stderr, "%s\n", std::string(families.status().message()).c_str());
    }
  }
  std::filesystem::remove_all(folder);
  return result;
}
