// Reads and writes files with keys, tokens, salts and policies.
//
// *Truth*: a secret is a regular file that only its owner may write and only its owner and group
// may read (a mode of at most 0640); the mode is of the file that is read. What is written appears
// whole, by rename. Errors are INVALID_ARGUMENT when reading and UNAVAILABLE when writing, and
// begin with the path.
//
// *Threads*: any.

#ifndef KVATLAS_INDEXER_SECURITY_SECRET_FILE_H_
#define KVATLAS_INDEXER_SECURITY_SECRET_FILE_H_

#include <sys/stat.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvatlas {

inline constexpr size_t kSecretBytesMax = 16 << 10;

// Any file of at most `bytes_max`.
absl::StatusOr<std::string> ReadFileUpTo(const std::string& path, size_t bytes_max);

// A secret, without the ends of line after it.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path);

// Checks the mode of a secret that a library reads by itself.
absl::Status CheckSecretMode(const std::string& path);

absl::Status WriteFileByRename(const std::string& path, std::string_view text, mode_t mode);

// Writes a key that exists nowhere else: ALREADY_EXISTS where there is a file, which stays as it
// is.
absl::Status WriteNewFile(const std::string& path, std::string_view text, mode_t mode);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_SECRET_FILE_H_
