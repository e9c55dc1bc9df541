#include "frontend/router/policy/sessions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <string>
#include <utility>

namespace kvatlas {
namespace {

using std::chrono::seconds;

const Domain kDomain = {"m", ""};

Sessions::CellWorker Worker(const std::string& name) {
  return {"a", {.name = name, .rank = 0, .replica = ""}};
}

std::string NameOf(const Sessions::CellWorker* worker) {
  return worker == nullptr ? "" : worker->second.name;
}

TEST(SessionsTest, TheLatestWorkerIsRememberedUntilTheSessionIsTooOld) {
  Sessions sessions({.ttl = seconds(10)});
  EXPECT_EQ(sessions.Find(kDomain, "s", seconds(0)), nullptr);
  sessions.Went(kDomain, "s", Worker("w0"), seconds(0));
  sessions.Went(kDomain, "s", Worker("w1"), seconds(5));
  EXPECT_EQ(NameOf(sessions.Find(kDomain, "s", seconds(14))), "w1");
  EXPECT_EQ(NameOf(sessions.Find(kDomain, "s", seconds(15))), "");
  EXPECT_EQ(NameOf(sessions.Find({"m", "tenant"}, "s", seconds(5))), "");
  EXPECT_EQ(sessions.size(), 1u);
}

TEST(SessionsTest, NoIdIsNoSession) {
  Sessions sessions({});
  sessions.Went(kDomain, "", Worker("w0"), seconds(0));
  EXPECT_EQ(sessions.Find(kDomain, "", seconds(0)), nullptr);
  EXPECT_EQ(sessions.size(), 0u);
}

// Against a map of everything, from which the one that was heard of longest ago is erased.
TEST(SessionsTest, BeyondTheBoundTheOneUnheardOfForLongestIsForgotten) {
  Sessions sessions({.sessions_max = 8, .ttl = seconds(1000)});
  std::map<std::string, std::pair<Time, std::string>> twin;
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    const std::string id = "s" + std::to_string(random() % 12);
    const std::string worker = "w" + std::to_string(random() % 5);
    const Time now = std::chrono::milliseconds(i);
    sessions.Went(kDomain, id, Worker(worker), now);
    twin[id] = {now, worker};
    if (twin.size() > 8) {
      twin.erase(std::min_element(twin.begin(), twin.end(), [](const auto& a, const auto& b) {
        return a.second.first < b.second.first;
      }));
    }
    for (int s = 0; s < 12; ++s) {
      const std::string other = "s" + std::to_string(s);
      const auto expected = twin.find(other);
      ASSERT_EQ(NameOf(sessions.Find(kDomain, other, now)),
                expected == twin.end() ? "" : expected->second.second)
          << "after " << i;
    }
  }
}

}  // namespace
}  // namespace kvatlas
