// Is in a bundle what a report needs, and nothing of prompts, tokens, hashes of them and secrets? A
// real cluster that is told canaries in every way in which it can be told any; none of them is in
// the archive.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "tests/programs.h"
#include "tools/bench/service_bench_http.h"

namespace kvatlas {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;

constexpr std::chrono::seconds kLong(60);
constexpr uint32_t kBlockSize = 64;  // the mock engine's own

std::string Dir() { return std::getenv("TEST_TMPDIR"); }

std::map<std::string, std::string> FilesIn(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[std::filesystem::relative(entry.path(), folder)] = {std::istreambuf_iterator<char>(file),
                                                              std::istreambuf_iterator<char>()};
  }
  return files;
}

int Shell(const std::string& command) { return std::system(command.c_str()); }

class BundleTest : public ::testing::Test {
 protected:
  void Start(const Program& program) {
    const absl::Status started = programs_.Start(program);
    ASSERT_TRUE(started.ok()) << started;
  }
  void Post(const std::string& name, const std::string& path, const std::string& body) {
    HttpClient http(*Address::Parse(programs_.Of(name).address("http")));
    EXPECT_TRUE(http.Post(path, body).ok()) << path;
  }
  std::map<std::string, std::string> Bundled(const std::vector<std::string>& args) {
    const std::string file = Dir() + "/bundle.tar.gz", folder = Dir() + "/unpacked";
    std::string command = "tools/kvatlas/kvatlas bundle --out=" + file;
    for (const std::string& arg : args) command += " '" + programs_.Filled(arg) + "'";
    EXPECT_EQ(Shell(command + " > /dev/null"), 0) << command;
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    EXPECT_EQ(Shell("tar -C " + folder + " -xzf " + file), 0);
    return FilesIn(folder + "/kvatlas-bundle");
  }

  Programs programs_{"bundle"};
};

TEST_F(BundleTest, HasWhatAReportNeedsAndNoCanary) {
  // A prompt of four blocks, whose tokens are like no other number.
  std::vector<TokenId> tokens;
  for (uint32_t i = 0; i < 4 * kBlockSize; ++i) tokens.push_back(73'317'000 + i);
  std::vector<std::string> canaries = {"canary-password", "canary-salt", "canary-prompt",
                                       "canary-bearer", "canary-key"};
  for (const TokenId token : tokens) canaries.push_back(std::to_string(token));
  const std::vector<LocalHash> locals =
      LocalHashes(tokens, {.block_size = kBlockSize}, BlockSeed({}));
  for (const SequenceHash hash : SequenceHashes(locals)) {
    canaries.push_back(std::to_string(Raw(hash)));
    canaries.push_back(absl::StrCat(absl::Hex(Raw(hash), absl::kZeroPad16)));
  }
  for (const LocalHash hash : locals) canaries.push_back(std::to_string(Raw(hash)));

  Start({.name = "top", .kind = "hierarchy"});
  Start({.name = "leaf",
         .kind = "leaf",
         .args = {"--parents={top:grpc}", "--cell=a", "--redis=redis://user:canary-password@{dead}",
                  "--model_name=mock", "--block_size=64",
                  "--workers=e=tcp://{dead};salt=canary-salt;replay=tcp://{dead}"}});
  Start({.name = "w",
         .kind = "engine",
         .args = {"--leaf={leaf:grpc}", "--worker=w"},
         .prefills = true});
  Start({.name = "relay",
         .kind = "relay",
         .args = {"--leaves={leaf:grpc}", "--model_name=m", "--block_size=64",
                  "--workers=r=tcp://{dead};salt=canary-salt;replay=tcp://{dead}"}});
  Start({.name = "frontend",
         .kind = "frontend",
         .args = {"--hierarchy={top:grpc}", "--leaves=a={leaf:grpc}"}});

  const std::string ids = absl::StrJoin(tokens, ",");
  Post("frontend", "/route",
       "{\"model\":\"mock\",\"tokens\":[" + ids + "],\"cache_salt\":\"canary-salt\"}");
  Post("frontend", "/route/completion", "{\"model\":\"mock\",\"prompt\":[" + ids + "]}");
  Post("frontend", "/route/completion", "{\"model\":\"mock\",\"prompt\":\"canary-prompt sings\"}");
  Post("frontend", "/route/chat",
       "{\"model\":\"mock\",\"messages\":[{\"role\":\"user\",\"content\":\"canary-prompt\"}]}");
  Post("frontend", "/route", "{\"canary-prompt\":");
  Post("leaf", "/query", "{\"model\":\"mock\",\"token_ids\":[" + ids + "]}");
  Post("leaf", "/query", "{\"canary-prompt\":");
  Post("leaf", "/register", "{\"instance_id\":1,\"additional_salt\":\"canary-salt\"}");
  // What another program's log may have.
  const std::string log = Dir() + "/other.log";
  std::ofstream(log) << "Authorization: Bearer canary-bearer\napi_key=canary-key tokens=[" << ids
                     << "]\nhash " << canaries.back() << "\nits last line\n";

  std::map<std::string, std::string> files;
  const auto says = [&](const char* file, const char* text) {
    return files[file].find(text) != std::string::npos;
  };
  EXPECT_TRUE(Await(
      [&] {
        files = Bundled({"--frontend_http={frontend:http}", "--relay={relay:http}", "--log=" + log,
                         "--timeout=60s"});
        return says("doctor.txt", "engine_stream") && says("streams.txt", "at rest");
      },
      kLong))
      << files["doctor.txt"] << files["streams.txt"];

  const auto folder = [&](const std::string& kind, const std::string& address) {
    std::string name = kind + "-" + address;
    for (char& c : name)
      if (c == ':') c = '-';
    return name;
  };
  for (const std::string& name :
       {std::string("README.txt"), std::string("doctor.txt"), std::string("doctor.json"),
        std::string("streams.txt"), std::string("services.json"),
        folder("leaf", programs_.Of("leaf").address("grpc")) + "/status.json",
        folder("leaf", programs_.Of("leaf").address("grpc")) + "/metrics.txt",
        folder("leaf", programs_.Of("leaf").address("grpc")) + "/workers.json",
        folder("hierarchy", programs_.Of("top").address("grpc")) + "/status.json",
        folder("hierarchy", programs_.Of("top").address("grpc")) + "/metrics.txt",
        folder("frontend", programs_.Of("frontend").address("http")) + "/status.json",
        folder("frontend", programs_.Of("frontend").address("http")) + "/metrics.txt",
        folder("relay", programs_.Of("relay").address("http")) + "/status.json",
        folder("relay", programs_.Of("relay").address("http")) + "/metrics.txt",
        folder("relay", programs_.Of("relay").address("http")) + "/workers.json"})
    EXPECT_THAT(files, Contains(Key(name)));
  EXPECT_THAT(files["services.json"], HasSubstr("0.1.0"));
  EXPECT_THAT(files["services.json"], HasSubstr("redis://user:***@"));
  EXPECT_THAT(files["services.json"], HasSubstr("salt=***"));
  EXPECT_THAT(files["streams.txt"], HasSubstr("at rest"));
  size_t logs = 0;
  for (const auto& [name, content] : files) {
    logs += name.starts_with("logs/");
    for (const std::string& canary : canaries)
      EXPECT_EQ(content.find(canary), std::string::npos) << canary << " is in " << name;
  }
  EXPECT_EQ(logs, 5u) << "one that was given, and those of the four services";
  EXPECT_THAT(files["logs/0-other.log"], HasSubstr("its last line"));
}

}  // namespace
}  // namespace kvatlas
