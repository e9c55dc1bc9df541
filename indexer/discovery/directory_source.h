// A source of a directory: one entry of its list, with a thread of its own if it must wait.
//
// *Threads*: `report` is called from the source's thread, or from within `Start`; never after
// `Stop` returned.

#ifndef KVATLAS_INDEXER_DISCOVERY_DIRECTORY_SOURCE_H_
#define KVATLAS_INDEXER_DISCOVERY_DIRECTORY_SOURCE_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/discovery/directory.h"
#include "indexer/discovery/service_record.h"

namespace kvatlas {

class DirectorySource {
 public:
  // Takes the records of now, or why they are not known.
  using Report = std::function<void(absl::StatusOr<std::vector<ServiceRecord>>)>;

  virtual ~DirectorySource() = default;
  virtual void Start(Report report) = 0;
  virtual void Refresh() = 0;
  virtual void Stop() = 0;  // idempotent
};

// Makes the source of one entry. INVALID_ARGUMENT, naming the entry.
absl::StatusOr<std::unique_ptr<DirectorySource>> MakeDirectorySource(
    std::string_view entry, const DirectoryOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_DIRECTORY_SOURCE_H_
