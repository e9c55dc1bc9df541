#include "frontend/prompt/served_names.h"

#include <algorithm>

namespace kvatlas {

void AsServed(const ServedNames& names, RouteInput* input) {
  const auto found = names.find(input->domain.model);
  if (found == names.end()) return;
  const ServedName& served = found->second;
  if (served.adapter) input->lora_name = found->first;
  input->domain.model = served.model;
  if (!served.workers.empty()) AllowOnly(served.workers, input);
}

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
