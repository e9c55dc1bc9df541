// Do processes of a release and of this build understand each other? Every pair that talks, each
// way round.
//
// OLD_PROGRAMS is a folder with a release's programs (tools/test_versions makes it). Without it
// both are this build's, which says that the test itself works.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_replace.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "tests/programs.h"
#include "tools/bench/service_bench_http.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::seconds kLong(60);
constexpr char kEvery[] = "--schedule=every:1";  // the first of two blocks is reported too

// Where the programs of either side are; empty: this build's.
struct Pair {
  std::string name;
  std::string first;   // who speaks
  std::string second;  // who is spoken to
};
std::ostream& operator<<(std::ostream& out, const Pair& pair) { return out << pair.name; }

std::vector<Pair> Pairs() {
  const char* const old = std::getenv("OLD_PROGRAMS");
  if (old == nullptr || *old == '\0') return {{"NewAndNew", "", ""}};
  return {{"OldToNew", old, ""}, {"NewToOld", "", old}};
}

class VersionsTest : public ::testing::TestWithParam<Pair> {
 protected:
  const std::string& first() const { return GetParam().first; }
  const std::string& second() const { return GetParam().second; }

  void Start(Program program, const std::string& folder) {
    program.folder = folder;
    const absl::Status started = programs_.Start(program);
    ASSERT_TRUE(started.ok()) << started;
  }
  void AwaitSays(const std::string& name, const std::string& path,
                 const std::function<bool(const Json&)>& says) {
    std::string body;
    EXPECT_TRUE(Await(
        [&] {
          body = programs_.Get(name, path);
          const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
          return json.is_object() && says(json);
        },
        kLong))
        << name << " " << path << ": " << body;
  }
  // A holder of the first domain is exact and has so many blocks.
  void AwaitHolds(const std::string& name, const std::string& blocks) {
    AwaitSays(name, "/status", [&](const Json& json) {
      if (json["domains"].empty()) return false;
      for (const Json& holder : json["domains"][0]["holder_stats"])
        if (holder["trust"] == "TRUST_EXACT" && holder["blocks"] == blocks) return true;
      return false;
    });
  }

  // A test's name has its pair's behind a slash.
  Programs programs_{absl::StrReplaceAll(
      std::string("versions.") + ::testing::UnitTest::GetInstance()->current_test_info()->name(),
      {{"/", "."}})};
};

TEST_P(VersionsTest, PublisherToLeaf) {
  Start({.name = "leaf", .kind = "leaf"}, second());
  Start({.name = "w", .kind = "engine", .args = {"--leaf={leaf:grpc}"}, .prefills = true}, first());
  AwaitHolds("leaf", "2");
}

TEST_P(VersionsTest, RelayToLeaf) {
  Start({.name = "leaf", .kind = "leaf"}, second());
  Start({.name = "engine", .kind = "zmq_engine", .args = {"--block_size=32"}, .prefills = true},
        second());
  Start({.name = "relay",
         .kind = "relay",
         .args = {"--model_name=m", "--block_size=32", "--leaves={leaf:grpc}",
                  "--workers=w=tcp://{engine:zmq_events};replay=tcp://{engine:zmq_replay}"}},
        first());
  AwaitHolds("leaf", "2");
}

TEST_P(VersionsTest, LeafToHierarchy) {
  Start({.name = "top", .kind = "hierarchy", .args = {kEvery}}, second());
  Start({.name = "leaf", .kind = "leaf", .args = {"--parents={top:grpc}", "--cell=a", kEvery}},
        first());
  Start({.name = "w", .kind = "engine", .args = {"--leaf={leaf:grpc}"}, .prefills = true}, first());
  AwaitSays("top", "/status", [](const Json& json) {
    if (json["domains"].empty() || json["domains"][0]["holder_stats"].empty()) return false;
    const Json& cell = json["domains"][0]["holder_stats"][0];
    return cell["holder"]["name"] == "a" && cell["trust"] == "TRUST_EXACT" && cell["blocks"] != "0";
  });
}

