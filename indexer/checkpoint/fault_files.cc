// Files in memory for tests of power cuts. Each file has its bytes as written and as last synced;
// names have the same two states (`names_`, `durable_names_`), with the unsynced changes of names
// in between (`changes_`).

#include "indexer/checkpoint/fault_files.h"

#include <algorithm>
#include <utility>

namespace kvatlas {
namespace {

constexpr size_t kSectorBytes = 512;

// The content that a disk may have of an unsynced `file`: a prefix of random length, in which each
// sector has its older bytes, or zeros, with a chance of one in four.
std::string Torn(const FaultFiles::File& file, std::mt19937_64* random) {
  std::string bytes = file.bytes;
  const size_t size = bytes.empty() ? 0 : (*random)() % (bytes.size() + 1);
  bytes.resize(size);
  for (size_t at = 0; at < bytes.size(); at += kSectorBytes) {
    if ((*random)() % 4 != 0) continue;
    const size_t end = std::min(bytes.size(), at + kSectorBytes);
    for (size_t i = at; i < end; ++i) bytes[i] = i < file.durable.size() ? file.durable[i] : '\0';
  }
  return bytes;
}

}  // namespace

class FaultFiles::Writable : public WritableFile {
 public:
  Writable(FaultFiles* files, FilePtr file) : files_(files), file_(std::move(file)) {}

  absl::Status Append(std::string_view bytes) override {
    const absl::Status step = files_->Step();
    // When the power goes, half of these bytes arrive; when the room ends, as many as fit.
    if (!step.ok()) bytes = bytes.substr(0, bytes.size() / 2);
    const bool fits = !files_->room_.has_value() || bytes.size() <= *files_->room_;
    if (!fits) bytes = bytes.substr(0, *files_->room_);
    if (files_->room_.has_value()) *files_->room_ -= bytes.size();
    file_->bytes += bytes;
    if (!step.ok()) return step;
    return fits ? absl::OkStatus() : absl::ResourceExhaustedError("no space left");
  }

  absl::Status Sync() override {
    if (absl::Status step = files_->Step(); !step.ok()) return step;
    file_->durable = file_->bytes;
    return absl::OkStatus();
  }

 private:
  FaultFiles* const files_;
  const FilePtr file_;
};

class FaultFiles::Readable : public ReadableFile {
 public:
  explicit Readable(FilePtr file) : file_(std::move(file)) {}
  absl::StatusOr<size_t> Read(uint64_t offset, char* to, size_t size) const override {
    if (offset >= file_->bytes.size()) return size_t{0};
    return file_->bytes.copy(to, size, offset);
  }

 private:
  const FilePtr file_;
};

// Every operation that changes something passes here first. The counter stops at the cut, so all
// later operations fail too. A read-only disk counts operations and refuses them.
absl::Status FaultFiles::Step() {
  if (cut_at_.has_value() && operations_ >= *cut_at_)
    return absl::UnavailableError("the power is gone");
  ++operations_;
  return writable_ ? absl::OkStatus() : absl::PermissionDeniedError("read-only");
}

absl::Status FaultFiles::MakeDirectory(const std::string&) { return Step(); }

absl::StatusOr<std::vector<std::string>> FaultFiles::List(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& [path, file] : names_)
    if (path.compare(0, directory.size() + 1, directory + "/") == 0)
      names.push_back(path.substr(directory.size() + 1));
  return names;
}

// A new `File` each time: the older one of that name lives on where it is durable, or under another
// name.
absl::StatusOr<std::unique_ptr<WritableFile>> FaultFiles::Create(const std::string& path) {
  if (absl::Status step = Step(); !step.ok()) return step;
  auto file = std::make_shared<File>();
  names_[path] = file;
  changes_.push_back({{path, file}});
  return std::make_unique<Writable>(this, std::move(file));
}

absl::StatusOr<std::unique_ptr<ReadableFile>> FaultFiles::Open(const std::string& path) {
  const auto it = names_.find(path);
  if (it == names_.end()) return absl::NotFoundError(path);
  return std::make_unique<Readable>(it->second);
}

absl::Status FaultFiles::Rename(const std::string& from, const std::string& to) {
  if (absl::Status step = Step(); !step.ok()) return step;
  const auto it = names_.find(from);
  if (it == names_.end()) return absl::NotFoundError(from);
  const FilePtr file = it->second;
  names_.erase(it);
  names_[to] = file;
  // One operation: after a cut, both names changed or neither.
  changes_.push_back({{from, nullptr}, {to, file}});
  return absl::OkStatus();
}

absl::Status FaultFiles::Remove(const std::string& path) {
  if (absl::Status step = Step(); !step.ok()) return step;
  if (names_.erase(path) == 0) return absl::NotFoundError(path);
  changes_.push_back({{path, nullptr}});
  return absl::OkStatus();
}

// There is one directory: all names become durable.
absl::Status FaultFiles::SyncDirectory(const std::string&) {
  if (absl::Status step = Step(); !step.ok()) return step;
  durable_names_ = names_;
  changes_.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FileLock>> FaultFiles::Lock(const std::string&) {
  if (absl::Status step = Step(); !step.ok()) return step;
  return std::make_unique<FileLock>();
}

absl::StatusOr<uint64_t> FaultFiles::FreeBytes(const std::string&) {
  return room_.value_or(uint64_t{1} << 40);
}

// 1. Names: from the durable ones, each unsynced operation is applied or not, in order. Journals
//    mostly keep that order; here any subset may have come through, which is harder.
// 2. Bytes: of each file that has a name left, those that were synced, and with `kThere` and
//    `kTorn` all or some of the others.
// 3. The result is a disk at rest: all of it counts as durable.
std::unique_ptr<FaultFiles> FaultFiles::AfterCut(Unsynced choice, std::mt19937_64* random) const {
  Names names = durable_names_;
  for (const std::vector<Change>& change : changes_) {
    const bool there =
        choice == Unsynced::kThere || (choice == Unsynced::kTorn && (*random)() % 2 == 0);
    if (!there) continue;
    for (const Change& one : change) {
      if (one.file == nullptr) {
        names.erase(one.path);
      } else {
        names[one.path] = one.file;
      }
    }
  }
  auto after = std::make_unique<FaultFiles>();
  for (const auto& [path, file] : names) {
    auto kept = std::make_shared<File>();
    kept->bytes = file->durable;
    if (file->bytes != file->durable) {
      if (choice == Unsynced::kThere) kept->bytes = file->bytes;
      if (choice == Unsynced::kTorn) kept->bytes = Torn(*file, random);
    }
    kept->durable = kept->bytes;
    after->names_[path] = kept;
  }
  after->durable_names_ = after->names_;
  return after;
}

std::string* FaultFiles::BytesOf(const std::string& path) {
  const auto it = names_.find(path);
  return it == names_.end() ? nullptr : &it->second->bytes;
}

std::vector<std::string> FaultFiles::Paths() const {
  std::vector<std::string> paths;
  for (const auto& [path, file] : names_) paths.push_back(path);
  return paths;
}

}  // namespace kvatlas
