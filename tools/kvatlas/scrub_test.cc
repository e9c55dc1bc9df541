#include "tools/kvatlas/scrub.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace kvatlas {
namespace {

TEST(ScrubTest, SecretsAndPromptsAreLeftOut) {
  const struct {
    const char* text;
    const char* canary;
  } rows[] = {
      {"reads redis://u:canary@h:6379/0 now", "canary"},
      {"worker a=tcp://h:1;salt=canary;topic=t", "canary"},
      {"Authorization: Bearer canary.x.y", "canary"},
      {"password=canary", "canary"},
      {R"({"api_key":"canary"})", "canary"},
      {R"(event=x token="canary x" y=1)", "canary"},
      {R"({"prompt":"the canary sings","n":1})", "canary"},
      {R"({"tokens":[1,424242,3]})", "424242"},
      {"tokens=[1,424242,3", "424242"},
      {"sequence_hashes=[12, 13]", "12"},
      {"block 0x0123456789abcdef is missing", "0123456789abcdef"},
      {"block 0123456789ABCDEF01 is missing", "0123456789ABCDEF"},
      {"block 12345678901234567890 is missing", "12345678901234567890"},
  };
  for (const auto& row : rows)
    EXPECT_EQ(ScrubbedText(row.text).find(row.canary), std::string::npos)
        << row.text << " -> " << ScrubbedText(row.text);
}

TEST(ScrubTest, WhatHelpsStays) {
  for (const char* text :
       {"level=info event=connected connection=leaf endpoint=10.0.0.1:7410 after=3m12s",
        "kvatlas_leaf_blocks{domain=\"m\"} 1234567", "prompt_tokens: 5", "--access_tokens=/etc/x",
        "contract xxh3-chain-1:1337", "at 1764064000000", "a\n\nb\n"})
    EXPECT_EQ(ScrubbedText(text), text);
}

TEST(ScrubTest, FieldsOfJsonGoByTheirNames) {
  auto json = nlohmann::ordered_json::parse(
      R"({"epoch":"1764064000000000000","salt":"canary","salted":true,"tokens":[7],
          "list":[{"last_hash":"77","reason":"redis://u:canary@h"}],"blocks":"12345678901234567890",
          "token":null,"prompt_token_ids":[7],"input_ids":[7],"additional_salt":"canary",
          "text":"canary","prompt_tokens":1})");
  Scrub(&json);
  EXPECT_EQ(
      json.dump(),
      R"({"epoch":"1764064000000000000","salt":"***","salted":true,"tokens":"***",)"
      R"("list":[{"last_hash":"***","reason":"redis://u:***@h"}],"blocks":"<number>","token":null,)"
      R"("prompt_token_ids":"***","input_ids":"***","additional_salt":"***","text":"***","prompt_tokens":1})");
}

TEST(ScrubTest, ALineThatDoesNotEndIsCut) {
  const std::string line(1 << 20, 'x');
  EXPECT_LT(ScrubbedText(line).size(), 2 * kScrubbedLineBytesMax);
}

}  // namespace
}  // namespace kvatlas