TEST_P(VersionsTest, NodeToNodeAbove) {
  Start({.name = "top", .kind = "hierarchy", .args = {kEvery}}, second());
  Start({.name = "node", .kind = "hierarchy", .args = {"--parents={top:grpc}", "--node=n", kEvery}},
        first());
  Start({.name = "leaf", .kind = "leaf", .args = {"--parents={node:grpc}", "--cell=a", kEvery}},
        first());
  Start({.name = "w", .kind = "engine", .args = {"--leaf={leaf:grpc}"}, .prefills = true}, first());
  AwaitSays("top", "/status", [](const Json& json) {
    if (json["domains"].empty() || json["domains"][0]["holder_stats"].empty()) return false;
    const Json& node = json["domains"][0]["holder_stats"][0];
    return node["holder"]["name"] == "n" && node["blocks"] != "0";
  });
}

TEST_P(VersionsTest, FrontendToHierarchyAndLeaf) {
  Start({.name = "top", .kind = "hierarchy", .args = {kEvery}}, second());
  Start({.name = "leaf", .kind = "leaf", .args = {"--parents={top:grpc}", "--cell=a", kEvery}},
        second());
  Start({.name = "w",
         .kind = "engine",
         .args = {"--leaf={leaf:grpc}", "--worker=w"},
         .prefills = true},
        second());
  Start({.name = "frontend", .kind = "frontend", .args = {"--hierarchy={top:grpc}", kEvery}},
        first());
  HttpClient http(*Address::Parse(programs_.Of("frontend").address("http")));
  std::string body;
  EXPECT_TRUE(Await(
      [&] {
        const absl::StatusOr<HttpAnswer> answer = http.Post(
            "/route", R"({"model":"mock","sequence_hashes":[1,2,3],"prompt_tokens":200})");
        body = answer.ok() ? answer->body : answer.status().ToString();
        const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
        return json.is_object() && json.contains("worker") && json["worker"]["name"] == "w" &&
               json["overlap_blocks"] == 2;
      },
      kLong))
      << body;
}

TEST_P(VersionsTest, CheckpointOfOneIsTakenUpByTheOther) {
  const std::string dir = std::string(std::getenv("TEST_TMPDIR")) + "/" + GetParam().name;
  Start({.name = "leaf", .kind = "leaf", .args = {"--checkpoint_dir=" + dir}}, first());
  Start({.name = "w", .kind = "engine", .args = {"--leaf={leaf:grpc}"}, .prefills = true}, first());
  AwaitHolds("leaf", "2");
  programs_.Kill("w");
  programs_.Stop("leaf");  // writes a last one
  Start({.name = "next", .kind = "leaf", .args = {"--checkpoint_dir=" + dir}}, second());
  AwaitSays("next", "/status", [](const Json& json) {
    return !json["domains"].empty() && json["domains"][0]["blocks"] == "2";
  });
}

TEST_P(VersionsTest, ReplicaIsRecoveredFrom) {
  Start({.name = "engine", .kind = "zmq_engine", .args = {"--block_size=32"}, .prefills = true},
        second());
  Start({.name = "leaf",
         .kind = "leaf",
         .args = {"--model_name=m", "--block_size=32",
                  "--workers=w=tcp://{engine:zmq_events};replay=tcp://{engine:zmq_replay}"}},
        second());
  AwaitHolds("leaf", "2");
  // It knows of the engine from its replica alone.
  Start({.name = "replica", .kind = "leaf", .args = {"--peers=http://{leaf:http}", "--replica=2"}},
        first());
  AwaitSays("replica", "/status", [](const Json& json) {
    return !json["domains"].empty() && json["domains"][0]["blocks"] == "2";
  });
}

TEST_P(VersionsTest, CommandToServices) {
  Start({.name = "top", .kind = "hierarchy", .args = {kEvery}}, second());
  Start({.name = "leaf", .kind = "leaf", .args = {"--parents={top:grpc}", "--cell=a", kEvery}},
        second());
  Start({.name = "w", .kind = "engine", .args = {"--leaf={leaf:grpc}"}, .prefills = true},
        second());
  AwaitHolds("leaf", "2");
  const std::string kvatlas = first().empty() ? "tools/kvatlas/kvatlas" : first() + "/kvatlas";
  for (const char* command :
       {"workers --leaf={leaf:grpc}", "cells --hierarchy={top:grpc}",
        "streams --leaf={leaf:grpc} --hierarchy={top:grpc}", "dump --from=leaf={leaf:grpc}"})
    EXPECT_EQ(
        std::system(
            (kvatlas + " " + programs_.Filled(command) + " --timeout=60s > /dev/null").c_str()),
        0)
        << command;
}

INSTANTIATE_TEST_SUITE_P(Pairs, VersionsTest, ::testing::ValuesIn(Pairs()),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace kvatlas
