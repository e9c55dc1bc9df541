#include "indexer/process/process_metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "indexer/base/version.h"
#include "indexer/process/build_version.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {
namespace {

double ValueOf(const std::string& text, const std::string& name) {
  const size_t at = text.find("\n" + name + " ");
  EXPECT_NE(at, std::string::npos) << name << " in\n" << text;
  return at == std::string::npos ? -1 : std::strtod(text.c_str() + at + name.size() + 2, nullptr);
}

class ProcessMetricsTest : public ::testing::Test {
 protected:
  ProcessMetricsTest() { AddProcessMetrics("kvatlas-test", &metrics_); }
  double Value(const std::string& name) { return ValueOf(metrics_.Text(), name); }

  Metrics metrics_;
};

TEST_F(ProcessMetricsTest, BuildIsNamed) {
  const std::string text = metrics_.Text();
  EXPECT_NE(text.find("kvatlas_build_info{"), std::string::npos);
  EXPECT_NE(text.find("program=\"kvatlas-test\""), std::string::npos);
  EXPECT_NE(text.find(std::string("version=\"") + kVersion + "\""), std::string::npos);
  EXPECT_NE(text.find("commit=\"" + std::string(BuildCommit()) + "\""), std::string::npos);
}

TEST_F(ProcessMetricsTest, MemoryAndProcessorTimeAreThisProcesss) {
  const double before = Value("process_cpu_seconds_total");
  // Processor time is counted in hundredths of a second.
  volatile uint64_t sum = 0;
  while (Value("process_cpu_seconds_total") < before + 0.02) {
    for (uint64_t i = 0; i < 1'000'000; ++i) sum = sum + i;
  }
  EXPECT_GT(Value("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(Value("process_virtual_memory_bytes"), Value("process_resident_memory_bytes"));
  EXPECT_GE(Value("process_threads"), 1);
  EXPECT_LE(Value("process_heap_in_use_bytes"), Value("process_resident_memory_bytes"));
}

TEST_F(ProcessMetricsTest, DescriptorsAreCounted) {
  const double before = Value("process_open_fds");
  const int fd = open("/dev/null", O_RDONLY);
  EXPECT_EQ(Value("process_open_fds"), before + 1);
  close(fd);
  EXPECT_EQ(Value("process_open_fds"), before);
  EXPECT_GT(Value("process_max_fds"), before);
}

TEST_F(ProcessMetricsTest, ClockIsTheWallClock) {
  const time_t before = time(nullptr);
  const double clock = Value("kvatlas_clock_seconds");
  EXPECT_GE(clock, static_cast<double>(before));
  EXPECT_LE(clock, static_cast<double>(time(nullptr) + 1));
}

TEST_F(ProcessMetricsTest, StartIsInThePastOfThisTest) {
  const double start = Value("process_start_time_seconds");
  const double now = static_cast<double>(time(nullptr));
  EXPECT_LE(start, now + 1);
  EXPECT_GT(start, now - 3600);
}

TEST_F(ProcessMetricsTest, StartIsTheSameAtEveryScrape) {
  const double start = Value("process_start_time_seconds");
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(Value("process_start_time_seconds"), start) << i;
}

}  // namespace
}  // namespace kvatlas
