// The models that this process serves and its load: a registry in two lines, for those that look
// for services.
//
// *Threads*: any. *Cost*: a short lock per holder.

#ifndef KVATLAS_INDEXER_REGISTRY_REGISTRY_SUMMARY_H_
#define KVATLAS_INDEXER_REGISTRY_REGISTRY_SUMMARY_H_

#include <string>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {

struct RegistrySummary {
  std::vector<std::string> models;  // in order, each once
  Load load;                        // sums over live holders that report; `workers` counts them
};

RegistrySummary Summarize(const HolderRegistry& registry);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_REGISTRY_SUMMARY_H_
