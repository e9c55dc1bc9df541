// Sends spans to a collector: one call of OTLP's TraceService/Export per batch, over a channel of
// `MakeChannel`, so by TLS where the process has TLS files.
//
// *Truth*: nothing is tried again; a collector that refuses a part of a batch has taken it.
// *Threads*: one at a time.

#ifndef KVATLAS_INDEXER_TELEMETRY_TRACING_OTLP_EXPORTER_H_
#define KVATLAS_INDEXER_TELEMETRY_TRACING_OTLP_EXPORTER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"

namespace kvatlas {

struct SpanData;

class OtlpExporter {
 public:
  // `program` is "service.name". Connects with the first batch.
  OtlpExporter(std::string endpoint, std::string program);
  ~OtlpExporter();

  // UNAVAILABLE or DEADLINE_EXCEEDED: the collector is not there.
  absl::Status Export(const std::vector<std::unique_ptr<SpanData>>& spans, Duration timeout);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TELEMETRY_TRACING_OTLP_EXPORTER_H_
