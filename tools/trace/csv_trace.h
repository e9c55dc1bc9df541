// Traces of lengths alone, as tables: BurstGPT's and Azure's. For `trace.cc`.

#ifndef KVATLAS_TOOLS_TRACE_CSV_TRACE_H_
#define KVATLAS_TOOLS_TRACE_CSV_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/trace/trace.h"

namespace kvatlas {

// Ids for a prompt of which the length is known alone: from `*next` on, which no other prompt has.
void GiveOwnIds(TraceRequest* request, uint64_t* next);

void SortByTime(std::vector<TraceRequest>* trace);

class CsvTrace {
 public:
  // Whether the line names the columns of a table that is known; then it is the header of what
  // follows.
  bool TakeHeader(const std::string& line);
  bool has_header() const { return tokens_.has_value(); }
  absl::Status Add(const std::string& line);
  size_t size() const { return trace_.size(); }
  // By time, the first one at 0.
  std::vector<TraceRequest> Take();

 private:
  size_t columns_ = 0;
  size_t time_ = 0;
  std::optional<size_t> tokens_;
  size_t answer_ = 0;
  std::optional<size_t> session_;
  bool is_azure_ = false;
  std::vector<TraceRequest> trace_;
  uint64_t own_ids_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TRACE_CSV_TRACE_H_
