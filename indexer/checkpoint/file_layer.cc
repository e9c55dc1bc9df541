// The system's files behind `FileLayer`. Every path is opened as a name in an open directory
// (`Place`), so that a symbolic link under a checkpoint's name is never followed.

#include "indexer/checkpoint/file_layer.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kvatlas {
namespace {

// The system's error as a status; the codes are those of `file_layer.h`. EWOULDBLOCK is what flock
// says of a file that another process has locked.
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

// Owns a file descriptor; a negative one is none. Closing is not checked: what must be durable was
// synced before.
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

// A negative result with `errno`. The links above a path's last name are followed here.
int OpenDirectory(const std::string& path, int flags) {
  return Retried([&] { return open(path.c_str(), flags | O_DIRECTORY | O_CLOEXEC); });
}

// The last name of a path, in its directory, which is opened once (O_PATH: to name files in, not to
// read). Its calls return what the system's do; where the directory could not be opened, -1 with
// that `errno`.
class Place {
 public:
  explicit Place(const std::string& path)
      : slash_(path.rfind('/')),
        name_(path.substr(slash_ + 1)),
        directory_(
            OpenDirectory(slash_ == std::string::npos ? "." : path.substr(0, slash_ + 1), O_PATH)),
        error_(directory_.fd() < 0 ? errno : 0) {}

  // Opens the name itself: no symbolic link is followed. A new file is its owner's alone.
  int Open(int flags) const {
    return Call([&] {
      return openat(directory_.fd(), name_.c_str(), flags | O_NOFOLLOW | O_CLOEXEC,
                    S_IRUSR | S_IWUSR);
    });
  }

  int Remove() const {
    return Call([&] { return unlinkat(directory_.fd(), name_.c_str(), 0); });
  }

  // The inner call is `to`'s, so that a failed directory of either side is reported.
  int RenameTo(const Place& to) const {
    return Call([&] {
      return to.Call([&] {
        return renameat(directory_.fd(), name_.c_str(), to.directory_.fd(), to.name_.c_str());
      });
    });
  }

 private:
  template <typename System>
  int Call(System system) const {
    if (error_ == 0) return Retried(system);
    errno = error_;
    return -1;
  }

  const size_t slash_;
  const std::string name_;
  const Descriptor directory_;
  const int error_;
};

class RealWritable : public WritableFile {
 public:
  RealWritable(int fd, std::string path) : file_(fd), path_(std::move(path)) {}

  absl::Status Append(std::string_view bytes) override {
    // The system may write less than it was given, with a full disk for instance; the next call
    // then says why.
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

// The lock goes with the descriptor: when this is destroyed, or when the process ends, whatever
// ends it.
class RealLock : public FileLock {
 public:
  explicit RealLock(int fd) : file_(fd) {}

 private:
  const Descriptor file_;
};

class RealFiles : public FileLayer {
 public:
  // Makes each prefix of the path that ends at a '/', then the whole; one that is there already is
  // no error.
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

  // Removes what has the name and creates with O_EXCL: a file that is already there may have
  // another owner or mode, or a second hard link, and would keep them.
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    const Place place(path);
    if (place.Remove() != 0 && errno != ENOENT) return Failed("cannot replace", path, errno);
    const int fd = place.Open(O_WRONLY | O_CREAT | O_EXCL);
    if (fd < 0) return Failed("cannot create", path, errno);
    return std::make_unique<RealWritable>(fd, path);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    // O_NONBLOCK: opening a FIFO would wait for a writer. It has no effect on the reading of
    // regular files, and others are refused below.
    const int fd = Place(path).Open(O_RDONLY | O_NONBLOCK);
    if (fd < 0) return Failed("cannot open", path, errno);
    auto file = std::make_unique<RealReadable>(fd, path);
    struct stat found;
    if (fstat(fd, &found) != 0) return Failed("cannot open", path, errno);
    if (!S_ISREG(found.st_mode)) return absl::UnavailableError(path + " is not a regular file");
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return file;
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    return Place(from).RenameTo(Place(to)) == 0 ? absl::OkStatus()
                                                : Failed("cannot rename", from, errno);
  }

  absl::Status Remove(const std::string& path) override {
    return Place(path).Remove() == 0 ? absl::OkStatus() : Failed("cannot remove", path, errno);
  }

  absl::Status SyncDirectory(const std::string& directory) override {
    const Descriptor dir(OpenDirectory(directory, O_RDONLY));
    if (dir.fd() < 0) return Failed("cannot open", directory, errno);
    const int synced = Retried([&] { return fsync(dir.fd()); });
    return synced == 0 ? absl::OkStatus() : Failed("cannot sync", directory, errno);
  }

  // An advisory lock of the whole file. The file stays after the process: removing it would let two
  // processes lock two files of one name.
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    const int fd = Place(path).Open(O_RDWR | O_CREAT);
    if (fd < 0) return Failed("cannot create", path, errno);
    auto lock = std::make_unique<RealLock>(fd);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) return Failed("cannot lock", path, errno);
    return lock;
  }

  // Room for an unprivileged process (`f_bavail`), without what the file system keeps back for
  // root.
  absl::StatusOr<uint64_t> FreeBytes(const std::string& directory) override {
    struct statvfs room;
    const int told = Retried([&] { return statvfs(directory.c_str(), &room); });
    if (told != 0) return Failed("cannot tell the free space of", directory, errno);
    return uint64_t{room.f_bavail} * room.f_frsize;
  }
};

}  // namespace

FileLayer& FileLayer::Real() {
  // Never destroyed: threads may write while statics go.
  static RealFiles& files = *new RealFiles;
  return files;
}

}  // namespace kvatlas
