#include "frontend/prompt/served_names.h"

#include <algorithm>

namespace kvatlas {

// `lora_name` is set for an adapter alone: its blocks have the seed of that name. A further name of
// a model has the blocks of the model.
void AsServed(const ServedNames& names, RouteInput* input) {
  const auto found = names.find(input->domain.model);
  if (found == names.end()) return;
  const ServedName& served = found->second;
  if (served.adapter) input->lora_name = found->first;
  input->domain.model = served.model;
  if (!served.workers.empty()) AllowOnly(served.workers, input);
}

// An empty list allows all workers. So an intersection that is empty needs an entry that no worker
// has.
void AllowOnly(const std::vector<std::string>& workers, RouteInput* input) {
  std::vector<std::string>& allowed = input->allowed_workers;
  if (allowed.empty()) {
    allowed = workers;
    return;
  }
  std::erase_if(allowed, [&](const std::string& name) {
    return std::find(workers.begin(), workers.end(), name) == workers.end();
  });
  if (allowed.empty()) allowed = {""};  // none of them: no worker has this name
}

}  // namespace kvatlas
