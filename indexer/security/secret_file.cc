#include "indexer/security/secret_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

absl::Status Bad(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
}

// 0137: every bit that 0640 does not have.
absl::Status CheckMode(const std::string& path, mode_t mode) {
  if ((mode & 0137) == 0) return absl::OkStatus();
  char digits[8];
  std::snprintf(digits, sizeof(digits), "%04o", static_cast<unsigned>(mode & 07777));
  return Bad(path, absl::StrCat("mode ", digits, ", expected at most 0640 (chmod 0640)"));
}

// Type and mode are those of the open descriptor, so the file cannot be exchanged after the check.
// O_NONBLOCK: opening a FIFO would wait for a writer. One byte more than allowed is read, to tell a
// longer file.
absl::StatusOr<std::string> Read(const std::string& path, size_t bytes_max, bool secret) {
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return Bad(path, strerror(errno));
  struct stat found = {};
  absl::Status status;
  if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) status = Bad(path, "not a regular file");
  if (status.ok() && secret) status = CheckMode(path, found.st_mode);
  std::string text(status.ok() ? bytes_max + 1 : 0, '\0');
  size_t size = 0;
  while (status.ok() && size < text.size()) {
    const ssize_t got = read(fd, text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) status = Bad(path, strerror(errno));
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  close(fd);
  if (!status.ok()) return status;
  if (size > bytes_max) return Bad(path, absl::StrCat("expected at most ", bytes_max, " bytes"));
  text.resize(size);
  return text;
}

// Writes a temporary file beside `path`; `place` then gives it its name, as rename(2) (replaces)
// and link(2) (fails where there is one) do. The mode is set at creation, so that a secret is never
// readable by others.
absl::Status WriteAndPlace(const std::string& path, std::string_view text, mode_t mode,
                           int (*place)(const char* from, const char* to)) {
  const std::string partial = absl::StrCat(path, ".", getpid(), ".partial");
  unlink(partial.c_str());
  const int fd = open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  const bool wrote =
      fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  int error = errno;
  if (fd >= 0) close(fd);
  const bool placed = wrote && place(partial.c_str(), path.c_str()) == 0;
  if (wrote && !placed) error = errno;
  unlink(partial.c_str());
  if (placed) return absl::OkStatus();
  if (error == EEXIST)
    return absl::AlreadyExistsError(absl::StrCat(path, " exists already: use it, or another name"));
  return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", strerror(error)));
}

}  // namespace

absl::StatusOr<std::string> ReadFileUpTo(const std::string& path, size_t bytes_max) {
  return Read(path, bytes_max, /*secret=*/false);
}

absl::StatusOr<std::string> ReadSecretFile(const std::string& path) {
  absl::StatusOr<std::string> text = Read(path, kSecretBytesMax, /*secret=*/true);
  if (!text.ok()) return text;
  while (!text->empty() && (text->back() == '\n' || text->back() == '\r')) text->pop_back();
  return text;
}

absl::Status CheckSecretMode(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return Bad(path, strerror(errno));
  return CheckMode(path, status.st_mode);
}

absl::Status WriteFileByRename(const std::string& path, std::string_view text, mode_t mode) {
  return WriteAndPlace(path, text, mode, rename);
}

absl::Status WriteNewFile(const std::string& path, std::string_view text, mode_t mode) {
  return WriteAndPlace(path, text, mode, link);
}

}  // namespace kvatlas
