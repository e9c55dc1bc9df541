#include "indexer/process/process_facts.h"

#include <gtest/gtest.h>

#include <string>

namespace kvatlas {
namespace {

TEST(ProcessFactsTest, NoSecretIsInAValue) {
  EXPECT_EQ(WithoutSecrets("redis://u:s3cret@h:6379/0"), "redis://u:***@h:6379/0");
  EXPECT_EQ(WithoutSecrets("a=tcp://h:1;salt=s3cret;topic=t,b=tcp://h:2;salt=x"),
            "a=tcp://h:1;salt=***;topic=t,b=tcp://h:2;salt=***");
  EXPECT_EQ(WithoutSecrets("salt=s"), "salt=***");
  // No option of that name.
  EXPECT_EQ(WithoutSecrets("basalt=rock"), "basalt=rock");
  EXPECT_EQ(WithoutSecrets(""), "");
}

TEST(ProcessFactsTest, SaysWhatTheProcessWasTold) {
  EXPECT_EQ(FactsOfProcess().program, "");  // nothing was said yet
  SetFactsOfProcess("kvatlas-leaf", {{"cell", "a\"b", "flag --cell"},
                                     {"redis", "redis://u:s3cret@h", "KVATLAS_REDIS"}});
  SetListensOfProcess({{"grpc", {"127.0.0.1", 7410}}});
  const ProcessFacts facts = FactsOfProcess();
  EXPECT_EQ(facts.program, "kvatlas-leaf");
  EXPECT_GT(facts.started_unix_ms, 0u);
  EXPECT_GE(facts.now_unix_ms, facts.started_unix_ms);
  const std::string json = ProcessFactsJson(facts);
  EXPECT_NE(json.find("\"listens\":{\"grpc\":\"127.0.0.1:7410\"}"), std::string::npos) << json;
  EXPECT_NE(json.find("\"cell\":{\"value\":\"a\\\"b\",\"from\":\"flag --cell\"}"),
            std::string::npos)
      << json;
  EXPECT_EQ(json.find("s3cret"), std::string::npos) << json;
  // Another reading of the flags changes them, and nothing else.
  SetFactsOfProcess("kvatlas-leaf", {});
  EXPECT_EQ(FactsOfProcess().started_unix_ms, facts.started_unix_ms);
  EXPECT_TRUE(FactsOfProcess().flags.empty());
}

}  // namespace
}  // namespace kvatlas
