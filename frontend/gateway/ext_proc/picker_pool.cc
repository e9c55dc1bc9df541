// Parsing of --ext_proc_pool and the test of a worker's labels against it.

#include "frontend/gateway/ext_proc/picker_pool.h"

#include <algorithm>

#include "absl/status/status.h"

namespace kvatlas {

absl::StatusOr<PickerPool> PickerPool::Parse(const std::vector<std::string>& entries) {
  PickerPool pool;
  for (const std::string& entry : entries) {
    const size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == entry.size()) {
      return absl::InvalidArgumentError("'" + entry +
                                        "' is no model=MODEL, cell=CELL or LABEL=VALUE");
    }
    const std::string name = entry.substr(0, equals);
    // `model` and `cell` are reserved names; every other name is a label. Values of one name
    // collect in one set, whatever their order in the flag.
    std::set<std::string>& values = name == "model"  ? pool.models_
                                    : name == "cell" ? pool.cells_
                                                     : pool.labels_[name];
    values.insert(entry.substr(equals + 1));
  }
  return pool;
}

// Every label of the pool must be there with one of its values. A worker without labels is in no
// pool that asks for one.
bool PickerPool::HasLabels(const Labels* labels) const {
  return std::all_of(labels_.begin(), labels_.end(), [labels](const auto& wanted) {
    if (labels == nullptr) return false;
    const auto found = labels->find(wanted.first);
    return found != labels->end() && wanted.second.contains(found->second);
  });
}

}  // namespace kvatlas
