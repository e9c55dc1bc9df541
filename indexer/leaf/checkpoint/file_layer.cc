#include "indexer/leaf/checkpoint/file_layer.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kvatlas {
namespace {

absl::Status Failed(const char* what, const std::string& path, int error) {
  const std::string message = std::string(what) + " " + path + ": " + std::strerror(error);
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case EWOULDBLOCK:
      return absl::FailedPreconditionError(message);
    default:
      return absl::UnavailableError(message);
  }
}

// Runs `call` until no signal interrupts it.
template <typename Call>
auto Retried(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

class RealWritable : public WritableFile {
 public:
  RealWritable(int fd, std::string path) : file_(fd), path_(std::move(path)) {}

  absl::Status Append(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t written =
          Retried([&] { return write(file_.fd(), bytes.data(), bytes.size()); });
      if (written < 0) return Failed("cannot write", path_, errno);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    const int synced = Retried([&] { return fsync(file_.fd()); });
    return synced == 0 ? absl::OkStatus() : Failed("cannot sync", path_, errno);
  }

 private:
  const Descriptor file_;
  const std::string path_;
};

class RealReadable : public ReadableFile {
 public:
  RealReadable(int fd, std::string path) : file_(fd), path_(std::move(path)) {}

  absl::StatusOr<size_t> Read(uint64_t offset, char* to, size_t size) const override {
    const ssize_t got =
        Retried([&] { return pread(file_.fd(), to, size, static_cast<off_t>(offset)); });
    if (got < 0) return Failed("cannot read", path_, errno);
    return static_cast<size_t>(got);
  }

 private:
  const Descriptor file_;
  const std::string path_;
};

class RealLock : public FileLock {
 public:
  explicit RealLock(int fd) : file_(fd) {}

 private:
  const Descriptor file_;
};

class RealFiles : public FileLayer {
 public:
  absl::Status MakeDirectory(const std::string& path) override {
    for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
      const std::string part = path.substr(0, end);
      if (mkdir(part.c_str(), 0755) != 0 && errno != EEXIST)
        return Failed("cannot make", part, errno);
      if (end == std::string::npos) return absl::OkStatus();
    }
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    DIR* const dir = opendir(directory.c_str());
    if (dir == nullptr) return Failed("cannot list", directory, errno);
    std::vector<std::string> names;
    while (const dirent* entry = readdir(dir)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    closedir(dir);
    return names;
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    const int fd = OpenAt(path, O_WRONLY | O_CREAT | O_TRUNC);
    if (fd < 0) return Failed("cannot create", path, errno);
    return std::make_unique<RealWritable>(fd, path);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    const int fd = OpenAt(path, O_RDONLY);
    if (fd < 0) return Failed("cannot open", path, errno);
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return std::make_unique<RealReadable>(fd, path);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    return rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus()
                                                 : Failed("cannot rename", from, errno);
  }

  absl::Status Remove(const std::string& path) override {
    return unlink(path.c_str()) == 0 ? absl::OkStatus() : Failed("cannot remove", path, errno);
  }

  absl::Status SyncDirectory(const std::string& directory) override {
    const Descriptor dir(OpenAt(directory, O_RDONLY | O_DIRECTORY));
    if (dir.fd() < 0) return Failed("cannot open", directory, errno);
    const int synced = Retried([&] { return fsync(dir.fd()); });
    return synced == 0 ? absl::OkStatus() : Failed("cannot sync", directory, errno);
  }

  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    const int fd = OpenAt(path, O_RDWR | O_CREAT);
    if (fd < 0) return Failed("cannot create", path, errno);
    auto lock = std::make_unique<RealLock>(fd);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) return Failed("cannot lock", path, errno);
    return lock;
  }

 private:
  static int OpenAt(const std::string& path, int flags) {
    return Retried([&] { return open(path.c_str(), flags | O_CLOEXEC, 0644); });
  }
};

}  // namespace

FileLayer& FileLayer::Real() {
  static RealFiles& files = *new RealFiles;
  return files;
}

}  // namespace kvatlas
