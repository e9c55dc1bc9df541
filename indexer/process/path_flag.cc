#include "indexer/process/path_flag.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kvatlas {
namespace {

absl::Status Cannot(const std::string& what, const std::string& path, int error) {
  return absl::InvalidArgumentError("cannot " + what + " " + path + ": " + strerror(error));
}

// The directory that `path` lies in.
std::string Above(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  const size_t slash = path.rfind('/', end);
  if (slash == std::string::npos) return ".";
  const size_t last = path.find_last_not_of('/', slash);
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

// 0, or why files cannot be made in it.
// W_OK and X_OK: a file is made by writing the directory and searching it. access(2) checks by the
// real user, which is the effective one unless the program is setuid.
int WritableDirectoryError(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return errno;
  if (!S_ISDIR(found.st_mode)) return ENOTDIR;
  return access(path.c_str(), W_OK | X_OK) == 0 ? 0 : errno;
}

}  // namespace

// A directory that is missing may be made later: the nearest existing parent must then be writable.
absl::Status CheckDirectoryToWrite(const std::string& path) {
  int error = WritableDirectoryError(path);
  if (error == 0) return absl::OkStatus();
  if (error != ENOENT) return Cannot("write to", path, error);
  std::string above = path;
  do {
    above = Above(above);
    error = WritableDirectoryError(above);
  } while (error == ENOENT && above != "/" && above != ".");
  return error == 0 ? absl::OkStatus() : Cannot("make", path, error);
}

absl::Status CheckFileToWrite(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) {
    const int error = errno == ENOENT ? WritableDirectoryError(Above(path)) : errno;
    return error == 0 ? absl::OkStatus() : Cannot("write", path, error);
  }
  if (S_ISDIR(found.st_mode)) return Cannot("write", path, EISDIR);
  return access(path.c_str(), W_OK) == 0 ? absl::OkStatus() : Cannot("write", path, errno);
}

}  // namespace kvatlas
