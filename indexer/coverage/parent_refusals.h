// Parents that are reached, and parents that refuse what this process reports: as metrics and in
// the log.
//
//   kvatlas_leaf_parent_connected{domain="llama",parent="10.0.0.1:7420"} 1
//   kvatlas_leaf_parent_refuses{domain="llama",parent="10.0.0.1:7420"} 1
//
// Refuses: 1 while they do, for another schedule, contract or block size, or because another
// process has this one's name. The log has the reason. Parents that are not reached are 0 there,
// like those that listen.

#ifndef KVATLAS_INDEXER_COVERAGE_PARENT_REFUSALS_H_
#define KVATLAS_INDEXER_COVERAGE_PARENT_REFUSALS_H_

#include <string>
#include <string_view>
#include <vector>

#include "indexer/coverage/coverage_reporter.h"

namespace kvatlas {

// Appends these families, and whether each parent is at rest and how many batches it has not
// acknowledged, in Prometheus' text format.
// `prefix`: "kvatlas_leaf" for instance.
void AppendParentMetrics(const std::vector<ParentStats>& parents, const std::string& prefix,
                         std::string* text);

// Once a minute per parent and domain. `flag`: by which this process was given the schedule.
void LogRefusal(std::string_view flag, const ParentRefusal& refusal);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COVERAGE_PARENT_REFUSALS_H_
