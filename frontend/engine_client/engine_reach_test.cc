#include "frontend/engine_client/engine_reach.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

TEST(EngineUrlTest, HostPortAndPrefixAreTakenApart) {
  const auto text = [](std::string_view url) {
    const absl::StatusOr<EngineUrl> parsed = EngineUrl::Parse(url);
    return parsed.ok() ? parsed->authority() + " " + parsed->prefix : "none";
  };
  EXPECT_EQ(text("http://engine"), "engine:80 ");
  EXPECT_EQ(text("http://10.0.0.7:65535/a/b/"), "10.0.0.7:65535 /a/b");
  EXPECT_EQ(text("http://[::1]:8000"), "[::1]:8000 ");
  for (const char* bad : {"https://engine", "http://", "http://:8000", "http://engine:",
                          "http://engine:80a", "http://me@engine", "http://engine:-1"})
    EXPECT_EQ(text(bad), "none") << bad;
}

// A resolver takes 70000 for 4464.
TEST(EngineUrlTest, APortAbove65535IsRefused) {
  for (const char* bad : {"http://engine:65536", "http://engine:70000", "http://127.0.0.1:99999",
                          "http://[::1]:65536/v1", "http://engine:100000"})
    EXPECT_EQ(EngineUrl::Parse(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
}

}  // namespace
}  // namespace kvatlas
