// Checks that the path which a flag names can be used. For `FlagSet::Flag::Check`, so that a wrong
// one is reported at the start and by --check.
//
// *Truth*: as the file system is now, for this process's user; nothing is made. *Threads*: any.
//
// Example:
//   flags.Add("checkpoint_dir", &directory, "…").Check(CheckDirectoryToWrite);

#ifndef KVATLAS_INDEXER_PROCESS_PATH_FLAG_H_
#define KVATLAS_INDEXER_PROCESS_PATH_FLAG_H_

#include <string>

#include "absl/status/status.h"

namespace kvatlas {

// INVALID_ARGUMENT: it exists and is no directory, or cannot be written to; or it does not exist
// and cannot be made.
absl::Status CheckDirectoryToWrite(const std::string& path);
// INVALID_ARGUMENT: it is a directory, or cannot be written; or its directory is not there, or
// cannot be written to.
absl::Status CheckFileToWrite(const std::string& path);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_PATH_FLAG_H_
