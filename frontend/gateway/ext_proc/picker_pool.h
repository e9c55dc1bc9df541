// Which workers belong to a picker: those of the InferencePool that it answers for. A fleet may
// have others, and a gateway cannot send a request outside of its pool.
//
// *Format*: NAME=VALUE, …: `model=llama-70b`, `cell=a`, any other name a label of workers. Values
// of one name are alternatives; of several labels each must match. *Threads*: immutable.
//
// Example:
//   absl::StatusOr<PickerPool> pool = PickerPool::Parse({"model=llama-70b", "cell=a",
//   "tier=chat"});

#ifndef KVATLAS_FRONTEND_GATEWAY_EXT_PROC_PICKER_POOL_H_
#define KVATLAS_FRONTEND_GATEWAY_EXT_PROC_PICKER_POOL_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/router/lookup_clients.h"

namespace kvatlas {

class PickerPool {
 public:
  // INVALID_ARGUMENT: not of this form.
  static absl::StatusOr<PickerPool> Parse(const std::vector<std::string>& entries);

  bool empty() const { return models_.empty() && cells_.empty() && labels_.empty(); }
  // Whether workers of one model may differ in it.
  bool divides_models() const { return !cells_.empty() || !labels_.empty(); }
  bool by_cell() const { return !cells_.empty(); }
  bool HasModel(const std::string& model) const {
    return models_.empty() || models_.contains(model);
  }
  bool HasCell(const std::string& cell) const { return cells_.empty() || cells_.contains(cell); }
  // `labels` may be null: none.
  bool HasLabels(const Labels* labels) const;

 private:
  std::set<std::string> models_;
  std::set<std::string> cells_;
  std::map<std::string, std::set<std::string>> labels_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_EXT_PROC_PICKER_POOL_H_
