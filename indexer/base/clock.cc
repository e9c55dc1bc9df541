#include "indexer/base/clock.h"

#include <random>

namespace kvatlas {
namespace {

class RealClock : public Clock {
 public:
  Time Now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
};

}  // namespace

uint64_t Clock::WallNs() const { return WallTimeNs(); }

// Never destroyed: threads may ask while static objects go.
const Clock& Clock::Real() {
  static const auto& clock = *new RealClock;
  return clock;
}

uint64_t WallTimeNs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// 64 bits from the system; equal ids of two processes are not expected to occur.
uint64_t RandomInstanceId() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace kvatlas
