#include "frontend/gateway/ext_proc/endpoint_names.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "indexer/base/await.h"
#include "indexer/base/ids.h"

namespace kvatlas {
namespace {

constexpr auto kLong = std::chrono::minutes(1);

// Names that move while they are asked for.
class Names {
 public:
  void Set(const std::string& host, const std::string& address) {
    MutexLock lock(&mutex_);
    addresses_[host] = address;
  }
  HostResolver resolver() {
    return [this](const std::string& host) -> absl::StatusOr<std::vector<std::string>> {
      MutexLock lock(&mutex_);
      const auto found = addresses_.find(host);
      if (found == addresses_.end()) return absl::UnavailableError("no such name");
      return std::vector<std::string>{found->second};
    };
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::string> addresses_ ABSL_GUARDED_BY(mutex_);
};

TEST(EndpointNamesTest, ANewNameIsAskedForAtOnce) {
  Endpoints endpoints;
  Names names;
  names.Set("vllm-0", "10.0.0.1");
  const EndpointNames watch(&endpoints, std::chrono::hours(1), names.resolver());
  endpoints.Learn({"w", 0, ""}, "http://vllm-0:8000");
  EXPECT_TRUE(Await([&] { return endpoints.Of({"w", 0, ""}) == "10.0.0.1:8000"; }, kLong));
}

TEST(EndpointNamesTest, ANameThatMovesIsFollowed) {
  Endpoints endpoints;
  Names names;
  const EndpointNames watch(&endpoints, std::chrono::milliseconds(1), names.resolver());
  endpoints.Learn({"w", 0, ""}, "http://vllm-0:8000");
  for (const char* address : {"10.0.0.1", "10.0.0.2"}) {
    names.Set("vllm-0", address);
    EXPECT_TRUE(
        Await([&] { return endpoints.Of({"w", 0, ""}) == std::string(address) + ":8000"; }, kLong));
  }
}

}  // namespace
}  // namespace kvatlas
