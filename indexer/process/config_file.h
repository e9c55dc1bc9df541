// Configuration files: TOML 1.0, whose keys are the names of flags.
//
//   log_level = "warning"                 # to every process that reads the file
//   [leaf]                                # to kvatlas-leaf alone, over what stands above
//   cell = "a"
//   lease_ttl = "10s"
//   max_blocks = 50_000_000
//   local_hashes = false
//   parents = ["h1:7420", "h2:7420"]      # a list, or as the flag takes it: "h1:7420,h2:7420"
//   [leaf.labels]                         # a list of NAME=VALUE
//   zone = "a"
//
// *Format*: a section is a table named for a process (`ConfigSections`); what stands outside of
// sections is for all. A key is a flag's name, in which hyphens are as good as underscores. A value
// is a string, as the flag takes it, an integer, a float, a boolean, an array of these, or a table
// of these, which is a list of NAME=VALUE. Elements have no commas and are not empty. Numbers above
// 2^63-1 are strings.
// *Bounds*: a regular file of at most `kConfigFileBytesMax`. *Threads*: pure functions.

#ifndef KVATLAS_INDEXER_PROCESS_CONFIG_FILE_H_
#define KVATLAS_INDEXER_PROCESS_CONFIG_FILE_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kvatlas {

inline constexpr size_t kConfigFileBytesMax = 1 << 20;

struct ConfigEntry {
  std::string key;   // with underscores
  std::string text;  // as a flag would take it; of a list, the elements with commas between them
  bool is_list = false;
  int line = 0;
  std::string problem =
      {};  // not empty: what is wrong with its value, or that the key is there twice

  friend bool operator==(const ConfigEntry&, const ConfigEntry&) = default;
};

// Names of tables that are sections, for all programs.
const std::vector<std::string>& ConfigSections();

// The entries for the process of `section`, each key once. `only_section`: without the entries
// outside of sections. INVALID_ARGUMENT, beginning with "NAME:LINE: ": no TOML. The fault of a
// single entry (a table that is neither a section nor a list, a date) is in its `problem`.
absl::StatusOr<std::vector<ConfigEntry>> ParseConfig(std::string_view text, const std::string& name,
                                                     const std::string& section,
                                                     bool only_section = false);

// The same of a file. INVALID_ARGUMENT: also one that cannot be read, or is too long.
absl::StatusOr<std::vector<ConfigEntry>> ReadConfigFile(const std::string& path,
                                                        const std::string& section,
                                                        bool only_section = false);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_CONFIG_FILE_H_
