// Makes one file of several small ones, for sending: a .tar.gz in memory.
//
// *Format*: POSIX ustar, then gzip; files of mode 0600, of no owner, of one time. The same files
// give the same bytes.
// *Threads*: none. *Bounds*: names of at most 99 bytes.

#ifndef KVATLAS_TOOLS_KVATLAS_ARCHIVE_H_
#define KVATLAS_TOOLS_KVATLAS_ARCHIVE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvatlas {

class Archive {
 public:
  explicit Archive(int64_t unix_s) : unix_s_(unix_s) {}

  // REQUIRES: `name` is relative, of at most 99 bytes.
  void Add(std::string_view name, std::string_view content);
  // INTERNAL: zlib could not.
  absl::StatusOr<std::string> TarGz() const;

 private:
  const int64_t unix_s_;
  std::string tar_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_KVATLAS_ARCHIVE_H_
