// The ops file that a trace makes, for tests.

#ifndef KVATLAS_TOOLS_BENCH_OPS_TEST_UTIL_H_
#define KVATLAS_TOOLS_BENCH_OPS_TEST_UTIL_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include "tools/bench/make_ops.h"
#include "tools/bench/ops.h"

namespace kvatlas {

// At the end, at `cleared_ns`, the last worker is cleared.
inline OpsFile OpsFileOf(const OpsOptions& options, const std::vector<TraceRequest>& trace,
                         const std::string& name, uint64_t cleared_ns) {
  const std::string path = testing::TempDir() + "/" + name;
  absl::StatusOr<OpsWriter> out = OpsWriter::Create(path, 256, options.workers);
  EXPECT_TRUE(out.ok()) << out.status();
  OpsSummary summary{};
  WriteTraceOps(WithDefaults(options), trace, &*out, &summary);
  out->Clear(options.workers - 1, cleared_ns);
  EXPECT_TRUE(out->Finish().ok());
  absl::StatusOr<OpsFile> file = OpsFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_OPS_TEST_UTIL_H_
